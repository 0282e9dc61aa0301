//! The configuration of a run, from its arguments and the environment. Only this module reads the
//! environment.

pub(crate) mod approvals;
mod collector;
mod command;
mod files;
mod inherited;
mod log;
mod network;
pub(crate) mod origin;
mod presets;
mod ssh_doors;
mod values;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use openshell_access::control::console::Keyboard;
use openshell_policy::process::RunAs;
use openshell_sources::gateway::launcher::{self, Launched, MainProcess, Place};
use openshell_sources::gateway::start::Options;
use openshell_sources::origin::Secrets;
use openshell_sources::secrets::credential_file::OpenedCredentials;
use openshell_sources::secrets::route_file::{self, RouteSet};
use openshell_supervisor::command::environment::Environment;
use openshell_telemetry::export::Collector;
use tracing::Level;

use crate::activation::Origin;
use crate::ca_dir;
use crate::cli::{Args, EnvironmentArgs, NetworkMode};
use crate::config::approvals::ApprovalOptions;
pub(crate) use command::{CommandOptions, CommandTerminal};
pub(crate) use files::{FileOptions, InputFiles, ReportOptions, TlsOptions};
use inherited::{Inherited, inherited};
pub(crate) use log::LogOptions;
pub(crate) use network::NetworkOptions;
pub(crate) use presets::{SYSTEM_PRESETS, own_presets};
pub(crate) use ssh_doors::{SshDoors, SshOverTcp};
use values::{absolute, path_of, variable_of};

/// Everything that a run depends on.
#[derive(Debug)]
pub(crate) struct Config {
    /// Name of this sandbox in log lines.
    pub(crate) sandbox: String,
    /// True if the user chose the name.
    pub(crate) is_named: bool,
    /// True if a gateway's launcher started the supervisor.
    pub(crate) is_launched: bool,
    /// User and group if the policy names none; `None` means the caller's.
    pub(crate) run_as: Option<RunAs>,
    /// User and group ids of the user who called sudo.
    pub(crate) sudo: Option<(u32, u32)>,
    pub(crate) inputs: InputFiles,
    /// The start takes them.
    pub(crate) secrets: Secrets,
    pub(crate) command: CommandOptions,
    pub(crate) files: FileOptions,
    pub(crate) network: NetworkOptions,
    /// How a person is asked about what is refused; `None` if nobody is.
    pub(crate) approvals: Option<ApprovalOptions>,
    pub(crate) tls: TlsOptions,
    pub(crate) log: LogOptions,
    pub(crate) reports: ReportOptions,
    /// Doors of the SSH server.
    pub(crate) ssh: SshDoors,
    pub(crate) health: HealthOptions,
    /// Problems found in the environment, for the log.
    pub(crate) warnings: Vec<String>,
}

/// Where health and metrics are served and exported.
#[derive(Debug)]
pub(crate) struct HealthOptions {
    pub(crate) port: Option<u16>,
    pub(crate) socket: Option<PathBuf>,
    /// Where metrics are exported to. The start takes it.
    pub(crate) collector: Option<Collector>,
}

/// Returns the names of the variables of this process that are settings of a run.
pub(crate) fn own_settings() -> Vec<OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names
        .filter(|name| name.as_encoded_bytes().starts_with(b"OPENSHELL_"))
        .collect()
}

