//! Inference routes: models, the interfaces that they serve, and their backends.

pub mod interface;

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::PathBuf;

use crate::network::host::Host;
use crate::secret::Secret;
use crate::violation::ViolationKind;
use interface::Interface;

/// Host name at which the workload reaches models.
pub const HOST: &str = "inference.local";

/// Name that is reserved for system routes, which serve no workload.
pub const SYSTEM_ROUTE: &str = "sandbox-system";

/// Limit of routes per file.
pub const MAX_ROUTES: usize = 1_000;

/// Authentication scheme of a backend. An unknown provider gets the most common one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// `Authorization: Bearer`.
    #[default]
    Bearer,
    /// `x-api-key`, with `anthropic-version`.
    Anthropic,
}

impl Provider {
    /// Returns the scheme of the provider named `word`.
    #[must_use]
    pub fn named(word: &str) -> Self {
        if word.trim().eq_ignore_ascii_case("anthropic") {
            Self::Anthropic
        } else {
            Self::Bearer
        }
    }
}

/// Backend of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A server.
    Server {
        /// True for HTTPS.
        is_tls: bool,
        /// Name or address.
        host: Host,
        /// Port.
        port: u16,
        /// Prefix of each request's path: empty, or with a slash at the beginning and none at the
        /// end.
        base: String,
    },
    /// A fixed response, for tests and demonstrations.
    Mock,
}

impl Backend {
    /// Parses `http://…`, `https://…` or `mock://…`.
    ///
    /// # Errors
    /// Fails if the scheme is another one, if the host is missing, or if there is more than host,
    /// port and path.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        // If the text contains a password, it must not appear in a log.
        let shown = if text.contains('@') {
            "an endpoint with user information"
        } else {
            text
        };
        let invalid = || ViolationKind::EndpointInvalid(shown.to_owned());
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(invalid)?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "mock" => return Ok(Self::Mock),
            "http" => false,
            "https" => true,
            _ => return Err(invalid()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:@!$&'()*+,=".contains(&byte);
        let has_dots = path.split('/').any(|segment| matches!(segment, "." | ".."));
        if authority.contains('@') || has_dots || !path.bytes().all(is_plain) {
            return Err(invalid());
        }
        let (host, port) = match authority
            .rsplit_once(':')
            .filter(|_| !authority.ends_with(']'))
        {
            Some((host, port)) => {
                let is_number =
                    port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':');
                let is_number = is_number || host.ends_with(']');
                (
                    host,
                    port.parse()
                        .ok()
                        .filter(|port| *port != 0 && is_number)
                        .ok_or_else(invalid)?,
                )
            }
            None => (authority, if is_tls { 443 } else { 80 }),
        };
        let host = Host::parse(host).map_err(|_| invalid())?;
        Ok(Self::Server {
            is_tls,
            host,
            port,
            base: path.trim_end_matches('/').to_owned(),
        })
    }
}

/// Who runs the tools that the requests of a route mention, and fetches what these refer to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tools {
    /// Whoever the request names. A provider may then call hosts that no policy judges.
    #[default]
    Any,
    /// Only the client.
    Local,
}

/// Source of a route's API key.
#[derive(Debug)]
pub enum KeySource {
    /// A variable of the supervisor that the workload does not get.
    Variable(String),
    /// A file; a newline at its end is not part of the key.
    File(PathBuf),
    /// The document itself.
    Value(Secret),
    /// No key is needed.
    None,
}

/// Timeouts of a backend, in seconds. They are long because a model may think for minutes; TCP
/// keepalive notices earlier if its server has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the connection is established.
    pub connect: u64,
    /// From then until the response begins.
    pub first_byte: u64,
    /// Between parts of the response; the whole response has no limit.
    pub idle: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: 30,
            first_byte: 600,
            idle: 600,
        }
    }
}

/// Limits for the use of a route in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Limit of requests.
    pub max_requests: Option<NonZeroU64>,
    /// Limit of input and output tokens, as reported in responses. Requests that are under way when
    /// it is reached are completed.
    pub max_tokens: Option<NonZeroU64>,
}

/// Configuration of a route.
#[derive(Debug)]
pub struct RouteSpec {
    /// Name.
    pub name: String,
    /// Backend.
    pub backend: Backend,
    /// Model requested from the backend, whichever the workload requests.
    pub model: String,
    /// Authentication scheme.
    pub provider: Provider,
    /// Served interfaces, at least one.
    pub interfaces: BTreeSet<Interface>,
    /// Who runs the tools of its requests.
    pub tools: Tools,
    /// Source of the API key.
    pub key: KeySource,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Usage limits.
    pub budget: Budget,
}

/// Contents of a route file.
#[derive(Debug)]
pub struct RouteFile {
    /// Routes in the order of the file.
    pub routes: Vec<RouteSpec>,
    /// Largest request in bytes.
    pub max_request_bytes: usize,
}

/// Default of the largest request in bytes, enough for some images.
pub const DEFAULT_REQUEST_BYTES: usize = 32 * 1024 * 1024;

/// Upper bound of the largest request in bytes.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::interface::Interface;
    use super::{Backend, Provider};
    use crate::network::host::Host;

    #[test]
    fn a_backend_is_a_scheme_a_host_a_port_and_a_path() {
        let server = |is_tls, host: &str, port, base: &str| {
            Ok(Backend::Server {
                is_tls,
                host: Host::parse(host).unwrap(),
                port,
                base: base.to_owned(),
            })
        };
        assert_eq!(
            Backend::parse("http://h.test:8000/v1/"),
            server(false, "h.test", 8000, "/v1")
        );
        assert_eq!(
            Backend::parse("https://API.test"),
            server(true, "api.test", 443, "")
        );
        assert_eq!(
            Backend::parse("http://[::1]:1"),
            server(false, "::1", 1, "")
        );
        assert_eq!(
            Backend::parse("http://127.0.0.1/a/b"),
            server(false, "127.0.0.1", 80, "/a/b")
        );
        assert_eq!(Backend::parse("mock://anything"), Ok(Backend::Mock));
        for none in [
            "",
            "h.test",
            "ftp://h.test",
            "http://",
            "http://u:p@h.test",
            "http://h.test:0",
            "http://h/?q",
            "http://h/a/../b",
            "http://h/#f",
            "http://h/%2e",
            "http://h:+80",
            "http://fe80::1:8000",
        ] {
            assert!(Backend::parse(none).is_err(), "{none}");
        }
    }

    #[test]
    fn words_are_read_in_any_case() {
        assert_eq!(
            Interface::parse(" OpenAI_Chat_Completions "),
            Ok(Interface::OpenaiChatCompletions)
        );
        assert!(Interface::parse("chat").is_err());
        assert_eq!(Provider::named("Anthropic"), Provider::Anthropic);
        assert_eq!(
            ["openai", "nvidia", "x"].map(Provider::named),
            [Provider::Bearer; 3]
        );
    }
}
