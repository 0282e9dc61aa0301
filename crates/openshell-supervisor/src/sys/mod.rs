//! The only unsafe code: small functions, each around one system call and safe to call.
//!
//! System calls go through rustix. nix is used for those that rustix lacks or restricts: execve,
//! unshare, signalfd, process_vm_readv, signal masks, and getpgid and getsid, for which 0 is not a
//! valid `Pid` in rustix. libc is used for calls that neither makes safe: clone, _exit,
//! close_range, mount_setattr, seccomp and its notifications, some socket options, dispositions of
//! signals (signal, sigaction), and malloc_trim.

#![expect(unsafe_code, reason = "system calls that no safe wrapper offers")]

pub(crate) mod notify;
pub(crate) mod socket;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::Pid;

/// The result of [`clone_process`] in each process.
pub(crate) enum Cloned {
    /// The result in the new process.
    Child,
    /// The result in the caller.
    Parent {
        /// The PID of the new process in the caller's PID namespace.
        pid: Pid,
        /// Its pidfd, which refers to this process even after its PID is reused.
        pidfd: OwnedFd,
    },
}

fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Waits, for a second at most, until the kernel has removed threads that were joined: a join
/// returns while the thread is still on its way out (set_tid_address(2)).
pub(crate) fn wait_for_single_thread() {
    for _ in 0..1000 {
        if matches!(threads(), Ok(1) | Err(_)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Clones the calling process like fork(2), into the new `namespaces` (`CLONE_NEWPID`,
/// `CLONE_NEWNS`, `CLONE_NEWIPC`).
///
/// # Errors
/// Fails if the calling process has more than one thread, or if clone(2) fails.
pub(crate) fn clone_process(namespaces: libc::c_int) -> io::Result<Cloned> {
    if threads()? != 1 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a process with several threads is never cloned",
        ));
    }
    let mut pidfd: RawFd = -1;
    let flags = namespaces | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child has its own copy of the memory and may go on with this
    // stack, which is what a null stack pointer asks for. The process has one thread, so no lock is
    // held by a thread that the child lacks. `pidfd` is writable for the length of the call, and
    // CLONE_PIDFD makes the third argument its place on every architecture; the remaining two are
    // unused with these flags.
    let result = unsafe { libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let Some(pid) = i32::try_from(result).ok().and_then(Pid::from_raw) else {
        return Ok(Cloned::Child);
    };
    // SAFETY: clone succeeded with CLONE_PIDFD, so the kernel stored a descriptor there that has no
    // other owner.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Parent { pid, pidfd })
}

/// Executes a program (execve(2)). Returns only on failure.
pub(crate) fn execve(path: &CStr, arguments: &[CString], environment: &[CString]) -> io::Error {
    match nix::unistd::execve(path, arguments, environment) {
        Ok(never) => match never {},
        // nix does not know every error number of every file system.
        Err(_) => io::Error::last_os_error(),
    }
}

/// Ends the calling process without running destructors or exit handlers (_exit(2)).
pub(crate) fn exit_now(status: libc::c_int) -> ! {
    // SAFETY: _exit takes any status and does not return.
    unsafe { libc::_exit(status) }
}

/// Marks all descriptors from `first` on as close-on-exec (close_range(2)).
pub(crate) fn close_on_exec_from(first: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call changes a flag of descriptors and touches no memory.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::c_uint::from(libc::CLOSE_RANGE_CLOEXEC as u16),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Closes all descriptors from 3 on except `kept` (close_range(2)). Only for a newly cloned process
/// that will not drop the owners of the others.
pub(crate) fn close_all_but(kept: &[&OwnedFd]) -> io::Result<()> {
    let mut numbers: Vec<_> = kept
        .iter()
        .filter_map(|fd| libc::c_uint::try_from(fd.as_raw_fd()).ok())
        .collect();
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers {
        if first < number {
            close_range(first, number - 1)?;
        }
        first = number + 1;
    }
    close_range(first, libc::c_uint::MAX)
}

fn close_range(first: libc::c_uint, last: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call touches no memory, and by the contract of the caller the descriptors that it
    // closes have no owner.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Blocks all signals in the calling thread (sigprocmask(2)).
pub(crate) fn block_signals() -> io::Result<()> {
    Ok(sigprocmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::all()),
        None,
    )?)
}

/// Resets the signal state of the calling process: unblocks all signals, and resets SIGPIPE, which
/// the Rust runtime ignores, to its default action. Other ignored signals stay ignored, because
/// `nohup` relies on that.
pub(crate) fn reset_signals() -> io::Result<()> {
    default_signal(libc::SIGPIPE)?;
    Ok(sigprocmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::empty()),
        None,
    )?)
}

/// Resets the actions of all signals, and unblocks them.
pub(crate) fn default_signals() -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // The C library keeps some for itself, and two cannot be changed.
        let _ = default_signal(signal);
    }
    reset_signals()
}

/// Resets `signal` to its default action (signal(2)).
pub(crate) fn default_signal(signal: libc::c_int) -> io::Result<()> {
    dispose(signal, Disposition::Default)
}

/// Ignores `signal` in the calling process (signal(2)).
pub(crate) fn ignore_signal(signal: libc::c_int) -> io::Result<()> {
    dispose(signal, Disposition::Ignore)
}

/// What a signal does.
enum Disposition {
    Default,
    Ignore,
}

