//! A request's target in canonical form (RFC 3986 §6.2.2): the value that is judged is also sent.
//!
//! Servers read dot segments, repeated slashes, path parameters and escapes in different ways. A
//! path that can be read in two ways is normalized so that one is left, or it is refused because it
//! has no canonical form.

use std::fmt::Write;

use hyper::http::uri::PathAndQuery;
use hyper::{Method, Uri};

#[cfg(doc)]
use openshell_events::words::REDACTED;

use crate::secrets::decode::hex_byte;
use crate::secrets::placeholder::redacted;

/// The length in bytes of the longest permitted path; real ones are shorter.
const PATH_BYTES: usize = 4096;

/// The target of a request within its origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestTarget {
    path: String,
    without_parameters: Option<String>,
    /// The path in the form that is sent, if it holds placeholders.
    unredacted: Option<String>,
    query: Option<String>,
}

/// The reason why a target has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum TargetError {
    #[error("the target of a request must be a path")]
    NoPath,
    #[error("the path is longer than 4096 bytes")]
    TooLong,
    #[error("a `%` in the path or query is not followed by two hexadecimal digits")]
    Escape,
    #[error("the path or query holds a control character")]
    Control,
    #[error("the path holds a backslash, which some servers take for a slash")]
    Backslash,
    #[error("the path holds an encoded slash, which no `allow_encoded_slash` permits")]
    EncodedSlash,
    #[error("the path is encoded twice")]
    Twice,
    #[error("the path or query is not UTF-8")]
    Text,
    #[error("the path leads above the root")]
    AboveRoot,
    #[error("a dot segment of the path is disguised")]
    HiddenDots,
}

impl RequestTarget {
    /// Returns the target as it was sent, for connections without rules.
    #[must_use]
    pub fn as_written(uri: &Uri) -> Self {
        let path = match uri.path() {
            "" => "/",
            path => path,
        };
        let path = if path.starts_with('/') || path == "*" {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        Self::new(path, None, uri.query().map(str::to_owned))
    }

    /// Normalizes the target of a request with this `method`.
    ///
    /// # Errors
    /// Fails if the target has no canonical form.
    pub fn canonical(
        method: &Method,
        uri: &Uri,
        allow_encoded_slash: bool,
    ) -> Result<Self, TargetError> {
        if *method == Method::CONNECT {
            return Err(TargetError::NoPath);
        }
        let query = uri.query().map(str::to_owned);
        if method == Method::OPTIONS && uri.path() == "*" {
            return Ok(Self::new("*".to_owned(), None, query));
        }
        let written = if uri.path().is_empty() {
            "/"
        } else {
            uri.path()
        };
        if is_canonical(written.as_bytes()) {
            return Ok(Self::new(written.to_owned(), None, query));
        }
        let (path, without_parameters) = canonical_path(written.as_bytes(), allow_encoded_slash)?;
        let without_parameters = Some(without_parameters).filter(|without| *without != path);
        Ok(Self::new(path, without_parameters, query))
    }

    fn new(path: String, without_parameters: Option<String>, query: Option<String>) -> Self {
        match redacted(&path) {
            None => Self {
                path,
                without_parameters,
                unredacted: None,
                query,
            },
            Some(shown) => {
                let without_parameters =
                    without_parameters.map(|path| redacted(&path).unwrap_or(path));
                Self {
                    path: shown,
                    without_parameters,
                    unredacted: Some(path),
                    query,
                }
            }
        }
    }

    /// Returns the path as it is judged and shown, with [`REDACTED`] in place of each placeholder.
    /// It is `*`, or begins with a slash.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the path without its parameters, if it has any. Servers disagree about a `;` in a
    /// segment, whether it is escaped or not.
    #[must_use]
    pub fn without_parameters(&self) -> Option<&str> {
        self.without_parameters.as_deref()
    }

    /// Returns the query, byte for byte as it was sent.
    #[must_use]
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Returns the target without its query.
    #[must_use]
    pub fn without_query(&self) -> Self {
        Self {
            query: None,
            ..self.clone()
        }
    }

    /// Decodes the names and values of the query, in their order.
    ///
    /// # Errors
    /// Fails if an escape is invalid, or if the query holds NUL or is not UTF-8.
    pub fn parameters(&self) -> Result<Vec<(String, String)>, TargetError> {
        let pairs = self
            .query
            .as_deref()
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        let decoded = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded_parameter(name)?, decoded_parameter(value)?))
        });
        decoded.collect()
    }

    /// Returns the target in origin form (RFC 9112 §3.2.1), as it is sent.
    ///
    /// # Errors
    /// Does not fail for a target that this type's constructors made.
    pub fn to_uri(&self) -> Result<Uri, TargetError> {
        let path = self.unredacted.as_ref().unwrap_or(&self.path);
        let text = match &self.query {
            Some(query) => format!("{path}?{query}"),
            None => path.clone(),
        };
        Ok(Uri::from(
            PathAndQuery::try_from(text).map_err(|_| TargetError::NoPath)?,
        ))
    }
}

