//! Tests the witness with connects of a thread that has the filter, in namespaces like those of a
//! sandbox.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{Callers, Network, Refused, Witness};
use crate::calls::waiting_calls::{Handlers, THREADS, WaitingCalls};
use crate::network::netns::{INTERFACE, LANDING, Linked, NAME_SERVER, WORKLOAD, run_in};
use crate::seccomp::notify::{self, FileCalls, Notified};
use crate::sys;

/// A description of callers by their threads, which also remembers refusals and servers.
struct Threads(mpsc::Sender<String>, mpsc::Sender<String>);

impl Callers for Threads {
    type Caller = i32;
    type Note = i32;

    fn describe(&self, thread: i32) -> i32 {
        thread
    }

    fn note(&self, thread: i32) -> i32 {
        thread
    }

    fn listens(&self, port: u16, thread: i32) {
        let _ = self.1.send(format!("{thread} listens at {port}"));
    }

    fn reaches(&self, port: u16) {
        let _ = self.1.send(format!("{port} is reached"));
    }

    fn refused(&self, _: Option<i32>, why: Refused) {
        // A test that does not look has dropped the receiver.
        let _ = self.0.send(why.to_string());
    }

    fn failed(&self, error: io::Error) {
        let _ = self.0.send(error.to_string());
    }
}

/// A network with a witness, and the connects that the witness refused.
struct Seen {
    linked: Linked,
    witness: Witness<Threads>,
    refused: Mutex<mpsc::Receiver<String>>,
    servers: Mutex<mpsc::Receiver<String>>,
    door: SocketAddr,
}

/// Runs `work` on a thread inside a new network. A witness answers the thread's connects.
fn seen<T: Send>(work: impl FnOnce(&Seen) -> T + Send) -> T {
    seen_at(
        Linked::create(3128).unwrap().finish().unwrap().unwrap(),
        work,
    )
}

fn seen_at<T: Send>(linked: Linked, work: impl FnOnce(&Seen) -> T + Send) -> T {
    let (send, installed) = mpsc::channel();
    let (ready, go) = mpsc::channel();
    let workload = linked.workload.try_clone().unwrap();
    let SocketAddr::V4(door) = linked.proxy.local_addr().unwrap() else {
        unreachable!("an IPv4 address")
    };
    std::thread::scope(|scope| {
        let working = scope.spawn(move || {
            run_in(workload.as_fd(), move || {
                rustix::thread::set_no_new_privs(true)?;
                send.send(notify::install(Notified {
                    connects: true,
                    files: FileCalls::None,
                })?)
                .unwrap();
                let seen: Seen = go.recv().unwrap();
                Ok(work(&seen))
            })
            .unwrap()
        });
        let calls = WaitingCalls::new(installed.recv().unwrap());
        let (report, refused) = mpsc::channel();
        let (report_server, servers) = mpsc::channel();
        let doors = Arc::new(move |to| to == door);
        let name_server = NAME_SERVER;
        let socket = linked.socket.as_fd();
        let network = Network {
            doors,
            name_server,
            own: WORKLOAD,
            interface: INTERFACE,
            socket,
        };
        let witness = Witness::new(&calls, network, Threads(report, report_server)).unwrap();
        calls
            .serve(Handlers {
                connects: Some(witness.handler()),
                files: None,
            })
            .unwrap();
        ready
            .send(Seen {
                linked,
                witness,
                refused: refused.into(),
                servers: servers.into(),
                door: door.into(),
            })
            .unwrap();
        working.join().unwrap()
    })
}

fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn socket(family: AddressFamily, kind: SocketType, flags: SocketFlags) -> OwnedFd {
    rustix::net::socket_with(family, kind, flags | SocketFlags::CLOEXEC, None).unwrap()
}

fn tcp(flags: SocketFlags) -> OwnedFd {
    socket(AddressFamily::INET, SocketType::STREAM, flags)
}

/// Accepts the next connection within ten seconds.
fn accept(listener: &TcpListener) -> TcpStream {
    let mut waiting = [rustix::event::PollFd::new(
        listener,
        rustix::event::PollFlags::IN,
    )];
    let limit = rustix::event::Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    assert_eq!(
        rustix::event::poll(&mut waiting, Some(&limit)).unwrap(),
        1,
        "nobody has connected"
    );
    listener.accept().unwrap().0
}

fn mark_of(socket: &OwnedFd) -> u32 {
    sys::socket::mark(socket.as_fd()).unwrap()
}

