//! Results of a copy.

use std::path::{Path, PathBuf};

/// Greatest depth of a tree that is copied, because each level takes a descriptor.
pub(super) const DEPTH: usize = 400;

/// The reason why a copy failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum TransferError {
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{0} does not name a file")]
    NoName(PathBuf),
    #[error("{path} goes through a symlink, which a command may have made; name {target} instead", path = path.display(), target = target.display())]
    Symlink { path: PathBuf, target: PathBuf },
    #[error("the stream of files broke off")]
    Stream { source: std::io::Error },
}

/// Entries that were left out, each with its reason.
#[derive(Debug, Default)]
pub struct LeftOut {
    first: Vec<String>,
    count: usize,
    /// True if an entry was wanted but could not be copied.
    pub has_failures: bool,
}

impl LeftOut {
    /// How many entries are kept with their reasons.
    const KEPT: usize = 20;

    pub(super) fn add(&mut self, path: &Path, reason: impl std::fmt::Display) {
        if self.count < Self::KEPT {
            self.first
                .push(format!("left out {}: {reason}", path.display()));
        }
        self.count += 1;
    }

    pub(super) fn fail(&mut self, path: &Path, reason: impl std::fmt::Display) {
        self.add(path, reason);
        self.has_failures = true;
    }

    /// Returns lines for people: the first entries, and the number of the rest.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let rest = self.count - self.first.len();
        self.first
            .iter()
            .cloned()
            .chain((rest > 0).then(|| format!("left out {rest} more")))
    }
}
