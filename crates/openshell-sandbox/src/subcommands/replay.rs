//! `check --replay`: judges the decisions of a recorded JSON log under another policy.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;
use openshell_events::reason::{DenialStage, ReasonCode};
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
    was_permitted: bool,
}

/// A recorded request.
struct Asked {
    method: String,
    path: String,
    /// The message in its body, without arguments, if the decision was on one.
    message: Option<String>,
}

/// What a log says about its connections: the ancestors and further paths of their programs.
type Lineages = BTreeMap<(u64, String, u64), (Vec<String>, Vec<String>)>;

/// Judges the decisions in the JSON log at `log` by `snapshot`, and prints each change once.
/// Returns the number of changes. Leaves out what the policy did not decide (names, certificates,
/// credentials), forwarded requests, and queries and arguments, which no log holds.
///
/// # Errors
/// Fails if the log cannot be read, or holds no decision in JSON.
pub(super) fn replay(snapshot: &Snapshot, log: &Path) -> anyhow::Result<usize> {
    let failed = || format!("--replay {}", log.display());
    let mut reader = BufReader::new(std::fs::File::open(log).with_context(failed)?);
    let mut lineages = Lineages::new();
    let mut changes = BTreeMap::<String, usize>::new();
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
        let Some(recorded) = recorded(&event, &mut lineages) else {
            continue;
        };
        judged += 1;
        if let Some(change) = change(snapshot, &recorded) {
            *changes.entry(change).or_default() += 1;
        }
    }
    if judged == 0 {
        anyhow::bail!(
            "{}: it holds no decision in JSON; record one with --log-format json",
            failed()
        );
    }
    for (change, count) in changes.iter().take(SHOWN) {
        print_line(&format!("{change} ({count} x)"));
    }
    let hidden = changes.len().saturating_sub(SHOWN);
    let more = if hidden > 0 {
        format!(", {hidden} of them not shown")
    } else {
        String::new()
    };
    let lost = match unreadable {
        0 => String::new(),
        1 => "; 1 line is not JSON".to_owned(),
        more => format!("; {more} lines are not JSON"),
    };
    print_line(&format!(
        "{}: {judged} decisions, {} changes{more}{lost}",
        log.display(),
        changes.len()
    ));
    Ok(changes.len())
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
    if class == NETWORK {
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
        was_permitted,
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
    let Recorded {
        caller,
        target,
        request,
        was_permitted,
    } = recorded;
    let judged = judge(snapshot, caller, target, || Ok(())).and_then(|permit| {
        let request = request.as_ref().map(|asked| match &asked.message {
            Some(message) => verdict::ask_messages(&permit, &asked.path, message.as_bytes()),
            None => verdict::ask(&permit, &asked.method, &asked.path),
        });
        request.transpose()
    });
    let asked = match request {
        Some(Asked {
            path,
            message: Some(message),
            ..
        }) => format!("{message} {target}{path}"),
        Some(Asked { method, path, .. }) => format!("{method} {target}{path}"),
        None => target.to_string(),
    };
    let program = &caller.program.executable;
    match (was_permitted, judged) {
        (true, Ok(_)) | (false, Err(_)) => None,
        (true, Err(refusal)) => Some(format!(
            "- {program} -> {asked}: refused now, {}",
            refusal.code().as_str()
        )),
        (false, Ok(_)) => Some(format!("+ {program} -> {asked}: permitted now")),
    }
}
