//! Files and folders that the supervisor relies on and that lie in folders that the policy grants.
//! The workload can neither change nor replace them, and cannot read those that hold secrets.
//!
//! Each is covered by a mount: of itself, read-only, or of an empty file or folder. A mount moves
//! with its file, but a mount point cannot be renamed or removed (rename(2), EBUSY). So every
//! folder between a writable grant and a protected path becomes a mount point too.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::files::grants::{self, Granted};
use crate::files::landlock::{Request, Resolved};
use crate::files::masked_paths::KERNEL_FILE_SYSTEMS;
use crate::paths::mounts::{Shown, Spot, bind, bind_at, mount_table};
use crate::paths::pins::{
    Identity, MountPoint, Mounted, Pins, Places, is_of_change, is_read_only, settled,
};
use crate::paths::trusted_symlinks::{is_on_read_only_mount, links, open};

/// A file or folder that the supervisor relies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectedPath {
    /// Its purpose, for messages.
    pub what: String,
    /// Its path, without symlinks; for a secret in a Kubernetes volume, the path of the volume.
    pub path: PathBuf,
    /// True if the workload must not read it.
    pub holds_secret: bool,
    /// The identity of what the supervisor found there; `None` if it is made inside.
    identity: Option<Identity>,
}

/// The covers that are mounted over paths with secrets: an empty file and an empty folder, both
/// without permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covers {
    /// The file.
    pub file: PathBuf,
    /// The folder.
    pub folder: PathBuf,
}

impl Covers {
    /// Opens the covers with `open`, as far as they exist.
    pub(crate) fn open(&self, open: impl Fn(&Path) -> io::Result<OwnedFd>) -> OpenCovers {
        OpenCovers {
            file: open(&self.file).ok(),
            folder: open(&self.folder).ok(),
        }
    }
}

/// The open [`Covers`].
#[derive(Debug, Default)]
pub(crate) struct OpenCovers {
    file: Option<OwnedFd>,
    folder: Option<OwnedFd>,
}

impl OpenCovers {
    /// Returns the cover for a file of this kind.
    ///
    /// # Errors
    /// Fails if that cover could not be opened.
    pub(crate) fn of(&self, kind: FileType) -> io::Result<&OwnedFd> {
        let cover = if kind == FileType::Directory {
            &self.folder
        } else {
            &self.file
        };
        cover.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// A path that cannot be protected.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum ProtectError {
    #[error(
        "the policy grants {path}, and that is the {what}, which the workload must not {act}; take \
         that line out of filesystem_policy, or move the {what}"
    )]
    Granted {
        what: String,
        path: PathBuf,
        act: &'static str,
    },
    #[error(
        "the path {path} of the {what} goes through the symlink {link}, which the workload can \
         replace, because the policy lets it write there; name {target}, or move it"
    )]
    Symlink {
        what: String,
        path: PathBuf,
        link: PathBuf,
        target: PathBuf,
    },
    #[error(
        "cannot keep the {what} {path} from the workload, because it cannot be read; name another \
         path"
    )]
    Inspect {
        what: String,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "the {what} {path} lies in {grant}, which the policy grants, and has further names (hard \
         links), through which the workload could reach it; replace it by a copy, or move it"
    )]
    Linked {
        what: String,
        path: PathBuf,
        grant: PathBuf,
    },
    #[error(
        "cannot keep the {what} {path} from the workload: it lies in {grant}, which the policy \
         grants; move it"
    )]
    Mount {
        what: String,
        path: PathBuf,
        grant: PathBuf,
        source: io::Error,
    },
    #[error(
        "the {what} {path} lies in {grant}, which the policy grants, and the mount that keeps it \
         from the workload is not read-only; move it"
    )]
    NotProved {
        what: String,
        path: PathBuf,
        grant: PathBuf,
    },
    #[error(
        "another process renames or replaces the {what} {path} while the sandbox starts; stop that \
         process, and start again"
    )]
    Changing { what: String, path: PathBuf },
}

