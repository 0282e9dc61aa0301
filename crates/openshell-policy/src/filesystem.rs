//! Filesystem policy: read-only and read-write paths, the working directory, the baseline, Landlock
//! compatibility.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use globset::GlobBuilder;

use crate::violation::ViolationKind;

/// Beginnings of paths that depend on the run: the home of the workload's user, and the working
/// directory.
const HOME: &str = "~";
const WORKDIR: &str = "$WORKDIR";

/// Beginning of a pattern that applies in every writable folder.
const EVERYWHERE: &str = "**";

/// A path of the filesystem policy, without `..` and without a trailing slash: absolute, or beneath
/// `~` or `$WORKDIR`. If it contains `*`, it is a pattern over paths. A pattern that begins with
/// `**/` applies in every writable folder.
#[derive(Clone, Debug)]
pub struct GrantedPath {
    path: PathBuf,
    /// Not part of comparisons.
    is_folder: bool,
}

impl fmt::Display for GrantedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}",
            self.path.display(),
            if self.is_folder && self.path != Path::new("/") {
                "/"
            } else {
                ""
            }
        )
    }
}

impl PartialEq for GrantedPath {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for GrantedPath {}

impl PartialOrd for GrantedPath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GrantedPath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.path.cmp(&other.path)
    }
}

impl GrantedPath {
    /// Parses a path.
    ///
    /// # Errors
    /// Fails if the path is relative, is a pattern, or has `..` or a NUL byte.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        match Self::parse_pattern(text)? {
            path if path.is_pattern() => Err(ViolationKind::PathPattern(text.to_owned())),
            path => Ok(path),
        }
    }

    /// Parses a path or a pattern.
    ///
    /// # Errors
    /// Fails if the path is relative or has `..` or a NUL byte, or if the pattern does not compile.
    pub fn parse_pattern(text: &str) -> Result<Self, ViolationKind> {
        let path = Path::new(text);
        let is_placed = [HOME, WORKDIR].iter().any(|place| path.starts_with(place))
            || path.starts_with(EVERYWHERE) && path.components().count() > 1;
        if !(path.is_absolute() || is_placed) || text.contains('\0') {
            return Err(ViolationKind::PathNotAbsolute(text.to_owned()));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(ViolationKind::PathTraversal(text.to_owned()));
        }
        let parsed = Self {
            path: path.components().collect(),
            is_folder: text.ends_with('/'),
        };
        if parsed.is_pattern() {
            // Brackets and braces could hold a slash. The pattern is split at slashes, so it would
            // then match nothing.
            if text.contains(['{', '}', '[', ']', '\\']) {
                let problem =
                    "a pattern can have only `*`, `**` and `?`; list each path".to_owned();
                return Err(ViolationKind::GlobInvalid {
                    glob: text.to_owned(),
                    problem,
                });
            }
            crate::network::binary::glob(text)?;
        }
        Ok(parsed)
    }

    /// Returns a path that a pattern matched, which is absolute, has no `..`, and need not be valid
    /// text.
    #[must_use]
    pub fn found(path: PathBuf) -> Self {
        Self {
            path,
            is_folder: false,
        }
    }

    /// Returns true if the path was written with a trailing slash. Then it may be missing, and if
    /// it has to be created, it becomes a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.is_folder
    }

    /// Returns the path, which is absolute once its policy is [`Filesystem::resolved`].
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.path
    }

    /// Returns true if it is a pattern, which stands for all paths that match.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.path.as_os_str().as_encoded_bytes().contains(&b'*')
    }

    /// Returns the folder in which all matches of a pattern lie, and a test for paths relative to
    /// it.
    pub fn matcher(&self) -> (PathBuf, impl Fn(&Path) -> bool) {
        let has_star = |part: &Component<'_>| part.as_os_str().as_encoded_bytes().contains(&b'*');
        let base: PathBuf = self
            .path
            .components()
            .take_while(|part| !has_star(part))
            .collect();
        let rest = self
            .path
            .strip_prefix(&base)
            .unwrap_or(&self.path)
            .to_string_lossy()
            .into_owned();
        // The glob has compiled in `parse_pattern`, so this cannot fail.
        let glob = GlobBuilder::new(&rest)
            .literal_separator(true)
            .build()
            .map(|glob| glob.compile_matcher());
        (base, move |path: &Path| {
            glob.as_ref().is_ok_and(|glob| glob.is_match(path))
        })
    }

    /// Returns the absolute paths that it stands for. A pattern for every writable folder gives one
    /// in each of `writable`.
    fn resolved(self, places: &Places, writable: &[PathBuf]) -> Result<Vec<Self>, MissingPlace> {
        let beneath = |folder: &Path, rest: &Path| Self {
            path: folder.join(rest).components().collect(),
            ..self
        };
        if let Ok(rest) = self.path.strip_prefix(HOME) {
            // A user without a home has nothing to grant or hide there.
            return Ok(places.home.iter().map(|home| beneath(home, rest)).collect());
        }
        if let Ok(rest) = self.path.strip_prefix(WORKDIR) {
            let workdir = places.workdir.as_ref().ok_or_else(|| MissingPlace {
                path: self.path.clone(),
            })?;
            return Ok(vec![beneath(workdir, rest)]);
        }
        if self.path.starts_with(EVERYWHERE) {
            Ok(writable
                .iter()
                .map(|folder| beneath(folder, &self.path))
                .collect())
        } else {
            Ok(vec![self])
        }
    }
}

