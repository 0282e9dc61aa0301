//! The upstream, and a relay without logic: the lower bound of the cost of a proxy.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustix::event::{PollFd, PollFlags};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::client::{TARGET, TLS_TARGET, now};
use super::http2;

/// Address of the relay.
pub(crate) const RELAY: &str = "10.99.0.1:8081";

/// Address of the relay that answers CONNECT.
pub(crate) const CONNECT_RELAY: &str = "0.0.0.0:8082";

/// Address of the relay that copies whatever comes, one connection at a time.
const PLAIN_RELAY: &str = "0.0.0.0:8083";

/// Serves until it is killed: N bytes for `GET /N`, N events for `GET /eventsN`, slower ones for
/// `/pacedN`, else two bytes. The certificate is written to `certificate`.
pub(crate) fn run(certificate: &Path) {
    let upstream = TcpListener::bind(TARGET).unwrap();
    let relay = TcpListener::bind(RELAY).unwrap();
    let tls = TcpListener::bind(TLS_TARGET).unwrap();
    let config = config(certificate);
    http2::serve(&config);
    thread::spawn(move || {
        for client in relay.incoming() {
            drop(thread::spawn(move || pass_on(client.unwrap())));
        }
    });
    let connect_relay = TcpListener::bind(CONNECT_RELAY).unwrap();
    thread::spawn(move || {
        for client in connect_relay.incoming() {
            answer_connect(client.unwrap());
        }
    });
    let plain_relay = TcpListener::bind(PLAIN_RELAY).unwrap();
    thread::spawn(move || {
        for client in plain_relay.incoming() {
            copy_both(client.unwrap(), TcpStream::connect(TARGET).unwrap());
        }
    });
    thread::spawn(move || {
        for client in tls.incoming().map(Result::unwrap) {
            client.set_nodelay(true).unwrap();
            let config = Arc::clone(&config);
            thread::spawn(move || {
                serve(StreamOwned::new(
                    ServerConnection::new(config).unwrap(),
                    client,
                ))
            });
        }
    });
    println!("ready");
    for client in upstream.incoming().map(Result::unwrap) {
        client.set_nodelay(true).unwrap();
        thread::spawn(move || serve(client));
    }
}

fn config(certificate: &Path) -> Arc<ServerConfig> {
    let key = KeyPair::generate().unwrap();
    let issued = CertificateParams::new(["10.99.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    std::fs::write(certificate, issued.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    Arc::new(
        config
            .with_no_client_auth()
            .with_single_cert(vec![issued.der().clone()], key)
            .unwrap(),
    )
}

/// Ends with its client, which may break off.
fn serve(mut client: impl Read + Write) {
    let block = vec![0; 256 * 1024];
    let mut pending = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        let end = loop {
            if let Some(end) = pending.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match client.read(&mut buffer) {
                Ok(filled @ 1..) => pending.extend_from_slice(&buffer[..filled]),
                _ => return,
            }
        };
        let head: Vec<u8> = pending.drain(..end).collect();
        let head = String::from_utf8_lossy(&head).into_owned();
        // The first segment selects the response; further ones are the path of a model's interface.
        let path = head
            .split(' ')
            .nth(1)
            .unwrap_or("/")
            .get(1..)
            .unwrap_or("")
            .split('/')
            .next()
            .unwrap_or("")
            .to_owned();
        let lower = head.to_ascii_lowercase();
        let length = lower
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if !discard(&mut client, &mut pending, length.unwrap_or(0)) {
            return;
        }
        if let Some(count) = path
            .strip_prefix("events")
            .and_then(|count| count.parse::<usize>().ok())
        {
            if events(&mut client, count, Duration::from_millis(2)).is_err() {
                return;
            }
            continue;
        }
        if let Some(count) = path
            .strip_prefix("paced")
            .and_then(|count| count.parse::<usize>().ok())
        {
            if events(&mut client, count, Duration::from_millis(20)).is_err() {
                return;
            }
            continue;
        }
        if path == "list" {
            let list = super::messages::list();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                list.len()
            );
            if client.write_all((head + &list).as_bytes()).is_err() {
                return;
            }
            continue;
        }
        let wanted = path.parse::<usize>().ok();
        let mut left = wanted.unwrap_or(2);
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").into_bytes();
        if wanted.is_none() {
            answer.extend(b"ok");
            left = 0;
        }
        if client.write_all(&answer).is_err() {
            return;
        }
        while left > 0 {
            let most = left.min(block.len());
            if client.write_all(&block[..most]).is_err() {
                return;
            }
            left -= most;
        }
    }
}

/// Reads a body of `left` bytes, of which `pending` was read before. Returns true if it was
/// complete.
fn discard(client: &mut impl Read, pending: &mut Vec<u8>, mut left: usize) -> bool {
    let read = left.min(pending.len());
    pending.drain(..read);
    left -= read;
    let mut block = vec![0; 256 * 1024];
    while left > 0 {
        let most = left.min(block.len());
        match client.read(&mut block[..most]) {
            Ok(filled @ 1..) => left -= filled,
            _ => return false,
        }
    }
    true
}

fn events(client: &mut impl Write, count: usize, pause: Duration) -> std::io::Result<()> {
    client.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    for _ in 0..count {
        thread::sleep(pause);
        let event = format!("data: {:.9}\n\n", now());
        client.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
        client.flush()?;
    }
    client.write_all(b"0\r\n\r\n")
}

/// Answers a CONNECT with 200 whatever it asks for, and copies until either side ends: one
/// connection at a time, on one thread.
fn answer_connect(client: TcpStream) {
    let mut client = client;
    let mut head = [0; 4096];
    client.set_nodelay(true).unwrap();
    // A client of this benchmark writes the head at once.
    if client.read(&mut head).unwrap_or(0) == 0 {
        return;
    }
    let upstream = TcpStream::connect(TARGET).unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
    copy_both(client, upstream);
}

/// Copies until either side ends.
fn copy_both(mut client: TcpStream, mut upstream: TcpStream) {
    client.set_nodelay(true).unwrap();
    upstream.set_nodelay(true).unwrap();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let mut ready = [
            PollFd::new(&client, PollFlags::IN),
            PollFd::new(&upstream, PollFlags::IN),
        ];
        rustix::event::poll(&mut ready, None).unwrap();
        let [from_client, from_upstream] = ready.map(|end| !end.revents().is_empty());
        if from_client && !copied(&mut client, &mut upstream, &mut buffer) {
            return;
        }
        if from_upstream && !copied(&mut upstream, &mut client, &mut buffer) {
            return;
        }
    }
}

/// Copies what is there; returns false at the end of either stream.
fn copied(from: &mut TcpStream, to: &mut TcpStream, buffer: &mut [u8]) -> bool {
    let filled = from.read(buffer).unwrap_or(0);
    filled > 0 && to.write_all(&buffer[..filled]).is_ok()
}

fn pass_on(client: TcpStream) {
    let upstream = TcpStream::connect(TARGET).unwrap();
    client.set_nodelay(true).unwrap();
    upstream.set_nodelay(true).unwrap();
    let mut from = client.try_clone().unwrap();
    let mut to = upstream.try_clone().unwrap();
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    let mut from = upstream;
    let mut to = client;
    drop(std::io::copy(&mut from, &mut to));
}
