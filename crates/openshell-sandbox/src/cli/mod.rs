//! The command line.

pub(crate) mod values;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, CommandFactory, FromArgMatches, Parser, ValueEnum};
use openshell_proxy::credentials::leaks::detector::LeakMode;
use openshell_proxy::doors::dns::pool::NameAddresses;
use openshell_sources::policy::composed::{Allowed, Flags};
use openshell_telemetry::logging::{Form, Label};

pub(crate) use self::values::{Published, allowed, label, name, port};
use self::values::{bytes, duration, published};

/// Text after the options in `--help`. `-h` prints the same.
const AFTER: &str = "\
Subcommands, each with its own --help:
  init [FILE]                Write a policy with comments, from your answers or flags
  check FILE…                Report the errors and warnings of policies
  explain FILE --binary PATH --host HOST --port PORT
                             Print the proxy's decision on one connection
  diff BEFORE AFTER          Print what one policy permits more than another
  doctor [POLICY]            Check this host, and start a sandbox on trial
  presets [make NAME…]       List presets, or make those of package registries
  ps                         List your running sandboxes
  approvals [NAME]           Answer what a running sandbox asks (--ask)
  exec NAME -- COMMAND       Run another command in a running sandbox
  cp SRC DEST                Copy files into a running sandbox, or out of it
  ca show|rotate DIR         Show or replace a kept certificate authority
  gateway check              Try the gateway that the environment names
  copy-self DEST             Copy this program to where containers share it

Exit codes:
  the command's own; 128+N if signal N ended it; 124 if the time limit did
  126 if the command is not executable; 127 if it does not exist
  1 for an error before the command ran

Examples:
  openshell-sandbox --allow example.com -- curl https://example.com
  openshell-sandbox --preset claude-code -- claude
  openshell-sandbox --policy-data data/examples/first.yaml -- sh -c 'id; touch /etc/x'";

