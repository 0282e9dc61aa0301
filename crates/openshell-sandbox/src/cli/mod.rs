//! The command line.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches, Parser, ValueEnum};
use openshell_policy::network::host::HostPattern;
use openshell_proxy::credentials::leaks::detector::LeakMode;
use openshell_proxy::doors::dns::pool::NameAddresses;
use openshell_sources::policy::composed::{Access, Allowed, Flags};
use openshell_telemetry::logging::{Form, Label};

/// Runs one untrusted command under a policy: confined files, system calls, identity and network,
/// every connection authorized by its calling program.
#[derive(Debug, Parser)]
#[command(name = "openshell-sandbox", version, max_term_width = 100)]
#[command(after_help = "\
Also: openshell-sandbox check FILE…, openshell-sandbox explain FILE --binary PATH --host HOST --port PORT,
openshell-sandbox doctor [POLICY], openshell-sandbox exec NAME -- COMMAND, openshell-sandbox ps,
openshell-sandbox cp SRC DEST, openshell-sandbox diff BEFORE AFTER, openshell-sandbox presets,
openshell-sandbox gateway check, openshell-sandbox ca show DIR, openshell-sandbox copy-self DEST (each has --help).

Exit codes: the command's own; 128+N if signal N ended it; 124 time-out; 126 not executable; 127 not found;
1 for any error before it ran.

Example: openshell-sandbox --policy-data data/examples/first.yaml -- sh -c 'id; touch /etc/x'")]
pub(crate) struct Args {
    /// Policy data (YAML): the permissions of the command [or OPENSHELL_POLICY_DATA]
    #[arg(short, long, visible_alias = "policy", value_name = "FILE")]
    pub(crate) policy_data: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,

    /// Read the policy and the credentials again when their files change, as for SIGHUP
    #[arg(long)]
    pub(crate) watch: bool,

    /// Policy rules (Rego) instead of the built-in ones [or OPENSHELL_POLICY_RULES]
    #[arg(long, value_name = "FILE")]
    pub(crate) policy_rules: Option<PathBuf>,

    /// Confinement of the network
    #[arg(long, value_name = "MODE", default_value = "proxy")]
    pub(crate) network: NetworkMode,

    /// Publish a server inside: an address (127.0.0.1) and port outside, 0 for any, and its port at
    /// 127.0.0.1 inside (the same); may be repeated
    #[arg(long, value_name = "[ADDR:]PORT[:PORT]", value_parser = published)]
    pub(crate) publish: Vec<Published>,

