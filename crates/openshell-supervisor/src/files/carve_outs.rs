//! Carve-outs: parts of granted folders that the workload may not write to, not read, or where it
//! may execute nothing.
//!
//! File rules add up, so that none can take a part out of a granted folder. A mount can: the part
//! on itself with fewer rights, or an empty file or folder over it. No mount point can be renamed
//! or removed (rename(2), EBUSY), so every folder between the writable grant and the part, and
//! every symlink that leads to it, is mounted on itself too.

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
    /// Writing, apart from writable folders that the policy grants in it.
    ReadOnly,
    /// Everything.
    Hidden,
    /// Executing, and mapping as code.
    NoExec,
}

impl Restriction {
    /// The key of the policy that lists such paths.
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
    /// What the supervisor has found there; `None` if it may be missing, or another one inside.
    identity: Option<Identity>,
    /// Symlinks on its way in folders that the workload may write to.
    links: Vec<Link>,
    /// True if the way is all there is to keep: it leads to nothing, or to what the policy does not
    /// grant.
    is_way: bool,
}

/// A symlink that leads to a carve-out, or what else must stay in its place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Link {
    #[serde(with = "byte_path")]
    path: PathBuf,
    /// What the supervisor has found there; `None` if it may be another one inside.
    identity: Option<Identity>,
}

