//! TLS towards the client, by a certificate of the sandbox's authority for exactly the host that it asked for.

use std::io;

use openshell_policy::network::host::Host;
use rustls::AlertDescription as Alert;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, StartHandshake};

use crate::io::read_ahead::ReadAhead;
use crate::limits::Limits;
use crate::refusal::Refusal;
use crate::tls::authority::{Authority, HTTP1, HTTP2};

/// A client whose TLS is opened.
pub type ClientTls<S> = TlsStream<ReadAhead<S>>;

/// A client that has begun a handshake.
pub struct Hello<S> {
    start: StartHandshake<ReadAhead<S>>,
    /// What it offers to speak.
    pub offers: Offers,
}

/// What a client offers to speak inside TLS (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// HTTP/1.1, or nothing that it names.
    Http1,
    /// HTTP/2 and nothing else.
    Http2,
    /// Whichever its server prefers.
    Either,
}

/// Reads how a client begins on `stream`.
///
/// # Errors
/// It breaks off, or takes too long.
pub async fn greet<S>(stream: S) -> Result<Hello<S>, Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let start = within(async { LazyConfigAcceptor::new(Acceptor::default(), ReadAhead::new(stream)).await }).await?;
    let offered: Vec<_> = start.client_hello().alpn().into_iter().flatten().collect();
    let offers = match (offered.contains(&HTTP2), offered.contains(&HTTP1)) {
        (true, true) => Offers::Either,
        (true, false) => Offers::Http2,
        (false, _) => Offers::Http1,
    };
    drop(offered);
    Ok(Hello { start, offers })
}

impl<S: AsyncRead + AsyncWrite + Unpin> Hello<S> {
    /// Opens TLS for the client, which has asked for `host`; in HTTP/2 if it `may_be_http2`. The second value is what it asks for
    /// inside, if that is another host (RFC 6066 §3).
    ///
    /// # Errors
    /// It breaks off, offers nothing that can be judged, or takes too long.
    pub async fn open(
        self,
        authority: &Authority,
        host: &Host,
        may_be_http2: bool,
    ) -> Result<(ClientTls<S>, Option<String>), Refusal> {
        let asked = self.start.client_hello().server_name().map(str::to_owned);
        let other = asked.filter(|name| Host::parse(name).as_ref() != Ok(host));
        let handshake = async {
            let config = authority.server(host, may_be_http2).map_err(io::Error::other)?;
            self.start.into_stream(config).await
        };
        let mut stream = within(handshake).await?;
        stream.get_mut().1.set_buffer_limit(Some(Limits::BUFFER_BYTES));
        Ok((stream, other))
    }
}

/// What `client` is told that both speak, if it has asked.
#[must_use]
pub fn protocol<S>(client: &ClientTls<S>) -> Option<&[u8]> {
    client.get_ref().1.alpn_protocol()
}

async fn within<T>(step: impl Future<Output = io::Result<T>>) -> Result<T, Refusal> {
    match timeout(Limits::HEAD_DEADLINE, step).await {
        Ok(done) => done.map_err(|error| Refusal::ClientTlsFailed(said(&error))),
        Err(_) => Err(Refusal::ClientTlsFailed("the handshake took too long".to_owned())),
    }
}

/// Why the handshake failed, and what to do.
fn said(error: &io::Error) -> String {
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
        // Some clients tell by leaving.
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("the client left; perhaps {DISTRUST}")
        }
        _ => error.to_string(),
    }
}