    /// Working directory of the command, an existing folder; also added to its writable paths
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) carve_outs: CarveOutArgs,

    /// Most bytes in each of the sandbox's own /tmp and /dev/shm, such as 512M [default: 1G, or
    /// half of the memory limit]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) tmp_size: Option<u64>,

    /// Time limit of the command: seconds, or 90s, 5m, 1h30m; 0 means no limit
    #[arg(short, long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pub(crate) timeout: Duration,

    /// Time between asking the command to end and killing it
    #[arg(long, value_name = "TIME", default_value = "10", value_parser = duration)]
    pub(crate) grace: Duration,

    /// Time between a signal to end and asking the command to: the sandbox is not ready any more
    /// (--health-port), and lets no more clients in from outside
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration)]
    pub(crate) drain: Duration,

    /// Give the command what you type from the start, also where its output goes elsewhere
    /// [default: if input and output are the terminal]
    #[arg(short, long, conflicts_with = "no_interactive")]
    pub(crate) interactive: bool,

    /// Give the command nothing of what you type: its standard input is empty if it is a terminal
    #[arg(long)]
    pub(crate) no_interactive: bool,

    #[command(flatten)]
    pub(crate) environment: EnvironmentArgs,

    /// Write a policy fragment that would permit the refused connections and requests
    #[arg(long, value_name = "FILE")]
    pub(crate) proposals: Option<PathBuf>,

    /// Refuse no connection that a policy could permit, and write the policy that the run needs;
    /// files stay confined, unless --observe-files shows them
    #[arg(long, value_name = "FILE", conflicts_with = "proposals")]
    pub(crate) observe: Option<PathBuf>,

    /// With --observe, also let the command read what its user may read, apart from keys and
    /// browsers' profiles, and write down what it read; what it writes to the home ends with the
    /// run
    #[arg(long, requires = "observe")]
    pub(crate) observe_files: bool,

    /// Keep the entries of an earlier --observe in the file instead of replacing it
    #[arg(long, requires = "observe")]
    pub(crate) observe_merge: bool,

    /// What happens to requests that hold a secret which is not for their host: report it once for
    /// each kind of secret and host, block the request, or off
    #[arg(long, value_name = "ACT", default_value = "report")]
    pub(crate) leaks: Leaks,

    /// Routes to the models at `inference.local` (YAML) [or OPENSHELL_INFERENCE_ROUTES]
    #[arg(long, value_name = "FILE")]
    pub(crate) inference_routes: Option<PathBuf>,

    /// Id of this sandbox at its gateway, which then gives policy, credentials and routes [or
    /// OPENSHELL_SANDBOX_ID]
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox_id: Option<String>,

    /// Name of this sandbox at its gateway [default: the id, or OPENSHELL_SANDBOX]
    #[arg(long, value_name = "NAME")]
    pub(crate) sandbox: Option<String>,

    /// Address of the gateway: http://HOST:PORT, or https://HOST:PORT for mutual TLS [or
    /// OPENSHELL_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) openshell_endpoint: Option<String>,

    /// Level of log lines on standard error: error, warn, info, debug, trace [default: warn, or
    /// OPENSHELL_LOG_LEVEL]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,

    /// Log each refused access to a file, with its program; every call that opens a file then takes
    /// some microseconds longer
    #[arg(long)]
    pub(crate) log_files: bool,

    /// Print how long each stage of the start took, once the command runs
    #[arg(long)]
    pub(crate) timings: bool,

    /// Form of log lines
    #[arg(long, value_name = "FORM", default_value = "text")]
    pub(crate) log_format: LogFormat,

    /// Where log lines go; to standard error alone they go from the level `info` on
    #[arg(long, value_name = "PLACE", default_value = "both")]
    pub(crate) log_to: LogPlace,

    /// Name of this sandbox, unique among yours: for `exec`, and in its log lines, `sandbox=NAME`
    /// [default: eight random hex digits]
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) name: Option<String>,

    /// Label of the run, in every log line and record, such as session=7f3a or user=kim; may be
    /// repeated [also OPENSHELL_LABELS: KEY=VALUE,…]
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) label: Vec<Label>,

    /// End the sandbox, at once, when the process that started it ends; with the PID of that
    /// process its end before this start counts too
    #[arg(long, value_name = "PID", num_args = 0..=1, require_equals = true)]
    pub(crate) die_with_parent: Option<Option<i32>>,

    /// Keep the sandbox after its command has ended, for `exec` and SSH, until a signal ends it
    #[arg(long)]
    pub(crate) keep: bool,

    /// Directory of the log files [default: /var/log, else openshell in $XDG_STATE_HOME or
    /// ~/.local/state]
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<PathBuf>,

    /// Directory of the sandbox's own files during a run [default: /run/openshell, else openshell
    /// in $XDG_RUNTIME_DIR, else /tmp or /dev/shm]
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// Directory inside the sandbox that holds the CA files for programs [default:
    /// /etc/openshell-tls, else in the run directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) tls_dir: Option<PathBuf>,

    /// Certificates (PEM) to trust in upstreams, beside Mozilla's and the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) upstream_ca_file: Option<PathBuf>,

    /// Folder with one certificate authority for many sandboxes, made if it is missing: ca.pem, or
    /// a mounted tls.key and tls.crt [default: an authority of this run, in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) ca_dir: Option<PathBuf>,

    /// The proxy's port on the sandbox's link
    #[arg(long, value_name = "PORT", default_value_t = 3128, value_parser = port)]
    pub(crate) proxy_port: u16,

    /// Addresses that names have inside: `real` ones, or of a range, for programs that refuse those
    /// of 198.18.0.0/15
    #[arg(long, value_name = "real|CIDR")]
    pub(crate) name_addresses: Option<NameAddresses>,

    /// Address of the SSH server, for clients with the handshake secret [or
    /// OPENSHELL_SSH_LISTEN_ADDR]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) ssh_listen_addr: Option<SocketAddr>,

    /// Secret of the SSH server's clients, better set as OPENSHELL_SSH_HANDSHAKE_SECRET: `ps` shows
    /// flags
    #[arg(long, value_name = "SECRET")]
    pub(crate) ssh_handshake_secret: Option<String>,

    /// Seconds by which clocks of the SSH server's clients may differ [default: 300, or
    /// OPENSHELL_SSH_HANDSHAKE_SKEW_SECS]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) ssh_handshake_skew_secs: Option<u32>,

    /// Unix socket of the SSH server, for this user and root [or OPENSHELL_SSH_SOCKET_PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) ssh_socket_path: Option<PathBuf>,

    /// Port of health and metrics (/healthz, /readyz, /metrics), at every address of the host or
    /// container
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) health_port: Option<u16>,

    /// Unix socket of the same, for this user and root
    #[arg(long, value_name = "PATH")]
    pub(crate) health_socket: Option<PathBuf>,

    /// The command and its arguments [default: OPENSHELL_SANDBOX_COMMAND, else /bin/bash]
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Longest name of a sandbox, in bytes: that of a host.
const NAME_BYTES: usize = 64;

