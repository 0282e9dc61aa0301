//! Files that a run writes at its end: proposals for what was refused, the policy of what was observed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{Read, Seek, Write};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use openshell_policy::network::endpoint::{Endpoint, Enforcement, TlsMode};
use openshell_policy::network::rule::{Glob, HttpRule};
use openshell_policy::policy::Policy;
use openshell_policy::proposal::{self, endpoint, is_one_program, quoted};
use openshell_policy::yaml;
use openshell_proxy::decide::rego_data::static_data;
use openshell_proxy::observe::{Observation, Observations};
use openshell_proxy::resolve::lookup::Resolver;
use openshell_supervisor::resolve::resolve;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::logging;
use crate::refusals::Refusals;

/// What is written when the command has ended.
pub(crate) struct Results {
    resolver: Arc<Resolver>,
    proposals: Option<Output>,
    observed: Option<Observed>,
    started: Policy,
}

/// A file for what is observed.
struct Observed {
    output: Output,
    observations: Arc<Observations>,
    /// Endpoints that an earlier run wrote to it, where they are kept.
    before: Vec<Observation>,
}

impl Results {
    /// Opens what `config` asks for; `resolver` is asked for the names that were refused.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn prepare(config: &Config, started: &Policy, resolver: Arc<Resolver>) -> anyhow::Result<Self> {
        let open = |flag: &str, path: &Option<PathBuf>| {
            let output = path.as_ref().map(|path| Output::open(flag, path)).transpose()?;
            output.iter().try_for_each(|output| output.check_inputs(flag, config))?;
            anyhow::Ok(output)
        };
        let observed = match open("--observe", &config.observe)? {
            Some(mut output) => {
                let before = earlier(&mut output, started, config.observe_merge)?;
                Some(Observed { output, observations: Arc::default(), before })
            }
            None => None,
        };
        if observed.is_some() {
            let message = "OBSERVING: connections that the policy refuses are permitted, to internal addresses too";
            logging::config_event("DEGRADED", "HIGH", message);
        }
        let proposals = match open("--proposals", &config.proposals)? {
            Some(mut output) => {
                let empty = proposal::fragment(&[]);
                let first = empty.split_once('\n').map_or(empty.as_str(), |(first, _)| first);
                output.written_by("--proposals", first)?;
                Some(output)
            }
            None => None,
        };
        Ok(Self { resolver, proposals, observed, started: started.clone() })
    }

    /// Where what is observed is gathered, if it is.
    pub(crate) fn observations(&self) -> Option<Arc<Observations>> {
        self.observed.as_ref().map(|observed| Arc::clone(&observed.observations))
    }

    /// Writes what was refused, or what was observed.
    ///
    /// # Errors
    /// The disk is full, say.
    pub(crate) async fn write(&mut self, refusals: &Refusals) -> anyhow::Result<()> {
        if let Some(output) = &mut self.proposals {
            let addresses = look_up(&self.resolver, refusals.hosts()).await;
            output.write(&refusals.proposals(&addresses))?;
        }
        if let Some(Observed { output, observations, before }) = &mut self.observed {
            let (all, is_complete) = observations.all();
            output.write(&observed_policy(&self.started, united(std::mem::take(before), all), is_complete))?;
        }
        Ok(())
    }
}

/// Beginning of the first line of an observed policy.
const OBSERVED: &str = "# Observed, not reviewed: ";

/// Beginnings of the comments of an observed policy, which merging does not keep.
const INCOMPLETE: &str = "# Incomplete: ";
const LEFT_OUT: &str = "# Left out: ";
const PATHS: &str = "# paths: ";