impl ProtectedPath {
    /// Describes a file or folder that the workload must not change, at a path that exists in the
    /// sandbox.
    #[must_use]
    pub fn new(what: &str, path: &Path) -> Self {
        Self {
            what: what.to_owned(),
            path: path.to_owned(),
            holds_secret: false,
            identity: None,
        }
    }

    /// Returns the same path for when init puts another file or folder in its place.
    #[must_use]
    pub fn made_inside(self) -> Self {
        Self {
            identity: None,
            ..self
        }
    }

    /// Describes the file or folder at `path`. Returns `None` if there is none, or if it is another
    /// kind of file, for example a pipe.
    ///
    /// # Errors
    /// Fails if the path cannot be inspected, if the workload could make it lead elsewhere under
    /// the rights of `landlock`, or if those rights grant the path itself.
    pub fn find(
        what: &str,
        path: &Path,
        holds_secret: bool,
        landlock: &Request,
    ) -> Result<Option<Self>, ProtectError> {
        let inspect = |source| ProtectError::Inspect {
            what: what.to_owned(),
            path: path.to_owned(),
            source,
        };
        let Some(real) = grants::reached(path, landlock).map_err(inspect)? else {
            return Ok(None);
        };
        let path = std::path::absolute(path).map_err(inspect)?;
        let links = links(&path).map_err(inspect)?;
        let volume = kubernetes_volume(&links)
            .filter(|_| holds_secret)
            .map(std::fs::canonicalize);
        // The kubelet does not make a `..data` link that leads out of its folder.
        let volume = volume
            .transpose()
            .map_err(inspect)?
            .filter(|volume| real.starts_with(volume));
        let real = volume.unwrap_or(real);
        let what = what.to_owned();
        let act = if holds_secret { "read" } else { "change" };
        if landlock.grants_itself(&real, !holds_secret) {
            return Err(ProtectError::Granted {
                what,
                path: real,
                act,
            });
        }
        let data = std::fs::metadata(&real).map_err(inspect)?;
        let is_kept = data.is_file() || data.is_dir();
        let is_changeable = |link: &PathBuf| {
            link.parent()
                .is_some_and(|folder| landlock.grants_writing(folder) && landlock.shows(folder))
        };
        match links.into_iter().find(is_changeable).filter(|_| is_kept) {
            Some(link) => Err(ProtectError::Symlink {
                what,
                path,
                link,
                target: real,
            }),
            None if !is_kept => Ok(None),
            None => {
                let identity = grants::identity(&real, landlock).map_err(inspect)?;
                Ok(Some(Self {
                    what,
                    path: real,
                    holds_secret,
                    identity,
                }))
            }
        }
    }
}

/// Returns the Kubernetes volume that holds the file behind `links`. The files of a volume are in a
/// folder behind the link `..data`. New content is a new folder, and the link is replaced (the
/// kubelet's AtomicWriter), so only the volume itself stays.
fn kubernetes_volume(links: &[PathBuf]) -> Option<&Path> {
    links
        .iter()
        .find(|link| link.ends_with("..data"))
        .and_then(|link| link.parent())
}

/// Protects `paths` from a workload of user `uid` with the rights `granted`, as far as these reach
/// them, with `covers`. Call this in a private mount namespace. Returns the paths that are mount
/// points now.
///
/// # Errors
/// Fails if a path cannot be protected.
pub(crate) fn protect(
    paths: &[ProtectedPath],
    granted: &[Resolved<'_>],
    uid: u32,
    covers: &OpenCovers,
) -> Result<Places, ProtectError> {
    let granted = Granted::of(granted);
    let protecting = || Protecting::new(&granted, uid, covers);
    let is_of_change = |error: &ProtectError| matches!(error, ProtectError::Changing { .. });
    // Not tried again: what was shown read-only already would stay so in the next attempt.
    protecting().keep_read_only()?;
    settled(|| protecting().all(paths), is_of_change)
}

/// An attempt to protect paths.
struct Protecting<'p> {
    granted: &'p Granted,
    /// The workload's user.
    uid: u32,
    covers: &'p OpenCovers,
    pins: Pins,
    points: BTreeSet<MountPoint>,
    /// The secrets that are covered.
    covered: BTreeSet<PathBuf>,
}

