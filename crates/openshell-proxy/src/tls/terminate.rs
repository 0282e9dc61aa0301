//! TLS towards the client, by a certificate of the sandbox's authority for exactly the host that it asked for.

use std::io;

use openshell_policy::network::host::Host;
use rustls::AlertDescription as Alert;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use crate::context::Limits;
use crate::refusal::Refusal;
use crate::tls::authority::Authority;
use crate::tls::read_ahead::ReadAhead;

/// A client whose TLS is opened.
pub type ClientTls<S> = TlsStream<ReadAhead<S>>;

/// Opens TLS on `stream`, whose client has asked for `host`. The second value is what the client asks for inside, if that is
/// another host (RFC 6066 §3).
///
/// # Errors
/// The client breaks off, offers nothing that can be judged, or takes too long.
pub async fn terminate<S>(
    authority: &Authority,
    host: &Host,
    stream: S,
) -> Result<(ClientTls<S>, Option<String>), Refusal>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = async {
        let start = LazyConfigAcceptor::new(Acceptor::default(), ReadAhead::new(stream)).await?;
        let asked = start.client_hello().server_name().map(str::to_owned);
        let other = asked.filter(|name| Host::parse(name).as_ref() != Ok(host));
        let config = authority.server(host).map_err(io::Error::other)?;
        let mut stream = start.into_stream(config).await?;
        stream.get_mut().1.set_buffer_limit(Some(Limits::BUFFER_BYTES));
        Ok((stream, other))
    };
    match timeout(Limits::HEAD_DEADLINE, handshake).await {
        Ok(opened) => opened.map_err(|error| Refusal::ClientTlsFailed(said(&error))),
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
            "the client offers no HTTP/1.1 (ALPN), and nothing else can be judged".to_owned()
        }
        // Some clients tell by leaving.
        _ if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("the client left; perhaps {DISTRUST}")
        }
        _ => error.to_string(),
    }
}