/// Endpoints that an earlier observation wrote to `output`, if they are to be kept.
///
/// # Errors
/// The file was written by something else, or changed so that writing it again under `started` would lose something.
fn earlier(output: &mut Output, started: &Policy, is_merged: bool) -> anyhow::Result<Vec<Observation>> {
    let text = output.written_by("--observe", OBSERVED)?;
    if text.is_empty() || !is_merged {
        return Ok(Vec::new());
    }
    let (path, text) = (output.path.display(), text.as_str());
    let (policy, _) = yaml::policy(text).with_context(|| format!("--observe-merge {path}"))?;
    let mut all = Vec::new();
    for (name, network) in policy.network() {
        for (binary, endpoint) in
            network.binaries.iter().flat_map(|binary| network.endpoints.iter().map(move |e| (binary, e)))
        {
            let observations = observations(&binary.to_string(), endpoint);
            all.extend(observations.with_context(|| {
                format!("--observe-merge {path}: network_policies.{} holds more than --observe writes; name another file, or leave --observe-merge out", name.as_str())
            })?);
        }
    }
    let all = united(all, Vec::new());
    if let Some(line) = first_difference(text, &observed_policy(started, all.clone(), true)) {
        bail!(
            "--observe-merge {path}: line {line} is not as --observe writes it under this policy, and would be lost; name another \
             file, or leave --observe-merge out to replace this one"
        );
    }
    Ok(all)
}

/// The number of the first line of `text` that is not in its place in `written`, the comments of an observed policy apart.
fn first_difference(text: &str, written: &str) -> Option<usize> {
    let is_comment = |line: &str| [OBSERVED, INCOMPLETE, LEFT_OUT, PATHS].iter().any(|known| line.starts_with(known));
    let content = |line: &&str| !is_comment(line.trim_start());
    let mut written = written.lines().filter(content);
    let mut there = text.lines().enumerate().filter(|(_, line)| content(line));
    let changed = there.find(|(_, line)| written.next() != Some(line)).map(|(index, _)| index + 1);
    changed.or_else(|| written.next().map(|_| text.lines().count()))
}

/// An observed endpoint of `program`, one for each port; `None` if it holds what is never observed.
fn observations(program: &str, endpoint: &Endpoint) -> Option<Vec<Observation>> {
    let host = endpoint.host()?.to_string();
    let internal =
        endpoint.allowed_ips().iter().map(|range| range.to_string().parse().ok()).collect::<Option<Vec<_>>>()?;
    let is_every_path = |rule: &HttpRule| rule.path == Glob::everything() && rule.query.is_empty();
    let methods = match endpoint.l7() {
        None => BTreeSet::new(),
        Some(l7) if l7.enforcement == Enforcement::Enforce && l7.deny_rules.is_empty() => {
            let rules =
                l7.rules.iter().map(|rule| Some(rule.method.as_str().to_owned()).filter(|_| is_every_path(rule)));
            rules.collect::<Option<_>>()?
        }
        Some(_) => return None,
    };
    if endpoint.tls() == TlsMode::Skip || endpoint.is_tcp() || program.contains('*') || host.contains('*') {
        return None;
    }
    let of_port = |port: &NonZeroU16| Observation {
        program: program.to_owned(),
        host: host.clone(),
        port: port.get(),
        internal: internal.clone(),
        methods: methods.clone(),
        paths: Vec::new(),
        has_encoded_slash: endpoint.allow_encoded_slash(),
    };
    Some(endpoint.ports().iter().map(of_port).collect())
}

/// Both lists as one, by program; an endpoint of both needs what either did.
fn united(before: Vec<Observation>, now: Vec<Observation>) -> Vec<Observation> {
    let mut all: BTreeMap<(String, String, u16), Observation> = BTreeMap::new();
    for seen in before.into_iter().chain(now) {
        match all.entry((seen.program.clone(), seen.host.clone(), seen.port)) {
            Entry::Vacant(place) => drop(place.insert(seen)),
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                // Without methods something was used that no rule for requests would see.
                let is_opaque = known.methods.is_empty() || seen.methods.is_empty();
                known.methods.extend(seen.methods);
                if is_opaque {
                    known.methods.clear();
                }
                known.internal.extend(seen.internal);
                known.internal.sort_unstable();
                known.internal.dedup();
                known.paths.extend(seen.paths);
                known.has_encoded_slash |= seen.has_encoded_slash;
            }
        }
    }
    all.into_values().collect()
}

