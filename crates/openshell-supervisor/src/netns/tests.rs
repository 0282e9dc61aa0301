use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};

use super::{Netns, firewall, run_in, thread};

/// Runs `test` in a network namespace that stands for the host's, in which every subnet is free.
fn on_private_host(test: impl FnOnce() + Send) {
    let host = thread::create().unwrap();
    run_in(host.as_fd(), || {
        test();
        Ok(())
    })
    .unwrap();
}

fn connect(netns: &Netns, to: SocketAddr) -> io::ErrorKind {
    let result = run_in(netns.as_fd(), || Ok(TcpStream::connect_timeout(&to, Duration::from_secs(5))));
    result.unwrap().map_or_else(|error| error.kind(), |_| io::ErrorKind::Other)
}

/// Result of [`connect`] for an established connection.
const CONNECTED: io::ErrorKind = io::ErrorKind::Other;

// Conformance: NET-02.
#[test]
fn the_proxy_is_reachable_and_nothing_beside_it() {
    on_private_host(|| {
        let (netns, subnet) = Netns::create().unwrap();
        let supervisor = subnet.supervisor();
        let proxy = TcpListener::bind((supervisor, 0)).unwrap().local_addr().unwrap();
        let proxy_listener = TcpListener::bind((supervisor, 0)).unwrap();
        let proxy_address = proxy_listener.local_addr().unwrap();
        let beside = TcpListener::bind((supervisor, 0)).unwrap();
        let beside_address = beside.local_addr().unwrap();
        assert_eq!(connect(&netns, beside_address), CONNECTED, "without the fence the listener is there");

        netns.install_firewall(&firewall::ruleset(SocketAddrV4::new(supervisor, proxy_address.port()))).unwrap();
        assert_eq!(connect(&netns, proxy_address), CONNECTED);
        assert_eq!(connect(&netns, beside_address), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect(&netns, proxy), io::ErrorKind::ConnectionRefused);
        let elsewhere = SocketAddr::from(([198, 51, 100, 77], 443));
        assert_eq!(connect(&netns, elsewhere), io::ErrorKind::ConnectionRefused, "NET-02");
    });
}

// Conformance: NET-03.
#[test]
fn datagrams_are_refused_at_once() {
    on_private_host(|| {
        let (netns, subnet) = Netns::create().unwrap();
        let supervisor = subnet.supervisor();
        let send = || {
            run_in(netns.as_fd(), || {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.send_to(b"x", (supervisor, 53))
            })
        };
        send().unwrap_or_else(|error| panic!("without the fence it leaves: {error}"));
        netns.install_firewall(&firewall::ruleset(SocketAddrV4::new(supervisor, 3128))).unwrap();
        assert_eq!(send().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    });
}

// Conformance: NET-04.
#[test]
fn loopback_works_inside_the_fence_in_both_families() {
    on_private_host(|| {
        let (netns, subnet) = Netns::create().unwrap();
        netns.install_firewall(&firewall::ruleset(SocketAddrV4::new(subnet.supervisor(), 3128))).unwrap();
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let listener = run_in(netns.as_fd(), || TcpListener::bind(loopback)).unwrap();
            assert_eq!(connect(&netns, listener.local_addr().unwrap()), CONNECTED, "{loopback}");
        }
    });
}

