//! `check --replay`: judges the decisions of a recorded JSON log under another policy.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;
use openshell_events::reason::{DenialStage, ReasonCode};
use openshell_events::words::Door;
use openshell_policy::network::host::Host;
use openshell_proxy::decide::connection::judge;
use openshell_proxy::decide::snapshot::Snapshot;
use openshell_proxy::decide::verdict;
use openshell_proxy::denial::judged::WORD_BYTES;
use openshell_proxy::ground::peer::{Caller, Program};
use openshell_proxy::ground::target::Target;
use openshell_proxy::inference::is_target;
use openshell_proxy::secrets::needles::CONCEALED;
use serde_json::{Value, json};

use openshell_telemetry::logging::print_line;

/// Classes of events that are decisions (OCSF 1.x): network activity, HTTP activity.
const NETWORK: u64 = 4001;
const HTTP: u64 = 4002;

/// The class of events about the configuration, and so about what persons permit.
const CONFIGURATION: u64 = 5019;

/// The door of requests that name their whole URL.
const FORWARD: &str = Door::Forward.as_str();

/// The most bytes of a line.
const LINE: u64 = 1024 * 1024;

/// The most differences that are printed; further ones are only counted.
const SHOWN: usize = 1000;

/// A recorded decision.
struct Recorded {
    caller: Caller,
    target: Target,
    /// The request, if it is one.
    request: Option<Asked>,
    /// The line that permitted it; `None` if it was refused.
    permitted_by: Option<LineOfSandbox>,
}

/// A sandbox, and the key of a line of its policy.
type LineOfSandbox = (String, String);

/// A recorded request.
struct Asked {
    method: String,
    path: String,
    /// The message in its body, without arguments, if the decision was on one.
    message: Option<String>,
}

/// What a log says about its connections: the ancestors and further paths of their programs.
type Lineages = BTreeMap<(u64, String, u64), (Vec<String>, Vec<String>)>;

/// The decisions of a log under another policy, each with the number of times.
#[derive(Default)]
struct Findings {
    /// Those that change, by their words and the line that permitted them.
    changed: BTreeMap<(String, Option<LineOfSandbox>), usize>,
    /// Those that stay permitted, although the policy does not have the line that permitted them.
    kept: BTreeMap<(String, LineOfSandbox), usize>,
    /// Lines that persons have permitted.
    of_persons: BTreeSet<LineOfSandbox>,
}

impl Findings {
    /// Judges a decision by `snapshot`.
    fn judge(&mut self, snapshot: &Snapshot, recorded: Recorded) {
        let change = change(snapshot, &recorded);
        let Recorded { permitted_by, .. } = &recorded;
        match (change, permitted_by) {
            (Some(change), line) => {
                *self.changed.entry((change, line.clone())).or_default() += 1;
            }
            (None, Some((sandbox, name))) if !has_line(snapshot, name) => {
                let line = (sandbox.clone(), name.clone());
                let words = format!("= {}: permitted now too", words(&recorded));
                *self.kept.entry((words, line)).or_default() += 1;
            }
            (None, _) => {}
        }
    }

    /// Returns what changes, and what a person permitted.
    fn sorted(self) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        let Self {
            changed,
            kept,
            of_persons,
        } = self;
        let mut changes = BTreeMap::<String, usize>::new();
        let mut permitted = BTreeMap::<String, usize>::new();
        for ((change, line), count) in changed {
            let is_of_person = line.is_some_and(|line| of_persons.contains(&line));
            let found = if is_of_person {
                &mut permitted
            } else {
                &mut changes
            };
            *found.entry(change).or_default() += count;
        }
        for ((words, line), count) in kept {
            if of_persons.contains(&line) {
                *permitted.entry(words).or_default() += count;
            }
        }
        (changes, permitted)
    }
}

/// Returns true if the policy of `snapshot` has a line with the key `name`.
fn has_line(snapshot: &Snapshot, name: &str) -> bool {
    let mut names = snapshot.policy().network().keys();
    names.any(|known| known.as_str() == name)
}

