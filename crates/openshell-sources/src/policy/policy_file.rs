//! Makes a generation of the policy from policy files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use openshell_events::event::PolicyId;
use openshell_events::text;
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::filesystem::Places;
use openshell_policy::policy::PolicyForm;
use openshell_policy::violation::{ViolationKind, Violations};
use openshell_policy::yaml;
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::identity::run_as;
use openshell_supervisor::paths::trusted_symlinks::resolve_unwritable;
use openshell_telemetry::logging;
use sha2::{Digest as _, Sha256};

use super::Compile;
use super::composed::Additions;
use super::loaded::{FileState, Loaded, LoadedText};
use crate::input::{self, Phase};
use crate::lints;

/// The most warnings, notes and symlinks of one generation that are logged. A policy for many
/// images may name many programs that one image lacks.
const WARNINGS: usize = 10;

/// The kind of a preset's file, which is read only at the start.
pub const PRESET: &str = "policy preset";

/// The files of a policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyFiles {
    /// The file; an empty path if only the command line says what is granted.
    pub data: PathBuf,
    /// Rules instead of the built-in ones.
    pub rules: Option<PathBuf>,
    /// What the command line adds.
    pub additions: Additions,
    /// The folders of the run.
    pub folders: RunFolders,
    /// The file rules of the first generation, which stay in force.
    pub started: Arc<OnceLock<Request>>,
    /// The policy that was loaded last.
    pub loaded: Loaded,
}

/// The folders of a run, with which paths of a policy may begin. Also the caller of `sudo`, whose
/// home may be one of them.
#[derive(Clone, Debug, Default)]
pub struct RunFolders {
    /// The folder that `include_workdir` grants for writing.
    pub workdir: Option<PathBuf>,
    /// The current directory.
    pub current: Option<PathBuf>,
    /// User and group of the caller of `sudo`.
    pub sudo: Option<(u32, u32)>,
    /// The folders of presets, the user's and the machine's, to which no command may add.
    pub presets: Vec<PathBuf>,
}

impl RunFolders {
    /// Returns `policy` with absolute paths in its file rules.
    ///
    /// # Errors
    /// Fails if a path begins with a folder that the run does not have, or a grant lies in a hidden
    /// folder.
    fn resolve(
        &self,
        policy: openshell_policy::policy::Policy,
    ) -> anyhow::Result<openshell_policy::policy::Policy> {
        let home = if policy.filesystem().needs_home() {
            run_as::resolve(policy.run_as(), &Privilege::of_start(true)?, self.sudo)?.home
        } else {
            None
        };
        let workdir = self.workdir.clone().or_else(|| self.current.clone());
        Ok(policy.resolved(&Places {
            home,
            workdir,
            is_writable: self.workdir.is_some(),
        })?)
    }
}

/// The text of a policy that is not validated yet.
pub struct PolicyDocument {
    /// The name of the origin, for messages.
    origin: String,
    data: String,
    form: PolicyForm,
    rules: Option<String>,
    /// The version that a gateway gave it; `None` for a file.
    of_gateway: Option<GatewayVersion>,
    folders: RunFolders,
    started: Arc<OnceLock<Request>>,
    /// The file that the text is exactly.
    file: Option<FileState>,
    loaded: Loaded,
    /// How often this process had written the file when reading began.
    writes: u64,
    /// When reading began.
    began: Instant,
}

/// The version that a gateway gives to a policy.
#[derive(Clone, Debug)]
pub struct GatewayVersion {
    /// The number of the version.
    pub number: u64,
    /// The hash of the version, in letters and digits.
    pub hash: String,
    /// The version of the gateway's policy for all of its sandboxes, if it is that policy.
    pub global: Option<u32>,
}

/// The policy that a sandbox starts with.
pub struct Policy<C> {
    /// The files that it comes from.
    pub files: PolicyFiles,
    /// The first generation, or every violation.
    pub version: anyhow::Result<PolicyVersion<C>>,
}

