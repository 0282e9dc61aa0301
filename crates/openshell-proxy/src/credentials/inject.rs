//! Injects credentials into requests: replaces every placeholder by its secret.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hyper::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue,
};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Uri};
use zeroize::Zeroizing;

use crate::credentials::vault::{Credential, Vault};
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::target::{Origin, Scheme, Target};
use crate::secrets::placeholder::{self, Coding};
use crate::wire::http::head;
use crate::wire::http::target::RequestTarget;

/// A request in the form for its upstream, without a placeholder in its head. Only [`inject`] makes
/// one.
///
/// ```compile_fail
/// let request = hyper::Request::new(());
/// let _ = openshell_proxy::credentials::inject::CredentialedRequest { request, used: Vec::new() };
/// ```
pub struct CredentialedRequest<B> {
    request: Request<B>,
    used: Vec<Arc<Credential>>,
}

impl<B> std::fmt::Debug for CredentialedRequest<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CredentialedRequest")
            .finish_non_exhaustive()
    }
}

impl<B> CredentialedRequest<B> {
    /// Returns the request, which is to be sent.
    #[must_use]
    pub fn into_request(self) -> Request<B> {
        self.request
    }

    /// Returns the credentials in the request.
    #[must_use]
    pub fn used(&self) -> &[Arc<Credential>] {
        &self.used
    }
}

/// Replaces the placeholders in the head of `request`, which goes to `origin`, as the last step
/// before it is sent. If the response `is_searched` for secrets, or the request holds any, the
/// request asks for an uncompressed response.
///
/// # Errors
/// Fails if a credential is unknown, not bound to the request's target, or not valid in its place,
/// and if a placeholder is in a place where none is replaced.
pub fn inject<B>(
    mut request: Request<B>,
    origin: &Origin,
    vault: &Vault,
    is_searched: bool,
) -> Result<CredentialedRequest<B>, Refusal> {
    let method = request.method().clone();
    let uri = request.uri().clone();
    let mut injection = Injection {
        vault,
        origin,
        method,
        uri,
        used: Vec::new(),
        bytes: 0,
    };
    refuse_any(request.method().as_str().as_bytes(), "the method")?;
    if let Some(uri) = injection.uri(request.uri())? {
        *request.uri_mut() = uri;
    }
    injection.headers(request.headers_mut())?;
    let used = injection.used;
    if is_searched || !used.is_empty() {
        // Compressed responses cannot be searched.
        let identity = HeaderValue::from_static("identity");
        request
            .headers_mut()
            .insert(ACCEPT_ENCODING, identity.clone());
        if request.headers_mut().contains_key(GRPC_ACCEPT_ENCODING)
            || head::is_grpc(request.headers())
        {
            request.headers_mut().insert(GRPC_ACCEPT_ENCODING, identity);
        }
        request.headers_mut().remove(CONNECT_ACCEPT_ENCODING);
        // Nor can responses in a character set that the client chooses: in some, each byte of a
        // secret becomes two.
        request.headers_mut().remove(ACCEPT_CHARSET);
        if let Some(accept) = without_charsets(request.headers()) {
            request.headers_mut().insert(ACCEPT, accept);
        }
    }
    Ok(CredentialedRequest { request, used })
}

/// Returns the media types that a client accepts, without the character sets that it names; `None`
/// if it names none.
fn without_charsets(headers: &HeaderMap) -> Option<HeaderValue> {
    let is_charset = |parameter: &[u8]| {
        parameter
            .trim_ascii_start()
            .get(..7)
            .is_some_and(|name| name.eq_ignore_ascii_case(b"charset"))
    };
    let mut accepted = Vec::new();
    let mut has_charset = false;
    for value in headers.get_all(ACCEPT) {
        for media_type in value.as_bytes().split(|byte| *byte == b',') {
            let mut parts = media_type.split(|byte| *byte == b';');
            let name = parts.next().unwrap_or_default();
            let (charsets, parameters): (Vec<_>, Vec<_>) =
                parts.partition(|parameter| is_charset(parameter));
            has_charset |= !charsets.is_empty();
            accepted.push([&[name], &parameters[..]].concat().join(&b';'));
        }
    }
    // A header value without some of its bytes is still valid.
    has_charset
        .then(|| HeaderValue::from_bytes(&accepted.join(&b',')))
        .and_then(Result::ok)
}