/// Judges the decisions in the JSON log at `log` by `snapshot`, and prints each change once, and apart
/// what a person permitted, which is no change. Returns the number of changes. Leaves out what the
/// policy did not decide (names, certificates, credentials), and queries and arguments, which no log
/// holds.
///
/// # Errors
/// Fails if the log cannot be read, or holds no decision in JSON.
pub(super) fn replay(snapshot: &Snapshot, log: &Path) -> anyhow::Result<usize> {
    let failed = || format!("--replay {}", log.display());
    let mut reader = BufReader::new(std::fs::File::open(log).with_context(failed)?);
    let mut lineages = Lineages::new();
    let mut findings = Findings::default();
    let mut judged = 0;
    let mut unreadable = 0;
    loop {
        let mut line = Vec::new();
        if std::io::Read::take(&mut reader, LINE)
            .read_until(b'\n', &mut line)
            .with_context(failed)?
            == 0
        {
            break;
        }
        let Ok(event) = serde_json::from_slice::<Value>(&line) else {
            unreadable += 1;
            continue;
        };
        findings.of_persons.extend(line_of_person(&event));
        if let Some(recorded) = recorded(&event, &mut lineages) {
            judged += 1;
            findings.judge(snapshot, recorded);
        }
    }
    if judged == 0 {
        anyhow::bail!(
            "{}: it holds no decision in JSON; record one with --log-format json",
            failed()
        );
    }
    let (changes, permitted) = findings.sorted();
    let more = print_all(&changes);
    let mut apart = String::new();
    if !permitted.is_empty() {
        print_line("A person permitted in that run:");
        let more = print_all(&permitted);
        apart = format!(", {} that a person permitted{more}", permitted.len());
    }
    let lost = match unreadable {
        0 => String::new(),
        1 => "; 1 line is not JSON".to_owned(),
        more => format!("; {more} lines are not JSON"),
    };
    print_line(&format!(
        "{}: {judged} decisions, {} changes{more}{apart}{lost}",
        log.display(),
        changes.len()
    ));
    Ok(changes.len())
}

/// Prints each of `found` with its number; returns words for what is not shown.
fn print_all(found: &BTreeMap<String, usize>) -> String {
    for (words, count) in found.iter().take(SHOWN) {
        print_line(&format!("{words} ({count} x)"));
    }
    match found.len().saturating_sub(SHOWN) {
        0 => String::new(),
        hidden => format!(", {hidden} of them not shown"),
    }
}

/// Returns the line that `event` says a person has permitted.
fn line_of_person(event: &Value) -> Option<LineOfSandbox> {
    let is_known = event.get("class_uid")?.as_u64()? == CONFIGURATION;
    let name = event.get("unmapped")?.get("policy").filter(|_| is_known)?;
    Some((sandbox_of(event), name.as_str()?.to_owned()))
}

/// Returns the line that permitted the decision `event`.
fn line_of_policy(event: &Value) -> Option<LineOfSandbox> {
    let name = event.get("firewall_rule")?.get("name")?;
    Some((sandbox_of(event), name.as_str()?.to_owned()))
}

