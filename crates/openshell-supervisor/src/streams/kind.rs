//! Kinds of descriptors, and which of them a command may have as a standard stream.
//!
//! A descriptor keeps the rights of the process that opened it: a socket stays in the network namespace where it was made, a
//! directory in the mount namespace, and a device takes every ioctl. Only kinds that carry no such right are passed in.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, OFlags};
use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType};

use crate::masked_paths::KERNEL_FILE_SYSTEMS;

/// Treatment of a standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// The command gets the descriptor itself.
    Pass,
    /// The command gets one end of a socket pair, and a thread copies between the other end and the descriptor.
    RelaySocket,
    /// The command gets one end of a pipe, and a thread copies between the other end and the descriptor.
    RelayFile,
    /// The start fails; the text says what the descriptor would let the command do.
    Refuse(&'static str),
}

/// Kinds of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A pipe or FIFO.
    Pipe,
    /// A file on a mounted file system.
    RegularFile,
    /// A terminal, its slave side where it is a pseudo-terminal.
    Terminal,
    /// /dev/null, zero, full, random, urandom.
    PlainDevice,
    /// An AF_UNIX socket of type stream or seqpacket that is connected, which can never be connected again.
    ConnectedUnix,
    /// A stream socket of another family (TCP, MPTCP, vsock) that is connected.
    ConnectedStream,
    /// The same after its connection has ended, by a reset for example.
    EndedStream,
    /// A file of memfd_create(2).
    MemoryFile,
    /// A file that the kernel makes up as it is read (proc, sysfs, cgroup and the like), opened for reading alone.
    KernelText,
    /// The same, opened for writing.
    KernelControl,
    /// An AF_UNIX socket that can still be connected or bound.
    UnconnectedUnix,
    /// A listening socket of any family.
    Listener,
    /// A stream socket of another family that is not connected.
    UnconnectedStream,
    /// A UDP socket, or another one for datagrams.
    Datagram,
    /// An AF_PACKET socket.
    Packet,
    /// An AF_NETLINK socket.
    Netlink,
    /// A socket of a type or family that is none of these.
    OtherSocket,
    /// A directory.
    Directory,
    /// A descriptor that was opened with O_PATH.
    PathOnly,
    /// A pidfd.
    Process,
    /// Another descriptor without a file system: eventfd, epoll, timerfd, io_uring, perf event, BPF.
    Anonymous,
    /// A file that stands for a kernel object: a namespace, a message queue, a DMA buffer, secret memory.
    KernelObject,
    /// A disk.
    BlockDevice,
    /// The master side of a pseudo-terminal.
    TerminalMaster,
    /// Any other character device.
    OtherDevice,
    /// A file type that this table does not know.
    Unknown,
}

impl Kind {
    /// Name of the kind in a message.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Pipe => "a pipe",
            Self::RegularFile => "a file",
            Self::Terminal => "a terminal",
            Self::PlainDevice => "a device without state",
            Self::ConnectedUnix => "a connected Unix socket",
            Self::ConnectedStream => "a connected stream socket",
            Self::EndedStream => "a stream socket whose connection has ended",
            Self::MemoryFile => "a memory file",
            Self::KernelText => "a file of the kernel's, opened for reading",
            Self::KernelControl => "a file of the kernel's (in /proc or /sys), opened for writing",
            Self::UnconnectedUnix => "a Unix socket that can still be connected",
            Self::Listener => "a listening socket",
            Self::UnconnectedStream => "a stream socket that is not connected",
            Self::Datagram => "a datagram socket",
            Self::Packet => "a packet socket",
            Self::Netlink => "a netlink socket",
            Self::OtherSocket => "a socket of an unusual family or type",
            Self::Directory => "a directory",
            Self::PathOnly => "a descriptor opened with O_PATH",
            Self::Process => "a pidfd",
            Self::Anonymous => "an anonymous kernel descriptor",
            Self::KernelObject => "a descriptor of a kernel object",
            Self::BlockDevice => "a block device",
            Self::TerminalMaster => "the master side of a pseudo-terminal",
            Self::OtherDevice => "a character device",
            Self::Unknown => "a descriptor of an unknown type",
        }
    }

    /// The table: each kind, and what becomes of it.
    pub(super) fn treatment(self) -> Treatment {
        use Treatment::{Pass, Refuse, RelayFile, RelaySocket};
        match self {
            Self::Pipe | Self::RegularFile | Self::Terminal | Self::PlainDevice | Self::ConnectedUnix => Pass,
            // An ended one could be connected anew. The relay reads what came before the end, and then passes the end on.
            Self::ConnectedStream | Self::EndedStream => RelaySocket,
            // Executing it would run a program that the file rules do not know.
            Self::MemoryFile => RelayFile,
            // Its offset chooses what is read (/proc/PID/mem), and it may take ioctls.
            Self::KernelText => RelayFile,
            Self::KernelControl => Refuse("the command could control a process or the kernel by it"),
            Self::UnconnectedUnix => Refuse("the command could connect it to any service of the host"),
            Self::Listener => Refuse("the command would accept connections on the host's network"),
            Self::UnconnectedStream | Self::Datagram | Self::Packet | Self::OtherSocket => {
                Refuse("the command could reach the host's network by it")
            }
            Self::Netlink => Refuse("the command could read the configuration of the host's network by it"),
            Self::Directory => Refuse("the command could reach files beneath and above it that no rule grants"),
            Self::PathOnly => Refuse("the command could open or reach what it names, whatever the rules grant"),
            Self::Process => Refuse("the command could act on a process outside of the sandbox"),
            Self::Anonymous | Self::KernelObject | Self::Unknown => {
                Refuse("the command could act on a kernel object of the host by it")
            }
            Self::BlockDevice | Self::TerminalMaster | Self::OtherDevice => {
                Refuse("the command could control the device, whatever the rules grant")
            }
        }
    }
}

