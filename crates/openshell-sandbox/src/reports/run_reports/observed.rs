//! The policy of an observed run, as text that a later run can add to.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_events::denial::UnmatchedRequest;
use openshell_policy::document::StaticParts;
use openshell_policy::filesystem::GrantedPath;
use openshell_policy::issuers::Issuers;
use openshell_policy::network::endpoint::{Endpoint, Enforcement, L7, Protocol, TlsMode};
use openshell_policy::network::rpc::RpcRule;
use openshell_policy::network::rule::{Glob, HttpRule};
use openshell_policy::policy::Policy;
use openshell_policy::proposal::{ProposedEndpoint, by_place, is_one_program, quoted};
use openshell_policy::yaml;
use openshell_proxy::report::observe::Observation;
use openshell_proxy::secrets::needles::Needles;
use serde_json::Value;

use crate::reports::run_reports::observed_files::Learned;
use crate::reports::run_reports::output_file::OutputFile;

/// How the first line of an observed policy begins.
const OBSERVED: &str = "# Observed, not reviewed: ";

/// How the comments of an observed policy begin. Merging does not keep them.
const INCOMPLETE: &str = "# Incomplete: ";
const LEFT_OUT: &str = "# Left out: ";
const PATHS: &str = "# paths: ";
const NOT_GRANTED: &str = "# Not granted: ";
const CACHES: &str = "# Caches: ";

/// The most paths in comments of one kind.
const LINES: usize = 16;

/// Paths that an observed policy lists and the policy of its run does not, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LearnedPaths {
    read_only: BTreeSet<String>,
    read_write: BTreeSet<String>,
    hidden: BTreeSet<String>,
}

impl LearnedPaths {
    /// Returns the paths that `policy` lists and `started` does not.
    fn beyond(policy: &Policy, started: &Policy) -> Self {
        let texts = |paths: &[GrantedPath], known: &[GrantedPath]| {
            let is_new = |path: &&GrantedPath| !known.contains(path);
            paths
                .iter()
                .filter(is_new)
                .map(|path| path.to_string())
                .collect()
        };
        let policy = policy.filesystem();
        let started = started.filesystem();
        Self {
            read_only: texts(&policy.read_only, &started.read_only),
            read_write: texts(&policy.read_write, &started.read_write),
            hidden: texts(&policy.hidden, &started.hidden),
        }
    }

    /// Adds what was `learned`, and hides the `private` paths within it.
    pub(super) fn with(
        mut self,
        learned: &Learned,
        private: &[GrantedPath],
        home: Option<&Home>,
    ) -> Self {
        // A private path that was made during the run was not hidden, so the command may have read
        // it.
        let is_public = |path: &&PathBuf| {
            !private
                .iter()
                .any(|private| path.starts_with(private.as_path()))
        };
        let read: Vec<_> = learned.read.iter().filter(is_public).collect();
        let is_in =
            |path: &&GrantedPath| read.iter().any(|folder| path.as_path().starts_with(folder));
        let text = |path: &Path| written_path(path, home);
        self.hidden.extend(
            private
                .iter()
                .filter(is_in)
                .filter_map(|path| text(path.as_path())),
        );
        self.read_write.extend(
            learned
                .written
                .iter()
                .filter(is_public)
                .filter_map(|path| text(path)),
        );
        self.read_only
            .extend(read.iter().filter_map(|path| text(path)));
        self.read_only.extend(
            learned
                .missing
                .iter()
                .filter(is_public)
                .filter_map(|path| text(path))
                .map(|path| format!("{path}/")),
        );
        // Drops a path below a writable one, because listing it would forbid writing it. Drops a
        // path that is listed as missing if something below it was found.
        let writable = &self.read_write;
        let all = self.read_only.clone();
        self.read_only.retain(|path| {
            let is_within = |above: &String| Path::new(path).starts_with(above);
            let is_found = || {
                all.iter()
                    .any(|other| other != path && Path::new(other).starts_with(path))
            };
            let is_covered = all
                .iter()
                .any(|other| other != path && !other.ends_with('/') && is_within(other));
            !(writable.iter().any(is_within) || is_covered || path.ends_with('/') && is_found())
        });
        self
    }