impl<C: Compile> Policy<C> {
    /// Reads and compiles `files`. Logs nothing.
    pub fn load(files: PolicyFiles) -> Self {
        let version = files
            .read(Phase::Start)
            .and_then(|document| document.compile(1));
        Self { files, version }
    }

    /// Returns a policy that grants nothing but the baseline, and no network.
    pub fn restrictive() -> Self {
        let data = "network_policies: {}\n".to_owned();
        let files = PolicyFiles {
            data: PathBuf::from("/dev/null"),
            ..PolicyFiles::default()
        };
        let document = files.document("the restrictive default".to_owned(), data, None);
        Self {
            files,
            version: document.compile(1),
        }
    }
}

/// A generation of the policy, and the log lines about it.
pub struct PolicyVersion<C> {
    /// The policy as it is enforced.
    pub compiled: C,
    /// What an operator is told about it.
    pub report: PolicyReport,
}

/// Facts about a generation that an operator may need.
pub struct PolicyReport {
    /// Problems of a valid policy, each with a remedy.
    pub warnings: Vec<String>,
    /// Facts that may have no remedy.
    pub notes: Vec<String>,
    /// Symlinks of the policy, each with its target.
    links: Vec<(String, String)>,
    /// Origin, number of network policies and generation.
    summary: String,
    /// The version's number: the generation, or a gateway's own number.
    number: u64,
    /// The SHA-256 of the file, or a gateway's own hash.
    hash: String,
    /// What else distinguishes the version in the log; each part begins with a blank.
    more: String,
    /// True if it is a gateway's policy for all of its sandboxes.
    is_global: bool,
    /// How long reading and compiling took.
    took: Duration,
}

impl PolicyFiles {
    /// Returns the files of a policy that is only examined, not run.
    pub fn to_look_at(data: PathBuf, rules: Option<PathBuf>, sudo: Option<(u32, u32)>) -> Self {
        let folders = RunFolders {
            current: std::env::current_dir().ok(),
            sudo,
            ..RunFolders::default()
        };
        Self {
            data,
            rules,
            folders,
            ..Self::default()
        }
    }

