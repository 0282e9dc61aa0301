//! Strict readers of the YAML documents: policies, credentials, inference routes. Every violation
//! is reported with its path and line.

mod arguments;
mod credentials;
pub mod insert;
mod keys;
mod merge;
mod network;
mod node;
mod reader;
mod routes;
mod rpc;

use std::path::Path;

use crate::approvals::{self, Approvals};
use crate::credential::CredentialSpec;
use crate::filesystem::{BASELINE, BaselineAccess, Compatibility, Filesystem, GrantedPath};
use crate::inference::RouteFile;
use crate::network::NetworkPolicies;
use crate::network::endpoint::Endpoint;
use crate::network::overlap::{Cause, Conflict, conflicts};
use crate::policy::Policy;
use crate::process::{Identity, Processes, RunAs};
use crate::violation::{
    FieldPath, ReadOnlyWritable, Violation, ViolationKind, Violations, Warning, WarningKind,
};
pub use merge::merged;
use node::{Node, Value};
use reader::{At, Reader};

/// Largest document in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 4 * 1024 * 1024;

/// Reads a policy document. JSON is accepted too, because it is a subset of YAML.
///
/// # Errors
/// Fails with all violations in the order of the document; a syntax error hides the others.
pub fn policy(document: &str) -> Result<(Policy, Vec<Warning>), Violations> {
    read(document, read_policy)
}

/// Reads a gateway's policy, given as a document. Its endpoints may name features that this build
/// does not have (`unsupported`).
///
/// # Errors
/// Fails as [`policy`] does.
pub fn policy_of_gateway(document: &str) -> Result<(Policy, Vec<Warning>), Violations> {
    read(document, |reader, at| {
        reader.is_of_gateway = true;
        read_policy(reader, at)
    })
}

fn read_policy(reader: &mut Reader, at: &At<'_>) -> Option<Policy> {
    let mut fields = reader.mapping(
        at,
        &[
            "version",
            "filesystem_policy",
            "landlock",
            "process",
            "network_policies",
            "approvals",
        ],
    )?;
    version(reader, fields.take("version"));
    let compatibility = landlock(reader, fields.take("landlock"));
    let filesystem = filesystem(reader, fields.take("filesystem_policy"), compatibility);
    let processes = processes(reader, fields.take("process"));
    let approvals = approvals(reader, fields.take("approvals"));
    let policies = fields
        .take("network_policies")
        .map(|at| network::policies(reader, &at))
        .unwrap_or_default();
    if reader.has_violations() {
        return None;
    }
    report_conflicts(reader, at, &policies);
    match Policy::new(filesystem, processes, policies) {
        Ok(policy) => Some(policy.asking(approvals)),
        Err(violations) => {
            for (path, kind) in violations {
                reader.reject_at_path(at, path, kind);
            }
            None
        }
    }
}

/// Reports the endpoints that contradict another one. At a gateway they are refused connections, and
/// the rest of its policy is used.
fn report_conflicts(reader: &mut Reader, root: &At<'_>, policies: &NetworkPolicies) {
    for Conflict { at, other, cause } in conflicts(policies) {
        let path = at.path();
        let other = other.to_string();
        let (violation, warning) = match cause {
            Cause::Key(key) => (
                ViolationKind::EndpointsDiffer {
                    other: other.clone(),
                    key,
                },
                WarningKind::EndpointsDiffer { other, key },
            ),
            Cause::Protocol => (
                ViolationKind::ProtocolsDiffer(other.clone()),
                WarningKind::ProtocolsDiffer(other),
            ),
        };
        if reader.is_of_gateway {
            reader.warn_at_path(root, path, warning);
        } else {
            reader.reject_at_path(root, path, violation);
        }
    }
}

/// Reads a list of endpoints in the form of a policy document.
///
/// # Errors
/// Fails with all violations in the order of the document.
pub fn endpoints(document: &str) -> Result<Vec<Endpoint>, Violations> {
    let (endpoints, _) = read(document, |reader, at| {
        let items = reader.sequence(at)?;
        Some(
            items
                .iter()
                .filter_map(|item| network::endpoint(reader, item))
                .collect(),
        )
    })?;
    Ok(endpoints)
}

