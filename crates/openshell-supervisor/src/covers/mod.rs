//! The carve-outs of a start: which paths are taken out of what the policy grants, and what stands
//! in for those that are missing.

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

use openshell_policy::filesystem::{Compatibility, Filesystem, GrantedPath};

pub use crate::covers::error::CoverError;
use crate::covers::error::unseen;
use crate::covers::exclude::{Exclude, is_stand_in};
use crate::covers::patterns::matches;
use crate::covers::settings::Settings;
use crate::files::carve_outs::{CarveOut, Restriction};
use crate::files::filesystem::{self, Placeholder};
use crate::files::landlock::Request;
use crate::paths::missing::is_missing;
use crate::paths::trusted_symlinks::so_far;
use crate::runs::run_dir::created_dirs::CreatedDirs;
pub use git::linked_repository;
pub use git_use::GitUse;

/// Longest time in which a path that comes and goes is looked for, and the time between two looks.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(20);

/// Work trees in which placeholders are kept out of commits.
const EXCLUDES: usize = 16;

/// The paths to take out, before anything is made for them.
#[derive(Debug)]
pub struct CarveOuts {
    wanted: BTreeSet<Wanted>,
    /// True if what cannot be had ends the start.
    is_hard: bool,
    has_placeholders: bool,
    /// User of the workload.
    uid: u32,
    /// The lists of what git does not add in the work trees.
    excludes: Vec<Exclude>,
    /// Repositories whose configuration is kept.
    repositories: Vec<PathBuf>,
    /// Folders that are no work trees.
    without_git: Vec<PathBuf>,
    /// What the policy hides and is not there.
    idle: Vec<PathBuf>,
    /// What else an operator is told.
    notes: Vec<String>,
}

/// What is kept from a command beside what the policy lists.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// True if something is made in the place of what is missing.
    pub has_placeholders: bool,
    /// True if the settings of projects and homes are kept.
    pub keeps_settings: bool,
}

/// The folders that may be written.
#[derive(Debug)]
pub struct Writable<'p> {
    /// All of them.
    pub folders: &'p [PathBuf],
    /// The folder that the command works in, and its home: which of the others hold them is a
    /// project.
    pub work: Vec<PathBuf>,
}

impl Writable<'_> {
    fn is_project(&self, folder: &Path) -> bool {
        self.work.iter().any(|work| work.starts_with(folder))
    }
}

/// A path to take out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    path: PathBuf,
    restriction: Restriction,
    /// Stands in for a missing one.
    placeholder: Placeholder<'static>,
    /// True if nobody wrote the path down: what is missing then in a folder that is missing is left
    /// alone.
    is_default: bool,
}