const CONNECT_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("connect-accept-encoding");

const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// A place for a secret in a head, and its encoding.
struct InsertionPoint {
    name: &'static str,
    coding: Coding,
    /// Tells whether a byte needs no encoding.
    needs_no_encoding: fn(u8) -> bool,
    check: fn(&[u8]) -> Result<(), &'static str>,
}

/// A path segment (RFC 3986 §3.3).
const PATH_SEGMENT: InsertionPoint = InsertionPoint {
    name: "the path",
    coding: Coding::Percent,
    needs_no_encoding: |byte| is_unreserved(byte) || b"!$&'()*+,=:@".contains(&byte),
    check: |secret| {
        let leads_elsewhere = secret == b"." || secret.windows(2).any(|pair| pair == b"..");
        // The path must stay the one that was judged (CWE-22).
        if leads_elsewhere
            || secret.iter().any(|byte| {
                matches!(
                    byte,
                    b'/' | b'\\' | b'?' | b'#' | b';' | b'%' | 0..=0x1f | 0x7f
                )
            })
        {
            Err("its secret has characters that would change the path")
        } else {
            Ok(())
        }
    },
};

/// The value of a query parameter (RFC 3986 §3.4, §2.3).
const QUERY_VALUE: InsertionPoint = InsertionPoint {
    name: "the query",
    coding: Coding::Percent,
    needs_no_encoding: is_unreserved,
    check: |_| Ok(()),
};

/// A field value (RFC 9110 §5.5).
const FIELD_VALUE: InsertionPoint = InsertionPoint {
    name: "a header",
    coding: Coding::Plain,
    needs_no_encoding: |_| true,
    check: |secret| {
        if secret
            .iter()
            .any(|byte| matches!(byte, 0..=8 | 10..=0x1f | 0x7f))
        {
            Err("its secret has a control character, which a header may not have")
        } else {
            Ok(())
        }
    },
};

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The state of one injection.
struct Injection<'r> {
    vault: &'r Vault,
    origin: &'r Origin,
    /// The method and target before the injection.
    method: Method,
    uri: Uri,
    used: Vec<Arc<Credential>>,
    /// Bytes of secrets that were added so far.
    bytes: usize,
}

