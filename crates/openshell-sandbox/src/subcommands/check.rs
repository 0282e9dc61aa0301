//! `check`: lists every problem of policies and credentials files.

use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

use openshell_events::text::{self, counted};
use openshell_policy::policy::Policy;
use openshell_sources::input::Phase;
use openshell_sources::lints;
use openshell_sources::policy::Compile as _;
use openshell_sources::policy::policy_file::{PolicyFiles, PolicyVersion, policies};
use openshell_sources::secrets::credential_file::{self, ParsedCredentials};
use openshell_sources::secrets::route_file;
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::files::protected::ProtectedPath;
use openshell_telemetry::logging::progress::Progress;
use openshell_telemetry::logging::{self, Tone, print_line, print_toned_line};

use crate::activation::Compiled;
use crate::config::origin;
use crate::subcommands::replay;

/// Reports the errors and warnings of policies, and runs nothing.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 if every file can be used; 1 if one cannot, or if --deny-warnings finds a warning;
3 if a decision of --replay changes.

Examples:
  openshell-sandbox check --deny-warnings policy.yaml
  openshell-sandbox check --replay yesterday.log policy.yaml")]
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

    /// Judge the decisions of an earlier run by the policy, and list those that change
    ///
    /// The log must be of --log-format json.
    #[arg(long, value_name = "LOG")]
    pub(crate) replay: Option<PathBuf>,

    /// Check this credentials file too; its secrets are not read
    #[arg(long, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,

    /// Check this file of routes to models too; keys in other places are not read
    #[arg(long, value_name = "FILE")]
    pub(crate) inference_routes: Option<PathBuf>,
}

/// Prints every violation and warning of the files. Returns a failure if a file cannot be used, or
/// has warnings that are denied.
pub(crate) fn check(args: CheckArgs) -> ExitCode {
    let credentials = args.credentials.as_deref();
    let policies = args.files.into_iter().map(|data| {
        PolicyFiles::to_look_at(data, args.policy_rules.clone(), origin::caller_of_sudo())
    });
    let mut found = Found::default();
    let mut is_usable = true;
    let mut add = |checked: anyhow::Result<Found>| match checked {
        Ok(Found { warnings, changes }) => {
            found.warnings += warnings;
            found.changes += changes;
        }
        Err(error) => {
            is_usable = false;
            logging::print_failure(&text::indented(&format!("openshell-sandbox: {error:#}")));
        }
    };
    let mut known = Some(Vec::new());
    for files in policies {
        match check_policy(&files, credentials, args.replay.as_deref()) {
            Ok((found, policy)) => {
                if let Some(known) = &mut known {
                    known.push(policy);
                }
                add(Ok(found));
            }
            Err(error) => {
                known = None;
                add(Err(error));
            }
        }
    }
    if let Some(path) = credentials {
        add(check_credentials(path, known.as_deref()));
    }
    if let Some(path) = &args.inference_routes {
        add(check_routes(path));
    }
    match found {
        Found { warnings, .. } if !is_usable || (args.deny_warnings && warnings > 0) => {
            ExitCode::FAILURE
        }
        Found { changes: 0, .. } => ExitCode::SUCCESS,
        Found { .. } => ExitCode::from(CHANGES),
    }
}

/// The exit code if decisions change.
const CHANGES: u8 = 3;

/// Counts of what was found.
#[derive(Default)]
struct Found {
    warnings: usize,
    /// Decisions of a log that the policy would change.
    changes: usize,
}

/// Prints the warnings and notes about a policy, and which decisions in the log `replayed` it would
/// change. Also returns the policy.
///
/// # Errors
/// Fails if the policy cannot be read or is invalid, with every violation; or if the log cannot be
/// used.
fn check_policy(
    files: &PolicyFiles,
    credentials: Option<&Path>,
    replayed: Option<&Path>,
) -> anyhow::Result<(Found, Policy)> {
    let progress = Progress::start(&format!("checking {}", files.data.display()));
    let version = files.read(Phase::Start)?.compile::<Compiled>(1)?;
    drop(progress);
    let warnings = report(files, &version, credentials);
    let changes = replayed
        .map(|log| replay::replay(&version.compiled.0, log))
        .transpose()?
        .unwrap_or(0);
    let policy = version.compiled.policy().clone();
    Ok((Found { warnings, changes }, policy))
}

/// Prints the warnings and notes about `version`, the policy of `files`. Returns how many warnings
/// there are.
pub(crate) fn report(
    files: &PolicyFiles,
    version: &PolicyVersion<Compiled>,
    credentials: Option<&Path>,
) -> usize {
    let policy = version.compiled.policy();
    let path = files.data.display();
    let inputs = [
        ("policy", Some(files.data.as_path())),
        ("policy rules", files.rules.as_deref()),
        ("credentials file", credentials),
    ];
    let mut on_host = lints::files::missing(policy, files.folders.sudo);
    if policy.approvals().is_some() {
        let uid = origin::uid_of_caller(files.folders.sudo);
        on_host.extend(lints::files::typing(policy.filesystem(), uid));
    }
    let landlock = Request::new(policy.filesystem(), None);
    let find = |(what, path): (&str, Option<&Path>)| {
        ProtectedPath::find(what, path?, what == "credentials file", &landlock).err()
    };
    on_host.extend(
        inputs
            .into_iter()
            .filter_map(find)
            .map(|error| error.to_string()),
    );
    let on_host = on_host
        .iter()
        .map(|lint| format!("policy warning: {path}: {lint}"));
    let warnings: Vec<_> = version
        .report
        .warnings
        .iter()
        .cloned()
        .chain(on_host)
        .collect();
    for line in &warnings {
        print_toned_line(Tone::Warning, line);
    }
    for line in &version.report.notes {
        print_line(line);
    }
    let policies = policies(policy.network().len());
    print_line(&format!(
        "{path}: {policies}, {}",
        counted_warnings(warnings.len())
    ));
    warnings.len()
}

/// Prints the warnings about a credentials file, and the credentials that none of `policies` lets
/// be sent.
///
/// # Errors
/// Fails if the file cannot be read or is invalid, with every violation.
fn check_credentials(path: &Path, policies: Option<&[Policy]>) -> anyhow::Result<Found> {
    let ParsedCredentials {
        specs,
        mut warnings,
    } = credential_file::parse(path, Phase::Start)?;
    if let Some(policies) = policies {
        let policies: Vec<_> = policies.iter().collect();
        let unused = lints::credentials::unused(&specs, &policies);
        warnings.extend(
            unused
                .iter()
                .map(|line| format!("{}: {line}", path.display())),
        );
    }
    for warning in warnings.iter() {
        print_toned_line(Tone::Warning, &format!("credentials warning: {warning}"));
    }
    let credentials = counted(specs.len() as u64, "credential", "credentials");
    print_line(&format!(
        "{}: {credentials}, {}",
        path.display(),
        counted_warnings(warnings.len())
    ));
    Ok(Found {
        warnings: warnings.len(),
        ..Found::default()
    })
}

/// Checks a file of routes.
///
/// # Errors
/// Fails if the file cannot be read or is invalid, with every violation.
fn check_routes(path: &Path) -> anyhow::Result<Found> {
    let routes = counted(
        route_file::parse(path)?.routes.len() as u64,
        "route",
        "routes",
    );
    print_line(&format!(
        "{}: {routes}, {}",
        path.display(),
        counted_warnings(0)
    ));
    Ok(Found::default())
}

fn counted_warnings(count: usize) -> String {
    counted(count as u64, "warning", "warnings")
}
