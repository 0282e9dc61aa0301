//! Carve-outs: parts of granted folders that the workload may not write to, not read, or where it may execute nothing.
//!
//! File rules add up, so that none can take a part out of a granted folder. A mount can: the part on itself with fewer rights, or an
//! empty file or folder over it. No mount point can be renamed or removed (rename(2), EBUSY), so every folder between the writable
//! grant and the part, and every symlink that leads to it, is mounted on itself too.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::landlock::{Request, Resolved};
use crate::mounts::{Shown, TableEntry, bind, mount_table};
use crate::protected::{OpenCovers, is_linked, is_out_of_reach, pin};
use crate::trusted_symlinks::{links, open};

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
    /// Symlinks on its way in folders that the workload may write to.
    links: Places,
}

/// Paths that have to stay mount points.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Places(#[serde(with = "byte_paths")] pub(crate) Vec<PathBuf>);

/// A path that need not be text, as init is told it.
mod byte_path {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        OsString::deserialize(deserializer).map(PathBuf::from)
    }
}

/// The same for several.
mod byte_paths {
    use std::ffi::OsString;
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| path.as_os_str()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<OsString>::deserialize(deserializer)?.into_iter().map(PathBuf::from).collect())
    }
}

/// A carve-out that cannot be enforced.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum CarveOutError {
    #[error("filesystem_policy.{key}: {path} cannot be looked at, so it cannot be taken out of what the policy grants", key = .0.as_str(), path = .1.display())]
    Inspect(Restriction, PathBuf, #[source] io::Error),
    #[error("filesystem_policy.{key}: {path} is shown at {alias} too (a bind mount), which the policy grants; take one of them out", key = .restriction.as_str(), path = .path.display(), alias = .alias.display())]
    Granted { restriction: Restriction, path: PathBuf, alias: PathBuf },
    #[error("filesystem_policy.{key}: {path} has further names (hard links), under which the workload could reach it; copy it, or name the folders of all", key = .0.as_str(), path = .1.display())]
    Linked(Restriction, PathBuf),
    #[error("filesystem_policy.{key}: {path} cannot be taken out of what the policy grants", key = .0.as_str(), path = .1.display())]
    Mount(Restriction, PathBuf, #[source] io::Error),
    #[error("filesystem_policy.{key}: {path} was not taken out of what the policy grants: the attempt to prove it succeeded", key = .0.as_str(), path = .1.display())]
    NotProved(Restriction, PathBuf),
}

impl CarveOut {
    /// Takes executing out of `path` in a folder of the sandbox's own, whatever is there outside.
    #[must_use]
    pub fn without_execution(path: &Path) -> Self {
        Self { path: path.components().collect(), restriction: Restriction::NoExec, links: Places::default() }
    }

    /// Describes the carve-out of `path`; `None` if there is no such file or folder, or none that this process can reach.
    ///
    /// # Errors
    /// The path cannot be looked at.
    pub fn find(path: &Path, restriction: Restriction, landlock: &Request) -> Result<Option<Self>, CarveOutError> {
        let inspect = |source| CarveOutError::Inspect(restriction, path.to_owned(), source);
        let real = match std::fs::canonicalize(path) {
            Err(error) if is_out_of_reach(&error) => return Ok(None),
            real => real.map_err(inspect)?,
        };
        if !landlock.shows(&real) {
            return Ok(None);
        }
        let mut links = links(path).map_err(inspect)?;
        links.retain(|link| {
            link.parent().is_some_and(|folder| landlock.reaches_for_writing(folder) && landlock.shows(folder))
        });
        Ok(Some(Self { path: real, restriction, links: Places(links) }))
    }
}

/// Takes `carve_outs` out of what the rights `granted` reach, and hides the `further` paths; `private` are folders of the sandbox's
/// own. To be called in a private mount namespace. Returns for each the paths that have to stay mount points; none if no grant reaches it.
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
    let mut grants = Grants::of(granted, private);
    let table = table()?;
    // Folders before those in them; what must hold for everything in a folder last.
    let mut ordered: Vec<_> = carve_outs.iter().enumerate().collect();
    ordered.sort_by_key(|(_, carve_out)| (carve_out.restriction == Restriction::NoExec, *carve_out));
    let mut mounted = vec![Places::default(); carve_outs.len()];
    for path in further {
        grants.carve_out(Restriction::Hidden, path, covers)?;
    }
    for (index, carve_out) in ordered {
        // The way to it, also if no grant reaches its end.
        let mut places = grants.keep_links(carve_out)?;
        for target in grants.targets(carve_out, &table)? {
            places.extend(grants.carve_out(carve_out.restriction, &target, covers)?);
        }
        if let Some(mounted) = mounted.get_mut(index) {
            mounted.0.extend(places);
        }
    }
    grants.prove_options()?;
    Ok(mounted)
}