/// Observed properties of a descriptor.
#[derive(Clone, Debug)]
pub(super) struct Facts<'f> {
    pub(super) flags: OFlags,
    pub(super) file_type: FileType,
    /// Major and minor number of a device.
    pub(super) device: (u32, u32),
    /// True if the file has no name any more.
    pub(super) is_nameless: bool,
    /// True if it answers TCGETS.
    pub(super) is_terminal: bool,
    /// Magic number of the file system (statfs(2)).
    pub(super) file_system: u64,
    /// The target of its link in /proc/self/fd.
    pub(super) name: &'f [u8],
    /// Socket options, for a socket.
    pub(super) socket: Option<Socket>,
}

/// Observed properties of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    pub(super) family: u16,
    pub(super) kind: u32,
    pub(super) is_connected: bool,
    /// True if nothing more will be received.
    pub(super) has_ended: bool,
    pub(super) is_listening: bool,
}

/// File systems of kernel objects: nsfs, mqueue, dmabuf, secretmem, anon_inode, bpf.
const KERNEL_OBJECTS: &[u64] = &[0x6e73_6673, 0x1980_0202, 0x444d_4142, 0x5345_434d, 0x0904_1934, 0xcafe_4a11];

/// Further file systems whose files are interfaces of the kernel: configfs, efivarfs, selinuxfs, smackfs, pstore,
/// binfmt_misc, resctrl, fusectl, nfsd, xenfs.
const INTERFACES: &[u64] = &[
    0x6265_6570,
    0xde5e_81e4,
    0xf97c_ff8c,
    0x4341_5d53,
    0x6165_676c,
    0x4249_4e4d,
    0x0765_5821,
    0x6573_5543,
    0x6e66_7364,
    0xabba_1974,
];

/// The file system of pidfds, where the kernel has one (Linux 6.9).
const PIDFS: u64 = 0x5049_4446;

/// Major numbers of the memory devices, and of /dev/tty, console and ptmx.
const MEMORY_DEVICES: u32 = 1;
const TERMINAL_DEVICES: u32 = 5;

/// Minor numbers of null, zero, full, random and urandom.
const PLAIN_MINORS: &[u32] = &[3, 5, 7, 8, 9];

/// The minor number of ptmx, which the master sides keep.
const MASTER_MINOR: u32 = 2;

