//! The policy that a run comes to: its own, with what was permitted for good.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use openshell_policy::yaml;
use openshell_sources::policy::loaded::Loaded;
use openshell_sources::policy::schema::with_schema;
use parking_lot::Mutex;

use crate::config::Config;
use crate::reports::run_reports::output_file::OutputFile;

/// The first line of the file.
const FIRST: &str = "# Policy of a run, written by --save of openshell-sandbox";

/// A file for the policy that a run comes to.
#[derive(Debug)]
pub(crate) struct SavedPolicy {
    path: PathBuf,
    loaded: Loaded,
    written: Mutex<Written>,
}

/// What is in the file.
#[derive(Debug)]
struct Written {
    output: OutputFile,
    /// The lines that were permitted for good.
    kept: Vec<String>,
}

impl SavedPolicy {
    /// Takes the file `output` for the run of `config`.
    ///
    /// # Errors
    /// Fails if it was not written by an earlier run with --save.
    pub(super) fn new(mut output: OutputFile, config: &Config) -> anyhow::Result<Self> {
        output.written_by("--save", FIRST)?;
        Ok(Self {
            path: output.path().to_owned(),
            loaded: config.inputs.policy.loaded.clone(),
            written: Mutex::new(Written {
                output,
                kept: Vec::new(),
            }),
        })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the policy with the further line `line`. `for_run` are the lines that end with the run.
    ///
    /// # Errors
    /// Fails if the line contradicts the policy, or if the disk fails or is full.
    pub(crate) fn keep(&self, line: &str, for_run: &[String]) -> anyhow::Result<()> {
        let mut written = self.written.lock();
        let text = self.text(&written.kept, Some(line), for_run)?;
        written.output.write(&text)?;
        written.kept.push(line.to_owned());
        Ok(())
    }

    /// Writes the policy as it is at the end of the run, for which `for_run` was permitted.
    ///
    /// # Errors
    /// Fails if the disk fails or is full.
    pub(super) fn finish(&self, for_run: &[String]) -> anyhow::Result<()> {
        let mut written = self.written.lock();
        let text = self.text(&written.kept, None, for_run)?;
        written.output.write(&text)
    }

    /// Returns the policy that was loaded last, with the lines `kept` that fit into it, and with the
    /// `newest`.
    ///
    /// # Errors
    /// Fails if the newest does not fit.
    fn text(
        &self,
        kept: &[String],
        newest: Option<&str>,
        for_run: &[String],
    ) -> anyhow::Result<String> {
        let loaded = self.loaded.get().text;
        let read = |text: &str| {
            let read = yaml::policy(text).map(|(policy, _)| policy);
            read.map_err(|violations| anyhow!("{violations}"))
        };
        let mut policy = read(&loaded)?;
        let mut documents = vec![loaded.clone()];
        let mut text = format!("{FIRST}\n");
        for line in for_run {
            text.push_str(&format!("# Permitted for this run only: {line}\n"));
        }
        for line in kept.iter().map(String::as_str).chain(newest) {
            let document = format!("network_policies:\n  {line}\n");
            let alone = read(&document)?;
            let is_there = |name| policy.network().get(name) == alone.network().get(name);
            // The policy may have got it by a reload.
            if alone.network().keys().all(is_there) {
                continue;
            }
            match policy.with_network_policies(alone.network()) {
                Ok(together) => policy = together,
                // The policy has changed since it was saved.
                Err(_) if newest != Some(line) => {
                    text.push_str(&format!("# Does not fit any more: {line}\n"));
                    continue;
                }
                Err(unfit) => return Err(unfit.into()),
            }
            documents.push(document);
        }
        let documents: Vec<_> = documents.iter().map(String::as_str).collect();
        let body = yaml::merged(&documents).map_err(|violations| anyhow!("{violations}"))?;
        text.push_str(&body);
        if read(&text)? != policy {
            return Err(anyhow!("the policy cannot be written as it is"))
                .context(self.path.display().to_string());
        }
        Ok(with_schema(&text))
    }
}
