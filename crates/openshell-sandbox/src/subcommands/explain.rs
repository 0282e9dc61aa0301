//! `explain`: shows the proxy's decision about a connection, without making it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use openshell_policy::network::host::{Host, HostPattern};
use openshell_policy::network::rpc::CALL;
use openshell_policy::policy::Policy;
use openshell_proxy::approvals::askable::held;
use openshell_proxy::decide::connection::judge;
use openshell_proxy::decide::permit::Permit;
use openshell_proxy::decide::verdict::{self, Judged, MessagePermit};
use openshell_proxy::denial::refusal::Refusal;
use openshell_proxy::doors::dns::names::{Way, way};
use openshell_proxy::ground::peer::{Caller, Program};
use openshell_proxy::ground::target::Target;
use openshell_proxy::inference::is_target;
use openshell_proxy::reach::resolve::guard::Destination;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_proxy::reach::resolve::resolve;
use openshell_sources::input::Phase;
use openshell_sources::policy::policy_file::PolicyFiles;
use openshell_telemetry::logging::{Tone, print_line, print_toned_line};
use serde_json::value::RawValue;

use crate::activation::Compiled;
use crate::cli::port;
use crate::config::origin;

/// Way of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DoorName {
    Connect,
    Forward,
    Socks,
    Name,
}

/// Prints the proxy's decision on one connection, and runs nothing. It looks names up as the proxy
/// does.
#[derive(Debug, clap::Args)]
#[command(max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 if the policy permits it; 1 if not, or if the policy cannot be used.

Example:
  openshell-sandbox explain policy.yaml --binary /usr/bin/curl --host example.com --port 443")]
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

    /// Executable of an ancestor of that program, nearest first; may be repeated
    #[arg(long, value_name = "PATH")]
    pub(crate) ancestor: Vec<String>,

    /// Destination host
    #[arg(long, value_name = "HOST")]
    pub(crate) host: String,

    /// Destination port
    #[arg(long, value_name = "PORT", value_parser = port)]
    pub(crate) port: u16,

    /// How the program connects: through the proxy (connect, forward, socks), or by name, without
    /// knowing the proxy
    #[arg(long, value_name = "DOOR", value_enum, default_value = "connect")]
    pub(crate) door: DoorName,

    /// Method of a request
    #[arg(long, value_name = "METHOD", requires = "path", group = "request")]
    pub(crate) method: Option<String>,

    /// Path of a request
    #[arg(long, value_name = "PATH", requires = "request")]
    pub(crate) path: Option<String>,

    /// Body of a POST, with messages of MCP or JSON-RPC
    #[arg(long, value_name = "FILE", requires = "path", group = "request")]
    pub(crate) message: Option<PathBuf>,

    /// Tool of MCP that is called by a POST
    #[arg(long, value_name = "NAME", requires = "path", group = "request")]
    pub(crate) tool: Option<String>,

    /// Arguments of the tool, a JSON object
    #[arg(long, value_name = "JSON", requires = "tool")]
    pub(crate) arguments: Option<String>,
}

impl ExplainArgs {
    /// Returns the messages that are asked about.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or the arguments are not JSON.
    fn body(&self) -> anyhow::Result<Option<Vec<u8>>> {
        if let Some(file) = &self.message {
            let body =
                std::fs::read(file).with_context(|| format!("--message {}", file.display()))?;
            return Ok(Some(body));
        }
        let Some(tool) = &self.tool else {
            return Ok(None);
        };
        let arguments = self.arguments.as_deref().unwrap_or("{}");
        let arguments: &RawValue = serde_json::from_str(arguments).context("--arguments")?;
        let name = serde_json::Value::from(tool.as_str());
        let params = format!("{{\"name\":{name},\"arguments\":{arguments}}}");
        let call =
            format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{CALL}\",\"params\":{params}}}");
        Ok(Some(call.into_bytes()))
    }
}

/// What a policy with `approvals` does about a refusal that a person may undo.
const ASKED: &str =
    "the policy has `approvals`: it waits for a person's answer if a line could permit it";

/// Why a program that connects by name does not reach an unknown one.
const NO_ADDRESS: &str = "the policy does not know the name, so it has no address inside";

/// The same of a name about which a person could be asked.
const ADDRESS_IF_ASKED: &str = "the policy does not know the name, so it has no address inside; with \
                                --ask it would have one";

