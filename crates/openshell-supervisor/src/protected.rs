//! Files and folders that the supervisor relies on, in folders that the policy grants: the workload can neither change nor
//! replace them, nor read those that hold secrets.
//!
//! Each is covered by a mount: by itself, read-only, or by an empty file. A mount goes with its file, so every folder between
//! a writable grant and a protected path is a mount point too, as no mount point can be renamed or removed (rename(2), EBUSY).

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::landlock::{Request, Resolved};
use crate::masked_paths::KERNEL_FILE_SYSTEMS;
use crate::mounts::{Shown, bind, mount_table};
use crate::trusted_symlinks::{is_on_read_only_mount, links, open};

/// A file or folder that the supervisor relies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProtectedPath {
    /// Its purpose, for messages.
    pub what: String,
    /// Its path, without symlinks; that of the volume for a secret in a volume of Kubernetes.
    pub path: PathBuf,
    /// True if the workload must not read it.
    pub holds_secret: bool,
}

/// What is mounted over paths with secrets: an empty file, and an empty folder, both without permissions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covers {
    /// The file.
    pub file: PathBuf,
    /// The folder.
    pub folder: PathBuf,
}

impl Covers {
    /// Opens those that are there.
    pub(crate) fn open(&self) -> OpenCovers {
        let open = |path: &Path| open(path, OFlags::PATH).ok();
        OpenCovers { file: open(&self.file), folder: open(&self.folder) }
    }
}

/// Open [`Covers`].
#[derive(Debug, Default)]
pub(crate) struct OpenCovers {
    file: Option<OwnedFd>,
    folder: Option<OwnedFd>,
}

impl OpenCovers {
    /// Mounts an empty file or folder over `path`, which `data` describes.
    ///
    /// # Errors
    /// There is none, or the mount fails.
    pub(crate) fn hide(&self, path: &Path, data: &Metadata) -> io::Result<()> {
        let cover = if data.is_dir() { &self.folder } else { &self.file };
        bind(cover.as_ref().ok_or(io::ErrorKind::NotFound)?, path, Shown::ReadOnly)
    }
}

/// A path that cannot be protected.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum ProtectError {
    #[error(
        "the policy grants {path}, and that is the {what}, which the workload must not {act}; take that line out of \
         filesystem_policy, or move the {what}"
    )]
    Granted { what: String, path: PathBuf, act: &'static str },
    #[error(
        "the {what} {path} is named by way of the symlink {link}, which the workload may replace, as the policy grants writing \
         there; name {target}, or move it"
    )]
    Symlink { what: String, path: PathBuf, link: PathBuf, target: PathBuf },
    #[error("the {what} {path} cannot be looked at, so it cannot be kept from the workload; name another path")]
    Inspect { what: String, path: PathBuf, source: io::Error },
    #[error(
        "the {what} {path} lies in {grant}, which the policy grants, and has further names (hard links), under which the workload \
         could reach it; copy it, or move it"
    )]
    Linked { what: String, path: PathBuf, grant: PathBuf },
    #[error(
        "the {what} {path} lies in {grant}, which the policy grants, and cannot be kept from the workload; move it"
    )]
    Mount { what: String, path: PathBuf, grant: PathBuf, source: io::Error },
    #[error("the {what} {path} lies in {grant}, which the policy grants, and was not kept from the workload; move it")]
    NotProved { what: String, path: PathBuf, grant: PathBuf },
}

impl ProtectedPath {
    /// Describes a file or folder that the workload must not change, at a path that exists inside.
    #[must_use]
    pub fn new(what: &str, path: &Path) -> Self {
        Self { what: what.to_owned(), path: path.to_owned(), holds_secret: false }
    }

