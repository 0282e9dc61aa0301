//! Hardens the supervisor before it serves a workload. Its memory, arguments and environment become
//! unreadable, and a separate system-call filter limits an attacker who takes it over. No process
//! inherits that filter, because only init starts processes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{DumpableBehavior, Resource, Rlimit};

use crate::seccomp::filter::{CompileError, Filter};
use crate::seccomp::rules::supervisor_rows;

/// A hardening step that failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum HardenError {
    #[error("cannot make the supervisor's memory, arguments and environment unreadable")]
    Unreadable { source: io::Error },
    #[error("cannot switch the supervisor's core dumps off")]
    Core { source: io::Error },
    #[error("cannot raise the supervisor's limit of open files")]
    Descriptors { source: io::Error },
    #[error(transparent)]
    Compile(CompileError),
    #[error(
        "cannot install the supervisor's own system-call filter; the kernel must have \
         CONFIG_SECCOMP_FILTER"
    )]
    Filter { source: io::Error },
}

/// Makes the calling process unreadable, raises its limit of open files to the maximum, and
/// installs the supervisor's filter for all of its threads, present and future. Call this after
/// init has been cloned and after the environment has been read, because that is wiped.
///
/// # Errors
/// Fails with the step that failed; the steps before it stay in effect.
pub fn supervisor() -> Result<(), HardenError> {
    make_unreadable().map_err(|source| HardenError::Unreadable { source })?;
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(|errno| HardenError::Core {
        source: errno.into(),
    })?;
    // Each connection takes two descriptors. The workload keeps the caller's limit, because init
    // was cloned before this.
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(Resource::Nofile, files).map_err(|errno| {
        HardenError::Descriptors {
            source: errno.into(),
        }
    })?;
    let filter = Filter::compile(supervisor_rows()).map_err(HardenError::Compile)?;
    filter
        .install_for_process()
        .map_err(|source| HardenError::Filter { source })
}

/// Makes the process undumpable, so that only root can read its memory, and wipes its arguments and
/// environment.
pub(crate) fn make_unreadable() -> io::Result<()> {
    // This is opened first, because the /proc files of an undumpable process belong to root.
    let memory = File::options().write(true).open("/proc/self/mem")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    wipe_arguments_and_environment(&memory)
}

/// Overwrites the memory that /proc/PID/cmdline and environ show. It may hold secrets, and
/// everybody can read the arguments of any process.
fn wipe_arguments_and_environment(memory: &File) -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Field 2 may hold blanks and parentheses, so the fields are counted from its last parenthesis:
    // the first one behind it is field 3. Fields 48 to 51 are the bounds of the two blocks
    // (proc_pid_stat(5)).
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let bounds: Vec<u64> = fields
        .split_ascii_whitespace()
        .skip(45)
        .take(4)
        .filter_map(|f| f.parse().ok())
        .collect();
    let &[arg_start, arg_end, env_start, env_end] = bounds.as_slice() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    for (start, end) in [(arg_start, arg_end), (env_start, env_end)] {
        let length =
            usize::try_from(end.saturating_sub(start)).map_err(|_| io::ErrorKind::InvalidData)?;
        memory.write_all_at(&vec![0; length], start)?;
    }
    Ok(())
}
