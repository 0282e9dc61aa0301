//! The configuration of a run, from its arguments and the environment, of which this is the only
//! reader.

pub(crate) mod origin;
mod presets;
mod ssh_doors;

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use openshell_access::control::console::Keyboard;
use openshell_policy::process::RunAs;
use openshell_proxy::credentials::leaks::detector::LeakMode;
use openshell_proxy::doors::dns::pool::NameAddresses;
use openshell_sources::gateway::launcher::{self, Launched, MainProcess, Place};
use openshell_sources::origin::Secrets;
use openshell_sources::policy::policy_file::{self, PolicyFiles, RunFolders};
use openshell_sources::secrets::credential_file::OpenedCredentials;
use openshell_sources::secrets::environment_secrets;
use openshell_sources::secrets::route_file::{self, RouteSet};
use openshell_sources::variables;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::command::signals;
use openshell_supervisor::identity::run_as;
use openshell_telemetry::export::Collector;
use openshell_telemetry::logging::{Form, Label};
use rustix::process::Signal;
use tracing::Level;

use crate::activation::Origin;
use crate::ca_dir;
use crate::cli::{self, Args, CarveOutArgs, EnvironmentArgs, LogPlace, NetworkMode, Published};
use crate::telemetry;
pub(crate) use presets::{SYSTEM_PRESETS, own_presets};
pub(crate) use ssh_doors::{SshDoors, SshOverTcp};

/// Everything that a run depends on.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) policy: PolicyFiles,
    /// Files that are read again when they change.
    pub(crate) watched: Vec<PathBuf>,
    /// Files with secrets, each with its kind, those included that other files name.
    pub(crate) secret_files: Vec<(&'static str, PathBuf)>,
    /// Taken by the start.
    pub(crate) secrets: Secrets,
    /// User and group where the policy names none; `None` means the caller.
    pub(crate) run_as: Option<RunAs>,
    /// Most verbose level of log lines that a gateway gets.
    pub(crate) push_level: Option<Level>,
    /// Problems of the environment, for the log.
    pub(crate) warnings: Vec<String>,
    pub(crate) network: NetworkMode,
    /// Servers inside, with their addresses outside.
    pub(crate) publish: Vec<Published>,
    pub(crate) name_addresses: NameAddresses,
    pub(crate) command: Vec<OsString>,
    pub(crate) workdir: Option<PathBuf>,
    pub(crate) current_dir: Option<PathBuf>,
    pub(crate) carve_outs: CarveOutArgs,
    /// Most bytes in each private folder for temporary files, if a number is given.
    pub(crate) tmp_size: Option<u64>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) grace: Duration,
    /// Handling of secrets in requests.
    pub(crate) leaks: LeakMode,
    /// Time between a signal to end and passing it on.
    pub(crate) drain: Duration,
    pub(crate) terminal: CommandTerminal,
    /// True if the caller ignores the stops of its terminal (SIGTSTP).
    pub(crate) ignores_stops: bool,
    /// True if a gateway's launcher started the supervisor.
    pub(crate) is_launched: bool,
    /// User and group ids of the user who called sudo.
    pub(crate) sudo: Option<(u32, u32)>,
    /// True if the sandbox stays after its command has ended.
    pub(crate) keep: bool,
    /// True if the name is the user's choice, and nobody else's.
    pub(crate) is_named: bool,
    /// Variables from which the workload's environment is made.
    pub(crate) environment: Environment,
    /// Labels of the run; taken by the log.
    pub(crate) labels: Vec<Label>,
    /// Name of this sandbox in log lines.
    pub(crate) sandbox: String,
    /// Where metrics are exported to; taken by the start.
    pub(crate) collector: Option<Collector>,
    pub(crate) log_level: Level,
    /// True if standard error has messages for people in place of log lines.
    pub(crate) is_plain: bool,
    pub(crate) log_form: Form,
    /// True if standard error shows events.
    pub(crate) logs_to_stderr: bool,
    /// The directory that the log is in, once it has started.
    pub(crate) log_dir: Option<PathBuf>,
    /// Directories for the log, in order of preference.
    pub(crate) log_dirs: Vec<PathBuf>,
    pub(crate) run_dir: Option<PathBuf>,
    /// The user's own directory of files that live as long as a session, if there is one.
    pub(crate) runtime_dir: Option<PathBuf>,
    /// The directory of the CA files inside, if one is named.
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) upstream_ca_file: Option<PathBuf>,
    /// The folder of the interception CA, if it is kept.
    pub(crate) ca_dir: Option<PathBuf>,
    pub(crate) proposals: Option<PathBuf>,
    pub(crate) observe: Option<PathBuf>,
    /// True if the files that the command reads are observed too.
    pub(crate) observe_files: bool,
    /// True if refused accesses to files are logged.
    pub(crate) log_files: bool,
    /// True if the endpoints of an earlier observation are kept.
    pub(crate) observe_merge: bool,
    /// Doors of the SSH server.
    pub(crate) ssh: SshDoors,
    /// Places of health and metrics.
    pub(crate) health_port: Option<u16>,
    pub(crate) health_socket: Option<PathBuf>,
}

