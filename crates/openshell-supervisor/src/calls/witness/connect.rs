//! Follows one connect(2) from its notification to its answer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use super::{Callers, DOOR_MARK, Refused, Shared, ipv4, nonce};
use crate::sys::notify::{self, Answer, Notification};
use crate::sys::{self, socket};

/// `PIDFD_THREAD` (linux/pidfd.h), which needs Linux 6.9.
const PIDFD_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);

/// The number of attempts if the supervisor has no free descriptor, and the pause between them.
const EXHAUSTED_ATTEMPTS: usize = 40;
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(5);

/// The address of a connect, as far as the witness reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    Internet(SocketAddr),
    /// AF_UNSPEC, which disconnects the socket.
    None,
    /// An address that no internet socket accepts.
    Other,
}

/// Where a connect leads.
enum Course<C: Callers> {
    /// To a listener of the supervisor, made by this caller.
    ToDoor(SocketAddr, C::Caller),
    /// To the name server, on a datagram socket.
    ToNameServer(SocketAddr, C::Note),
    /// Out of the sandbox past the proxy, where the egress firewall refuses it.
    Elsewhere(C::Note),
    /// To another socket of the sandbox, to no socket, or out of the sandbox without a note.
    Unnoted,
}

impl<C: Callers> Shared<C> {
    /// Decides on a connect. Unless it leads to a door, it goes on by itself, and the kernel
    /// reports its errors.
    pub(super) fn decide(&self, call: &Notification) -> Answer {
        let mut followed = self.follow(call);
        // Connections end and free descriptors, and other threads receive calls meanwhile.
        for _ in 0..EXHAUSTED_ATTEMPTS {
            if !followed.as_ref().is_err_and(is_exhaustion)
                || !notify::is_waiting(self.listener.as_fd(), call.id)
            {
                break;
            }
            std::thread::sleep(EXHAUSTED_PAUSE);
            followed = self.follow(call);
        }
        match followed {
            Ok(answer) => answer,
            // The caller was killed.
            Err(_) if !notify::is_waiting(self.listener.as_fd(), call.id) => {
                Answer::Error(libc::ESRCH)
            }
            // A call whose caller cannot be looked at goes on by itself, but no door is open to it.
            // Such a caller is a program that nobody may read or, if descriptors are exhausted, any
            // program.
            Err(error) => {
                if error.kind() != io::ErrorKind::PermissionDenied {
                    self.callers.refused(None, Refused::Unreadable(error));
                }
                Answer::Continue
            }
        }
    }

    /// Refuses a connect: with EPERM if the socket is foreign, and otherwise like a server that has
    /// no room, with ECONNREFUSED.
    fn refuse(&self, caller: Option<C::Caller>, why: Refused) -> Answer {
        let code = match why {
            Refused::Foreign => libc::EPERM,
            Refused::Pending | Refused::Unreadable(_) => libc::ECONNREFUSED,
        };
        self.callers.refused(caller, why);
        Answer::Error(code)
    }

    fn follow(&self, call: &Notification) -> io::Result<Answer> {
        let caller = pidfd(call.thread)?;
        // The kernel uses the lower half only.
        let descriptor = call.arguments[0] as i32;
        let Some(socket) = socket_of(&caller, descriptor)? else {
            return Ok(Answer::Continue);
        };
        let domain = match sockopt::socket_domain(&socket) {
            Ok(domain @ (AddressFamily::INET | AddressFamily::INET6)) => domain,
            Ok(_) | Err(_) => return Ok(Answer::Continue),
        };
        let followed = self.follow_socket(call, &caller, &socket, domain);
        release(socket);
        followed
    }

