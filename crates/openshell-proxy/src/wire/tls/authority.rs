//! The sandbox's certificate authority. It is created at the start, with a key that is only in this
//! process's memory, or it is kept for many sandboxes.

use std::fmt;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;
use quick_cache::sync::Cache;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{ServerConfig, SupportedProtocolVersion};
use time::{Duration, OffsetDateTime};

use crate::ground::limits::Limits;

/// The authority that issues a certificate for each intercepted host.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, and those of the authorities before it that programs still trust.
    certificates: Vec<CertificateDer<'static>>,
    /// The validity of its own certificate.
    validity: Validity,
    /// Created for the first host, because many commands never open TLS.
    server: OnceLock<Result<Server, AuthorityError>>,
    leaves: Cache<Leaf, Arc<CertifiedKey>>,
}

/// The begin and the end of a certificate's validity.
#[derive(Clone, Copy)]
struct Validity {
    begins: OffsetDateTime,
    ends: OffsetDateTime,
}

/// What the certificates of all hosts have in common.
struct Server {
    /// One key for all leaves: all of them are in this process, and generating keys is slow.
    leaf_key: KeyPair,
    signing_key: Arc<dyn SigningKey>,
    config: ServerConfig,
}

impl Server {
    fn create() -> Result<Self, AuthorityError> {
        let leaf_key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let provider = provider();
        let der = PrivateKeyDer::Pkcs8(leaf_key.serialize_der().into());
        let signing_key = provider
            .key_provider
            .load_private_key(der)
            .map_err(AuthorityError::Key)?;
        let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(VERSIONS);
        let config = config.map_err(AuthorityError::Key)?.with_no_client_auth();
        let mut config = config.with_cert_resolver(Arc::new(NoCertificate));
        config.alpn_protocols = vec![HTTP1.to_vec()];
        config.ticketer = Ticketer::new().map_err(AuthorityError::Key)?;
        Ok(Self {
            leaf_key,
            signing_key,
            config,
        })
    }
}

/// A host, and the number of the period in which its certificate was issued. Each period has its
/// own certificate, so that none expires.
type Leaf = (Host, i64);

/// The length of the periods in which a certificate is used.
const LEAF_RENEWAL: Duration = Duration::days(30);

/// The validity of a certificate; clients accept at most 398 days.
const LEAF_VALIDITY: Duration = Duration::days(90);

/// The validity of an authority for many sandboxes.
const KEPT_VALIDITY: Duration = Duration::days(5 * 365);

/// The difference that the clocks of client and supervisor may have.
const SKEW: Duration = Duration::days(1);

