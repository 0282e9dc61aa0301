//! Mounts over files and folders that another sandbox, or any program of the user, may rename or
//! replace while the mounts are being made.
//!
//! Each mount is made on the descriptor of what it covers. Its root is then looked up below the
//! descriptor of the folder above, so that no path is resolved twice. A file that the supervisor
//! has found is known by its device and inode, a mount by its number and place.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use crate::paths::mounts::{Shown, Spot, TableEntry, bind, by_descriptor, mount_id, open_in};
use crate::paths::trusted_symlinks::open;

/// The time during which a step is tried again because something was renamed or replaced meanwhile.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// What identifies a file or folder, whatever its name (inode(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    /// Returns the identity of an open file.
    ///
    /// # Errors
    /// Fails if its metadata cannot be read.
    pub(crate) fn of(file: impl AsFd) -> io::Result<Self> {
        let data = rustix::fs::fstat(file)?;
        Ok(Self {
            device: data.st_dev,
            inode: data.st_ino,
        })
    }

    /// Returns the identity of the file at `path`, without following symlinks.
    ///
    /// # Errors
    /// Fails if the file does not exist, if a symlink is on the way to it, or if its metadata
    /// cannot be read.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Self::of(open(path, OFlags::PATH)?)
    }
}

/// A mount and its path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MountPoint {
    /// The number of the mount in its table.
    pub(crate) id: u64,
    /// Its path.
    #[serde(with = "byte_path")]
    pub(crate) path: PathBuf,
}

/// The mounts that have to stay in their places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places(pub(crate) Vec<MountPoint>);

/// The mount points that protect one path.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) path: KeptPath,
    pub(crate) places: Places,
    /// True if the sandbox must end when one of them is lost.
    pub(crate) is_end: bool,
}

/// A path that is protected from the workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeptPath {
    /// The carve-out with this number.
    CarveOut(usize),
    /// A file or folder that holds secrets.
    Secret(PathBuf),
}

/// Serialization, for init, of a path that need not be valid text.
pub(crate) mod byte_path {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        OsString::deserialize(deserializer).map(PathBuf::from)
    }
}

/// The mount points of all mounts, by their numbers.
#[derive(Debug)]
pub(crate) struct Mounted<'t>(HashMap<u64, &'t Path>);

impl<'t> Mounted<'t> {
    /// Collects the mounts of a `table`.
    pub(crate) fn of(table: &'t [TableEntry]) -> Self {
        Self(
            table
                .iter()
                .map(|entry| (entry.id, entry.place.as_path()))
                .collect(),
        )
    }

    /// Returns true if the mount is still in its place.
    pub(crate) fn has(&self, point: &MountPoint) -> bool {
        self.0.get(&point.id) == Some(&point.path.as_path())
    }
}

/// The mounts that were made, in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    made: Vec<MountPoint>,
    known: HashSet<MountPoint>,
}

impl Pins {
    /// Finds `path`. Every folder between `top` and `path` becomes a mount point, which nobody
    /// inside can rename or remove; all of them are added to `points`. Without `top`, no mounts are
    /// made.
    ///
    /// # Errors
    /// Fails if a part of the way does not exist, is a symlink, or cannot be mounted.
    pub(crate) fn reach(
        &mut self,
        top: Option<&Path>,
        path: &Path,
        points: &mut BTreeSet<MountPoint>,
    ) -> io::Result<Spot> {
        let Some((top, rest)) = top.and_then(|top| Some((top, path.strip_prefix(top).ok()?)))
        else {
            return Ok(Spot::at(path)?);
        };
        let Some(name) = rest.file_name() else {
            return Ok(Spot::at(path)?);
        };
        let mut reached = top.to_owned();
        let mut folder = open(top, OFlags::PATH | OFlags::DIRECTORY)?;
        for part in rest.parent().into_iter().flat_map(Path::components) {
            let spot = Spot::find(folder, part.as_os_str())?;
            reached.push(part);
            folder = self.keep(spot, &reached, points)?;
        }
        Ok(Spot::find(folder, name)?)
    }

