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
use crate::io::read_ahead::ReadAhead;
use crate::limits::Limits;
use crate::tls::authority::{Authority, HTTP1, HTTP2};

/// A client whose TLS is terminated.
pub type ClientTls<S> = TlsStream<ReadAhead<S>>;

/// Handshake of a client after its ClientHello.
pub struct ClientHandshake<S> {
    start: StartHandshake<ReadAhead<S>>,
    /// Protocols that it offers.
    pub alpn: ClientAlpn,
}

/// Protocols that a client offers (ALPN, RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAlpn {
    /// HTTP/1.1, or no ALPN.
    Http1,
    /// HTTP/2 alone.
    Http2,
    /// Both.
    Either,
}

/// Reads the ClientHello of the client on `stream`.
///
/// # Errors
/// The client breaks off, or takes longer than [`Limits::HEAD_DEADLINE`].
pub async fn read_client_hello<S>(stream: S) -> Result<ClientHandshake<S>, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let start = within(async { LazyConfigAcceptor::new(Acceptor::default(), ReadAhead::new(stream)).await }).await?;
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
    /// Terminates TLS with a certificate for `host`; with HTTP/2 if it `may_be_http2`. The second value is the host in
    /// the client's SNI, if it differs (RFC 6066 §3).
    ///
    /// # Errors
    /// The client breaks off, offers no protocol that can be judged, or takes longer than [`Limits::HEAD_DEADLINE`].
    pub async fn terminate(
        self,
        authority: &Authority,
        host: &Host,
        may_be_http2: bool,
    ) -> Result<(ClientTls<S>, Option<String>), Refusal> {
        let server_name = self.start.client_hello().server_name().map(str::to_owned);
        let other = server_name.filter(|name| Host::parse(name).as_ref() != Ok(host));
        let handshake = async {
            let config = authority.server(host, may_be_http2).map_err(io::Error::other)?;
            self.start.into_stream(config).await
        };
        let mut stream = within(handshake).await?;
        stream.get_mut().1.set_buffer_limit(Some(Limits::BUFFER_BYTES));
        Ok((stream, other))
    }
}

/// The protocol negotiated by ALPN, if the client offered any.
#[must_use]
pub fn protocol<S>(client: &ClientTls<S>) -> Option<&[u8]> {
    client.get_ref().1.alpn_protocol()
}

async fn within<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, Refusal> {
    match timeout(Limits::HEAD_DEADLINE, step).await {
        Ok(done) => done.map_err(|error| Refusal::client_tls_failed(describe(&error))),
        Err(_) => Err(Refusal::client_tls_failed("the handshake took too long".to_owned())),
    }
}

/// Describes a failed handshake, and its remedy.
fn describe(error: &io::Error) -> String {
    // Short enough for a log line.
    const DISTRUST: &str = "untrusted by the client: it must read SSL_CERT_FILE, or the endpoint `tls: skip`";
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::AlertReceived(Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown)) => {
            DISTRUST.to_owned()
        }
        Some(rustls::Error::NoApplicationProtocol) => {
            "the client offers neither HTTP/2 nor HTTP/1.1 (ALPN), and nothing else can be judged".to_owned()
        }
        // Some clients close without an alert.
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("the client left; perhaps {DISTRUST}")
        }
        _ => error.to_string(),
    }
}