/// Returns true if `path` is already in the form that [`canonical_path`] gives. This check is fast:
/// it accepts only paths without escapes, parameters, repeated slashes and segments that begin with
/// a dot.
fn is_canonical(path: &[u8]) -> bool {
    let is_known = |byte: &u8| *byte == b'/' || is_plain(*byte);
    let has_odd_segment = || path.windows(2).any(|pair| matches!(pair, b"//" | b"/."));
    path.len() <= PATH_BYTES
        && path.first() == Some(&b'/')
        && path.iter().all(is_known)
        && !has_odd_segment()
}

/// Normalizes the path `written`, and returns it with and without its parameters.
fn canonical_path(
    written: &[u8],
    allow_encoded_slash: bool,
) -> Result<(String, String), TargetError> {
    if written.len() > PATH_BYTES {
        return Err(TargetError::TooLong);
    }
    let Some(rest) = written.strip_prefix(b"/") else {
        return Err(TargetError::NoPath);
    };
    let mut segments: Vec<String> = Vec::new();
    let mut ends_open = false;
    for segment in rest.split(|byte| *byte == b'/') {
        let segment = canonical_segment(segment, allow_encoded_slash)?;
        ends_open = matches!(segment.as_str(), "" | "." | "..");
        match segment.as_str() {
            "" | "." => {}
            ".." => drop(segments.pop().ok_or(TargetError::AboveRoot)?),
            _ => segments.push(segment),
        }
    }
    let join = |segments: &[&str], ends_open| {
        let mut path = String::from("/");
        path.push_str(&segments.join("/"));
        if ends_open && !segments.is_empty() {
            path.push('/');
        }
        path
    };
    let whole: Vec<_> = segments.iter().map(String::as_str).collect();
    let bare: Vec<_> = segments
        .iter()
        .map(|segment| without_parameters(segment))
        .collect();
    let bare_ends_open = ends_open || bare.last().is_some_and(|last| last.is_empty());
    let bare: Vec<_> = bare
        .into_iter()
        .filter(|segment| !segment.is_empty())
        .collect();
    Ok((join(&whole, ends_open), join(&bare, bare_ends_open)))
}

/// Cuts off the parameters of a segment. They also begin at an escaped `;`, because some servers
/// forward it unescaped.
fn without_parameters(segment: &str) -> &str {
    let bare = segment.split(';').next().unwrap_or_default();
    bare.split("%3B").next().unwrap_or_default()
}

