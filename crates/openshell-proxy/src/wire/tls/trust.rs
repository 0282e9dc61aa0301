//! Trust files, which make the workload's programs trust the sandbox's authority.

use aws_lc_rs::digest;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use memchr::memmem;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::wire::tls::authority::Authority;

/// The bundles of trusted certificates on Debian, Red Hat, SUSE and Alpine.
pub const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The password of Java's own trust store, which holds nothing secret.
const JAVA_PASSWORD: &str = "changeit";

/// Parses the certificates of a bundle in PEM (RFC 7468), and skips invalid ones. The system's
/// bundle is read at every start, so its Base64 is decoded in the fastest way at hand.
pub fn certificates(bundle: &[u8]) -> impl Iterator<Item = CertificateDer<'static>> {
    const BEGIN: &[u8] = b"-----BEGIN CERTIFICATE-----";
    const END: &[u8] = b"-----END CERTIFICATE-----";
    let mut rest = bundle;
    let texts = std::iter::from_fn(move || {
        let text = rest.get(memmem::find(rest, BEGIN)? + BEGIN.len()..)?;
        let end = memmem::find(text, END)?;
        rest = text.get(end + END.len()..)?;
        text.get(..end)
    });
    texts.filter_map(|text| {
        let mut joined = Vec::with_capacity(text.len());
        for line in text.split(|byte| *byte == b'\n') {
            joined.extend_from_slice(line.trim_ascii());
        }
        Some(CertificateDer::from(BASE64_STANDARD.decode(joined).ok()?))
    })
}

/// Builds the trust store for Java, in the `JKS` form, with the certificates of the system's
/// bundle, of `others`, and of `authority`. Every Java reads this form, which is public data and a
/// digest. A PKCS#12 store is encrypted, which would add milliseconds to each start.
#[must_use]
pub fn java_store(system: &[u8], others: &[&[u8]], authority: &Authority) -> Vec<u8> {
    const MAGIC: u32 = 0xfeed_feed;
    const VERSION: u32 = 2;
    const TRUSTED_CERTIFICATE: u32 = 2;
    const DIGEST_SALT: &[u8] = b"Mighty Aphrodite";

    // The size of the PEM is enough: its Base64 takes more room than the names and lengths here.
    let mut store = Vec::with_capacity(
        system.len() + others.iter().map(|bundle| bundle.len()).sum::<usize>() + 2048,
    );
    store.extend([MAGIC, VERSION].into_iter().flat_map(u32::to_be_bytes));
    let count_at = store.len();
    store.extend([0; 4]);
    let text = |store: &mut Vec<u8>, text: &str| {
        // These texts have only a few letters.
        store.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        store.extend(text.as_bytes());
    };
    // Java refuses the whole store if it cannot parse one certificate. Of the system's, only the
    // form is checked.
    let is_valid =
        |certificate: &CertificateDer<'_>| RootCertStore::empty().add(certificate.clone()).is_ok();
    let others = others
        .iter()
        .flat_map(|bundle| certificates(bundle))
        .filter(is_valid);
    let all = certificates(system)
        .filter(is_one_sequence)
        .chain(others)
        .chain(authority.certificates().iter().cloned());
    let mut count = 0_u32;
    for certificate in all {
        store.extend(TRUSTED_CERTIFICATE.to_be_bytes());
        text(&mut store, &format!("ca{count}"));
        // The time of creation in milliseconds.
        store.extend(0_u64.to_be_bytes());
        text(&mut store, "X.509");
        // No bundle that is read has more bytes than 32 bits can count.
        store.extend(
            u32::try_from(certificate.len())
                .unwrap_or(u32::MAX)
                .to_be_bytes(),
        );
        store.extend_from_slice(&certificate);
        count += 1;
    }
    store[count_at..count_at + 4].copy_from_slice(&count.to_be_bytes());
    let mut digest = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    let password: Vec<u8> = JAVA_PASSWORD
        .encode_utf16()
        .flat_map(u16::to_be_bytes)
        .collect();
    for part in [password.as_slice(), DIGEST_SALT, &store] {
        digest.update(part);
    }
    store.extend_from_slice(digest.finish().as_ref());
    store
}

/// Returns true if `certificate` is one DER sequence with nothing behind it (X.690 §8.1), as every
/// certificate is.
fn is_one_sequence(certificate: &CertificateDer<'static>) -> bool {
    // More than 127 bytes, and no more than 65,535: the length takes two or three.
    match &**certificate {
        [0x30, 0x81, length, rest @ ..] => usize::from(*length) == rest.len(),
        [0x30, 0x82, high, low, rest @ ..] => {
            usize::from(u16::from_be_bytes([*high, *low])) == rest.len()
        }
        _ => false,
    }
}