    /// Describes the file or folder at `path`; `None` if there is none, or another kind of file such as a pipe.
    ///
    /// # Errors
    /// The workload could make `path` lead elsewhere under the rights of `landlock`, or these grant it by itself.
    pub fn find(what: &str, path: &Path, holds_secret: bool, landlock: &Request) -> Result<Option<Self>, ProtectError> {
        let inspect = |source| ProtectError::Inspect { what: what.to_owned(), path: path.to_owned(), source };
        let real = match std::fs::canonicalize(path) {
            // What this process cannot reach the workload cannot either.
            Err(error) if is_out_of_reach(&error) => return Ok(None),
            real => real.map_err(inspect)?,
        };
        if !landlock.shows(&real) {
            return Ok(None);
        }
        let path = std::path::absolute(path).map_err(inspect)?;
        let links = links(&path).map_err(inspect)?;
        let volume = kubernetes_volume(&links).filter(|_| holds_secret).map(std::fs::canonicalize);
        // A link out of its folder is none of the kubelet's.
        let volume = volume.transpose().map_err(inspect)?.filter(|volume| real.starts_with(volume));
        let real = volume.unwrap_or(real);
        let (what, act) = (what.to_owned(), if holds_secret { "read" } else { "change" });
        if landlock.grants_itself(&real, !holds_secret) {
            return Err(ProtectError::Granted { what, path: real, act });
        }
        let is_kept = std::fs::metadata(&real).is_ok_and(|data| data.is_file() || data.is_dir());
        let is_changeable = |link: &PathBuf| {
            link.parent().is_some_and(|folder| landlock.grants_writing(folder) && landlock.shows(folder))
        };
        match links.into_iter().find(is_changeable).filter(|_| is_kept) {
            Some(link) => Err(ProtectError::Symlink { what, path, link, target: real }),
            None => Ok(is_kept.then_some(Self { what, path: real, holds_secret })),
        }
    }
}

/// Returns the volume of Kubernetes that holds the file behind `links`. Its files are those of a folder behind the link `..data`;
/// a new content is a new folder, and the link is replaced (the kubelet's AtomicWriter), so only the volume stays.
fn kubernetes_volume(links: &[PathBuf]) -> Option<&Path> {
    links.iter().find(|link| link.ends_with("..data")).and_then(|link| link.parent())
}

/// Returns true if there is no file, or none that this process may reach.
pub(crate) fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory)
}

/// Grants of a policy, as far as they matter to protected paths.
#[derive(Debug)]
struct Grants {
    writing: BTreeSet<PathBuf>,
    reading: BTreeSet<PathBuf>,
    /// Paths that the policy itself lists.
    listed: BTreeSet<PathBuf>,
}