/// Normalizes one segment: each escape is decoded, or written in upper case.
fn canonical_segment(segment: &[u8], allow_encoded_slash: bool) -> Result<String, TargetError> {
    let mut text = String::with_capacity(segment.len());
    let mut decoded = Vec::with_capacity(segment.len());
    let mut rest = segment;
    while let Some((byte, after)) = rest.split_first() {
        let is_escape = *byte == b'%';
        let (value, after) = if is_escape {
            escaped(after)?
        } else {
            (*byte, after)
        };
        decoded.push(value);
        match value {
            0..=0x1f | 0x7f => return Err(TargetError::Control),
            b'\\' => return Err(TargetError::Backslash),
            b'/' if !allow_encoded_slash => return Err(TargetError::EncodedSlash),
            b';' if !is_escape => text.push(';'),
            _ if is_plain(value) => text.push(char::from(value)),
            // Writing to a String cannot fail.
            _ => drop(write!(text, "%{value:02X}")),
        }
        rest = after;
    }
    let plain = std::str::from_utf8(&decoded).map_err(|_| TargetError::Text)?;
    // A server that decodes once more would read a different path.
    let mut escapes = decoded.split(|byte| *byte == b'%').skip(1);
    if escapes.any(|after| escaped(after).is_ok_and(|(byte, _)| changes_paths(byte))) {
        return Err(TargetError::Twice);
    }
    let is_dots = |part: &str| matches!(part, "." | "..");
    // Some servers trim blanks, including those of Unicode.
    let hides_dots = |part: &str| is_dots(part.split(';').next().unwrap_or_default().trim());
    let has_hidden_dots = plain.split('/').any(hides_dots);
    if has_hidden_dots && !is_dots(&text) {
        return Err(TargetError::HiddenDots);
    }
    Ok(text)
}

/// Returns true for bytes that mean the same escaped and unescaped, or that servers treat as if
/// they did (RFC 3986 §3.3, except `;`).
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,=:@".contains(&byte)
}

fn changes_paths(byte: u8) -> bool {
    byte.is_ascii_control() || matches!(byte, b'.' | b'/' | b'\\' | b'%' | b';')
}

/// Decodes every escape in the canonical `path`.
#[must_use]
pub fn decoded(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let (value, after) = match byte {
            b'%' => escaped(after).unwrap_or((b'%', after)),
            _ => (*byte, after),
        };
        bytes.push(value);
        rest = after;
    }
    // A decoded canonical path is UTF-8.
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

/// Returns `text` with one form of each letter that has several: lower and upper case, and
/// characters that some servers take for the same letter (Unicode Standard §5.18, Case Folding).
/// Both Turkish i become the i of ASCII.
#[must_use]
pub fn without_case(text: &str) -> String {
    let plain = |character: char| {
        if matches!(character, 'İ' | 'ı') {
            'i'
        } else {
            character
        }
    };
    let lower = text.chars().map(plain).flat_map(char::to_lowercase);
    lower
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
        .collect()
}

/// Replaces each run of slashes in `path` with one.
#[must_use]
pub fn folded(path: &str) -> String {
    let mut folded = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !folded.ends_with('/') {
            folded.push(character);
        }
    }
    folded
}

/// Splits off a byte that is written as two hexadecimal digits.
fn escaped(digits: &[u8]) -> Result<(u8, &[u8]), TargetError> {
    match digits {
        [high, low, after @ ..] => {
            let byte = hex_byte(*high, *low).ok_or(TargetError::Escape)?;
            Ok((byte, after))
        }
        _ => Err(TargetError::Escape),
    }
}

/// Decodes a name or value of a query (WHATWG URL, application/x-www-form-urlencoded).
fn decoded_parameter(written: &str) -> Result<String, TargetError> {
    let mut decoded = Vec::with_capacity(written.len());
    let mut rest = written.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let (value, after) = match byte {
            b'%' => escaped(after)?,
            b'+' => (b' ', after),
            _ => (*byte, after),
        };
        // Glob patterns end at NUL.
        if value == 0 {
            return Err(TargetError::Control);
        }
        decoded.push(value);
        rest = after;
    }
    String::from_utf8(decoded).map_err(|_| TargetError::Text)
}

