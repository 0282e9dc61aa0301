//! Inference routes: which model answers which interface, and where.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::path::PathBuf;

use crate::network::host::Host;
use crate::secret::Secret;
use crate::violation::ViolationKind;

/// The host at which the workload finds its models.
pub const HOST: &str = "inference.local";

/// The name of routes that are the system's own, and served to no workload.
pub const SYSTEM_ROUTE: &str = "sandbox-system";

/// Routes of one file.
pub const MAX_ROUTES: usize = 1_000;

/// An interface of a model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "`as_str` is the documentation of each")]
pub enum Interface {
    OpenaiChatCompletions,
    OpenaiCompletions,
    OpenaiResponses,
    OpenaiEmbeddings,
    AnthropicMessages,
    ModelDiscovery,
}

impl Interface {
    const ALL: [Self; 6] = [
        Self::OpenaiChatCompletions,
        Self::OpenaiCompletions,
        Self::OpenaiResponses,
        Self::OpenaiEmbeddings,
        Self::AnthropicMessages,
        Self::ModelDiscovery,
    ];

    /// Reads a word, in any case and between blanks.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let word = text.trim().to_ascii_lowercase();
        let known = Self::ALL.into_iter().find(|interface| interface.as_str() == word);
        known.ok_or(ViolationKind::UnknownWord {
            word: text.to_owned(),
            known: "openai_chat_completions, openai_completions, openai_responses, openai_embeddings, anthropic_messages, model_discovery",
        })
    }

    /// The word in route files and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenaiChatCompletions => "openai_chat_completions",
            Self::OpenaiCompletions => "openai_completions",
            Self::OpenaiResponses => "openai_responses",
            Self::OpenaiEmbeddings => "openai_embeddings",
            Self::AnthropicMessages => "anthropic_messages",
            Self::ModelDiscovery => "model_discovery",
        }
    }
}

/// How a backend wants its key. What is unknown is treated as most backends are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Provider {
    /// `Authorization: Bearer`.
    #[default]
    Bearer,
    /// `x-api-key`, with `anthropic-version`.
    Anthropic,
}

impl Provider {
    /// The one that a file calls `word`.
    #[must_use]
    pub fn named(word: &str) -> Self {
        if word.trim().eq_ignore_ascii_case("anthropic") { Self::Anthropic } else { Self::Bearer }
    }
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// To a server.
    Server {
        /// Whether inside TLS.
        is_tls: bool,
        /// Its name or address.
        host: Host,
        /// Its port.
        port: u16,
        /// What stands before the path of each request; empty, or from a slash on, without one at its end.
        base: String,
    },
    /// Nowhere: a fixed answer, for tests and demonstrations.
    Mock,
}

impl Backend {
    /// Reads `http://…`, `https://…` or `mock://…`.
    ///
    /// # Errors
    /// It is none of them, has no host, or says more than a host, a port and a path.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        // Who writes a password into it should not find it in a log.
        let shown = if text.contains('@') { "an endpoint with user information" } else { text };
        let invalid = || ViolationKind::EndpointInvalid(shown.to_owned());
        let (scheme, rest) = text.trim().split_once("://").ok_or_else(invalid)?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "mock" => return Ok(Self::Mock),
            "http" => false,
            "https" => true,
            _ => return Err(invalid()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:@!$&'()*+,=".contains(&byte);
        let has_dots = path.split('/').any(|segment| matches!(segment, "." | ".."));
        if authority.contains('@') || has_dots || !path.bytes().all(is_plain) {
            return Err(invalid());
        }
        let (host, port) = match authority.rsplit_once(':').filter(|_| !authority.ends_with(']')) {
            Some((host, port)) => {
                let is_number = port.bytes().all(|byte| byte.is_ascii_digit()) && !host.contains(':');
                let is_number = is_number || host.ends_with(']');
                (host, port.parse().ok().filter(|port| *port != 0 && is_number).ok_or_else(invalid)?)
            }
            None => (authority, if is_tls { 443 } else { 80 }),
        };
        let host = Host::parse(host).map_err(|_| invalid())?;
        Ok(Self::Server { is_tls, host, port, base: path.trim_end_matches('/').to_owned() })
    }
}

/// Where a route's key is.
#[derive(Debug)]
pub enum KeySource {
    /// In a variable of the supervisor, which the workload does not get.
    Variable(String),
    /// In a file, whose last newline is none of it.
    File(PathBuf),
    /// In the document.
    Value(Secret),
    /// There is none, and none is needed.
    None,
}

/// How long a backend may take, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until it is connected.
    pub connect: u64,
    /// From then until its answer begins.
    pub first_byte: u64,
    /// Between parts of its answer. There is no limit on the whole.
    pub idle: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: 30, first_byte: 120, idle: 120 }
    }
}

/// How much of a route one run may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// Requests.
    pub max_requests: Option<NonZeroU64>,
    /// Tokens in and out, as its answers tell. What is under way when they are reached is not cut off.
    pub max_tokens: Option<NonZeroU64>,
}

/// A route as it is configured.
#[derive(Debug)]
pub struct RouteSpec {
    /// Its name.
    pub name: String,
    /// Where it leads.
    pub backend: Backend,
    /// The model that is asked there, whatever the workload asks for.
    pub model: String,
    /// How the backend wants its key.
    pub provider: Provider,
    /// The interfaces that it serves; at least one.
    pub interfaces: BTreeSet<Interface>,
    /// Where its key is.
    pub key: KeySource,
    /// How long the backend may take.
    pub timeouts: Timeouts,
    /// How much one run may use.
    pub budget: Budget,
}

/// A route file.
#[derive(Debug)]
pub struct RouteFile {
    /// Its routes, in their order.
    pub routes: Vec<RouteSpec>,
    /// Bytes of the largest request.
    pub max_request_bytes: usize,
}

/// Bytes of a request, where the file does not say: enough for some images.
pub const DEFAULT_REQUEST_BYTES: usize = 32 * 1024 * 1024;

/// Bytes of a request that a file may permit.
pub const MAX_REQUEST_BYTES: usize = 256 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::{Backend, Interface, Provider};
    use crate::network::host::Host;

    #[test]
    fn a_backend_is_a_scheme_a_host_a_port_and_a_path() {
        let server = |is_tls, host: &str, port, base: &str| {
            Ok(Backend::Server { is_tls, host: Host::parse(host).unwrap(), port, base: base.to_owned() })
        };
        assert_eq!(Backend::parse("http://h.test:8000/v1/"), server(false, "h.test", 8000, "/v1"));
        assert_eq!(Backend::parse("https://API.test"), server(true, "api.test", 443, ""));
        assert_eq!(Backend::parse("http://[::1]:1"), server(false, "::1", 1, ""));
        assert_eq!(Backend::parse("http://127.0.0.1/a/b"), server(false, "127.0.0.1", 80, "/a/b"));
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
        assert_eq!(Interface::parse(" OpenAI_Chat_Completions "), Ok(Interface::OpenaiChatCompletions));
        assert!(Interface::parse("chat").is_err());
        assert_eq!(Provider::named("Anthropic"), Provider::Anthropic);
        assert_eq!(["openai", "nvidia", "x"].map(Provider::named), [Provider::Bearer; 3]);
    }
}
