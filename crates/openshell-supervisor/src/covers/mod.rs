//! Plans the carve-outs of a start: the paths that are taken out of the policy's grants, and the
//! placeholders for those of them that are missing.

mod error;
mod exclude;
mod git;
mod git_files;
mod git_index;
mod git_settings;
mod git_use;
mod patterns;
mod settings;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use openshell_events::text;
use openshell_policy::filesystem::{Compatibility, Filesystem, GrantedPath};

pub use crate::covers::error::CoverError;
use crate::covers::error::unseen;
use crate::covers::exclude::{Exclude, is_stand_in};
use crate::covers::patterns::matches;
use crate::covers::settings::Settings;
use crate::files::carve_outs::{CarveOut, CarveOutError, Restriction};
use crate::files::filesystem::{self, Placeholder};
use crate::files::landlock::Request;
use crate::paths::missing::is_missing;
use crate::paths::trusted_symlinks::so_far;
use crate::runs::run_dir::created_dirs::CreatedDirs;
pub use git::linked_repository;
pub use git_use::GitUse;

/// The longest time to look for a path that comes and goes, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// The largest number of work trees in which placeholders are kept out of commits.
const EXCLUDES: usize = 16;

/// The paths to take out of the grants, before anything is made for them.
#[derive(Debug)]
pub struct CarveOuts {
    wanted: BTreeSet<Wanted>,
    /// True if the start fails when a path cannot be kept from the command.
    is_hard: bool,
    has_placeholders: bool,
    /// The workload's user.
    uid: u32,
    /// The lists, one for each work tree, of what git does not add.
    excludes: Vec<Exclude>,
    /// Repositories whose configuration is kept from being written.
    repositories: Vec<PathBuf>,
    /// Folders that are not work trees.
    without_git: Vec<PathBuf>,
    /// Paths that the policy hides but that do not exist.
    idle: Vec<PathBuf>,
    /// Other lines for the operator.
    notes: Vec<String>,
}

/// What is kept from a command in addition to what the policy lists.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// True if placeholders are made for missing paths.
    pub has_placeholders: bool,
    /// True if the settings of projects and homes are kept from being written.
    pub keeps_settings: bool,
}

/// The folders that the command may write to.
#[derive(Debug)]
pub struct Writable<'p> {
    /// All of these folders.
    pub folders: &'p [PathBuf],
    /// The command's working folder and its home. A writable folder that contains one of them is a
    /// project.
    pub work: Vec<PathBuf>,
}

impl Writable<'_> {
    fn is_project(&self, folder: &Path) -> bool {
        self.work.iter().any(|work| work.starts_with(folder))
    }
}

/// A path to take out of the grants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    path: PathBuf,
    restriction: Restriction,
    /// What stands in for the path if it is missing.
    placeholder: Placeholder<'static>,
    /// True if nobody listed the path. A missing `.git` then gets no placeholder, and neither does
    /// a path of a `.git` folder if its own folder is missing too, except `info/attributes`.
    is_default: bool,
}

impl Wanted {
    /// A folder of presets: a command must not be able to widen the next run.
    fn presets(folder: &Path) -> Self {
        Self {
            path: folder.to_owned(),
            restriction: Restriction::ReadOnly,
            placeholder: Placeholder::Folder,
            is_default: false,
        }
    }
}

