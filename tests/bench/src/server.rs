//! The upstream, and a relay without logic as the floor of what any proxy costs.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::client::TARGET;

/// Where the relay listens.
pub(crate) const RELAY: &str = "10.99.0.1:8081";

/// Serves for ever: `GET /N` is answered with N bytes, anything else with two.
pub(crate) fn run() {
    let (upstream, relay) = (TcpListener::bind(TARGET).unwrap(), TcpListener::bind(RELAY).unwrap());
    thread::spawn(move || relay.incoming().for_each(|client| drop(thread::spawn(move || pass_on(client.unwrap())))));
    println!("ready");
    upstream.incoming().for_each(|client| drop(thread::spawn(move || serve(client.unwrap()))));
}

/// Ends with its client; what the client breaks off is no concern of the server's.
fn serve(mut client: TcpStream) {
    client.set_nodelay(true).unwrap();
    let mut requests = BufReader::new(client.try_clone().unwrap());
    let block = vec![0; 256 * 1024];
    let mut first = String::new();
    loop {
        first.clear();
        if requests.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if requests.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
        }
        let wanted = first.split(' ').nth(1).and_then(|path| path[1..].parse::<usize>().ok());
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

fn pass_on(client: TcpStream) {
    let upstream = TcpStream::connect(TARGET).unwrap();
    client.set_nodelay(true).unwrap();
    upstream.set_nodelay(true).unwrap();
    let (mut from, mut to) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut from, &mut to));
    let (mut from, mut to) = (upstream, client);
    drop(std::io::copy(&mut from, &mut to));
}