/// Labels of a run, at most.
const LABELS: usize = 32;

/// Takes the labels of `OPENSHELL_LABELS` and of `flags`, which replace those of the same key.
///
/// # Errors
/// A label is invalid, or there are too many.
fn labels(environment: &mut Environment, flags: Vec<Label>) -> anyhow::Result<Vec<Label>> {
    let text = environment.take("OPENSHELL_LABELS").unwrap_or_default();
    let text = text
        .into_string()
        .map_err(|_| anyhow!("OPENSHELL_LABELS is not UTF-8"))?;
    let words = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    let named = words.map(cli::label).collect::<Result<Vec<_>, _>>();
    let mut labels: Vec<Label> = Vec::new();
    for label in named
        .map_err(|error| anyhow!("OPENSHELL_LABELS: {error}"))?
        .into_iter()
        .chain(flags)
    {
        labels.retain(|other| other.key != label.key);
        labels.push(label);
    }
    if labels.len() > LABELS {
        bail!("{} labels; a run has at most {LABELS}", labels.len());
    }
    Ok(labels)
}

/// Default directory of the log.
const LOG_DIR: &str = "/var/log";

/// Default directory of the CA files inside.
const TLS_DIR: &str = "/etc/openshell-tls";

/// Returns the names of the variables of this process that are settings of a run.
pub(crate) fn own_settings() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names
        .filter(|name| name.as_encoded_bytes().starts_with(b"OPENSHELL_"))
        .collect()
}

/// Terminal of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandTerminal {
    /// One that shows what it writes on the caller's, if one of its outputs is one, with this much
    /// of what is typed there.
    Callers(Keyboard),
    /// One that clients attach to.
    Own,
}

/// Type of a terminal of the command's own.
const DEFAULT_TERM: &str = "xterm-256color";

