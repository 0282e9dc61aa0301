//! Command lines of the subcommands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Reports all errors and warnings of a policy, and runs nothing.
#[derive(Debug, Parser)]
#[command(
    name = "check",
    bin_name = "openshell-sandbox check",
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 if every file can be used; 1 if one cannot, or for warnings \
                        that are denied; 3 if decisions of --replay change."
)]
pub(crate) struct CheckArgs {
    /// Policy data (YAML)
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Exit with 1 for warnings too
    #[arg(long)]
    pub(crate) deny_warnings: bool,

    /// Policy rules (Rego) instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub(crate) policy_rules: Option<PathBuf>,

    /// A log of an earlier run, of --log-format json, whose decisions are judged by the policy;
    /// those that change are listed
    #[arg(long, value_name = "LOG")]
    pub(crate) replay: Option<PathBuf>,

    /// A credentials file to check too; its secrets are not read
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,

    /// A file of routes to models to check too; keys in other places are not read
    #[arg(long, value_name = "FILE")]
    pub(crate) inference_routes: Option<PathBuf>,
}

/// Way of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoorName {
    Connect,
    Forward,
    Socks,
    Name,
}

/// Prints the proxy's decision on a connection, and runs nothing. Names are looked up as by the
/// proxy.
#[derive(Debug, Parser)]
#[command(
    name = "explain",
    bin_name = "openshell-sandbox explain",
    max_term_width = 100
)]
#[command(after_help = "\
Exit codes: 0 if it would be permitted; 1 if not, or if the policy cannot be used.

Example: openshell-sandbox explain my.yaml --binary /usr/bin/curl --host example.com --port 443")]
pub(crate) struct ExplainArgs {
    /// Policy data (YAML)
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Policy rules (Rego) instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub(crate) policy_rules: Option<PathBuf>,

    /// Executable of the calling program, without symlinks (`readlink -f`)
    #[arg(long, value_name = "PATH")]
    pub(crate) binary: String,

    /// Executable of an ancestor, nearest first; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) ancestor: Vec<String>,

    /// Destination host
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,

    /// Destination port
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) port: u16,

    /// Way of the connection: by the proxy (connect, forward, socks), or by name, of a program that
    /// knows no proxy
    #[arg(long, value_name = "DOOR", value_enum, default_value = "connect")]
    pub(crate) door: DoorName,

    /// Method of a request
    #[arg(long, value_name = "METHOD", requires = "path")]
    pub(crate) method: Option<String>,

    /// Path of a request
    #[arg(long, value_name = "PATH", requires = "method")]
    pub(crate) path: Option<String>,
}

/// Says what one policy permits more and less than another: hosts, requests, programs, files, user.
#[derive(Debug, Parser)]
#[command(
    name = "diff",
    bin_name = "openshell-sandbox diff",
    max_term_width = 100
)]
#[command(after_help = "\
Exit codes: 0 if the policy after permits nothing more; 3 if it does; 1 if a policy cannot be used.
A pattern that is written in another way may be named although it means the same.")]
pub(crate) struct DiffArgs {
    /// Policy before (YAML)
    #[arg(value_name = "BEFORE")]
    pub(crate) before: PathBuf,

    /// Policy after
    #[arg(value_name = "AFTER")]
    pub(crate) after: PathBuf,
}

/// Checks what this host and caller have, and starts a sandbox on trial; leaves nothing.
#[derive(Debug, Parser)]
#[command(
    name = "doctor",
    bin_name = "openshell-sandbox doctor",
    max_term_width = 100
)]
#[command(after_help = "Exit codes: 0 if a sandbox under the policy would start; 1 if not.")]
pub(crate) struct DoctorArgs {
    /// Policy data (YAML) [default: a policy that grants nothing]
    #[arg(value_name = "POLICY")]
    pub(crate) policy: Option<PathBuf>,

    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Copies this program to a place that other containers share, in one step.
#[derive(Debug, Parser)]
#[command(
    name = "copy-self",
    bin_name = "openshell-sandbox copy-self",
    max_term_width = 100
)]
#[command(after_help = "\
Exit codes: 0; 1 if it could not be copied.

Example: openshell-sandbox copy-self /shared/openshell-sandbox")]
pub(crate) struct CopySelfArgs {
    /// A file, or a folder that the program gets into under its own name
    #[arg(value_name = "DEST")]
    pub(crate) destination: PathBuf,
}

/// Runs a further command in a running sandbox, confined as its main command is.
#[derive(Debug, Parser)]
#[command(
    name = "exec",
    bin_name = "openshell-sandbox exec",
    max_term_width = 100
)]
#[command(override_usage = "openshell-sandbox exec [OPTIONS] NAME|PID [OPTIONS] [--] COMMAND...")]
#[command(after_help = "\
Exit codes: the command's own; 128+N if signal N ended it; 126 not executable; 127 not found; 1 for any error before it ran.

