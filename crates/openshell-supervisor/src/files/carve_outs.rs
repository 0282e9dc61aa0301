//! Carve-outs: parts of granted folders that the workload may not read, may not write to, or in
//! which it may not execute anything.
//!
//! File rules add up, so a rule cannot take a part out of a granted folder. A mount can: either the
//! part is mounted on itself with fewer rights, or an empty file or folder is mounted over it. A
//! mount point cannot be renamed or removed (rename(2), EBUSY). So every folder between the
//! writable grant and the part, and every symlink that leads to it, is also mounted on itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, StatVfsMountFlags};
use serde::{Deserialize, Serialize};

use crate::files::grants::{self, Granted};
use crate::files::landlock::{Request, Resolved};
use crate::files::protected::OpenCovers;
use crate::paths::missing::is_missing;
use crate::paths::mounts::{Shown, Spot, TableEntry, mount_table};
use crate::paths::pins::{
    Identity, MountPoint, Pins, Places, byte_path, is_of_change, is_read_only, settled,
};
use crate::paths::trusted_symlinks::{links, links_so_far};

/// What a carve-out takes away, in the order in which carve-outs of one path are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Restriction {
    /// Writing, except to writable folders that the policy grants in it.
    ReadOnly,
    /// Everything.
    Hidden,
    /// Executing, and mapping as code.
    NoExec,
}

impl Restriction {
    /// Returns the policy key that lists such paths.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::Hidden => "hidden",
            Self::NoExec => "noexec",
        }
    }
}

/// A path that is taken out of what the policy grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CarveOut {
    /// The path, without symlinks.
    #[serde(with = "byte_path")]
    pub path: PathBuf,
    /// What is taken away.
    pub restriction: Restriction,
    /// The identity of what the supervisor found there; `None` if the path may be missing, or if
    /// another file may be there inside.
    identity: Option<Identity>,
    /// The symlinks on the way to it that are in folders that the workload may write to.
    links: Vec<Link>,
    /// True if only the way must be protected, because it leads to nothing or to something that the
    /// policy does not grant.
    is_way: bool,
}

/// A symlink that leads to a carve-out, or another file that must stay in its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Link {
    #[serde(with = "byte_path")]
    path: PathBuf,
    /// The identity of what the supervisor found there; `None` if another file may be there inside.
    identity: Option<Identity>,
}