impl Injection<'_> {
    fn uri(&mut self, uri: &Uri) -> Result<Option<Uri>, Refusal> {
        let path = self.fill(uri.path().as_bytes(), &PATH_SEGMENT)?;
        let query = uri
            .query()
            .map(|query| self.query(query))
            .transpose()?
            .flatten();
        if path.is_none() && query.is_none() {
            return Ok(None);
        }
        let path = path.as_deref().map_or(uri.path().as_bytes(), Vec::as_slice);
        let query = query
            .as_deref()
            .map(Vec::as_slice)
            .or(uri.query().map(str::as_bytes));
        let mark = if query.is_some() { &b"?"[..] } else { b"" };
        let written = Zeroizing::new([path, mark, query.unwrap_or_default()].concat());
        let too_long = |_| {
            let name = self
                .used
                .last()
                .map(|used| used.name().to_owned())
                .unwrap_or_default();
            Refusal::credential_unsafe(&name, "it makes the target of the request too long")
        };
        let mut parts = uri.clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::try_from(written.as_slice()).map_err(too_long)?);
        let malformed = |_| Refusal::bad_request("the target is not a valid URI");
        Uri::from_parts(parts).map(Some).map_err(malformed)
    }

    fn query(&mut self, query: &str) -> Result<Option<Zeroizing<Vec<u8>>>, Refusal> {
        let mut parts = Vec::new();
        let mut is_filled = false;
        for (index, pair) in query.split('&').enumerate() {
            let (name, value) = pair
                .split_once('=')
                .map_or((pair, None), |(name, value)| (name, Some(value)));
            refuse_any(name.as_bytes(), "the name of a query parameter")?;
            let filled = value
                .map(|value| self.fill(value.as_bytes(), &QUERY_VALUE))
                .transpose()?
                .flatten();
            is_filled |= filled.is_some();
            let mark = if index > 0 { &b"&"[..] } else { b"" };
            parts.push(Zeroizing::new([mark, name.as_bytes()].concat()));
            if let Some(value) = value {
                let value = filled.as_deref().map_or(value.as_bytes(), Vec::as_slice);
                parts.push(Zeroizing::new([b"=", value].concat()));
            }
        }
        let parts: Vec<_> = parts.iter().map(|part| part.as_slice()).collect();
        Ok(is_filled.then(|| Zeroizing::new(parts.concat())))
    }

    fn headers(&mut self, headers: &mut HeaderMap) -> Result<(), Refusal> {
        for (name, value) in headers.iter_mut() {
            let basic = if *name == AUTHORIZATION {
                self.basic(value.as_bytes())?
            } else {
                None
            };
            let filled = match basic {
                Some(filled) => Some(filled),
                None => self.fill(value.as_bytes(), &FIELD_VALUE)?,
            };
            if let Some(filled) = filled {
                let none = |_| Refusal::placeholder_misplaced(FIELD_VALUE.name);
                *value = HeaderValue::from_bytes(&filled).map_err(none)?;
                value.set_sensitive(true);
            }
            if placeholder::is_in_header(name, value) {
                return Err(Refusal::placeholder_misplaced("the name of a header"));
            }
        }
        Ok(())
    }

    /// Fills a Basic `Authorization` value, which may have a placeholder in its Base64 token (RFC
    /// 7617 §2).
    fn basic(&mut self, value: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Refusal> {
        let Some(decoded) = basic(value) else {
            return Ok(None);
        };
        let filled = self
            .fill(&decoded, &FIELD_VALUE)?
            .map(|filled| Zeroizing::new(STANDARD.encode(&*filled)));
        Ok(filled.map(|token| Zeroizing::new([b"Basic ", token.as_bytes()].concat())))
    }

    /// Replaces the placeholders in `text` by their secrets; returns `None` if there are none.
    fn fill(
        &mut self,
        text: &[u8],
        point: &InsertionPoint,
    ) -> Result<Option<Zeroizing<Vec<u8>>>, Refusal> {
        let found = placeholder::find(text, point.coding);
        let mut parts = Vec::new();
        let mut end = 0;
        for found in &found {
            let kept = text.get(end..found.range.start).unwrap_or_default();
            refuse_any(kept, point.name)?;
            let credential = self.credential(&found.name)?;
            let secret = credential.secret().expose();
            let unsafe_because = |why| Refusal::credential_unsafe(&found.name, why);
            (point.check)(secret).map_err(unsafe_because)?;
            self.bytes += secret.len();
            if self.bytes > Limits::INJECTED_BYTES {
                return Err(unsafe_because("it makes the head of the request too long"));
            }
            // The buffer is allocated at its full size, because growing would leave a copy of the
            // secret behind.
            let mut written = Zeroizing::new(Vec::with_capacity(kept.len() + 3 * secret.len()));
            written.extend_from_slice(kept);
            for byte in secret {
                if (point.needs_no_encoding)(*byte) {
                    written.push(*byte)
                } else {
                    written.extend_from_slice(format!("%{byte:02X}").as_bytes())
                }
            }
            parts.push(written);
            end = found.range.end;
        }
        let kept = text.get(end..).unwrap_or_default();
        refuse_any(kept, point.name)?;
        let parts: Vec<_> = parts
            .iter()
            .map(|part| part.as_slice())
            .chain([kept])
            .collect();
        Ok((!found.is_empty()).then(|| Zeroizing::new(parts.concat())))
    }

    /// Returns the credential `name`, if it may be used for this request.
    fn credential(&mut self, name: &str) -> Result<Arc<Credential>, Refusal> {
        let Some(credential) = self.vault.get(name) else {
            return Err(Refusal::credential_unknown(name.to_owned()));
        };
        let unsafe_because = |why| Refusal::credential_unsafe(name, why);
        if credential.is_expired() {
            return Err(Refusal::credential_expired(name.to_owned()));
        }
        let binding = credential.binding();
        let Target { host, port } = &self.origin.target;
        if !binding.includes(host, *port) {
            return Err(Refusal::credential_for_other_hosts(name.to_owned()));
        }
        // Without TLS nobody knows who receives the secret.
        if self.origin.scheme == Scheme::Http && !binding.permits_clear(host, *port) {
            let why = if *port == Scheme::Https.default_port() {
                "it would go to port 443 without TLS"
            } else {
                "it would go out without TLS; to permit that, bind it to `http://HOST:PORT`"
            };
            return Err(unsafe_because(why));
        }
        if let Some(prefixes) = binding.prefixes(host, *port) {
            // A target that is not canonical could be read in two ways, and its connection may have
            // no rules.
            let is_canonical = |target: &RequestTarget| {
                target
                    .to_uri()
                    .is_ok_and(|canonical| canonical.path_and_query() == self.uri.path_and_query())
            };
            let target = RequestTarget::canonical(&self.method, &self.uri, true).ok();
            let target = target
                .filter(is_canonical)
                .ok_or_else(|| Refusal::credential_for_other_paths(name.to_owned()))?;
            let readings = [Some(target.path()), target.without_parameters()];
            let is_permitted = |path: &str| prefixes.iter().any(|prefix| prefix.includes(path));
            if !readings.into_iter().flatten().all(is_permitted) {
                return Err(Refusal::credential_for_other_paths(name.to_owned()));
            }
        }
        if !self.used.iter().any(|used| Arc::ptr_eq(used, credential)) {
            if self.used.len() == Limits::CREDENTIALS_PER_REQUEST {
                return Err(unsafe_because(
                    "the request already has as many credentials as it may have",
                ));
            }
            self.used.push(Arc::clone(credential));
        }
        Ok(Arc::clone(credential))
    }
}

