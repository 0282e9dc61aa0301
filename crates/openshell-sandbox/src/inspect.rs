//! `check` and `explain`: what a policy says, without running anything.

use std::path::Path;
use std::process::ExitCode;

use openshell_policy::network::host::Host;
use openshell_policy::policy::Policy;
use openshell_proxy::decide::connection::judge;
use openshell_proxy::decide::message::{self, Judged, MessagePermit};
use openshell_proxy::inference::is_target;
use openshell_proxy::peer::{Caller, Callers, Program};
use openshell_proxy::refusal::Refusal;
use openshell_proxy::resolve::guard::OwnAddresses;
use openshell_proxy::resolve::lookup::Resolver;
use openshell_proxy::resolve::resolve;
use openshell_proxy::target::Target;
use openshell_supervisor::netns;

use openshell_supervisor::landlock::Request;
use openshell_supervisor::run_as;

use crate::cli::{CheckArgs, ExplainArgs};
use crate::lints;
use crate::logging::{self, print_line};
use crate::sources::credential_file::{self, ParsedCredentials};
use crate::sources::input::Phase;
use crate::sources::policy_file::{PolicyFiles, policies};
use crate::text::counted;

/// Says everything that is wrong or doubtful about policies; 1 if one could not be used, or has warnings that are denied.
pub(crate) fn check(args: CheckArgs) -> ExitCode {
    let (mut warnings, mut is_usable) = (0, true);
    let mut failed = |error: &anyhow::Error| {
        is_usable = false;
        logging::print_stderr(&format!("openshell-sandbox: {error:#}"));
    };
    for data in args.files {
        let source = PolicyFiles { data, rules: args.policy_rules.clone() };
        match source.read(Phase::Start).and_then(|document| document.compile(1)) {
            Ok(loaded) => {
                let (policy, path) = (loaded.snapshot.policy(), source.data.display());
                let own = [("policy", Some(&source.data)), ("policy rules", source.rules.as_ref())];
                let files = own.into_iter().chain([("credentials file", args.credentials.as_ref())]);
                let on_host = on_this_host(policy, files.filter_map(|(what, path)| Some((what, path?.as_path()))));
                let on_host = on_host.iter().map(|lint| format!("policy warning: {path}: {lint}"));
                let doubts: Vec<_> = loaded.report.warnings.iter().cloned().chain(on_host).collect();
                doubts.iter().chain(&loaded.report.notes).for_each(|line| print_line(line));
                let policies = policies(policy.network().len());
                print_line(&format!("{path}: {policies}, {}", counted_warnings(doubts.len())));
                warnings += doubts.len();
            }
            Err(error) => failed(&error),
        }
    }
    match args.credentials.as_ref().map(|path| (path, credential_file::parse(path, Phase::Start))) {
        Some((path, Ok(ParsedCredentials { specs, warnings: doubts }))) => {
            doubts.iter().for_each(|doubt| print_line(&format!("credentials warning: {doubt}")));
            let credentials = counted(specs.len() as u64, "credential", "credentials");
            print_line(&format!("{}: {credentials}, {}", path.display(), counted_warnings(doubts.len())));
            warnings += doubts.len();
        }
        Some((_, Err(error))) => failed(&error),
        None => {}
    }
    ExitCode::from(u8::from(!is_usable || (args.deny_warnings && warnings > 0)))
}

/// What of `policy` does not suit this host, and which of `files` its workload may change.
fn on_this_host<'f>(policy: &Policy, files: impl Iterator<Item = (&'f str, &'f Path)>) -> Vec<String> {
    let mut found = lints::files::missing(policy);
    if let Ok(user) = run_as::resolve(policy.run_as()) {
        let grants = Request::new(policy.filesystem(), None);
        found.extend(lints::files::writable(files, &user.credentials, &grants));
    }
    found
}

fn counted_warnings(count: usize) -> String {
    counted(count as u64, "warning", "warnings")
}

/// Judges a connection as the proxy would, looks up its host as the proxy would, judges the request inside it if there is one,
/// and says what comes of it; 1 if it is refused.
pub(crate) fn explain(args: ExplainArgs) -> anyhow::Result<ExitCode> {
    let host = Host::parse(&args.host).map_err(|error| anyhow::anyhow!("--host {}: {error}", args.host))?;
    let files = PolicyFiles { data: args.file, rules: args.policy_rules };
    let snapshot = files.read(Phase::Start)?.compile(1)?.snapshot;
    let target = Target { host, port: args.port };
    let program = Program { executable: args.binary, ancestors: args.ancestor, cmdline_paths: Vec::new() };
    let caller = Caller { pid: 0, program: program.into() };
    let callers = Callers::new(vec![caller.clone()]).ok_or_else(|| anyhow::anyhow!("a connection has a caller"))?;
    let request = args.method.as_deref().zip(args.path.as_deref());
    let asked = match &request {
        Some((method, path)) => format!("{method} {target}{path}"),
        None => format!("CONNECT {target}"),
    };
    if is_target(&target) {
        print_line(&format!(
            "allowed: {asked} by {}: the models of --inference-routes, before any policy",
            caller.program.executable
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let judged = judge(&snapshot, &callers, &target, || Ok(()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let judged = judged.and_then(|permit| {
        let leave = request.map(|(method, path)| message::ask(&permit, method, path)).transpose()?;
        let destination = runtime.block_on(async {
            let resolver = Resolver::from_system().map_err(|error| Refusal::Engine(error.to_string()))?;
            let own = OwnAddresses { listeners: Vec::new(), is_on_link: netns::is_on_link };
            resolve(&resolver, &own, &permit).await
        })?;
        Ok((permit, destination, leave))
    });
    match judged {
        Ok((permit, destination, leave)) => {
            let addresses: Vec<_> = destination.addresses().iter().map(ToString::to_string).collect();
            let named = leave.as_ref().map_or_else(|| permit.policy(), MessagePermit::policy);
            let policy = named.unwrap_or("-");
            print_line(&format!(
                "allowed: {asked} by {}, policy {policy}; {}",
                caller.program.executable,
                addresses.join(" ")
            ));
            match leave.as_ref().map(MessagePermit::judged) {
                Some(Judged::Audited { reason, .. }) => print_line(&format!("  audit only: {reason}")),
                Some(Judged::Unjudged) => print_line("  no rules judge its requests"),
                Some(Judged::Allowed) => {}
                None if permit.rules().is_some() => {
                    print_line("  its requests are judged; --method and --path ask about one")
                }
                None => {}
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            print_line(&format!("refused: {asked} by {}: {}", caller.program.executable, refusal.code().as_str()));
            let reason = refusal.log_reason();
            let lines = [
                Some(reason).filter(|reason| !reason.is_empty()).map(|reason| format!("reason: {reason}")),
                refusal.nearest_rule().map(|rule| format!("nearest rule: {rule}")),
                refusal.fix(&target, Some(&caller)).map(|fix| format!("fix: {fix}")),
                refusal.no_fix(&target).map(|why| format!("no fix: {why}")),
            ];
            lines.into_iter().flatten().for_each(|line| print_line(&format!("  {line}")));
            Ok(ExitCode::FAILURE)
        }
    }
}