impl Config {
    /// Returns true if the command is part of the job control of the caller's terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        self.keyboard() != Keyboard::None
    }

    /// Returns true if the command may propose lines of policy to a person.
    pub(crate) fn takes_proposals(&self) -> bool {
        let options = self.approvals.as_ref();
        options.is_some_and(|options| options.takes_proposals)
    }

    /// Returns which part of the typing on the caller's terminal the command gets.
    pub(crate) fn keyboard(&self) -> Keyboard {
        match self.command.terminal {
            CommandTerminal::Callers(keyboard) => keyboard,
            CommandTerminal::Own => Keyboard::None,
        }
    }

    /// Reads the environment and merges it with `args`. A flag wins over its variable.
    ///
    /// # Errors
    /// Fails if a policy is missing, a value is invalid, or an input file cannot be used.
    pub(crate) fn read(mut args: Args, origin: &Origin) -> anyhow::Result<Self> {
        let mut environment = Environment::new(std::env::vars_os());
        let place = origin.place();
        if place.is_some() {
            refuse_beside_gateway(&args)?;
        }
        let mut warnings = Vec::new();
        let mut log = LogOptions::read(&mut args, &mut environment, place.is_some())?;
        let ssh = SshDoors::read(&mut args, &mut environment, &mut warnings)?;
        let launchers = launcher::secret_files(&environment);
        let mut gateway = OfLauncher::read(place, &mut environment)?;
        let routes = args.inference_routes.take();
        let routes = routes.or_else(|| path_of(&environment, "OPENSHELL_INFERENCE_ROUTES"));
        let policy = origin.files();
        let approvals = approvals::read(&args, origin, &environment)?;
        let network = NetworkOptions::read(&mut args, routes.is_some())?;
        let words = command::words_of(
            std::mem::take(&mut args.command),
            gateway.main_process.take(),
            variable_of(&environment, "OPENSHELL_SANDBOX_COMMAND"),
            place.is_some(),
        )?;
        let terminal = CommandTerminal::read(&args, words.wants_terminal)?;
        let files = FileOptions::read(&mut args, &environment)?;
        let tls = TlsOptions::read(&mut args)?;
        let given = Given::read(
            std::mem::take(&mut args.environment),
            routes,
            environment,
            &mut warnings,
        )?;
        let secrets = given.secret_files(launchers, tls.ca_dir.as_deref());
        let inputs = InputFiles::new(policy.clone(), secrets, args.watch)?;
        log.push_level = gateway.push_level;
        warnings.append(&mut gateway.warnings);
        let mut environment = with_variables(&given.environment, gateway.variables);
        let is_named = args.name.is_some();
        let sandbox = args.name.take();
        let sandbox = sandbox.or_else(|| place.map(|place| place.id.clone()));
        let sandbox = sandbox.map_or_else(random_id, Ok)?;
        let collector = collector::collector(&mut environment, &sandbox, &mut warnings)?;
        Ok(Self {
            inputs,
            secrets: Secrets {
                credentials: given.credentials,
                routes: given.routes,
                gateway: gateway.options,
                lines: None,
            },
            run_as: gateway.run_as,
            sudo: policy.folders.sudo,
            warnings,
            network,
            approvals,
            files,
            tls,
            log,
            reports: ReportOptions::read(&mut args),
            ssh,
            health: HealthOptions {
                port: args.health_port,
                socket: absolute(args.health_socket.take()).context("--health-socket")?,
                collector,
            },
            is_launched: place.is_some(),
            is_named,
            sandbox,
            command: CommandOptions::new(&args, words, terminal, &policy.folders, environment),
        })
    }
}

/// The settings of a gateway's launcher, if it started the supervisor.
#[derive(Default)]
struct OfLauncher {
    options: Option<Options>,
    run_as: Option<RunAs>,
    push_level: Option<Level>,
    main_process: Option<MainProcess>,
    variables: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl OfLauncher {
    fn read(place: Option<&Place>, environment: &mut Environment) -> anyhow::Result<Self> {
        let Some(place) = place else {
            return Ok(Self::default());
        };
        let launched = Launched::read(place.clone(), environment)?;
        Ok(Self {
            options: Some(launched.options),
            run_as: Some(launched.run_as),
            push_level: Some(launched.push_level),
            main_process: launched.main_process,
            variables: launched.variables,
            warnings: launched.warnings,
        })
    }
}

/// The secrets that the caller gives, and the environment without them.
struct Given {
    credentials: Option<OpenedCredentials>,
    credentials_file: Option<PathBuf>,
    routes: Option<RouteSet>,
    routes_file: Option<PathBuf>,
    environment: Environment,
}

impl Given {
    /// Reads the routes at `routes_file`, and the credentials that `args` name.
    ///
    /// # Errors
    /// Fails if a file cannot be used, or a variable is refused.
    fn read(
        args: EnvironmentArgs,
        routes_file: Option<PathBuf>,
        environment: Environment,
        warnings: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let routes = routes_file
            .as_deref()
            .map(|path| route_file::read(path, &environment))
            .transpose()?;
        let credentials_file = args.credentials.clone();
        let Inherited {
            environment,
            credentials,
        } = inherited(args, routes.as_ref(), environment, warnings)?;
        Ok(Self {
            credentials,
            credentials_file,
            routes,
            routes_file,
            environment,
        })
    }

