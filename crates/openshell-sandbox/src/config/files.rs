//! Files of the host: those that the run is made of, and those that the command may use.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_sources::policy::policy_file::{self, PolicyFiles};
use openshell_supervisor::command::environment::Environment;

use super::values::{absolute, path_of};
use crate::cli::{Args, CarveOutArgs};

/// The files that a run is made of.
#[derive(Debug)]
pub(crate) struct InputFiles {
    pub(crate) policy: PolicyFiles,
    /// Files with secrets, each with its kind, including those that other files name.
    pub(crate) secrets: Vec<(&'static str, PathBuf)>,
    /// Files that are read again when they change. The start takes them.
    pub(crate) watched: Vec<PathBuf>,
}

impl InputFiles {
    /// Returns the files of `policy` and those with `secrets`. They are watched if `is_wanted`.
    ///
    /// # Errors
    /// Fails if there is no current directory.
    pub(super) fn new(
        policy: PolicyFiles,
        secrets: Vec<(&'static str, PathBuf)>,
        is_wanted: bool,
    ) -> anyhow::Result<Self> {
        let watched = if is_wanted {
            watched(&policy, &secrets)?
        } else {
            Vec::new()
        };
        Ok(Self {
            policy,
            secrets,
            watched,
        })
    }

    /// Returns the files, each with its kind.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let secrets = self
            .secrets
            .iter()
            .map(|(what, path)| (*what, path.as_path()));
        self.policy.paths().chain(secrets)
    }
}

/// Folders of a run, and restrictions within those that the command may write to.
#[derive(Debug)]
pub(crate) struct FileOptions {
    pub(crate) carve_outs: CarveOutArgs,
    /// The most bytes in each private folder for temporary files, if there is a limit.
    pub(crate) tmp_size: Option<u64>,
    pub(crate) run_dir: Option<PathBuf>,
    /// The user's directory of files that live as long as a session, if there is one.
    pub(crate) runtime_dir: Option<PathBuf>,
}

impl FileOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// Fails if there is no current directory.
    pub(super) fn read(args: &mut Args, environment: &Environment) -> anyhow::Result<Self> {
        Ok(Self {
            carve_outs: args.carve_outs.clone(),
            tmp_size: args.tmp_size,
            run_dir: absolute(args.run_dir.take()).context("--run-dir")?,
            runtime_dir: path_of(environment, "XDG_RUNTIME_DIR"),
        })
    }
}

/// Folders and files of certificates.
#[derive(Debug)]
pub(crate) struct TlsOptions {
    /// The directory of the CA files inside, if one is named.
    named_dir: Option<PathBuf>,
    pub(crate) upstream_ca_file: Option<PathBuf>,
    /// The folder of the interception CA, if it is kept.
    pub(crate) ca_dir: Option<PathBuf>,
}

/// Default directory of the CA files inside.
const TLS_DIR: &str = "/etc/openshell-tls";

impl TlsOptions {
    /// Reads the options.
    ///
    /// # Errors
    /// Fails if there is no current directory.
    pub(super) fn read(args: &mut Args) -> anyhow::Result<Self> {
        Ok(Self {
            named_dir: absolute(args.tls_dir.take()).context("--tls-dir")?,
            upstream_ca_file: args.upstream_ca_file.take(),
            ca_dir: absolute(args.ca_dir.take()).context("--ca-dir")?,
        })
    }

    /// Returns true if a flag names the directory of the CA files inside.
    pub(crate) fn is_named(&self) -> bool {
        self.named_dir.is_some()
    }

    /// Returns the preferred directory of the CA files inside.
    pub(crate) fn dir(&self) -> &Path {
        self.named_dir.as_deref().unwrap_or(Path::new(TLS_DIR))
    }
}

/// The reports that a run writes.
#[derive(Debug)]
pub(crate) struct ReportOptions {
    pub(crate) proposals: Option<PathBuf>,
    /// Where the policy goes that the run comes to.
    pub(crate) save: Option<PathBuf>,
    pub(crate) observe: Option<PathBuf>,
    /// True if the files that the command reads are observed too.
    pub(crate) observe_files: bool,
    /// True if the endpoints of an earlier observation are kept.
    pub(crate) observe_merge: bool,
}

impl ReportOptions {
    /// Reads the options.
    pub(super) fn read(args: &mut Args) -> Self {
        Self {
            proposals: args.proposals.take(),
            save: args.approvals.save.take(),
            observe: args.observe.take(),
            observe_files: args.observe_files,
            observe_merge: args.observe_merge,
        }
    }
}

/// Returns the files that a reload reads: those of the policy and of the credentials.
fn watched(policy: &PolicyFiles, secrets: &[(&str, PathBuf)]) -> anyhow::Result<Vec<PathBuf>> {
    let credentials = secrets
        .iter()
        .filter(|(what, _)| matches!(*what, "credentials file" | "file of a credential"));
    let policy = policy
        .paths()
        .filter(|(what, _)| *what != policy_file::PRESET);
    let files = policy
        .map(|(_, path)| path)
        .chain(credentials.map(|(_, path)| path.as_path()));
    files
        .map(std::path::absolute)
        .collect::<Result<_, _>>()
        .context("--watch")
}