/// The kind that `facts` describe.
pub(super) fn classify(facts: &Facts<'_>) -> Kind {
    if facts.flags.contains(OFlags::PATH) {
        return Kind::PathOnly;
    }
    match facts.file_type {
        FileType::Socket => facts.socket.map_or(Kind::OtherSocket, of_socket),
        FileType::Fifo => Kind::Pipe,
        FileType::Directory => Kind::Directory,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => match facts.device {
            (MEMORY_DEVICES, minor) if PLAIN_MINORS.contains(&minor) => Kind::PlainDevice,
            (TERMINAL_DEVICES, MASTER_MINOR) => Kind::TerminalMaster,
            _ if facts.is_terminal => Kind::Terminal,
            _ => Kind::OtherDevice,
        },
        FileType::RegularFile => of_file(facts),
        FileType::Symlink => Kind::PathOnly,
        // Anonymous inodes have no type.
        FileType::Unknown if is_pidfd(facts) => Kind::Process,
        FileType::Unknown if facts.name.starts_with(b"anon_inode:") => Kind::Anonymous,
        FileType::Unknown => Kind::Unknown,
    }
}

fn is_pidfd(facts: &Facts<'_>) -> bool {
    facts.file_system == PIDFS || matches!(facts.name, b"anon_inode:[pidfd]" | b"pidfd")
}

fn of_file(facts: &Facts<'_>) -> Kind {
    if is_pidfd(facts) {
        return Kind::Process;
    }
    if facts.name.starts_with(b"anon_inode:") {
        return Kind::Anonymous;
    }
    // Files on a mounted file system have a path.
    if KERNEL_OBJECTS.contains(&facts.file_system) || !facts.name.starts_with(b"/") {
        return Kind::KernelObject;
    }
    if [KERNEL_FILE_SYSTEMS, INTERFACES].iter().any(|list| list.contains(&facts.file_system)) {
        let is_readable_alone = facts.flags & OFlags::RWMODE == OFlags::RDONLY;
        return if is_readable_alone { Kind::KernelText } else { Kind::KernelControl };
    }
    let is_memory = facts.is_nameless && facts.name.starts_with(b"/memfd:") && facts.name.ends_with(b" (deleted)");
    if is_memory { Kind::MemoryFile } else { Kind::RegularFile }
}

fn of_socket(socket: Socket) -> Kind {
    let family = AddressFamily::from_raw(socket.family);
    let kind = SocketType::from_raw(socket.kind);
    let (is_stream, is_packets) = (kind == SocketType::STREAM, kind == SocketType::SEQPACKET);
    match family {
        AddressFamily::PACKET => Kind::Packet,
        AddressFamily::NETLINK => Kind::Netlink,
        _ if socket.is_listening => Kind::Listener,
        AddressFamily::UNIX if socket.is_connected && (is_stream || is_packets) => Kind::ConnectedUnix,
        AddressFamily::UNIX => Kind::UnconnectedUnix,
        _ if is_stream && socket.is_connected => Kind::ConnectedStream,
        // One that was never connected has no end of input.
        _ if is_stream && socket.has_ended => Kind::EndedStream,
        _ if is_stream => Kind::UnconnectedStream,
        _ if kind == SocketType::DGRAM => Kind::Datagram,
        _ => Kind::OtherSocket,
    }
}

/// Returns true if a socket has met the end of its input.
fn has_ended(socket: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let mut state = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    rustix::event::poll(&mut state, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(state.iter().any(|socket| socket.revents().contains(PollFlags::RDHUP)))
}

/// Observes `stream` and classifies it.
///
/// # Errors
/// The descriptor is not open, or /proc is not there.
pub(super) fn of(stream: BorrowedFd<'_>) -> io::Result<Kind> {
    let data = rustix::fs::fstat(stream)?;
    let name = std::fs::read_link(format!("/proc/self/fd/{}", stream.as_raw_fd()))?;
    let file_type = FileType::from_raw_mode(data.st_mode);
    let socket = match file_type {
        FileType::Socket => Some(Socket {
            family: socket_domain(stream)?.as_raw(),
            kind: socket_type(stream)?.as_raw(),
            is_connected: rustix::net::getpeername(stream).is_ok(),
            has_ended: has_ended(stream)?,
            // Families that cannot listen may not know the option.
            is_listening: socket_acceptconn(stream).unwrap_or(false),
        }),
        _ => None,
    };
    Ok(classify(&Facts {
        flags: rustix::fs::fcntl_getfl(stream)?,
        file_type,
        device: (rustix::fs::major(data.st_rdev), rustix::fs::minor(data.st_rdev)),
        is_nameless: data.st_nlink == 0,
        is_terminal: rustix::termios::isatty(stream),
        file_system: rustix::fs::fstatfs(stream)?.f_type.cast_unsigned(),
        name: name.as_os_str().as_bytes(),
        socket,
    }))
}
