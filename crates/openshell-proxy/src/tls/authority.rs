//! The sandbox's certificate authority: created at start, its key only in this process's memory.

use std::fmt;
use std::sync::{Arc, OnceLock};

use openshell_policy::network::host::Host;
use quick_cache::sync::Cache;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{ServerConfig, SupportedProtocolVersion};
use time::{Duration, OffsetDateTime};

use crate::limits::Limits;

/// Issues a certificate for each intercepted host.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Made for the first host: many commands never open TLS.
    server: OnceLock<Result<Server, AuthorityError>>,
    leaves: Cache<Leaf, Arc<CertifiedKey>>,
}

/// Everything that the certificates of all hosts have in common.
struct Server {
    /// One key for all leaves: they live in the same process, and generating keys is slow.
    leaf_key: KeyPair,
    signing_key: Arc<dyn SigningKey>,
    config: ServerConfig,
}

impl Server {
    fn create() -> Result<Self, AuthorityError> {
        let leaf_key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let provider = provider();
        let der = PrivateKeyDer::Pkcs8(leaf_key.serialize_der().into());
        let signing_key = provider.key_provider.load_private_key(der).map_err(AuthorityError::Key)?;
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(VERSIONS);
        let config = config.map_err(AuthorityError::Key)?.with_no_client_auth();
        let mut config = config.with_cert_resolver(Arc::new(NoCertificate));
        config.alpn_protocols = vec![HTTP1.to_vec()];
        config.ticketer = Ticketer::new().map_err(AuthorityError::Key)?;
        Ok(Self { leaf_key, signing_key, config })
    }
}

/// A host, and the period in which its certificate was issued, so that it is renewed before it expires.
type Leaf = (Host, i64);

/// Age of a certificate at which a new one is issued.
const LEAF_RENEWAL: Duration = Duration::days(30);

/// Validity of a certificate; clients accept at most 398 days.
const LEAF_VALIDITY: Duration = Duration::days(90);

/// Difference allowed between the clocks of client and supervisor.
const SKEW: Duration = Duration::days(1);

/// TLS versions, towards both sides.
pub(super) const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];

/// ALPN protocols that can be judged (RFC 7301).
pub(super) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// Error of creating the authority or a certificate.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum AuthorityError {
    #[error("cannot make the sandbox's certificate authority")]
    Make(#[source] rcgen::Error),
    #[error("cannot issue a certificate")]
    Issue(#[source] rcgen::Error),
    #[error("the sandbox's certificate authority has a key that TLS cannot use")]
    Key(#[source] rustls::Error),
}

/// The one crypto provider.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Authority {
    /// Creates an authority for one sandbox.
    ///
    /// # Errors
    /// Randomness is missing, or the keys cannot be generated.
    pub fn create() -> Result<Self, AuthorityError> {
        let now = OffsetDateTime::now_utc();
        let mut params = CertificateParams::default();
        params.distinguished_name = name("OpenShell Sandbox CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (now - SKEW, now + Duration::days(3650));
        let key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(AuthorityError::Make)?;
        Ok(Self { issuer, server: OnceLock::new(), leaves: Cache::new(Limits::CERTIFICATES) })
    }

    fn shared(&self) -> Result<&Server, AuthorityError> {
        self.server.get_or_init(Server::create).as_ref().map_err(Clone::clone)
    }

    /// Certificate of the authority.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        self.issuer.der()
    }

    /// Certificate of the authority in PEM (RFC 7468).
    #[must_use]
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The configuration of a TLS server for `host`, with HTTP/2 if it `may_be_http2`.
    ///
    /// # Errors
    /// No certificate can be issued for the host.
    pub fn server(&self, host: &Host, may_be_http2: bool) -> Result<Arc<ServerConfig>, AuthorityError> {
        let resolver = Arc::new(OneCertificate(self.leaf(host, OffsetDateTime::now_utc())?));
        // State shared by all hosts is behind pointers.
        let mut config = self.shared()?.config.clone();
        config.cert_resolver = resolver;
        if may_be_http2 {
            config.alpn_protocols.insert(0, HTTP2.to_vec());
        }
        Ok(Arc::new(config))
    }

    /// The certificate for `host`, issued once for concurrent clients.
    fn leaf(&self, host: &Host, now: OffsetDateTime) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let month = now.unix_timestamp() / LEAF_RENEWAL.whole_seconds();
        self.leaves.get_or_insert_with(&(host.clone(), month), || self.issue(host, now).map(Arc::new))
    }

    fn issue(&self, host: &Host, now: OffsetDateTime) -> Result<CertifiedKey, AuthorityError> {
        let shared = self.shared()?;
        let text = host.to_string();
        let mut params = CertificateParams::default();
        // A common name has at most 64 characters (RFC 5280, A.1); clients check the alternative name.
        params.distinguished_name = name(text.get(..64).unwrap_or(&text));
        params.subject_alt_names = vec![match host {
            Host::Address(address) => SanType::IpAddress(*address),
            Host::Name(_) => SanType::DnsName(text.as_str().try_into().map_err(AuthorityError::Issue)?),
        }];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (now - SKEW, now + LEAF_VALIDITY);
        let leaf = params.signed_by(&shared.leaf_key, &*self.issuer).map_err(AuthorityError::Issue)?;
        let chain = vec![leaf.der().clone(), self.certificate().clone()];
        Ok(CertifiedKey::new(chain, Arc::clone(&shared.signing_key)))
    }
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "OpenShell");
    name.push(DnType::CommonName, common_name);
    name
}

impl fmt::Debug for Authority {
    /// Hides the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Resolver without certificates, until the host is known.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

/// Resolver with the certificate of one host.
#[derive(Debug)]
struct OneCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for OneCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use openshell_policy::network::host::Host;
    use time::{Duration, OffsetDateTime};

    use super::Authority;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_host_has_one_certificate_until_it_is_renewed() {
        let authority = Authority::create().unwrap();
        let now = OffsetDateTime::now_utc();
        let first = authority.leaf(&host("a.test"), now).unwrap();
        assert!(Arc::ptr_eq(&first, &authority.leaf(&host("A.test."), now).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authority.leaf(&host("b.test"), now).unwrap()));
        assert!(!Arc::ptr_eq(&first, &authority.leaf(&host("a.test"), now + Duration::days(31)).unwrap()));
    }

    #[test]
    fn a_million_hosts_leave_no_more_certificates_than_there_is_room_for() {
        let authority = Authority::create().unwrap();
        let now = OffsetDateTime::now_utc();
        for n in 0..3 * crate::limits::Limits::CERTIFICATES {
            authority.leaf(&host(&format!("h{n}.test")), now).unwrap();
        }
        assert!(authority.leaves.len() <= crate::limits::Limits::CERTIFICATES);
    }

    #[test]
    fn addresses_and_long_names_have_certificates_too() {
        let authority = Authority::create().unwrap();
        let long = format!("{}.{}.test", "a".repeat(60), "b".repeat(60));
        for text in ["10.99.0.1", "2001:db8::1", &long] {
            assert!(authority.server(&host(text), true).is_ok(), "{text}");
        }
    }

    // Conformance: TLS-03.
    #[test]
    fn two_sandboxes_have_two_authorities_and_show_no_keys() {
        let (one, other) = (Authority::create().unwrap(), Authority::create().unwrap());
        assert_ne!(one.pem(), other.pem());
        assert_eq!(format!("{one:?}"), "Authority { .. }");
    }
}