/// Runs one command that you do not trust. A policy says which files, hosts and requests it gets;
/// the command cannot do anything else.
#[derive(Debug, Parser)]
#[command(name = "openshell-sandbox", version, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Args {
    /// The policy (YAML): what the command may do [or OPENSHELL_POLICY_DATA]
    #[arg(
        short,
        long,
        visible_alias = "policy",
        value_name = "FILE",
        help_heading = "Policy"
    )]
    pub(crate) policy_data: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Rules (Rego) instead of the built-in ones [or OPENSHELL_POLICY_RULES]
    ///
    /// They decide over the data of --policy-data, which they need.
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Policy",
        hide_short_help = true
    )]
    pub(crate) policy_rules: Option<PathBuf>,

    /// Read the policy and the credentials again when their files change, as SIGHUP does
    #[arg(long, help_heading = "Policy", hide_short_help = true)]
    pub(crate) watch: bool,

    /// Refuse no connection that a policy could permit, and write the policy that the run needs
    ///
    /// Files stay confined, unless --observe-files shows them.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "proposals",
        help_heading = "Policy"
    )]
    pub(crate) observe: Option<PathBuf>,

    /// With --observe, also let the command read what its user may read, and write down what it
    /// read
    ///
    /// Keys and the profiles of browsers stay hidden. What the command writes to the home is lost
    /// when the run ends.
    #[arg(
        long,
        requires = "observe",
        help_heading = "Policy",
        hide_short_help = true
    )]
    pub(crate) observe_files: bool,

    /// Keep the entries of an earlier --observe in the file instead of replacing them
    #[arg(
        long,
        requires = "observe",
        help_heading = "Policy",
        hide_short_help = true
    )]
    pub(crate) observe_merge: bool,

    /// Write a policy fragment that would permit the connections and requests that were refused
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Policy",
        hide_short_help = true
    )]
    pub(crate) proposals: Option<PathBuf>,

    /// Working directory of the command, which it may write; it must exist
    #[arg(short, long, value_name = "DIR", help_heading = "Files")]
    pub(crate) workdir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) carve_outs: CarveOutArgs,

    /// Directory of the sandbox's own files during a run
    ///
    /// Default: /run/openshell, else openshell in $XDG_RUNTIME_DIR, else /tmp or /dev/shm.
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Files",
        hide_short_help = true
    )]
    pub(crate) run_dir: Option<PathBuf>,

    /// How the network of the command is confined
    #[arg(
        long,
        value_name = "MODE",
        default_value = "proxy",
        help_heading = "Network",
        hide_short_help = true
    )]
    pub(crate) network: NetworkMode,

    /// Make a server of the command reachable from this host; may be repeated
    ///
    /// The first port is the one outside, at 127.0.0.1 unless an address is named; 0 takes any free
    /// port. The second port is the one of the server, at 127.0.0.1 inside; without it, both are
    /// the same.
    #[arg(long, value_name = "[ADDR:]PORT[:PORT]", value_parser = published, help_heading = "Network")]
    pub(crate) publish: Vec<Published>,

    #[command(flatten)]
    pub(crate) approvals: ApprovalArgs,

    /// Trust these certificates (PEM) of servers too, beside Mozilla's and the system's
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Network",
        hide_short_help = true
    )]
    pub(crate) upstream_ca_file: Option<PathBuf>,

    /// Take the certificate authority from this folder, which many sandboxes can share
    ///
    /// The folder holds ca.pem, or a mounted tls.key and tls.crt; ca.pem is made if it is missing.
    /// By default each run has an authority of its own, in memory.
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Network",
        hide_short_help = true
    )]
    pub(crate) ca_dir: Option<PathBuf>,

    /// Directory inside the sandbox for the CA files that programs trust
    ///
    /// Default: /etc/openshell-tls, else in the run directory.
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Network",
        hide_short_help = true
    )]
    pub(crate) tls_dir: Option<PathBuf>,

    /// Addresses that names have inside: their `real` ones, or some of a range
    ///
    /// Some programs refuse the default, which is of 198.18.0.0/15.
    #[arg(
        long,
        value_name = "real|CIDR",
        help_heading = "Network",
        hide_short_help = true
    )]
    pub(crate) name_addresses: Option<NameAddresses>,

    /// Port of the proxy on the sandbox's link
    #[arg(long, value_name = "PORT", default_value_t = 3128, value_parser = port, help_heading = "Network", hide_short_help = true)]
    pub(crate) proxy_port: u16,

    #[command(flatten)]
    pub(crate) environment: EnvironmentArgs,

    /// What happens to a request that holds a secret which is not for its host
    ///
    /// `report` logs each kind of secret once for each host, `block` refuses the request, `off`
    /// does not look.
    #[arg(
        long,
        value_name = "ACT",
        default_value = "report",
        help_heading = "Secrets",
        hide_short_help = true
    )]
    pub(crate) leaks: Leaks,

    /// Routes (YAML) to the models that the command reaches at `inference.local` [or
    /// OPENSHELL_INFERENCE_ROUTES]
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Models",
        hide_short_help = true
    )]
    pub(crate) inference_routes: Option<PathBuf>,

    /// Name of this sandbox, for `exec` and `cp`, and in its log lines
    ///
    /// It must be unique among your running sandboxes. Default: eight random hexadecimal digits.
    #[arg(long, value_name = "NAME", value_parser = name, help_heading = "Access", hide_short_help = true)]
    pub(crate) name: Option<String>,

    /// Keep the sandbox after its command has ended, for `exec` and SSH, until a signal ends it
    #[arg(long, help_heading = "Access", hide_short_help = true)]
    pub(crate) keep: bool,

    /// Give the command what you type, even if its output goes elsewhere
    ///
    /// By default it gets what you type if both input and output are the terminal.
    #[arg(
        short,
        long,
        conflicts_with = "no_interactive",
        help_heading = "Access",
        hide_short_help = true
    )]
    pub(crate) interactive: bool,

    /// Give the command nothing of what you type: if standard input is a terminal, the command
    /// reads an empty one
    #[arg(long, help_heading = "Access", hide_short_help = true)]
    pub(crate) no_interactive: bool,

    /// Unix socket of the SSH server, for this user and root [or OPENSHELL_SSH_SOCKET_PATH]
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Access",
        hide_short_help = true
    )]
    pub(crate) ssh_socket_path: Option<PathBuf>,

    /// Address of the SSH server, for clients that have the handshake secret [or
    /// OPENSHELL_SSH_LISTEN_ADDR]
    #[arg(
        long,
        value_name = "ADDR:PORT",
        help_heading = "Access",
        hide_short_help = true
    )]
    pub(crate) ssh_listen_addr: Option<SocketAddr>,

    /// Secret that clients of the SSH server have [or OPENSHELL_SSH_HANDSHAKE_SECRET]
    ///
    /// Prefer the variable: `ps` shows flags to every user.
    #[arg(
        long,
        value_name = "SECRET",
        help_heading = "Access",
        hide_short_help = true
    )]
    pub(crate) ssh_handshake_secret: Option<String>,

    /// Seconds by which the clocks of SSH clients may differ [default: 300, or
    /// OPENSHELL_SSH_HANDSHAKE_SKEW_SECS]
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Access",
        hide_short_help = true
    )]
    pub(crate) ssh_handshake_skew_secs: Option<u32>,

    /// Id of this sandbox at its gateway [or OPENSHELL_SANDBOX_ID]
    ///
    /// The gateway then gives the policy, the credentials and the routes.
    #[arg(
        long,
        value_name = "ID",
        help_heading = "Gateway",
        hide_short_help = true
    )]
    pub(crate) sandbox_id: Option<String>,

    /// Name of this sandbox at its gateway [default: the id, or OPENSHELL_SANDBOX]
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Gateway",
        hide_short_help = true
    )]
    pub(crate) sandbox: Option<String>,

    /// Address of the gateway: http://HOST:PORT, or https://HOST:PORT for mutual TLS [or
    /// OPENSHELL_ENDPOINT]
    #[arg(
        long,
        value_name = "URL",
        help_heading = "Gateway",
        hide_short_help = true
    )]
    pub(crate) openshell_endpoint: Option<String>,

    /// Level of the log lines on standard error: error, warn, info, debug, trace [default: warn, or
    /// OPENSHELL_LOG_LEVEL]
    #[arg(
        long,
        value_name = "LEVEL",
        help_heading = "Logs",
        hide_short_help = true
    )]
    pub(crate) log_level: Option<String>,

    /// Where log lines go
    ///
    /// With `stderr`, standard error gets them from level `info` on.
    #[arg(
        long,
        value_name = "PLACE",
        default_value = "both",
        help_heading = "Logs",
        hide_short_help = true
    )]
    pub(crate) log_to: LogPlace,

    /// Form of the log lines
    #[arg(
        long,
        value_name = "FORM",
        default_value = "text",
        help_heading = "Logs",
        hide_short_help = true
    )]
    pub(crate) log_format: LogFormat,

    /// Directory of the log files
    ///
    /// Default: /var/log, else openshell in $XDG_STATE_HOME or ~/.local/state.
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Logs",
        hide_short_help = true
    )]
    pub(crate) log_dir: Option<PathBuf>,

    /// Log each refused access to a file, with the program that tried
    ///
    /// Each call that opens a file then takes some microseconds longer.
    #[arg(long, help_heading = "Logs", hide_short_help = true)]
    pub(crate) log_files: bool,

    /// Label of the run in every log line and record, such as session=7f3a; may be repeated [also
    /// OPENSHELL_LABELS: KEY=VALUE,…]
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, help_heading = "Logs", hide_short_help = true)]
    pub(crate) label: Vec<Label>,

    /// Print how long each stage of the start took, once the command runs
    #[arg(long, help_heading = "Logs", hide_short_help = true)]
    pub(crate) timings: bool,

    /// Port of /healthz, /readyz and /metrics, at every address of the host or container
    #[arg(long, value_name = "PORT", value_parser = port, help_heading = "Logs", hide_short_help = true)]
    pub(crate) health_port: Option<u16>,

    /// Unix socket of the same, for this user and root
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "Logs",
        hide_short_help = true
    )]
    pub(crate) health_socket: Option<PathBuf>,

    /// Time limit of the command: seconds, or 90s, 5m, 1h30m; 0 means no limit
    #[arg(short, long, value_name = "TIME", default_value = "0", value_parser = duration, help_heading = "Limits")]
    pub(crate) timeout: Duration,

    /// Time between asking the command to end and killing it
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration, help_heading = "Limits", hide_short_help = true)]
    pub(crate) grace: Duration,

    /// Time between a signal that ends the sandbox and asking the command to end
    ///
    /// In this time the sandbox is not ready (/readyz), and does not let new clients in.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration, help_heading = "Limits", hide_short_help = true)]
    pub(crate) drain: Duration,

    /// Size of the sandbox's own /tmp and /dev/shm, each, such as 512M
    ///
    /// Default: 1G, or half of the memory limit.
    #[arg(long, value_name = "BYTES", value_parser = bytes, help_heading = "Limits", hide_short_help = true)]
    pub(crate) tmp_size: Option<u64>,

    /// End the sandbox at once when the process that started it ends
    ///
    /// With the PID of that process, its end before this start counts too.
    #[arg(long, value_name = "PID", num_args = 0..=1, require_equals = true, help_heading = "Limits", hide_short_help = true)]
    pub(crate) die_with_parent: Option<Option<i32>>,

    /// The command and its arguments [default: OPENSHELL_SANDBOX_COMMAND, else /bin/bash]
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Whether and how a person is asked about what is refused.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(group = ArgGroup::new("asking").multiple(true).args(["ask", "policy_local"]))]
pub(crate) struct ApprovalArgs {
    /// Ask about what the policy refuses; it waits so long (default: 120) while somebody looks
    ///
    /// `openshell-sandbox approvals` shows the questions in another terminal. While nobody looks, a
    /// request waits 10 seconds.
    #[arg(
        long,
        value_name = "TIME",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "120",
        value_parser = openshell_policy::approvals::hold,
        help_heading = "Approvals"
    )]
    pub(crate) ask: Option<u16>,

    /// The most new questions in a minute
    #[arg(
        long,
        value_name = "NUMBER",
        requires = "ask",
        value_parser = clap::value_parser!(u8).range(1..=60),
        help_heading = "Approvals",
        hide_short_help = true
    )]
    pub(crate) ask_rate: Option<u8>,

    /// Start a program outside of the sandbox for each question, which may answer it
    ///
    /// It gets the question as JSON on standard input, and prints one object such as {"decision":
    /// "once"}: once, run, deny, deny_run or pass. What it prints elsewhere goes to the log at debug.
    /// Words are split as a shell does, and nothing is expanded.
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "asking",
        help_heading = "Approvals",
        hide_short_help = true
    )]
    pub(crate) ask_command: Option<String>,

    /// Answer here too what is asked, beside the gateway
    ///
    /// Without it only the gateway decides, and `openshell-sandbox approvals` only shows. No answer
    /// saves, and under a policy for all sandboxes none counts.
    #[arg(
        long,
        requires = "ask",
        help_heading = "Approvals",
        hide_short_help = true
    )]
    pub(crate) ask_local: bool,

    /// Let the command read its policy, and propose lines of it, at `http://policy.local`
    ///
    /// You answer what it proposes like what --ask asks. Refusals then say what to do, and where a text
    /// describes it for agents.
    #[arg(long, help_heading = "Approvals")]
    pub(crate) policy_local: bool,

    /// Write the policy that the run comes to: the flags and presets, and what you saved
    ///
    /// What you permitted for the run stands in it as comments. The file is written at each answer that
    /// saves, and at the end; it has to be new, or written by an earlier run with --save.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "observe",
        help_heading = "Approvals",
        hide_short_help = true
    )]
    pub(crate) save: Option<PathBuf>,
}