/// A carve-out that cannot be enforced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum CarveOutError {
    #[error("filesystem_policy.{key}: {path} cannot be read, so it cannot be taken out of what the \
             policy grants", key = .0.as_str(), path = .1.display())]
    Inspect(Restriction, PathBuf, #[source] io::Error),
    #[error("filesystem_policy.{key}: {path} also appears at {alias} (a bind mount), which the \
             policy grants; take one of the two out of the policy", key = .restriction.as_str(), path = .path.display(), alias = .alias.display())]
    Granted {
        restriction: Restriction,
        path: PathBuf,
        alias: PathBuf,
    },
    #[error("filesystem_policy.{key}: {path} has further names (hard links), through which the \
             workload could reach it; replace it by a copy, or list the folders of all its names", key = .0.as_str(), path = .1.display())]
    Linked(Restriction, PathBuf),
    #[error("filesystem_policy.{key}: {path} cannot be taken out of what the policy grants", key = .0.as_str(), path = .1.display())]
    Mount(Restriction, PathBuf, #[source] io::Error),
    #[error("filesystem_policy.{key}: {path} was not taken out of what the policy grants: a mount \
             on it or in it does not restrict access", key = .0.as_str(), path = .1.display())]
    NotProved(Restriction, PathBuf),
    #[error("filesystem_policy.{key}: another process renames or replaces {path} while the sandbox \
             starts; stop that process, and start again", key = .0.as_str(), path = .1.display())]
    Changing(Restriction, PathBuf),
}

impl CarveOutError {
    /// Returns true if another attempt may succeed.
    fn is_of_change(&self) -> bool {
        matches!(self, Self::Changing(..))
    }

    fn of_mount(restriction: Restriction, path: &Path, error: io::Error) -> Self {
        if is_of_change(&error) {
            Self::Changing(restriction, path.to_owned())
        } else {
            Self::Mount(restriction, path.to_owned(), error)
        }
    }
}

impl CarveOut {
    /// Describes the carve-out of executing for `path` in a private folder of the sandbox, whatever
    /// is at that path outside.
    #[must_use]
    pub fn without_execution(path: &Path) -> Self {
        Self {
            path: path.components().collect(),
            restriction: Restriction::NoExec,
            identity: None,
            links: Vec::new(),
            is_way: false,
        }
    }

    /// Describes the carve-out of `path`. Returns `None` if there is no such file or folder.
    ///
    /// # Errors
    /// Fails if the path cannot be inspected. It is not skipped then, because the owner of a folder
    /// on the way may make it accessible again.
    pub fn find(
        path: &Path,
        restriction: Restriction,
        landlock: &Request,
    ) -> Result<Option<Self>, CarveOutError> {
        let inspect = |source| CarveOutError::Inspect(restriction, path.to_owned(), source);
        let Some(real) = grants::reached(path, landlock).map_err(inspect)? else {
            return Ok(None);
        };
        let look = || {
            let links = changeable(links(path)?, landlock)?;
            Ok((links, grants::identity(&real, landlock)?))
        };
        let (links, identity) = match look() {
            Err(error) if is_missing(&error) => {
                return Err(CarveOutError::Changing(restriction, path.to_owned()));
            }
            looked => looked.map_err(inspect)?,
        };
        Ok(Some(Self {
            path: real,
            restriction,
            identity,
            links,
            is_way: false,
        }))
    }

    /// Describes the symlinks that lead from `path` to nothing, or to something that the policy
    /// does not grant, and that the workload could replace. Returns `None` if there are none.
    ///
    /// # Errors
    /// Fails if one of them cannot be inspected.
    pub fn find_way(
        path: &Path,
        restriction: Restriction,
        landlock: &Request,
    ) -> Result<Option<Self>, CarveOutError> {
        Self::way(path, links_so_far(path), restriction, landlock)
    }

    /// Describes a file that is in the place of a folder above `path`, and that the workload could
    /// replace by a folder. Returns `None` if the workload could not.
    ///
    /// # Errors
    /// Fails if the file cannot be inspected.
    pub fn find_file_above(
        path: &Path,
        file: PathBuf,
        restriction: Restriction,
        landlock: &Request,
    ) -> Result<Option<Self>, CarveOutError> {
        Self::way(path, vec![file], restriction, landlock)
    }

    fn way(
        path: &Path,
        links: Vec<PathBuf>,
        restriction: Restriction,
        landlock: &Request,
    ) -> Result<Option<Self>, CarveOutError> {
        let links = changeable(links, landlock);
        let links =
            links.map_err(|source| CarveOutError::Inspect(restriction, path.to_owned(), source))?;
        let way = Self {
            path: path.to_owned(),
            restriction,
            identity: None,
            links,
            is_way: true,
        };
        Ok(Some(way).filter(|way| !way.links.is_empty()))
    }
}

/// Returns the `links` that the workload could replace.
fn changeable(links: Vec<PathBuf>, landlock: &Request) -> io::Result<Vec<Link>> {
    let is_changeable = |link: &PathBuf| {
        link.parent()
            .is_some_and(|folder| landlock.reaches_for_writing(folder) && landlock.shows(folder))
    };
    let links = links.into_iter().filter(is_changeable).map(|path| {
        let identity = grants::identity(&path, landlock)?;
        Ok(Link { path, identity })
    });
    links.collect()
}

/// Takes `carve_outs` out of what the rights `granted` reach, and hides the `further` paths.
/// `private` are the private folders of the sandbox. Call this in a private mount namespace.
/// Returns, for each carve-out, the paths that have to stay mount points; there are none if no
/// grant reaches it.
///
/// # Errors
/// Fails if a carve-out cannot be enforced, or if its proof fails.
pub(crate) fn apply(
    carve_outs: &[CarveOut],
    further: &[PathBuf],
    granted: &[Resolved<'_>],
    private: &[PathBuf],
    covers: &OpenCovers,
) -> Result<Vec<Places>, CarveOutError> {
    if carve_outs.is_empty() && further.is_empty() {
        return Ok(Vec::new());
    }
    let apply = || {
        let mut applying = Applying::of(granted, private);
        let applied = applying.apply(carve_outs, further, covers);
        if applied.is_err() {
            applying.pins.undo(&table()?);
        }
        applied
    };
    settled(apply, CarveOutError::is_of_change)
}

/// Mounts `folders`, which an observed run is shown, on themselves, read-only except for writable
/// folders in them. Otherwise the command could change the modes and times of their files.
///
/// # Errors
/// Fails if the kernel refuses a mount.
pub(crate) fn show_read_only(
    folders: &BTreeSet<PathBuf>,
    granted: &[Resolved<'_>],
) -> Result<(), CarveOutError> {
    let mut applying = Applying::of(granted, &[]);
    folders.iter().try_for_each(|folder| {
        let failed = |source| CarveOutError::Mount(Restriction::ReadOnly, folder.clone(), source);
        let spot = Spot::at(folder).map_err(|errno| failed(errno.into()))?;
        applying
            .pin_read_only(folder, &spot, &mut BTreeSet::new())
            .map(drop)
            .map_err(failed)
    })
}

/// Returns the further names (bind mounts) of `paths`.
///
/// # Errors
/// Fails if the table of mounts cannot be read.
pub(crate) fn further_names<'p>(
    paths: impl Iterator<Item = &'p PathBuf>,
) -> Result<Vec<PathBuf>, CarveOutError> {
    let table = table()?;
    Ok(paths.flat_map(|path| aliases(path, &table)).collect())
}

fn table() -> Result<Vec<TableEntry>, CarveOutError> {
    let failed = |source| {
        CarveOutError::Inspect(
            Restriction::ReadOnly,
            PathBuf::from("/proc/self/mountinfo"),
            source,
        )
    };
    mount_table("/proc/self/mountinfo").map_err(failed)
}

struct Applying {
    granted: Granted,
    /// The private folders of the sandbox.
    private: BTreeSet<PathBuf>,
    pins: Pins,
    /// The paths that are hidden already, for example as another name of one path.
    hidden: BTreeSet<PathBuf>,
    /// The paths that are restricted by an option of their mounts.
    kept_by_option: Vec<(Restriction, PathBuf)>,
}

impl Applying {
    fn of(granted: &[Resolved<'_>], private: &[PathBuf]) -> Self {
        Self {
            granted: Granted::of(granted),
            private: private.iter().cloned().collect(),
            pins: Pins::default(),
            hidden: BTreeSet::new(),
            kept_by_option: Vec::new(),
        }
    }

    /// Returns the places where `carve_out` has to be enforced, including the other names of its
    /// path (bind mounts).
    fn targets(
        &self,
        carve_out: &CarveOut,
        table: &[TableEntry],
    ) -> Result<Vec<PathBuf>, CarveOutError> {
        let CarveOut {
            path, restriction, ..
        } = carve_out;
        let is_granted = |path: &Path| {
            path.ancestors()
                .any(|above| self.granted.reading.contains(above))
        };
        let mut found = Vec::new();
        for (place, is_alias) in std::iter::once((path.clone(), false))
            .chain(aliases(path, table).into_iter().map(|alias| (alias, true)))
        {
            if is_granted(&place) {
                found.push((place, is_alias));
            } else if *restriction == Restriction::NoExec {
                // No grant covers the place itself, so this takes the writable grants and the
                // listed paths within it. At the root, the listed paths are left out, because they
                // would be all programs.
                let listed = self
                    .granted
                    .listed
                    .iter()
                    .filter(|_| place.parent().is_some());
                let within = self
                    .granted
                    .writing
                    .iter()
                    .chain(listed)
                    .filter(|grant| grant.starts_with(&place));
                let within: BTreeSet<_> = within.cloned().collect();
                found.extend(within.into_iter().map(|grant| (grant, is_alias)));
            }
        }
        let clash = found.iter().find(|(place, is_alias)| {
            *is_alias
                && match restriction {
                    Restriction::ReadOnly => self.granted.writing.contains(place),
                    Restriction::Hidden => self.granted.reading.contains(place),
                    Restriction::NoExec => false,
                }
        });
        match clash {
            Some((alias, _)) => Err(CarveOutError::Granted {
                restriction: *restriction,
                path: path.clone(),
                alias: alias.clone(),
            }),
            None => Ok(found.into_iter().map(|(place, _)| place).collect()),
        }
    }

    /// Makes one attempt to take everything out.
    fn apply(
        &mut self,
        carve_outs: &[CarveOut],
        further: &[PathBuf],
        covers: &OpenCovers,
    ) -> Result<Vec<Places>, CarveOutError> {
        let before = table()?;
        // Folders come before the folders in them. `NoExec` comes last, because it must hold for
        // everything in a folder.
        let mut ordered: Vec<_> = carve_outs.iter().enumerate().collect();
        ordered.sort_by_key(|(_, carve_out)| {
            (carve_out.restriction == Restriction::NoExec, *carve_out)
        });
        let mut mounted = vec![Places::default(); carve_outs.len()];
        for path in further {
            self.carve_out(Restriction::Hidden, path, None, covers)?;
        }
        for (index, carve_out) in ordered {
            // The way to the path is protected even if no grant reaches the path itself.
            let mut points = self.keep_links(carve_out)?;
            let targets = if carve_out.is_way {
                Vec::new()
            } else {
                self.targets(carve_out, &before)?
            };
            for target in targets {
                let identity = carve_out.identity.filter(|_| target == carve_out.path);
                points.extend(self.carve_out(carve_out.restriction, &target, identity, covers)?);
            }
            if let Some(mounted) = mounted.get_mut(index) {
                mounted.0.extend(points);
            }
        }
        let table = table()?;
        self.prove_options(&table)?;
        match (self.pins.verify(&table), carve_outs.first()) {
            (Err(path), Some(first)) => Err(CarveOutError::Changing(first.restriction, path)),
            _ => Ok(mounted),
        }
    }

    /// Turns the symlinks that lead to a carve-out, and the folders above them, into mount points,
    /// and returns those.
    fn keep_links(
        &mut self,
        CarveOut {
            restriction, links, ..
        }: &CarveOut,
    ) -> Result<BTreeSet<MountPoint>, CarveOutError> {
        let mut points = BTreeSet::new();
        for Link {
            path: link,
            identity,
        } in links
        {
            let failed = |error| CarveOutError::of_mount(*restriction, link, error);
            let top = self.granted.writable_above(link).cloned();
            let spot = self
                .pins
                .reach(top.as_deref(), link, &mut points)
                .map_err(failed)?;
            // Without this check, a file that has replaced the link would be protected in its
            // place.
            if identity.is_some_and(|identity| Identity::of(&spot.file).ok() != Some(identity)) {
                return Err(CarveOutError::Changing(*restriction, link.clone()));
            }
            self.pins.keep(spot, link, &mut points).map_err(failed)?;
        }
        Ok(points)
    }

    /// Takes one place out. Returns the mounts that have to stay. `identity` is that of what was
    /// found there before.
    fn carve_out(
        &mut self,
        restriction: Restriction,
        path: &Path,
        identity: Option<Identity>,
        covers: &OpenCovers,
    ) -> Result<BTreeSet<MountPoint>, CarveOutError> {
        let mut points = BTreeSet::new();
        if restriction == Restriction::Hidden && !self.hidden.insert(path.to_owned()) {
            return Ok(points);
        }
        let top = self.granted.writable_above(path).cloned();
        // Without a writable grant above, there is nothing to take out. A path that is also granted
        // for writing stays writable, because grants of one path add up; the start has reported
        // that.
        if restriction == Restriction::ReadOnly
            && (top.is_none() || self.granted.writing.contains(path))
        {
            return Ok(points);
        }
        let failed = |error| CarveOutError::of_mount(restriction, path, error);
        let is_hosts = |grant: &PathBuf| path.starts_with(grant) && !self.private.contains(grant);
        // In a private folder, a file can have other names only if a grant there shows the host's
        // file.
        let reached = if restriction == Restriction::ReadOnly {
            &self.granted.writing
        } else {
            &self.granted.reading
        };
        let has_other_names = reached.iter().any(is_hosts);
        let is_private = self.private.iter().any(|folder| path.starts_with(folder))
            && !self.granted.reading.iter().any(is_hosts);
        let spot = match self.pins.reach(top.as_deref(), path, &mut points) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && identity.is_none() => {
                if restriction != Restriction::NoExec || !is_private {
                    return Ok(BTreeSet::new());
                }
                // The command could create this folder, so it is created here.
                make_shared_folder(path).map_err(failed)?;
                self.pins
                    .reach(top.as_deref(), path, &mut points)
                    .map_err(failed)?
            }
            spot => spot.map_err(failed)?,
        };
        let data = rustix::fs::fstat(&spot.file).map_err(|errno| failed(errno.into()))?;
        let is_other =
            identity.is_some_and(|identity| Identity::of(&spot.file).ok() != Some(identity));
        // If the path is hidden already, its cover is found there instead. What is to be hidden is
        // covered whatever it is: init itself may have mounted something there.
        if is_other && !self.hidden.contains(path) {
            return Err(CarveOutError::Changing(restriction, path.to_owned()));
        }
        let kind = FileType::from_raw_mode(data.st_mode);
        if kind == FileType::RegularFile && data.st_nlink > 1 && has_other_names {
            return Err(CarveOutError::Linked(restriction, path.to_owned()));
        }
        let is_kept = self
            .restrict(restriction, path, &spot, kind, covers, &mut points)
            .map_err(failed)?;
        if !is_kept {
            return Err(CarveOutError::NotProved(restriction, path.to_owned()));
        }
        if restriction != Restriction::Hidden {
            self.kept_by_option.push((restriction, path.to_owned()));
        }
        Ok(points)
    }

    /// Mounts what the `restriction` requires at `spot`, whose path is `path` and which has this
    /// `kind`. Returns true if the restriction holds.
    fn restrict(
        &mut self,
        restriction: Restriction,
        path: &Path,
        spot: &Spot,
        kind: FileType,
        covers: &OpenCovers,
        points: &mut BTreeSet<MountPoint>,
    ) -> io::Result<bool> {
        match restriction {
            Restriction::ReadOnly => {
                let root = self.pin_read_only(path, spot, points)?;
                Ok(is_read_only(&root))
            }
            // `mount` verifies that the cover is in its place.
            Restriction::Hidden => {
                let cover = covers.of(kind)?;
                self.pins.mount(cover, spot, Shown::Cover, path, points)?;
                Ok(true)
            }
            Restriction::NoExec => {
                let shown = Shown::NoExecWithin;
                let root = self.pins.mount(&spot.file, spot, shown, path, points)?;
                let options = rustix::fs::fstatvfs(&root)?.f_flag;
                Ok(options.contains(StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC)))
            }
        }
    }

    /// Mounts what is at `spot`, whose path is `path`, on itself, read-only together with the
    /// mounts in it. The writable folders that the policy grants in it stay writable. Returns the
    /// root of the mount.
    fn pin_read_only(
        &mut self,
        path: &Path,
        spot: &Spot,
        points: &mut BTreeSet<MountPoint>,
    ) -> io::Result<OwnedFd> {
        self.granted.cover_read_only(path, |shown| {
            self.pins.mount(&spot.file, spot, shown, path, points)
        })
    }

    /// Verifies that all mounts within the paths that are restricted by a mount option have that
    /// option.
    fn prove_options(&self, table: &[TableEntry]) -> Result<(), CarveOutError> {
        // The last mount at a place covers the earlier ones.
        let shown: BTreeMap<&Path, &TableEntry> = table
            .iter()
            .map(|mount| (mount.place.as_path(), mount))
            .collect();
        for (restriction, path) in &self.kept_by_option {
            let option: &[u8] = match restriction {
                Restriction::NoExec => b"noexec",
                Restriction::ReadOnly | Restriction::Hidden => b"ro",
            };
            let is_exempt = |place: &Path| {
                *restriction == Restriction::ReadOnly
                    && self
                        .granted
                        .writable_within(path)
                        .any(|folder| place.starts_with(folder))
            };
            let from = shown.range::<Path, _>((Bound::Included(path.as_path()), Bound::Unbounded));
            let mut within = from
                .take_while(|(place, _)| place.starts_with(path))
                .filter(|(place, _)| !is_exempt(place));
            if !within.all(|(_, mount)| mount.has_option(option)) {
                return Err(CarveOutError::NotProved(*restriction, path.clone()));
            }
        }
        Ok(())
    }
}

/// Creates a folder, to which every user may write, in a private folder; also the missing folders
/// above it.
fn make_shared_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).create(path)?;
    // The mode must not depend on the umask.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o1777))
}