/// Parses a name that is one word of a log line.
pub(crate) fn name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if text.is_empty() || text.len() > NAME_BYTES || !text.bytes().all(is_plain) {
        return Err(format!(
            "a name is 1 to {NAME_BYTES} characters of A-Z a-z 0-9 _ . -"
        ));
    }
    Ok(text.to_owned())
}

/// Parses a label that is one word of a log line.
pub(crate) fn label(text: &str) -> Result<Label, String> {
    const FORM: &str = "a label is KEY=VALUE: a key of up to 63 characters a-z 0-9 _ . -, which \
                        begins with a letter and is not `sandbox`, and a value of 1 to 128 \
                        characters of A-Z a-z 0-9 _ . - / : @ +";
    let (key, value) = text.split_once('=').ok_or(FORM)?;
    let is_key =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    let is_value = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/:@+".contains(&byte);
    let is_named = key.starts_with(|first: char| first.is_ascii_lowercase())
        && key.len() <= 63
        && key != "sandbox";
    if !is_named
        || !key.bytes().all(is_key)
        || !(1..=128).contains(&value.len())
        || !value.bytes().all(is_value)
    {
        return Err(FORM.to_owned());
    }
    Ok(Label {
        key: key.to_owned(),
        value: value.to_owned(),
    })
}

/// Longest duration: a year, short enough to be added to a clock.
const LONGEST: Duration = Duration::from_secs(31_536_000);

/// Parses seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs).ok();
    let read = seconds.or_else(|| humantime::parse_duration(text).ok());
    match read {
        Some(read) if read <= LONGEST => Ok(read),
        Some(_) => Err("at most 365 days".to_owned()),
        None => Err("expected seconds, or a time such as 90s, 5m or 1h30m".to_owned()),
    }
}

/// Parses a number of bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (text.get(..text.len() - 1), 10),
        Some(b'm' | b'M') => (text.get(..text.len() - 1), 20),
        Some(b'g' | b'G') => (text.get(..text.len() - 1), 30),
        _ => (Some(text), 0),
    };
    let number = digits
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|digits| digits.parse::<u64>().ok());
    let bytes = number
        .and_then(|number| number.checked_mul(1 << shift))
        .filter(|bytes| *bytes >= 4096);
    bytes.ok_or_else(|| "a size is a number of bytes, at least 4K, such as 64M or 2G".to_owned())
}

/// A port of a server inside, and the address outside at which it is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) address: SocketAddr,
    pub(crate) port: u16,
}

/// Parses `[ADDR:]PORT[:PORT]`.
fn published(text: &str) -> Result<Published, String> {
    const FORM: &str = "expected [ADDR:]PORT[:PORT], such as 8000, 8080:8000, 0.0.0.0:8080:8000 or \
                        [::1]:8080:8000";
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u16>().ok())
            .flatten()
    };
    // An IPv6 address is in brackets, so what is left of it has colons between ports alone.
    let (address, ports) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, ports) = rest.split_once("]:").ok_or(FORM)?;
            (IpAddr::V6(address.parse().map_err(|_| FORM)?), ports)
        }
        None => match text
            .split_once(':')
            .and_then(|(first, ports)| Some((first.parse().ok()?, ports)))
        {
            Some((address, ports)) => (IpAddr::V4(address), ports),
            None => (IpAddr::V4(Ipv4Addr::LOCALHOST), text),
        },
    };
    let (outside, inside) = ports.split_once(':').unwrap_or((ports, ports));
    let outside = number(outside).ok_or(FORM)?;
    let port = number(inside).ok_or(FORM)?;
    if port == 0 {
        return Err("the port of the server inside must be named: PORT:PORT".to_owned());
    }
    Ok(Published {
        address: (address, outside).into(),
        port,
    })
}

/// Grants of a command line, alone or beside a policy file; without one the working directory may
/// be written.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PolicyArgs {
    /// Let every program connect to a host, at port 443 unless another is named; with `=read-only`,
    /// `=read-write` or `=full` requests are judged, `=tcp` is for bytes that are not HTTP; may be
    /// repeated, as the following
    #[arg(long, value_name = "HOST[:PORT][=ACCESS]", value_parser = allowed)]
    pub(crate) allow: Vec<Allowed>,

    /// Let the command write to a folder, and read it
    #[arg(long, value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,

    /// Let the command read and execute a file or folder; below a writable one it is kept from
    /// being written
    #[arg(long, value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,

    /// Hide a file or folder, or what matches a pattern such as `**/.env`, from the command
    #[arg(long, value_name = "PATH")]
    pub(crate) hide: Vec<PathBuf>,

    /// Add a policy for a usual need: aider, claude-code, codex, copilot, gemini, opencode,
    /// git-read, github, models, or one of your own, in ~/.config/openshell/presets or
    /// /etc/openshell/presets; `openshell-sandbox presets` lists them, and makes apt, go, java,
    /// node, python, rust
    #[arg(long, value_name = "NAME", num_args = 1, value_delimiter = ',')]
    pub(crate) preset: Vec<String>,

    /// Print the policy that the command line means, as YAML, and run nothing
    #[arg(long)]
    pub(crate) print_policy: bool,
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