    fn is_empty(&self) -> bool {
        self == &Self::default()
    }
}

/// The home of the workload's user, without symlinks.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) path: PathBuf,
    /// True if `~` in a policy means this path.
    is_tilde: bool,
}

impl Home {
    /// Returns the home at `path`, if there is one.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let real = std::fs::canonicalize(path).ok()?;
        Some(Self {
            is_tilde: real == path,
            path: real,
        })
    }
}

/// Returns `path` as a policy names it, with `~` for the user's home; `None` if a policy cannot
/// name only this path, or it is not UTF-8.
fn written_path(path: &Path, home: Option<&Home>) -> Option<String> {
    let home = home.filter(|home| home.is_tilde);
    let text = match home.and_then(|home| path.strip_prefix(&home.path).ok()) {
        Some(rest) => format!("~/{}", rest.to_str()?),
        None => path.to_str()?.to_owned(),
    };
    GrantedPath::parse(&text).is_ok().then_some(text)
}

/// What earlier observations found and this run keeps.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    pub(super) endpoints: Vec<Observation>,
    pub(super) paths: LearnedPaths,
}

/// Returns what an earlier observation wrote to `output`; nothing if it is not to be merged.
///
/// # Errors
/// Fails if something else wrote the file, or if it was changed so that writing it again under
/// `started` would lose something.
pub(super) fn earlier(
    output: &mut OutputFile,
    started: &Policy,
    is_merged: bool,
) -> anyhow::Result<Earlier> {
    let text = output.written_by("--observe", OBSERVED)?;
    if text.is_empty() || !is_merged {
        return Ok(Earlier::default());
    }
    let path = output.path().display();
    let text = text.as_str();
    let (policy, _) = yaml::policy(text).with_context(|| format!("--observe-merge {path}"))?;
    let mut all = Vec::new();
    for (name, network) in policy.network() {
        for (binary, endpoint) in network
            .binaries
            .iter()
            .flat_map(|binary| network.endpoints.iter().map(move |e| (binary, e)))
        {
            let observations = observations(&binary.to_string(), endpoint);
            all.extend(observations.with_context(|| {
                format!(
                    "--observe-merge {path}: network_policies.{} holds more than --observe \
                         writes; name another file, or leave --observe-merge out",
                    name.as_str()
                )
            })?);
        }
    }
    let earlier = Earlier {
        endpoints: united(all, Vec::new()),
        paths: LearnedPaths::beyond(&policy, started),
    };
    let written = observed_policy(
        started,
        earlier.endpoints.clone(),
        &earlier.paths,
        &Learned::default(),
    );
    if let Some(line) = first_difference(text, &written) {
        bail!(
            "--observe-merge {path}: line {line} is not as --observe writes it under this policy, \
             and would be lost; name another file, or leave --observe-merge out to replace this \
             one"
        );
    }
    Ok(earlier)
}

/// Returns the number of the first line in which `text` differs from `written`, ignoring the
/// comments of an observed policy.
fn first_difference(text: &str, written: &str) -> Option<usize> {
    let is_comment = |line: &str| {
        [OBSERVED, INCOMPLETE, LEFT_OUT, PATHS, NOT_GRANTED, CACHES]
            .iter()
            .any(|known| line.starts_with(known))
    };
    let content = |line: &&str| !is_comment(line.trim_start());
    let mut written = written.lines().filter(content);
    let mut there = text.lines().enumerate().filter(|(_, line)| content(line));
    let changed = there
        .find(|(_, line)| written.next() != Some(line))
        .map(|(index, _)| index + 1);
    changed.or_else(|| written.next().map(|_| text.lines().count()))
}