impl Config {
    /// Returns true if the command is part of the job control of the caller's terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        self.keyboard() != Keyboard::None
    }

    /// What the command gets of what is typed on the caller's terminal.
    pub(crate) fn keyboard(&self) -> Keyboard {
        match self.terminal {
            CommandTerminal::Callers(keyboard) => keyboard,
            CommandTerminal::Own => Keyboard::None,
        }
    }

    /// Reads the environment and merges it with `args`; a flag wins over its variable.
    ///
    /// # Errors
    /// A policy is missing, a value is invalid, or an input file cannot be used.
    pub(crate) fn read(mut args: Args, origin: &Origin) -> anyhow::Result<Self> {
        let mut environment = Environment::new(std::env::vars_os());
        let place = origin.place();
        if place.is_some() {
            refuse_beside_gateway(&args)?;
        }
        let mut warnings = Vec::new();
        let labels = labels(&mut environment, std::mem::take(&mut args.label))?;
        let ssh = SshDoors::read(&mut args, &mut environment, &mut warnings)?;
        let launchers = launcher::secret_files(&environment);
        let mut launched = place
            .map(|place| Launched::read(place.clone(), &mut environment))
            .transpose()?;
        let variable = |name: &str| {
            environment
                .get(name)
                .filter(|value| !value.is_empty())
                .map(OsString::from)
        };
        let path = |flag: Option<PathBuf>, name| flag.or_else(|| variable(name).map(PathBuf::from));
        let RunFolders {
            workdir,
            current,
            sudo,
            ..
        } = origin.files().folders.clone();
        let level = args
            .log_level
            .map(OsString::from)
            .or_else(|| variable("OPENSHELL_LOG_LEVEL"));
        if args.interactive && !std::io::stdin().is_terminal() {
            bail!("--interactive needs a terminal as standard input");
        }
        let flag = args
            .environment
            .credentials
            .is_some()
            .then_some("--credentials");
        let flag = flag.or(args
            .environment
            .secrets_from_env
            .then_some("--secrets-from-env"));
        if let Some(flag) = flag
            && args.network != NetworkMode::Proxy
        {
            bail!("{flag} needs --network proxy: it is the proxy that replaces placeholders");
        }
        if args.name_addresses.is_some() && args.network != NetworkMode::Proxy {
            bail!(
                "--name-addresses needs --network proxy: without it no name has an address of the \
                 sandbox's own"
            );
        }
        if !args.publish.is_empty() && args.network != NetworkMode::Proxy {
            bail!(
                "--publish needs --network proxy: without it servers inside are on the host's \
                 network, or there are none"
            );
        }
        let routes = path(args.inference_routes, "OPENSHELL_INFERENCE_ROUTES");
        if routes.is_some() && args.network != NetworkMode::Proxy {
            bail!(
                "--inference-routes needs --network proxy: it is the proxy that answers for \
                 inference.local"
            );
        }
        let state = path(None, "XDG_STATE_HOME").filter(|state| state.is_absolute());
        let home = || {
            path(None, "HOME")
                .filter(|home| home.is_absolute())
                .or_else(run_as::home_of_caller)
        };
        let state = state.or_else(|| home().map(|home| home.join(".local/state")));
        let log_dirs = match args.log_dir {
            _ if args.log_to == LogPlace::Stderr => vec![],
            Some(named) => vec![named],
            None => [PathBuf::from(LOG_DIR)]
                .into_iter()
                .chain(state.map(|state| state.join("openshell")))
                .collect(),
        };
        let runtime_dir = path(None, "XDG_RUNTIME_DIR");
        // The sandbox starts in another directory, where a relative path would name another place.
        let absolute = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
        let main_process = launched
            .as_mut()
            .and_then(|launched| launched.main_process.take());
        let (command, wants_terminal) = command(
            args.command,
            main_process,
            variable("OPENSHELL_SANDBOX_COMMAND"),
            place.is_some(),
        )?;
        let keyboard = if args.no_interactive {
            Keyboard::None
        } else {
            Keyboard::of_caller(args.interactive)
        };
        if args.interactive && keyboard == Keyboard::None {
            bail!(
                "--interactive needs a terminal as standard input, by which this process is \
                 controlled"
            );
        }
        let usual = if args.log_to == LogPlace::Stderr {
            Level::INFO
        } else {
            Level::WARN
        };
        let log_form = Form::from(args.log_format);
        // Who asks for a level, or for no file, wants the lines of the log.
        let is_plain =
            level.is_none() && usual == Level::WARN && place.is_none() && log_form == Form::Text;
        let log_level = level.map_or(Ok(usual), log_level)?;
        let ca_dir = absolute(args.ca_dir).context("--ca-dir")?;
        let named_credentials = args.environment.credentials.clone();
        let named_routes = routes.clone();
        let routes = routes
            .map(|path| route_file::read(&path, &environment))
            .transpose()?;
        let Inherited {
            environment,
            credentials,
        } = inherited(
            args.environment,
            routes.as_ref(),
            environment,
            &mut warnings,
        )?;
        let named = credentials
            .iter()
            .flat_map(OpenedCredentials::files)
            .map(|file| ("file of a credential", file));
        let keys = routes
            .iter()
            .flat_map(|routes| &routes.files)
            .map(|file| ("file of a model's key", file.as_path()));
        let secret_files: Vec<_> = [
            ("credentials file", named_credentials.as_deref()),
            ("inference routes file", named_routes.as_deref()),
        ]
        .into_iter()
        .filter_map(|(what, path)| Some((what, path?)))
        .chain(named)
        .chain(keys)
        .map(|(what, path)| (what, path.to_owned()))
        .chain(launchers)
        .chain(
            ca_dir
                .iter()
                .flat_map(|folder| ca_dir::key_files(folder))
                .map(|path| ("key of --ca-dir", path)),
        )
        .collect();
        let watched = args
            .watch
            .then(|| watched(origin.files(), &secret_files))
            .transpose()?
            .unwrap_or_default();
        let mut gateway = None;
        let mut run_as = None;
        let mut push_level = None;
        let mut variables = Vec::new();
        if let Some(launched) = launched {
            (gateway, run_as) = (Some(launched.options), Some(launched.run_as));
            push_level = Some(launched.push_level);
            variables = launched.variables;
            warnings.extend(launched.warnings);
        }
        let own = environment
            .iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let variables = variables
            .into_iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let mut environment = Environment::new(own.chain(variables));
        if wants_terminal && environment.get("TERM").is_none() {
            environment.set("TERM", DEFAULT_TERM);
        }
        let is_named = args.name.is_some();
        let sandbox = args.name.or_else(|| place.map(|place| place.id.clone()));
        let sandbox = sandbox.map_or_else(random_id, Ok)?;
        let collector = telemetry::collector(&mut environment, &sandbox, &mut warnings)?;
        Ok(Self {
            watched,
            secret_files,
            secrets: Secrets {
                credentials,
                routes,
                gateway,
                lines: None,
            },
            run_as,
            push_level,
            warnings,
            policy: origin.files().clone(),
            network: args.network,
            publish: args.publish,
            name_addresses: args.name_addresses.unwrap_or_default(),
            command,
            workdir,
            current_dir: current,
            carve_outs: args.carve_outs,
            tmp_size: args.tmp_size,
            timeout: Some(args.timeout).filter(|timeout| !timeout.is_zero()),
            grace: args.grace,
            leaks: args.leaks.into(),
            drain: args.drain,
            terminal: match keyboard {
                Keyboard::None if wants_terminal => CommandTerminal::Own,
                keyboard => CommandTerminal::Callers(keyboard),
            },
            ignores_stops: signals::is_ignored(Signal::TSTP.as_raw()),
            is_launched: place.is_some(),
            keep: args.keep,
            is_named,
            sudo,
            sandbox,
            collector,
            log_level,
            is_plain,
            log_form,
            logs_to_stderr: args.log_to != LogPlace::File,
            log_dir: None,
            log_dirs,
            run_dir: absolute(args.run_dir).context("--run-dir")?,
            runtime_dir,
            tls_dir: absolute(args.tls_dir).context("--tls-dir")?,
            upstream_ca_file: args.upstream_ca_file,
            ca_dir,
            proposals: args.proposals,
            observe: args.observe,
            observe_merge: args.observe_merge,
            observe_files: args.observe_files,
            log_files: args.log_files,
            labels,
            ssh,
            health_port: args.health_port,
            health_socket: args
                .health_socket
                .map(std::path::absolute)
                .transpose()
                .context("--health-socket")?,
            environment,
        })
    }

    /// Returns the preferred directory of the CA files inside.
    pub(crate) fn tls_dir(&self) -> &Path {
        self.tls_dir.as_deref().unwrap_or(Path::new(TLS_DIR))
    }

    /// Returns the input files of the run, each with its kind.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let secrets = self
            .secret_files
            .iter()
            .map(|(what, path)| (*what, path.as_path()));
        self.policy.paths().chain(secrets)
    }
}