/// Grants of a command line, alone or beside a policy file; without one the working directory may
/// be written.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PolicyArgs {
    /// Let every program connect to a host, at port 443 unless you name another; may be repeated
    ///
    /// With `=read-only`, `=read-write` or `=full` the proxy judges each request; `=tcp` is for
    /// bytes that are not HTTP. A host inside your network also needs its address or range:
    /// `--allow db.example.com:5432@10.0.0.5=tcp`.
    #[arg(long, value_name = "HOST[:PORT][@CIDR][=ACCESS]", value_parser = allowed, help_heading = "Policy")]
    pub(crate) allow: Vec<Allowed>,

    /// Add a policy for a usual need, such as claude-code, codex or github; may be repeated
    ///
    /// There are aider, claude-code, codex, copilot, gemini, opencode, git-read, github and models.
    /// `openshell-sandbox presets` lists them and yours, in ~/.config/openshell/presets or
    /// /etc/openshell/presets; `presets make` makes apt, go, java, node, python and rust.
    #[arg(
        long,
        value_name = "NAME",
        num_args = 1,
        value_delimiter = ',',
        help_heading = "Policy"
    )]
    pub(crate) preset: Vec<String>,

    /// Print the policy that the command line means, as YAML, and run nothing
    #[arg(long, help_heading = "Policy", hide_short_help = true)]
    pub(crate) print_policy: bool,

    /// Let the command read and write a folder; may be repeated
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub(crate) write: Vec<PathBuf>,

    /// Let the command read and execute a file or folder; may be repeated
    ///
    /// Below a folder that it may write, the command cannot write this path.
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub(crate) read: Vec<PathBuf>,

    /// Hide a file or folder, or what matches a pattern such as `**/.env`; may be repeated
    #[arg(long, value_name = "PATH", help_heading = "Files")]
    pub(crate) hide: Vec<PathBuf>,
}