/// Returns an observed endpoint of `program` as one observation per port; `None` if the endpoint
/// has a part that is never observed.
fn observations(program: &str, endpoint: &Endpoint) -> Option<Vec<Observation>> {
    let host = endpoint.host()?.to_string();
    let internal = endpoint
        .allowed_ips()
        .iter()
        .map(|range| range.to_string().parse().ok())
        .collect::<Option<Vec<_>>>()?;
    let is_every_path = |rule: &HttpRule| rule.path == Glob::everything() && rule.query.is_empty();
    let (mut methods, mut messages) = (BTreeSet::new(), BTreeSet::new());
    match endpoint.l7() {
        None if endpoint.path().is_none() => {}
        Some(l7) if l7.protocol == Protocol::Mcp => messages = observed_messages(endpoint, l7)?,
        Some(l7)
            if endpoint.path().is_none()
                && l7.enforcement == Enforcement::Enforce
                && l7.deny_rules.is_empty() =>
        {
            let rules = l7
                .rules
                .iter()
                .map(|rule| Some(rule.method.as_str().to_owned()).filter(|_| is_every_path(rule)));
            methods = rules.collect::<Option<_>>()?;
        }
        _ => return None,
    }
    if endpoint.tls() == TlsMode::Skip || program.contains('*') || host.contains('*') {
        return None;
    }
    let of_port = |port: &NonZeroU16| Observation {
        program: program.to_owned(),
        host: host.clone(),
        port: port.get(),
        internal: internal.clone(),
        is_opaque: endpoint.l7().is_none(),
        methods: methods.clone(),
        messages: messages.clone(),
        paths: Vec::new(),
        has_encoded_slash: endpoint.allow_encoded_slash(),
        is_tcp: endpoint.is_tcp(),
    };
    Some(endpoint.ports().iter().map(of_port).collect())
}

/// Returns the messages that the rules `l7` of `endpoint` allow; `None` if they have a part that is
/// never observed.
fn observed_messages(endpoint: &Endpoint, l7: &L7) -> Option<BTreeSet<UnmatchedRequest>> {
    let path = endpoint.path()?.as_str();
    let rpc = l7.rpc.as_ref()?;
    if l7.enforcement != Enforcement::Enforce || !rpc.deny_rules.is_empty() {
        return None;
    }
    let message = |rule: &RpcRule| {
        let asked = match (rule.tools.as_deref(), &rule.uri, &rule.name) {
            (Some([tool]), None, None) => Some(("tool", tool.as_str())),
            (None, Some(uri), None) => Some(("uri", uri.as_str())),
            (None, None, Some(name)) => Some(("name", name.as_str())),
            (None, None, None) => None,
            _ => return None,
        };
        Some(UnmatchedRequest {
            endpoint_path: Some(path.to_owned()),
            protocol: l7.protocol.as_str(),
            method: rule.method.as_ref()?.as_str().to_owned(),
            asked: asked.map(|(key, value)| (key, value.to_owned())),
        })
    };
    rpc.rules.iter().flatten().map(message).collect()
}

/// Merges both lists, ordered by program. An endpoint in both lists gets what either needs.
pub(super) fn united(before: Vec<Observation>, now: Vec<Observation>) -> Vec<Observation> {
    let mut all: BTreeMap<(String, String, u16), Observation> = BTreeMap::new();
    for seen in before.into_iter().chain(now) {
        match all.entry((seen.program.clone(), seen.host.clone(), seen.port)) {
            Entry::Vacant(place) => drop(place.insert(seen)),
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.is_opaque |= seen.is_opaque;
                known.methods.extend(seen.methods);
                known.messages.extend(seen.messages);
                if known.is_opaque {
                    known.methods.clear();
                    known.messages.clear();
                }
                known.internal.extend(seen.internal);
                known.internal.sort_unstable();
                known.internal.dedup();
                known.paths.extend(seen.paths);
                known.has_encoded_slash |= seen.has_encoded_slash;
                known.is_tcp &= seen.is_tcp;
            }
        }
    }
    all.into_values().collect()
}

