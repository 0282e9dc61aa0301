//! Calls of model interfaces.

use hyper::Method;
use openshell_policy::inference::interface::{self, Interface};

/// A call of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiCall {
    /// The interface of the call.
    pub interface: Interface,
    /// The kind of the call, as logs name it.
    pub kind: &'static str,
}

impl ApiCall {
    /// Returns true for a call that only counts tokens, which providers do not charge for.
    #[must_use]
    pub fn is_free(self) -> bool {
        self.kind == "count_tokens"
    }

    /// Returns the method of the request to the backend.
    #[must_use]
    pub fn method(self) -> Method {
        match self.interface.method() {
            interface::Method::Get => Method::GET,
            interface::Method::Post => Method::POST,
        }
    }
}

/// Returns the call of a `method` request for the canonical `path`; `None` if no model interface
/// has it.
#[must_use]
pub fn call(method: &Method, path: &str) -> Option<ApiCall> {
    // Clients write methods in different cases; the backend gets upper case.
    let is_method = |interface: &Interface| {
        interface
            .method()
            .as_str()
            .eq_ignore_ascii_case(method.as_str())
    };
    let mut interfaces = Interface::ALL.iter().copied().filter(is_method);
    interfaces.find_map(|interface| {
        Some(ApiCall {
            interface,
            kind: interface.kind_of(path)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::call;
    use hyper::Method;

    // Conformance: INF-04, INF-05.
    #[test]
    fn only_what_models_serve_is_a_call() {
        let kind = |method: &str, path| {
            call(&Method::from_bytes(method.as_bytes()).unwrap(), path).map(|call| call.kind)
        };
        assert_eq!(
            kind("POST", "/v1/chat/completions"),
            Some("chat_completion")
        );
        assert_eq!(kind("post", "/v1/embeddings"), Some("embeddings"));
        assert_eq!(kind("GET", "/v1/models/gpt-4.1"), Some("models_get"));
        assert_eq!(
            kind("POST", "/v1/messages/count_tokens"),
            Some("count_tokens")
        );
        for (method, path) in [
            ("GET", "/v1/chat/completions"),
            ("POST", "/v1/models"),
            ("POST", "/v1/chat/completions/x"),
            ("POST", "/v1/messages/"),
            ("GET", "/v1/modelsx"),
            ("POST", "/V1/messages"),
            ("GET", "/"),
        ] {
            assert_eq!(kind(method, path), None, "{method} {path}");
        }
    }
}
