//! The one connection to the gateway.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use openshell_policy::secret::Secret;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tower_service::Service;

/// Time within which a connection must be established, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// Time between pings, and time to wait for an answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// Bytes that a stream may have in flight. The connection has room for as many relays as there may
/// be and for everything else, so that relays whose servers do not read cannot keep a policy from
/// arriving.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;

/// Bytes that are read from the gateway at a time.
const READ_BYTES: usize = 64 * 1024;

/// The certificates of mutual TLS, in PEM.
#[derive(Debug)]
pub struct Certificates {
    /// The authority of the gateway's certificate, the only one that is trusted.
    pub authority: Vec<u8>,
    /// The certificate chain of the supervisor.
    pub chain: Vec<u8>,
    /// The key of the supervisor.
    pub key: Secret,
}

/// A source of certificates, which are read again for each connection because files rotate.
pub trait CertificateSource: fmt::Debug + Send + Sync {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Fails if one of them cannot be read.
    fn read(&self) -> io::Result<Certificates>;
}

/// An error for a gateway's address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum AddressError {
    #[error("{0} is not the address of a gateway; write http://HOST:PORT or https://HOST:PORT")]
    Invalid(String),
    #[error("{0} needs mutual TLS: set OPENSHELL_TLS_CA, OPENSHELL_TLS_CERT and OPENSHELL_TLS_KEY")]
    WithoutCertificates(String),
    #[error(
        "{0} is not a server name; set OPENSHELL_GATEWAY_TLS_SERVER_NAME to a name in the \
         gateway's certificate"
    )]
    ServerName(String),
}

/// The address of a gateway.
#[derive(Debug)]
pub struct Address {
    /// `http://HOST:PORT`, or `https://HOST:PORT` for mutual TLS.
    pub endpoint: String,
    /// The name in the gateway's certificate, if it is not the host.
    pub server_name: Option<String>,
    /// The source of certificates for mutual TLS.
    pub certificates: Option<Arc<dyn CertificateSource>>,
}

/// Opens the channel of all calls, which connects when it is first used, and again after each loss.
///
/// # Errors
/// Fails if the address cannot be used.
pub(crate) fn open(address: Address) -> Result<Channel, AddressError> {
    let Address {
        endpoint,
        server_name,
        certificates,
    } = address;
    let invalid = || AddressError::Invalid(endpoint.clone());
    let origin: Uri = endpoint
        .trim_end_matches('/')
        .parse()
        .map_err(|_| invalid())?;
    let host = origin
        .host()
        .filter(|host| !host.is_empty())
        .ok_or_else(invalid)?
        .to_owned();
    let (is_tls, default_port) = match origin.scheme_str() {
        Some("http") => (false, 80),
        Some("https") => (true, 443),
        _ => return Err(invalid()),
    };
    if !matches!(origin.path(), "" | "/") || origin.query().is_some() {
        return Err(invalid());
    }
    let port = origin.port_u16().unwrap_or(default_port);
    let tls = match (is_tls, certificates) {
        (false, _) => None,
        (true, None) => return Err(AddressError::WithoutCertificates(endpoint)),
        (true, Some(certificates)) => {
            let name = server_name.unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
            let name =
                ServerName::try_from(name.clone()).map_err(|_| AddressError::ServerName(name))?;
            Some((certificates, name))
        }
    };
    let dialer = Dialer(Arc::new(Destination {
        host: host.trim_matches(['[', ']']).to_owned(),
        port,
        tls,
    }));
    // The connector does TLS itself, so that certificates are read for each connection.
    let channel = Endpoint::from_shared(format!("http://{host}:{port}")).map_err(|_| invalid())?;
    let channel = channel
        .origin(origin)
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .user_agent(concat!("openshell-sandbox/", env!("CARGO_PKG_VERSION")))
        .map_err(|_| AddressError::Invalid(host))?;
    Ok(channel.connect_with_connector_lazy(dialer))
}