impl CarveOuts {
    /// Plans the carve-outs of a policy, of the git work trees among the writable folders, of the
    /// settings in those folders, and of the folders `presets`. In the policy, replaces each
    /// pattern by what matches it.
    ///
    /// `uid` is the workload's user. Call this as that user.
    ///
    /// # Errors
    /// Fails if a pattern matches too much, or a folder cannot be searched.
    pub fn plan(
        filesystem: &mut Filesystem,
        writable: &Writable<'_>,
        git: &GitUse,
        options: Options,
        presets: &[PathBuf],
        uid: u32,
    ) -> Result<Self, CoverError> {
        let mut idle = Vec::new();
        let mut wanted = listed(filesystem, uid, &mut idle)?;
        wanted.extend(presets.iter().map(|folder| Wanted::presets(folder)));
        let is_hard = filesystem.compatibility == Compatibility::HardRequirement;
        let has_placeholders = options.has_placeholders;
        let mut planned = Self {
            wanted,
            is_hard,
            has_placeholders,
            uid,
            excludes: Vec::new(),
            repositories: Vec::new(),
            without_git: Vec::new(),
            idle,
            notes: Vec::new(),
        };
        let mut settings = Settings::default();
        for folder in writable.folders {
            let repository = planned.add_git(folder, git, writable.folders)?;
            match &repository {
                Some(repository) => planned.excludes.extend(Exclude::read(folder, repository)),
                None => planned
                    .without_git
                    .extend(Some(folder).filter(|folder| has_no_git(folder)).cloned()),
            }
            if options.keeps_settings && (repository.is_some() || writable.is_project(folder)) {
                settings.add(folder, repository.is_some(), uid)?;
            }
        }
        for tree in &settings.trees {
            planned.add_git(tree, git, writable.folders)?;
        }
        planned.keep(git.kept.iter().cloned(), writable.folders);
        if let Some(home) = git.home.as_ref()
            && options.keeps_settings
        {
            settings.add_linked(home);
        }
        if let Some(project) = &settings.cut {
            planned.notes.push(format!(
                "{} has too many files or folders to find all settings in its subfolders; the \
                 command can change those that were not found; list them in \
                 filesystem_policy.read_only",
                project.display()
            ));
        }
        planned.keep(settings.paths, writable.folders);
        Ok(planned)
    }

    /// Adds the paths in `folder` from which git takes programs. Returns the repository if the
    /// folder is a work tree.
    ///
    /// # Errors
    /// Fails if a part cannot be looked at.
    fn add_git(
        &mut self,
        folder: &Path,
        git: &GitUse,
        writable: &[PathBuf],
    ) -> Result<Option<PathBuf>, CoverError> {
        let found = git::sensitive_paths(folder, git);
        if let Some(why) = found.unknown.first() {
            return Err(CoverError::Refused(format!(
                "cannot keep all hooks and attributes of git in {} from the command: {why}; look \
                 at what is there, and remove or repair it",
                folder.display()
            )));
        }
        let paths = found
            .paths
            .into_iter()
            .map(|found| (found.path, Placeholder::File(found.placeholder)));
        self.keep(paths, writable);
        if git.has_config {
            self.repositories.extend(found.repository.clone());
        }
        Ok(found.repository)
    }

    /// Keeps `paths` from being written, except those that the policy itself lists as `writable`.
    fn keep(
        &mut self,
        paths: impl IntoIterator<Item = (PathBuf, Placeholder<'static>)>,
        writable: &[PathBuf],
    ) {
        for (path, placeholder) in paths {
            if !writable.contains(&path) {
                self.wanted.insert(Wanted {
                    path,
                    restriction: Restriction::ReadOnly,
                    placeholder,
                    is_default: true,
                });
            }
        }
    }

    /// Verifies, after all mounts are made, that no folder has become a work tree in the meantime.
    /// Nothing in such a work tree would be kept.
    ///
    /// # Errors
    /// Fails with the first folder that has.
    pub fn verify(&self) -> Result<(), CoverError> {
        for folder in &self.without_git {
            if !has_no_git(folder) {
                let link = folder.join(".git");
                return Err(CoverError::Refused(format!(
                    "another process made, renamed or replaced {} while the sandbox started; stop \
                     that process, and start again",
                    link.display()
                )));
            }
        }
        Ok(())
    }

    /// Returns lines about settings that are not kept.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns a line for each path that the policy hides but that does not exist.
    pub fn idle(&self) -> impl Iterator<Item = String> {
        self.idle.iter().map(|path| {
            let later = if path.to_string_lossy().contains('*') {
                "the pattern does not match files that are made later"
            } else {
                "is it the path that you mean?"
            };
            format!(
                "filesystem_policy.hidden: {} hides nothing, because no such file exists; {later}",
                path.display()
            )
        })
    }

    /// Returns a line for each hidden file that git tracks: git takes such a file for changed and
    /// cannot read it.
    pub fn tracked(&self) -> impl Iterator<Item = String> {
        let hidden = || {
            let hidden = self
                .wanted
                .iter()
                .filter(|wanted| wanted.restriction == Restriction::Hidden);
            hidden
                .map(|wanted| wanted.path.as_path())
                .filter(|path| path.is_file())
        };
        let tracked = self
            .excludes
            .iter()
            .take(EXCLUDES)
            .flat_map(|exclude| exclude.tracked(hidden()));
        // The same folder may be granted twice.
        let tracked: BTreeSet<&Path> = tracked.collect();
        tracked.into_iter().map(|path| {
            let folder = path.parent().unwrap_or(path);
            let name = path.file_name().unwrap_or_default();
            format!(
                "{} is hidden, and git tracks it, so `git add -A`, `commit -a`, `stash` and `diff` \
                 fail inside; to make git skip it, run outside: `git -C {} update-index \
                 --skip-worktree -- {}`",
                path.display(),
                text::shell_word(&folder.to_string_lossy()),
                text::shell_word(&name.to_string_lossy())
            )
        })
    }

    /// Returns the repositories whose configuration is kept.
    pub fn repositories(&self) -> Vec<PathBuf> {
        self.repositories.clone()
    }

    /// Returns the lists of what git does not add that the sandbox must show, each with its place.
    /// They also name placeholders.
    pub fn excludes(&self, made: &mut CreatedDirs) -> Vec<(PathBuf, Vec<u8>)> {
        let mut shown = Vec::new();
        for exclude in self.excludes.iter().take(EXCLUDES) {
            let made = self.has_placeholders.then_some(&mut *made);
            let paths = self
                .wanted
                .iter()
                .map(|wanted| (wanted.path.as_path(), wanted.restriction));
            shown.extend(exclude.naming(paths, made));
        }
        shown
    }

    /// Returns the paths, which another sandbox must not remove.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.wanted.iter().map(|wanted| wanted.path.as_path())
    }

