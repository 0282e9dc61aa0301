//! Finds out which processes at the other ends of Unix sockets are outside of every sandbox.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags};

use crate::host::privilege::{NOBODY, is_root_mapped};
use crate::sys::socket;

/// The largest number of processes between a peer and the first process of its PID namespace.
const ANCESTORS: usize = 1024;

/// Returns the PID of the process that connected `socket`, which must belong to this user or root
/// and be outside of every sandbox. The user alone does not show that, because programs of a
/// sandbox may have this user's identity. `init` is the PID of this sandbox's first process.
///
/// # Errors
/// Fails if the process belongs to another user, may be inside of a sandbox, or has ended.
pub fn outside(socket: BorrowedFd<'_>, init: i32) -> Result<i32, String> {
    Ok(look_at(socket, init)?.0.as_raw_nonzero().get())
}

/// Verifies that a supervisor of this user or of root listens at the other end of `socket`, and not
/// a program of a sandbox. If /proc is masked, such programs share the PID namespace. But their
/// bounding set is always empty, and that of a supervisor never is.
///
/// # Errors
/// Fails as [`outside`] does, or if the bounding set is empty or cannot be looked at.
pub fn supervisor(socket: BorrowedFd<'_>) -> Result<(), String> {
    let (pid, pidfd) = look_at(socket, 0)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status =
        status.map_err(|error| format!("cannot read the status of the process: {error}"))?;
    let bounding = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:"))
        .map(str::trim);
    if bounding.is_none_or(|set| set.bytes().all(|digit| digit == b'0')) {
        return Err(
            "it is not a supervisor: its capability bounding set is empty, like that of a \
             sandbox's programs"
                .to_owned(),
        );
    }
    numbers(&pidfd).map(drop)
}

/// Returns the process at the other end of `socket`, and a pidfd of it, if it is as [`outside`]
/// demands.
fn look_at(socket: BorrowedFd<'_>, init: i32) -> Result<(Pid, OwnedFd), String> {
    let credentials = rustix::net::sockopt::socket_peercred(socket)
        .map_err(|errno| format!("cannot read who is at the other end: {errno}"))?;
    let uid = credentials.uid;
    let own = rustix::process::geteuid();
    // In a user namespace, root outside has no number of its own. The permissions of the socket
    // then decide who may open it.
    let is_roots = uid.is_root() || uid.as_raw() == NOBODY && !is_root_mapped();
    if uid != own && !is_roots {
        return Err(format!(
            "user {uid} is neither root nor the supervisor's user {own}"
        ));
    }
    let gone = |errno: rustix::io::Errno| format!("the process has ended: {errno}");
    // This needs Linux 6.5. On older kernels, the process may have ended and its number may belong
    // to another process by now.
    let pidfd = socket::peer_pidfd(socket)
        .or_else(|_| rustix::process::pidfd_open(credentials.pid, PidfdFlags::empty()))
        .map_err(gone)?;
    let pid = numbers(&pidfd)?;
    let mut above = Some(pid);
    for _ in 0..ANCESTORS {
        match above {
            Some(pid) if pid.as_raw_nonzero().get() == init => {
                return Err("it is a process of this sandbox".to_owned());
            }
            Some(pid) => {
                above = parent_of(pid).ok_or("cannot read which processes are above it")?
            }
            None => break,
        }
    }
    if above.is_some() {
        return Err(format!("more than {ANCESTORS} processes are above it"));
    }
    // The process still has its number, so everything that was read belongs to it.
    numbers(&pidfd)?;
    Ok((pid, pidfd))
}

/// Returns the PID of a process in this PID namespace, if it is not in a further one
/// (proc_pid_fdinfo(5)).
fn numbers(pidfd: &OwnedFd) -> Result<Pid, String> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd()));
    let text = text.map_err(|error| format!("cannot read the status of the process: {error}"))?;
    let of = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key))
            .map(|line| line.split_whitespace())
    };
    let pid = of("Pid:").and_then(|mut numbers| {
        Pid::from_raw(numbers.next()?.parse().ok().filter(|pid| *pid > 0)?)
    });
    let pid = pid.ok_or("the process has ended, or is in a PID namespace around this one")?;
    match of("NSpid:").map(Iterator::count) {
        Some(1) => Ok(pid),
        _ => Err("it is in a PID namespace of its own, like the processes of a sandbox".to_owned()),
    }
}

/// Returns the parent of a process, which the first process of a PID namespace does not have. The
/// outer `Option` is `None` if the process cannot be looked at.
fn parent_of(pid: Pid) -> Option<Option<Pid>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, can contain anything (proc_pid_stat(5)).
    Some(Pid::from_raw(
        stat.rsplit_once(") ")?
            .1
            .split_ascii_whitespace()
            .nth(1)?
            .parse()
            .ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::outside;

    #[test]
    fn this_process_is_outside_unless_init_is_above_it() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(outside(one.as_fd(), 0), Ok(own));
        for init in [
            own,
            i32::try_from(std::os::unix::process::parent_id()).unwrap(),
        ] {
            assert!(
                outside(one.as_fd(), init)
                    .unwrap_err()
                    .contains("this sandbox")
            );
        }
    }
}