#[cfg(test)]
mod tests {
    use hyper::{Method, Uri};

    use super::{RequestTarget, TargetError, canonical_path, is_canonical};

    fn target(text: &str, allow_encoded_slash: bool) -> Result<RequestTarget, TargetError> {
        RequestTarget::canonical(
            &Method::GET,
            &text.parse::<Uri>().unwrap(),
            allow_encoded_slash,
        )
    }

    #[track_caller]
    fn check(text: &str, expected: Result<&str, TargetError>) {
        let canonical = target(text, false);
        assert_eq!(
            canonical.as_ref().map(RequestTarget::path),
            expected.as_ref().map(|path| *path),
            "{text}"
        );
        if let Ok(canonical) = canonical {
            let again = RequestTarget::canonical(&Method::GET, &canonical.to_uri().unwrap(), false);
            assert_eq!(
                again,
                Ok(canonical),
                "what is canonical stays as it is: {text}"
            );
        }
    }

    /// Covers all paths of up to six of the characters that make a difference.
    #[test]
    fn what_plainly_is_canonical_is_what_it_would_be_made() {
        let mut paths = vec![Vec::new()];
        let mut plain = 0;
        for _ in 0..6 {
            let longer =
                |path: &Vec<u8>| b"/.;%2ea".map(|byte| [path.as_slice(), &[byte]].concat());
            paths = paths.iter().flat_map(longer).collect();
            for path in paths.iter().filter(|path| is_canonical(path)) {
                let text = String::from_utf8(path.clone()).unwrap();
                assert_eq!(canonical_path(path, false), Ok((text.clone(), text)));
                plain += 1;
            }
        }
        assert!(plain > 1000, "{plain}");
    }

