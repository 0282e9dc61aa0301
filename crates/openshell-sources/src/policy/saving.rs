//! Writes lines of policy into the policy's own file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_policy::yaml;
use openshell_policy::yaml::insert::{self, Inserted};
use openshell_supervisor::paths::own_folder::OwnFolder;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::loaded::{FileState, Loaded, LoadedText};
use super::policy_file::PolicyFiles;
use crate::watch::OwnWrites;

/// Returns true if the workload can write the file at a path.
pub type IsWritable = Box<dyn Fn(&Path) -> bool + Send + Sync>;

/// The file of a policy, into which lines can be written.
pub struct PolicyFile {
    path: PathBuf,
    loaded: Loaded,
    /// The user whose file it has to be.
    owner: u32,
    is_writable: IsWritable,
    writes: OwnWrites,
    /// The turn to write.
    turn: Mutex<()>,
}

/// The file as it is now.
struct Current {
    folder: OwnFolder,
    name: OsString,
    data: Metadata,
    text: String,
}

impl PolicyFile {
    /// Returns the file of the policy `files` that `owner` may write, and the workload may not;
    /// `None` if the policy comes from anything else than one file. What is written is told to
    /// `writes`.
    #[must_use]
    pub fn of(
        files: &PolicyFiles,
        owner: u32,
        is_writable: IsWritable,
        writes: OwnWrites,
    ) -> Option<Self> {
        files.is_one_file().then(|| Self {
            path: files.data.clone(),
            loaded: files.loaded.clone(),
            owner,
            is_writable,
            writes,
            turn: Mutex::default(),
        })
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what writing `line`, a key and its network policy, would change.
    ///
    /// # Errors
    /// Fails if the file is another one than that which was loaded last, if somebody else may write
    /// it, or if the line has no place in it.
    pub fn difference(&self, line: &str) -> anyhow::Result<Inserted> {
        Ok(self.prepare(line)?.1)
    }

    /// Writes `line` into the file, which keeps its owner and mode; returns what has changed.
    /// Blocks.
    ///
    /// # Errors
    /// Fails like [`Self::difference`], or if the disk fails or is full. The file is then unchanged.
    pub fn save(&self, line: &str) -> anyhow::Result<Inserted> {
        let _turn = self.turn.lock();
        let (current, inserted) = self.prepare(line)?;
        let failed = || format!("cannot write {}", self.path.display());
        let file = self
            .replace(&current, &inserted.text)
            .with_context(failed)?;
        self.loaded.replace(LoadedText {
            text: inserted.text.clone(),
            file: Some(file),
        });
        Ok(inserted)
    }

    fn prepare(&self, line: &str) -> anyhow::Result<(Current, Inserted)> {
        let shown = self.path.display();
        let current = self
            .current()
            .with_context(|| format!("cannot write {shown}"))?;
        let loaded = self.loaded.get();
        let is_loaded = loaded.file == Some(FileState::of(&current.data));
        if !is_loaded || loaded.text != current.text {
            bail!("{shown} was changed since it was loaded; reload it (SIGHUP) first");
        }
        let inserted = insert::with_line(&current.text, line)
            .with_context(|| format!("{shown} has no place for the line"))?;
        Ok((current, inserted))
    }

    /// Opens and reads the file.
    fn current(&self) -> anyhow::Result<Current> {
        let path = std::path::absolute(&self.path)?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            bail!("it has no folder");
        };
        let folder = OwnFolder::open(folder)?;
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder.descriptor(), name, flags, Mode::empty());
        let file = match opened {
            Err(Errno::LOOP) => bail!("it is a symlink; name the file itself"),
            opened => File::from(opened?),
        };
        let data = file.metadata()?;
        if !data.is_file() {
            bail!("it is not a regular file");
        }
        if data.uid() != self.owner {
            bail!(
                "it belongs to user {}, not to you; copy the line",
                data.uid()
            );
        }
        if data.mode() & 0o200 == 0 {
            bail!("it is read-only; make it writable, or copy the line");
        }
        if (self.is_writable)(&folder.path().join(name)) {
            bail!(
                "the command can write it too, so what it holds may be the command's; move it out of what is granted"
            );
        }
        let mut text = String::new();
        let limit = yaml::MAX_DOCUMENT_BYTES as u64 + 1;
        file.take(limit).read_to_string(&mut text)?;
        Ok(Current {
            name: name.to_owned(),
            folder,
            data,
            text,
        })
    }

    /// Puts a file with `text` in the place of the `current` one; returns its state.
    fn replace(&self, current: &Current, text: &str) -> io::Result<FileState> {
        let Current {
            folder, name, data, ..
        } = current;
        let folder = folder.descriptor();
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{:08x}", random()?));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, &new, flags, Mode::from_raw_mode(0o600))?;
        let file = File::from(file);
        let replaced = fill(&file, text, data).and_then(|()| {
            // The state changes with the name, so the watch must not look between the two.
            self.writes.note(|| {
                let there = state_at(folder, name)?;
                if there != FileState::of(data) {
                    return Err(io::Error::other("it is being changed by somebody else"));
                }
                rustix::fs::renameat(folder, &new, folder, name)?;
                file.metadata()
            })
        });
        if replaced.is_err() {
            let _ = rustix::fs::unlinkat(folder, &new, AtFlags::empty());
        }
        let written = replaced?;
        // What was renamed is there, also if the folder cannot be synchronised.
        let _ = rustix::fs::openat(
            folder,
            ".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .and_then(rustix::fs::fsync);
        Ok(FileState::of(&written))
    }
}

fn random() -> io::Result<u32> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u32::from_ne_bytes(bytes))
}

/// Fills the new `file` with `text`, and gives it the owner and mode of the one with the metadata
/// `old`.
fn fill(mut file: &File, text: &str, old: &Metadata) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        let owner = Uid::from_raw(old.uid());
        let kept = rustix::fs::fchown(file, Some(owner), Some(Gid::from_raw(old.gid())));
        kept.map_err(|error| {
            io::Error::other(format!("it would not keep its owner and group: {error}"))
        })?;
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(old.mode() & 0o7777))?;
    file.sync_all()
}

/// Returns the state of the file `name` in `folder`, whose symlink is not followed.
fn state_at(folder: impl std::os::fd::AsFd, name: &OsStr) -> io::Result<FileState> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    Ok(FileState::of(&File::from(file).metadata()?))
}