    /// Finds the carve-outs on the host. Makes a placeholder for each missing path that the command
    /// could make.
    ///
    /// # Errors
    /// Fails if a path cannot be looked at, or comes and goes. Under `hard_requirement` also fails
    /// if a missing path cannot be kept from the command.
    pub fn find(
        &self,
        landlock: &Request,
        made: &mut CreatedDirs,
        lost: &mut Vec<String>,
    ) -> Result<Vec<CarveOut>, CoverError> {
        let mut found = Vec::with_capacity(self.wanted.len());
        for wanted in &self.wanted {
            let deadline = Instant::now() + PATIENCE;
            let kept = loop {
                match self.find_one(wanted, landlock, made, lost)? {
                    Some(kept) => break kept,
                    None if Instant::now() < deadline => std::thread::sleep(PAUSE),
                    None => {
                        return Err(CoverError::Refused(format!(
                            "filesystem_policy.{}: another process renames or replaces {} while \
                             the sandbox starts; stop that process, and start again",
                            wanted.restriction.as_str(),
                            wanted.path.display()
                        )));
                    }
                }
            };
            found.extend(kept);
        }
        Ok(found)
    }

    /// Finds the carve-outs of one path. Returns `None` if the path exists one moment and is
    /// missing the next, so that the caller looks again.
    ///
    /// # Errors
    /// Fails as [`Self::find`] does.
    fn find_one(
        &self,
        wanted: &Wanted,
        landlock: &Request,
        made: &mut CreatedDirs,
        lost: &mut Vec<String>,
    ) -> Result<Option<Vec<CarveOut>>, CoverError> {
        let Wanted {
            path,
            restriction,
            is_default,
            ..
        } = wanted;
        if *restriction == Restriction::NoExec && !landlock.shows(path) {
            return Ok(Some(vec![CarveOut::without_execution(path)]));
        }
        let place = match Place::of(path) {
            // A path that no grant reaches needs no carve-out.
            Err(_) if !landlock.reaches(path) => return Ok(Some(Vec::new())),
            place => place?,
        };
        let is_writable =
            landlock.reaches_for_writing(&place.whole()) && landlock.shows(&place.whole());
        // The path may lead elsewhere later.
        let way = CarveOut::find_way(path, *restriction, landlock)?;
        // A path that can only be read anyway needs no mount.
        if *restriction == Restriction::ReadOnly && !is_writable && way.is_none() {
            return Ok(Some(Vec::new()));
        }
        if *is_default {
            check_names(path)?;
        }
        let there = match CarveOut::find(path, *restriction, landlock) {
            Err(CarveOutError::Changing(..)) => return Ok(None),
            found => found?,
        };
        if let Some(carve_out) = there {
            // Another sandbox may have made this placeholder.
            if is_stand_in(path) {
                made.share(path);
            }
            return Ok(Some(vec![carve_out]));
        }
        if !is_default && self.has_placeholders {
            place.check(wanted, way.is_some(), is_writable)?;
        }
        let mut found: Vec<_> = way.into_iter().collect();
        // Nobody inside can make the path.
        if !is_writable {
            return Ok(Some(found));
        }
        // If a file is in the place of a folder above the path, the command must not replace the
        // file by a folder.
        if !place.rest.as_os_str().is_empty() && place.existing.is_file() {
            let file = place.existing;
            let above = CarveOut::find_file_above(path, file, *restriction, landlock)?;
            found.extend(above);
            return Ok(Some(found));
        }
        match self.keep_missing(wanted, &place, made) {
            Ok(true) => {
                made.share(&place.whole());
                // The path existed a moment ago and must be kept. If it is missing now, the caller
                // looks again.
                let Some(carve_out) = CarveOut::find(path, *restriction, landlock)? else {
                    return Ok(None);
                };
                found.push(carve_out);
            }
            Ok(false) => {}
            Err(why) => lost.push(self.given_up(not_kept(wanted, &why))?),
        }
        Ok(Some(found))
    }

