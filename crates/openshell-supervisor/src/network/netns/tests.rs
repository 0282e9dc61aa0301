use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::link::{self, LANDING, WORKLOAD};
use super::{Linked, Netns, Pair, Pending, listen, run_in};
use crate::calls::witness::{DOOR_MARK, NONCE_HEADER};

/// Creates linked namespaces without a firewall.
fn open_pair() -> Pair {
    let pair = Pending::start(Pair::create)
        .unwrap()
        .finish()
        .unwrap()
        .unwrap();
    run_in(pair.workload.as_fd(), link::configure_workload).unwrap();
    pair
}

/// Creates the network of a sandbox.
fn linked() -> Linked {
    Linked::create(3128).unwrap().finish().unwrap().unwrap()
}

/// Listens in the landing, at any port.
fn listen_in_landing(landing: &Netns, address: Ipv4Addr) -> TcpListener {
    run_in(landing.as_fd(), || listen(SocketAddrV4::new(address, 0))).unwrap()
}

fn connect(netns: &Netns, to: SocketAddr) -> io::ErrorKind {
    let result = run_in(netns.as_fd(), || {
        Ok(TcpStream::connect_timeout(&to, Duration::from_secs(5)))
    });
    result
        .unwrap()
        .map_or_else(|error| error.kind(), |_| io::ErrorKind::Other)
}

/// Connects as the witness does.
fn connect_witnessed(netns: &Netns, to: SocketAddr) -> io::Result<TcpStream> {
    run_in(netns.as_fd(), || {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        crate::sys::socket::set_mark(socket.as_fd(), DOOR_MARK)?;
        let option = [&NONCE_HEADER.1[..], &[0; 9]].concat();
        crate::sys::socket::set_ip_options(socket.as_fd(), &option)?;
        rustix::net::connect(&socket, &to)?;
        Ok(socket.into())
    })
}

/// The result of [`connect`] for an established connection.
const CONNECTED: io::ErrorKind = io::ErrorKind::Other;

/// Addresses, in both families, that cannot be reached.
const ELSEWHERE: [&str; 2] = ["198.51.100.77:443", "[2001:db8::77]:443"];

// Conformance: NET-02.
#[test]
fn the_proxy_is_reachable_and_nothing_beside_it() {
    let Pair { landing, workload } = open_pair();
    let beside = listen_in_landing(&landing, LANDING);
    assert_eq!(
        connect(&workload, beside.local_addr().unwrap()),
        CONNECTED,
        "without the fence the listener is there"
    );

    let linked = linked();
    let beside = listen_in_landing(&linked.landing, LANDING);
    let proxy = linked.proxy.local_addr().unwrap();
    assert_eq!(
        connect(&linked.workload, proxy),
        io::ErrorKind::ConnectionRefused,
        "nobody has witnessed it"
    );
    connect_witnessed(&linked.workload, proxy).unwrap();
    assert!(
        connect_witnessed(&linked.workload, beside.local_addr().unwrap()).is_err(),
        "it is no door"
    );
    for refused in [&beside, &linked.probe] {
        assert_eq!(
            connect(&linked.workload, refused.local_addr().unwrap()),
            io::ErrorKind::ConnectionRefused
        );
    }
    for elsewhere in ELSEWHERE {
        assert_eq!(
            connect(&linked.workload, elsewhere.parse().unwrap()),
            io::ErrorKind::ConnectionRefused,
            "NET-02"
        );
    }
}

#[test]
fn every_address_of_the_world_ends_in_the_landing_and_is_refused_there_at_once() {
    let Pair { landing, workload } = open_pair();
    for elsewhere in ELSEWHERE {
        assert_eq!(
            connect(&workload, elsewhere.parse().unwrap()),
            io::ErrorKind::ConnectionRefused
        );
    }
    // A door for other addresses is possible, and it answers from those addresses.
    let everywhere = listen_in_landing(&landing, Ipv4Addr::UNSPECIFIED);
    let port = everywhere.local_addr().unwrap().port();
    assert_eq!(
        connect(&workload, (Ipv4Addr::new(198, 51, 100, 77), port).into()),
        CONNECTED
    );
    let (accepted, peer) = everywhere.accept().unwrap();
    assert_eq!(peer.ip(), WORKLOAD);
    assert_eq!(
        accepted.local_addr().unwrap().to_string(),
        format!("198.51.100.77:{port}")
    );
}