impl CarveOuts {
    /// Returns the carve-outs of a policy, whose patterns are replaced in it by what matches them,
    /// those of the git work trees among the folders that may be written, and those of their
    /// settings, and the folders of `presets`.
    ///
    /// `uid` is the workload's. To be called as the workload's user.
    ///
    /// # Errors
    /// A pattern matches too much, or a folder cannot be searched.
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
        // A command must not widen the next run.
        wanted.extend(presets.iter().map(|folder| Wanted {
            path: folder.clone(),
            restriction: Restriction::ReadOnly,
            placeholder: Placeholder::Folder,
            is_default: false,
        }));
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
                "{} has so many files or folders that not all settings in its subfolders are kept \
                 from the command; filesystem_policy.read_only keeps what it names",
                project.display()
            ));
        }
        planned.keep(settings.paths, writable.folders);
        Ok(planned)
    }

    /// Adds what git takes programs from in `folder`; returns the repository if it is a work tree.
    ///
    /// # Errors
    /// A part cannot be looked at.
    fn add_git(
        &mut self,
        folder: &Path,
        git: &GitUse,
        writable: &[PathBuf],
    ) -> Result<Option<PathBuf>, CoverError> {
        let found = git::sensitive_paths(folder, git);
        if let Some(why) = found.unknown.first() {
            return Err(CoverError::Refused(format!(
                "the hooks and attributes of git in {} cannot all be kept from the command: {why}; \
                 look at what is there, and remove or repair it",
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

    /// Keeps `paths` from being written, but for those that the policy lists as `writable`
    /// themselves.
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

    /// Verifies, once all is mounted, that no folder has become a work tree meanwhile, of which
    /// nothing would be kept.
    ///
    /// # Errors
    /// The first that has.
    pub fn verify(&self) -> Result<(), CoverError> {
        for folder in &self.without_git {
            if !has_no_git(folder) {
                let link = folder.join(".git");
                return Err(CoverError::Refused(format!(
                    "another process has made, renamed or replaced {} while the sandbox started; \
                     stop what does that, and start again",
                    link.display()
                )));
            }
        }
        Ok(())
    }

    /// Lines about settings that are not kept.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Lines about what the policy hides and is not there.
    pub fn idle(&self) -> impl Iterator<Item = String> {
        self.idle.iter().map(|path| {
            let later = if path.to_string_lossy().contains('*') {
                "files that are made later match no pattern"
            } else {
                "is it the path that is meant?"
            };
            format!(
                "filesystem_policy.hidden: {} hides nothing, as there is no such file; {later}",
                path.display()
            )
        })
    }

    /// Lines about hidden files that git tracks: it takes them for changed, and cannot read them.
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
        // A folder may be granted twice.
        let tracked: BTreeSet<&Path> = tracked.collect();
        tracked.into_iter().map(|path| {
            let folder = path.parent().unwrap_or(path);
            let name = path.file_name().unwrap_or_default();
            format!(
                "{} is hidden, and git tracks it, so `git add -A`, `commit -a`, `stash` and `diff` \
                 fail inside; outside, `git -C {} update-index --skip-worktree -- {}` has git \
                 leave it alone",
                path.display(),
                quoted(folder.as_os_str()),
                quoted(name)
            )
        })
    }

    /// Repositories whose configuration is kept.
    pub fn repositories(&self) -> Vec<PathBuf> {
        self.repositories.clone()
    }

    /// Returns the lists of what git does not add that are to be shown in the sandbox, each with
    /// its place: placeholders are among it.
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

    /// The paths, which another sandbox must not remove.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.wanted.iter().map(|wanted| wanted.path.as_path())
    }

    /// Finds the carve-outs on the host, and makes a placeholder for each that is missing where the
    /// command could make one.
    ///
    /// # Errors
    /// A path cannot be looked at, or comes and goes; or under `hard_requirement` a missing one
    /// cannot be kept from the command.
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
                            "filesystem_policy.{}: another process renames or replaces {} while the \
                         sandbox starts; stop what does that, and start again",
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

    /// Finds the carve-outs of one path; `None` if it is there one moment and missing the next, so
    /// that it is to be looked for again.
    ///
    /// # Errors
    /// As [`Self::find`].
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
            // What no grant reaches needs no carve-out.
            Err(_) if !landlock.reaches(path) => return Ok(Some(Vec::new())),
            place => place?,
        };
        let is_writable =
            landlock.reaches_for_writing(&place.whole()) && landlock.shows(&place.whole());
        // It may lead elsewhere later.
        let way = CarveOut::find_way(path, *restriction, landlock)?;
        // What may only be read anyway needs no mount.
        if *restriction == Restriction::ReadOnly && !is_writable && way.is_none() {
            return Ok(Some(Vec::new()));
        }
        if *is_default {
            check_names(path)?;
        }
        if let Some(carve_out) = CarveOut::find(path, *restriction, landlock)? {
            // Another sandbox may have made it.
            if is_stand_in(path) {
                made.share(path);
            }
            return Ok(Some(vec![carve_out]));
        }
        if !is_default && self.has_placeholders {
            place.check(wanted, way.is_some(), is_writable)?;
        }
        let mut found: Vec<_> = way.into_iter().collect();
        // Nobody inside can make it.
        if !is_writable {
            return Ok(Some(found));
        }
        // A file in the place of a folder above it, which the command must not replace by one.
        if !place.rest.as_os_str().is_empty() && place.existing.is_file() {
            found.extend(CarveOut::find_file_above(
                path,
                place.existing,
                *restriction,
                landlock,
            )?);
            return Ok(Some(found));
        }
        match self.keep_missing(wanted, &place, made) {
            Ok(true) => {
                made.share(&place.whole());
                // What has been there a moment ago must be kept.
                let Some(carve_out) = CarveOut::find(path, *restriction, landlock)? else {
                    return Ok(None);
                };
                found.push(carve_out);
            }
            Ok(false) => {}
            Err(why) => lost.push(self.given_up(format!(
                "filesystem_policy.{}: {} is not there, and the command may make it: {why}",
                restriction.as_str(),
                path.display()
            ))?),
        }
        Ok(Some(found))
    }

    /// Puts a placeholder at a `place` that is missing; returns true if one is there now.
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

    /// Returns what is said of a path that is not kept from the command.
    ///
    /// # Errors
    /// `line`, under `hard_requirement`.
    fn given_up(&self, line: String) -> Result<String, CoverError> {
        if self.is_hard {
            return Err(CoverError::Refused(format!(
                "{line}; `landlock.compatibility` is hard_requirement"
            )));
        }
        Ok(line)
    }
}