#[test]
fn a_server_inside_is_noted_with_its_port_and_so_is_who_reaches_it() {
    seen(|seen| {
        let next = || {
            seen.servers
                .lock()
                .recv_timeout(Duration::from_secs(10))
                .unwrap()
        };
        for (family, address) in [
            (AddressFamily::INET, "127.0.0.1:0"),
            (AddressFamily::INET6, "[::1]:0"),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            let server = socket(family, SocketType::STREAM, SocketFlags::empty());
            rustix::net::bind(&server, &address).unwrap();
            rustix::net::listen(&server, 1).unwrap();
            let at = SocketAddr::try_from(rustix::net::getsockname(&server).unwrap()).unwrap();
            assert_eq!(next(), format!("{} listens at {}", own_thread(), at.port()));
            rustix::net::connect(
                socket(family, SocketType::STREAM, SocketFlags::empty()),
                &at,
            )
            .unwrap();
            assert_eq!(next(), format!("{} is reached", at.port()));
        }
        // None of these is reported: a socket without a port, a datagram socket, a Unix socket, and
        // a descriptor that is not a socket.
        assert_eq!(rustix::net::listen(tcp(SocketFlags::empty()), 1), Ok(()));
        let datagrams = socket(AddressFamily::INET, SocketType::DGRAM, SocketFlags::empty());
        assert_eq!(rustix::net::listen(&datagrams, 1), Err(Errno::OPNOTSUPP));
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(rustix::net::listen(&one, 1), Err(Errno::INVAL));
        assert_eq!(
            rustix::net::listen(std::fs::File::open("/").unwrap(), 1),
            Err(Errno::NOTSOCK)
        );
        assert!(seen.servers.lock().try_recv().is_err());
    });
}

#[test]
fn a_connection_to_the_door_is_its_callers_however_it_is_made() {
    seen(|seen| {
        let SocketAddr::V4(door) = seen.door else {
            unreachable!("an IPv4 address")
        };
        let mapped = SocketAddr::new(door.ip().to_ipv6_mapped().into(), door.port());
        let blocking = SocketFlags::empty();
        for (family, flags, to) in [
            (AddressFamily::INET, blocking, seen.door),
            (AddressFamily::INET, SocketFlags::NONBLOCK, seen.door),
            (AddressFamily::INET6, blocking, mapped),
            (AddressFamily::INET6, SocketFlags::NONBLOCK, mapped),
        ] {
            let client = socket(family, SocketType::STREAM, flags);
            match (rustix::net::connect(&client, &to), flags.is_empty()) {
                (Ok(()), true) | (Err(Errno::INPROGRESS), false) => {}
                (result, _) => panic!("{to} {flags:?}: {result:?}"),
            }
            let mut accepted = accept(&seen.linked.proxy);
            assert_eq!(
                seen.witness.caller(accepted.as_fd()),
                Some(own_thread()),
                "{to} {flags:?}"
            );
            assert_eq!(seen.witness.caller(accepted.as_fd()), None, "once");
            accepted.write_all(b"hello").unwrap();
            rustix::io::ioctl_fionbio(&client, false).unwrap();
            let mut client = TcpStream::from(client);
            let mut heard = [0; 5];
            client.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, b"hello");
            assert_eq!(
                sys::socket::ip_options(accepted.as_fd()).unwrap(),
                0,
                "what the server sends has no option"
            );
            // A further connect of a connection is refused by the kernel, and changes nothing.
            if !flags.is_empty() {
                rustix::net::connect(&client, &to).unwrap();
            }
            assert_eq!(rustix::net::connect(&client, &to), Err(Errno::ISCONN));
            client.write_all(b"still").unwrap();
            accepted.read_exact(&mut heard).unwrap();
        }
        // If the listener takes the first packet late, on a busy machine, the socket keeps the
        // option in case the packet is sent again.
        let loses_it = || {
            let client = tcp(blocking);
            rustix::net::connect(&client, &seen.door).unwrap();
            let accepted = accept(&seen.linked.proxy);
            assert!(seen.witness.caller(accepted.as_fd()).is_some());
            sys::socket::ip_options(client.as_fd()).unwrap() == 0
        };
        assert!(
            (0..1_000).any(|_| loses_it()),
            "what a client sends later has no option"
        );
        assert!(seen.refused.lock().try_recv().is_err());
    });
}

