//! A load client: through a CONNECT proxy if HTTPS_PROXY is set, else direct.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{gateway, http2, messages, names, ssh};

/// Addresses of the benchmark's servers: plain, and inside TLS.
pub(crate) const TARGET: &str = "10.99.0.1:8080";
pub(crate) const TLS_TARGET: &str = "10.99.0.1:8443";

/// Runs one task inside or outside a sandbox and prints its result, a number.
pub(crate) fn run(words: &[String]) {
    let number = |index: usize| {
        words
            .get(index)
            .and_then(|word| word.parse::<usize>().ok())
            .unwrap_or(0)
    };
    let result = match words.first().map(String::as_str) {
        Some("requests") => {
            let _idle = Idle::new(number(2));
            median(number(1), || connection(TARGET))
        }
        Some("tls-requests") => {
            let tls = Tls::new();
            median(number(1), || timed(|| tls.open().fetch("/")))
        }
        // Requests in one open connection, for one path or a new one each time.
        Some("paths") => {
            let mut connection = open_as(words.get(1).map(String::as_str));
            connection.header = words.get(4).cloned().unwrap_or_default();
            let paths = number(3).max(1);
            let path = |n: usize| {
                if paths == 1 {
                    "/".to_owned()
                } else {
                    format!("/p{}", n % paths)
                }
            };
            // Another path, so that its cached decision does not affect the figure.
            connection.fetch("/warm");
            let times = (0..number(2)).map(|n| timed(|| connection.fetch(&path(n))).as_secs_f64());
            median_of(times.collect())
        }
        // Opening and closing a file.
        Some("opens") => {
            let open = || drop(std::fs::File::open("/etc/passwd").unwrap());
            median_of((0..number(1)).map(|_| timed(open).as_secs_f64()).collect())
        }
        // Reading every file of a folder, as a search or a build does.
        Some("tree") => {
            let read = || {
                for entry in std::fs::read_dir(&words[1]).unwrap() {
                    assert!(!std::fs::read(entry.unwrap().path()).unwrap().is_empty());
                }
            };
            read();
            timed(read).as_secs_f64()
        }
        // Responses of a given size a second, over several connections at once.
        Some("throughput") => {
            let how = words[1].clone();
            let path = format!("/{}", words[3]);
            let threads = (0..number(2)).map(|_| {
                let how = how.clone();
                let path = path.clone();
                std::thread::spawn(move || {
                    let mut connection = open_as(Some(&how));
                    connection.fetch(&path);
                    let start = Instant::now();
                    let mut count = 0_u32;
                    while start.elapsed() < Duration::from_secs(2) {
                        connection.fetch(&path);
                        count += 1;
                    }
                    f64::from(count) / start.elapsed().as_secs_f64()
                })
            });
            threads
                .collect::<Vec<_>>()
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        }
        Some("tls-bytes") => {
            let mut connection = open_as(Some("tls"));
            timed(|| connection.fetch(&format!("/{}", number(1)))).as_secs_f64()
        }
        // A body of a given size, and its response.
        Some("upload") => {
            let mut connection = open_as(words.get(1).map(String::as_str));
            connection.header = words.get(3).cloned().unwrap_or_default();
            timed(|| connection.upload(number(2))).as_secs_f64()
        }
        // Short responses of a model a second, over several connections at once.
        Some("completions") => {
            let threads = (0..number(1)).map(|_| {
                std::thread::spawn(|| {
                    let mut connection = models();
                    connection.complete("ok");
                    let start = Instant::now();
                    let mut count = 0_u32;
                    while start.elapsed() < Duration::from_secs(2) {
                        connection.complete("ok");
                        count += 1;
                    }
                    f64::from(count) / start.elapsed().as_secs_f64()
                })
            });
            threads
                .collect::<Vec<_>>()
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        }
        // Several streams of a model at once: time to the first byte, or delay of their events.
        Some("streams") => {
            let base = words[1].clone();
            let count = number(3);
            let open = Arc::new(Barrier::new(number(2)));
            let threads = (0..number(2)).map(|index| {
                let base = base.clone();
                let open = Arc::clone(&open);
                std::thread::spawn(move || {
                    let mut connection = models();
                    // Starts at the same moment would only wait for the same processors.
                    open.wait();
                    std::thread::sleep(Duration::from_millis(11) * u32::try_from(index).unwrap());
                    let first = timed(|| {
                        connection.ask_model(&base);
                        while !connection.line().is_empty() {}
                    });
                    (first.as_secs_f64(), connection.delays(count))
                })
            });
            let streams = threads
                .collect::<Vec<_>>()
                .into_iter()
                .map(|thread| thread.join().unwrap());
            let (first, delays): (Vec<_>, Vec<_>) = streams.unzip();
            let mut times = if words[4] == "first" {
                first
            } else {
                delays.concat()
            };
            times.sort_by(f64::total_cmp);
            times[times.len() * number(5) / 100]
        }
        // One long response of a model; then the supervisor's memory is read.
        Some("model-bytes") => {
            models().complete(&words[1]);
            wait();
            0.0
        }
        // Delay of events: the median, or the 99th percentile.
        Some("events") => {
            let mut connection = open_as(words.get(1).map(String::as_str));
            let mut delays = connection.events(number(2));
            delays.sort_by(f64::total_cmp);
            delays[delays.len() * number(3) / 100]
        }
        // Messages: posted one after the other, in lists, answered by events, or sent by half.
        Some("posts") => messages::posts(words),
        Some("lists") => messages::listed(number(1)),
        Some("call-events") => {
            let mut connection = Connection::new(dial(TARGET));
            median_of(connection.events_of_call(number(1)))
        }
        Some("halves") => {
            messages::hold_halves(&words[1..]);
            0.0
        }
        Some("half") => {
            messages::half();
            0.0
        }
        // HTTP/2: responses a second; time of calls; 99th percentile of requests beside a slow
        // stream, or alone.
        Some("http2") => http2::rate(number(1)),
        Some("calls") => median_of(http2::calls(number(1))),
        Some("beside") => {
            let mut times = http2::beside(words[1] == "slow", number(2));
            times.sort_by(f64::total_cmp);
            times[times.len() * 99 / 100]
        }
        Some("processes") => {
            let _idle = Idle::new(number(2));
            median_of((0..number(1)).map(|_| by_new_process()).collect())
        }
        // New processes beside idle ones with a hundred descriptors, to those beside none.
        Some("crowded") => {
            let measure = || median_of((0..number(1)).map(|_| by_new_process()).collect());
            let alone = measure();
            // Inherited, as they are not closed by exec.
            let null = std::fs::File::open("/dev/null").unwrap();
            let held: Vec<_> = (0..97).map(|_| rustix::io::dup(&null).unwrap()).collect();
            let _idle = Idle::new(number(2));
            drop(held);
            measure() / alone
        }
        // Connects that stay on this host.
        Some("connects") => match words[1].as_str() {
            "unix" => {
                let name = std::env::temp_dir().join(format!("bench-{}", std::process::id()));
                let server = UnixListener::bind(&name).unwrap();
                let result = connects(
                    number(2),
                    || UnixStream::connect(&name).unwrap(),
                    || server.accept().unwrap(),
                );
                std::fs::remove_file(name).unwrap();
                result
            }
            _ => {
                let server = TcpListener::bind("127.0.0.1:0").unwrap();
                let to = server.local_addr().unwrap();
                connects(
                    number(2),
                    || TcpStream::connect(to).unwrap(),
                    || server.accept().unwrap(),
                )
            }
        },
        Some("tunnel") => {
            let to = words.get(2).map_or(TARGET, String::as_str);
            let mut stream = open(to);
            median(number(1), || timed(|| stream.fetch("/")))
        }
        Some("bytes") => {
            let mut stream = open(TARGET);
            timed(|| stream.fetch(&format!("/{}", number(1)))).as_secs_f64()
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
        // Requests that wait for a person, one after the other.
        Some("held") => {
            let mut stream = open(TARGET);
            for n in 0..number(1) {
                stream.fetch(&format!("/held{n}"));
            }
            wait();
            0.0
        }
        // Copies of this program, each of which asks for a path 16 times at once and keeps the
        // connections.
        Some("holding") => {
            let start = |copy: &String| {
                let mut command = Command::new(copy);
                command.args(["client", "hold", &words[1]]);
                command.stdout(Stdio::piped()).spawn().unwrap()
            };
            let mut copies: Vec<Child> = words[2..].iter().map(start).collect();
            for copy in copies.iter_mut().filter(|_| words[1] == "/") {
                let output = copy.stdout.as_mut().unwrap();
                output.read_exact(&mut [0; 6]).unwrap();
            }
            println!("ready");
            wait();
            0.0
        }
        Some("hold") => {
            let path = words[1].clone();
            let threads = (0..16).map(|_| {
                let path = path.clone();
                std::thread::spawn(move || {
                    let mut stream = open(TARGET);
                    stream.fetch(&path);
                    stream
                })
            });
            let threads: Vec<_> = threads.collect();
            let held = threads.into_iter().map(|thread| thread.join().unwrap());
            let held: Vec<_> = held.collect();
            println!("ready");
            std::thread::sleep(Duration::from_secs(600));
            held.len() as f64
        }
        // The slowest of each hundred requests, beside this many refused ones a second.
        Some("beside-refused") => {
            let threads = 4;
            for _ in 0..threads {
                let rate = number(1) / threads;
                std::thread::spawn(move || refused(rate));
            }
            let mut stream = open(TARGET);
            let mut times: Vec<_> = (0..4_000)
                .map(|_| {
                    std::thread::sleep(Duration::from_micros(500));
                    timed(|| stream.fetch("/")).as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times[times.len() * 99 / 100]
        }
        // The slowest of each hundred requests, beside this many questions for a name a second.
        Some("asked") => {
            let count = number(1);
            let rate = words[2].parse().unwrap();
            std::thread::spawn(move || names::flood(rate));
            let mut stream = open(TARGET);
            let mut times: Vec<_> = (0..count)
                .map(|_| timed(|| stream.fetch("/")).as_secs_f64())
                .collect();
            times.sort_by(f64::total_cmp);
            times[count * 99 / 100]
        }
        // The slowest of each hundred requests until the end of the input; the first line reports
        // the start.
        Some("steady") => {
            let mut stream = open(TARGET);
            let input = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
            println!("ready");
            let mut times = Vec::new();
            while !input.is_finished() {
                times.push(timed(|| stream.fetch("/")).as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            times[times.len() * 99 / 100]
        }
        // Requests at a given rate over two connections; a line before them and one after, then
        // waits for the end of the input.
        Some("paced") => {
            let rate = number(1);
            let seconds = number(2);
            let mut connections = [open(TARGET), open(TARGET)];
            for connection in connections.iter_mut() {
                connection.fetch("/");
            }
            println!("ready");
            let start = Instant::now();
            let each = rate * seconds / 2;
            let threads = connections.map(|mut connection| {
                std::thread::spawn(move || {
                    for n in 0..each {
                        let due = Duration::from_secs_f64(n as f64 * 2.0 / rate as f64);
                        std::thread::sleep(due.saturating_sub(start.elapsed()));
                        connection.fetch("/");
                    }
                })
            });
            for thread in threads {
                thread.join().unwrap();
            }
            wait();
            start.elapsed().as_secs_f64()
        }
        Some("echo") => return gateway::echo(),
        Some("connect") => return ssh::connect(&words[1]),
        Some("sink") => return gateway::sink(),
        Some("session") => return gateway::session(&words[1]),
        Some("named" | "named-relay" | "named-bytes" | "questions" | "swapped") => {
            names::run(words)
        }
        _ => panic!("no such task: {words:?}"),
    };
    println!("{result:.9}");
}

/// Prints that it is ready, and waits for the end of the input.
pub(crate) fn wait() {
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

pub(crate) fn median(count: usize, mut act: impl FnMut() -> Duration) -> f64 {
    median_of((0..count).map(|_| act().as_secs_f64()).collect())
}

pub(crate) fn median_of(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A new connection and one request.
fn connection(to: &str) -> Duration {
    timed(|| open(to).fetch("/"))
}

/// Median time of `count` connects, each accepted and closed before the next.
fn connects<C, A>(count: usize, connect: impl Fn() -> C, accept: impl Fn() -> A) -> f64 {
    let one = |_| {
        let start = Instant::now();
        let client = connect();
        let time = start.elapsed().as_secs_f64();
        drop((client, accept()));
        time
    };
    median_of((0..count).map(one).collect())
}

pub(crate) fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

/// Asks for what the policy refuses `rate` times a second. What is held is left waiting.
fn refused(rate: usize) {
    let proxy = std::env::var("HTTP_PROXY").unwrap();
    let proxy = proxy.trim_start_matches("http://").to_owned();
    let mut held = Vec::new();
    let begin = Instant::now();
    for n in 0_u32.. {
        let due = Duration::from_secs(1) / u32::try_from(rate).unwrap() * n;
        std::thread::sleep(due.saturating_sub(begin.elapsed()));
        let mut stream = TcpStream::connect(&proxy).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        stream
            .write_all(b"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n")
            .unwrap();
        if stream.read(&mut [0; 4096]).is_err() {
            held.push(stream);
        }
    }
}

fn by_new_process() -> f64 {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["client", "requests", "1"])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap()
}

pub(crate) fn dial(to: &str) -> TcpStream {
    let proxy = std::env::var("HTTPS_PROXY")
        .ok()
        .and_then(|url| url.strip_prefix("http://").map(str::to_owned));
    let mut stream = TcpStream::connect(proxy.as_deref().unwrap_or(to)).unwrap();
    stream.set_nodelay(true).unwrap();
    if proxy.is_some() {
        stream
            .write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes())
            .unwrap();
        // No byte follows before the first request.
        let mut head = [0; 4096];
        let filled = stream.read(&mut head).unwrap();
        let head = String::from_utf8_lossy(&head[..filled]);
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
    }
    stream
}

fn open(to: &str) -> Connection<TcpStream> {
    Connection::new(dial(to))
}

fn open_as(how: Option<&str>) -> Connection<Box<dyn Stream>> {
    match how {
        Some("tls") => Connection::new(Box::new(Tls::new().open().stream)),
        _ => Connection::new(Box::new(dial(TARGET))),
    }
}

/// Connection to the sandbox's models, or to their backend.
fn models() -> Connection<Box<dyn Stream>> {
    if std::env::var_os("HTTPS_PROXY").is_none() {
        return Connection::new(Box::new(dial(TARGET)));
    }
    let name = ServerName::try_from("inference.local").unwrap();
    let tls = ClientConnection::new(Tls::new().0, name).unwrap();
    let mut stream = StreamOwned::new(tls, dial("inference.local:443"));
    // Otherwise the first request would open it.
    stream.conn.complete_io(&mut stream.sock).unwrap();
    Connection::new(Box::new(stream))
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// A client that trusts the certificates of SSL_CERT_FILE and never resumes a session.
pub(crate) struct Tls(pub(crate) Arc<ClientConfig>);

impl Tls {
    pub(crate) fn new() -> Self {
        let mut roots = RootCertStore::empty();
        let bundle = std::env::var("SSL_CERT_FILE").unwrap();
        roots.add_parsable_certificates(
            CertificateDer::pem_file_iter(bundle)
                .unwrap()
                .map(Result::unwrap),
        );
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Self(Arc::new(config))
    }

    fn open(&self) -> Connection<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from("10.99.0.1").unwrap();
        let tls = ClientConnection::new(Arc::clone(&self.0), name).unwrap();
        Connection::new(StreamOwned::new(tls, dial(TLS_TARGET)))
    }
}

/// An HTTP/1.1 connection with its read buffer.
pub(crate) struct Connection<S> {
    stream: S,
    buffer: Vec<u8>,
    read: usize,
    filled: usize,
    /// A further header line of each request, or empty.
    header: String,
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            buffer: vec![0; 256 * 1024],
            read: 0,
            filled: 0,
            header: String::new(),
        }
    }

    fn ask(&mut self, path: &str) {
        let end = if self.header.is_empty() { "" } else { "\r\n" };
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: 10.99.0.1\r\n{}{end}\r\n",
            self.header
        );
        self.stream.write_all(head.as_bytes()).unwrap();
    }

    /// Sends a body of random bytes, like those of archives.
    fn upload(&mut self, bytes: usize) {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let block: Vec<u8> = (0..1 << 20)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[3]
            })
            .collect();
        let head = format!(
            "POST /upload HTTP/1.1\r\nHost: 10.99.0.1\r\nContent-Length: {bytes}\r\n{}\r\n\r\n",
            self.header
        );
        self.stream.write_all(head.as_bytes()).unwrap();
        let mut left = bytes;
        while left > 0 {
            let most = left.min(block.len());
            self.stream.write_all(&block[..most]).unwrap();
            left -= most;
        }
        self.answer();
    }

    /// Sends a request for a model; `base` selects the response of the backend.
    fn ask_model(&mut self, base: &str) {
        let (base, host) = match std::env::var_os("HTTPS_PROXY") {
            Some(_) => (String::new(), "inference.local"),
            None => (format!("/{base}"), "10.99.0.1"),
        };
        let body = r#"{"model":"any","messages":[{"role":"user","content":"How are you today?"}]}"#;
        let path = format!("{base}/v1/chat/completions");
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: \
             application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        self.stream.write_all((head + body).as_bytes()).unwrap();
    }

    fn complete(&mut self, base: &str) {
        self.ask_model(base);
        self.answer();
    }

    fn fetch(&mut self, path: &str) {
        self.ask(path);
        self.answer();
    }

    /// Sends a body of JSON, and reads the response.
    pub(crate) fn post(&mut self, path: &str, body: &[u8]) {
        self.ask_with(path, body);
        self.answer();
    }

    fn ask_with(&mut self, path: &str, body: &[u8]) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {TARGET}\r\nContent-Type: application/json\r\nAccept: application/json, \
             text/event-stream\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream
            .write_all(&[head.as_bytes(), body].concat())
            .unwrap();
    }

    /// Calls a tool that answers by events, and returns the delay of each.
    fn events_of_call(&mut self, count: usize) -> Vec<f64> {
        let body = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"called"}}"#;
        self.ask_with(&format!("/events{count}"), body);
        while !self.line().is_empty() {}
        self.delays(count)
    }

    fn answer(&mut self) {
        let mut left = None;
        loop {
            let line = self.line();
            if line.is_empty() {
                break;
            }
            if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                left = Some(length.parse::<usize>().unwrap());
            }
        }
        match left {
            Some(left) => self.skip(left),
            None => loop {
                let size = usize::from_str_radix(&self.line(), 16).unwrap();
                self.skip(size);
                self.line();
                if size == 0 {
                    break;
                }
            },
        }
    }

    fn skip(&mut self, mut left: usize) {
        while left > 0 {
            if self.read == self.filled {
                self.fill();
            }
            let used = left.min(self.filled - self.read);
            self.read += used;
            left -= used;
        }
    }

    /// Returns the delays of `count` events, which carry their time of sending.
    fn events(&mut self, count: usize) -> Vec<f64> {
        self.ask(&format!("/events{count}"));
        while !self.line().is_empty() {}
        self.delays(count)
    }

    fn delays(&mut self, count: usize) -> Vec<f64> {
        let mut delays = Vec::new();
        while delays.len() < count {
            if let Some(sent) = self.line().strip_prefix("data: ") {
                delays.push(now() - sent.parse::<f64>().unwrap());
            }
        }
        delays
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        loop {
            if self.read == self.filled {
                self.fill();
            }
            let byte = self.buffer[self.read];
            self.read += 1;
            match byte {
                b'\n' => return String::from_utf8(line).unwrap(),
                b'\r' => {}
                byte => line.push(byte),
            }
        }
    }

    fn fill(&mut self) {
        self.filled = self.stream.read(&mut self.buffer).unwrap();
        self.read = 0;
        assert!(self.filled > 0, "the stream ended early");
    }
}

/// Seconds of the clock that all processes share.
pub(crate) fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// Idle processes. Dropping this ends them.
struct Idle(Vec<Child>);

impl Idle {
    fn new(count: usize) -> Self {
        let idle = || {
            Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
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