/// Returns true if this looks like the inside of a sandbox.
pub(crate) fn is_within_another() -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "it says why nothing could be set up to read the rest"
    )]
    std::env::var_os("OPENSHELL_SANDBOX").is_some_and(|value| value == "1")
}

/// Returns a variable of a client of running sandboxes, which has no other configuration.
pub(crate) fn variable_of_client(name: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "this is its reader")]
    std::env::var_os(name)
}

/// Returns what the launcher of the sandbox at `place` has set.
///
/// # Errors
/// A variable is invalid.
pub(crate) fn launched(place: Place) -> anyhow::Result<Launched> {
    Launched::read(place, &mut Environment::new(std::env::vars_os()))
}

/// The variables that the command inherits, and the credentials that are kept from it.
struct Inherited {
    environment: Environment,
    credentials: Option<OpenedCredentials>,
}

/// Takes the secrets of `routes` and of credentials out of `environment`, and adds what is given;
/// adds a warning of secrets that are left.
///
/// # Errors
/// A file cannot be read, or a variable is refused.
fn inherited(
    args: EnvironmentArgs,
    routes: Option<&RouteSet>,
    mut environment: Environment,
    warnings: &mut Vec<String>,
) -> anyhow::Result<Inherited> {
    let has_credentials = args.credentials.is_some() || args.secrets_from_env;
    let credentials =
        has_credentials.then(|| OpenedCredentials::open(args.credentials, &mut environment));
    let mut credentials = credentials.transpose()?;
    for name in routes.iter().flat_map(|routes| &routes.variables) {
        environment.discard(OsStr::new(name));
    }
    let given = variables::given(&args.env, args.env_file.as_deref(), &environment)?;
    // Those that are given are meant.
    for (name, _) in &given {
        environment.discard(name);
    }
    if let Some(credentials) = credentials.as_mut()
        && args.secrets_from_env
    {
        let mut urls = if args.clear_env {
            Environment::default()
        } else {
            environment.clone()
        };
        for (name, value) in given.iter() {
            urls.set(name, value);
        }
        credentials.take_secrets(&mut environment, &urls);
    }
    let mut environment = if args.clear_env {
        environment.cleared()
    } else {
        environment
    };
    let secrets = environment_secrets::listed(&environment);
    if !secrets.is_empty() {
        warnings.push(format!(
            "variables of the command look like secrets: {secrets}; --secrets-from-env gives it \
             placeholders, --clear-env keeps them out"
        ));
    }
    for (name, value) in given {
        environment.set(name, value);
    }
    if let Some(routes) = routes {
        let is_placeholder = |name: &str| {
            credentials
                .as_ref()
                .is_some_and(|credentials| credentials.has(name))
        };
        routes.set_client_variables(&mut environment, is_placeholder);
    }
    Ok(Inherited {
        environment,
        credentials,
    })
}