/// Makes the mounts of `folders`, which an observed run is shown, read-only, apart from writable folders in them: their files could be
/// given other modes and times.
///
/// # Errors
/// The kernel refuses a mount.
pub(crate) fn show_read_only(folders: &BTreeSet<PathBuf>, granted: &[Resolved<'_>]) -> Result<(), CarveOutError> {
    let grants = Grants::of(granted, &[]);
    folders.iter().try_for_each(|folder| {
        let failed = |source| CarveOutError::Mount(Restriction::ReadOnly, folder.clone(), source);
        grants.pin_read_only(folder).map_err(failed)
    })
}

/// Returns the further names (bind mounts) of `paths`.
///
/// # Errors
/// The table of mounts cannot be read.
pub(crate) fn further_names<'p>(paths: impl Iterator<Item = &'p PathBuf>) -> Result<Vec<PathBuf>, CarveOutError> {
    let table = table()?;
    Ok(paths.flat_map(|path| aliases(path, &table)).collect())
}

fn table() -> Result<Vec<TableEntry>, CarveOutError> {
    let failed = |source| CarveOutError::Inspect(Restriction::ReadOnly, PathBuf::from("/proc/self/mountinfo"), source);
    mount_table("/proc/self/mountinfo").map_err(failed)
}

struct Grants {
    writing: BTreeSet<PathBuf>,
    reading: BTreeSet<PathBuf>,
    /// Paths that the policy itself lists.
    listed: BTreeSet<PathBuf>,
    /// Folders that are the sandbox's own.
    private: BTreeSet<PathBuf>,
    /// Folders and symlinks that are mount points already.
    mounted: BTreeSet<PathBuf>,
    /// Paths that are hidden already, by another name of theirs.
    hidden: BTreeSet<PathBuf>,
    /// Paths that are kept by an option of their mounts.
    kept_by_option: Vec<(Restriction, PathBuf)>,
}