    /// Returns the files with secrets, each with its kind: these, the files of a gateway's
    /// `launchers`, and the keys in `ca_dir`.
    fn secret_files(
        &self,
        launchers: impl IntoIterator<Item = (&'static str, PathBuf)>,
        ca_dir: Option<&Path>,
    ) -> Vec<(&'static str, PathBuf)> {
        let mut files = Vec::new();
        if let Some(path) = &self.credentials_file {
            files.push(("credentials file", path.clone()));
        }
        if let Some(path) = &self.routes_file {
            files.push(("inference routes file", path.clone()));
        }
        for path in self.credentials.iter().flat_map(OpenedCredentials::files) {
            files.push(("file of a credential", path.to_owned()));
        }
        for path in self.routes.iter().flat_map(|routes| &routes.files) {
            files.push(("file of a model's key", path.clone()));
        }
        files.extend(launchers);
        for path in ca_dir.into_iter().flat_map(ca_dir::key_files) {
            files.push(("key of --ca-dir", path));
        }
        files
    }
}

/// Returns `environment` with the `variables` of a gateway's launcher.
fn with_variables(environment: &Environment, variables: Vec<(String, String)>) -> Environment {
    let own = environment
        .iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    let variables = variables
        .into_iter()
        .map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Environment::new(own.chain(variables))
}

/// Returns true if this looks like the inside of a sandbox.
pub(crate) fn is_within_another() -> bool {
    #[expect(
        clippy::disallowed_methods,
        reason = "it says why nothing could be set up to read the rest"
    )]
    std::env::var_os("OPENSHELL_SANDBOX").is_some_and(|value| value == "1")
}

/// Returns true if nothing asks for messages without colours (<https://no-color.org>).
pub(crate) fn are_colours_wanted() -> bool {
    let is_set = |name| variable_of_client(name).is_some_and(|value| !value.is_empty());
    let is_dumb = variable_of_client("TERM").is_some_and(|term| term == "dumb");
    !is_set("NO_COLOR") && !is_dumb
}

/// Returns a variable for a client of running sandboxes, which has no other configuration.
pub(crate) fn variable_of_client(name: &str) -> Option<OsString> {
    #[expect(clippy::disallowed_methods, reason = "this is its reader")]
    std::env::var_os(name)
}

/// Returns all variables of the caller, for programs that the caller names.
pub(crate) fn variables_of_caller() -> Vec<(OsString, OsString)> {
    std::env::vars_os().collect()
}

/// Returns the settings of the launcher that started the sandbox at `place`.
///
/// # Errors
/// Fails if a variable is invalid.
pub(crate) fn launched(place: Place) -> anyhow::Result<Launched> {
    Launched::read(place, &mut Environment::new(std::env::vars_os()))
}

/// Refuses arguments for things that the gateway decides.
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
            args.approvals.save.is_some(),
            "--save",
            "the gateway keeps the policy",
        ),
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

/// Returns eight random hex digits.
fn random_id() -> anyhow::Result<String> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("cannot get a random number from the kernel")?;
    Ok(format!("{:08x}", u32::from_ne_bytes(bytes)))
}