/// Returns the other places at which the table of mounts shows the file or folder at `path`, or a
/// part of it.
fn aliases(path: &Path, table: &[TableEntry]) -> Vec<PathBuf> {
    // The last mount at a place covers the earlier ones.
    let holds = |mount: &&TableEntry| path.starts_with(&mount.place);
    let depth = |mount: &&TableEntry| mount.place.components().count();
    let Some(own) = table.iter().filter(holds).max_by_key(depth) else {
        return Vec::new();
    };
    let whole =
        |mount: &TableEntry, rest: &Path| mount.root.join(rest).components().collect::<PathBuf>();
    let Ok(rest) = path.strip_prefix(&own.place) else {
        return Vec::new();
    };
    let origin = whole(own, rest);
    let alias = |mount: &TableEntry| {
        if mount.device != own.device {
            return None;
        }
        match (
            origin.strip_prefix(&mount.root),
            mount.root.starts_with(&origin),
        ) {
            (Ok(rest), _) => Some(mount.place.join(rest).components().collect()),
            (Err(_), true) => Some(mount.place.clone()),
            (Err(_), false) => None,
        }
    };
    let places: BTreeSet<PathBuf> = table.iter().filter_map(alias).collect();
    // A part that is mounted within `path` is in it anyway.
    places
        .into_iter()
        .filter(|place| !place.starts_with(path))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::aliases;
    use crate::paths::mounts::TableEntry;

    #[test]
    fn other_names_of_a_path_are_those_of_bind_mounts() {
        let mount = |device: &str, root: &str, place: &str| TableEntry {
            id: 1,
            options: b"rw".to_vec(),
            device: device.as_bytes().to_vec(),
            root: PathBuf::from(root),
            place: PathBuf::from(place),
        };
        let table = [
            mount("8:1", "/", "/"),
            mount("8:1", "/work", "/mnt/work"),
            mount("8:1", "/work/a/b", "/b"),
            mount("8:1", "/workers", "/mnt/workers"),
            mount("0:9", "/work", "/mnt/other"),
            mount("8:1", "/work/a/inner", "/work/a/inner"),
        ];
        let of = |path: &str| aliases(Path::new(path), &table);
        assert_eq!(
            of("/work/a"),
            [PathBuf::from("/b"), PathBuf::from("/mnt/work/a")]
        );
        assert_eq!(
            of("/mnt/work/a"),
            [
                PathBuf::from("/b"),
                PathBuf::from("/work/a"),
                PathBuf::from("/work/a/inner")
            ]
        );
        assert_eq!(of("/mnt/other/a"), Vec::<PathBuf>::new());
        assert_eq!(of("/etc"), Vec::<PathBuf>::new());
    }
}