/// Refuses arguments that a gateway answers for.
fn refuse_beside_gateway(args: &Args) -> anyhow::Result<()> {
    let given = [
        (
            args.environment.credentials.is_some(),
            "--credentials",
            "the gateway gives the credentials",
        ),
        (
            args.environment.secrets_from_env,
            "--secrets-from-env",
            "the gateway gives the credentials",
        ),
        (
            args.observe.is_some(),
            "--observe",
            "the gateway gives the policy",
        ),
        (args.watch, "--watch", "the gateway gives the policy"),
        (
            !args.policy.flags().is_empty(),
            "--allow, --write, --read, --hide or --preset",
            "the gateway gives the policy",
        ),
        (
            args.network != NetworkMode::Proxy,
            "--network",
            "a gateway's sandbox always has the proxy",
        ),
    ];
    match given.into_iter().find(|(is_given, ..)| *is_given) {
        Some((_, flag, why)) => bail!("{flag} does not go with --sandbox-id: {why}"),
        None => Ok(()),
    }
}

/// Returns the files that a reload reads: those of the policy and of the credentials.
fn watched(policy: &PolicyFiles, secrets: &[(&str, PathBuf)]) -> anyhow::Result<Vec<PathBuf>> {
    let credentials = secrets
        .iter()
        .filter(|(what, _)| matches!(*what, "credentials file" | "file of a credential"));
    let policy = policy
        .paths()
        .filter(|(what, _)| *what != policy_file::PRESET);
    let files = policy
        .map(|(_, path)| path)
        .chain(credentials.map(|(_, path)| path.as_path()));
    files
        .map(std::path::absolute)
        .collect::<Result<_, _>>()
        .context("--watch")
}

/// Returns the command, and whether it wants a terminal of its own: the words given, else what the
/// launcher describes, else the variable, else a shell.
fn command(
    words: Vec<OsString>,
    described: Option<MainProcess>,
    variable: Option<OsString>,
    is_launched: bool,
) -> anyhow::Result<(Vec<OsString>, bool)> {
    if !words.is_empty() {
        return Ok((words, false));
    }
    if let Some(described) = described {
        return Ok((described.words(), described.tty));
    }
    let text = variable.map(|text| {
        text.into_string()
            .ok()
            .context("OPENSHELL_SANDBOX_COMMAND is not UTF-8")
    });
    let text = text.transpose()?.unwrap_or_default();
    let words: Vec<_> = text.split_whitespace().map(OsString::from).collect();
    match (words.is_empty(), is_launched) {
        (false, _) => Ok((words, false)),
        (true, true) => {
            let shell = if Path::new("/bin/bash").exists() {
                "/bin/bash"
            } else {
                "/bin/sh"
            };
            Ok(([shell, "-l"].map(OsString::from).to_vec(), true))
        }
        (true, false) => Ok((vec![OsString::from("/bin/bash")], false)),
    }
}

/// Returns eight random hex digits.
fn random_id() -> anyhow::Result<String> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("no random number")?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}

fn log_level(word: OsString) -> anyhow::Result<Level> {
    let known = word.to_str().and_then(|word| word.parse().ok());
    known.with_context(|| {
        format!(
            "log level {} is not one of error, warn, info, debug, trace",
            word.display()
        )
    })
}