fn sandbox_of(event: &Value) -> String {
    let sandbox = event
        .get("unmapped")
        .and_then(|unmapped| unmapped.get("sandbox"));
    sandbox
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Returns the texts of the list `name`.
fn texts(unmapped: &Value, name: &str) -> Vec<String> {
    let listed = unmapped.get(name).and_then(Value::as_array);
    let listed = listed.into_iter().flatten();
    listed
        .filter_map(|text| Some(text.as_str()?.to_owned()))
        .collect()
}

/// Reads a decision of the policy; `None` for every other event.
fn recorded(event: &Value, lineages: &mut Lineages) -> Option<Recorded> {
    let class = event.get("class_uid")?.as_u64()?;
    let unmapped = event.get("unmapped")?;
    // The end of a connection is not a decision.
    unmapped.get("decision")?.as_str()?;
    let end = event.get("dst_endpoint")?;
    let process = event.get("actor")?.get("process")?;
    let host = end.get("hostname")?.as_str()?;
    let port = end.get("port")?.as_u64()?;
    let executable = process.get("file")?.get("path")?.as_str()?.to_owned();
    let key = (
        process.get("pid").and_then(Value::as_u64).unwrap_or(0),
        host.to_owned(),
        port,
    );
    // A forwarded request has no connection of its own.
    let is_forwarded = unmapped.get("door").and_then(Value::as_str) == Some(FORWARD);
    if class == NETWORK || is_forwarded {
        let lineage = (
            texts(unmapped, "ancestors"),
            texts(unmapped, "cmdline_paths"),
        );
        lineages.insert(key.clone(), lineage);
    }
    let request = match class {
        NETWORK => None,
        HTTP => {
            let http = event.get("http_request")?;
            let path = http.get("url")?.get("path")?.as_str()?;
            // Without its connection, a request has no known ancestors. A path with a secret is not
            // in the log.
            if !lineages.contains_key(&key) || path == CONCEALED {
                return None;
            }
            Some(Asked {
                method: http.get("http_method")?.as_str()?.to_owned(),
                path: path.to_owned(),
                message: message(unmapped)?,
            })
        }
        _ => return None,
    };
    let code = unmapped.get("reason_code").and_then(Value::as_str);
    let code = code.and_then(|code| ReasonCode::ALL.iter().find(|known| known.as_str() == code));
    let was_permitted = event.get("action")?.as_str()? == "Allowed";
    let is_policys =
        code.is_none_or(|code| matches!(code.stage(), DenialStage::L4 | DenialStage::L7));
    let target = Target {
        host: Host::parse(host).ok()?,
        port: u16::try_from(port).ok()?,
    };
    if (!was_permitted && (code.is_none() || !is_policys)) || is_target(&target) {
        return None;
    }
    let permitted_by = was_permitted.then(|| line_of_policy(event).unwrap_or_default());
    let (ancestors, cmdline_paths) = lineages.get(&key).cloned().unwrap_or_default();
    let program = Program {
        executable,
        ancestors,
        cmdline_paths,
        is_modified: false,
    };
    Some(Recorded {
        caller: Caller {
            pid: 0,
            program: program.into(),
        },
        target,
        request,
        permitted_by,
    })
}

/// Returns the message that a decision was on, or nothing if it was on none; `None` if the log holds too
/// little of it.
fn message(unmapped: &Value) -> Option<Option<String>> {
    let word = |key: &str| {
        let word = unmapped.get(key).and_then(Value::as_str);
        word.filter(|word| !word.is_empty())
    };
    let has_id = word("id").is_some();
    let Some(method) = word("rpc_method") else {
        // An answer is permitted by the question that it is for.
        return if has_id { None } else { Some(None) };
    };
    let about = word("rpc_target");
    if [Some(method), about].into_iter().flatten().any(is_cut) {
        return None;
    }
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    if has_id {
        message["id"] = 1.into();
    }
    if let Some(about) = about {
        let key = if method.starts_with("resources/") {
            "uri"
        } else {
            "name"
        };
        message["params"] = json!({key: about});
    }
    Some(Some(message.to_string()))
}

/// Returns true if `word` is not what was asked for.
fn is_cut(word: &str) -> bool {
    word == CONCEALED || word.len() >= WORD_BYTES
}

/// Describes how a decision changes; `None` if it does not.
fn change(snapshot: &Snapshot, recorded: &Recorded) -> Option<String> {
    let judged =
        judge(snapshot, &recorded.caller, &recorded.target, || Ok(())).and_then(|permit| {
            let request = recorded.request.as_ref().map(|asked| match &asked.message {
                Some(message) => verdict::ask_messages(&permit, &asked.path, message.as_bytes()),
                None => verdict::ask(&permit, &asked.method, &asked.path),
            });
            request.transpose()
        });
    let words = words(recorded);
    match (&recorded.permitted_by, judged) {
        (Some(_), Ok(_)) | (None, Err(_)) => None,
        (Some(_), Err(refusal)) => {
            let code = refusal.code().as_str();
            Some(format!("- {words}: refused now, {code}"))
        }
        (None, Ok(_)) => Some(format!("+ {words}: permitted now")),
    }
}

/// Describes what a decision was on.
fn words(recorded: &Recorded) -> String {
    let Recorded {
        caller,
        target,
        request,
        ..
    } = recorded;
    let asked = match request {
        Some(Asked {
            path,
            message: Some(message),
            ..
        }) => format!("{message} {target}{path}"),
        Some(Asked { method, path, .. }) => format!("{method} {target}{path}"),
        None => target.to_string(),
    };
    format!("{} -> {asked}", caller.program.executable)
}