/// The TLS versions towards both sides.
pub(super) const VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// The ALPN protocols that can be judged (RFC 7301).
pub(super) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// An error while creating the authority or a certificate.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum AuthorityError {
    #[error("cannot make the sandbox's certificate authority")]
    Make(#[source] rcgen::Error),
    #[error("cannot issue a certificate")]
    Issue(#[source] rcgen::Error),
    #[error("the sandbox's certificate authority has a key that TLS cannot use")]
    Key(#[source] rustls::Error),
    #[error("{0}")]
    Kept(&'static str),
}

/// Returns the crypto provider that all TLS uses.
pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Authority {
    /// Creates an authority for one sandbox.
    ///
    /// # Errors
    /// Fails if randomness is missing, or the keys cannot be generated.
    pub fn create() -> Result<Self, AuthorityError> {
        Self::generate(Duration::days(3650), &[])
    }

    /// Creates an authority for many sandboxes, valid for five years, and its text for
    /// [`Self::from_pem`]. Programs that trust it also trust the authorities `before`.
    ///
    /// # Errors
    /// Fails if randomness is missing, or the keys cannot be generated.
    pub fn create_kept(
        before: &[CertificateDer<'static>],
    ) -> Result<(Self, Secret), AuthorityError> {
        let authority = Self::generate(KEPT_VALIDITY, before)?;
        let text = authority.issuer.key().serialize_pem() + &authority.pem();
        Ok((authority, Secret::new(text.into_bytes())))
    }

    fn generate(
        validity: Duration,
        before: &[CertificateDer<'static>],
    ) -> Result<Self, AuthorityError> {
        let now = OffsetDateTime::now_utc();
        let mut params = CertificateParams::default();
        params.distinguished_name = name("OpenShell Sandbox CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = (now - SKEW, now + validity);
        let validity = Validity {
            begins: params.not_before,
            ends: params.not_after,
        };
        let key = KeyPair::generate().map_err(AuthorityError::Make)?;
        let own = params.self_signed(&key).map_err(AuthorityError::Make)?;
        let certificates = [own.der().clone()]
            .into_iter()
            .chain(before.iter().cloned())
            .collect();
        Ok(Self::new(Issuer::new(params, key), certificates, validity))
    }

    fn new(
        issuer: Issuer<'static, KeyPair>,
        certificates: Vec<CertificateDer<'static>>,
        validity: Validity,
    ) -> Self {
        Self {
            issuer,
            certificates,
            validity,
            server: OnceLock::new(),
            leaves: Cache::new(Limits::CERTIFICATES),
        }
    }

    /// Reads a kept authority from PEM: a private key, the authority's certificate, and those of
    /// the authorities before it. Certificates that have expired are left out.
    ///
    /// # Errors
    /// Fails if a part is missing or does not belong to an authority, if the key is that of another
    /// certificate, or if the authority's certificate is not valid now.
    pub fn from_pem(text: &[u8]) -> Result<Self, AuthorityError> {
        let kept = |what| move |_| AuthorityError::Kept(what);
        let key = PrivateKeyDer::from_pem_slice(text)
            .map_err(|_| AuthorityError::Kept("it has no private key in PEM"))?;
        let key = KeyPair::try_from(&key)
            .map_err(kept("its private key is of a kind that is not supported"))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        let mut certificates =
            certificates.map_err(|_| AuthorityError::Kept("a certificate in it cannot be read"))?;
        let Some(own) = certificates.first().cloned() else {
            return Err(AuthorityError::Kept("it has no certificate in PEM"));
        };
        let now = OffsetDateTime::now_utc();
        let parsed = Parsed::read(&own)?;
        if !parsed.is_authority {
            return Err(AuthorityError::Kept(
                "its first certificate is not an authority's (CA:TRUE)",
            ));
        }
        if parsed.public_key != key.subject_public_key_info() {
            return Err(AuthorityError::Kept(
                "its private key does not belong to its first certificate",
            ));
        }
        if now < parsed.validity.begins || now >= parsed.validity.ends {
            return Err(AuthorityError::Kept(
                "its certificate is not valid now: check the clock, or replace it \
                 (`openshell-sandbox ca rotate`; a mounted secret: where it comes from)",
            ));
        }
        certificates.retain(|certificate| {
            Parsed::read(certificate).is_ok_and(|parsed| now < parsed.validity.ends)
        });
        let issuer = Issuer::from_ca_cert_der(&own, key).map_err(AuthorityError::Make)?;
        Ok(Self::new(issuer, certificates, parsed.validity))
    }

    /// Returns the end of the validity of its own certificate.
    #[must_use]
    pub fn ends(&self) -> OffsetDateTime {
        self.validity.ends
    }

    /// Returns its own certificate, and those of the authorities before it.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    fn shared(&self) -> Result<&Server, AuthorityError> {
        self.server
            .get_or_init(Server::create)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Returns [`Self::certificates`] in PEM (RFC 7468).
    #[must_use]
    pub fn pem(&self) -> String {
        self.certificates
            .iter()
            .map(|certificate| pem(certificate))
            .collect()
    }

    /// Returns the configuration of a TLS server for `host`, with HTTP/2 if it `may_be_http2`.
    ///
    /// # Errors
    /// Fails if no certificate can be issued for the host.
    pub fn server(
        &self,
        host: &Host,
        may_be_http2: bool,
    ) -> Result<Arc<ServerConfig>, AuthorityError> {
        let resolver = Arc::new(OneCertificate(self.leaf(host, OffsetDateTime::now_utc())?));
        // The state that all hosts share is behind pointers, which makes the clone cheap.
        let mut config = self.shared()?.config.clone();
        config.cert_resolver = resolver;
        if may_be_http2 {
            config.alpn_protocols.insert(0, HTTP2.to_vec());
        }
        Ok(Arc::new(config))
    }

    /// Returns the certificate for `host`, which is issued only once for concurrent clients.
    fn leaf(&self, host: &Host, now: OffsetDateTime) -> Result<Arc<CertifiedKey>, AuthorityError> {
        let month = now.unix_timestamp() / LEAF_RENEWAL.whole_seconds();
        self.leaves.get_or_insert_with(&(host.clone(), month), || {
            self.issue(host, now).map(Arc::new)
        })
    }

    fn issue(&self, host: &Host, now: OffsetDateTime) -> Result<CertifiedKey, AuthorityError> {
        let shared = self.shared()?;
        let text = host.to_string();
        let mut params = CertificateParams::default();
        // A common name has at most 64 characters (RFC 5280, A.1); clients check the alternative
        // name.
        params.distinguished_name = name(text.get(..64).unwrap_or(&text));
        params.subject_alt_names = vec![match host {
            Host::Address(address) => SanType::IpAddress(*address),
            Host::Name(_) => {
                SanType::DnsName(text.as_str().try_into().map_err(AuthorityError::Issue)?)
            }
        }];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        // A chain is valid only as long as each of its certificates (RFC 5280 §6.1.3), and some
        // clients want them nested.
        params.not_before = (now - SKEW).max(self.validity.begins);
        params.not_after = (now + LEAF_VALIDITY).min(self.validity.ends);
        let leaf = params
            .signed_by(&shared.leaf_key, &self.issuer)
            .map_err(AuthorityError::Issue)?;
        let chain = [leaf.der()]
            .into_iter()
            .chain(self.certificates.first())
            .cloned()
            .collect();
        Ok(CertifiedKey::new(chain, Arc::clone(&shared.signing_key)))
    }
}

/// The parts of a certificate that its use as an authority depends on.
struct Parsed {
    is_authority: bool,
    public_key: Vec<u8>,
    validity: Validity,
}

impl Parsed {
    fn read(certificate: &CertificateDer<'_>) -> Result<Self, AuthorityError> {
        let broken = AuthorityError::Kept("a certificate in it cannot be read");
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
            return Err(broken);
        };
        let validity = parsed.validity();
        Ok(Self {
            is_authority: parsed.is_ca(),
            public_key: parsed.public_key().raw.to_vec(),
            validity: Validity {
                begins: validity.not_before.to_datetime(),
                ends: validity.not_after.to_datetime(),
            },
        })
    }
}

/// Returns a certificate in PEM.
fn pem(certificate: &CertificateDer<'_>) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut lines = String::with_capacity(text.len() + text.len() / 64 + 64);
    for (index, character) in text.chars().enumerate() {
        if index % 64 == 0 {
            lines.push('\n');
        }
        lines.push(character);
    }
    format!("-----BEGIN CERTIFICATE-----{lines}\n-----END CERTIFICATE-----\n")
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::OrganizationName, "OpenShell");
    name.push(DnType::CommonName, common_name);
    name
}

impl fmt::Debug for Authority {
    /// Leaves out the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A resolver without certificates, used until the host is known.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesServerCert for NoCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        None
    }
}

/// A resolver with the certificate of one host.
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

    use super::{Authority, Parsed};

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_host_has_one_certificate_until_it_is_renewed() {
        let authority = Authority::create().unwrap();
        let now = OffsetDateTime::now_utc();
        let first = authority.leaf(&host("a.test"), now).unwrap();
        assert!(Arc::ptr_eq(
            &first,
            &authority.leaf(&host("A.test."), now).unwrap()
        ));
        assert!(!Arc::ptr_eq(
            &first,
            &authority.leaf(&host("b.test"), now).unwrap()
        ));
        assert!(!Arc::ptr_eq(
            &first,
            &authority
                .leaf(&host("a.test"), now + Duration::days(31))
                .unwrap()
        ));
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let authority = Authority::generate(Duration::days(10), &[]).unwrap();
        let now = OffsetDateTime::now_utc();
        for later in [Duration::ZERO, Duration::days(9)] {
            let leaf = authority.leaf(&host("a.test"), now + later).unwrap();
            let [leaf, own] =
                [&leaf.cert[0], &leaf.cert[1]].map(|cert| Parsed::read(cert).unwrap().validity);
            assert!(leaf.begins >= own.begins && leaf.ends <= own.ends && leaf.ends > now + later);
        }
    }

    #[test]
    fn a_million_hosts_leave_no_more_certificates_than_there_is_room_for() {
        let authority = Authority::create().unwrap();
        let now = OffsetDateTime::now_utc();
        for n in 0..3 * crate::ground::limits::Limits::CERTIFICATES {
            authority.leaf(&host(&format!("h{n}.test")), now).unwrap();
        }
        assert!(authority.leaves.len() <= crate::ground::limits::Limits::CERTIFICATES);
    }

    #[test]
    fn addresses_and_long_names_have_certificates_too() {
        let authority = Authority::create().unwrap();
        let long = format!("{}.{}.test", "a".repeat(60), "b".repeat(60));
        for text in ["10.99.0.1", "2001:db8::1", &long] {
            assert!(authority.server(&host(text), true).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_kept_authority_is_read_again_with_those_before_it_and_what_is_none_is_refused() {
        let (old, _) = Authority::create_kept(&[]).unwrap();
        let (authority, text) = Authority::create_kept(old.certificates()).unwrap();
        let text = String::from_utf8(text.expose().to_vec()).unwrap();
        let read = Authority::from_pem(text.as_bytes()).unwrap();
        assert_eq!(read.certificates(), authority.certificates());
        assert_eq!(
            (
                read.certificates().len(),
                read.pem().matches("BEGIN").count()
            ),
            (2, 2)
        );
        assert!(
            (read.ends() - OffsetDateTime::now_utc() - Duration::days(5 * 365)).abs()
                < Duration::minutes(1)
        );
        assert!(read.server(&host("a.test"), true).is_ok());
        let why = |text: &str| {
            Authority::from_pem(text.as_bytes())
                .unwrap_err()
                .to_string()
        };
        let (key, certificates) = text.split_at(text.find("-----BEGIN CERT").unwrap());
        assert_eq!(why(""), "it has no private key in PEM");
        assert_eq!(why(certificates), "it has no private key in PEM");
        assert_eq!(why(key), "it has no certificate in PEM");
        assert_eq!(
            why(&format!("{key}{}", old.pem())),
            "its private key does not belong to its first certificate"
        );
        let leaf = super::pem(
            &read
                .leaf(&host("a.test"), OffsetDateTime::now_utc())
                .unwrap()
                .cert[0],
        );
        assert_eq!(
            why(&format!("{key}{leaf}")),
            "its first certificate is not an authority's (CA:TRUE)"
        );
        let broken = certificates.replacen("MII", "AAA", 1);
        assert_eq!(
            why(&format!("{key}{broken}")),
            "a certificate in it cannot be read"
        );
        let ended = Authority::generate(-Duration::hours(1), &[]).unwrap();
        let ended = ended.issuer.key().serialize_pem() + &ended.pem();
        assert_eq!(
            why(&ended),
            "its certificate is not valid now: check the clock, or replace it (`openshell-sandbox \
             ca rotate`; a mounted secret: where it comes from)"
        );
        let before = Authority::generate(-Duration::hours(1), &[]).unwrap();
        let (_, text) = Authority::create_kept(before.certificates()).unwrap();
        assert_eq!(
            Authority::from_pem(text.expose())
                .unwrap()
                .certificates()
                .len(),
            1
        );
    }

    // Conformance: TLS-03.
    #[test]
    fn two_sandboxes_have_two_authorities_and_show_no_keys() {
        let one = Authority::create().unwrap();
        let other = Authority::create().unwrap();
        assert_ne!(one.pem(), other.pem());
        assert_eq!(format!("{one:?}"), "Authority { .. }");
    }
}