    // Conformance: TUN-18, TUN-19, TUN-20, TUN-21.
    #[test]
    fn paths_have_one_form_or_none() {
        use TargetError as E;
        for (text, expected) in [
            ("/", "/"),
            ("/a/b", "/a/b"),
            ("/a/", "/a/"),
            ("/a/./b/.", "/a/b/"),
            ("/pub/../priv", "/priv"),
            ("/pub/%2e%2E/priv", "/priv"),
            ("/pub/.%2e/priv", "/priv"),
            ("/a/..", "/"),
            ("//a///b", "/a/b"),
            ("/a//../b", "/b"),
            ("/%41%7e%5F", "/A~_"),
            ("/%40scope/%2B%3d", "/@scope/+="),
            ("/a%20b%c3%A4", "/a%20b%C3%A4"),
            ("/{x}|y", "/%7Bx%7D%7Cy"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/a%3bv", "/a%3Bv"),
            ("/100%25", "/100%25"),
            ("/a%2541", "/a%2541"),
            ("/...", "/..."),
            ("/a/..b/.c", "/a/..b/.c"),
        ] {
            check(text, Ok(expected));
        }
        for (text, expected) in [
            ("/../x", E::AboveRoot),
            ("/a/../../x", E::AboveRoot),
            ("/a//../../x", E::AboveRoot),
            ("/%2e%2e/x", E::AboveRoot),
            ("/a%00", E::Control),
            ("/a%0a", E::Control),
            ("/a%0d%0aX", E::Control),
            ("/a%7f", E::Control),
            ("/a%zz", E::Escape),
            ("/a%4", E::Escape),
            ("/a%", E::Escape),
            ("/a%2fb", E::EncodedSlash),
            ("/a%5cb", E::Backslash),
            ("/a%252fb", E::Twice),
            ("/a/%252e%252e/b", E::Twice),
            ("/a%25%32%46", E::Twice),
            ("/a%25252e", E::Twice),
            ("/%c0%af", E::Text),
            ("/%c0%ae%c0%ae/x", E::Text),
            ("/%e4", E::Text),
            ("/pub/..;/priv", E::HiddenDots),
            ("/pub/..%C2%A0/priv", E::HiddenDots),
            ("/pub/%E3%80%80..%09x/..%E2%80%A8", E::Control),
            ("/pub/..%E2%80%A8", E::HiddenDots),
            ("/pub/.;x=1/priv", E::HiddenDots),
            ("/pub/%2e%2e;/priv", E::HiddenDots),
            ("/pub/..%3b/priv", E::HiddenDots),
            ("/pub/..%3Bx=1/priv", E::HiddenDots),
            ("/pub/%2e%2e%3b/priv", E::HiddenDots),
            ("/pub/%2E%3b", E::HiddenDots),
            ("/pub/..%20/priv", E::HiddenDots),
            ("/pub/%20%2e%2e/priv", E::HiddenDots),
            ("/pub/.%20;x/priv", E::HiddenDots),
            ("/pub/..%253b/priv", E::Twice),
        ] {
            check(text, Err(expected));
        }
        check(
            &format!("/{}", "a".repeat(4095)),
            Ok(&format!("/{}", "a".repeat(4095))),
        );
        check(&format!("/{}", "a".repeat(4096)), Err(E::TooLong));
    }

    #[test]
    fn an_encoded_slash_is_kept_where_it_is_allowed_and_hides_nothing() {
        assert_eq!(
            target("/@types%2fnode", true).unwrap().path(),
            "/@types%2Fnode"
        );
        for hidden in ["/a%2f..%2fb", "/..%2fb", "/a%2f%2e", "/a%2f..;x"] {
            assert_eq!(
                target(hidden, true),
                Err(TargetError::HiddenDots),
                "{hidden}"
            );
        }
    }

    #[test]
    fn parameters_of_segments_make_a_second_reading() {
        let reading = |text: &str| {
            target(text, false)
                .unwrap()
                .without_parameters()
                .map(str::to_owned)
        };
        assert_eq!(reading("/a/b"), None);
        assert_eq!(reading("/admin;x/y;z=1").as_deref(), Some("/admin/y"));
        assert_eq!(reading("/admin%3bx/y%3Bz=1;a").as_deref(), Some("/admin/y"));
        assert_eq!(reading("/%3b/admin").as_deref(), Some("/admin"));
        assert_eq!(reading("/;/admin").as_deref(), Some("/admin"));
        assert_eq!(reading("/a/;x").as_deref(), Some("/a/"));
    }

    #[test]
    fn the_query_is_read_and_sent_as_it_is() {
        let asked = target("/x?a=1&b=%20+y&&c&a=%C3%A4&d=/../%2F", false).unwrap();
        assert_eq!(
            asked.to_uri().unwrap(),
            "/x?a=1&b=%20+y&&c&a=%C3%A4&d=/../%2F"
        );
        let parameters = asked.parameters().unwrap();
        let parameters: Vec<_> = parameters
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            parameters,
            [
                ("a", "1"),
                ("b", "  y"),
                ("c", ""),
                ("a", "ä"),
                ("d", "/..//")
            ]
        );
        for (text, error) in [
            ("/x?k=%00", TargetError::Control),
            ("/x?k=%zz", TargetError::Escape),
            ("/x?%e4", TargetError::Text),
        ] {
            assert_eq!(
                target(text, false).unwrap().parameters(),
                Err(error),
                "{text}"
            );
        }
    }

    #[test]
    fn only_options_asks_for_no_path() {
        let star: Uri = "*".parse().unwrap();
        assert_eq!(
            RequestTarget::canonical(&Method::OPTIONS, &star, false)
                .unwrap()
                .path(),
            "*"
        );
        assert_eq!(
            RequestTarget::canonical(&Method::GET, &star, false),
            Err(TargetError::NoPath)
        );
        let authority: Uri = "a.test:443".parse().unwrap();
        assert_eq!(
            RequestTarget::canonical(&Method::CONNECT, &authority, false),
            Err(TargetError::NoPath)
        );
    }
}
