//! Answers what the policy would say, and asks nobody.

use hyper::Uri;
use openshell_policy::network::host::Host;
use serde_json::{Value, json};

use crate::decide::connection;
use crate::decide::snapshot::Snapshot;
use crate::decide::verdict;
use crate::denial::guidance::Guidance;
use crate::denial::refusal::{Refusal, Subject};
use crate::denial::reply;
use crate::ground::peer::Caller;
use crate::ground::target::{Scheme, Target, port};
use crate::policy_local::is_host;

/// Returns what the policy of `snapshot` says about a `method` request of `caller` for `url`. It
/// looks up no name. Blocks.
///
/// # Errors
/// `url` is none of HTTP, and says what it must be.
pub(super) fn explain(
    snapshot: &Snapshot,
    caller: &Caller,
    url: &str,
    method: &str,
) -> Result<Value, &'static str> {
    let uri: Uri = url.parse().map_err(|_| "url is not a URL")?;
    let scheme = match uri.scheme_str() {
        Some("http") => Scheme::Http,
        Some("https") => Scheme::Https,
        _ => return Err("url begins with http:// or https://"),
    };
    let authority = uri.authority().ok_or("url names no host")?;
    let host = Host::parse(authority.host()).map_err(|_| "the host of url is none")?;
    // The library treats a malformed port as a missing one.
    let written = authority.as_str().rsplit('@').next().unwrap_or_default();
    let after_host = written.get(authority.host().len()..).unwrap_or_default();
    let port = match after_host.strip_prefix(':') {
        Some(written) => port(written).ok_or("the port of url is none")?,
        None => scheme.default_port(),
    };
    let target = Target { host, port };
    if is_host(&target) {
        return Ok(json!({"verdict": "allowed", "note": "the sandbox itself answers there"}));
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let subject = Subject {
        request: format!("{method} {target}{}", uri.path()),
        target: Some(target.clone()),
        caller: Some(caller.clone()),
        is_inside: true,
    };
    let judged = connection::judge(snapshot, caller, &target, || Ok(())).and_then(|permit| {
        let judged = verdict::ask(&permit, method, path)?;
        Ok((permit, judged))
    });
    Ok(match judged {
        Ok((permit, judged)) => json!({
            "verdict": "allowed",
            "policy": judged.policy().or(permit.policy()),
            "note": "the host was not looked up; its addresses are checked when it is connected to",
        }),
        Err(refusal) => refused(&refusal, &subject),
    })
}

fn refused(refusal: &Refusal, subject: &Subject) -> Value {
    let response = reply::refused(refusal, subject, &Guidance::default());
    let mut facts: Value = serde_json::from_slice(response.body()).unwrap_or_default();
    if let Some(facts) = facts.as_object_mut() {
        facts.insert("verdict".to_owned(), "refused".into());
    }
    facts
}
