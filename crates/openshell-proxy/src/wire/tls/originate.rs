//! TLS towards the upstream, verified as if the client had no proxy.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use openshell_policy::network::host::Host;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, RootCertStore, SignatureScheme};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::wire::io::read_ahead::ReadAhead;
use crate::wire::io::upstream_stream::UpstreamStream;
use crate::wire::tls::authority::{HTTP1, HTTP2, VERSIONS, provider};
use crate::wire::tls::trust::certificates;

/// The TLS connection to a verified upstream.
pub type UpstreamTls = TlsStream<ReadAhead<UpstreamStream>>;

/// The trusted roots for upstreams: Mozilla's, the system's, and those that the operator adds.
#[derive(Debug, Default)]
pub struct UpstreamRoots {
    bundles: Vec<Vec<u8>>,
    /// Built on first use, because parsing hundreds of certificates takes longer than the rest of a
    /// start.
    config: OnceLock<Result<Configs, rustls::Error>>,
}

/// The configurations, named by the best protocol that they offer.
#[derive(Clone, Debug)]
struct Configs {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl UpstreamRoots {
    /// Creates the roots of Mozilla and of `bundles`, each in PEM.
    #[must_use]
    pub fn new(bundles: Vec<Vec<u8>>) -> Self {
        Self {
            bundles,
            config: OnceLock::new(),
        }
    }

    /// Returns the bundles, each in PEM.
    #[must_use]
    pub fn bundles(&self) -> &[Vec<u8>] {
        &self.bundles
    }

    fn config(&self) -> Result<Configs, rustls::Error> {
        let made = self.config.get_or_init(|| {
            let mut roots = RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            };
            let all: Vec<CertificateDer<'static>> = self
                .bundles
                .iter()
                .flat_map(|bundle| certificates(bundle))
                .collect();
            // System bundles hold certificates that no verifier can parse, which are skipped.
            roots.add_parsable_certificates(all);
            let config =
                ClientConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS)?;
            let config = config.with_root_certificates(roots);
            let mut config = config.with_client_cert_resolver(Arc::new(NoCertificate));
            config.alpn_protocols = vec![HTTP1.to_vec()];
            config.resumption = Resumption::in_memory_sessions(Limits::CERTIFICATES);
            let mut http2 = config.clone();
            http2.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
            // Each has its own store, because a session is bound to its protocol.
            http2.resumption = Resumption::in_memory_sessions(Limits::CERTIFICATES);
            Ok(Configs {
                http1: Arc::new(config),
                http2: Arc::new(http2),
            })
        });
        made.clone()
    }

    /// Opens TLS to `host` on `stream`, and offers HTTP/2 if it `may_be_http2`.
    ///
    /// # Errors
    /// Fails if the certificate is not valid for `host`, the handshake fails, or it takes too long.
    pub async fn open(
        &self,
        host: &Host,
        stream: UpstreamStream,
        may_be_http2: bool,
    ) -> Result<UpstreamTls, Refusal> {
        let invalid = |why: String| Refusal::upstream_tls_invalid(why);
        let configs = self.config().map_err(|error| invalid(error.to_string()))?;
        let config = if may_be_http2 {
            configs.http2
        } else {
            configs.http1
        };
        let name = match host {
            Host::Address(address) => ServerName::from(*address),
            Host::Name(name) => ServerName::try_from(name.to_string())
                .map_err(|error| invalid(error.to_string()))?,
        };
        let connector = TlsConnector::from(config);
        let was_asked = Arc::new(AtomicBool::new(false));
        let handshake = WAS_ASKED.scope(
            Arc::clone(&was_asked),
            connector.connect(name, ReadAhead::new(stream)),
        );
        match timeout(Limits::CONNECT_DEADLINE, handshake).await {
            Ok(Ok(mut stream)) => {
                stream
                    .get_mut()
                    .1
                    .set_buffer_limit(Some(Limits::BUFFER_BYTES));
                Ok(stream)
            }
            Ok(Err(error)) if was_asked.load(Ordering::Relaxed) && is_alert(&error) => {
                Err(Refusal::upstream_wants_certificate())
            }
            Ok(Err(error)) => Err(invalid(describe(&error))),
            Err(_) => Err(Refusal::upstream_timeout()),
        }
    }
}

tokio::task_local! {
    /// True if the upstream of the handshake has asked for a certificate.
    static WAS_ASKED: Arc<AtomicBool>;
}

/// A resolver that presents no certificate, and notes that an upstream asks for one. All
/// connections share it, because sessions are resumed only with the resolver with which they were
/// made.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // Nobody asks outside a handshake.
        let _ = WAS_ASKED.try_with(|was_asked| was_asked.store(true, Ordering::Relaxed));
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Returns true if the upstream has ended a handshake with an alert.
fn is_alert(error: &io::Error) -> bool {
    matches!(tls_error(error), Some(rustls::Error::AlertReceived(_)))
}

/// Returns true if `error`, or a cause of it, is an upstream's answer to the missing client
/// certificate. In TLS 1.3 it comes after the handshake (RFC 8446 §4.4.2.4).
#[must_use]
pub fn wants_certificate(error: &(dyn Error + 'static)) -> bool {
    use rustls::AlertDescription::{BadCertificate, CertificateRequired};
    let mut cause = Some(error);
    while let Some(error) = cause {
        let alert = error.downcast_ref::<io::Error>().and_then(tls_error);
        if let Some(rustls::Error::AlertReceived(CertificateRequired | BadCertificate)) = alert {
            return true;
        }
        cause = error.source();
    }
    false
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>())
}

/// Returns the protocol that ALPN negotiated, if the upstream chose one.
#[must_use]
pub fn protocol(upstream: &UpstreamTls) -> Option<&[u8]> {
    upstream.get_ref().1.alpn_protocol()
}

/// Describes a failed handshake.
fn describe(error: &io::Error) -> String {
    use CertificateError as E;
    let what = match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(certificate)) => match certificate {
            E::Expired | E::ExpiredContext { .. } => "the certificate has expired",
            E::NotValidYet | E::NotValidYetContext { .. } => "the certificate is not valid yet",
            E::NotValidForName | E::NotValidForNameContext { .. } => {
                "the certificate is for another name"
            }
            E::UnknownIssuer => {
                "the certificate's issuer is not trusted (--upstream-ca-file adds one)"
            }
            other => return format!("the certificate is not valid for a server: {other:?}"),
        },
        _ if error.kind() == io::ErrorKind::UnexpectedEof => "the upstream ended the handshake",
        _ => return error.to_string(),
    };
    what.to_owned()
}