    /// Returns the files, each with its kind.
    pub fn paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let rules = self.rules.as_deref().map(|rules| ("policy rules", rules));
        // A gateway's policy is not in a file.
        let data = Some(self.data.as_path()).filter(|path| !path.as_os_str().is_empty());
        let presets = self
            .additions
            .files
            .iter()
            .map(|file| (PRESET, file.as_path()));
        data.map(|data| ("policy", data))
            .into_iter()
            .chain(rules)
            .chain(presets)
    }

    /// Returns a document that does not come from these files, with the number and hash that a
    /// gateway has given it.
    pub fn document(
        &self,
        origin: String,
        data: String,
        of_gateway: Option<GatewayVersion>,
    ) -> PolicyDocument {
        let folders = self.folders.clone();
        let started = Arc::clone(&self.started);
        let began = Instant::now();
        PolicyDocument {
            origin,
            data,
            form: PolicyForm::Document,
            rules: None,
            of_gateway,
            folders,
            started,
            file: None,
            loaded: self.loaded.clone(),
            writes: self.loaded.writes(),
            began,
        }
    }

    /// Returns true if the policy is in one file and nowhere else.
    #[must_use]
    pub(super) fn is_one_file(&self) -> bool {
        let has_file = !self.data.as_os_str().is_empty();
        has_file && self.rules.is_none() && self.additions.is_empty()
    }

    /// Returns what the policy is made of. Rules of one's own may not heed what flags say.
    fn form(&self) -> PolicyForm {
        if self.data.as_os_str().is_empty() && self.rules.is_none() {
            PolicyForm::Flags
        } else {
            PolicyForm::Document
        }
    }

    /// Returns the name and the text of the policy, with what the command line adds.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is too large, is not UTF-8, or is invalid while the
    /// command line adds to it.
    pub fn text(&self, phase: Phase) -> anyhow::Result<(String, String)> {
        let (origin, text, _) = self.text_of_file(phase)?;
        Ok((origin, text))
    }

    /// Returns the name and the text of the policy like [`Self::text`], and the state of the file that
    /// the text is exactly.
    fn text_of_file(&self, phase: Phase) -> anyhow::Result<(String, String, Option<FileState>)> {
        if self.data.as_os_str().is_empty() {
            let files: Vec<_> = self
                .additions
                .files
                .iter()
                .map(|file| file.display().to_string())
                .collect();
            let files = if files.is_empty() {
                String::new()
            } else {
                format!(" ({})", files.join(", "))
            };
            return Ok((
                format!("the command line{files}"),
                self.additions.joined(None)?,
                None,
            ));
        }
        let origin = self.data.display().to_string();
        let (data, state) = input::read_with_state(&self.data, phase)
            .with_context(|| format!("failed to read YAML data from {origin}"))?;
        if self.additions.is_empty() {
            return Ok((origin, data, Some(FileState::of(&state))));
        }
        // Validated by itself first, so that line numbers are those of the file.
        yaml::policy(&data).map_err(|violations| anyhow!("{origin}: {violations}"))?;
        let joined = self.additions.joined(Some(&data))?;
        Ok((format!("{origin} and the command line"), joined, None))
    }

    /// Reads the files.
    ///
    /// # Errors
    /// Fails if a file cannot be read, is too large, or is not UTF-8.
    pub fn read(&self, phase: Phase) -> anyhow::Result<PolicyDocument> {
        let began = Instant::now();
        let writes = self.loaded.writes();
        let (origin, data, file) = self.text_of_file(phase)?;
        let rules = self.rules.as_ref().map(|path| {
            input::read(path, phase)
                .with_context(|| format!("failed to read policy rules from {}", path.display()))
        });
        let folders = self.folders.clone();
        let started = Arc::clone(&self.started);
        let rules = rules.transpose()?;
        Ok(PolicyDocument {
            origin,
            data,
            form: self.form(),
            rules,
            of_gateway: None,
            folders,
            started,
            file,
            loaded: self.loaded.clone(),
            writes,
            began,
        })
    }
}

impl PolicyDocument {
    /// Validates the policy, without compiling it.
    ///
    /// # Errors
    /// Fails if the policy is invalid, and names every violation with its line.
    pub fn validate(self) -> anyhow::Result<openshell_policy::policy::Policy> {
        let (policy, _) = yaml::policy(&self.data)
            .map_err(|violations| anyhow!("{}: {violations}", self.origin))?;
        Ok(policy)
    }

    /// Validates and compiles the policy as `generation`.
    ///
    /// # Errors
    /// Fails if the policy or its rules are invalid, and names every violation with its line.
    pub fn compile<C: Compile>(self, generation: u64) -> anyhow::Result<PolicyVersion<C>> {
        let Self {
            origin,
            data,
            form,
            rules,
            of_gateway,
            folders,
            started,
            file,
            loaded,
            writes,
            began,
        } = self;
        let is_of_gateway = of_gateway.is_some();
        let read = if is_of_gateway {
            yaml::policy_of_gateway
        } else {
            yaml::policy
        };
        let version = of_gateway.unwrap_or_else(|| GatewayVersion {
            number: generation,
            hash: sha256(&data),
            global: None,
        });
        let more = further_words(&version, rules.as_deref());
        let (policy, warnings) = read(&data).map_err(|violations| invalid(&origin, &violations))?;
        let policy = policy.in_form(form);
        let policy = folders.resolve(policy).with_context(|| origin.clone())?;
        let granted = Request::new(policy.filesystem(), folders.workdir.as_deref());
        let started = started.get_or_init(|| granted.clone());
        // Rules other than the built-in ones may grant other folders.
        let is_writable = |folder: &Path| {
            rules.is_some()
                || granted.reaches_for_writing(folder)
                || started.reaches_for_writing(folder)
        };
        let symlink_target = |path: &str| symlink_target(path, is_writable);
        let compiled = C::compile(generation, policy, rules.as_deref(), &symlink_target)?;
        let lints = lints::lints(compiled.policy(), &is_writable);
        let mut lines = Vec::new();
        for warning in &warnings {
            lines.push(format!("L7 policy validation warning: {origin}: {warning}"));
        }
        for lint in lints.warnings {
            lines.push(format!("policy warning: {origin}: {lint}"));
        }
        let notes = lints.notes.into_iter();
        let notes = notes.map(|note| format!("policy note: {origin}: {note}"));
        let notes = notes.collect();
        let links = compiled
            .links()
            .iter()
            .map(|(link, target)| (link.clone(), target.clone()))
            .collect();
        let summary = format!(
            "{origin}: {}, generation {generation}",
            policies(compiled.policy().network().len())
        );
        if !is_of_gateway {
            loaded.set(LoadedText { text: data, file }, writes);
        }
        let report = PolicyReport {
            warnings: lines,
            notes,
            links,
            summary,
            number: version.number,
            hash: version.hash,
            more,
            is_global: version.global.is_some(),
            took: began.elapsed(),
        };
        Ok(PolicyVersion { compiled, report })
    }
}