/// Judges a connection as the proxy would, judges the request inside if one was given, resolves the
/// host, and prints the decision. Returns a failure if the decision is a denial.
///
/// # Errors
/// Fails if the host or the policy is invalid.
pub(crate) fn explain(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let pattern =
        HostPattern::parse(&args.host).map_err(|error| anyhow::anyhow!("--host: {error}"))?;
    let host = pattern
        .host()
        .with_context(|| format!("--host {}: name one host, without a wildcard", args.host))?;
    let body = args.body()?;
    let files = PolicyFiles::to_look_at(args.file, args.policy_rules, origin::caller_of_sudo());
    let snapshot = files.read(Phase::Start)?.compile::<Compiled>(1)?.compiled.0;
    let target = Target {
        host,
        port: args.port,
    };
    let program = Program {
        executable: args.binary,
        ancestors: args.ancestor,
        cmdline_paths: Vec::new(),
        is_modified: false,
    };
    let caller = Caller {
        pid: 0,
        program: program.into(),
    };
    let method = args.method.as_deref().or(body.as_ref().map(|_| "POST"));
    let request = method.zip(args.path.as_deref());
    let asked = match (&request, &args.tool) {
        (Some((method, path)), Some(tool)) => format!("{method} {target}{path} {tool}"),
        (Some((method, path)), None) => format!("{method} {target}{path}"),
        (None, _) => format!("CONNECT {target}"),
    };
    let subject = format!("{asked} by {}", caller.program.executable);
    if is_target(&target) {
        print_line(&format!(
            "allowed: {subject}: the models of --inference-routes, before any policy"
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let asks = snapshot.policy().approvals().is_some();
    if args.door == DoorName::Name
        && let Some(why) = closed(snapshot.policy(), &target)
    {
        print_toned_line(Tone::Refusal, &format!("refused: {subject}: {why}"));
        return Ok(ExitCode::FAILURE);
    }
    let judged = judge(&snapshot, &caller, &target, || Ok(()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let judged = judged.and_then(|permit| {
        let request = request
            .map(|(method, path)| match &body {
                None => verdict::ask(&permit, method, path),
                Some(body) => verdict::ask_messages(&permit, path, body),
            })
            .transpose()?;
        Ok((permit, request))
    });
    let (permit, request) = match judged {
        Ok(permitted) => permitted,
        Err(refusal) => {
            print_refusal(&subject, &refusal, &target, &caller, asks);
            return Ok(ExitCode::FAILURE);
        }
    };
    let code = match runtime.block_on(destination(&permit)) {
        Ok(destination) => {
            print_allowed(&subject, &permit, request.as_ref(), &destination);
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            print_refusal(&subject, &refusal, &target, &caller, asks);
            if matches!(judged_of(request.as_ref()), Some(Judged::Allowed)) {
                print_line("  the rules permit the request");
            }
            ExitCode::FAILURE
        }
    };
    print_judged(&permit, judged_of(request.as_ref()));
    Ok(code)
}

fn judged_of(request: Option<&MessagePermit>) -> Option<&Judged> {
    request.map(MessagePermit::judged)
}

/// Returns why no program that connects without the proxy can reach `target`; `None` if some can, or
/// if the policy has a person asked about it.
fn closed(policy: &Policy, target: &Target) -> Option<&'static str> {
    match (way(policy, target), &target.host) {
        (Way::Open, _) => None,
        (Way::OtherPort, _) => {
            Some("no endpoint of the policy names this port of the host, so the kernel refuses it")
        }
        (Way::Unknown, Host::Name(name)) if !name.as_str().contains('.') => Some(NO_ADDRESS),
        // With a person to ask, such a name has an address, where a connection is asked about.
        (Way::Unknown, Host::Name(_)) if policy.approvals().is_some() => None,
        (Way::Unknown, Host::Name(_)) => Some(ADDRESS_IF_ASKED),
        (Way::Unknown, Host::Address(_)) => {
            Some("no endpoint names this address, so the kernel refuses it")
        }
    }
}

async fn destination(permit: &Permit) -> Result<Destination, Refusal> {
    let resolver = Resolver::from_system().map_err(|error| Refusal::engine(error.to_string()))?;
    resolve(&resolver, permit).await
}

fn print_allowed(
    subject: &str,
    permit: &Permit,
    request: Option<&MessagePermit>,
    destination: &Destination,
) {
    let addresses: Vec<_> = destination
        .addresses()
        .iter()
        .map(ToString::to_string)
        .collect();
    let policy = request
        .map_or_else(|| permit.policy(), MessagePermit::policy)
        .unwrap_or("-");
    print_line(&format!(
        "allowed: {subject}, policy {policy}; {}",
        addresses.join(" ")
    ));
}

/// Prints what the rules of `permit` say of the request, unless they permit it.
fn print_judged(permit: &Permit, judged: Option<&Judged>) {
    match judged {
        Some(Judged::Audited { reason, .. }) => print_line(&format!("  audit only: {reason}")),
        Some(Judged::Unjudged) => print_line("  no rules judge its requests"),
        Some(Judged::Allowed) => {}
        None if permit.rules().is_some() => print_line(
            "  its requests are judged; --path with --method, --message or --tool asks about one",
        ),
        None => {}
    }
}

/// Prints why `target` is refused by a policy that `asks` a person, or does not.
fn print_refusal(subject: &str, refusal: &Refusal, target: &Target, caller: &Caller, asks: bool) {
    let is_asked = asks && held(refusal.code()).is_some();
    let code = refusal.code().as_str();
    print_toned_line(Tone::Refusal, &format!("refused: {subject}: {code}"));
    let reason = refusal.reason();
    let lines = [
        Some(reason)
            .filter(|reason| !reason.is_empty())
            .map(|reason| format!("reason: {reason}")),
        refusal
            .nearest_rule()
            .map(|rule| format!("nearest rule: {rule}")),
        refusal
            .fix(target, Some(caller))
            .map(|fix| format!("fix: {fix}")),
        refusal.no_fix(target).map(|why| format!("no fix: {why}")),
        is_asked.then(|| ASKED.to_owned()),
    ];
    for line in lines.into_iter().flatten() {
        print_line(&format!("  {line}"));
    }
}
