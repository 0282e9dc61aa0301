//! The names by which OpenSSL finds a certificate in a folder (openssl-rehash(1)).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::{Any, Tag};

/// The DER tags that are written.
const SET: u8 = 0x31;
const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;

/// Returns the hash of the subject of `certificate`; `None` if it cannot be parsed. For a file's
/// name, OpenSSL adds `.0`, `.1` and so on.
#[must_use]
pub fn subject_hash(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let mut canonical = Vec::new();
    for set in parsed.subject().iter() {
        let mut attributes: Vec<_> = set
            .iter()
            .map(|attribute| {
                let name = element(OBJECT, attribute.attr_type().as_bytes());
                element(SEQUENCE, &[name, value(attribute.attr_value())].concat())
            })
            .collect();
        // DER puts the elements of a set in this order (X.690 §11.6).
        attributes.sort_unstable();
        canonical.extend(element(SET, &attributes.concat()));
    }
    let digest = digest(&SHA1_FOR_LEGACY_USE_ONLY, &canonical);
    let first = digest.as_ref().first_chunk::<4>()?;
    Some(format!("{:08x}", u32::from_le_bytes(*first)))
}

/// Returns the canonical form of a value. Text becomes UTF-8 in lower case, with single blanks
/// between words; other values stay as they are.
fn value(value: &Any<'_>) -> Vec<u8> {
    let latin_1 = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect();
    let text = match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::VisibleString => {
            std::str::from_utf8(value.data).ok().map(str::to_owned)
        }
        Tag::T61String => Some(latin_1(value.data)),
        Tag::BmpString => {
            let units = value
                .data
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            String::from_utf16(&units.collect::<Vec<_>>()).ok()
        }
        _ => None,
    };
    match text {
        Some(text) => {
            let words: Vec<_> = text
                .split(|c: char| c.is_ascii_whitespace())
                .filter(|word| !word.is_empty())
                .collect();
            element(UTF8, words.join(" ").to_ascii_lowercase().as_bytes())
        }
        None => element(u8::try_from(value.tag().0).unwrap_or_default(), value.data),
    }
}

/// Returns an element of DER (X.690 §8.1).
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short @ ..0x80) => bytes.push(short),
        Ok(length) => bytes.extend([0x81, length]),
        // Names in certificates that can be parsed have no more than 64 KiB.
        Err(_) => {
            bytes.push(0x82);
            bytes.extend(
                u16::try_from(content.len())
                    .unwrap_or(u16::MAX)
                    .to_be_bytes(),
            );
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustls::pki_types::CertificateDer;

    use super::subject_hash;
    use crate::wire::tls::trust::certificates;

    #[expect(clippy::disallowed_methods, reason = "a program to compare with")]
    /// Returns the certificate for `subject` that openssl(1) makes, and its own hash of it.
    fn made(subject: &str, flags: &[&str]) -> (CertificateDer<'static>, String) {
        let folder = tempfile::tempdir().unwrap();
        let [key, certificate] =
            ["key.pem", "certificate.pem"].map(|name| folder.path().join(name));
        let openssl = |words: &[&str]| {
            let done = Command::new("openssl").args(words).output().unwrap();
            assert!(done.status.success(), "{done:?}");
            String::from_utf8(done.stdout).unwrap().trim().to_owned()
        };
        let key = key.to_str().unwrap();
        let path = certificate.to_str().unwrap();
        let new = [
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            key,
        ];
        openssl(&[&new, flags, &["-subj", subject, "-out", path]].concat());
        let hash = openssl(&["x509", "-noout", "-hash", "-in", path]);
        (
            certificates(&std::fs::read(&certificate).unwrap())
                .next()
                .unwrap(),
            hash,
        )
    }

    #[test]
    fn a_hash_is_that_of_openssl_whatever_the_form_of_the_name() {
        let long = format!("/CN={}/O={}", "n".repeat(60), "o".repeat(64));
        let names = [
            "/CN=OpenShell Sandbox CA",
            "/C=DE/O=  Two   Words /CN=MiXeD",
            "/O=Grüße/CN=Ünïcode",
            "/CN=a+O=b/OU=c",
            "/emailAddress=A@Example.COM/CN=x",
            "/DC=test/DC=Web/CN=y",
            &long,
        ];
        for name in names {
            for flags in [&["-utf8"][..], &["-utf8", "-multivalue-rdn"]] {
                let (certificate, expected) = made(name, flags);
                assert_eq!(
                    subject_hash(&certificate),
                    Some(expected),
                    "{name} {flags:?}"
                );
            }
        }
    }
}