/// Returns the endpoints of one host and port, a line each, with rules for the methods and messages
/// that were used. Paths of requests are only a comment, because the next run may request others of
/// the same kind.
fn observed_endpoints(seen: &Observation) -> String {
    let request = |method: &String| UnmatchedRequest {
        endpoint_path: None,
        protocol: "rest",
        method: method.clone(),
        asked: Some(("path", "**".to_owned())),
    };
    let requests: BTreeSet<_> = seen.methods.iter().map(request).collect();
    let endpoint = |requests| ProposedEndpoint {
        allow_encoded_slash: seen.has_encoded_slash,
        ..ProposedEndpoint::new(&seen.host, seen.port, &seen.internal, requests)
    };
    let mut text = String::new();
    if !requests.is_empty() || seen.is_opaque {
        let mut written = endpoint(requests).to_flow();
        if seen.is_tcp && written.pop().is_some() {
            written.push_str(", protocol: tcp}");
        }
        text.push_str(&format!("      - {written}\n"));
    }
    let messages = by_place(&seen.messages).into_values();
    for messages in messages {
        text.push_str(&format!("      - {}\n", endpoint(messages).to_flow()));
    }
    if !seen.paths.is_empty() {
        let paths: Vec<_> = seen.paths.iter().map(|path| quoted(path)).collect();
        text.push_str(&format!("        {PATHS}{}\n", paths.join(" ")));
    }
    text
}

/// Returns the smallest policy under which a run like the observed one passes. It has the parts of
/// `started` except the network, the learned `paths`, and `all` endpoints that each program used.
/// Comments name what was `learned` in this run but is not granted.
pub(super) fn observed_policy(
    started: &Policy,
    all: Vec<Observation>,
    paths: &LearnedPaths,
    learned: &Learned,
) -> String {
    let mut text = notes(learned);
    let needles = Needles::new(Issuers::known().into_shapes(), std::iter::empty());
    // People pass the policy on, so it must not hold secrets.
    let has_secret = |text: &str| needles.finds_any(text.as_bytes());
    let mut hides_messages = false;
    let mut without_secrets = |mut seen: Observation| {
        seen.paths.retain(|path| !has_secret(path));
        let count = seen.messages.len();
        seen.messages.retain(|message| {
            let path = message.endpoint_path.as_deref().unwrap_or_default();
            let asked = message.asked.as_ref().map_or("", |(_, asked)| asked);
            ![path, &message.method, asked].into_iter().any(has_secret)
        });
        hides_messages |= seen.messages.len() < count;
        seen
    };
    let all: Vec<_> = all.into_iter().map(&mut without_secrets).collect();
    if hides_messages {
        text.push_str(&format!("{LEFT_OUT}messages that hold a secret.\n"));
    }
    let is_described = |seen: &Observation| {
        seen.is_opaque || !seen.methods.is_empty() || !seen.messages.is_empty()
    };
    let all = all.into_iter().filter(is_described);
    let (mut all, others): (Vec<_>, Vec<_>) = all.partition(|seen| is_one_program(&seen.program));
    share_addresses(&mut all);
    if !others.is_empty() {
        text.push_str(&format!(
            "{LEFT_OUT}programs whose paths hold a `*`, which would match others too.\n"
        ));
    }
    // Writing a valid policy cannot fail.
    let parts = serde_json::to_value(StaticParts::of(started)).unwrap_or_default();
    text.push_str(&filesystem_policy(&parts["filesystem_policy"], paths));
    for key in ["landlock", "process"] {
        text.push_str(&format!("{key}: {}\n", parts[key]));
    }
    if all.is_empty() {
        text.push_str("network_policies: {}\n");
        return text;
    }
    text.push_str(&network_policies(&all));
    text
}

/// Gives the endpoints of all programs for a server of messages the same addresses: beside one with a
/// `path` they must have the same.
fn share_addresses(all: &mut [Observation]) {
    let mut shared: BTreeMap<(String, u16), BTreeSet<IpAddr>> = BTreeMap::new();
    for seen in all.iter().filter(|seen| !seen.messages.is_empty()) {
        shared.insert((seen.host.clone(), seen.port), BTreeSet::new());
    }
    for seen in all.iter() {
        if let Some(addresses) = shared.get_mut(&(seen.host.clone(), seen.port)) {
            addresses.extend(&seen.internal);
        }
    }
    for seen in all {
        if let Some(addresses) = shared.get(&(seen.host.clone(), seen.port)) {
            seen.internal = addresses.iter().copied().collect();
        }
    }
}