/// Returns a word for a shell, which somebody may paste: an earlier command may have chosen the
/// name.
fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=@:".contains(&byte);
    if text.bytes().all(is_plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

fn has_no_git(folder: &Path) -> bool {
    folder
        .join(".git")
        .symlink_metadata()
        .is_err_and(|error| is_missing(&error))
}

/// Returns what a policy lists, whose patterns are replaced in it by what matches them; what it
/// hides and is not there is added to `idle`.
///
/// # Errors
/// A pattern matches too much, or a folder cannot be searched.
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

/// A path behind the symlinks on its way, as far as it exists.
struct Place {
    existing: PathBuf,
    rest: PathBuf,
    /// The symlink to nothing that leads to it.
    dangling: Option<PathBuf>,
}

impl Place {
    /// # Errors
    /// A folder on the way cannot be looked at.
    fn of(path: &Path) -> Result<Self, CoverError> {
        let (existing, rest) = so_far(path).map_err(unseen(|| {
            format!(
                "{} cannot be looked at, so it cannot be kept",
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

    /// Checks what lies on the way to a missing path that the policy lists. An earlier command may
    /// have made it, to have what is listed elsewhere: a symlink that it `may_replace`, or, where
    /// the path `is_writable`, something else than a folder.
    ///
    /// # Errors
    /// There is such a thing.
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
                "filesystem_policy.{key}: {} is no folder, so {} cannot be kept from the command; \
                 remove it",
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
        // An empty file is no JSON, which programs complain of.
        Restriction::ReadOnly | Restriction::Hidden
            if path.as_path().extension() == Some(OsStr::new("json")) =>
        {
            Placeholder::File("{}\n")
        }
        Restriction::ReadOnly | Restriction::Hidden => Placeholder::File(""),
    }
}

/// Makes the placeholder, and what is missing above it; returns false if nobody can make it there,
/// so that nothing needs to be kept away.
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
    // A submodule that is not checked out, and a repository that is not there.
    let is_gits = path.components().any(|part| part.as_os_str() == ".git");
    if *is_default
        && (path.ends_with(".git") || is_deep && is_gits && !path.ends_with("info/attributes"))
    {
        return Ok(false);
    }
    match filesystem::make_placeholder(&place.whole(), *placeholder, made) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(false),
        // The command has no more rights there than this process, unless the folder is its own,
        // which it may open again.
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

/// Refuses a file at `path` that has further names.
fn check_names(path: &Path) -> Result<(), CoverError> {
    let has_names = |data: std::fs::Metadata| data.is_file() && data.nlink() > 1;
    if path.metadata().is_ok_and(has_names) {
        return Err(CoverError::Refused(format!(
            "{}: it has further names (hard links), under which the command may write to it; make \
             a copy in its place",
            path.display()
        )));
    }
    Ok(())
}