/// Refused names that are looked up for proposals: each is something that the workload tells a name server.
const LOOKED_UP: usize = 32;

/// The addresses of `hosts`, as far as they can be had while the caller waits for the end.
async fn look_up(resolver: &Arc<Resolver>, hosts: BTreeSet<String>) -> BTreeMap<String, Vec<IpAddr>> {
    let mut lookups = JoinSet::new();
    for host in hosts.into_iter().take(LOOKED_UP) {
        let resolver = Arc::clone(resolver);
        lookups.spawn(async move { (resolver.addresses(&host).await, host) });
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut found = BTreeMap::new();
    while let Ok(Some(looked_up)) = timeout_at(deadline, lookups.join_next()).await {
        found.extend(looked_up.map(|(addresses, host)| (host, addresses)));
    }
    found
}

/// A file that is open from the start on: the workload may be able to write where it lies, and would be followed to where it
/// points by then.
#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    /// Opens it, through no symlink that is not root's alone.
    ///
    /// # Errors
    /// It cannot be made there, or is no regular file.
    fn open(flag: &str, path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path)?;
        let context = || format!("{flag} {} cannot be written", path.display());
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { bail!(context()) };
        let folder = resolve(folder).with_context(context)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened =
            rustix::fs::openat2(CWD, folder.join(name), flags, Mode::from_raw_mode(0o644), ResolveFlags::NO_SYMLINKS);
        let file = File::from(opened.with_context(context)?);
        if !file.metadata()?.is_file() {
            bail!("{}: it is no regular file", context());
        }
        Ok(Self { path, file })
    }

    /// Refuses a file that the run itself depends on.
    ///
    /// # Errors
    /// It is one, by whatever name.
    fn check_inputs(&self, flag: &str, config: &Config) -> anyhow::Result<()> {
        for (what, path) in config.inputs() {
            if let Ok(input) = std::fs::metadata(path)
                && self.is_at(input)?
            {
                let path = self.path.display();
                bail!("{flag} {path}: the file is the {what} of this run and would be overwritten; name another one");
            }
        }
        Ok(())
    }

    /// Whether `there` is of the same file.
    ///
    /// # Errors
    /// The file cannot be looked at.
    fn is_at(&self, there: Metadata) -> std::io::Result<bool> {
        let ours = self.file.metadata()?;
        Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    }

    /// The text in it, as far as it can be a policy document: one that begins with `first`, or none.
    ///
    /// # Errors
    /// The disk fails, or something else than an earlier run with `flag` wrote it.
    fn written_by(&mut self, flag: &str, first: &str) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        (&self.file).take(yaml::MAX_DOCUMENT_BYTES as u64).read_to_end(&mut bytes)?;
        match String::from_utf8(bytes) {
            Ok(text) if text.is_empty() || text.starts_with(first) => Ok(text),
            _ => {
                let path = self.path.display();
                bail!("{flag} {path}: the file exists and was not written by {flag}; name another one")
            }
        }
    }

    /// Replaces what is in it by `text`.
    ///
    /// # Errors
    /// The disk is full, say.
    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let written =
            self.file.set_len(0).and_then(|()| self.file.rewind()).and_then(|()| self.file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        // Whoever may write to the folder may have put another file in its place.
        let there = std::fs::symlink_metadata(&self.path);
        if !there.and_then(|there| self.is_at(there)).unwrap_or(false) {
            bail!(
                "{} was replaced during the run: what is there is not the sandbox's, do not use it",
                self.path.display()
            );
        }
        Ok(())
    }
}