/// Returns the section about the network, with one policy per program.
fn network_policies(all: &[Observation]) -> String {
    let mut text = "network_policies:\n".to_owned();
    for (index, of_program) in all
        .chunk_by(|one, other| one.program == other.program)
        .enumerate()
    {
        let program = of_program
            .first()
            .map_or("", |observation| observation.program.as_str());
        let name: String = program
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(64)
            .collect();
        let endpoints: String = of_program.iter().map(observed_endpoints).collect();
        // The number distinguishes programs with the same name.
        text.push_str(&format!(
            "  {name}_{}:\n    endpoints:\n{endpoints}",
            index + 1
        ));
        text.push_str(&format!(
            "    binaries:\n      - {{path: {}}}\n",
            quoted(program)
        ));
    }
    text
}

/// Returns the comments at the beginning of an observed policy.
fn notes(learned: &Learned) -> String {
    let mut text = format!(
        "{OBSERVED}what was used while nothing was refused. Look at each line before you enforce \
         it.\n"
    );
    if learned.is_incomplete {
        text.push_str(&format!(
            "{INCOMPLETE}the run used more endpoints, messages or files than are kept, or than rules can \
             name.\n"
        ));
    }
    for path in learned.not_written.iter().take(LINES) {
        let path = quoted(&path.to_string_lossy());
        text.push_str(&format!(
            "{NOT_GRANTED}writing to {path}; list it, or its folder, in read_write if that is \
             needed.\n"
        ));
    }
    if let Some(count) = learned
        .not_written
        .len()
        .checked_sub(LINES)
        .filter(|count| *count > 0)
    {
        text.push_str(&format!("{NOT_GRANTED}{count} more.\n"));
    }
    let is_unsaid = |path: &&PathBuf| written_path(path, None).is_none();
    let unsaid = learned
        .read
        .iter()
        .chain(&learned.written)
        .chain(&learned.missing)
        .filter(is_unsaid)
        .count();
    if unsaid > 0 {
        text.push_str(&format!(
            "{LEFT_OUT}{unsaid} paths that hold a `*`, which would match others too, or are not \
             text.\n"
        ));
    }
    for folder in learned.not_listed.iter().take(LINES) {
        let folder = quoted(&folder.to_string_lossy());
        text.push_str(&format!(
            "{LEFT_OUT}the names in {folder}; whoever may list a folder may read all that is in \
             it.\n"
        ));
    }
    text
}

