use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;

use super::kind::{Facts, Kind, Socket, Treatment, classify, of};
use super::retained::{Output, Retained, Tap};
use super::{Purpose, inspect, relay::Direction};

fn open(path: &str, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn socket(family: AddressFamily, kind: SocketType) -> OwnedFd {
    rustix::net::socket(family, kind, None).unwrap()
}

/// Returns a connection to `listener` whose peer sent `bytes` and then reset it.
fn reset(listener: &TcpListener, bytes: &[u8]) -> TcpStream {
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let own = ours.local_addr().unwrap();
    let mut peer = std::iter::repeat_with(|| listener.accept().unwrap())
        .find(|(_, from)| *from == own)
        .unwrap()
        .0;
    std::io::Write::write_all(&mut peer, bytes).unwrap();
    rustix::net::sockopt::set_socket_linger(&peer, Some(std::time::Duration::ZERO)).unwrap();
    drop(peer);
    let mut state = [PollFd::new(&ours, PollFlags::empty())];
    assert_eq!(rustix::event::poll(&mut state, None), Ok(1), "it hangs up");
    ours
}

#[test]
fn a_connection_that_was_reset_before_is_an_ended_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = reset(&listener, b"before");
    let null = open("/dev/null", OFlags::RDWR);
    let streams = inspect([socket.as_fd(), socket.as_fd(), null.as_fd()])
        .unwrap()
        .open(Purpose::default())
        .unwrap();
    let [input, output, _] = streams.as_fds().unwrap();
    let mut text = [0; 16];
    assert_eq!(rustix::io::read(input, &mut text).unwrap(), 6);
    assert_eq!(rustix::io::read(input, &mut text).unwrap(), 0, "its end");
    // Some writes may succeed before the relay sees the end. SIGPIPE is ignored here.
    let written = std::iter::repeat_with(|| rustix::io::write(output, b"x")).find_map(Result::err);
    assert!(
        matches!(
            written,
            Some(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET)
        ),
        "{written:?}"
    );
    assert!(streams.finish(std::time::Duration::from_secs(60)));
}

#[test]
fn real_descriptors_of_each_kind_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(udp.local_addr().unwrap()).unwrap();
    let packets = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::empty(),
        None,
    )
    .unwrap();
    let (unix, peer) = UnixStream::pair().unwrap();
    drop(peer);
    let icmp = rustix::net::socket(
        AddressFamily::INET,
        SocketType::RAW,
        Some(rustix::net::ipproto::ICMP),
    )
    .unwrap();
    let itself = rustix::process::getpid();
    let kinds: [(OwnedFd, Kind); 29] = [
        (rustix::pipe::pipe().unwrap().0, Kind::Pipe),
        (open("/etc/passwd", OFlags::RDONLY), Kind::RegularFile),
        (open("/proc/self/status", OFlags::RDONLY), Kind::KernelText),
        (open("/proc/self/mem", OFlags::RDWR), Kind::KernelControl),
        (
            open("/proc/self/clear_refs", OFlags::WRONLY),
            Kind::KernelControl,
        ),
        (
            open("/proc/self/oom_score_adj", OFlags::RDWR),
            Kind::KernelControl,
        ),
        (open("/sys/kernel/notes", OFlags::RDONLY), Kind::KernelText),
        (tempfile::tempfile().unwrap().into(), Kind::RegularFile),
        (open("/dev/null", OFlags::RDWR), Kind::PlainDevice),
        (open("/dev/urandom", OFlags::RDONLY), Kind::PlainDevice),
        (unix.into(), Kind::ConnectedUnix),
        (packets.0, Kind::ConnectedUnix),
        (connected.into(), Kind::ConnectedStream),
        (reset(&listener, b"").into(), Kind::EndedStream),
        (
            rustix::fs::memfd_create("x", MemfdFlags::empty()).unwrap(),
            Kind::MemoryFile,
        ),
        (
            socket(AddressFamily::UNIX, SocketType::STREAM),
            Kind::UnconnectedUnix,
        ),
        (
            UnixDatagram::pair().unwrap().0.into(),
            Kind::UnconnectedUnix,
        ),
        (
            UnixListener::bind(folder.path().join("socket"))
                .unwrap()
                .into(),
            Kind::Listener,
        ),
        (listener.into(), Kind::Listener),
        (
            socket(AddressFamily::INET6, SocketType::STREAM),
            Kind::UnconnectedStream,
        ),
        (udp.into(), Kind::Datagram),
        (socket(AddressFamily::PACKET, SocketType::RAW), Kind::Packet),
        (
            socket(AddressFamily::NETLINK, SocketType::RAW),
            Kind::Netlink,
        ),
        (icmp, Kind::OtherSocket),
        (open("/", OFlags::RDONLY), Kind::Directory),
        (open("/etc/passwd", OFlags::PATH), Kind::PathOnly),
        (
            rustix::process::pidfd_open(itself, PidfdFlags::empty()).unwrap(),
            Kind::Process,
        ),
        (
            rustix::event::eventfd(0, EventfdFlags::empty()).unwrap(),
            Kind::Anonymous,
        ),
        (
            open("/proc/self/ns/net", OFlags::RDONLY),
            Kind::KernelObject,
        ),
    ];
    for (fd, expected) in &kinds {
        assert_eq!(of(fd.as_fd()).unwrap(), *expected);
    }
    // A container may lack both.
    if let Ok(master) = rustix::fs::open("/dev/ptmx", OFlags::RDWR | OFlags::NOCTTY, Mode::empty())
    {
        assert_eq!(of(master.as_fd()).unwrap(), Kind::TerminalMaster);
    }
    if let Ok(log) = rustix::fs::open(
        "/dev/kmsg",
        OFlags::RDONLY | OFlags::NONBLOCK,
        Mode::empty(),
    ) {
        assert_eq!(of(log.as_fd()).unwrap(), Kind::OtherDevice);
    }
}