impl<'p> Protecting<'p> {
    fn new(granted: &'p Granted, uid: u32, covers: &'p OpenCovers) -> Self {
        Self {
            granted,
            uid,
            covers,
            pins: Pins::default(),
            points: BTreeSet::new(),
            covered: BTreeSet::new(),
        }
    }

    /// Mounts each granted folder that the workload's user owns but may only read on itself,
    /// read-only. The file rules do not stop an owner from changing modes, times and attributes.
    fn keep_read_only(&self) -> Result<(), ProtectError> {
        let Granted {
            writing,
            reading,
            listed,
        } = self.granted;
        let is_inside = |grants: &BTreeSet<PathBuf>, path: &Path| {
            path.ancestors().any(|above| grants.contains(above))
        };
        let mut pinned = BTreeSet::new();
        for path in reading {
            if path == Path::new("/") || is_inside(writing, path) {
                continue;
            }
            let folder = ProtectedPath::new("read-only folder", path);
            let failed = |source| ProtectError::of(&folder, path, source);
            let opened = match open(path, OFlags::PATH) {
                Err(Errno::NOENT | Errno::ACCESS) => continue,
                opened => opened.map_err(|errno| failed(errno.into()))?,
            };
            // If the workload runs as this process's user, its files may also lie deeper in the
            // folder.
            let is_callers =
                self.uid == rustix::process::geteuid().as_raw() && listed.contains(path);
            let is_own = is_callers
                || rustix::fs::fstat(&opened).map_or(true, |data| data.st_uid == self.uid);
            let is_kernels = rustix::fs::fstatfs(&opened)
                .is_ok_and(|system| KERNEL_FILE_SYSTEMS.contains(&system.f_type.cast_unsigned()));
            // The mount of a folder above may cover it already, but an older kernel leaves out the
            // mounts within.
            let is_kept = is_inside(&pinned, path) && is_read_only(&opened);
            if !is_own || is_kernels || is_kept {
                continue;
            }
            let spot = Spot::at(path).map_err(|errno| failed(errno.into()))?;
            // The sandbox's own terminals, which are mounted in /dev, have modes to be changed.
            let is_dev = path.starts_with("/dev");
            let cover = |within| {
                bind(
                    &opened,
                    &spot,
                    if is_dev { Shown::ReadOnly } else { within },
                )
            };
            let covered = self.granted.cover_read_only(path, cover);
            let root = covered.map_err(failed)?;
            if !is_read_only(&root) {
                return Err(ProtectError::NotProved {
                    what: folder.what,
                    grant: path.clone(),
                    path: folder.path,
                });
            }
            pinned.insert(path.to_owned());
        }
        Ok(())
    }

    /// Makes one attempt to protect all `paths`.
    fn all(mut self, paths: &[ProtectedPath]) -> Result<Places, ProtectError> {
        let Some(first) = paths.first() else {
            return Ok(Places::default());
        };
        let protected = paths.iter().try_for_each(|path| self.protect(path));
        let inspect = |source| {
            let what = "table of mounts".to_owned();
            let path = PathBuf::from("/proc/self/mountinfo");
            ProtectError::Inspect { what, path, source }
        };
        let table = mount_table("/proc/self/mountinfo").map_err(inspect)?;
        if let Err(error) = protected {
            self.pins.undo(&table);
            return Err(error);
        }
        match self.pins.verify(&table) {
            Ok(()) => Ok(Places(self.points.into_iter().collect())),
            Err(path) => Err(ProtectError::Changing {
                what: first.what.clone(),
                path,
            }),
        }
    }

