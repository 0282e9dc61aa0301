//! `gateway check`: shows what a sandbox in this environment would get from its gateway.

use std::process::ExitCode;

use anyhow::bail;
use openshell_events::text::counted;
use openshell_gateway::client::Gateway;
use openshell_gateway::convert::config::SandboxConfig;
use openshell_sources::gateway::launcher::Launched;
use openshell_sources::policy::Compile as _;
use openshell_sources::policy::policy_file::{GatewayVersion, PolicyFiles, policies};
use openshell_telemetry::logging;

use crate::activation::{Compiled, Origin};
use crate::cli;
use crate::config;

/// Calls the gateway as a start does, and prints each answer. A running sandbox of the same id may
/// lose its session and connect again.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 if a sandbox would start with what the gateway has; 1 if not.

Example:
  openshell-sandbox gateway check --sandbox-id web --openshell-endpoint http://127.0.0.1:8080")]
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

/// Makes the calls of a start, and prints what each returned. Changes no policy at the gateway.
///
/// # Errors
/// Fails if the environment names no gateway, or names it wrongly.
pub(crate) fn gateway(args: &GatewayArgs) -> anyhow::Result<ExitCode> {
    let is_named = args.sandbox_id.is_some() || args.openshell_endpoint.is_some();
    if !is_named && !config::origin::is_in_environment() {
        bail!(
            "no gateway is named; give --sandbox-id ID and --openshell-endpoint URL, or set \
             OPENSHELL_SANDBOX_ID and OPENSHELL_ENDPOINT"
        );
    }
    let mut words = vec!["openshell-sandbox".to_owned()];
    for (flag, value) in [
        ("--sandbox-id", &args.sandbox_id),
        ("--openshell-endpoint", &args.openshell_endpoint),
    ] {
        words.extend(
            value
                .iter()
                .flat_map(|value| [flag.to_owned(), value.clone()]),
        );
    }
    let run = cli::run_args(words.iter().map(String::as_str))?;
    let Origin::Gateway { place, files } = config::origin::named(&run)? else {
        bail!(
            "OPENSHELL_POLICY_DATA names a policy file, which wins over a gateway; unset it to \
             check the gateway"
        );
    };
    let launched = config::launched(place)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(check(launched, &files))
}

async fn check(launched: Launched, files: &PolicyFiles) -> anyhow::Result<ExitCode> {
    let Launched {
        options, warnings, ..
    } = launched;
    for warning in warnings.iter() {
        row("warning", warning);
    }
    row("gateway", &options.address.endpoint);
    let has_token = options.token.is_some();
    let gateway = Gateway::new(options.address, options.names, options.token)?;
    let mut is_good = true;
    match gateway.authenticate().await {
        Ok(()) if has_token => row("identity", "token read"),
        Ok(()) => row(
            "identity",
            "no token is set; gateways of the first generation ask for none",
        ),
        Err(error) => return Ok(exit_code(fails("identity", &error))),
    }
    let config = match gateway.config().await {
        Ok(config) => config,
        Err(error) => return Ok(exit_code(fails("policy", &error))),
    };
    is_good &= policy(&config, files);
    match gateway.provider_environment().await {
        Ok(given) => {
            let credentials = given.credentials.iter();
            let names: Vec<_> = credentials.map(|one| one.name.as_str()).collect();
            let variables = given.variables.iter();
            let variables: Vec<_> = variables.map(|(name, _)| name.as_str()).collect();
            row("credentials", &listed(&names));
            row("variables", &listed(&variables));
        }
        Err(error) => is_good = fails("credentials", &error),
    }
    match gateway.routes().await {
        Ok(bundle) => {
            let routes = bundle.routes.iter();
            let names: Vec<_> = routes.map(|route| route.name.as_str()).collect();
            row("models", &listed(&names));
            for route in &bundle.left_out {
                row("left out", route);
            }
        }
        Err(error) if error.is_refused() => row("models", &format!("none: {error}")),
        Err(error) => is_good = fails("models", &error),
    }
    match gateway.offers_sessions().await {
        Ok(true) => row("session", "offered"),
        Ok(false) => row(
            "session",
            "not offered; the gateway is of the first generation",
        ),
        Err(error) => is_good = fails("session", &error),
    }
    Ok(exit_code(is_good))
}

/// Prints the policy in force; returns true if it is valid, or if there is none.
fn policy(config: &SandboxConfig, files: &PolicyFiles) -> bool {
    let Some(policy) = &config.policy else {
        row(
            "policy",
            "none; a start would send the image's, or one that permits nothing",
        );
        return true;
    };
    let document = files.document(
        "the gateway".to_owned(),
        policy.document.clone(),
        Some(GatewayVersion {
            number: config.version.into(),
            hash: config.hash.clone(),
            global: config.global_version,
        }),
    );
    match document.compile::<Compiled>(1) {
        Ok(version) => {
            let count = policies(version.compiled.policy().network().len());
            row(
                "policy",
                &format!("version {}, hash {}: {count}", config.version, config.hash),
            );
            for warning in &version.report.warnings {
                row("warning", warning);
            }
            true
        }
        Err(error) => {
            row(
                "policy",
                &format!("version {} is invalid: {error:#}", config.version),
            );
            false
        }
    }
}

fn exit_code(is_good: bool) -> ExitCode {
    ExitCode::from(u8::from(!is_good))
}

fn listed(names: &[&str]) -> String {
    let count = counted(names.len() as u64, "name", "names");
    if names.is_empty() {
        "none".to_owned()
    } else {
        format!("{count}: {}", names.join(", "))
    }
}

/// Prints a row for `error`. Returns false, because the check has failed.
fn fails(what: &str, error: &dyn std::fmt::Display) -> bool {
    row(what, &format!("FAILED: {error}"));
    false
}

fn row(what: &str, text: &str) {
    logging::print_line(&format!("{what:<12} {text}"));
}