#[test]
fn one_descriptor_that_may_not_be_passed_is_named_with_its_place() {
    let null = open("/dev/null", OFlags::RDWR);
    let folder = open("/", OFlags::RDONLY);
    let refused = inspect([null.as_fd(), folder.as_fd(), null.as_fd()])
        .unwrap_err()
        .to_string();
    assert!(
        refused.starts_with("standard output is a directory, and the command could"),
        "{refused}"
    );
    assert!(!refused.contains('\n'));
}

#[test]
fn a_memory_file_is_copied_as_it_was_opened() {
    let file = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC).unwrap();
    for (is_input, expected) in [(true, Direction::Inward), (false, Direction::Outward)] {
        assert_eq!(
            super::direction_of(file.as_fd(), is_input).unwrap(),
            expected
        );
    }
    let null = open("/dev/null", OFlags::RDWR);
    let streams = inspect([null.as_fd(), file.as_fd(), file.as_fd()])
        .unwrap()
        .open(Purpose::default())
        .unwrap();
    let [_, output, errors] = streams.as_fds().unwrap();
    rustix::io::write(output, b"one ").unwrap();
    rustix::io::write(errors, b"two").unwrap();
    assert!(streams.finish(std::time::Duration::from_secs(60)));
    let mut text = [0; 16];
    assert_eq!(rustix::io::pread(&file, &mut text, 0).unwrap(), 7);
    assert_eq!(&text[..7], b"one two", "in their order");
}

#[test]
fn a_file_of_the_kernels_is_copied_and_cannot_be_sought_in() {
    let null = open("/dev/null", OFlags::RDWR);
    let version = open("/proc/version", OFlags::RDONLY);
    let streams = inspect([version.as_fd(), null.as_fd(), null.as_fd()])
        .unwrap()
        .open(Purpose::default())
        .unwrap();
    let [input, ..] = streams.as_fds().unwrap();
    assert_eq!(
        rustix::fs::seek(input, rustix::fs::SeekFrom::Start(0)),
        Err(rustix::io::Errno::SPIPE)
    );
    let mut text = [0; 5];
    assert_eq!(rustix::io::read(input, &mut text).unwrap(), 5);
    assert_eq!(&text, b"Linux");
    assert!(streams.finish(std::time::Duration::from_secs(60)));
}

/// The magic number of procfs.
const PROC: u64 = 0x9fa0;