/// A carve-out that cannot be enforced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum CarveOutError {
    #[error("filesystem_policy.{key}: {path} cannot be looked at, so it cannot be taken out of \
             what the policy grants", key = .0.as_str(), path = .1.display())]
    Inspect(Restriction, PathBuf, #[source] io::Error),
    #[error("filesystem_policy.{key}: {path} is shown at {alias} too (a bind mount), which the \
             policy grants; take one of them out", key = .restriction.as_str(), path = .path.display(), alias = .alias.display())]
    Granted {
        restriction: Restriction,
        path: PathBuf,
        alias: PathBuf,
    },
    #[error("filesystem_policy.{key}: {path} has further names (hard links), under which the \
             workload could reach it; copy it, or name the folders of all", key = .0.as_str(), path = .1.display())]
    Linked(Restriction, PathBuf),
    #[error("filesystem_policy.{key}: {path} cannot be taken out of what the policy grants", key = .0.as_str(), path = .1.display())]
    Mount(Restriction, PathBuf, #[source] io::Error),
    #[error("filesystem_policy.{key}: {path} was not taken out of what the policy grants: the \
             attempt to prove it succeeded", key = .0.as_str(), path = .1.display())]
    NotProved(Restriction, PathBuf),
    #[error("filesystem_policy.{key}: another process renames or replaces {path} while the sandbox \
             starts; stop what does that, and start again", key = .0.as_str(), path = .1.display())]
    Changing(Restriction, PathBuf),
}

impl CarveOutError {
    /// Returns true if the next try may succeed.
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
    /// Takes executing out of `path` in a folder of the sandbox's own, whatever is there outside.
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

    /// Describes the carve-out of `path`; `None` if there is no such file or folder.
    ///
    /// # Errors
    /// The path cannot be looked at: who owns a folder on its way may open it again.
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
            // It was removed meanwhile.
            Err(error) if is_missing(&error) => return Ok(None),
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

    /// Describes the symlinks that lead from `path` to nothing, or to what the policy does not
    /// grant, and that the workload could replace; `None` if there are none.
    ///
    /// # Errors
    /// One of them cannot be looked at.
    pub fn find_way(
        path: &Path,
        restriction: Restriction,
        landlock: &Request,
    ) -> Result<Option<Self>, CarveOutError> {
        Self::way(path, links_so_far(path), restriction, landlock)
    }

    /// Describes a file that is in the place of a folder above `path`, and that the workload could
    /// replace by one; `None` if it could not.
    ///
    /// # Errors
    /// It cannot be looked at.
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

/// Returns those of `links` that the workload could replace.
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

/// Takes `carve_outs` out of what the rights `granted` reach, and hides the `further` paths;
/// `private` are folders of the sandbox's own. To be called in a private mount namespace. Returns
/// for each the paths that have to stay mount points; none if no grant reaches it.
///
/// # Errors
/// A carve-out cannot be enforced, or its proof fails.
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

/// Makes the mounts of `folders`, which an observed run is shown, read-only, apart from writable
/// folders in them: their files could be given other modes and times.
///
/// # Errors
/// The kernel refuses a mount.
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
/// The table of mounts cannot be read.
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
    /// Folders that are the sandbox's own.
    private: BTreeSet<PathBuf>,
    pins: Pins,
    /// Paths that are hidden already, by another name of theirs.
    hidden: BTreeSet<PathBuf>,
    /// Paths that are kept by an option of their mounts.
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

    /// Returns the places where `carve_out` is to be enforced, other names of its path (bind
    /// mounts) among them.
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
                // What is written in the writable folders there, and what the policy lists there;
                // at the root that would be all programs.
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

    /// Takes everything out once.
    fn apply(
        &mut self,
        carve_outs: &[CarveOut],
        further: &[PathBuf],
        covers: &OpenCovers,
    ) -> Result<Vec<Places>, CarveOutError> {
        let before = table()?;
        // Folders before those in them; what must hold for everything in a folder last.
        let mut ordered: Vec<_> = carve_outs.iter().enumerate().collect();
        ordered.sort_by_key(|(_, carve_out)| {
            (carve_out.restriction == Restriction::NoExec, *carve_out)
        });
        let mut mounted = vec![Places::default(); carve_outs.len()];
        for path in further {
            self.carve_out(Restriction::Hidden, path, None, covers)?;
        }
        for (index, carve_out) in ordered {
            // The way to it, also if no grant reaches its end.
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

    /// Makes the symlinks that lead to a path, and the folders above them, mount points, and
    /// returns them.
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
            // What would be kept in its place is what the link led past.
            if identity.is_some_and(|identity| Identity::of(&spot.file).ok() != Some(identity)) {
                return Err(CarveOutError::Changing(*restriction, link.clone()));
            }
            self.pins.keep(spot, link, &mut points).map_err(failed)?;
        }
        Ok(points)
    }

    /// Takes one place out; returns the mounts that have to stay. `identity` is that of what was
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
        // Grants of one path add up, which a start has said.
        if restriction == Restriction::ReadOnly
            && (top.is_none() || self.granted.writing.contains(path))
        {
            return Ok(points);
        }
        let failed = |error| CarveOutError::of_mount(restriction, path, error);
        let is_hosts = |grant: &PathBuf| path.starts_with(grant) && !self.private.contains(grant);
        // Nothing but what is granted by itself has another name in a folder of the sandbox's own.
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
                // The command could make it.
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
        // Under another restriction it may be covered already.
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

    /// Mounts what a `restriction` wants at `spot`, which is at `path` and has this `kind`; returns
    /// true if it holds.
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
            // Mounting verifies that the cover is in its place.
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

    /// Mounts what is at `spot`, at `path`, on itself, read-only with the mounts in it, apart from
    /// the writable folders that the policy grants there; returns the root of the mount.
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

    /// Verifies that all mounts in the paths that are kept by an option have it.
    fn prove_options(&self, table: &[TableEntry]) -> Result<(), CarveOutError> {
        // The last mount at a place covers those before.
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

/// Makes a folder in a private one, and those above it, in which every user may write.
fn make_shared_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).create(path)?;
    // Independent of the umask.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o1777))
}

/// Returns the other places in the table of mounts where the file or folder at `path`, or a part of
/// it, is shown.
fn aliases(path: &Path, table: &[TableEntry]) -> Vec<PathBuf> {
    // The last mount at a place covers those before.
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
    // A part of it that is mounted in itself is in it anyway.
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