    /// Mounts the writable grants within `path` on themselves, so that they stay writable.
    fn keep_inner(&self, path: &Path) -> io::Result<()> {
        for inner in &self.granted.writing {
            if inner.starts_with(path) {
                let opened = open(inner, OFlags::PATH)?;
                bind_at(&opened, inner, Shown::AsItIs)?;
            }
        }
        Ok(())
    }

    /// Checks that a protected path with the metadata `data` can be protected from the workload.
    fn check(
        &self,
        protected: &ProtectedPath,
        data: &Stat,
        grant: &Path,
    ) -> Result<(), ProtectError> {
        let what = &protected.what;
        let path = &protected.path;
        let (act, forbidden) = if protected.holds_secret {
            ("read", &self.granted.listed)
        } else {
            ("change", &self.granted.writing)
        };
        if forbidden.contains(path) {
            return Err(ProtectError::Granted {
                what: what.clone(),
                path: path.clone(),
                act,
            });
        }
        let kind = FileType::from_raw_mode(data.st_mode);
        if kind == FileType::RegularFile && data.st_nlink > 1 && what != PROGRAM {
            return Err(ProtectError::Linked {
                what: what.clone(),
                path: path.clone(),
                grant: grant.to_owned(),
            });
        }
        Ok(())
    }

    fn protect(&mut self, protected: &ProtectedPath) -> Result<(), ProtectError> {
        let ProtectedPath {
            what,
            path,
            holds_secret,
            identity,
        } = protected;
        let granted = self.granted;
        // Several secrets may lie in one volume.
        if *holds_secret && self.covered.contains(path) {
            return Ok(());
        }
        let writable = granted.writable_above(path);
        let Some(grant) = granted.readable_above(path) else {
            return Ok(());
        };
        let failed = |source: io::Error| ProtectError::of(protected, grant, source);
        let spot = match Spot::at(path) {
            // If the workload may write there, it could create a missing path.
            Err(Errno::NOENT | Errno::NOTDIR) if writable.is_none() => return Ok(()),
            spot => spot.map_err(|errno| failed(errno.into()))?,
        };
        let data = rustix::fs::fstat(&spot.file).map_err(|errno| failed(errno.into()))?;
        // A file that may only be read needs no cover if others own it, or if its mount is
        // read-only: the workload cannot change its mode. A volume's content can then still be
        // replaced from outside.
        let is_changeable =
            data.st_uid == self.uid && !is_on_read_only_mount(&spot.file).unwrap_or(false);
        if !holds_secret && writable.is_none() && !is_changeable {
            return Ok(());
        }
        self.check(protected, &data, grant)?;
        let kind = FileType::from_raw_mode(data.st_mode);
        let spot = self
            .pins
            .reach(writable.map(PathBuf::as_path), path, &mut self.points)
            .map_err(failed)?;
        let found = Identity::of(&spot.file).map_err(failed)?;
        let before = Identity {
            device: data.st_dev,
            inode: data.st_ino,
        };
        if found != before || identity.is_some_and(|identity| identity != found) {
            return Err(ProtectError::Changing {
                what: what.clone(),
                path: path.clone(),
            });
        }
        self.keep_inner(path).map_err(failed)?;
        let (source, shown) = if *holds_secret {
            (self.covers.of(kind).map_err(failed)?, Shown::Cover)
        } else {
            (&spot.file, Shown::ReadOnly)
        };
        let root = self
            .pins
            .mount(source, &spot, shown, path, &mut self.points)
            .map_err(failed)?;
        if !is_read_only(&root) {
            return Err(ProtectError::NotProved {
                what: what.clone(),
                path: path.clone(),
                grant: grant.clone(),
            });
        }
        if *holds_secret {
            self.covered.insert(path.clone());
        }
        Ok(())
    }
}

/// The `what` of the supervisor's own program. While it runs, no process can write to its file,
/// under any of its names.
pub const PROGRAM: &str = "program of the sandbox";

