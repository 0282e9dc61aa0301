//! What a sandbox starts with, if a gateway gives it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_gateway::channel::Address;
use openshell_gateway::client::{Gateway, Names, PolicyResult};
use openshell_gateway::convert::config::SandboxConfig;
use openshell_gateway::convert::policy;
use openshell_gateway::error::CallError;
use openshell_gateway::token::TokenSource;
use openshell_policy::filesystem::Filesystem;
use openshell_policy::policy::Policy as ValidPolicy;
use openshell_supervisor::files::landlock::Request;
use openshell_telemetry::logging;
use tokio::sync::{Notify, watch};

use super::credentials::Placeholders;
use super::routes::RouteSource;
use super::settings::Settings;
use super::status::Outbox;
use super::{GatewaySource, Receiver, Seen, document};
use crate::input::Phase;
use crate::policy::Compile;
use crate::policy::policy_file::{Policy, PolicyDocument, PolicyFiles, PolicyVersion};
use crate::secrets::credential_file::CredentialSet;
use crate::secrets::route_file::RouteSet;
use crate::tasks::Tasks;
use crate::update::Initial;

/// How to reach and ask a gateway.
#[derive(Debug)]
pub struct Options {
    /// The gateway's address.
    pub address: Address,
    /// The names of the sandbox at the gateway.
    pub names: Names,
    /// The source of tokens, if the gateway takes any.
    pub token: Option<Box<dyn TokenSource>>,
    /// The interval of polls for the policy.
    pub poll: Duration,
    /// The interval of polls for routes.
    pub route_refresh: Duration,
    /// The interval of reports on denials.
    pub denials_every: Duration,
    /// The interval of reports on activity.
    pub activity_every: Duration,
}

/// A gateway that has given everything that a sandbox starts with.
pub struct Opened<C> {
    /// The source of changes of its policy and credentials.
    pub source: GatewaySource,
    /// The source of its routes; `None` if routes are in a file.
    pub routes: Option<RouteSource>,
    /// What the sandbox starts with.
    pub initial: Initial<C>,
    /// The gateway as the receiver of reports.
    pub receiver: Receiver,
}

/// Waits between the attempts of the first call.
const ATTEMPTS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(4),
];

/// The policies of images; the first that exists counts.
const IMAGE_POLICIES: [&str; 2] = [IMAGE_POLICY, LEGACY_IMAGE_POLICY];
const IMAGE_POLICY: &str = "/etc/openshell/policy.yaml";
const LEGACY_IMAGE_POLICY: &str = "/etc/navigator/policy.yaml";

/// Asks the gateway for the policy, the credentials and, unless a file has given `routes`, the
/// routes to models.
///
/// # Errors
/// Fails if the gateway cannot be reached, or refuses the sandbox.
pub async fn open<C: Compile>(
    options: Options,
    files: PolicyFiles,
    routes: Option<RouteSet>,
    tasks: &mut Tasks,
) -> anyhow::Result<Opened<C>> {
    let Options {
        address,
        names,
        token,
        poll,
        route_refresh,
        denials_every,
        activity_every,
    } = options;
    let gateway = Gateway::new(address, names, token)?;
    authenticate(&gateway).await?;
    let config = with_policy(&gateway).await?;
    let (result, version) = first_version::<C>(compile(&config, &files), &files)?;
    let is_valid = result == PolicyResult::Loaded;
    let (outbox, reports) = Outbox::new(gateway.clone());
    tasks.spawn("reports to the gateway", reports);
    version.report.log("policy loaded");
    let settings = Settings::of(&config);
    if settings.is_own_policy() && config.policy.is_some() {
        outbox.report(config.version, result);
    }
    let mut placeholders = Placeholders::default();
    let policy = config.policy.clone();
    if let Some(policy) = policy.as_ref()
        && is_valid
    {
        placeholders.bind(&policy.bindings);
    }
    let given = credentials(&gateway, &mut placeholders).await;
    let seen = first_seen(&config, policy, is_valid, given.is_none());
    let credentials = given.unwrap_or_else(Placeholders::none);
    let (route_source, routes) = models(&gateway, routes, route_refresh).await;
    let renewal = gateway.clone();
    let renewing = async move { renewal.renew_token().await };
    tasks.spawn("token of the gateway", renewing);
    let generation = version.compiled.generation();
    let workspace = watch::Sender::new(config.workspace);
    let proposing = watch::Sender::new(settings.proposing());
    let wanted: Arc<Notify> = Arc::default();
    let receiver = Receiver {
        gateway: gateway.clone(),
        workspace: workspace.subscribe(),
        denials_every,
        activity_every,
        proposing: proposing.subscribe(),
        wanted: Arc::clone(&wanted),
    };
    let source = GatewaySource {
        gateway,
        files,
        every: poll,
        wanted,
        workspace,
        proposing,
        outbox,
        seen,
        settings,
        placeholders,
        pending: None,
        next: None,
        is_lost: false,
        generation,
    };
    Ok(Opened {
        source,
        routes: route_source,
        initial: Initial {
            policy: version,
            credentials: Some(credentials),
            routes: Some(routes),
            reloads: Arc::default(),
        },
        receiver,
    })
}

impl Settings {
    /// Returns the settings of a sandbox that starts with `config`.
    fn of(config: &SandboxConfig) -> Self {
        let mut settings = Self::default();
        settings.apply(&config.settings);
        settings.policy_of(config.global_version);
        settings
    }
}

