//! From files to a policy generation, with what there is to say about it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use openshell_policy::violation::Fault;
use openshell_policy::yaml;
use openshell_proxy::decide::snapshot::Snapshot;
use openshell_supervisor::resolve::resolve;
use sha2::{Digest, Sha256};

use crate::{lints, logging, text};

/// Bytes of the largest document, and of the largest rules.
const BYTES: u64 = yaml::MAX_DOCUMENT_BYTES as u64;

/// Warnings of one load that are said; a policy for many images may speak of many programs that one image has not.
const DOUBTS: usize = 10;

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) data: PathBuf,
    pub(crate) rules: Option<PathBuf>,
}

/// A generation, and what is doubtful about it.
pub(crate) struct Loaded {
    pub(crate) snapshot: Snapshot,
    /// Warnings, each with a remedy.
    pub(crate) doubts: Vec<String>,
    /// What is worth knowing, and may have no remedy.
    pub(crate) notes: Vec<String>,
    /// Symlinks of the policy, each with the file that it stands for.
    links: Vec<(String, String)>,
    /// How many network policies there are, and in which generation.
    summary: String,
    /// Generation and SHA-256 of the files.
    version: String,
    /// What reading and compiling it took.
    took: Duration,
}

impl Source {
    /// Reads it.
    ///
    /// # Errors
    /// A file cannot be read, or is no policy: every violation with its line.
    pub(crate) fn load(&self, generation: u64) -> anyhow::Result<Loaded> {
        let start = Instant::now();
        let path = self.data.display();
        let data = read(&self.data, generation).with_context(|| format!("failed to read YAML data from {path}"))?;
        let rules = self.rules.as_ref().map(|path| {
            read(path, generation).with_context(|| format!("failed to read policy rules from {}", path.display()))
        });
        let rules = rules.transpose()?;
        let mut version = format!("version:{generation} hash:{}", sha256(&data));
        if let Some(rules) = &rules {
            version.push_str(&format!(" rules_hash:{}", sha256(rules)));
        }
        let (policy, warnings) = yaml::policy(&data).map_err(|violations| match violations.0.as_slice() {
            [only] if matches!(only.fault, Fault::Syntax(_)) => anyhow!("failed to parse YAML data: {path}: {only}"),
            _ => anyhow!("{path}: {violations}"),
        })?;
        let snapshot = Snapshot::new(generation, policy, rules.as_deref(), &meant)?;
        let warnings = warnings.iter().map(|warning| format!("L7 policy validation warning: {path}: {warning}"));
        let lints = lints::lints(snapshot.policy());
        let doubts = lints.warnings.into_iter().map(|lint| format!("policy warning: {path}: {lint}"));
        let doubts = warnings.chain(doubts).collect();
        let notes = lints.notes.into_iter().map(|note| format!("policy note: {path}: {note}")).collect();
        let binaries = snapshot.policy().network().values().flat_map(|network| &network.binaries);
        let links = binaries.filter_map(|binary| Some((binary.to_string(), meant(&binary.to_string())?))).collect();
        let (count, generation) = (snapshot.policy().network().len(), snapshot.generation());
        let summary = format!("{path}: {}, generation {generation}", policies(count));
        Ok(Loaded { snapshot, doubts, notes, links, summary, version, took: start.elapsed() })
    }
}

impl Loaded {
    /// Puts it in force by `take`, and says what is to be said about it, that it was loaded last.
    pub(crate) fn taken<T>(self, how: &str, take: impl FnOnce(Snapshot) -> T) -> T {
        let taken = take(self.snapshot);
        for doubt in self.doubts.iter().take(DOUBTS) {
            logging::config_event("VALIDATED", "MED", doubt);
        }
        if let more @ 1.. = self.doubts.len().saturating_sub(DOUBTS) {
            let message = format!("policy warning: {more} more; `openshell-sandbox check` names them all");
            logging::config_event("VALIDATED", "MED", &message);
        }
        for note in self.notes.iter().take(DOUBTS) {
            logging::config_event("VALIDATED", "INFO", note);
        }
        for (link, target) in self.links.iter().take(DOUBTS) {
            logging::config_event("VALIDATED", "INFO", &format!("{link} is a symlink: {target} is meant as well"));
        }
        let took = self.took.as_millis();
        logging::config_event(
            "LOADED",
            "INFO",
            &format!("{how} from {}, in {took} ms [{}]", self.summary, self.version),
        );
        taken
    }
}

/// A number of network policies, in words.
pub(crate) fn policies(count: usize) -> String {
    text::counted(count as u64, "network policy", "network policies")
}

/// SHA-256 in hex digits, as `sha256sum` prints it.
fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text of at most [`BYTES`]; more of an endless file would only take memory.
fn read(path: &Path, generation: u64) -> std::io::Result<String> {
    // A start may read from a pipe; later there is nobody at its other end, and the next request would wait for it.
    if generation > 1 && !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    File::open(path)?.take(BYTES + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => std::io::Error::other("it is not UTF-8 text"),
        _ => error,
    })?;
    if text.len() as u64 > BYTES {
        return Err(std::io::Error::other("it has more than 4 MiB"));
    }
    Ok(text)
}

/// The file that a symlink of the policy stands for, where root alone can have made it.
fn meant(path: &str) -> Option<String> {
    resolve(Path::new(path)).ok()?.into_os_string().into_string().ok().filter(|target| target != path)
}