    fn follow_socket(
        &self,
        call: &Notification,
        caller: &OwnedFd,
        socket: &OwnedFd,
        domain: AddressFamily,
    ) -> io::Result<Answer> {
        let [_, address, length, ..] = call.arguments;
        if socket::namespace(socket.as_fd())? != self.namespace {
            return Ok(self.refuse(None, Refused::Foreign));
        }
        let destination = match Destination::read(call.thread, address, length as i32) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                return Ok(Answer::Error(libc::EFAULT));
            }
            destination => destination?,
        };
        let protocol = sockopt::socket_protocol(socket)?;
        let is_tcp = protocol == Some(rustix::net::ipproto::TCP);
        // A further connect of a connected socket changes nothing about its connection.
        if is_tcp && destination != Destination::None && !socket::is_unconnected(socket.as_fd())? {
            return Ok(Answer::Continue);
        }
        let course = self.course(destination, protocol, domain, caller)?;
        // If the caller still waits, everything that was read so far is true of it.
        if !notify::is_waiting(self.listener.as_fd(), call.id) {
            return Err(Errno::SRCH.into());
        }
        // Every connect gets a new mark, because the mark of an earlier one says nothing about this
        // one.
        let mark = match course {
            Course::ToDoor(to, caller) => return self.connect(socket, to, caller),
            Course::ToNameServer(to, note) => return self.connect_to_name_server(socket, to, note),
            Course::Elsewhere(note) => self.notes.lock().add(note),
            Course::Unnoted => 0,
        };
        socket::set_mark(socket.as_fd(), mark)?;
        Ok(Answer::Continue)
    }

    /// Returns what a connect of a socket of `protocol` and `domain` to `destination` is to become.
    fn course(
        &self,
        destination: Destination,
        protocol: Option<rustix::net::Protocol>,
        domain: AddressFamily,
        caller: &OwnedFd,
    ) -> io::Result<Course<C>> {
        let is_tcp = protocol == Some(rustix::net::ipproto::TCP);
        let course = match destination {
            // An address of the other family is left to the kernel, which refuses it.
            Destination::Internet(to)
                if is_tcp
                    && to.is_ipv4() == (domain == AddressFamily::INET)
                    && self.door(to).is_some() =>
            {
                Course::ToDoor(to, self.callers.describe(inner_thread(caller)?))
            }
            Destination::Internet(to)
                if protocol == Some(rustix::net::ipproto::UDP)
                    && ipv4(to) == Some(self.name_server)
                    && to.is_ipv4() == (domain == AddressFamily::INET)
                    && self.notes.lock().has_room() =>
            {
                Course::ToNameServer(to, self.callers.note(inner_thread(caller)?))
            }
            Destination::Internet(to)
                if !is_local(to.ip(), self.own) && self.notes.lock().has_room() =>
            {
                Course::Elsewhere(self.callers.note(inner_thread(caller)?))
            }
            Destination::Internet(to) => {
                if is_tcp && is_local(to.ip(), self.own) {
                    self.callers.reaches(to.port());
                }
                Course::Unnoted
            }
            Destination::None | Destination::Other => Course::Unnoted,
        };
        Ok(course)
    }

    /// Starts to connect `socket` to the door at `to` for `caller`.
    fn connect(&self, socket: &OwnedFd, to: SocketAddr, caller: C::Caller) -> io::Result<Answer> {
        let is_blocking = !rustix::fs::fcntl_getfl(socket)?.contains(OFlags::NONBLOCK);
        // A first packet that leaves by another interface would never arrive.
        let interface = socket::interface(socket.as_fd())?;
        if interface != 0 && interface != self.interface {
            return Ok(Answer::Error(libc::ENETUNREACH));
        }
        let added = self.pending.lock().add(caller);
        let nonce = match added {
            Ok(nonce) => nonce,
            Err(caller) => return Ok(self.refuse(Some(caller), Refused::Pending)),
        };
        let begun = socket::set_mark(socket.as_fd(), DOOR_MARK)
            .and_then(|()| nonce::put(socket.as_fd(), nonce))
            .and_then(|()| Ok(begin(socket, to)?));
        let is_under_way = match &begun {
            Err(error) => error.raw_os_error() == Some(libc::EINPROGRESS),
            Ok(()) => true,
        };
        if !is_under_way {
            self.pending.lock().take(nonce);
            socket::set_mark(socket.as_fd(), 0)?;
        }
        // If the listener has not taken the first packet yet, the packet is sent again and needs
        // its nonce.
        if !is_under_way || !socket::is_connecting(socket.as_fd())? {
            nonce::clear(socket.as_fd())?;
        }
        Ok(match begun {
            Ok(()) => Answer::Success,
            // The caller's own call then waits in the kernel for the connection, or reports why
            // there is none.
            Err(_) if is_under_way && is_blocking => Answer::Continue,
            Err(error) => Answer::Error(error.raw_os_error().unwrap_or(libc::EIO)),
        })
    }

    /// Connects `socket`, which is a datagram socket, so nothing has to be waited for. The port of
    /// the socket later tells who asks.
    fn connect_to_name_server(
        &self,
        socket: &OwnedFd,
        to: SocketAddr,
        note: C::Note,
    ) -> io::Result<Answer> {
        socket::set_mark(socket.as_fd(), 0)?;
        if let Err(errno) = rustix::net::connect(socket, &to) {
            return Ok(Answer::Error(errno.raw_os_error()));
        }
        if let Ok(own) = SocketAddr::try_from(rustix::net::getsockname(socket)?) {
            self.askers.lock().add(own.port(), note);
        }
        Ok(Answer::Success)
    }
}