/// Returns what is known of the gateway's configuration after its first answer.
fn first_seen(
    config: &SandboxConfig,
    policy: Option<policy::GatewayPolicy>,
    is_valid: bool,
    lacks_credentials: bool,
) -> Seen {
    Seen {
        revision: config.revision,
        version: config.version,
        hash: config.hash.clone(),
        policy,
        has_failed: !is_valid,
        provider_revision: config.provider_revision,
        lacks_credentials,
        has_new_bindings: false,
    }
}

/// Asks for the credentials; `None` if the gateway does not give them, which is logged.
async fn credentials(gateway: &Gateway, placeholders: &mut Placeholders) -> Option<CredentialSet> {
    match gateway.provider_environment().await {
        Ok(environment) => Some(placeholders.of(environment)),
        Err(error) => {
            let message =
                format!("no credentials, because the gateway does not give them: {error}");
            logging::config_event(ConfigState::Failed, Severity::High, &message);
            None
        }
    }
}

/// Returns the routes to models, of a file or of the gateway, and the source of the latter.
async fn models(
    gateway: &Gateway,
    routes: Option<RouteSet>,
    refresh: Duration,
) -> (Option<RouteSource>, RouteSet) {
    match routes {
        Some(routes) => (None, routes),
        None => {
            let (source, routes) = RouteSource::open(gateway.clone(), refresh).await;
            (Some(source), routes)
        }
    }
}

async fn authenticate(gateway: &Gateway) -> anyhow::Result<()> {
    let mut waits = ATTEMPTS.iter();
    loop {
        match gateway.authenticate().await {
            Ok(()) => return Ok(()),
            Err(error) => match waits.next().filter(|_| error.is_transient()) {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => bail!(error),
            },
        }
    }
}

/// Asks for everything in force, several times if necessary.
async fn first(gateway: &Gateway) -> Result<SandboxConfig, CallError> {
    let mut waits = ATTEMPTS.iter();
    loop {
        match gateway.config().await {
            Ok(config) => return Ok(config),
            Err(error) => match waits.next().filter(|_| error.is_transient()) {
                Some(wait) => {
                    tracing::warn!(
                        "cannot ask the gateway for its policy; next attempt in {} s: {error}",
                        wait.as_secs()
                    );
                    tokio::time::sleep(*wait).await;
                }
                None => return Err(error),
            },
        }
    }
}

/// Asks for everything in force. If the gateway has no policy, sends it one first.
async fn with_policy(gateway: &Gateway) -> anyhow::Result<SandboxConfig> {
    let config = first(gateway).await?;
    if config.policy.is_some() {
        return Ok(config);
    }
    let sent = gateway.send_policy(&of_image(), &config.workspace).await;
    sent.context("the gateway has no policy, and the sandbox cannot send it one")?;
    Ok(first(gateway).await?)
}

/// Returns the version that a run starts with: one that permits nothing if `compiled` is invalid.
fn first_version<C: Compile>(
    compiled: anyhow::Result<PolicyVersion<C>>,
    files: &PolicyFiles,
) -> anyhow::Result<(PolicyResult, PolicyVersion<C>)> {
    let error = match compiled {
        Ok(version) => return Ok((PolicyResult::Loaded, version)),
        Err(error) => format!("{error:#}"),
    };
    let message = format!("the gateway's policy is invalid, so nothing is permitted: {error}");
    logging::config_event(ConfigState::Failed, Severity::High, &message);
    // These file rules are those of the run, which stay in force.
    let _ = files.started.set(Request::new(
        &Filesystem::default(),
        files.folders.workdir.as_deref(),
    ));
    Ok((PolicyResult::Failed(error), Policy::restrictive().version?))
}

fn compile<C: Compile>(
    config: &SandboxConfig,
    files: &PolicyFiles,
) -> anyhow::Result<PolicyVersion<C>> {
    let policy = config
        .policy
        .as_ref()
        .context("the gateway has no policy")?;
    document(files, config, policy.document.clone()).compile(1)
}

/// Returns the policy in the image, or one that permits nothing but the baseline.
fn of_image() -> ValidPolicy {
    let Some(path) = IMAGE_POLICIES
        .iter()
        .map(Path::new)
        .find(|path| path.try_exists().unwrap_or(true))
    else {
        return ValidPolicy::restrictive();
    };
    if path == Path::new(LEGACY_IMAGE_POLICY) {
        let message = format!(
            "the policy of the image is at {LEGACY_IMAGE_POLICY}; move it to {IMAGE_POLICY}"
        );
        logging::config_event(ConfigState::Validated, Severity::Medium, &message);
    }
    let files = PolicyFiles {
        data: path.to_owned(),
        ..PolicyFiles::default()
    };
    match files.read(Phase::Start).and_then(PolicyDocument::validate) {
        Ok(policy) if policy::survives(&policy) => policy,
        Ok(_) => {
            let message = format!(
                "the policy of the image at {} is not used, and nothing is permitted; remove the \
                 keys that a gateway does not know (`hidden`, `noexec`, `debug`, `exact`, \
                 `pinned`, `resolve`, `case_sensitive`, `upgrades`, `leaks`)",
                path.display()
            );
            logging::finding_event("Unsafe Disk Policy Content", &message);
            ValidPolicy::restrictive()
        }
        Err(error) => {
            let message =
                format!("the policy of the image is not used, and nothing is permitted: {error:#}");
            logging::finding_event("Unsafe Disk Policy Content", &message);
            ValidPolicy::restrictive()
        }
    }
}
