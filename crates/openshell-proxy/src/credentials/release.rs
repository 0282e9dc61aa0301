//! Requests in which every placeholder is replaced by its secret.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Uri};
use zeroize::Zeroizing;

use crate::context::Limits;
use crate::credentials::placeholder::{self, Coding};
use crate::credentials::vault::{Credential, Vault};
use crate::http::target::RequestTarget;
use crate::intake::Target;
use crate::refusal::{CredentialFault, Refusal};

/// A request as the upstream gets it. Nothing in its head stands for a secret any more: only [`release`] makes one.
///
/// ```compile_fail
/// let request = hyper::Request::new(());
/// let _ = openshell_proxy::credentials::release::Released { request, used: Vec::new() };
/// ```
#[derive(Debug)]
pub struct Released<B> {
    request: Request<B>,
    used: Vec<Arc<Credential>>,
}

impl<B> Released<B> {
    /// The request, to be sent.
    #[must_use]
    pub fn into_request(self) -> Request<B> {
        self.request
    }

    /// The credentials in it.
    #[must_use]
    pub fn used(&self) -> &[Arc<Credential>] {
        &self.used
    }
}

/// Replaces the placeholders in the head of `request`, which goes to `target`.
///
/// # Errors
/// One is unknown, may not go there, cannot stand where it does, or stands where none is replaced.
pub fn release<B>(mut request: Request<B>, target: &Target, vault: &Vault) -> Result<Released<B>, Refusal> {
    let mut release =
        Release { vault, target, asked: (request.method().clone(), request.uri().clone()), used: Vec::new(), bytes: 0 };
    if let Some(uri) = release.uri(request.uri())? {
        *request.uri_mut() = uri;
    }
    release.headers(request.headers_mut())?;
    let used = release.used;
    if !used.is_empty() {
        // What is compressed is not looked at on its way back.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    Ok(Released { request, used })
}

/// Where a secret stands, and how it is written there.
struct Place {
    name: &'static str,
    coding: Coding,
    /// Whether a byte of the secret stands for itself.
    is_plain: fn(u8) -> bool,
    check: fn(&[u8]) -> Result<(), &'static str>,
}

/// A segment (RFC 3986 §3.3).
const PATH: Place = Place {
    name: "the path",
    coding: Coding::Percent,
    is_plain: |byte| is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte),
    check: |secret| {
        let leads_elsewhere = secret == b"." || secret.windows(2).any(|pair| pair == b"..");
        // A path that would be another one than was judged (CWE-22).
        match leads_elsewhere || secret.iter().any(|byte| matches!(byte, b'/' | b'\\' | b'?' | b'#' | 0..=0x1f | 0x7f))
        {
            true => Err("it cannot stand in a path, which it would change"),
            false => Ok(()),
        }
    },
};

/// The value of a parameter (RFC 3986 §3.4, §2.3).
const QUERY: Place = Place { name: "the query", coding: Coding::Percent, is_plain: is_unreserved, check: |_| Ok(()) };

const HEADER: Place = Place { name: "a header", coding: Coding::Plain, is_plain: |_| true, check: |_| Ok(()) };

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// One request on its way to be released.
struct Release<'r> {
    vault: &'r Vault,
    target: &'r Target,
    asked: (Method, Uri),
    used: Vec<Arc<Credential>>,
    /// How much longer the head has become.
    bytes: usize,
}