/// Returns the properties of a descriptor, derived from arbitrary bytes.
fn facts(bytes: &[u8]) -> Facts<'_> {
    let byte = |index: usize| u32::from(bytes.get(index).copied().unwrap_or_default());
    let families = [1, 2, 10, 16, 17, 38, 40, byte(8)];
    let socket = Socket {
        family: u16::try_from(families[byte(4) as usize % families.len()]).unwrap(),
        kind: byte(5) % 12,
        is_connected: byte(6) & 1 == 1,
        has_ended: byte(6) & 4 == 4,
        is_listening: byte(6) & 2 == 2,
    };
    Facts {
        flags: if byte(0) & 1 == 1 {
            OFlags::PATH
        } else {
            OFlags::RDWR
        },
        file_type: FileType::from_raw_mode(byte(1) << 12),
        device: (byte(2), byte(3)),
        is_nameless: byte(0) & 2 == 2,
        is_terminal: byte(0) & 4 == 4,
        file_system: if byte(0) & 8 == 8 {
            [0x5049_4446, PROC][byte(7) as usize % 2]
        } else {
            u64::from(byte(7))
        },
        name: bytes.get(9..).unwrap_or_default(),
        socket: (byte(0) & 16 == 16).then_some(socket),
    }
}

#[test]
fn fuzzed_descriptors_are_passed_only_where_they_carry_no_right() {
    let words: [&[u8]; 6] = [
        b"/memfd:",
        b" (deleted)",
        b"anon_inode:[pidfd]",
        b"/",
        b"\x0c",
        b"\x10",
    ];
    let samples: [&[u8]; 4] = [
        b"\x10\x0c\x00\x00\x00\x01\x01\x00\x00socket:[1]",
        b"\x02\x08\x00\x00\x00\x00\x00\x00\x00/memfd:x (deleted)",
        b"\x00\x02\x05\x02\x00\x00\x00\x00\x00/dev/ptmx",
        b"\x00\x00\x00\x00\x00\x00\x00\x00\x00anon_inode:[eventfd]",
    ];
    fuzz::fuzz("standard streams", &samples, &words, |input| {
        let facts = facts(input);
        if classify(&facts).treatment() != Treatment::Pass {
            return;
        }
        assert!(!facts.flags.contains(OFlags::PATH), "{facts:?}");
        match facts.file_type {
            FileType::Socket => {
                let socket = facts.socket.unwrap();
                assert!(
                    socket.family == 1 && socket.is_connected && !socket.is_listening,
                    "{facts:?}"
                );
                assert!(matches!(socket.kind, 1 | 5), "{facts:?}");
            }
            FileType::CharacterDevice => {
                assert!(facts.is_terminal || facts.device.0 == 1, "{facts:?}")
            }
            FileType::RegularFile => {
                assert!(
                    facts.name.starts_with(b"/") && facts.file_system != PROC,
                    "{facts:?}"
                );
            }
            FileType::Fifo => {}
            other => panic!("{other:?} passed: {facts:?}"),
        }
    });
}

#[test]
fn a_tapped_command_writes_on_where_nobody_takes_its_output() {
    for kind in ["pipe", "socket"] {
        let (taken, outer) = match kind {
            "pipe" => rustix::pipe::pipe().unwrap(),
            _ => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (listener.accept().unwrap().0.into(), ours.into())
            }
        };
        let null = open("/dev/null", OFlags::RDWR);
        let retained = Arc::new(Mutex::new(Retained::default()));
        let kept = Arc::clone(&retained);
        let tap: Tap = Arc::new(move |output, bytes| kept.lock().append(output, bytes));
        let streams = inspect([null.as_fd(), outer.as_fd(), null.as_fd()])
            .unwrap()
            .open(Purpose {
                tap: Some(&tap),
                ..Purpose::default()
            })
            .unwrap();
        drop((outer, taken));
        let [_, output, errors] = streams.as_fds().unwrap();
        for _ in 0..100 {
            assert_eq!(
                rustix::io::write(output, &[b'o'; 4096]).unwrap(),
                4096,
                "{kind}"
            );
        }
        assert_eq!(rustix::io::write(errors, b"e").unwrap(), 1);
        assert!(streams.finish(std::time::Duration::from_secs(60)));
        let retained = retained.lock();
        let pieces = std::iter::successors(retained.read(0), |piece| retained.read(piece.next));
        let count = |wanted| {
            pieces
                .clone()
                .filter(|piece| piece.output == wanted)
                .map(|piece| piece.bytes.len())
                .sum::<usize>()
        };
        assert_eq!(
            [Output::Standard, Output::Error].map(count),
            [409_600, 1],
            "{kind}"
        );
    }
}
