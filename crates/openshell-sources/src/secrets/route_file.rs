//! The inference route file: routes to models, with their keys.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::inference::interface::Interface;
use openshell_policy::inference::{KeySource, RouteFile, RouteSpec, SYSTEM_ROUTE};
use openshell_policy::secret::Secret;
use openshell_policy::yaml;
use openshell_supervisor::command::environment::Environment;
use openshell_telemetry::logging;

use crate::input::Phase;
use crate::secrets::secret_file;

/// A route with its key.
#[derive(Debug)]
pub struct KeyedRoute {
    /// The route, without the place of its key.
    pub spec: RouteSpec,
    /// The key, which can be sent in a header.
    pub key: Option<Secret>,
}

impl KeyedRoute {
    /// Returns the route `spec` with `key`.
    ///
    /// # Errors
    /// Fails if the key cannot be sent in a header (RFC 9110 §5.5).
    pub fn new(spec: RouteSpec, key: Option<Secret>) -> anyhow::Result<Self> {
        let is_text = |byte: &u8| matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        match &key {
            Some(key) if !key.expose().iter().all(is_text) => {
                bail!("the key has bytes that a header cannot carry")
            }
            _ => Ok(Self { spec, key }),
        }
    }
}

/// Routes with their keys.
#[derive(Debug)]
pub struct RouteSet {
    /// The routes.
    pub routes: Vec<KeyedRoute>,
    /// The most bytes of a request.
    pub max_request_bytes: usize,
    /// The variables that hold keys.
    pub variables: Vec<String>,
    /// The files that hold keys.
    pub files: Vec<PathBuf>,
    /// What an operator is told about the routes.
    pub report: RouteReport,
    /// True if routes may come later even if there are none now.
    pub may_come_later: bool,
}

/// The log line about routes.
#[derive(Clone, Debug)]
pub struct RouteReport {
    pub(crate) summary: String,
}

/// The variables of clients of one kind of interface.
struct ClientVariables {
    interfaces: &'static [Interface],
    url: &'static str,
    base: &'static str,
    /// Variables that may hold a key. The first one gets a meaningless key if none does.
    keys: &'static [&'static str],
}

/// The variables of the clients that the providers publish. Claude Code asks in a terminal whether
/// to use an `ANTHROPIC_API_KEY`.
const CLIENTS: &[ClientVariables] = &[
    ClientVariables {
        interfaces: &[
            Interface::OpenaiChatCompletions,
            Interface::OpenaiCompletions,
            Interface::OpenaiResponses,
            Interface::OpenaiEmbeddings,
        ],
        url: "OPENAI_BASE_URL",
        base: "https://inference.local/v1",
        keys: &["OPENAI_API_KEY"],
    },
    ClientVariables {
        interfaces: &[Interface::AnthropicMessages],
        url: "ANTHROPIC_BASE_URL",
        base: "https://inference.local",
        keys: &["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY"],
    },
];

impl RouteSet {
    /// Sets base URLs and keys for clients that the routes serve, unless `environment` has them. If
    /// the caller has set another URL, its key stays as it is too. `is_placeholder` returns true
    /// for variables that are set later.
    pub fn set_client_variables(
        &self,
        environment: &mut Environment,
        is_placeholder: impl Fn(&str) -> bool,
    ) {
        for ClientVariables {
            interfaces,
            url,
            base,
            keys,
        } in CLIENTS
        {
            let is_served = self.routes.iter().any(|route| {
                interfaces
                    .iter()
                    .any(|interface| route.spec.interfaces.contains(interface))
            });
            let is_own = |url: Option<&OsStr>| {
                url.and_then(OsStr::to_str)
                    .map(|url| url.trim_end_matches('/'))
                    == Some(*base)
            };
            let has = |name: &str| environment.get(name).is_some_and(|value| !value.is_empty());
            if !is_served || (has(url) && !is_own(environment.get(url))) {
                continue;
            }
            let has_key = keys.iter().any(|name| has(name) || is_placeholder(name));
            environment.set(*url, base);
            if let Some(key) = keys.first()
                && !has_key
            {
                environment.set(*key, "any");
            }
        }
    }
}

impl RouteReport {
    /// Logs that the routes are in force.
    pub fn log(&self) {
        logging::config_event(ConfigState::Loaded, Severity::Info, &self.summary);
    }
}

/// Parses the file at `path`, without reading keys in other places.
///
/// # Errors
/// Fails if the file cannot be read or is invalid, with every violation; or if it holds keys and
/// others may read it.
pub fn parse(path: &Path) -> anyhow::Result<RouteFile> {
    let failed = || format!("failed to load inference routes {}", path.display());
    let (text, is_private) =
        secret_file::open(path, yaml::MAX_DOCUMENT_BYTES, Phase::Start).with_context(failed)?;
    let text = std::str::from_utf8(text.expose())
        .map_err(|_| anyhow!("it is not UTF-8"))
        .with_context(failed)?;
    let file = yaml::routes(text).map_err(|violations| {
        let lines: Vec<_> = violations
            .0
            .iter()
            .map(|violation| format!("\n  {violation}"))
            .collect();
        anyhow!("{}:{}", failed(), lines.concat())
    })?;
    if !is_private
        && file
            .routes
            .iter()
            .any(|route| matches!(route.key, KeySource::Value(_)))
    {
        return Err(anyhow!(secret_file::PUBLIC)).with_context(failed);
    }
    Ok(file)
}

/// Reads the file at `path`, with keys from files and from `environment`.
///
/// # Errors
/// Fails if the file cannot be read or is invalid, with every violation; or if a key is missing.
pub fn read(path: &Path, environment: &Environment) -> anyhow::Result<RouteSet> {
    let failed = || format!("failed to load inference routes {}", path.display());
    let file = parse(path)?;
    let mut routes = Vec::new();
    let mut variables = Vec::new();
    let mut files = Vec::new();
    let mut faults = Vec::new();
    for mut spec in file.routes {
        let name = spec.name.clone();
        match &spec.key {
            KeySource::Variable(variable) => variables.push(variable.clone()),
            KeySource::File(file) => files.push(file.clone()),
            KeySource::None | KeySource::Value(_) => {}
        }
        match key(&mut spec, environment).and_then(|key| KeyedRoute::new(spec, key)) {
            Ok(route) => routes.push(route),
            Err(error) => faults.push(format!("route '{name}': {error:#}")),
        }
    }
    if !faults.is_empty() {
        bail!("{}: {}", failed(), faults.join("\n  "));
    }
    let summary = format!(
        "inference routes loaded from {}: {} routes",
        path.display(),
        routes.len()
    );
    // The route that the system keeps for itself serves nobody inside.
    routes.retain(|route| route.spec.name != SYSTEM_ROUTE);
    Ok(RouteSet {
        routes,
        max_request_bytes: file.max_request_bytes,
        variables,
        files,
        report: RouteReport { summary },
        may_come_later: false,
    })
}

fn key(spec: &mut RouteSpec, environment: &Environment) -> anyhow::Result<Option<Secret>> {
    match std::mem::replace(&mut spec.key, KeySource::None) {
        KeySource::None => Ok(None),
        KeySource::Value(secret) => Ok(Some(secret)),
        KeySource::File(path) => secret_file::read(&path, Phase::Start).map(Some),
        KeySource::Variable(name) => {
            let value = environment
                .get(&name)
                .ok_or_else(|| anyhow!("environment variable {name} is not set"))?;
            secret_file::checked(Secret::new(value.as_bytes().to_vec())).map(Some)
        }
    }
}