#[test]
fn a_connect_elsewhere_goes_on_by_itself_and_is_noted() {
    seen(|seen| {
        let elsewhere: SocketAddr = "198.51.100.7:443".parse().unwrap();
        let client = tcp(SocketFlags::empty());
        assert_eq!(
            rustix::net::connect(&client, &elsewhere),
            Err(Errno::CONNREFUSED)
        );
        assert_eq!(seen.witness.noted(mark_of(&client)), Some(own_thread()));
        let datagrams = socket(AddressFamily::INET, SocketType::DGRAM, SocketFlags::empty());
        rustix::net::connect(&datagrams, &elsewhere).unwrap();
        assert_eq!(seen.witness.noted(mark_of(&datagrams)), Some(own_thread()));
        // A datagram socket may connect to the address of the door, which accepts no datagrams.
        rustix::net::connect(&datagrams, &seen.door).unwrap();
        assert_eq!(
            rustix::net::send(&datagrams, b"x", rustix::net::SendFlags::empty()),
            Err(Errno::PERM)
        );
        // This is the same port of another address of the landing.
        let beside = SocketAddrV4::new(LANDING, 4000);
        assert_eq!(
            rustix::net::connect(&client, &beside),
            Err(Errno::CONNREFUSED)
        );
    });
}

#[test]
fn what_stays_inside_goes_on_by_itself_without_a_mark() {
    seen(|_| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let server = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            assert_eq!(mark_of(&client.into()), 0);
        }
        let name = std::env::temp_dir().join(format!("witness-{}", own_thread()));
        let missing = "/nowhere/socket";
        let server = std::os::unix::net::UnixListener::bind(&name).unwrap();
        std::os::unix::net::UnixStream::connect(&name).unwrap();
        drop(server);
        std::fs::remove_file(name).unwrap();
        let refused = std::os::unix::net::UnixStream::connect(missing).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
    });
}

#[test]
fn the_kernel_itself_answers_what_is_no_connect() {
    seen(|seen| {
        let connect = |fd: i32, address: usize, length: i64| {
            sys::call(
                libc::SYS_connect,
                [fd.into(), address as i64, length, 0, 0, 0],
            )
        };
        let client = tcp(SocketFlags::empty());
        let file = std::fs::File::open("/dev/null").unwrap();
        let bytes = [2_u8; 128];
        let own = client.as_raw_fd();
        let good = bytes.as_ptr() as usize;
        assert_eq!(connect(-1, good, 16), Err(libc::EBADF));
        assert_eq!(connect(9_999, good, 16), Err(libc::EBADF));
        assert_eq!(connect(file.as_raw_fd(), good, 16), Err(libc::ENOTSOCK));
        assert_eq!(connect(own, 0, 16), Err(libc::EFAULT));
        assert_eq!(connect(own, usize::MAX - 4, 16), Err(libc::EFAULT));
        assert_eq!(connect(own, good, -1), Err(libc::EINVAL));
        assert_eq!(connect(own, good, 1 << 20), Err(libc::EINVAL));
        assert_eq!(connect(own, good, 0), Err(libc::EINVAL));
        assert_eq!(connect(own, good, 16), Err(libc::EAFNOSUPPORT));
        // The kernel uses the lower half of a descriptor only.
        let wide = (1_i64 << 32) | i64::from(own);
        let short = sys::call(libc::SYS_connect, [wide, good as i64, 1, 0, 0, 0]);
        assert_eq!(short, Err(libc::EINVAL));
        assert!(seen.refused.lock().try_recv().is_err());
    });
}

#[test]
fn a_socket_of_another_network_connects_nowhere() {
    let elsewhere = tcp(SocketFlags::empty());
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    seen(|seen| {
        let refused = rustix::net::connect(&elsewhere, &server.local_addr().unwrap());
        assert_eq!(refused, Err(Errno::PERM));
        assert!(
            seen.refused
                .lock()
                .recv()
                .unwrap()
                .contains("does not belong to the sandbox's network")
        );
    });
    // The same socket connects where no witness looks.
    rustix::net::connect(&elsewhere, &server.local_addr().unwrap()).unwrap();
}

#[test]
fn a_connection_that_nobody_witnessed_has_no_caller() {
    let linked = Linked::create(3128).unwrap().finish().unwrap().unwrap();
    let forged = run_in(linked.workload.as_fd(), || {
        let client = tcp(SocketFlags::empty());
        // With only the mark, like a socket whose connection has ended, nothing leaves.
        sys::socket::set_mark(client.as_fd(), super::DOOR_MARK)?;
        assert_eq!(
            rustix::net::connect(&client, &linked.proxy.local_addr()?),
            Err(Errno::CONNREFUSED)
        );
        // This has a nonce too, but not from the witness.
        super::nonce::put(client.as_fd(), 1)?;
        rustix::net::connect(&client, &linked.proxy.local_addr()?)?;
        Ok(client)
    });
    let _forged = forged.unwrap();
    seen_at(linked, |seen| {
        let accepted = accept(&seen.linked.proxy);
        assert_eq!(seen.witness.caller(accepted.as_fd()), None);
    });
}