// Conformance: NET-03.
#[test]
fn datagrams_are_refused_at_once_unless_they_ask_the_name_server() {
    let send = |netns: &Netns, to: (Ipv4Addr, u16)| {
        run_in(netns.as_fd(), || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.send_to(b"x", to)
        })
    };
    let open = open_pair();
    let linked = linked();
    for to in [(LANDING, 54), (Ipv4Addr::new(198, 51, 100, 77), 53)] {
        send(&open.workload, to)
            .unwrap_or_else(|error| panic!("without the fence it leaves: {error}"));
        assert_eq!(
            send(&linked.workload, to).unwrap_err().kind(),
            io::ErrorKind::PermissionDenied
        );
    }
    send(&linked.workload, (LANDING, 53)).unwrap();
    let sockets = linked.name_server.unwrap();
    sockets.datagrams.set_nonblocking(false).unwrap();
    assert_eq!(
        sockets.datagrams.recv_from(&mut [0; 8]).unwrap().1.ip(),
        WORKLOAD
    );
}

#[test]
fn doors_open_and_close_and_each_is_known_by_its_address() {
    let linked = linked();
    let door = |last: u8, port: u16| SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, last), port);
    let listener = linked.doors.listen(&[5432]).unwrap().remove(0).unwrap();
    listener.set_nonblocking(false).unwrap();
    assert!(
        connect_witnessed(&linked.workload, door(1, 5432).into()).is_err(),
        "it is not open yet"
    );
    linked
        .doors
        .change(&[door(1, 5432), door(2, 5432)], &[])
        .unwrap();
    let mut held = Vec::new();
    for last in [1, 2] {
        held.push(connect_witnessed(&linked.workload, door(last, 5432).into()).unwrap());
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(accepted.local_addr().unwrap(), door(last, 5432).into());
        held.push(accepted);
    }
    assert_eq!(
        connect(&linked.workload, door(1, 5432).into()),
        io::ErrorKind::ConnectionRefused,
        "nobody has witnessed it"
    );
    for other in [
        door(3, 5432),
        door(1, 5433),
        SocketAddrV4::new(LANDING, 5432),
    ] {
        assert!(!linked.doors.contains(other));
        assert!(
            connect_witnessed(&linked.workload, other.into()).is_err(),
            "{other}"
        );
    }
    linked
        .doors
        .change(&[], &[door(1, 5432), door(9, 9)])
        .unwrap();
    assert!(
        connect_witnessed(&linked.workload, door(1, 5432).into()).is_err(),
        "it is closed"
    );
    connect_witnessed(&linked.workload, door(2, 5432).into()).unwrap();
    held[0].write_all(b"x").unwrap();
    held[1].read_exact(&mut [0]).unwrap();
    // The proxy's own port is free for doors too.
    let shared = linked.doors.listen(&[3128]).unwrap().remove(0).unwrap();
    shared.set_nonblocking(true).unwrap();
    connect_witnessed(&linked.workload, linked.proxy.local_addr().unwrap()).unwrap();
    assert_eq!(
        shared.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock,
        "the proxy has it"
    );
}

#[test]
fn a_thousand_doors_change_at_once() {
    let linked = linked();
    let doors = |net: u8| -> Vec<_> {
        (0..4_000_u16)
            .map(|n| SocketAddrV4::new(Ipv4Addr::new(198, net, (n >> 8) as u8, n as u8), 443))
            .collect()
    };
    linked.doors.change(&doors(18), &[]).unwrap();
    linked.doors.change(&doors(19), &doors(18)).unwrap();
    assert!(linked.doors.contains(doors(19)[3_999]) && !linked.doors.contains(doors(18)[0]));
    linked.doors.change(&[], &doors(19)).unwrap();
}