    /// Makes what is at `spot` a mount point at `path`, unless it already is one of these mounts.
    /// Returns the root of its mount.
    ///
    /// # Errors
    /// Fails if the kernel refuses the mount.
    pub(crate) fn keep(
        &mut self,
        spot: Spot,
        path: &Path,
        points: &mut BTreeSet<MountPoint>,
    ) -> io::Result<OwnedFd> {
        let id = mount_id(&spot.file)?;
        let point = MountPoint {
            id,
            path: path.to_owned(),
        };
        if self.known.contains(&point) {
            points.insert(point);
            return Ok(spot.file);
        }
        self.mount(&spot.file, &spot, Shown::AsItIs, path, points)
    }

    /// Mounts `source` on what is at `spot`, whose path is `path`, and verifies that it is visible
    /// there. Returns the root of the mount.
    ///
    /// # Errors
    /// Fails if the kernel refuses the mount, or with `ESTALE` if something else is in that place
    /// by now.
    pub(crate) fn mount(
        &mut self,
        source: &OwnedFd,
        spot: &Spot,
        shown: Shown,
        path: &Path,
        points: &mut BTreeSet<MountPoint>,
    ) -> io::Result<OwnedFd> {
        let root = bind(source, spot, shown)?;
        let point = MountPoint {
            id: mount_id(&root)?,
            path: path.to_owned(),
        };
        if spot
            .reopen()
            .map_err(io::Error::from)
            .and_then(mount_id)
            .ok()
            != Some(point.id)
        {
            let _ = unmount(&root);
            return Err(Errno::STALE.into());
        }
        self.made.push(point.clone());
        self.known.insert(point.clone());
        points.insert(point);
        Ok(root)
    }

    /// Removes all mounts again, wherever they are by now. Otherwise the next attempt would mount
    /// them too.
    pub(crate) fn undo(&self, table: &[TableEntry]) {
        let mounted = Mounted::of(table);
        for point in self.made.iter().rev() {
            let Some(root) = mounted
                .0
                .get(&point.id)
                .and_then(|place| Spot::at(place).ok())
            else {
                continue;
            };
            if mount_id(&root.file).ok() == Some(point.id) {
                let _ = unmount(&root.file);
            }
        }
    }

    /// Verifies that all mounts are still in their places.
    ///
    /// # Errors
    /// Fails with the path of the first mount that is not in its place.
    pub(crate) fn verify(&self, table: &[TableEntry]) -> Result<(), PathBuf> {
        let mounted = Mounted::of(table);
        match self.made.iter().find(|point| !mounted.has(point)) {
            Some(lost) => Err(lost.path.clone()),
            None => Ok(()),
        }
    }
}

/// Removes the mount whose root is `root`.
pub(crate) fn unmount(root: &OwnedFd) -> rustix::io::Result<()> {
    rustix::mount::unmount(by_descriptor(root), UnmountFlags::DETACH)
}

/// Finds `rest` below the root of a mount.
///
/// # Errors
/// Fails if it does not exist, or if a part of the way is a symlink.
pub(crate) fn find_in(root: &OwnedFd, rest: &Path) -> io::Result<Spot> {
    let name = rest.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let folder = match rest
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(parent) => open_in(root, parent)?,
        None => root.try_clone()?,
    };
    Ok(Spot::find(folder, name)?)
}

/// Returns true if nothing can be changed through the mount whose root is `root`. The kernel checks
/// the mount first, before the kind and owner of the file. The test removes an attribute that no
/// file has, so it changes nothing if the mount is writable.
pub(crate) fn is_read_only(root: &OwnedFd) -> bool {
    rustix::fs::removexattr(by_descriptor(root), c"user.openshell-sandbox.none") == Err(Errno::ROFS)
}

/// Returns true if the error means that something was renamed or replaced meanwhile.
pub(crate) fn is_of_change(error: &io::Error) -> bool {
    let of_change = [
        Errno::NOENT,
        Errno::STALE,
        Errno::LOOP,
        Errno::NOTDIR,
        Errno::AGAIN,
        Errno::INVAL,
    ];
    of_change
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Calls `act`, and repeats it for up to [`PATIENCE`] while `is_of_change` says that something was
/// renamed or replaced meanwhile.
pub(crate) fn settled<T, E>(
    mut act: impl FnMut() -> Result<T, E>,
    is_of_change: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match act() {
            Err(error) if is_of_change(&error) && Instant::now() < deadline => {
                std::thread::sleep(PAUSE)
            }
            result => return result,
        }
    }
}