/// Returns the section about files, in which each learned path has its own line.
fn filesystem_policy(started: &Value, paths: &LearnedPaths) -> String {
    if paths.is_empty() {
        return format!("filesystem_policy: {started}\n");
    }
    let mut text = "filesystem_policy:\n".to_owned();
    let mut section = started.as_object().cloned().unwrap_or_default();
    for (key, learned) in [
        ("read_only", &paths.read_only),
        ("read_write", &paths.read_write),
        ("hidden", &paths.hidden),
    ] {
        let listed = section.remove(key);
        let listed = listed
            .iter()
            .filter_map(Value::as_array)
            .flatten()
            .filter_map(Value::as_str);
        let lines: Vec<_> = listed
            .chain(learned.iter().map(String::as_str))
            .map(quoted)
            .collect();
        if key == "read_write" && !learned.is_empty() {
            text.push_str(&format!(
                "  {CACHES}programs outside use what a command writes to them, and may run it.\n"
            ));
        }
        if !lines.is_empty() {
            text.push_str(&format!("  {key}:\n    - {}\n", lines.join("\n    - ")));
        }
    }
    text.extend(
        section
            .iter()
            .map(|(key, value)| format!("  {key}: {value}\n")),
    );
    text
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, Write};
    use std::path::PathBuf;

    use openshell_policy::yaml;
    use openshell_proxy::report::observe::Observation;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::{BTreeSet, Home, LearnedPaths, UnmatchedRequest, earlier, observed_policy, united};
    use crate::reports::run_reports::learning;
    use crate::reports::run_reports::observed_files::Learned;
    use crate::reports::run_reports::output_file::OutputFile;

    #[test]
    fn merging_takes_all_that_observing_writes() {
        let call = |method: &str, asked: Option<(&'static str, &str)>| UnmatchedRequest {
            endpoint_path: Some("/mcp".to_owned()),
            protocol: "mcp",
            method: method.to_owned(),
            asked: asked.map(|(key, value)| (key, value.to_owned())),
        };
        let messages = [
            call("initialize", None),
            call("tools/call", Some(("tool", "get_issue"))),
            call("tools/call", Some(("tool", "a\\*"))),
            call("resources/read", Some(("uri", "docs://one"))),
            call("prompts/get", Some(("name", "review"))),
        ];
        let seen = |program: &str, host: &str, internal: &[&str], methods: &[&str]| Observation {
            program: program.to_owned(),
            host: host.to_owned(),
            port: 8080,
            internal: internal
                .iter()
                .map(|address| address.parse().unwrap())
                .collect(),
            is_opaque: methods.is_empty() && !host.contains("mcp"),
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
            paths: methods
                .iter()
                .map(|method| format!("/{method} #\n\""))
                .collect(),
            messages: if host.contains("mcp") || methods.contains(&"POST") {
                messages.clone().into()
            } else {
                BTreeSet::new()
            },
            has_encoded_slash: methods.len() > 1,
            is_tcp: host == "10.9.0.1",
        };
        let all = vec![
            seen("/usr/bin/curl", "a.test", &[], &["POST", "GET"]),
            seen("/usr/bin/curl", "10.9.0.1", &["10.9.0.1"], &[]),
            seen("/usr/bin/curl", "mcp.test", &[], &[]),
            seen(
                "/usr/local/bin/curl",
                "fd00::7",
                &["fd00::7"],
                &["M-SEARCH"],
            ),
            seen(
                "/opt/a \"b\"",
                "b.test",
                &["192.168.0.9", "10.0.0.2", "fd00::1"],
                &["GET"],
            ),
            seen("/opt/*", "left-out.test", &[], &[]),
        ];
        let started = "process: {run_as_user: \"1000\"}\nfilesystem_policy: {read_only: [/usr], \
                       read_write: [/tmp/b, /tmp/a]}\n";
        let (started, _) = yaml::policy(started).unwrap();
        let mut file = File::from(memfd_create("observed", MemfdFlags::CLOEXEC).unwrap());
        let learned = Learned {
            read: [
                "/home/kim/.npmrc",
                "/home/kim/.cache/uv/x",
                "/opt/a \"b\"",
                "/opt/left*",
            ]
            .map(PathBuf::from)
            .into(),
            missing: [
                "/home/kim/.config/git",
                "/home/kim/.cache/pip/x",
                "/home/kim/.npmrc",
            ]
            .map(PathBuf::from)
            .into(),
            written: [PathBuf::from("/home/kim/.cache/pip")].into(),
            not_listed: [PathBuf::from("/home/kim")].into(),
            not_written: [PathBuf::from("/home/kim/.npm")].into(),
            is_incomplete: true,
        };
        let home = Home {
            path: PathBuf::from("/home/kim"),
            is_tilde: true,
        };
        let before = LearnedPaths {
            read_write: ["~/.cache/uv".to_owned()].into(),
            ..LearnedPaths::default()
        };
        let homes = [home.path.clone()].into();
        let private = learning::private_paths(&homes, started.filesystem());
        let paths = before.with(&learned, &private, Some(&home));
        assert_eq!(
            paths.read_only,
            ["/opt/a \"b\"", "~/.config/git/", "~/.npmrc"]
                .map(str::to_owned)
                .into()
        );
        file.write_all(
            observed_policy(&started, united(Vec::new(), all), &paths, &learned).as_bytes(),
        )
        .unwrap();
        file.rewind().unwrap();
        let mut output = OutputFile::of("observed.yaml".into(), file);
        let earlier = earlier(&mut output, &started, true).unwrap();
        assert_eq!((earlier.endpoints.len(), earlier.paths), (5, paths));
    }
}