impl Release<'_> {
    fn uri(&mut self, uri: &Uri) -> Result<Option<Uri>, Refusal> {
        let path = self.fill(uri.path().as_bytes(), &PATH)?;
        let query = uri.query().map(|query| self.query(query)).transpose()?.flatten();
        if path.is_none() && query.is_none() {
            return Ok(None);
        }
        let mut written = path.unwrap_or_else(|| Zeroizing::new(uri.path().as_bytes().to_vec()));
        if let Some(kept) = uri.query() {
            written.push(b'?');
            written.extend_from_slice(query.as_deref().map_or(kept.as_bytes(), Vec::as_slice));
        }
        let written = PathAndQuery::try_from(written.as_slice());
        let too_long =
            |_| Refusal::Credential(CredentialFault::Unsafe { name: self.names(), why: "the target becomes too long" });
        Ok(Some(Uri::from(written.map_err(too_long)?)))
    }

    fn query(&mut self, query: &str) -> Result<Option<Zeroizing<Vec<u8>>>, Refusal> {
        let mut written = Zeroizing::new(Vec::with_capacity(query.len()));
        let mut is_filled = false;
        for (index, pair) in query.split('&').enumerate() {
            let (name, value) = pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
            refuse_any(name.as_bytes(), "the name of a query parameter")?;
            let filled = value.map(|value| self.fill(value.as_bytes(), &QUERY)).transpose()?.flatten();
            is_filled |= filled.is_some();
            if index > 0 {
                written.push(b'&');
            }
            written.extend_from_slice(name.as_bytes());
            if let Some(value) = value {
                written.push(b'=');
                written.extend_from_slice(filled.as_deref().map_or(value.as_bytes(), Vec::as_slice));
            }
        }
        Ok(is_filled.then_some(written))
    }

    fn headers(&mut self, headers: &mut HeaderMap) -> Result<(), Refusal> {
        for (name, value) in headers.iter_mut() {
            let basic = if *name == AUTHORIZATION { self.basic(value.as_bytes())? } else { None };
            let filled = match basic {
                Some(filled) => Some(filled),
                None => self.fill(value.as_bytes(), &HEADER)?,
            };
            if let Some(filled) = filled {
                let unsafe_value = |_| {
                    let why = "it holds a control character, which no header may";
                    Refusal::Credential(CredentialFault::Unsafe { name: self.names(), why })
                };
                *value = HeaderValue::from_bytes(&filled).map_err(unsafe_value)?;
                value.set_sensitive(true);
            }
            refuse_in_name(name, value)?;
        }
        Ok(())
    }

    /// The value of an `Authorization` header in which a placeholder is part of a Base64 token (RFC 7617 §2).
    fn basic(&mut self, value: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Refusal> {
        const LENIENT: GeneralPurpose = GeneralPurpose::new(
            &base64::alphabet::STANDARD,
            GeneralPurposeConfig::new()
                .with_decode_padding_mode(DecodePaddingMode::Indifferent)
                .with_decode_allow_trailing_bits(true),
        );
        let Some((scheme, token)) = value.split_at_checked(b"Basic ".len()) else { return Ok(None) };
        if !scheme.eq_ignore_ascii_case(b"Basic ") {
            return Ok(None);
        }
        let Ok(decoded) = LENIENT.decode(token.trim_ascii()) else { return Ok(None) };
        let filled = self.fill(&decoded, &HEADER)?;
        Ok(filled.map(|filled| {
            let mut value = Zeroizing::new(b"Basic ".to_vec());
            value.extend_from_slice(Zeroizing::new(STANDARD.encode(&*filled)).as_bytes());
            value
        }))
    }

    /// `text` with the secrets instead of their placeholders; `None` if it has none.
    fn fill(&mut self, text: &[u8], place: &Place) -> Result<Option<Zeroizing<Vec<u8>>>, Refusal> {
        let found = placeholder::find(text, place.coding);
        let (mut filled, mut end) = (Zeroizing::new(Vec::new()), 0);
        for found in &found {
            let kept = text.get(end..found.range.start).unwrap_or_default();
            refuse_any(kept, place.name)?;
            let credential = self.credential(&found.name)?;
            let secret = credential.secret().expose();
            let why = |why| Refusal::Credential(CredentialFault::Unsafe { name: found.name.clone(), why });
            (place.check)(secret).map_err(why)?;
            self.bytes += secret.len();
            if self.bytes > Limits::RELEASED_BYTES {
                return Err(why("the head becomes too long"));
            }
            filled.extend_from_slice(kept);
            for byte in secret {
                match (place.is_plain)(*byte) {
                    true => filled.push(*byte),
                    false => filled.extend_from_slice(format!("%{byte:02X}").as_bytes()),
                }
            }
            end = found.range.end;
        }
        let kept = text.get(end..).unwrap_or_default();
        refuse_any(kept, place.name)?;
        filled.extend_from_slice(kept);
        Ok((!found.is_empty()).then_some(filled))
    }

    /// The credential `name`, if it may be used for this request.
    fn credential(&mut self, name: &str) -> Result<Arc<Credential>, Refusal> {
        let Some(credential) = self.vault.get(name) else {
            return Err(Refusal::Credential(CredentialFault::Unknown { name: name.to_owned() }));
        };
        let binding = credential.binding();
        let elsewhere = |has_path| Refusal::Credential(CredentialFault::Elsewhere { name: name.to_owned(), has_path });
        if !binding.includes(&self.target.host, self.target.port) {
            return Err(elsewhere(false));
        }
        if let Some(prefix) = &binding.path {
            let (method, uri) = &self.asked;
            let target = RequestTarget::canonical(method, uri, true).map_err(|_| elsewhere(true))?;
            let readings = [Some(target.path()), target.without_parameters()];
            if !readings.into_iter().flatten().all(|path| prefix.includes(path)) {
                return Err(elsewhere(true));
            }
        }
        if !self.used.iter().any(|used| used.name() == name) {
            self.used.push(Arc::clone(credential));
        }
        Ok(Arc::clone(credential))
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.used.iter().map(|credential| credential.name()).collect();
        names.join(", ")
    }
}

/// Refuses a text in which a placeholder is left.
fn refuse_any(text: &[u8], place: &'static str) -> Result<(), Refusal> {
    match placeholder::is_hidden_in(text) {
        true => Err(Refusal::Credential(CredentialFault::Misplaced { place })),
        false => Ok(()),
    }
}

/// Refuses a placeholder as the name of a header, which ends with the first colon of a plain one; there is none in `value` any more.
fn refuse_in_name(name: &HeaderName, value: &HeaderValue) -> Result<(), Refusal> {
    let could_begin = name.as_str().contains('%') || name.as_str().contains(placeholder::BEGINNING);
    match could_begin {
        true => refuse_any(&[name.as_str().as_bytes(), b":", value.as_bytes()].concat(), "the name of a header"),
        false => refuse_any(name.as_str().as_bytes(), "the name of a header"),
    }
}