/// Folders of a run that paths of a policy may begin with.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Home of the workload's user; if there is none, paths in it are left out.
    pub home: Option<PathBuf>,
    /// Working directory.
    pub workdir: Option<PathBuf>,
    /// True if `include_workdir` makes the working directory writable.
    pub is_writable: bool,
}

/// Error for a path of a policy that begins with the working directory, in a run that has none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filesystem_policy: {path} begins with the working directory, which does not exist; \
         name a folder with --workdir", path = path.display())]
pub struct MissingPlace {
    path: PathBuf,
}

/// File access of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// True if an explicit working directory is added to `read_write`.
    pub include_workdir: bool,
    /// Paths and patterns that may be read and executed but not written, even beneath a path of
    /// `read_write`.
    pub read_only: Vec<GrantedPath>,
    /// Paths with all rights except to create device nodes; missing ones are created.
    pub read_write: Vec<GrantedPath>,
    /// Paths and patterns that may neither be read nor listed, wherever they lie.
    pub hidden: Vec<GrantedPath>,
    /// Paths and patterns below which nothing may be executed or mapped as code.
    pub noexec: Vec<GrantedPath>,
    /// Handling of rights that the kernel lacks.
    pub compatibility: Compatibility,
}

impl Default for Filesystem {
    fn default() -> Self {
        Self {
            include_workdir: true,
            read_only: Vec::new(),
            read_write: Vec::new(),
            hidden: Vec::new(),
            noexec: Vec::new(),
            compatibility: Compatibility::BestEffort,
        }
    }
}

impl Filesystem {
    /// Returns true if a path begins with the home of the workload's user.
    #[must_use]
    pub fn needs_home(&self) -> bool {
        let mut all = [
            &self.read_only,
            &self.read_write,
            &self.hidden,
            &self.noexec,
        ]
        .into_iter()
        .flatten();
        all.any(|path| path.as_path().starts_with(HOME))
    }

    /// Returns the same with absolute paths only.
    ///
    /// # Errors
    /// Fails if a path begins with the working directory and the run has none.
    pub fn resolved(self, places: &Places) -> Result<Self, MissingPlace> {
        let resolve =
            |paths: Vec<GrantedPath>, writable: &[PathBuf]| -> Result<Vec<_>, MissingPlace> {
                let resolved = paths
                    .into_iter()
                    .map(|path| path.resolved(places, writable));
                Ok(resolved.collect::<Result<Vec<_>, _>>()?.concat())
            };
        let read_write = resolve(self.read_write, &[])?;
        let workdir = places
            .workdir
            .iter()
            .filter(|_| self.include_workdir && places.is_writable)
            .cloned();
        let writable: Vec<_> = read_write
            .iter()
            .map(|path| path.path.clone())
            .chain(workdir)
            .collect();
        let read_only = resolve(self.read_only, &writable)?;
        let searched = search_folders(&writable, &read_only, places.workdir.as_deref());
        Ok(Self {
            hidden: resolve(self.hidden, &searched)?,
            noexec: resolve(self.noexec, &searched)?,
            read_only,
            read_write,
            ..self
        })
    }

    /// Returns a path of `hidden` and a path inside it that the policy grants, if there are such.
    #[must_use]
    pub fn hidden_grant(&self) -> Option<(&Path, &Path)> {
        let granted = || {
            self.read_only
                .iter()
                .chain(&self.read_write)
                .map(GrantedPath::as_path)
        };
        self.hidden
            .iter()
            .map(GrantedPath::as_path)
            .find_map(|hidden| Some((hidden, granted().find(|path| path.starts_with(hidden))?)))
    }
}