    /// Puts a placeholder at the missing `place`. Returns true if there is one now.
    fn keep_missing(
        &self,
        wanted: &Wanted,
        place: &Place,
        made: &mut CreatedDirs,
    ) -> Result<bool, String> {
        if !self.has_placeholders {
            return Err("--no-placeholders is given".to_owned());
        }
        placeholder(wanted, place, self.uid, made).map_err(|error| error.to_string())
    }

    /// Returns the line to report for a path that is not kept from the command.
    ///
    /// # Errors
    /// Fails with `line` under `hard_requirement`.
    fn given_up(&self, line: String) -> Result<String, CoverError> {
        if self.is_hard {
            return Err(CoverError::Refused(format!(
                "{line}; `landlock.compatibility` is hard_requirement"
            )));
        }
        Ok(line)
    }
}

/// Describes a missing path that the command could make.
fn not_kept(wanted: &Wanted, why: &str) -> String {
    format!(
        "filesystem_policy.{}: {} does not exist, and the command can create it: {why}; create it \
         before the start",
        wanted.restriction.as_str(),
        wanted.path.display()
    )
}

fn has_no_git(folder: &Path) -> bool {
    folder
        .join(".git")
        .symlink_metadata()
        .is_err_and(|error| is_missing(&error))
}

/// Returns what a policy lists. In the policy, replaces each pattern by what matches it. Adds to
/// `idle` the paths that the policy hides but that do not exist.
///
/// # Errors
/// Fails if a pattern matches too much, or a folder cannot be searched.
fn listed(
    filesystem: &mut Filesystem,
    uid: u32,
    idle: &mut Vec<PathBuf>,
) -> Result<BTreeSet<Wanted>, CoverError> {
    let mut wanted = BTreeSet::new();
    let lists = [
        (Restriction::ReadOnly, &mut filesystem.read_only),
        (Restriction::Hidden, &mut filesystem.hidden),
        (Restriction::NoExec, &mut filesystem.noexec),
    ];
    for (restriction, listed) in lists {
        let mut expanded = Vec::with_capacity(listed.len());
        for path in listed.drain(..) {
            let shown = path.as_path().to_owned();
            let is_pattern = path.is_pattern();
            let found = if is_pattern {
                matches(&path, restriction, uid)?
            } else {
                vec![path]
            };
            let is_missing = |path: &Path| {
                path.symlink_metadata()
                    .is_err_and(|error| is_missing(&error))
            };
            if restriction == Restriction::Hidden
                && (found.is_empty() || (!is_pattern && is_missing(&shown)))
            {
                idle.push(shown);
            }
            expanded.extend(found);
        }
        *listed = expanded;
        wanted.extend(listed.iter().map(|path| Wanted {
            path: path.as_path().to_owned(),
            restriction,
            placeholder: stand_in(path, restriction),
            is_default: false,
        }));
    }
    Ok(wanted)
}

/// A path with its symlinks followed, split into the part that exists and the rest.
struct Place {
    existing: PathBuf,
    rest: PathBuf,
    /// The symlink to nothing that leads to the path.
    dangling: Option<PathBuf>,
}