/// One endpoint as a line, with rules for the methods that were used; what the requests were for is a comment, as the next run
/// may ask for other things of the same kind.
fn observed_endpoint(seen: &Observation) -> String {
    let rules = seen.methods.iter().map(|method| (method.clone(), "**".to_owned())).collect();
    let mut text =
        format!("      - {}\n", endpoint(&seen.host, seen.port, &seen.internal, &rules, seen.has_encoded_slash));
    if !seen.paths.is_empty() {
        let paths: Vec<_> = seen.paths.iter().map(|path| quoted(path)).collect();
        text.push_str(&format!("        {PATHS}{}\n", paths.join(" ")));
    }
    text
}

/// The smallest policy with which a run like the one that was observed passes: the parts of `started` that are not about the
/// network, and `all` that each program used of it.
fn observed_policy(started: &Policy, all: Vec<Observation>, is_complete: bool) -> String {
    let mut text =
        format!("{OBSERVED}what was used while nothing was refused. Look at each line before you enforce it.\n");
    if !is_complete {
        text.push_str(&format!("{INCOMPLETE}the run used more endpoints than are kept.\n"));
    }
    let (all, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|seen| is_one_program(&seen.program));
    if !others.is_empty() {
        text.push_str(&format!("{LEFT_OUT}programs whose paths hold a `*`, which would mean others too.\n"));
    }
    let parts = static_data(started);
    for key in ["filesystem_policy", "landlock", "process"] {
        text.push_str(&format!("{key}: {}\n", parts[key]));
    }
    if all.is_empty() {
        text.push_str("network_policies: {}\n");
        return text;
    }
    text.push_str("network_policies:\n");
    for (index, of_program) in all.chunk_by(|one, other| one.program == other.program).enumerate() {
        let program = of_program.first().map_or("", |observation| observation.program.as_str());
        let name: String = program
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(64)
            .collect();
        let endpoints: String = of_program.iter().map(observed_endpoint).collect();
        // The number keeps two programs of one name apart.
        text.push_str(&format!("  {name}_{}:\n    endpoints:\n{endpoints}", index + 1));
        text.push_str(&format!("    binaries:\n      - {{path: {}}}\n", quoted(program)));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Seek, Write};

    use openshell_policy::yaml;
    use openshell_proxy::observe::Observation;
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::{Output, earlier, observed_policy, united};

    #[test]
    fn merging_takes_all_that_observing_writes() {
        let seen = |program: &str, host: &str, internal: &[&str], methods: &[&str]| Observation {
            program: program.to_owned(),
            host: host.to_owned(),
            port: 8080,
            internal: internal.iter().map(|address| address.parse().unwrap()).collect(),
            methods: methods.iter().map(|method| (*method).to_owned()).collect(),
            paths: methods.iter().map(|method| format!("/{method} #\n\"")).collect(),
            has_encoded_slash: methods.len() > 1,
        };
        let all = vec![
            seen("/usr/bin/curl", "a.test", &[], &["POST", "GET"]),
            seen("/usr/bin/curl", "10.9.0.1", &["10.9.0.1"], &[]),
            seen("/usr/local/bin/curl", "fd00::7", &["fd00::7"], &["M-SEARCH"]),
            seen("/opt/a \"b\"", "b.test", &["192.168.0.9", "10.0.0.2", "fd00::1"], &["GET"]),
            seen("/opt/*", "left-out.test", &[], &[]),
        ];
        let started =
            "process: {run_as_user: \"1000\"}\nfilesystem_policy: {read_only: [/usr], read_write: [/tmp/b, /tmp/a]}\n";
        let (started, _) = yaml::policy(started).unwrap();
        let mut file = File::from(memfd_create("observed", MemfdFlags::CLOEXEC).unwrap());
        file.write_all(observed_policy(&started, united(Vec::new(), all), false).as_bytes()).unwrap();
        file.rewind().unwrap();
        let mut output = Output { path: "observed.yaml".into(), file };
        assert_eq!(earlier(&mut output, &started, true).unwrap().len(), 4);
    }
}
