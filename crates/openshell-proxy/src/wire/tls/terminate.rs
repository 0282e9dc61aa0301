//! TLS towards the client, with a certificate of the sandbox's CA for exactly the requested host.

use std::io;

use openshell_policy::network::host::Host;
use rustls::AlertDescription as Alert;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::wire::io::read_ahead::ReadAhead;
use crate::wire::tls::authority::{Authority, HTTP1, HTTP2};

/// A client whose TLS is terminated.
pub type ClientTls<S> = TlsStream<ReadAhead<S>>;

/// The handshake of a client after its ClientHello.
pub struct ClientHandshake<S> {
    start: StartHandshake<ReadAhead<S>>,
    /// The protocols that the client offers.
    pub alpn: ClientAlpn,
}

/// The protocols that a client offers (ALPN, RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAlpn {
    /// HTTP/1.1, or no ALPN.
    Http1,
    /// Only HTTP/2.
    Http2,
    /// Both.
    Either,
}

/// Reads the ClientHello of the client on `stream`.
///
/// # Errors
/// Fails if the client breaks off, or takes longer than [`Limits::HEAD_DEADLINE`].
pub async fn read_client_hello<S>(stream: S) -> Result<ClientHandshake<S>, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let start = within(async {
        LazyConfigAcceptor::new(Acceptor::default(), ReadAhead::new(stream)).await
    });
    let start = start
        .await
        .map_err(|failure| refusal(failure.as_ref(), ""))?;
    let offered: Vec<_> = start.client_hello().alpn().into_iter().flatten().collect();
    let alpn = match (offered.contains(&HTTP2), offered.contains(&HTTP1)) {
        (true, true) => ClientAlpn::Either,
        (true, false) => ClientAlpn::Http2,
        (false, _) => ClientAlpn::Http1,
    };
    drop(offered);
    Ok(ClientHandshake { start, alpn })
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientHandshake<S> {
    /// Terminates TLS with a certificate for `host`, and with HTTP/2 if it `may_be_http2`. The
    /// second value is the host in the client's SNI, if that is another one (RFC 6066 §3).
    ///
    /// # Errors
    /// Fails if the client breaks off, offers no protocol that can be judged, or takes longer than
    /// [`Limits::HEAD_DEADLINE`].
    pub async fn terminate(
        self,
        authority: &Authority,
        host: &Host,
        may_be_http2: bool,
        program: &str,
    ) -> Result<(ClientTls<S>, Option<String>), Refusal> {
        let server_name = self.start.client_hello().server_name().map(str::to_owned);
        let other = server_name.filter(|name| Host::parse(name).as_ref() != Ok(host));
        let handshake = async {
            let config = authority
                .server(host, may_be_http2)
                .map_err(io::Error::other)?;
            self.start.into_stream(config).await
        };
        let mut stream = within(handshake)
            .await
            .map_err(|failure| refusal(failure.as_ref(), program))?;
        stream
            .get_mut()
            .1
            .set_buffer_limit(Some(Limits::BUFFER_BYTES));
        Ok((stream, other))
    }
}

/// Returns the protocol that ALPN negotiated, if the client offered any.
#[must_use]
pub fn protocol<S>(client: &ClientTls<S>) -> Option<&[u8]> {
    client.get_ref().1.alpn_protocol()
}

/// Returns the result of `step`, or its error. The error is `None` if the step takes too long.
async fn within<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, Option<io::Error>> {
    timeout(Limits::HEAD_DEADLINE, step)
        .await
        .map_err(|_| None)?
        .map_err(Some)
}

/// Returns the refusal for the program at `program`, whose handshake failed.
fn refusal(failure: Option<&io::Error>, program: &str) -> Refusal {
    Refusal::client_tls_failed(match failure {
        Some(error) => describe(error, program),
        None => "the TLS handshake took too long".to_owned(),
    })
}

/// The variables by which programs, given by name, find the certificates that they trust. All
/// others use SSL_CERT_FILE.
const TRUST: &[(&str, &str)] = &[
    ("node", "NODE_EXTRA_CA_CERTS"),
    ("nodejs", "NODE_EXTRA_CA_CERTS"),
    ("bun", "NODE_EXTRA_CA_CERTS"),
    ("deno", "DENO_CERT"),
    ("java", "JAVA_TOOL_OPTIONS"),
    ("curl", "CURL_CA_BUNDLE"),
    ("git", "GIT_SSL_CAINFO"),
    ("git-remote-https", "GIT_SSL_CAINFO"),
    ("cargo", "CARGO_HTTP_CAINFO"),
];

/// The programs that have their own store of certificates.
const OWN_STORE: &[&str] = &[
    "chrome",
    "chromium",
    "chromium-headless-shell",
    "headless_shell",
    "firefox",
    "firefox-esr",
];

/// Returns what makes the program at `path` trust the sandbox's certificates.
fn trust_of(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    // The version in a name such as node-20 does not count.
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    if OWN_STORE.contains(&name) {
        return "add the certificate of NODE_EXTRA_CA_CERTS to its own store".to_owned();
    }
    let row = TRUST.iter().find(|(program, _)| *program == name);
    format!(
        "the client must read {}",
        row.map_or("SSL_CERT_FILE", |(_, variable)| variable)
    )
}

/// Describes a failed handshake of the program at `program`, and the remedy.
fn describe(error: &io::Error, program: &str) -> String {
    // Short enough for a log line.
    let distrust = format!(
        "untrusted: {}, or the endpoint `tls: skip`",
        trust_of(program)
    );
    let cause = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::AlertReceived(
            Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown,
        )) => distrust,
        Some(rustls::Error::NoApplicationProtocol) => {
            "the client offers neither HTTP/2 nor HTTP/1.1 (ALPN), and the proxy can judge nothing \
             else"
                .to_owned()
        }
        // Some clients close without an alert.
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("the client left; perhaps {distrust}")
        }
        _ => error.to_string(),
    }
}