/// Parses `HOST[:PORT][=ACCESS]`.
fn allowed(text: &str) -> Result<Allowed, String> {
    let (place, access) = match text.split_once('=') {
        None => (text, None),
        Some((place, word)) => {
            let access = match word {
                "read-only" => Access::ReadOnly,
                "read-write" => Access::ReadWrite,
                "full" => Access::Full,
                "tcp" => Access::Tcp,
                _ => {
                    return Err(format!(
                        "`{word}` is not one of read-only, read-write, full, tcp"
                    ));
                }
            };
            (place, Some(access))
        }
    };
    // An IPv6 address is in brackets.
    let (host, port) = match place
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (
            host,
            Some(rest.strip_prefix(':').ok_or("expected [ADDRESS]:PORT")?),
        ),
        None => place
            .rsplit_once(':')
            .map_or((place, None), |(host, port)| (host, Some(port))),
    };
    let number = |port: &str| {
        Some(port)
            .filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?
            .parse()
            .ok()
    };
    let port = match port {
        None => NonZeroU16::new(443),
        Some(port) => number(port),
    };
    let port = port.ok_or("a port is a whole number from 1 to 65535")?;
    HostPattern::parse(host).map_err(|error| error.to_string())?;
    Ok(Allowed {
        host: host.to_owned(),
        port,
        access,
    })
}

/// Options of the command's environment.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct EnvironmentArgs {
    /// Start the command's environment from LANG, LC_*, TERM and TZ alone, and what --env and
    /// --env-file name, instead of the caller's
    #[arg(long)]
    pub(crate) clear_env: bool,

    /// Set a variable of the command, or pass the caller's on, which matters with --clear-env; may
    /// be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,

    /// Set the variables of a file, one NAME=VALUE or NAME a line; lines that begin with `#` are
    /// comments
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Option<PathBuf>,

    /// Credentials (YAML) that the proxy injects; the command sees placeholders
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,

    /// Give the command placeholders for all variables that look like secrets, each for the hosts
    /// of its issuer alone; those of unknown issuers are refused everywhere
    #[arg(long)]
    pub(crate) secrets_from_env: bool,
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
    /// Make no empty files in place of missing paths of read_only and hidden, which the command
    /// could then make; they are named instead
    #[arg(long)]
    pub(crate) no_placeholders: bool,

    /// What happens when such a path is replaced outside while the sandbox runs, and so is no
    /// longer kept from the command [default: end for hidden paths, warn for the others]
    #[arg(long, value_name = "ACT")]
    pub(crate) carve_out_lost: Option<CarveOutLost>,

    /// Access to the configuration of git work trees, which can name programs to run; hooks are
    /// read-only in any case
    #[arg(long, value_name = "ACCESS", default_value = "ro")]
    pub(crate) git_config: GitConfig,

    /// Let the command write the project's settings that editors, shells and agents execute, such
    /// as .vscode, .envrc and .mcp.json
    #[arg(long)]
    pub(crate) no_keep_settings: bool,
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

/// Parses a port.
pub(crate) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "a port is a whole number from 1 to 65535".to_owned())
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

#[cfg(test)]
mod tests {
    use super::{Published, published};

    #[test]
    fn published_ports_have_the_loopback_address_and_the_same_port_unless_they_name_others() {
        for (text, address, port) in [
            ("8000", "127.0.0.1:8000", 8000),
            ("8080:8000", "127.0.0.1:8080", 8000),
            ("0:8000", "127.0.0.1:0", 8000),
            ("127.0.0.2:8000", "127.0.0.2:8000", 8000),
            ("0.0.0.0:8080:8000", "0.0.0.0:8080", 8000),
            ("[::1]:8080:8000", "[::1]:8080", 8000),
            ("[::]:8000", "[::]:8000", 8000),
        ] {
            assert_eq!(
                published(text),
                Ok(Published {
                    address: address.parse().unwrap(),
                    port
                }),
                "{text}"
            );
        }
        for text in [
            "", "0", "x", "8000:", ":8000", "8080:0", "1:2:3", "70000", "+80", "host:80", "::1:80",
            "[::1]80", "1.2.3.4",
        ] {
            assert!(published(text).is_err(), "{text}");
        }
    }
}