/// Refuses a text that still holds a placeholder in any encoding.
fn refuse_any(text: &[u8], place: &'static str) -> Result<(), Refusal> {
    if placeholder::is_hidden_in(text) {
        Err(Refusal::placeholder_misplaced(place))
    } else {
        Ok(())
    }
}

/// Returns the user and password of a Basic `Authorization` value (RFC 7617 §2); `None` if it is none.
#[must_use]
pub fn basic(value: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let (scheme, token) = value.split_at_checked(b"Basic ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Basic ") {
        return None;
    }
    let decoded = LENIENT.decode(token.trim_ascii()).ok()?;
    Some(Zeroizing::new(decoded))
}

#[cfg(test)]
mod tests {
    use hyper::header::{ACCEPT, HeaderMap, HeaderValue};

    use super::without_charsets;

    #[test]
    fn a_client_names_no_character_set_for_an_answer_that_is_searched() {
        let accepted = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            without_charsets(&headers).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(accepted(&[]), None);
        assert_eq!(accepted(&["text/html;q=0.5, */*"]), None);
        let named = ["text/html; CHARSET=utf-16;q=0.5, a/b", "c/d;charset=x"];
        assert_eq!(accepted(&named).unwrap(), "text/html;q=0.5, a/b,c/d");
    }
}