/// Returns true if the supervisor had no free descriptor.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Starts to connect `socket` without waiting, whether or not its file blocks: a connect by
/// sendto(2) has its own flags. Without data it is an ordinary connect (tcp_fastopen_connect in
/// net/ipv4/tcp.c).
///
/// # Errors
/// Fails with EINPROGRESS if the connect has started.
fn begin(socket: &OwnedFd, to: SocketAddr) -> rustix::io::Result<()> {
    let fast_open = SendFlags::from_bits_retain(libc::MSG_FASTOPEN as u32);
    rustix::net::sendto(
        socket,
        &[],
        fast_open | SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        &to,
    )
    .map(drop)
}

/// Closes a socket of a caller without waiting. If this is the socket's last descriptor, close(2)
/// would wait until its data is sent, for as long as SO_LINGER says.
pub(super) fn release(socket: OwnedFd) {
    if sockopt::socket_linger(&socket).is_ok_and(|time| time.is_none_or(|time| time.is_zero())) {
        return;
    }
    // The kernel does not wait when the end of a thread closes a descriptor.
    let (copied, is_copied) = mpsc::channel::<()>();
    let (close, is_closed) = mpsc::channel::<()>();
    let started = std::thread::Builder::new()
        .name("close".to_owned())
        .spawn(move || {
            let result = sys::copy_descriptors();
            drop(copied);
            let _ = is_closed.recv();
            result
        });
    // Each channel ends when the thread with its other side ends.
    let _ = is_copied.recv();
    drop(socket);
    drop((close, started));
}

/// Opens a pidfd of a thread. If it is the first thread, the pidfd refers to its process, otherwise
/// to the thread.
///
/// # Errors
/// Fails with ESRCH if the thread is gone, and with EINVAL before Linux 6.9 if the first thread of
/// the process has ended.
pub(super) fn pidfd(thread: i32) -> io::Result<OwnedFd> {
    let number = Pid::from_raw(thread).ok_or(Errno::SRCH)?;
    // The number of a thread that is not the first one gives EINVAL or ENOENT.
    match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
        Ok(pidfd) => return Ok(pidfd),
        Err(Errno::INVAL | Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    match rustix::process::pidfd_open(number, PIDFD_THREAD) {
        Err(Errno::INVAL) => of_process(thread),
        opened => Ok(opened?),
    }
}

/// Opens a pidfd of the process of `thread`. All its threads have the same descriptors, because the
/// filter does not let them separate.
fn of_process(thread: i32) -> io::Result<OwnedFd> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status"))?;
    let process = status
        .lines()
        .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    let process = process.and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    Ok(rustix::process::pidfd_open(process, PidfdFlags::empty())?)
}

/// Takes the caller's `descriptor`; `None` if the caller has no such descriptor, which the kernel
/// then reports.
pub(super) fn socket_of(caller: &OwnedFd, descriptor: i32) -> io::Result<Option<OwnedFd>> {
    if descriptor < 0 {
        return Ok(None);
    }
    match rustix::process::pidfd_getfd(caller, descriptor, PidfdGetfdFlags::empty()) {
        Err(Errno::BADF) => Ok(None),
        taken => Ok(Some(taken?)),
    }
}

/// Returns the number that a thread, given by its pidfd, has in its own PID namespace, the
/// sandbox's.
pub(super) fn inner_thread(pidfd: &OwnedFd) -> io::Result<i32> {
    let name = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let file = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // One read returns the whole file.
    let mut bytes = [0; 1024];
    let filled = rustix::io::read(&file, &mut bytes)?;
    let text = std::str::from_utf8(bytes.get(..filled).unwrap_or_default()).unwrap_or_default();
    let numbers = text
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap_or_default();
    let inner = numbers
        .split_ascii_whitespace()
        .next_back()
        .and_then(|number| number.parse().ok());
    inner
        .filter(|number| *number > 0)
        .ok_or_else(|| Errno::SRCH.into())
}

