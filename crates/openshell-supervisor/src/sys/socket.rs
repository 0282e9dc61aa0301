//! Socket options that rustix does not offer (socket(7), ip(7), tcp(7)).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;

/// `TCP_SAVE_SYN` and `TCP_SAVED_SYN` (linux/tcp.h).
const TCP_SAVE_SYN: libc::c_int = 27;
const TCP_SAVED_SYN: libc::c_int = 28;

/// Sets the mark of a socket's packets, which firewalls can match. Needs CAP_NET_ADMIN over the
/// socket's network namespace.
pub(crate) fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MARK, &mark.to_ne_bytes())
}

/// Sets the options in the header of a socket's IPv4 packets (RFC 791); an empty slice removes
/// them.
pub(crate) fn set_ip_options(socket: BorrowedFd<'_>, options: &[u8]) -> io::Result<()> {
    set(socket, libc::IPPROTO_IP, libc::IP_OPTIONS, options)
}

/// Binds a socket to the interface with `index`.
#[cfg(test)]
pub(crate) fn bind_to_interface(socket: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    set(
        socket,
        libc::SOL_SOCKET,
        libc::SO_BINDTOIFINDEX,
        &index.to_ne_bytes(),
    )
}

/// Returns the mark of a socket's packets.
#[cfg(test)]
pub(crate) fn mark(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut mark = [0; 4];
    get(socket, libc::SOL_SOCKET, libc::SO_MARK, &mut mark)?;
    Ok(u32::from_ne_bytes(mark))
}

/// Returns the length, in bytes, of the options in the header of a socket's IPv4 packets.
#[cfg(test)]
pub(crate) fn ip_options(socket: BorrowedFd<'_>) -> io::Result<usize> {
    get(socket, libc::IPPROTO_IP, libc::IP_OPTIONS, &mut [0; 40])
}

/// Makes a listener keep the headers of the first packet of each connection.
pub(crate) fn save_first_packets(listener: BorrowedFd<'_>) -> io::Result<()> {
    set(
        listener,
        libc::IPPROTO_TCP,
        TCP_SAVE_SYN,
        &1_u32.to_ne_bytes(),
    )
}

/// Reads the headers of the first packet of an accepted connection and frees them, so this works
/// only once. Returns their length, which is 0 if there are none.
pub(crate) fn first_packet(accepted: BorrowedFd<'_>, headers: &mut [u8]) -> io::Result<usize> {
    get(accepted, libc::IPPROTO_TCP, TCP_SAVED_SYN, headers)
}

/// Returns the number of the network namespace that a socket belongs to (Linux 5.14).
pub(crate) fn namespace(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = [0; 8];
    get(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// Returns the index of the interface that a socket is bound to; 0 if it is not bound to one.
pub(crate) fn interface(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut index = [0; 4];
    get(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &mut index)?;
    Ok(u32::from_ne_bytes(index))
}

/// Returns true if a TCP socket has no connection, is not making one, and does not listen.
pub(crate) fn is_unconnected(socket: BorrowedFd<'_>) -> io::Result<bool> {
    const CLOSE: u8 = 7;
    Ok(state(socket)? == CLOSE)
}

/// Returns true if a TCP socket is making a connection, and its peer has not answered.
pub(crate) fn is_connecting(socket: BorrowedFd<'_>) -> io::Result<bool> {
    const SYN_SENT: u8 = 2;
    Ok(state(socket)? == SYN_SENT)
}

/// Returns the state of a TCP socket (linux/tcp_states.h), the first field of `struct tcp_info`.
fn state(socket: BorrowedFd<'_>) -> io::Result<u8> {
    let mut state = [0];
    get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state)?;
    Ok(state[0])
}

/// `SO_PEERPIDFD` (asm-generic/socket.h).
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns a pidfd of the process that connected a Unix socket (Linux 6.5).
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut number = [0; size_of::<RawFd>()];
    let length = get(socket, libc::SOL_SOCKET, SO_PEERPIDFD, &mut number);
    match length.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? {
        length if length == number.len() => {
            // SAFETY: the kernel has opened this descriptor for the caller alone, and marked it
            // close-on-exec.
            Ok(unsafe { OwnedFd::from_raw_fd(RawFd::from_ne_bytes(number)) })
        }
        _ => Err(Errno::IO),
    }
}

/// Sets an option whose value does not hold a pointer.
fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel reads `length` bytes at `value`.
    match unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            length,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads an option whose value does not hold a pointer. Returns the length of the value.
fn get(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length =
        libc::socklen_t::try_from(value.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the kernel writes at most `length` bytes at `value`, and how many these are.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0 {
        Ok(length as usize)
    } else {
        Err(io::Error::last_os_error())
    }
}