/// Reads a credentials document and wipes its parsed texts, so that only the secrets themselves
/// remain. Rejects names for which `is_taken` returns true.
///
/// # Errors
/// Fails with all violations in the order of the document.
pub fn credentials(
    document: &str,
    is_taken: impl Fn(&str) -> bool,
) -> Result<(Vec<CredentialSpec>, Vec<Warning>), Violations> {
    read(document, |reader, at| {
        credentials::credentials(reader, at, is_taken)
    })
}

/// Reads an inference route document.
///
/// # Errors
/// Fails with all violations in the order of the document.
pub fn routes(document: &str) -> Result<RouteFile, Violations> {
    read(document, routes::routes).map(|(file, _)| file)
}

fn read<T>(
    document: &str,
    build: impl FnOnce(&mut Reader, &At<'_>) -> Option<T>,
) -> Result<(T, Vec<Warning>), Violations> {
    let whole = |line, kind| {
        Violations(vec![Violation {
            path: FieldPath::root(),
            line,
            kind,
        }])
    };
    if document.len() > MAX_DOCUMENT_BYTES {
        let kind = ViolationKind::DocumentTooLarge {
            bytes: document.len(),
            limit: MAX_DOCUMENT_BYTES,
        };
        return Err(whole(None, kind));
    }
    let mut root = Node::parse(document)
        .map_err(|(line, problem)| whole(line, ViolationKind::Syntax(problem)))?;
    let mut reader = Reader::default();
    let built = build(&mut reader, &At::root(&root));
    root.wipe();
    reader.finish(built)
}

fn version(reader: &mut Reader, at: Option<At<'_>>) {
    let Some(at) = at else { return };
    match at.node.value() {
        Value::Integer(1) => {}
        Value::Integer(other) => {
            reader.reject(&at, ViolationKind::UnknownVersion(other.to_string()))
        }
        other => reader.reject(
            &at,
            ViolationKind::WrongType {
                expected: "the number 1",
                found: other.kind(),
            },
        ),
    }
}

fn filesystem(reader: &mut Reader, at: Option<At<'_>>, compatibility: Compatibility) -> Filesystem {
    let defaults = Filesystem {
        compatibility,
        ..Filesystem::default()
    };
    let Some(at) = at else { return defaults };
    let Some(mut fields) = reader.mapping(
        &at,
        &[
            "include_workdir",
            "read_only",
            "read_write",
            "hidden",
            "noexec",
        ],
    ) else {
        return defaults;
    };
    let mut paths =
        |reader: &mut Reader, key, parse: fn(&str) -> Result<GrantedPath, ViolationKind>| {
            let items = fields
                .take(key)
                .and_then(|at| reader.sequence(&at))
                .unwrap_or_default();
            items
                .into_iter()
                .filter_map(|item| Some((reader.text(&item, parse)?, item)))
                .collect::<Vec<_>>()
        };
    let read_only = paths(reader, "read_only", GrantedPath::parse_pattern);
    let read_write = paths(reader, "read_write", GrantedPath::parse);
    let hidden = paths(reader, "hidden", hidden_path);
    let noexec = paths(reader, "noexec", GrantedPath::parse_pattern);
    for (path, at) in &read_only {
        let Some(found) = writable_parent(path, &read_write) else {
            continue;
        };
        match compatibility {
            Compatibility::BestEffort => reader.warn(at, WarningKind::ReadOnlyWritable(found)),
            Compatibility::HardRequirement => {
                reader.reject(at, ViolationKind::ReadOnlyWritable(found))
            }
        }
    }
    let [only_read, read_write, only_hidden, noexec] = [&read_only, &read_write, &hidden, &noexec]
        .map(|paths| paths.iter().map(|(path, _)| path.clone()).collect());
    let filesystem = Filesystem {
        read_only: only_read,
        read_write,
        hidden: only_hidden,
        noexec,
        include_workdir: fields
            .take("include_workdir")
            .and_then(|at| reader.boolean(&at))
            .unwrap_or(defaults.include_workdir),
        compatibility,
    };
    reject_hidden_grant(reader, &filesystem, &hidden);
    filesystem
}

/// Rejects a `hidden` path that the policy grants.
fn reject_hidden_grant(
    reader: &mut Reader,
    filesystem: &Filesystem,
    hidden: &[(GrantedPath, At<'_>)],
) {
    let Some((path, granted)) = filesystem.hidden_grant() else {
        return;
    };
    let kind = ViolationKind::HiddenGrant {
        hidden: path.display().to_string(),
        granted: granted.display().to_string(),
    };
    for (_, at) in hidden.iter().filter(|(hidden, _)| hidden.as_path() == path) {
        reader.reject(at, kind.clone());
    }
}

/// Folders that cannot be hidden.
const NEEDED: &[&str] = &["/", "/proc", "/dev"];

fn hidden_path(text: &str) -> Result<GrantedPath, ViolationKind> {
    match GrantedPath::parse_pattern(text)? {
        path if NEEDED
            .iter()
            .any(|needed| path.as_path() == Path::new(needed))
            || path.as_path().starts_with("/proc") =>
        {
            Err(ViolationKind::PathNeeded(text.to_owned()))
        }
        path => Ok(path),
    }
}

/// Returns the grant that makes `path` writable although `read_only` lists it.
fn writable_parent(
    path: &GrantedPath,
    read_write: &[(GrantedPath, At<'_>)],
) -> Option<ReadOnlyWritable> {
    let shown = |path: &Path| path.display().to_string();
    let listed = read_write.iter().find(|(writable, _)| path == writable);
    let baseline = BASELINE
        .iter()
        .filter(|row| row.access == BaselineAccess::ReadWrite);
    let (writable, line) = match listed {
        Some((writable, at)) => (shown(writable.as_path()), Some(at.node.line())),
        None => (
            baseline
                .map(|row| row.path)
                .find(|row| path.as_path() == Path::new(row))?
                .to_owned(),
            None,
        ),
    };
    Some(ReadOnlyWritable {
        path: shown(path.as_path()),
        writable,
        line,
    })
}

fn landlock(reader: &mut Reader, at: Option<At<'_>>) -> Compatibility {
    let word = |word: &str| match word {
        "best_effort" => Ok(Compatibility::BestEffort),
        "hard_requirement" => Ok(Compatibility::HardRequirement),
        _ => Err(ViolationKind::UnknownWord {
            word: word.to_owned(),
            known: "best_effort, hard_requirement",
        }),
    };
    at.and_then(|at| {
        reader
            .mapping(&at, &["compatibility"])?
            .take("compatibility")
    })
    .and_then(|at| reader.text(&at, word))
    .unwrap_or(Compatibility::BestEffort)
}

fn approvals(reader: &mut Reader, at: Option<At<'_>>) -> Option<Approvals> {
    let at = at?;
    let Some(hold) = reader.mapping(&at, &["hold"])?.take("hold") else {
        reader.reject(&at, ViolationKind::Missing("hold"));
        return None;
    };
    let parse = |text: &str| approvals::hold(text).map_err(ViolationKind::from);
    let hold = match hold.node.value() {
        Value::Integer(seconds) => reader.check(&hold, parse(&seconds.to_string())),
        _ => reader.text(&hold, parse),
    };
    hold.map(|hold| Approvals { hold })
}

fn processes(reader: &mut Reader, at: Option<At<'_>>) -> Processes {
    let Some(mut fields) =
        at.and_then(|at| reader.mapping(&at, &["run_as_user", "run_as_group", "debug"]))
    else {
        return Processes::default();
    };
    let user = fields
        .take("run_as_user")
        .and_then(|at| identity(reader, &at));
    let group = fields
        .take("run_as_group")
        .and_then(|at| identity(reader, &at));
    let debug = fields
        .take("debug")
        .and_then(|at| reader.boolean(&at))
        .unwrap_or(false);
    Processes {
        run_as: RunAs { user, group },
        debug,
    }
}

fn identity(reader: &mut Reader, at: &At<'_>) -> Option<Identity> {
    match at.node.value() {
        Value::Integer(number) => reader.check(at, Identity::parse(&number.to_string())),
        _ => reader.text(at, Identity::parse),
    }
}

#[cfg(test)]
mod tests;