/// Returns the folders in which `hidden` and `noexec` look for a pattern that names none: those of
/// `writable` and `read_only`. Of the root, and of patterns, they look only in the working
/// directory: the rest can be the whole machine.
fn search_folders(
    writable: &[PathBuf],
    read_only: &[GrantedPath],
    workdir: Option<&Path>,
) -> Vec<PathBuf> {
    let mut folders = writable.to_vec();
    for granted in read_only {
        let (start, _) = granted.matcher();
        let is_large = granted.is_pattern() || start == Path::new("/");
        let folder = match workdir {
            Some(workdir) if is_large && workdir.starts_with(&start) => workdir.to_owned(),
            Some(workdir) if is_large && start.starts_with(workdir) => start,
            _ if is_large || BASELINE.iter().any(|row| Path::new(row.path) == start) => continue,
            _ => start,
        };
        if !folders.iter().any(|known| folder.starts_with(known)) {
            folders.push(folder);
        }
    }
    folders
}

/// How to handle Landlock rights that the kernel lacks, and listed paths that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// Go on without the right or path, and report it at the start.
    BestEffort,
    /// Fail the start.
    HardRequirement,
}

/// Access to a path of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineAccess {
    /// Read and execute.
    ReadExecute,
    /// Read files and list directories, without executing.
    Read,
    /// Read and write, create and remove.
    ReadWrite,
    /// Read and write a device or the devices of a directory, without creating.
    Device,
    /// The same as [`Self::Device`], with ioctls for terminals.
    Terminal,
    /// List only the directory.
    List,
}

/// A path that every sandbox gets if it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The path.
    pub path: &'static str,
    /// Access to it.
    pub access: BaselineAccess,
    /// Reason why programs need it.
    pub reason: &'static str,
}

const fn row(path: &'static str, access: BaselineAccess, reason: &'static str) -> Baseline {
    Baseline {
        path,
        access,
        reason,
    }
}