impl PolicyArgs {
    /// What they grant and hide.
    pub(crate) fn flags(&self) -> Flags<'_> {
        Flags {
            allow: &self.allow,
            write: &self.write,
            read: &self.read,
            hide: &self.hide,
            preset: &self.preset,
        }
    }
}

/// Options of the command's environment.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct EnvironmentArgs {
    /// Credentials (YAML) that the proxy puts into requests; the command sees placeholders
    #[arg(long, value_name = "FILE", help_heading = "Secrets")]
    pub(crate) credentials: Option<PathBuf>,

    /// Replace each variable that looks like a secret by a placeholder
    ///
    /// The proxy sends the secret only to hosts of its issuer. If the issuer is unknown, it refuses
    /// the placeholder everywhere.
    #[arg(long, help_heading = "Secrets")]
    pub(crate) secrets_from_env: bool,

    /// Set a variable of the command, or pass yours on; may be repeated
    ///
    /// Passing on matters only with --clear-env.
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Environment")]
    pub(crate) env: Vec<OsString>,

    /// Set the variables of a file: one NAME=VALUE or NAME a line, `#` begins a comment
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Environment",
        hide_short_help = true
    )]
    pub(crate) env_file: Option<PathBuf>,

    /// Give the command only LANG, LC_*, TERM, TZ, and what --env and --env-file name
    ///
    /// By default it gets your environment.
    #[arg(long, help_heading = "Environment", hide_short_help = true)]
    pub(crate) clear_env: bool,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people and grep
    Text,
    /// A JSON object each: OCSF records, and diagnostics
    Json,
}

