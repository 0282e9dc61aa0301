//! The carve-outs of a start: which paths are taken out of what the policy grants, and what stands in for those that are missing.

mod git;
mod watch;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_policy::filesystem::{Compatibility, Filesystem, GrantedPath};
use openshell_policy::words::{ConfigState, Severity};
use openshell_supervisor::carve_outs::{CarveOut, Restriction};
use openshell_supervisor::landlock::Request;
use openshell_supervisor::run_dir::created_dirs::CreatedDirs;

use crate::cli::{CarveOutArgs, GitConfig};
use crate::logging;

pub(super) use watch::watch;

/// Paths that one pattern may match: each takes a mount or two.
const MATCHES: usize = 1000;

/// Entries of folders that are looked at for one pattern.
const ENTRIES: usize = 200_000;

/// The paths to take out, before anything is made for them.
#[derive(Debug)]
pub(super) struct CarveOuts {
    wanted: BTreeSet<Wanted>,
    /// True if what cannot be had ends the start.
    is_hard: bool,
    has_placeholders: bool,
}

/// A path to take out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    path: PathBuf,
    restriction: Restriction,
    /// Content of the file that stands in for a missing one.
    placeholder: &'static str,
    /// True if nobody wrote the path down: what is missing then in a folder that is missing is left alone.
    is_default: bool,
}

impl CarveOuts {
    /// Returns the carve-outs of a policy, whose patterns are replaced in it by what matches them, and those of the git work trees among
    /// the folders that may be written.
    ///
    /// # Errors
    /// A pattern matches too much, or a folder cannot be searched.
    pub(super) fn plan(
        filesystem: &mut Filesystem,
        writable: &[PathBuf],
        options: &CarveOutArgs,
    ) -> anyhow::Result<Self> {
        let mut wanted = BTreeSet::new();
        let lists = [
            (Restriction::ReadOnly, &mut filesystem.read_only),
            (Restriction::Hidden, &mut filesystem.hidden),
            (Restriction::NoExec, &mut filesystem.noexec),
        ];
        for (restriction, listed) in lists {
            let mut expanded = Vec::with_capacity(listed.len());
            for path in listed.drain(..) {
                match path.is_pattern() {
                    true => expanded.extend(matches(&path, restriction)?),
                    false => expanded.push(path),
                }
            }
            *listed = expanded;
            wanted.extend(listed.iter().map(|path| Wanted {
                path: path.as_path().to_owned(),
                restriction,
                placeholder: "",
                is_default: false,
            }));
        }
        let has_config = options.git_config == GitConfig::Ro;
        let of_git = writable.iter().flat_map(|folder| git::sensitive_paths(folder, has_config));
        wanted.extend(of_git.filter(|found| !writable.contains(&found.path)).map(|found| Wanted {
            path: found.path,
            restriction: Restriction::ReadOnly,
            placeholder: found.placeholder,
            is_default: true,
        }));
        let is_hard = filesystem.compatibility == Compatibility::HardRequirement;
        Ok(Self { wanted, is_hard, has_placeholders: !options.no_placeholders })
    }

    /// The paths, which another sandbox must not remove.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.wanted.iter().map(|wanted| wanted.path.as_path())
    }

    /// Finds the carve-outs on the host, and makes a placeholder for each that is missing where the command could make one.
    ///
    /// # Errors
    /// A path cannot be looked at; or under `hard_requirement` a missing one cannot be kept from the command.
    pub(super) fn find(&self, landlock: &Request, made: &mut CreatedDirs) -> anyhow::Result<Vec<CarveOut>> {
        let mut found = Vec::with_capacity(self.wanted.len());
        for wanted in &self.wanted {
            let Wanted { path, restriction, .. } = wanted;
            let is_writable = landlock.reaches_for_writing(path);
            // What may only be read anyway needs no mount.
            if *restriction == Restriction::ReadOnly && !is_writable && !path.is_symlink() {
                continue;
            }
            if let Some(carve_out) = CarveOut::find(path, *restriction, landlock)? {
                found.push(carve_out);
                continue;
            }
            // Nobody inside can make it.
            if !is_writable {
                continue;
            }
            let kept = match self.has_placeholders {
                true => placeholder(wanted, made).map_err(|error| error.to_string()),
                false => Err("--no-placeholders is given".to_owned()),
            };
            match kept {
                Ok(true) => found.extend(CarveOut::find(path, *restriction, landlock)?),
                Ok(false) => {}
                Err(why) => {
                    let line = format!(
                        "filesystem_policy.{}: {} is not there, and the command may make it: {why}",
                        restriction.as_str(),
                        path.display()
                    );
                    if self.is_hard {
                        bail!("{line}; `landlock.compatibility` is hard_requirement");
                    }
                    logging::config_event(ConfigState::Degraded, Severity::Medium, &line);
                }
            }
        }
        Ok(found)
    }
}

