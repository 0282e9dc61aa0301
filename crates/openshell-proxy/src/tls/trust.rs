//! Trust files, which make the workload's programs trust the sandbox's authority.

use p12_keystore::{Certificate, KeyStore, KeyStoreEntry};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::tls::authority::Authority;

/// Bundles of trusted certificates on Debian, Red Hat, SUSE and Alpine.
pub const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Password of Java's own trust store, which holds nothing secret.
pub const JAVA_PASSWORD: &str = "changeit";

/// Concatenates `bundles` and the certificate of `authority`, in PEM.
#[must_use]
pub fn bundle(bundles: &[&[u8]], authority: &Authority) -> Vec<u8> {
    let mut all = Vec::new();
    for bundle in bundles {
        all.extend_from_slice(bundle);
        if !all.ends_with(b"\n") {
            all.push(b'\n');
        }
    }
    all.extend_from_slice(authority.pem().as_bytes());
    all
}

/// Parses the certificates of a bundle; invalid ones are skipped.
pub fn certificates(bundle: &[u8]) -> impl Iterator<Item = CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(bundle).filter_map(Result::ok)
}

/// Builds the trust store for Java (RFC 7292) with the certificates of [`bundle`].
///
/// # Errors
/// The authority's certificate cannot be stored.
pub fn java_store(bundles: &[&[u8]], authority: &Authority) -> Result<Vec<u8>, p12_keystore::error::Error> {
    let mut store = KeyStore::new();
    let mut add = |name: &str, certificate: &[u8]| {
        let certificate = Certificate::from_der(certificate)?;
        store.add_entry(name, KeyStoreEntry::Certificate(certificate));
        Ok::<_, p12_keystore::error::Error>(())
    };
    for (number, certificate) in bundles.iter().flat_map(|bundle| certificates(bundle)).enumerate() {
        // An invalid certificate is skipped.
        let _ = add(&format!("ca{number}"), &certificate);
    }
    add("openshell", authority.certificate())?;
    // The store holds public data, so iterations that protect secrets would only cost time.
    store.writer(JAVA_PASSWORD).encryption_iterations(1).mac_iterations(1).write()
}