Example: openshell-sandbox exec web -- sh -c 'id; pwd'")]
pub(crate) struct ExecArgs {
    /// Give the command a terminal of its own [default: when standard input and output are one]
    #[arg(short, long = "tty")]
    pub(crate) terminal: bool,

    /// Set a variable of the command; without a value, to that of this process; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME[=VALUE]")]
    pub(crate) variables: Vec<String>,

    /// Directory inside to start in [default: the main command's]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,

    /// Directory of the sandboxes' own files, if they were started with one
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// Name or id of the sandbox, or the PID of its supervisor, as `openshell-sandbox ps` lists
    /// them; the command and its arguments
    #[arg(
        trailing_var_arg = true,
        value_name = "NAME|PID COMMAND",
        required = true
    )]
    pub(crate) words: Vec<OsString>,
}

/// Copies a file or folder into a running sandbox, or out of it. Out of it come no links that leave
/// the copy, no devices, no set-id bits and no hooks of git repositories.
#[derive(Debug, Parser)]
#[command(name = "cp", bin_name = "openshell-sandbox cp", max_term_width = 100)]
#[command(after_help = "\
A folder that is there gets the copy under its own name; else the copy gets the name that is given.

Exit codes: 0; 1 if something could not be copied.

Example: openshell-sandbox cp web:/sandbox/results .")]
pub(crate) struct CpArgs {
    /// The source: a path, or NAME:PATH in the sandbox NAME
    #[arg(value_name = "SRC")]
    pub(crate) from: OsString,

    /// The destination: NAME:PATH, or a path
    #[arg(value_name = "DEST")]
    pub(crate) to: OsString,

    /// Copy hooks of git repositories out too, which git runs
    #[arg(long)]
    pub(crate) git_hooks: bool,

    /// Directory of the sandboxes' own files, if they were started with one
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// Shows or replaces the certificate authority of a folder (--ca-dir).
#[derive(Debug, Parser)]
#[command(name = "ca", bin_name = "openshell-sandbox ca", max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0; 1 if there is no authority in the folder, or it cannot be replaced.

Example: openshell-sandbox ca show /var/lib/openshell/ca")]
pub(crate) struct CaArgs {
    /// `show` prints the certificates that programs inside trust; `rotate` makes the next authority
    #[arg(value_name = "ACTION")]
    pub(crate) action: CaAction,

    /// The folder
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Action on a kept authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaAction {
    Show,
    Rotate,
}

/// Lists presets, or makes those of package registries: each client is asked, in a sandbox, for
/// something small, and the hosts that it downloads from get into the preset.
#[derive(Debug, Parser)]
#[command(
    name = "presets",
    bin_name = "openshell-sandbox presets",
    max_term_width = 100
)]
#[command(override_usage = "openshell-sandbox presets [make [OPTIONS] NAME...]")]
#[command(after_help = "Exit codes: 0; 1 if one was not made.

Example: openshell-sandbox presets make python node")]
pub(crate) struct PresetsArgs {
    /// `make`; without it, all presets are listed
    #[arg(value_name = "ACTION", value_parser = ["make"], requires = "names")]
    pub(crate) action: Option<String>,

    /// Presets to make: apt, go, java, node, python, rust
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// For all users: into /etc/openshell/presets instead of ~/.config/openshell/presets
    #[arg(long, requires = "names")]
    pub(crate) system: bool,

    /// Let the client read a path besides its settings and programs where they usually are; may be
    /// repeated
    #[arg(long, value_name = "PATH", requires = "names")]
    pub(crate) read: Vec<PathBuf>,

    /// Replace presets that exist
    #[arg(long, requires = "names")]
    pub(crate) replace: bool,
}

/// Lists this user's running sandboxes.
#[derive(Debug, Parser)]
#[command(name = "ps", bin_name = "openshell-sandbox ps", max_term_width = 100)]
#[command(after_help = "Exit codes: 0; 1 if a sandbox does not answer.")]
pub(crate) struct PsArgs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,

    /// Directory of the sandboxes' own files, if they were started with one
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
}

/// Makes the calls of a start to the gateway that the environment names, and prints what each gave;
/// changes nothing.
#[derive(Debug, Parser)]
#[command(
    name = "gateway",
    bin_name = "openshell-sandbox gateway",
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 if a sandbox would start with what the gateway has; 1 if not."
)]
pub(crate) struct GatewayArgs {
    /// `check`
    #[arg(value_name = "ACTION", value_parser = ["check"])]
    pub(crate) action: String,

    /// Id of the sandbox [or OPENSHELL_SANDBOX_ID]
    #[arg(long, value_name = "ID")]
    pub(crate) sandbox_id: Option<String>,

    /// Address of the gateway [or OPENSHELL_ENDPOINT]
    #[arg(long, value_name = "URL")]
    pub(crate) openshell_endpoint: Option<String>,
}

/// Parses a port.
pub(super) fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "a port is a whole number from 1 to 65535".to_owned())
}
