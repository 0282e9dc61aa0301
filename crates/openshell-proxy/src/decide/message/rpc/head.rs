//! The fields of a request's head that say how its messages are read.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};

use crate::denial::answer::HEADER_MISMATCH;
use crate::secrets::placeholder::MARKER;
use crate::wire::http::head::is_hop_by_hop;

/// The fields of a head.
#[derive(Clone, Debug, Default)]
pub struct RpcHead {
    fields: Vec<(HeaderName, HeaderValue)>,
}

/// A field that stands twice or is malformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldFault {
    pub(super) reason: String,
    /// The code of the error for it.
    pub(super) code: i32,
}

impl FieldFault {
    /// Returns the fault of a head that differs from its body, or could be read as another one.
    pub(super) fn differs(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            code: HEADER_MISMATCH,
        }
    }
}

/// The field of the revision.
pub(super) const VERSION: &str = "mcp-protocol-version";

/// The beginning of the fields that belong to MCP.
const OF_MCP: &str = "mcp-";

/// The beginning of the fields that hold arguments.
const PARAM: &str = "mcp-param-";

/// The number of such fields that a request may have.
const PARAMS: usize = 64;

impl RpcHead {
    /// Returns the fields in `headers` that rules for messages read.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let is_read = |name: &HeaderName| {
            [CONTENT_TYPE, ACCEPT].contains(name) || name.as_str().starts_with(OF_MCP)
        };
        let fields = headers.iter().filter(|(name, _)| is_read(name));
        // Only what is passed on counts.
        let fields = fields.filter(|(name, _)| !is_hop_by_hop(headers, name));
        Self {
            fields: fields
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }

    /// Returns the fields that a client sends beside `body` if it follows its protocol. Which revision
    /// it speaks is known only if the body says so.
    #[must_use]
    pub fn of_client(body: &[u8]) -> Self {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(CONTENT_TYPE, json);
        headers.insert(
            ACCEPT,
            HeaderValue::from_static("application/json, text/event-stream"),
        );
        headers.insert("mcp-session-id", HeaderValue::from_static("1"));
        let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let params = &body["params"];
        let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        let name = ["name", "uri", "taskId"]
            .iter()
            .find_map(|key| params[*key].as_str());
        let name = name.map(|name| format!("=?base64?{}?=", STANDARD.encode(name)));
        let fields = [
            (VERSION, version.as_str()),
            ("mcp-method", body["method"].as_str()),
            ("mcp-name", name.as_deref()),
        ];
        for (field, value) in fields.into_iter().filter(|_| version.is_string()) {
            if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
                headers.insert(field, value);
            }
        }
        Self::of(&headers)
    }

    /// Returns true if the head has a field of MCP.
    pub(super) fn is_of_mcp(&self) -> bool {
        self.fields
            .iter()
            .any(|(name, _)| name.as_str().starts_with(OF_MCP))
    }

    /// Returns true if the head names the revision of MCP.
    pub(in crate::decide) fn names_revision(&self) -> bool {
        self.values(VERSION).next().is_some()
    }

    /// Returns the value of the field `name` of MCP.
    pub(super) fn field(&self, name: &'static str) -> Result<Option<&str>, FieldFault> {
        let value = self.only(name)?;
        let malformed = || FieldFault::differs(format!("the value of {name} is malformed"));
        value
            .map(|value| text(value).ok_or_else(malformed))
            .transpose()
    }

    /// Returns the value of the field `name` of MCP, decoded (MCP 2026-07-28, "Standard Headers").
    pub(super) fn decoded(&self, name: &'static str) -> Result<Option<Cow<'_, str>>, FieldFault> {
        let value = self.only(name)?;
        let malformed = || FieldFault::differs(format!("the value of {name} is malformed"));
        value
            .map(|value| decoded(value).ok_or_else(malformed))
            .transpose()
    }

    fn only(&self, name: &'static str) -> Result<Option<&HeaderValue>, FieldFault> {
        let mut values = self.values(name);
        let first = values.next();
        match values.next() {
            Some(_) => Err(FieldFault::differs(format!("the header has {name} twice"))),
            None => Ok(first),
        }
    }

    /// Returns the names and values of the fields that repeat arguments.
    pub(super) fn params(&self) -> Result<Vec<(&str, Cow<'_, str>)>, FieldFault> {
        let mut params: Vec<(&str, Cow<'_, str>)> = Vec::new();
        for (name, value) in &self.fields {
            let Some(param) = name.as_str().strip_prefix(PARAM) else {
                continue;
            };
            let is_twice = params.iter().any(|(known, _)| *known == param);
            let value = decoded(value).filter(|_| !is_twice && params.len() < PARAMS);
            let fault = || FieldFault::differs("an mcp-param field stands twice or is malformed");
            params.push((param, value.ok_or_else(fault)?));
        }
        Ok(params)
    }

    /// Returns true if the body is declared as JSON in UTF-8, once.
    pub(super) fn is_json(&self) -> bool {
        let mut types = self.values(CONTENT_TYPE.as_str());
        let (Some(only), None) = (types.next(), types.next()) else {
            return false;
        };
        let Ok(text) = only.to_str() else {
            return false;
        };
        let mut parts = text.split(';').map(str::trim);
        let is_json = parts
            .next()
            .is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
        let is_utf8 = |part: &str| {
            let lower = part.to_ascii_lowercase();
            matches!(lower.as_str(), "charset=utf-8" | "charset=\"utf-8\"")
        };
        // Servers differ in how they read other parameters.
        is_json && parts.next().is_none_or(is_utf8) && parts.next().is_none()
    }

    /// Returns true if the client takes event streams.
    pub(super) fn accepts_events(&self) -> bool {
        self.accepts("text/event-stream")
    }

    /// Returns true if the client takes event streams and no JSON.
    #[must_use]
    pub fn accepts_only_events(&self) -> bool {
        let others = ["application/json", "application/*", "*/*"];
        self.accepts_events() && !others.iter().any(|other| self.accepts(other))
    }

    /// Returns true if `Accept` lists `media_type`.
    fn accepts(&self, media_type: &str) -> bool {
        let values = self
            .values(ACCEPT.as_str())
            .filter_map(|value| value.to_str().ok());
        let mut listed = values.flat_map(|value| value.split(','));
        listed.any(|range| {
            let essence = range.split(';').next().unwrap_or_default();
            essence.trim().eq_ignore_ascii_case(media_type)
        })
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &HeaderValue> {
        let named = self
            .fields
            .iter()
            .filter(move |(known, _)| known.as_str() == name);
        named.map(|(_, value)| value)
    }
}

/// Returns the text of a field value. It has no placeholder, which would be replaced after it was
/// compared.
fn text(value: &HeaderValue) -> Option<&str> {
    let text = value.to_str().ok()?;
    (!text.contains(MARKER)).then_some(text)
}

/// Returns the text of a field value, which may be in Base64 between `=?base64?` and `?=`.
fn decoded(value: &HeaderValue) -> Option<Cow<'_, str>> {
    let text = text(value)?;
    let inner = text.strip_prefix("=?base64?");
    let Some(inner) = inner.and_then(|inner| inner.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(text));
    };
    let bytes = STANDARD.decode(inner).ok()?;
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use hyper::HeaderMap;
    use hyper::header::{HeaderName, HeaderValue};

    use super::RpcHead;

    fn head(fields: &[(&'static str, &str)]) -> RpcHead {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            headers.append(HeaderName::from_static(name), value);
        }
        RpcHead::of(&headers)
    }

    #[test]
    fn a_body_is_json_only_if_its_head_says_so_once() {
        for (types, is_json) in [
            (&["application/json"][..], true),
            (&["Application/JSON; charset=UTF-8"], true),
            (&["application/json;charset=\"utf-8\""], true),
            (&["application/json;charset=utf-8; x=y"], false),
            (&["application/json; charset =utf-7"], false),
            (&["application/json; x=y, text/plain"], false),
            (&[], false),
            (&["application/json", "application/json"], false),
            (&["application/json; charset=utf-16"], false),
            (&["application/json; charset=utf-8; charset=utf-16"], false),
            (&["application/json; charset=utf-8; charset=utf-8"], false),
            (&["text/plain"], false),
            (&["application/json-rpc"], false),
            (&["application/json, text/plain"], false),
        ] {
            let fields: Vec<_> = types.iter().map(|text| ("content-type", *text)).collect();
            assert_eq!(head(&fields).is_json(), is_json, "{types:?}");
        }
    }

    #[test]
    fn fields_of_mcp_stand_once_and_are_decoded() {
        let field = |fields: &[(&'static str, &str)]| {
            let head = head(fields);
            head.decoded("mcp-name")
                .map(|value| value.map(String::from))
                .map_err(drop)
        };
        let text = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(field(&[("mcp-method", "x")]), Ok(None));
        assert_eq!(field(&[("mcp-name", "a b")]), text("a b"));
        assert_eq!(field(&[("mcp-name", "=?base64?w6kK?=")]), text("é\n"));
        assert_eq!(
            field(&[("mcp-name", "=?base64?w6k=")]),
            text("=?base64?w6k="),
            "without its end it is a text"
        );
        for malformed in ["=?base64?%%?=", "=?base64?/w==?=", "\u{e9}"] {
            assert_eq!(field(&[("mcp-name", malformed)]), Err(()), "{malformed}");
        }
        assert_eq!(field(&[("mcp-name", "a"), ("mcp-name", "a")]), Err(()));
        let twice = head(&[("mcp-param-a", "1"), ("mcp-param-a", "1")]);
        assert!(twice.params().is_err());
    }

    #[test]
    fn a_client_takes_events_if_its_head_lists_them() {
        for (accept, events, only) in [
            ("application/json, text/event-stream", true, false),
            ("text/event-stream;q=0.9", true, true),
            ("*/*", false, false),
            ("text/event-stream, */*", true, false),
            ("", false, false),
        ] {
            let head = head(&[("accept", accept)]);
            let found = (head.accepts_events(), head.accepts_only_events());
            assert_eq!(found, (events, only), "{accept}");
        }
    }
}