/// Paths that are added to every policy if they exist; they never reduce a right that is listed.
pub const BASELINE: &[Baseline] = &[
    row(
        "/usr",
        BaselineAccess::ReadExecute,
        "programs and libraries",
    ),
    row(
        "/lib",
        BaselineAccess::ReadExecute,
        "the loader and libraries, where /usr is not merged",
    ),
    row(
        "/lib64",
        BaselineAccess::ReadExecute,
        "the loader's fixed path on x86-64",
    ),
    row(
        "/bin",
        BaselineAccess::ReadExecute,
        "the shell's fixed path",
    ),
    row(
        "/sbin",
        BaselineAccess::ReadExecute,
        "programs, where /usr is not merged",
    ),
    row(
        "/etc",
        BaselineAccess::ReadExecute,
        "users, hosts, time zone, certificates, configuration",
    ),
    row(
        "/app",
        BaselineAccess::ReadExecute,
        "where images keep their application",
    ),
    row(
        "/proc",
        BaselineAccess::ReadExecute,
        "the sandbox's own processes; init mounts it afresh",
    ),
    row(
        "/var/log",
        BaselineAccess::Read,
        "logs of the image; the supervisor's own are not readable to the workload",
    ),
    row(
        "/sys/devices/system/cpu",
        BaselineAccess::Read,
        "how many processors there are",
    ),
    row("/sandbox", BaselineAccess::ReadWrite, "the workload's home"),
    row("/tmp", BaselineAccess::ReadWrite, "temporary files"),
    row(
        "/dev",
        BaselineAccess::List,
        "finding the name of the terminal",
    ),
    row("/dev/null", BaselineAccess::Device, "every shell script"),
    row(
        "/dev/zero",
        BaselineAccess::Device,
        "anonymous memory of older programs",
    ),
    row("/dev/full", BaselineAccess::Device, "tests of full disks"),
    row("/dev/random", BaselineAccess::Device, "keys"),
    row("/dev/urandom", BaselineAccess::Device, "keys"),
    row(
        "/dev/tty",
        BaselineAccess::Terminal,
        "prompts of interactive programs",
    ),
    row(
        "/dev/ptmx",
        BaselineAccess::Terminal,
        "opening pseudo-terminals",
    ),
    row("/dev/pts", BaselineAccess::Terminal, "pseudo-terminals"),
    row(
        "/dev/shm",
        BaselineAccess::ReadWrite,
        "POSIX shared memory and semaphores",
    ),
];

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{Filesystem, GrantedPath, Places};

    fn paths(texts: &[&str]) -> Vec<GrantedPath> {
        texts
            .iter()
            .map(|text| GrantedPath::parse_pattern(text).unwrap())
            .collect()
    }

    #[test]
    fn paths_begin_with_the_home_the_working_directory_or_every_writable_folder() {
        let filesystem = Filesystem {
            read_only: paths(&["~/.config/", "/usr"]),
            read_write: paths(&["/data", "~/.cache//pip"]),
            hidden: paths(&["**/.env", "~", "$WORKDIR/a*/b"]),
            ..Filesystem::default()
        };
        assert!(filesystem.needs_home());
        let places = Places {
            home: Some(PathBuf::from("/home/kim")),
            workdir: Some(PathBuf::from("/work")),
            is_writable: true,
        };
        let resolved = filesystem.clone().resolved(&places).unwrap();
        assert_eq!(resolved.read_only, paths(&["/home/kim/.config/", "/usr"]));
        assert!(
            resolved.read_only[0].is_folder()
                && resolved.read_only[0].as_path().to_str() == Some("/home/kim/.config")
        );
        assert_eq!(
            resolved.read_write,
            paths(&["/data", "/home/kim/.cache/pip"])
        );
        let everywhere = [
            "/data/**/.env",
            "/home/kim/.cache/pip/**/.env",
            "/work/**/.env",
            "/home/kim/.config/**/.env",
        ];
        assert_eq!(
            resolved.hidden,
            paths(&[&everywhere[..], &["/home/kim", "/work/a*/b"]].concat())
        );
        let missing = filesystem
            .resolved(&Places::default())
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("$WORKDIR/a*/b begins with the working directory"),
            "{missing}"
        );
    }

    #[test]
    fn a_pattern_without_a_folder_is_for_folders_that_can_only_be_read_too() {
        let hidden = |read_only: &[&str], read_write: &[&str]| {
            let filesystem = Filesystem {
                include_workdir: false,
                read_only: paths(read_only),
                read_write: paths(read_write),
                hidden: paths(&["**/.env"]),
                ..Filesystem::default()
            };
            let places = Places {
                workdir: Some(PathBuf::from("/work")),
                is_writable: true,
                ..Places::default()
            };
            filesystem.resolved(&places).unwrap().hidden
        };
        assert_eq!(hidden(&["/usr"], &[]), []);
        assert_eq!(hidden(&["$WORKDIR"], &[]), paths(&["/work/**/.env"]));
        assert_eq!(hidden(&["/", "/work/a"], &[]), paths(&["/work/**/.env"]));
        assert_eq!(hidden(&["/work/*"], &[]), paths(&["/work/**/.env"]));
        assert_eq!(hidden(&["/wor*"], &[]), paths(&["/work/**/.env"]));
        assert_eq!(hidden(&["/other"], &[]), paths(&["/other/**/.env"]));
        assert_eq!(hidden(&["/work/a"], &[]), paths(&["/work/a/**/.env"]));
        assert_eq!(hidden(&["/work/a"], &["/work"]), paths(&["/work/**/.env"]));
    }

    #[test]
    fn relative_paths_and_patterns_for_writing_are_rejected() {
        for text in [
            "a",
            "./a",
            "~kim/a",
            "$HOME/a",
            "**",
            "*/a",
            "",
            "/a/../b",
            "~/..",
            "$WORKDIRS/a",
            "/a\0",
        ] {
            assert!(GrantedPath::parse_pattern(text).is_err(), "{text}");
        }
        for text in ["/a/*", "**/a", "$WORKDIR/*.c"] {
            assert!(
                GrantedPath::parse(text).is_err() && GrantedPath::parse_pattern(text).is_ok(),
                "{text}"
            );
        }
        for text in ["/a/[*", "/a/{b/x,*}", "/a/[x/*]", "/a/{b,c}*", "/a/\\*"] {
            assert!(GrantedPath::parse_pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_grant_in_a_hidden_folder_is_found() {
        let filesystem = |hidden: &[&str]| Filesystem {
            read_only: paths(&["/a/b"]),
            read_write: paths(&["/c"]),
            hidden: paths(hidden),
            ..Filesystem::default()
        };
        for hidden in ["/a", "/a/b", "/c", "/"] {
            assert!(filesystem(&[hidden]).hidden_grant().is_some(), "{hidden}");
        }
        assert_eq!(
            filesystem(&["/a/bc", "/a/b/c", "/c/d"]).hidden_grant(),
            None
        );
    }
}
