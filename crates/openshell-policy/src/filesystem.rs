//! Filesystem policy: read-only and read-write paths, the working directory, the baseline, Landlock compatibility.

use std::path::{Component, Path, PathBuf};

use crate::violation::ViolationKind;

/// A path of the filesystem policy: absolute, without `..`, without a trailing slash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GrantedPath(PathBuf);

impl GrantedPath {
    /// Parses a path of a policy.
    ///
    /// # Errors
    /// The path is relative, or has `..` or a NUL byte.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        let path = Path::new(text);
        if !path.is_absolute() || text.contains('\0') {
            return Err(ViolationKind::PathNotAbsolute(text.to_owned()));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(ViolationKind::PathTraversal(text.to_owned()));
        }
        Ok(Self(path.components().collect()))
    }

    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

/// File access of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// True if an explicit working directory is added to `read_write`.
    pub include_workdir: bool,
    /// Paths that may be read and executed.
    pub read_only: Vec<GrantedPath>,
    /// Paths with all rights but creating device nodes; created when missing.
    pub read_write: Vec<GrantedPath>,
    /// Handling of rights that the kernel lacks.
    pub compatibility: Compatibility,
}

impl Default for Filesystem {
    fn default() -> Self {
        Self {
            include_workdir: true,
            read_only: Vec::new(),
            read_write: Vec::new(),
            compatibility: Compatibility::BestEffort,
        }
    }
}

/// Handling of Landlock rights that the kernel lacks, and of listed paths that cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// Give the right or path up, and report it at the start.
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
    /// As [`Self::Device`], with ioctls: for terminals.
    Terminal,
    /// List the directory only.
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
    Baseline { path, access, reason }
}

/// Paths added to every policy if they exist; they never reduce a listed right.
pub const BASELINE: &[Baseline] = &[
    row("/usr", BaselineAccess::ReadExecute, "programs and libraries"),
    row("/lib", BaselineAccess::ReadExecute, "the loader and libraries, where /usr is not merged"),
    row("/lib64", BaselineAccess::ReadExecute, "the loader's fixed path on x86-64"),
    row("/bin", BaselineAccess::ReadExecute, "the shell's fixed path"),
    row("/sbin", BaselineAccess::ReadExecute, "programs, where /usr is not merged"),
    row("/etc", BaselineAccess::ReadExecute, "users, hosts, time zone, certificates, configuration"),
    row("/app", BaselineAccess::ReadExecute, "where images keep their application"),
    row("/proc", BaselineAccess::ReadExecute, "the sandbox's own processes; init mounts it afresh"),
    row("/var/log", BaselineAccess::Read, "logs of the image; the supervisor's own are not readable to the workload"),
    row("/sys/devices/system/cpu", BaselineAccess::Read, "how many processors there are"),
    row("/sandbox", BaselineAccess::ReadWrite, "the workload's home"),
    row("/tmp", BaselineAccess::ReadWrite, "temporary files"),
    row("/dev", BaselineAccess::List, "finding the name of the terminal"),
    row("/dev/null", BaselineAccess::Device, "every shell script"),
    row("/dev/zero", BaselineAccess::Device, "anonymous memory of older programs"),
    row("/dev/full", BaselineAccess::Device, "tests of full disks"),
    row("/dev/random", BaselineAccess::Device, "keys"),
    row("/dev/urandom", BaselineAccess::Device, "keys"),
    row("/dev/tty", BaselineAccess::Terminal, "prompts of interactive programs"),
    row("/dev/ptmx", BaselineAccess::Terminal, "opening pseudo-terminals"),
    row("/dev/pts", BaselineAccess::Terminal, "pseudo-terminals"),
    row("/dev/shm", BaselineAccess::ReadWrite, "POSIX shared memory and semaphores"),
];