/// Protects `paths` from a workload of user `uid` with the rights `granted`, where these reach them, by `covers`.
/// To be called in a private mount namespace. Returns the paths that are mount points now.
///
/// # Errors
/// A path cannot be protected.
pub(crate) fn protect(
    paths: &[ProtectedPath],
    granted: &[Resolved<'_>],
    uid: u32,
    covers: &OpenCovers,
) -> Result<Vec<PathBuf>, ProtectError> {
    let of = |wanted: &dyn Fn(&Resolved<'_>) -> bool| {
        granted.iter().filter(|grant| wanted(grant)).filter_map(Resolved::target).map(Path::to_owned).collect()
    };
    let grants = Grants {
        writing: of(&|grant| grant.grants_writing()),
        reading: of(&|grant| grant.grants_reading()),
        listed: of(&|grant| grant.is_listed()),
    };
    grants.keep_read_only(granted, uid)?;
    let (mut mounted, mut covered) = (BTreeSet::new(), BTreeSet::new());
    for path in paths {
        grants.protect(path, uid, covers, &mut mounted, &mut covered)?;
    }
    Ok(mounted.into_iter().collect())
}

impl Grants {
    /// Mounts each granted folder of the workload's user that may only be read on itself, read-only: the file rules do not keep
    /// an owner from changing modes, times and attributes.
    fn keep_read_only(&self, granted: &[Resolved<'_>], uid: u32) -> Result<(), ProtectError> {
        let is_inside = |grants: &BTreeSet<PathBuf>, path: &Path| path.ancestors().any(|above| grants.contains(above));
        let mut pinned = BTreeSet::new();
        let only_read = granted.iter().filter(|grant| grant.grants_reading()).filter_map(Resolved::target);
        for path in only_read.filter(|path| *path != Path::new("/") && !is_inside(&self.writing, path)) {
            let failed = |source| {
                let (what, path) = ("read-only folder".to_owned(), path.to_owned());
                ProtectError::Mount { what, grant: path.clone(), path, source }
            };
            let opened = match open(path, OFlags::PATH) {
                Err(Errno::NOENT | Errno::ACCESS) => continue,
                opened => opened.map_err(|errno| failed(errno.into()))?,
            };
            // Where the workload is the caller, its files may lie deeper too.
            let is_callers = uid == rustix::process::geteuid().as_raw() && self.listed.contains(path);
            let is_own = is_callers || rustix::fs::fstat(&opened).is_ok_and(|data| data.st_uid == uid);
            let is_kernels = rustix::fs::fstatfs(&opened)
                .is_ok_and(|system| KERNEL_FILE_SYSTEMS.contains(&system.f_type.cast_unsigned()));
            if !is_own || is_kernels || is_inside(&pinned, path) {
                continue;
            }
            // Writable folders in it stay writable as mounts of their own.
            for inner in self.writing.iter().filter(|inner| inner.starts_with(path)) {
                pin(inner, Shown::AsItIs).map_err(failed)?;
            }
            pin(path, Shown::ReadOnly).map_err(failed)?;
            pinned.insert(path.to_owned());
        }
        Ok(())
    }

    fn protect(
        &self,
        protected: &ProtectedPath,
        uid: u32,
        covers: &OpenCovers,
        mounted: &mut BTreeSet<PathBuf>,
        covered: &mut BTreeSet<PathBuf>,
    ) -> Result<(), ProtectError> {
        let ProtectedPath { what, path, holds_secret } = protected;
        // Several secrets may lie in one volume.
        if *holds_secret && covered.contains(path) {
            return Ok(());
        }
        let above = |grants: &BTreeSet<PathBuf>| grants.iter().find(|grant| path.starts_with(grant)).cloned();
        // The shortest one comes first.
        let (writable, Some(grant)) = (above(&self.writing), above(&self.reading)) else { return Ok(()) };
        let data = match std::fs::symlink_metadata(path) {
            // Where the workload may write it could make one.
            Err(error) if error.kind() == io::ErrorKind::NotFound && writable.is_none() => return Ok(()),
            data => data,
        };
        // Files of others that may only be read have modes that the workload cannot change, and so have all on a read-only mount, where
        // a volume's content can be replaced from outside.
        let is_own = data.as_ref().is_ok_and(|data| data.uid() == uid);
        let is_changeable = || {
            is_own
                && !open(path, OFlags::PATH).map_err(io::Error::from).and_then(is_on_read_only_mount).unwrap_or(false)
        };
        if !holds_secret && writable.is_none() && !is_changeable() {
            return Ok(());
        }
        let (act, forbidden) = if *holds_secret { ("read", &self.listed) } else { ("change", &self.writing) };
        if forbidden.contains(path) {
            return Err(ProtectError::Granted { what: what.clone(), path: path.clone(), act });
        }
        let failed =
            |source| ProtectError::Mount { what: what.clone(), path: path.clone(), grant: grant.clone(), source };
        let before = data.map_err(failed)?;
        if is_linked(&before) && what != PROGRAM {
            return Err(ProtectError::Linked { what: what.clone(), path: path.clone(), grant });
        }
        let folders = writable.iter().flat_map(|top| path.ancestors().skip(1).take_while(move |folder| folder != top));
        let inner = self.writing.iter().filter(|inside| inside.starts_with(path)).map(PathBuf::as_path);
        let mut pinned: Vec<_> = folders.chain(inner).collect();
        // Folders before those in them.
        pinned.sort_unstable();
        for folder in pinned {
            if mounted.insert(folder.to_owned()) {
                pin(folder, Shown::AsItIs).map_err(failed)?;
            }
        }
        match holds_secret {
            true => covers.hide(path, &before).map_err(failed)?,
            false => pin(path, Shown::ReadOnly).map_err(failed)?,
        }
        mounted.insert(path.clone());
        let is_covered = || -> io::Result<bool> {
            let (now, mount) = (std::fs::symlink_metadata(path)?, rustix::fs::statvfs(path.as_path())?);
            let is_other = (now.dev(), now.ino()) != (before.dev(), before.ino());
            Ok(is_other == *holds_secret && mount.f_flag.contains(StatVfsMountFlags::RDONLY))
        };
        match is_covered().map_err(failed)? {
            true => {
                covered.extend(holds_secret.then(|| path.clone()));
                Ok(())
            }
            false => Err(ProtectError::NotProved { what: what.clone(), path: path.clone(), grant: grant.clone() }),
        }
    }
}

/// Kind of the supervisor's own program, whose file no process can write to while it runs, under whatever name.
pub const PROGRAM: &str = "program of the sandbox";

/// Returns true for a file with several names, which a mount over one of them does not protect.
pub(crate) fn is_linked(data: &Metadata) -> bool {
    data.is_file() && data.nlink() > 1
}

/// Mounts `path` on itself. A grant that does not exist needs no mount.
pub(crate) fn pin(path: &Path, shown: Shown) -> io::Result<()> {
    match open(path, OFlags::PATH) {
        Err(Errno::NOENT) => Ok(()),
        opened => bind(&opened?, path, shown),
    }
}

/// The protection in force, for files that are read while the workload runs. The default is that of a policy without grants.
#[derive(Clone, Debug, Default)]
pub struct Protection {
    /// PID of init in the supervisor's namespace.
    pub(crate) init: i32,
    /// Mount points in the sandbox that protect a path.
    pub(crate) mounted: Vec<PathBuf>,
    /// Those that hide a secret.
    pub(crate) secrets: Vec<PathBuf>,
    /// The supervisor's own program.
    pub(crate) program: Option<PathBuf>,
    /// The file rules.
    pub(crate) landlock: Request,
}

impl Protection {
    /// Verifies that every mount is still there. The kernel removes a mount whose file is renamed or replaced outside of the
    /// sandbox, and what is then at its path is the workload's to change.
    ///
    /// # Errors
    /// The first path that is no longer protected; or the mounts cannot be listed.
    pub fn verify(&self) -> io::Result<()> {
        self.verify_mounts(&self.mounted)
    }

    fn table(&self) -> String {
        format!("/proc/{}/mountinfo", self.init)
    }

    fn verify_mounts(&self, mounts: &[PathBuf]) -> io::Result<()> {
        if mounts.is_empty() {
            return Ok(());
        }
        let places: BTreeSet<_> = mount_table(&self.table())?.into_iter().map(|mount| mount.place).collect();
        let is_kept = |path: &PathBuf| {
            // Where the sandbox has a file system of its own, there is nothing outside.
            let has_one_name = match std::fs::symlink_metadata(path) {
                Ok(data) => !is_linked(&data),
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            places.contains(path) && (has_one_name || self.program.as_ref() == Some(path))
        };
        let lost = mounts.iter().find(|path| !is_kept(path));
        lost.map_or(Ok(()), |path| {
            let path = path.display();
            Err(io::Error::other(format!(
                "{path} was replaced or linked, so the workload has access to what is there now; start again, and keep it outside of what the \
                 policy grants"
            )))
        })
    }

    /// Returns true if the workload cannot read the file at `path`.
    #[must_use]
    pub fn hides(&self, path: &Path) -> bool {
        match std::fs::canonicalize(path) {
            Ok(path) => self.secrets.iter().any(|secret| path.starts_with(secret)) || !self.landlock.reaches(&path),
            Err(error) => is_out_of_reach(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::ProtectedPath;
    use crate::landlock::Request;

    #[test]
    fn a_secret_of_a_volume_is_protected_with_the_volume_and_one_that_a_link_leads_to_by_itself() {
        let folder = tempfile::tempdir().unwrap();
        let (volume, other) = (folder.path().join("volume"), folder.path().join("other"));
        std::fs::create_dir_all(volume.join("..first")).unwrap();
        std::fs::create_dir(&other).unwrap();
        symlink("..data/token", volume.join("token")).unwrap();
        let protected = |target: &str| {
            let _ = std::fs::remove_file(volume.join("..data"));
            symlink(target, volume.join("..data")).unwrap();
            std::fs::write(volume.join(target).join("token"), "secret").unwrap();
            ProtectedPath::find("file of a credential", &volume.join("token"), true, &Request::default())
                .unwrap()
                .unwrap()
                .path
        };
        let real = |path: &std::path::Path| std::fs::canonicalize(path).unwrap();
        assert_eq!(protected("..first"), real(&volume));
        assert_eq!(protected("../other"), real(&other.join("token")));
    }
}
