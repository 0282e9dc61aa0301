//! A file that a run writes at its end.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_policy::yaml;
use openshell_supervisor::paths::missing::is_missing;
use openshell_supervisor::paths::trusted_symlinks::resolve;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::config::Config;

/// A file that is opened at the start, because by the end the workload could have put a symlink in
/// its place.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
    /// What is in it, as far as it is known.
    text: String,
}

impl OutputFile {
    /// Wraps an open file.
    pub(super) fn of(path: PathBuf, file: File) -> Self {
        let text = String::new();
        Self { path, file, text }
    }

    /// Returns the absolute path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file, following only symlinks that nobody but root can have made.
    ///
    /// # Errors
    /// Fails if the file cannot be made, or is not a regular file.
    pub(super) fn open(flag: &str, path: &Path) -> anyhow::Result<Self> {
        let path = std::path::absolute(path)?;
        let context = || format!("{flag} {} cannot be written", path.display());
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            bail!(context())
        };
        let folder = resolve(folder).with_context(context)?;
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat2(
            CWD,
            folder.join(name),
            flags,
            Mode::from_raw_mode(0o644),
            ResolveFlags::NO_SYMLINKS,
        );
        let file = File::from(opened.with_context(context)?);
        if !file.metadata()?.is_file() {
            bail!("{}: it is not a regular file", context());
        }
        Ok(Self::of(path, file))
    }

    /// Checks that the run does not depend on the file.
    ///
    /// # Errors
    /// Fails if the file is an input of the run, by this name or another one.
    pub(super) fn check_inputs(&self, flag: &str, config: &Config) -> anyhow::Result<()> {
        for (what, path) in config.inputs.all() {
            let input = match std::fs::metadata(path) {
                Err(error) if is_missing(&error) => continue,
                input => input
                    .with_context(|| format!("{flag}: cannot read {} {}", what, path.display()))?,
            };
            if self.is_at(input)? {
                let path = self.path.display();
                bail!(
                    "{flag} {path}: the file is the {what} of this run and would be overwritten; \
                     name another one"
                );
            }
        }
        Ok(())
    }

    /// Returns true if `there` is the metadata of this file.
    ///
    /// # Errors
    /// Fails if the metadata of the open file cannot be read.
    fn is_at(&self, there: Metadata) -> io::Result<bool> {
        let ours = self.file.metadata()?;
        Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino()))
    }

    /// Returns the text of the file, up to the size of a policy document. The text is empty, or
    /// begins with `first`.
    ///
    /// # Errors
    /// Fails if the disk fails, or if no earlier run with `flag` wrote the file.
    pub(super) fn written_by(&mut self, flag: &str, first: &str) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        (&self.file)
            .take(yaml::MAX_DOCUMENT_BYTES as u64)
            .read_to_end(&mut bytes)?;
        match String::from_utf8(bytes) {
            Ok(text) if text.is_empty() || text.starts_with(first) => {
                self.text.clone_from(&text);
                Ok(text)
            }
            _ => {
                let path = self.path.display();
                bail!(
                    "{flag} {path}: the file exists and was not written by {flag}; name another one"
                )
            }
        }
    }

    /// Replaces the content with `text`.
    ///
    /// # Errors
    /// Fails if the disk fails or is full, in which case the earlier text stays, or if another file is
    /// in the place of this one.
    pub(super) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        let written = fill(&self.file, text);
        if written.is_err() {
            // It has had room for that.
            let _ = fill(&self.file, &self.text);
        }
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        text.clone_into(&mut self.text);
        // A process that can write to the folder may have put another file in its place.
        let there = std::fs::symlink_metadata(&self.path);
        if !there.and_then(|there| self.is_at(there)).unwrap_or(false) {
            bail!(
                "{} was replaced during the run: the sandbox did not write what is there now; do \
                 not use it",
                self.path.display()
            );
        }
        Ok(())
    }
}

/// Makes `text` the content of `file`. What was there is only overwritten, so that its room stays.
fn fill(mut file: &File, text: &str) -> io::Result<()> {
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    file.set_len(text.len() as u64)
}