impl From<LogFormat> for Form {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// Handling of secrets in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Leaks {
    Report,
    Block,
    Off,
}

impl From<Leaks> for LeakMode {
    fn from(leaks: Leaks) -> Self {
        match leaks {
            Leaks::Report => Self::Report,
            Leaks::Block => Self::Block,
            Leaks::Off => Self::Off,
        }
    }
}

/// Options of the paths that are taken out of granted folders.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CarveOutArgs {
    /// Access to the configuration of git work trees, which can name programs to run
    ///
    /// Hooks are read-only with both; --no-keep-settings frees those of repositories in subfolders.
    #[arg(
        long,
        value_name = "ACCESS",
        default_value = "ro",
        help_heading = "Files",
        hide_short_help = true
    )]
    pub(crate) git_config: GitConfig,

    /// Let the command write the settings of the project that editors, shells and agents execute
    ///
    /// Such settings are .vscode, .envrc and .mcp.json.
    #[arg(long, help_heading = "Files", hide_short_help = true)]
    pub(crate) no_keep_settings: bool,

    /// Put no empty file in place of a `read_only` or `hidden` path that does not exist
    ///
    /// The command could then make the path; the start names each.
    #[arg(long, help_heading = "Files", hide_short_help = true)]
    pub(crate) no_placeholders: bool,

    /// What happens when such a path is replaced outside while the sandbox runs, so that nothing
    /// keeps it from the command any more
    ///
    /// Default: `end` for hidden paths, `warn` for the others.
    #[arg(
        long,
        value_name = "ACT",
        help_heading = "Files",
        hide_short_help = true
    )]
    pub(crate) carve_out_lost: Option<CarveOutLost>,
}

/// What happens when a carve-out is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CarveOutLost {
    /// The sandbox ends
    End,
    /// A log line says it
    Warn,
}

/// Access to the configuration of git work trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GitConfig {
    /// Read-only: `git config` and `git remote add` fail, `git push -u` and the like in part
    Ro,
    /// Writable
    Rw,
}

/// Where log lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogPlace {
    /// Standard error, as its collector keeps them
    Stderr,
    /// The log file; messages for the operator still go to standard error
    File,
    /// Both
    Both,
}

/// Modes of network confinement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkMode {
    /// Only through the proxy, under the policy
    Proxy,
    /// No network
    Block,
    /// The host's network; files, system calls and identity stay confined
    Allow,
}

impl NetworkMode {
    /// Returns true if the workload has a network namespace of its own.
    pub(crate) fn is_isolated(self) -> bool {
        self != Self::Allow
    }
}

/// Parses the command line of a run that a subcommand makes.
///
/// # Errors
/// `words` are no such command line.
pub(crate) fn run_args<'w>(words: impl IntoIterator<Item = &'w str>) -> Result<Args, clap::Error> {
    parse_as(words.into_iter().map(OsString::from))
}

/// Parses a command line.
///
/// # Errors
/// It is none, or asks for help or the version.
pub(crate) fn parse_as<A: CommandFactory + FromArgMatches>(
    words: impl Iterator<Item = OsString>,
) -> Result<A, clap::Error> {
    A::command()
        .try_get_matches_from(words)
        .and_then(|matches| A::from_arg_matches(&matches))
}