#[test]
fn a_server_inside_answers_whoever_connects_from_this_host_and_connects_to_nobody() {
    on_private_host(|| {
        let (netns, subnet) = Netns::create().unwrap();
        netns.install_firewall(&firewall::ruleset(SocketAddrV4::new(subnet.supervisor(), 3128))).unwrap();
        let server = run_in(netns.as_fd(), || TcpListener::bind("0.0.0.0:0")).unwrap();
        let port = server.local_addr().unwrap().port();
        let mut client = TcpStream::connect_timeout(&(subnet.workload(), port).into(), Duration::from_secs(5)).unwrap();
        let (mut accepted, peer) = server.accept().unwrap();
        accepted.write_all(b"answer").unwrap();
        let mut read = [0; 6];
        client.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"answer");
        // Neither to the client that it serves, nor from the port that it serves on.
        let beside = TcpListener::bind(peer.ip().to_string() + ":0").unwrap();
        assert_eq!(connect(&netns, beside.local_addr().unwrap()), io::ErrorKind::ConnectionRefused);
        drop((client, accepted, server));
        let from_there = run_in(netns.as_fd(), || {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
            rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
            Ok(rustix::net::connect(&socket, &beside.local_addr()?)?)
        });
        assert_eq!(from_there.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_server_inside_answers_nobody_who_connects_from_elsewhere() {
    on_private_host(|| {
        let ((netns, subnet), (_other, elsewhere)) = (Netns::create().unwrap(), Netns::create().unwrap());
        netns.install_firewall(&firewall::ruleset(SocketAddrV4::new(subnet.supervisor(), 3128))).unwrap();
        let server = run_in(netns.as_fd(), || TcpListener::bind("0.0.0.0:0")).unwrap();
        server.set_nonblocking(true).unwrap();
        let to = SocketAddrV4::new(subnet.workload(), server.local_addr().unwrap().port());
        let client = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        // Packets that the host forwards have such an address as well.
        rustix::net::bind(&client, &SocketAddrV4::new(elsewhere.supervisor(), 0)).unwrap();
        rustix::net::sockopt::set_socket_timeout(&client, Timeout::Send, Some(Duration::from_millis(300))).unwrap();
        assert_eq!(rustix::net::connect(&client, &to).unwrap_err(), Errno::INPROGRESS);
        assert_eq!(server.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn the_kernel_inside_answers_pings_and_says_that_nobody_listens() {
    on_private_host(|| {
        let (netns, subnet) = Netns::create().unwrap();
        netns.install_firewall(&firewall::ruleset(SocketAddrV4::new(subnet.supervisor(), 3128))).unwrap();
        let asking = UdpSocket::bind("0.0.0.0:0").unwrap();
        asking.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        asking.connect((subnet.workload(), 9)).unwrap();
        asking.send(b"x").unwrap();
        assert_eq!(asking.recv(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);

        let ping = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
        rustix::net::sockopt::set_socket_timeout(&ping, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
        let to = SocketAddrV4::new(subnet.workload(), 0);
        // Type 8, code 0, its checksum, no identity.
        let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
        rustix::net::sendto(&ping, &echo, SendFlags::empty(), &to).unwrap();
        let mut answer = [0; 64];
        // The error about the port arrives here as well.
        while answer[20] != 0 || answer[0] == 0 {
            rustix::net::recv(&ping, &mut answer, RecvFlags::empty()).unwrap();
        }
    });
}

#[test]
fn sandboxes_on_one_host_get_subnets_of_their_own() {
    on_private_host(|| {
        let sandboxes: Vec<_> = (0..4).map(|_| Netns::create().unwrap()).collect();
        let addresses: Vec<_> = sandboxes.iter().map(|(_, subnet)| subnet.supervisor()).collect();
        let expected: Vec<_> = (0..4).map(|third| Ipv4Addr::new(10, 200, third, 1)).collect();
        assert_eq!(addresses, expected);
    });
}

#[test]
fn an_isolated_namespace_has_loopback_and_no_route() {
    on_private_host(|| {
        let netns = Netns::isolated().unwrap();
        let elsewhere = SocketAddr::from(([198, 51, 100, 77], 443));
        assert_eq!(connect(&netns, elsewhere), io::ErrorKind::NetworkUnreachable);
        let listener = run_in(netns.as_fd(), || TcpListener::bind("127.0.0.1:0")).unwrap();
        assert_eq!(connect(&netns, listener.local_addr().unwrap()), CONNECTED);
    });
}

#[test]
fn many_starts_at_once_get_a_subnet_each() {
    on_private_host(|| {
        let host = thread::current().unwrap();
        let mut made: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> =
                (0..16).map(|_| scope.spawn(|| run_in(host.as_fd(), || Ok(Netns::create())))).collect();
            starts.into_iter().map(|start| start.join().unwrap().unwrap().unwrap()).collect()
        });
        made.sort_by_key(|(_, subnet)| subnet.supervisor());
        made.dedup_by_key(|(_, subnet)| subnet.supervisor());
        assert_eq!(made.len(), 16);
    });
}