/// Makes an empty file, or a folder where nothing is to be executed, and what is missing above it; returns false if nobody can make
/// it there, so that nothing needs to be kept away.
fn placeholder(wanted: &Wanted, made: &mut CreatedDirs) -> io::Result<bool> {
    let Wanted { path, restriction, placeholder, is_default } = wanted;
    if *is_default && path.ends_with(".git") {
        // A submodule that is not checked out.
        return Ok(false);
    }
    if path.symlink_metadata().is_ok_and(|data| data.is_symlink()) {
        return Err(io::Error::other("it is a symlink to nothing; remove it"));
    }
    let missing: Vec<_> = path.ancestors().skip(1).take_while(|folder| folder.symlink_metadata().is_err()).collect();
    let Some(parent) = missing.last().copied().unwrap_or(path).parent() else { return Ok(false) };
    let owner = std::fs::metadata(parent)?;
    if !owner.is_dir() || *is_default && !missing.is_empty() && !path.ends_with("info/attributes") {
        return Ok(false);
    }
    let is_folder = *restriction == Restriction::NoExec;
    let mut make = || -> io::Result<()> {
        for folder in missing.iter().rev().copied().chain(is_folder.then_some(path.as_path())) {
            std::fs::DirBuilder::new().mode(0o755).create(folder)?;
            give(folder, &owner)?;
            made.add(folder)?;
        }
        if !is_folder {
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
            file.write_all(placeholder.as_bytes())?;
            give(path, &owner)?;
            made.add_file(path)?;
        }
        Ok(())
    };
    match make() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(false),
        // The command has no more rights there than this process, if that is no root.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !rustix::process::geteuid().is_root() => {
            Ok(false)
        }
        // Another sandbox was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
        Err(error) => Err(error),
    }
}

/// Gives `path` to the owner of the folder that it was made in.
fn give(path: &Path, owner: &std::fs::Metadata) -> io::Result<()> {
    match rustix::process::geteuid().is_root() {
        true => std::os::unix::fs::lchown(path, Some(owner.uid()), Some(owner.gid())),
        false => Ok(()),
    }
}

/// Returns the paths that match a pattern; what lies in one of them is not looked at.
///
/// # Errors
/// There are more than [`MATCHES`], or more than [`ENTRIES`] entries to look at, so that some could be missed.
fn matches(pattern: &GrantedPath, restriction: Restriction) -> anyhow::Result<Vec<GrantedPath>> {
    let (base, is_match) = pattern.matcher();
    let shown = || format!("filesystem_policy.{}: {}", restriction.as_str(), pattern.as_path().display());
    let (mut found, mut folders, mut seen) = (Vec::new(), vec![base.clone()], 0);
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            // What this process cannot reach the command cannot either.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
                ) =>
            {
                continue;
            }
            entries => entries.with_context(shown)?,
        };
        for entry in entries {
            let entry = entry.with_context(shown)?;
            seen += 1;
            if seen > ENTRIES {
                bail!(
                    "{}: there are more than {ENTRIES} files to look at in {}; name a folder in it",
                    shown(),
                    base.display()
                );
            }
            let path = entry.path();
            if path.strip_prefix(&base).is_ok_and(&is_match) {
                found.push(path);
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            }
            if found.len() > MATCHES {
                bail!("{}: more than {MATCHES} paths match; name a folder that holds them", shown());
            }
        }
    }
    Ok(found.into_iter().map(GrantedPath::found).collect())
}