#[test]
fn what_ends_a_connection_ends_its_mark() {
    seen(|seen| {
        let client = tcp(SocketFlags::empty());
        rustix::net::connect(&client, &seen.door).unwrap();
        assert_eq!(mark_of(&client), super::DOOR_MARK);
        rustix::net::connect_unspec(&client).unwrap();
        assert_eq!(mark_of(&client), 0);
        drop(accept(&seen.linked.proxy));
        // A connect that fails does not leave the mark of doors either.
        let nobody: SocketAddr = SocketAddrV4::new(LANDING, 1).into();
        assert!(rustix::net::connect(&client, &nobody).is_err());
        assert_eq!(mark_of(&client) & super::DOOR_MARK, 0);
        // The next connect is witnessed anew.
        let client = tcp(SocketFlags::empty());
        rustix::net::connect(&client, &seen.door).unwrap();
        let accepted = accept(&seen.linked.proxy);
        assert_eq!(seen.witness.caller(accepted.as_fd()), Some(own_thread()));
    });
}

#[test]
fn connects_that_wait_for_a_full_queue_wait_in_their_own_calls_and_hold_up_nobody() {
    let linked = Linked::create(3128).unwrap().finish().unwrap().unwrap();
    // This queue has room for one.
    rustix::net::listen(&linked.proxy, 0).unwrap();
    seen_at(linked, |seen| {
        let connect = || rustix::net::connect(tcp(SocketFlags::empty()), &seen.door);
        assert_eq!(connect(), Ok(()));
        let many = 4 * THREADS;
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..many).map(|_| scope.spawn(connect)).collect();
            let waiting = tcp(SocketFlags::empty());
            let timeout = Some(Duration::from_millis(100));
            rustix::net::sockopt::set_socket_timeout(
                &waiting,
                rustix::net::sockopt::Timeout::Send,
                timeout,
            )
            .unwrap();
            // SO_SNDTIMEO still applies. The answer is that of a call to a connection under way.
            assert_eq!(
                rustix::net::connect(&waiting, &seen.door),
                Err(Errno::ALREADY)
            );
            drop(waiting);
            // Meanwhile other calls are answered.
            let inside = TcpListener::bind("127.0.0.1:0").unwrap();
            TcpStream::connect(inside.local_addr().unwrap()).unwrap();
            let patient = tcp(SocketFlags::NONBLOCK);
            assert_eq!(
                rustix::net::connect(&patient, &seen.door),
                Err(Errno::INPROGRESS)
            );
            rustix::net::listen(&seen.linked.proxy, 1024).unwrap();
            // Each connection is accepted with its own caller, although its first packet had to be
            // sent again.
            let callers: Vec<_> = (0..many + 2)
                .map(|_| {
                    seen.witness
                        .caller(accept(&seen.linked.proxy).as_fd())
                        .expect("a witnessed connection")
                })
                .collect();
            assert_eq!(
                callers
                    .iter()
                    .filter(|caller| **caller == own_thread())
                    .count(),
                2,
                "{callers:?}"
            );
            assert!(
                others
                    .into_iter()
                    .all(|other| other.join().unwrap() == Ok(()))
            );
        });
        assert!(seen.refused.lock().try_recv().is_err());
    });
}

#[test]
fn a_first_packet_that_would_not_arrive_is_not_sent() {
    seen(|seen| {
        let client = tcp(SocketFlags::NONBLOCK);
        rustix::net::sockopt::set_socket_reuseaddr(&client, true).unwrap();
        sys::socket::bind_to_interface(client.as_fd(), 1).unwrap();
        assert_eq!(
            rustix::net::connect(&client, &seen.door),
            Err(Errno::NETUNREACH)
        );
        let client = tcp(SocketFlags::empty());
        sys::socket::bind_to_interface(client.as_fd(), INTERFACE).unwrap();
        assert_eq!(rustix::net::connect(&client, &seen.door), Ok(()));
    });
}

#[test]
fn a_socket_that_lingers_is_not_waited_for() {
    seen(|seen| {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (_unread, _) = server.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::from_secs(3600))).unwrap();
        client.set_nonblocking(true).unwrap();
        while (&client).write(&[0; 65536]).is_ok() {}
        // The last descriptor is closed while the witness has another one.
        super::connect::release(client.into());
        assert!(seen.refused.lock().try_recv().is_err());
    });
}
