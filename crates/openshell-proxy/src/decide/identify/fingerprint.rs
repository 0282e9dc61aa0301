//! Trust on first use: a path stands for the file that first ran from it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};
use parking_lot::Mutex;

use super::executable::{Executable, Stamp};
use crate::ground::limits::Limits;

/// Why a program is not trusted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Untrusted {
    #[error(
        "Binary integrity violation: {path} hash changed (cached: {cached}, current: {current})"
    )]
    Changed {
        path: String,
        cached: String,
        current: String,
    },
    #[error("Failed to stat {path}: {source}")]
    Read { path: String, source: io::Error },
    #[error("{path} has more than {max} bytes, and would take too long to read", max = Limits::PROGRAM_BYTES)]
    TooLarge { path: String },
    #[error("{max} programs are remembered already, and forgetting one would end its protection", max = Limits::FINGERPRINTS)]
    Full,
}

type Hash = [u8; 32];

/// The hashes of a program that has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Replaced {
    pub(super) before: String,
    pub(super) now: String,
}

/// The stamp and hash of the trusted executable at each path.
#[derive(Debug, Default)]
pub(super) struct Fingerprints {
    known: Mutex<HashMap<String, (Stamp, Hash)>>,
}

impl Fingerprints {
    /// Compares `executable` with the first use of its path, or remembers it if this is the first
    /// use. A file with an unchanged stamp is not read again. Unless it is `pinned`, a change is
    /// returned, and the new file becomes the first use.
    pub(super) fn verify(
        &self,
        executable: &Executable,
        pinned: bool,
    ) -> Result<Option<Replaced>, Untrusted> {
        let path = &executable.path;
        let read = |source| Untrusted::Read {
            path: path.clone(),
            source,
        };
        let stamp = Stamp::of(&executable.file).map_err(|errno| read(errno.into()))?;
        if self.is_current(path, &stamp) {
            return Ok(None);
        }
        if stamp.size > Limits::PROGRAM_BYTES {
            return Err(Untrusted::TooLarge { path: path.clone() });
        }
        // Not under the lock, because hashing a large program takes long.
        let hash = executable
            .open()
            .and_then(|file| hash(&file))
            .map_err(read)?;
        let mut all = self.lock();
        let first = match all.get(path) {
            Some((_, first)) => *first,
            None if all.len() >= Limits::FINGERPRINTS => return Err(Untrusted::Full),
            None => hash,
        };
        if first != hash && pinned {
            return Err(Untrusted::Changed {
                path: path.clone(),
                cached: hex(&first),
                current: hex(&hash),
            });
        }
        all.insert(path.clone(), (stamp, hash));
        Ok((first != hash).then(|| Replaced {
            before: hex(&first),
            now: hex(&hash),
        }))
    }

    /// Returns true if `executable` was verified, and was unchanged when it was opened.
    pub(super) fn knows(&self, executable: &Executable) -> bool {
        self.is_current(&executable.path, &executable.stamp)
    }

    fn is_current(&self, path: &str, stamp: &Stamp) -> bool {
        self.lock()
            .get(path)
            .is_some_and(|(cached, _)| cached == stamp)
    }

    /// Locks the fingerprints. They are consistent at every moment, so a panic of a holder does no
    /// harm.
    fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<String, (Stamp, Hash)>> {
        self.known.lock()
    }
}

fn hash(mut file: &File) -> io::Result<Hash> {
    let mut hasher = Context::new(&SHA256);
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let filled = file.read(&mut buffer)?;
        if filled == 0 {
            return hasher
                .finish()
                .as_ref()
                .try_into()
                .map_err(io::Error::other);
        }
        hasher.update(buffer.get(..filled).unwrap_or_default());
    }
}

fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{Executable, Fingerprints, Stamp, Untrusted};
    use std::fs::File;
    use std::path::Path;

    fn run(path: &Path) -> Executable {
        let file = File::open(path).unwrap();
        Executable {
            path: path.to_str().unwrap().to_owned(),
            stamp: Stamp::of(&file).unwrap(),
            file: file.into(),
        }
    }

    // Conformance: TOF-02.
    #[test]
    fn another_program_at_the_same_path_is_refused_with_both_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        let fingerprints = Fingerprints::default();
        std::fs::write(&path, "one").unwrap();
        fingerprints.verify(&run(&path), true).unwrap();
        std::fs::write(&path, "two").unwrap();
        let message = fingerprints
            .verify(&run(&path), true)
            .unwrap_err()
            .to_string();
        assert!(
            message.starts_with("Binary integrity violation"),
            "{message}"
        );
        assert!(
            message.contains("cached: 7692c3ad") && message.contains("current: 3fc4ccfe"),
            "{message}"
        );
    }

    // Conformance: TOF-02.
    #[test]
    fn another_program_in_a_new_file_at_the_same_path_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        let fingerprints = Fingerprints::default();
        std::fs::write(&path, "one").unwrap();
        fingerprints.verify(&run(&path), true).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "six").unwrap();
        assert!(matches!(
            fingerprints.verify(&run(&path), true),
            Err(Untrusted::Changed { .. })
        ));
    }

    // Conformance: TOF-03.
    #[test]
    fn identical_bytes_are_the_same_program() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        let fingerprints = Fingerprints::default();
        std::fs::write(&path, "one").unwrap();
        fingerprints.verify(&run(&path), true).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "one").unwrap();
        fingerprints.verify(&run(&path), true).unwrap();
    }

    // Conformance: TOF-05.
    #[test]
    fn an_unchanged_program_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        let fingerprints = Fingerprints::default();
        std::fs::write(&path, "one").unwrap();
        fingerprints.verify(&run(&path), true).unwrap();
        let known = run(&path);
        assert!(fingerprints.knows(&known));
        std::fs::write(&path, "two").unwrap();
        assert!(!fingerprints.knows(&run(&path)));
    }

    #[test]
    fn a_program_that_may_change_is_said_to_have_changed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        let fingerprints = Fingerprints::default();
        std::fs::write(&path, "one").unwrap();
        assert_eq!(fingerprints.verify(&run(&path), false).unwrap(), None);
        std::fs::write(&path, "two").unwrap();
        let replaced = fingerprints.verify(&run(&path), false).unwrap().unwrap();
        assert!(
            replaced.before.starts_with("7692c3ad") && replaced.now.starts_with("3fc4ccfe"),
            "{replaced:?}"
        );
        assert_eq!(fingerprints.verify(&run(&path), true).unwrap(), None);
    }

    #[test]
    fn a_program_too_large_to_read_is_refused_unread() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        File::create(&path)
            .unwrap()
            .set_len(super::Limits::PROGRAM_BYTES + 1)
            .unwrap();
        assert!(matches!(
            Fingerprints::default().verify(&run(&path), true),
            Err(Untrusted::TooLarge { .. })
        ));
    }
}