impl Grants {
    fn of(granted: &[Resolved<'_>], private: &[PathBuf]) -> Self {
        let of = |wanted: &dyn Fn(&Resolved<'_>) -> bool| {
            granted.iter().filter(|grant| wanted(grant)).filter_map(Resolved::target).map(Path::to_owned).collect()
        };
        Self {
            writing: of(&|grant| grant.grants_writing()),
            reading: of(&|grant| grant.grants_reading()),
            listed: of(&|grant| grant.is_listed() && grant.grants_reading()),
            private: private.iter().cloned().collect(),
            mounted: BTreeSet::new(),
            hidden: BTreeSet::new(),
            kept_by_option: Vec::new(),
        }
    }

    /// Returns the places where `carve_out` is to be enforced, other names of its path (bind mounts) among them.
    fn targets(&self, carve_out: &CarveOut, table: &[TableEntry]) -> Result<Vec<PathBuf>, CarveOutError> {
        let CarveOut { path, restriction, .. } = carve_out;
        let is_granted = |path: &Path| path.ancestors().any(|above| self.reading.contains(above));
        let mut found = Vec::new();
        for (place, is_alias) in
            std::iter::once((path.clone(), false)).chain(aliases(path, table).into_iter().map(|alias| (alias, true)))
        {
            if is_granted(&place) {
                found.push((place, is_alias));
            } else if *restriction == Restriction::NoExec {
                // What is written in the writable folders there, and what the policy lists there; at the root that would be all
                // programs.
                let listed = self.listed.iter().filter(|_| place.parent().is_some());
                let within = self.writing.iter().chain(listed).filter(|grant| grant.starts_with(&place));
                let within: BTreeSet<_> = within.cloned().collect();
                found.extend(within.into_iter().map(|grant| (grant, is_alias)));
            }
        }
        let clash = found.iter().find(|(place, is_alias)| {
            *is_alias
                && match restriction {
                    Restriction::ReadOnly => self.writing.contains(place),
                    Restriction::Hidden => self.reading.contains(place),
                    Restriction::NoExec => false,
                }
        });
        match clash {
            Some((alias, _)) => {
                Err(CarveOutError::Granted { restriction: *restriction, path: path.clone(), alias: alias.clone() })
            }
            None => Ok(found.into_iter().map(|(place, _)| place).collect()),
        }
    }

    /// Makes the symlinks that lead to a path, and the folders above them, mount points, and returns them.
    fn keep_links(&mut self, CarveOut { path, restriction, links }: &CarveOut) -> Result<Vec<PathBuf>, CarveOutError> {
        let above = links.0.iter().flat_map(|link| self.between(link));
        let places: BTreeSet<_> = above.chain(links.0.iter().cloned()).collect();
        self.keep(&places).map_err(|source| CarveOutError::Mount(*restriction, path.clone(), source))?;
        Ok(places.into_iter().collect())
    }

    /// Makes paths mount points, which cannot be renamed or removed.
    fn keep(&mut self, places: &BTreeSet<PathBuf>) -> io::Result<()> {
        let mut new = places.iter().filter(|place| self.mounted.insert((*place).clone()));
        new.try_for_each(|place| pin(place, Shown::AsItIs))
    }

    /// Takes one place out; returns the paths that have to stay mount points.
    fn carve_out(
        &mut self,
        restriction: Restriction,
        path: &Path,
        covers: &OpenCovers,
    ) -> Result<Vec<PathBuf>, CarveOutError> {
        if restriction == Restriction::Hidden && !self.hidden.insert(path.to_owned()) {
            return Ok(Vec::new());
        }
        // The shortest one comes first.
        let writable = self.writing.iter().find(|grant| path.starts_with(grant)).cloned();
        let is_needed = match restriction {
            // Grants of one path add up, which a start has said.
            Restriction::ReadOnly => writable.is_some() && !self.writing.contains(path),
            Restriction::Hidden | Restriction::NoExec => true,
        };
        let failed = |source| CarveOutError::Mount(restriction, path.to_owned(), source);
        let is_hosts = |grant: &PathBuf| path.starts_with(grant) && !self.private.contains(grant);
        let is_private =
            || self.private.iter().any(|folder| path.starts_with(folder)) && !self.reading.iter().any(is_hosts);
        let before = match std::fs::symlink_metadata(path) {
            // The command could make it.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && restriction == Restriction::NoExec && is_private() =>
            {
                make_shared_folder(path).and_then(|()| std::fs::symlink_metadata(path)).map_err(failed)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            data => data.map_err(failed)?,
        };
        if !is_needed {
            return Ok(Vec::new());
        }
        // Nothing but what is granted by itself has another name in a folder of the sandbox's own.
        let reached = if restriction == Restriction::ReadOnly { &self.writing } else { &self.reading };
        if is_linked(&before) && reached.iter().any(is_hosts) {
            return Err(CarveOutError::Linked(restriction, path.to_owned()));
        }
        let mut places = self.between(path);
        self.keep(&places).map_err(failed)?;
        match restriction {
            Restriction::ReadOnly => self.pin_read_only(path).map_err(failed)?,
            Restriction::Hidden => covers.hide(path, &before).map_err(failed)?,
            Restriction::NoExec => pin(path, Shown::NoExecWithin).map_err(failed)?,
        }
        if !is_refused(restriction, path, &before)? {
            return Err(CarveOutError::NotProved(restriction, path.to_owned()));
        }
        if restriction != Restriction::Hidden {
            self.kept_by_option.push((restriction, path.to_owned()));
        }
        places.insert(path.to_owned());
        Ok(places.into_iter().collect())
    }

    /// Returns the folders above `path` in the writable folder that it lies in.
    fn between(&self, path: &Path) -> BTreeSet<PathBuf> {
        let top = self.writing.iter().find(|grant| path.starts_with(grant));
        top.into_iter()
            .flat_map(|top| path.ancestors().skip(1).take_while(move |folder| folder != top))
            .map(Path::to_owned)
            .collect()
    }

    /// Mounts `path` on itself, read-only with the mounts in it, apart from the writable folders that the policy grants there.
    fn pin_read_only(&self, path: &Path) -> io::Result<()> {
        let mut inner = Vec::new();
        for folder in self.inner(path) {
            match open(folder, OFlags::PATH) {
                Err(Errno::NOENT) => {}
                opened => inner.push((folder, opened?)),
            }
        }
        pin(path, Shown::ReadOnlyWithin)?;
        inner.into_iter().try_for_each(|(folder, opened)| bind(&opened, folder, Shown::AsItIs))
    }

    /// Writable grants in `path` that lie in no other one there.
    fn inner<'g>(&'g self, path: &'g Path) -> impl Iterator<Item = &'g PathBuf> {
        let is_beneath = move |folder: &PathBuf| folder != path && folder.starts_with(path);
        let of_another = move |folder: &PathBuf| {
            folder
                .ancestors()
                .skip(1)
                .any(|above| above != path && above.starts_with(path) && self.writing.contains(above))
        };
        self.writing.iter().filter(move |folder| is_beneath(folder) && !of_another(folder))
    }

    /// Verifies that all mounts in the paths that are kept by an option have it.
    fn prove_options(&self) -> Result<(), CarveOutError> {
        if self.kept_by_option.is_empty() {
            return Ok(());
        }
        let table = table()?;
        for (restriction, path) in &self.kept_by_option {
            let flag = match restriction {
                Restriction::NoExec => StatVfsMountFlags::from_bits_retain(libc::ST_NOEXEC),
                Restriction::ReadOnly | Restriction::Hidden => StatVfsMountFlags::RDONLY,
            };
            let is_exempt = |place: &Path| {
                *restriction == Restriction::ReadOnly && self.inner(path).any(|folder| place.starts_with(folder))
            };
            let within = table.iter().map(|mount| &mount.place);
            let mut places: BTreeSet<_> = within.filter(|place| place.starts_with(path) && !is_exempt(place)).collect();
            places.insert(path);
            // A symlink that is kept is a mount point itself.
            let options = |place: &Path| rustix::fs::fstatvfs(open(place, OFlags::PATH)?);
            let has_flag = |place: &&PathBuf| match options(place) {
                Ok(system) => system.f_flag.contains(flag),
                // What init cannot reach the workload cannot either.
                Err(errno) => [Errno::ACCESS, Errno::NOENT, Errno::NOTDIR].contains(&errno),
            };
            if !places.iter().all(has_flag) {
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

/// Attempts what the carve-out forbids, as init, whom file modes do not stop; returns true if the attempt fails. What is executed is
/// refused by an option alone.
fn is_refused(restriction: Restriction, path: &Path, before: &Metadata) -> Result<bool, CarveOutError> {
    match restriction {
        Restriction::Hidden => {
            let now = std::fs::symlink_metadata(path);
            let now = now.map_err(|source| CarveOutError::Mount(restriction, path.to_owned(), source))?;
            Ok((now.dev(), now.ino()) != (before.dev(), before.ino()))
        }
        Restriction::ReadOnly => {
            // Its own mode, so that nothing changes if it succeeds.
            let mode = Mode::from_raw_mode(before.mode() & 0o7777);
            Ok(rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()) == Err(Errno::ROFS))
        }
        Restriction::NoExec => Ok(true),
    }
}

/// Returns the other places in the table of mounts where the file or folder at `path`, or a part of it, is shown.
fn aliases(path: &Path, table: &[TableEntry]) -> Vec<PathBuf> {
    // The last mount at a place covers those before.
    let holds = |mount: &&TableEntry| path.starts_with(&mount.place);
    let depth = |mount: &&TableEntry| mount.place.components().count();
    let Some(own) = table.iter().filter(holds).max_by_key(depth) else { return Vec::new() };
    let whole = |mount: &TableEntry, rest: &Path| mount.root.join(rest).components().collect::<PathBuf>();
    let Ok(rest) = path.strip_prefix(&own.place) else { return Vec::new() };
    let origin = whole(own, rest);
    let alias = |mount: &TableEntry| {
        if mount.device != own.device {
            return None;
        }
        match (origin.strip_prefix(&mount.root), mount.root.starts_with(&origin)) {
            (Ok(rest), _) => Some(mount.place.join(rest).components().collect()),
            (Err(_), true) => Some(mount.place.clone()),
            (Err(_), false) => None,
        }
    };
    let places: BTreeSet<PathBuf> = table.iter().filter_map(alias).collect();
    // A part of it that is mounted in itself is in it anyway.
    places.into_iter().filter(|place| !place.starts_with(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::aliases;
    use crate::mounts::TableEntry;

    #[test]
    fn other_names_of_a_path_are_those_of_bind_mounts() {
        let mount = |device: &str, root: &str, place: &str| TableEntry {
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
        assert_eq!(of("/work/a"), [PathBuf::from("/b"), PathBuf::from("/mnt/work/a")]);
        assert_eq!(of("/mnt/work/a"), [PathBuf::from("/b"), PathBuf::from("/work/a"), PathBuf::from("/work/a/inner")]);
        assert_eq!(of("/mnt/other/a"), Vec::<PathBuf>::new());
        assert_eq!(of("/etc"), Vec::<PathBuf>::new());
    }
}