/// Returns true for a file with several names. A mount over one of them does not protect it.
pub(crate) fn is_linked(data: &Metadata) -> bool {
    data.is_file() && data.nlink() > 1
}

/// The protection that is in force, for files that are read while the workload runs. The default is
/// that of a policy without grants.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// Init's PID in the supervisor's PID namespace.
    pub(crate) init: i32,
    /// The mounts in the sandbox that protect paths.
    pub(crate) mounted: Vec<MountPoint>,
    /// The paths at which they hide a secret.
    pub(crate) secrets: Vec<PathBuf>,
    /// The supervisor's own program.
    pub(crate) program: Option<PathBuf>,
    /// The file rules.
    pub(crate) landlock: Request,
}

impl Protection {
    /// Verifies that every mount is still there. The kernel removes a mount if its file is renamed
    /// or replaced outside the sandbox; the workload can then change what is at its path.
    ///
    /// # Errors
    /// Fails with the first path that is no longer protected, or if the mounts cannot be listed.
    pub fn verify(&self) -> io::Result<()> {
        if self.mounted.is_empty() {
            return Ok(());
        }
        let table = mount_table(&format!("/proc/{}/mountinfo", self.init))?;
        let mounted = Mounted::of(&table);
        let is_kept = |point: &MountPoint| {
            // A file that is only in a file system of the sandbox does not exist outside.
            let has_one_name = match std::fs::symlink_metadata(&point.path) {
                Ok(data) => !is_linked(&data),
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            mounted.has(point) && (has_one_name || self.program.as_ref() == Some(&point.path))
        };
        let lost = self.mounted.iter().find(|point| !is_kept(point));
        lost.map_or(Ok(()), |point| {
            let path = point.path.display();
            Err(io::Error::other(format!(
                "{path} was replaced or linked, so the workload has access to what is there now; \
                 start again, and keep it outside of what the policy grants"
            )))
        })
    }

    /// Returns true if the workload cannot read the file at `path`.
    #[must_use]
    pub fn hides(&self, path: &Path) -> bool {
        match std::fs::canonicalize(path) {
            Ok(path) => {
                self.secrets.iter().any(|secret| path.starts_with(secret))
                    || !self.landlock.reaches(&path)
            }
            // If a grant reaches a missing file, the workload could create it before it is read.
            Err(_) => !self.landlock.reaches(path),
        }
    }
}

impl ProtectError {
    /// Returns the error for a `protected` path below `grant` that could not be protected because
    /// of `source`.
    fn of(protected: &ProtectedPath, grant: &Path, source: io::Error) -> Self {
        let what = protected.what.clone();
        let path = protected.path.clone();
        if is_of_change(&source) {
            return Self::Changing { what, path };
        }
        Self::Mount {
            what,
            path,
            grant: grant.to_owned(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::ProtectedPath;
    use crate::files::landlock::Request;

    #[test]
    fn a_secret_of_a_volume_is_protected_with_the_volume_and_one_that_a_link_leads_to_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("volume");
        let other = folder.path().join("other");
        std::fs::create_dir_all(volume.join("..first")).unwrap();
        std::fs::create_dir(&other).unwrap();
        symlink("..data/token", volume.join("token")).unwrap();
        let protected = |target: &str| {
            let _ = std::fs::remove_file(volume.join("..data"));
            symlink(target, volume.join("..data")).unwrap();
            std::fs::write(volume.join(target).join("token"), "secret").unwrap();
            ProtectedPath::find(
                "file of a credential",
                &volume.join("token"),
                true,
                &Request::default(),
            )
            .unwrap()
            .unwrap()
            .path
        };
        let real = |path: &std::path::Path| std::fs::canonicalize(path).unwrap();
        assert_eq!(protected("..first"), real(&volume));
        assert_eq!(protected("../other"), real(&other.join("token")));
    }
}