/// Returns the error about an invalid policy from `origin`.
fn invalid(origin: &str, violations: &Violations) -> anyhow::Error {
    match violations.0.as_slice() {
        [only] if matches!(only.kind, ViolationKind::Syntax(_)) => {
            anyhow!("failed to parse YAML data: {origin}: {only}")
        }
        _ => anyhow!("{origin}: {violations}"),
    }
}

impl PolicyReport {
    /// Logs the warnings and notes, and finally that the generation is in force.
    pub fn log(&self, event: &str) {
        for warning in self.warnings.iter().take(WARNINGS) {
            logging::config_event(ConfigState::Validated, Severity::Medium, warning);
        }
        if let more @ 1.. = self.warnings.len().saturating_sub(WARNINGS) {
            let message =
                format!("policy warning: {more} more; `openshell-sandbox check` names them all");
            logging::config_event(ConfigState::Validated, Severity::Medium, &message);
        }
        for note in self.notes.iter().take(WARNINGS) {
            logging::config_event(ConfigState::Validated, Severity::Info, note);
        }
        for (link, target) in self.links.iter().take(WARNINGS) {
            logging::config_event(
                ConfigState::Validated,
                Severity::Info,
                &format!("{link} is a symlink; the policy also means its target {target}"),
            );
        }
        let took = self.took.as_millis();
        let Self {
            summary,
            number,
            hash,
            more,
            ..
        } = self;
        let event = if self.is_global {
            format!("{event} (global)")
        } else {
            event.to_owned()
        };
        let message =
            format!("{event} from {summary}, in {took} ms [version:{number} hash:{hash}{more}]");
        let policy = PolicyId {
            number: *number,
            hash,
        };
        logging::policy_event(ConfigState::Loaded, Severity::Info, &message, policy);
    }
}

/// Returns the number of network policies, in words.
pub fn policies(count: usize) -> String {
    text::counted(count as u64, "network policy", "network policies")
}
/// Returns what the log says of a version behind its number and hash.
fn further_words(version: &GatewayVersion, rules: Option<&str>) -> String {
    let mut more = String::new();
    if let Some(global) = version.global {
        more.push_str(&format!(" global_version:{global}"));
    }
    if let Some(rules) = rules {
        more.push_str(&format!(" rules_hash:{}", sha256(rules)));
    }
    more
}

/// Returns the SHA-256 of `text` in hex digits, as `sha256sum` prints it.
fn sha256(text: &str) -> String {
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the path behind the symlinks of `path`, if the workload cannot have made them.
fn symlink_target(path: &str, is_writable: impl Fn(&Path) -> bool) -> Option<String> {
    resolve_unwritable(Path::new(path), is_writable)
        .ok()?
        .into_os_string()
        .into_string()
        .ok()
}