impl Destination {
    /// Reads the address of a connect from the memory of `thread`, once.
    fn read(thread: i32, address: u64, length: i32) -> io::Result<Self> {
        // The kernel does not accept longer addresses.
        let mut bytes = [0; size_of::<libc::sockaddr_storage>()];
        let length = usize::try_from(length).unwrap_or(0);
        if length == 0 || length > bytes.len() {
            return Ok(Self::Other);
        }
        let filled = notify::read_memory(thread, address, &mut bytes[..length])?;
        if filled < length {
            return Err(Errno::FAULT.into());
        }
        Ok(Self::parse(bytes.get(..length).unwrap_or_default()))
    }

    /// Parses `struct sockaddr_in` or `sockaddr_in6`. The kernel does not require the last field of
    /// the latter (ip(7), ipv6(7)).
    fn parse(bytes: &[u8]) -> Self {
        let port = bytes
            .get(2..4)
            .and_then(|port| port.first_chunk())
            .map(|port| u16::from_be_bytes(*port));
        let family = bytes
            .first_chunk()
            .map(|family| i32::from(u16::from_ne_bytes(*family)));
        let word = |at: usize| {
            bytes
                .get(at..)?
                .first_chunk()
                .map(|word| u32::from_ne_bytes(*word))
        };
        match (family, port, bytes.len()) {
            (Some(libc::AF_UNSPEC), ..) => Self::None,
            (Some(libc::AF_INET), Some(port), 16..) => {
                let address = bytes
                    .get(4..)
                    .and_then(|rest| rest.first_chunk::<4>())
                    .copied()
                    .unwrap_or_default();
                Self::Internet(SocketAddrV4::new(Ipv4Addr::from(address), port).into())
            }
            (Some(libc::AF_INET6), Some(port), 24..) => {
                let address = bytes
                    .get(8..)
                    .and_then(|rest| rest.first_chunk::<16>())
                    .copied()
                    .unwrap_or_default();
                let flow = word(4).unwrap_or(0);
                let scope = word(24).unwrap_or(0);
                Self::Internet(SocketAddrV6::new(Ipv6Addr::from(address), port, flow, scope).into())
            }
            _ => Self::Other,
        }
    }
}

/// Returns true if packets to `address` stay inside the sandbox, whose own address is `own`. The
/// unspecified address also means the sandbox.
fn is_local(address: IpAddr, own: Ipv4Addr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified() || address == IpAddr::V4(own)
}

#[cfg(test)]
mod tests {
    use super::{Destination, is_local};

    #[test]
    fn addresses_are_read_as_the_kernel_reads_them() {
        let v4 = [
            &2_u16.to_ne_bytes()[..],
            &3128_u16.to_be_bytes(),
            &[10, 200, 0, 1],
            &[0; 8],
        ]
        .concat();
        assert_eq!(
            Destination::parse(&v4),
            Destination::Internet("10.200.0.1:3128".parse().unwrap())
        );
        assert_eq!(Destination::parse(&v4[..15]), Destination::Other);
        let mapped = [
            &10_u16.to_ne_bytes()[..],
            &80_u16.to_be_bytes(),
            &[0; 14],
            &[255; 2],
            &[10, 200, 0, 1],
        ]
        .concat();
        for length in [24, 28] {
            let mut bytes = mapped.clone();
            bytes.resize(length, 0);
            let Destination::Internet(to) = Destination::parse(&bytes) else {
                panic!("{length}")
            };
            assert_eq!(to.to_string(), "[::ffff:10.200.0.1]:80");
        }
        assert_eq!(Destination::parse(&mapped[..23]), Destination::Other);
        assert_eq!(Destination::parse(&[0, 0]), Destination::None);
        assert_eq!(Destination::parse(&[0]), Destination::Other);
        assert_eq!(Destination::parse(&1_u16.to_ne_bytes()), Destination::Other);
    }

    #[test]
    fn what_stays_inside_is_local_in_every_form() {
        for (address, is_inside) in [
            ("127.8.8.8", true),
            ("0.0.0.0", true),
            ("10.200.0.2", true),
            ("::1", true),
            ("::", true),
            ("::ffff:127.0.0.1", true),
            ("::ffff:10.200.0.2", true),
            ("10.200.0.1", false),
            ("198.51.100.7", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(
                is_local(address.parse().unwrap(), [10, 200, 0, 2].into()),
                is_inside,
                "{address}"
            );
        }
    }
}