// Conformance: NET-04.
#[test]
fn loopback_works_inside_the_fence_in_both_families() {
    let linked = linked();
    for loopback in ["127.0.0.1:0", "[::1]:0"] {
        let listener = run_in(linked.workload.as_fd(), || TcpListener::bind(loopback)).unwrap();
        assert_eq!(
            connect(&linked.workload, listener.local_addr().unwrap()),
            CONNECTED,
            "{loopback}"
        );
    }
}

#[test]
fn a_server_inside_takes_no_port_of_a_door_and_answers_nobody_outside() {
    let linked = linked();
    let server = run_in(linked.workload.as_fd(), || {
        TcpListener::bind("0.0.0.0:3128")
    })
    .unwrap();
    server.set_nonblocking(true).unwrap();
    connect_witnessed(&linked.workload, linked.proxy.local_addr().unwrap()).unwrap();
    assert_eq!(
        server.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock,
        "it came to the proxy"
    );
    let taken = run_in(linked.workload.as_fd(), || {
        TcpListener::bind((LANDING, 3129))
    });
    assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    // Even from the landing, in which no program runs, there is no answer: it would have to leave
    // past the proxy.
    let asking = run_in(linked.landing.as_fd(), || {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Send,
            Some(Duration::from_millis(300)),
        )?;
        Ok(rustix::net::connect(
            &socket,
            &SocketAddrV4::new(WORKLOAD, 3128),
        )?)
    });
    assert!(asking.is_err());
    assert_eq!(
        server.accept().unwrap_err().kind(),
        io::ErrorKind::WouldBlock
    );
}

#[test]
fn sandboxes_have_the_same_addresses_and_are_apart() {
    let sandboxes: Vec<_> = (0..4).map(|_| linked()).collect();
    for (number, linked) in sandboxes.iter().enumerate() {
        linked.proxy.set_nonblocking(false).unwrap();
        let mut inside =
            connect_witnessed(&linked.workload, linked.proxy.local_addr().unwrap()).unwrap();
        let (mut accepted, peer) = linked.proxy.accept().unwrap();
        assert_eq!(peer, inside.local_addr().unwrap());
        inside.write_all(&[number as u8]).unwrap();
        let mut read = [0];
        accepted.read_exact(&mut read).unwrap();
        assert_eq!(read, [number as u8]);
    }
}

#[test]
fn many_starts_at_once_get_a_network_each() {
    let made: Vec<_> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..16).map(|_| scope.spawn(linked)).collect();
        starts
            .into_iter()
            .map(|start| start.join().unwrap())
            .collect()
    });
    for linked in &made {
        connect_witnessed(&linked.workload, linked.proxy.local_addr().unwrap()).unwrap();
    }
}

#[test]
fn the_caller_keeps_its_network_and_has_no_link_more() {
    let namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let before = namespace();
    let linked = linked();
    assert_eq!(namespace(), before);
    // The caller has no address of the pair, so nothing can be bound to one.
    for address in [LANDING, WORKLOAD] {
        assert_eq!(
            TcpListener::bind((address, 0)).unwrap_err().kind(),
            io::ErrorKind::AddrNotAvailable
        );
    }
    drop(linked);
}

#[test]
fn an_isolated_namespace_has_loopback_and_no_route() {
    let netns = Netns::isolated().unwrap().finish().unwrap().unwrap();
    assert_eq!(
        connect(&netns, ELSEWHERE[0].parse().unwrap()),
        io::ErrorKind::NetworkUnreachable
    );
    let listener = run_in(netns.as_fd(), || TcpListener::bind("127.0.0.1:0")).unwrap();
    assert_eq!(connect(&netns, listener.local_addr().unwrap()), CONNECTED);
}
