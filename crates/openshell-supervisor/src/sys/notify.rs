//! System calls that the kernel hands to the supervisor instead of running them
//! (seccomp_unotify(2)).

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// A system call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notification {
    /// The number of the notification, which is unique.
    pub(crate) id: u64,
    /// The calling thread, in the receiver's PID namespace; 0 if it is outside that namespace.
    pub(crate) thread: i32,
    /// The number of the system call.
    pub(crate) number: i32,
    /// The arguments of the call.
    pub(crate) arguments: [u64; 6],
}

/// The answer to a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The call returns 0.
    Success,
    /// The call fails with this error number.
    Error(i32),
    /// The kernel runs the call, and reads arguments that are in memory as they are then.
    Continue,
}

/// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND`, `_ID_VALID` and `_SET_FLAGS` (linux/seccomp.h): direction,
/// size, type `!`, number.
const RECEIVE: libc::c_ulong = request(3, size_of::<libc::seccomp_notif>(), 0);
const SEND: libc::c_ulong = request(3, size_of::<libc::seccomp_notif_resp>(), 1);
const IS_VALID: libc::c_ulong = request(1, size_of::<u64>(), 2);
const SET_FLAGS: libc::c_ulong = request(1, size_of::<u64>(), 4);

/// `SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP`.
const SYNC_WAKE_UP: libc::c_ulong = 1;

/// Builds an ioctl number (linux/ioctl.h). Direction 1 is write, 3 is both.
const fn request(direction: libc::c_ulong, size: usize, number: libc::c_ulong) -> libc::c_ulong {
    direction << 30 | (size as libc::c_ulong) << 16 | (b'!' as libc::c_ulong) << 8 | number
}

/// Installs a program for the calling thread and everything that it starts, and returns the
/// listener of its notifications. Once a notification is received, only fatal signals interrupt its
/// call, if the kernel offers that (Linux 5.19).
///
/// # Errors
/// Fails with EBUSY if a filter with a listener is already in force, or with another error of
/// seccomp(2).
pub(crate) fn install_listener(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    match install(
        program,
        flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
    ) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => install(program, flags),
        result => result,
    }
}

fn install(program: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<OwnedFd> {
    let length = libc::c_ushort::try_from(program.len())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions at `filter`, which the slice holds, and writes
    // nothing.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match RawFd::try_from(fd) {
        // SAFETY: with SECCOMP_FILTER_FLAG_NEW_LISTENER the result is a new descriptor, which has
        // no other owner.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel switch between caller and receiver on one processor (Linux 6.6), which takes a
/// fifth of the time. On older kernels this has no effect.
pub(crate) fn wake_on_one_processor(listener: BorrowedFd<'_>) {
    // SAFETY: the argument is a number.
    unsafe { libc::ioctl(listener.as_raw_fd(), SET_FLAGS, SYNC_WAKE_UP) };
}

/// Waits for a notification.
///
/// # Errors
/// Fails with ENOENT if its caller is gone meanwhile, or since Linux 6.11 if no process with the
/// filter is left; with EINTR if a signal interrupts the wait.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> io::Result<Notification> {
    // SAFETY: zeroes are a valid value of a structure of integers, and what the kernel demands to
    // find there.
    let mut notification: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes as many bytes as the ioctl number says, the size of the structure.
    if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut notification) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let libc::seccomp_notif { id, pid, data, .. } = notification;
    Ok(Notification {
        id,
        thread: pid.cast_signed(),
        number: data.nr,
        arguments: data.args,
    })
}

/// Returns true if the call still waits. Its thread has then been in the call ever since, and the
/// number in the notification was that thread's.
pub(crate) fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel reads eight bytes.
    unsafe { libc::ioctl(listener.as_raw_fd(), IS_VALID, &raw const id) == 0 }
}

/// Answers a notification.
///
/// # Errors
/// Fails with ENOENT if the call does not wait any more.
pub(crate) fn answer(listener: BorrowedFd<'_>, id: u64, answer: Answer) -> io::Result<()> {
    let (error, flags) = match answer {
        Answer::Success => (0, 0),
        Answer::Error(number) => (-number, 0),
        Answer::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
    };
    let response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: the kernel reads as many bytes as the ioctl number says, the size of the structure.
    match unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw const response) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads memory of another process (process_vm_readv(2)). Returns the number of bytes that could be
/// read.
///
/// # Errors
/// Fails with EFAULT if the first byte cannot be read, and with EPERM without CAP_SYS_PTRACE.
pub(crate) fn read_memory(process: i32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let address =
        usize::try_from(address).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
    let remote = RemoteIoVec {
        base: address,
        len: bytes.len(),
    };
    let process = Pid::from_raw(process);
    Ok(process_vm_readv(
        process,
        &mut [IoSliceMut::new(bytes)],
        &[remote],
    )?)
}