#[derive(Debug)]
struct Destination {
    host: String,
    port: u16,
    tls: Option<(Arc<dyn CertificateSource>, ServerName<'static>)>,
}

/// Makes connections to the gateway.
#[derive(Clone, Debug)]
struct Dialer(Arc<Destination>);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Service<Uri> for Dialer {
    type Response = TokioIo<BufReader<Box<dyn Stream>>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let destination = Arc::clone(&self.0);
        Box::pin(async move {
            let dialed = tokio::time::timeout(CONNECT, destination.dial()).await;
            let late =
                |_| io::Error::new(io::ErrorKind::TimedOut, "no connection within ten seconds");
            let stream = dialed.map_err(late)??;
            // HTTP/2 reads the heads of frames and their contents in small pieces.
            Ok(TokioIo::new(BufReader::with_capacity(READ_BYTES, stream)))
        })
    }
}

impl Destination {
    async fn dial(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let Some((certificates, name)) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let config = configuration(&certificates.read()?)?;
        Ok(Box::new(
            TlsConnector::from(Arc::new(config))
                .connect(name.clone(), stream)
                .await?,
        ))
    }
}

/// Returns a configuration for mutual TLS with `certificates`, for HTTP/2.
fn configuration(certificates: &Certificates) -> io::Result<ClientConfig> {
    let invalid = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{what} does not hold valid PEM"),
        )
    };
    let Certificates {
        authority,
        chain,
        key,
    } = certificates;
    let read = |pem: &[u8]| {
        CertificateDer::pem_slice_iter(pem)
            .collect::<Result<Vec<_>, _>>()
            .ok()
    };
    let mut roots = RootCertStore::empty();
    for authority in read(authority).ok_or_else(|| invalid("OPENSHELL_TLS_CA"))? {
        roots
            .add(authority)
            .map_err(|_| invalid("OPENSHELL_TLS_CA"))?;
    }
    if roots.is_empty() {
        return Err(invalid("OPENSHELL_TLS_CA"));
    }
    let chain = read(chain)
        .filter(|chain| !chain.is_empty())
        .ok_or_else(|| invalid("OPENSHELL_TLS_CERT"))?;
    let key =
        PrivateKeyDer::from_pem_slice(key.expose()).map_err(|_| invalid("OPENSHELL_TLS_KEY"))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let mut config = builder
        .with_client_auth_cert(chain, key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// Returns a random number from 0 to 1, with which supervisors spread their calls over time.
#[must_use]
pub fn spread() -> f64 {
    let random = RandomState::new().hash_one(0) >> 11;
    // A float holds these 53 bits exactly.
    random as f64 / (1_u64 << 53) as f64
}

/// Waits between attempts; each is twice as long as the one before.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Returns waits that grow from `first` to `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// Returns the next wait, which is randomly up to a quarter shorter.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.longest);
        wait.mul_f64(1.0 - spread() / 4.0)
    }

    /// Starts again with the first wait.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, open, spread};

    #[tokio::test]
    async fn an_address_is_a_scheme_a_host_and_a_port() {
        let opened = |endpoint: &str| {
            open(Address {
                endpoint: endpoint.to_owned(),
                server_name: None,
                certificates: None,
            })
            .map(drop)
            .map_err(|error| error.to_string())
        };
        for valid in [
            "http://gateway:8080",
            "http://127.0.0.1:80/",
            "http://[::1]:9000",
            "http://gateway",
        ] {
            assert_eq!(opened(valid), Ok(()), "{valid}");
        }
        for invalid in [
            "",
            "gateway:8080",
            "grpc://gateway",
            "http://",
            "http://gateway/path",
            "http://g?x",
            "http://a b",
        ] {
            assert!(
                opened(invalid)
                    .unwrap_err()
                    .contains("is not the address of a gateway"),
                "{invalid}"
            );
        }
        assert!(
            opened("https://gateway")
                .unwrap_err()
                .contains("needs mutual TLS")
        );
    }

    #[test]
    fn the_spread_spreads() {
        let numbers: Vec<_> = (0..100).map(|_| spread()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)));
        assert!(
            numbers.iter().any(|number| *number < 0.5)
                && numbers.iter().any(|number| *number > 0.5)
        );
    }
}
