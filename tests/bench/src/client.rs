//! A load client that speaks CONNECT where HTTPS_PROXY is set, and goes direct where it is not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where the servers of the benchmark are.
pub(crate) const TARGET: &str = "10.99.0.1:8080";

/// Runs one task inside or outside a sandbox and prints its result, a number.
pub(crate) fn run(words: &[String]) {
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let result = match words.first().map(String::as_str) {
        Some("requests") => {
            let _idle = Idle::new(number(2));
            median(number(1), || connection(TARGET))
        }
        Some("processes") => {
            let _idle = Idle::new(number(2));
            median_of((0..number(1)).map(|_| by_new_process()).collect())
        }
        Some("tunnel") => {
            let to = words.get(2).map_or(TARGET, String::as_str);
            let mut stream = open(to);
            median(number(1), || request(&mut stream, "/"))
        }
        Some("bytes") => {
            let mut stream = open(TARGET);
            let start = Instant::now();
            fetch(&mut stream, &format!("/{}", number(1)));
            start.elapsed().as_secs_f64()
        }
        Some("tunnels") => {
            let held: Vec<_> = (0..number(1)).map(|_| open(TARGET)).collect();
            wait();
            held.len() as f64
        }
        Some("waiting") => {
            median(number(1), || connection(TARGET));
            wait();
            0.0
        }
        // The slowest of a hundred, again and again until the input ends; the first line says that it has begun.
        Some("steady") => {
            let mut stream = open(TARGET);
            let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
            println!("ready");
            let mut times = Vec::new();
            while !input.is_finished() {
                times.push(request(&mut stream, "/").as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            times[times.len() * 99 / 100]
        }
        _ => panic!("no such task: {words:?}"),
    };
    println!("{result:.9}");
}

/// Says that it is ready, and waits for the end of the input.
fn wait() {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn median(count: usize, mut act: impl FnMut() -> Duration) -> f64 {
    median_of((0..count).map(|_| act().as_secs_f64()).collect())
}

fn median_of(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A new connection and one request.
fn connection(to: &str) -> Duration {
    let start = Instant::now();
    fetch(&mut open(to), "/");
    start.elapsed()
}

fn by_new_process() -> f64 {
    let output = Command::new(std::env::current_exe().unwrap()).args(["client", "requests", "1"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
}

fn open(to: &str) -> TcpStream {
    let Some(proxy) = std::env::var("HTTPS_PROXY").ok().and_then(|url| url.strip_prefix("http://").map(str::to_owned))
    else {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_nodelay(true).unwrap();
        return stream;
    };
    let mut stream = TcpStream::connect(proxy).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).unwrap();
    let head = head(&mut stream);
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    stream
}

fn request(stream: &mut TcpStream, path: &str) -> Duration {
    let start = Instant::now();
    fetch(stream, path);
    start.elapsed()
}

fn fetch(stream: &mut TcpStream, path: &str) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n").as_bytes()).unwrap();
    let head = String::from_utf8(head(stream)).unwrap();
    let mut left: usize = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok()).unwrap();
    let mut buffer = vec![0; 256 * 1024];
    while left > 0 {
        let most = left.min(buffer.len());
        let read = stream.read(&mut buffer[..most]).unwrap();
        assert!(read > 0, "the stream ended early");
        left -= read;
    }
}

/// Reads up to the blank line and nothing behind it.
fn head(stream: &mut TcpStream) -> Vec<u8> {
    let (mut head, mut peeked) = (Vec::new(), [0; 4096]);
    loop {
        let seen = stream.peek(&mut peeked).unwrap();
        assert!(seen > 0, "the stream ended early: {}", String::from_utf8_lossy(&head));
        let before = head.len();
        head.extend(&peeked[..seen]);
        let end = head.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
        let used = end.map_or(seen, |end| end - before);
        stream.read_exact(&mut peeked[..used]).unwrap();
        if let Some(end) = end {
            head.truncate(end);
            return head;
        }
    }
}

/// Processes that do nothing; ended when this is dropped.
struct Idle(Vec<Child>);

impl Idle {
    fn new(count: usize) -> Self {
        let idle = || Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        Self((0..count).map(|_| idle()).collect())
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