fn dispose(signal: libc::c_int, disposition: Disposition) -> io::Result<()> {
    let handler = match disposition {
        Disposition::Default => libc::SIG_DFL,
        Disposition::Ignore => libc::SIG_IGN,
    };
    // SAFETY: both dispositions run no code; a number that is no signal is answered with an error.
    let previous = unsafe { libc::signal(signal, handler) };
    if previous == libc::SIG_ERR {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Returns the process group of `pid`; 0 means the calling process. The result is 0 for a group
/// outside this PID namespace (getpgid(2)).
pub(crate) fn process_group(pid: libc::pid_t) -> io::Result<libc::pid_t> {
    let group = nix::unistd::getpgid(Some(nix::unistd::Pid::from_raw(pid)))?;
    Ok(group.as_raw())
}

/// Returns the session of `pid`; 0 has the same meanings as for [`process_group`] (getsid(2)).
pub(crate) fn session(pid: libc::pid_t) -> io::Result<libc::pid_t> {
    let session = nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid)))?;
    Ok(session.as_raw())
}

/// Returns true if the calling process ignores `signal` (sigaction(2)).
pub(crate) fn is_signal_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero sigaction is valid for the call to overwrite; with a null action it
    // changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// The write end of the pipe of [`hang_ups`]; -1 before it exists.
static HANG_UPS: AtomicI32 = AtomicI32::new(-1);

/// Handles a signal by writing to the pipe: 1 if the kernel sent the signal, otherwise 0.
extern "C" fn hung_up(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid siginfo_t. write(2) and the thread's errno
    // are all that is used, both async-signal-safe (signal-safety(7)), and errno is left as it was.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        // Signals from kill, tgkill and sigqueue have codes of at most 0 (sigaction(2)).
        let by_kernel = u8::from((*info).si_code > 0);
        // The write fails if the pipe is full of earlier signals, which have the same effect.
        libc::write(
            HANG_UPS.load(Ordering::Relaxed),
            (&raw const by_kernel).cast(),
            1,
        );
        *errno = before;
    }
}

/// Handles SIGHUP: returns a non-blocking pipe that receives one byte per signal, 1 from the kernel
/// and 0 from a process.
pub(crate) fn hang_ups() -> io::Result<OwnedFd> {
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (read, write) = rustix::pipe::pipe_with(flags)?;
    // The descriptor stays open as long as the handler is installed, which is until the process
    // ends.
    HANG_UPS.store(write.into_raw_fd(), Ordering::Relaxed);
    // SAFETY: an all-zero sigaction is valid; its handler has the signature that SA_SIGINFO asks
    // for.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = hung_up as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGHUP, &raw const action, std::ptr::null_mut())
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(read)
    }
}

/// Returns a signalfd(2) for SIGCHLD, which must be blocked.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&children, flags)?.into())
}

/// Moves the calling thread into a new network namespace (unshare(2)).
pub(crate) fn unshare_network() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWNET)?)
}

/// Adds attributes (for example `MOUNT_ATTR_RDONLY`) to the detached mount `tree`, and if
/// `is_recursive` to the mounts in it (mount_setattr(2), Linux 5.12).
pub(crate) fn add_mount_attributes(
    tree: &OwnedFd,
    attr_set: u64,
    is_recursive: bool,
) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let recursive = if is_recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty, NUL-terminated string, and the kernel reads as many bytes of
    // the structure as it is told.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Moves the process, which must have only one thread, into a new user namespace (unshare(2)).
pub(crate) fn unshare_user() -> io::Result<()> {
    Ok(unshare(CloneFlags::CLONE_NEWUSER)?)
}

/// Gives the calling thread a separate descriptor table, which ends with the thread (unshare(2)).
pub(crate) fn copy_descriptors() -> io::Result<()> {
    // The caller's thread ends after this, so it does not use a descriptor whose number another
    // thread closes or gives away.
    Ok(unshare(CloneFlags::CLONE_FILES)?)
}

/// The threads for which a filter is installed. Threads that they start inherit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// The calling thread.
    This,
    /// All threads of the process (SECCOMP_FILTER_FLAG_TSYNC).
    All,
}

/// Installs a seccomp program (seccomp(2), `SECCOMP_SET_MODE_FILTER`).
pub(crate) fn set_seccomp_filter(
    program: &[libc::sock_filter],
    threads: Threads,
) -> io::Result<()> {
    let length = libc::c_ushort::try_from(program.len())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut(),
    };
    let flags = match threads {
        Threads::This => 0,
        Threads::All => libc::SECCOMP_FILTER_FLAG_TSYNC,
    };
    // SAFETY: the kernel reads `len` instructions at `filter`, which the slice holds, and writes
    // nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        // With TSYNC, a positive result is the ID of a thread that could not be synchronized.
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Returns the free memory of the heap to the kernel (malloc_trim(3)). Other C libraries than glibc
/// keep what they have.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator takes its own locks, and only pages without an allocation are released.
    let _ = unsafe { libc::malloc_trim(0) };
}

/// Makes a system call by number, for tests of the filter. Returns its result or the error number.
#[cfg(test)]
pub(crate) fn call(
    number: libc::c_long,
    arguments: [libc::c_long; 6],
) -> Result<libc::c_long, i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: none in general. The tests pass pointers that are null or misaligned, which the
    // kernel answers with EFAULT, and flags that it refuses.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 {
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_process_with_threads_is_never_cloned() {
        // The test harness runs this on a separate thread.
        let refused = std::thread::scope(|scope| {
            scope
                .spawn(|| super::clone_process(0).is_err())
                .join()
                .unwrap()
        });
        assert!(refused);
    }
}