impl Place {
    /// # Errors
    /// Fails if a folder on the way cannot be looked at.
    fn of(path: &Path) -> Result<Self, CoverError> {
        let (existing, rest) = so_far(path).map_err(unseen(|| {
            format!(
                "cannot keep {} from the command, because the path cannot be resolved",
                path.display()
            )
        }))?;
        let is_there = |path: &&Path| path.symlink_metadata().is_ok();
        let deepest = path
            .ancestors()
            .find(is_there)
            .filter(|_| !rest.as_os_str().is_empty());
        let dangling =
            deepest.filter(|path| path.metadata().is_err_and(|error| is_missing(&error)));
        let dangling = dangling.map(Path::to_owned);
        Ok(Self {
            existing,
            rest,
            dangling,
        })
    }

    /// Checks what is on the way to a missing path that the policy lists. An earlier command may
    /// have put something there so that the path leads elsewhere: a symlink that it `may_replace`,
    /// or, if the path `is_writable`, something that is neither a folder nor a file.
    ///
    /// # Errors
    /// Fails if there is such a thing.
    fn check(
        &self,
        wanted: &Wanted,
        may_replace: bool,
        is_writable: bool,
    ) -> Result<(), CoverError> {
        let Wanted {
            path, restriction, ..
        } = wanted;
        let key = restriction.as_str();
        if let Some(link) = self.dangling.as_ref()
            && may_replace
        {
            return Err(CoverError::Refused(format!(
                "filesystem_policy.{key}: {} is a symlink to nothing; remove it",
                link.display()
            )));
        }
        let existing = &self.existing;
        if is_writable && !existing.is_dir() && !existing.is_file() {
            return Err(CoverError::Refused(format!(
                "filesystem_policy.{key}: {} is not a folder; remove it, so that {} can be kept \
                 from the command",
                existing.display(),
                path.display()
            )));
        }
        Ok(())
    }

    fn whole(&self) -> PathBuf {
        self.existing.join(&self.rest).components().collect()
    }
}

/// Returns the placeholder for a missing path that the policy lists.
fn stand_in(path: &GrantedPath, restriction: Restriction) -> Placeholder<'static> {
    match restriction {
        _ if path.is_folder() => Placeholder::Folder,
        Restriction::NoExec => Placeholder::Folder,
        // An empty file is not valid JSON, and programs complain about it.
        Restriction::ReadOnly | Restriction::Hidden
            if path.as_path().extension() == Some(OsStr::new("json")) =>
        {
            Placeholder::File("{}\n")
        }
        Restriction::ReadOnly | Restriction::Hidden => Placeholder::File(""),
    }
}

/// Makes the placeholder, and what is missing above it. Returns false if nobody can make the path
/// there, so that nothing needs to be kept.
fn placeholder(
    wanted: &Wanted,
    place: &Place,
    uid: u32,
    made: &mut CreatedDirs,
) -> io::Result<bool> {
    let Wanted {
        path,
        placeholder,
        is_default,
        ..
    } = wanted;
    let is_deep = place.rest.components().count() > 1;
    // This is a submodule that is not checked out, or a repository that does not exist.
    let is_gits = path.components().any(|part| part.as_os_str() == ".git");
    if *is_default
        && (path.ends_with(".git") || is_deep && is_gits && !path.ends_with("info/attributes"))
    {
        return Ok(false);
    }
    match filesystem::make_placeholder(&place.whole(), *placeholder, made) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(false),
        // The command has no more rights there than this process, unless it owns the folder: then
        // it may make the folder writable again.
        Err(error)
            if error.kind() == io::ErrorKind::PermissionDenied
                && !rustix::process::geteuid().is_root()
                && place.existing.metadata()?.uid() != uid =>
        {
            Ok(false)
        }
        // Another sandbox was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
        Err(error) => Err(error),
    }
}

/// Refuses a file at `path` that has more than one hard link.
fn check_names(path: &Path) -> Result<(), CoverError> {
    let has_names = |data: std::fs::Metadata| data.is_file() && data.nlink() > 1;
    if path.metadata().is_ok_and(has_names) {
        return Err(CoverError::Refused(format!(
            "{} has further names (hard links), through which the command can write to it; replace \
             it by a copy",
            path.display()
        )));
    }
    Ok(())
}
