//! What the supervisor does to itself before it serves a workload: nothing of it can be read, and its own filter keeps
//! whoever takes it over from most of what root could do. Nobody inherits the filter, as the supervisor starts nobody.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{DumpableBehavior, Resource, Rlimit};

use crate::seccomp::filter::{CompileError, Filter};
use crate::seccomp::rules::supervisor_rows;

/// Which step failed.
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
    #[error("cannot install the supervisor's own system-call filter; the kernel must have CONFIG_SECCOMP_FILTER")]
    Filter { source: io::Error },
}

/// Makes the calling process unreadable, gives it all the descriptors that it may have, and restricts all of its threads,
/// those to come included. To be called when init
/// has been cloned and everything that the environment says has been read: the environment is empty afterwards.
///
/// # Errors
/// The step that failed.
pub fn supervisor() -> Result<(), HardenError> {
    make_unreadable().map_err(|source| HardenError::Unreadable { source })?;
    let no_core = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, no_core).map_err(|errno| HardenError::Core { source: errno.into() })?;
    // Two descriptors a connection: the caller's limit is for programs, and stays theirs, as init was cloned before.
    let mut files = rustix::process::getrlimit(Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(Resource::Nofile, files)
        .map_err(|errno| HardenError::Descriptors { source: errno.into() })?;
    let filter = Filter::compile(supervisor_rows()).map_err(HardenError::Compile)?;
    filter.install_for_process().map_err(|source| HardenError::Filter { source })
}

/// Lets nobody but root look into the process, and leaves in its arguments and environment nothing to be seen.
pub(crate) fn make_unreadable() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    wipe_arguments_and_environment()
}

/// Overwrites the blocks that /proc/PID/cmdline and environ show. They may hold secrets, and
/// arguments are readable to everybody, whatever else is not.
fn wipe_arguments_and_environment() -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field may hold blanks and parentheses; what follows its last one does not. The first field behind it
    // is number 3; 48 to 51 are the bounds of the two blocks (proc_pid_stat(5)).
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let bounds: Vec<u64> = fields.split_ascii_whitespace().skip(45).take(4).filter_map(|f| f.parse().ok()).collect();
    let &[arg_start, arg_end, env_start, env_end] = bounds.as_slice() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let memory = File::options().write(true).open("/proc/self/mem")?;
    for (start, end) in [(arg_start, arg_end), (env_start, env_end)] {
        let length = usize::try_from(end.saturating_sub(start)).map_err(|_| io::ErrorKind::InvalidData)?;
        memory.write_all_at(&vec![0; length], start)?;
    }
    Ok(())
}
