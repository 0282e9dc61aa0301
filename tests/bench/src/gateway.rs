//! Sandboxes that a gateway launched.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use gateway::proto::v1::{RelayFrame, TcpRelayTarget, relay_frame::Payload, relay_open::Target};
use gateway::{Answers, Gateway, Serving, policy};
use lab::Lab;
use lab::sandbox::Sandbox;

use super::results::{self, MIB, MICRO, MILLI, PERCENT, RATE, SPEED};
use super::{host, installed, pairs, run, sandboxed, this};

/// Bytes of a copy.
const BYTES: usize = 1 << 30;

/// Bytes of a frame.
const FRAME: usize = 16 * 1024 - 32;

/// A gateway on the lab's loopback interface.
struct Host {
    gateway: Gateway,
    serving: Serving,
    address: SocketAddr,
}

impl Host {
    fn start(lab: &Lab, document: &str) -> Self {
        let listener = lab.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let gateway = Gateway::new(Answers::default());
        let address = listener.local_addr().unwrap();
        gateway.answer(|answers| answers.config.workspace = "bench".to_owned());
        gateway.set_policy(policy(document));
        let serving = gateway.serve(listener);
        Self {
            gateway,
            serving,
            address,
        }
    }

    fn words(&self) -> [String; 4] {
        let endpoint = format!("http://{}", self.address);
        [
            "--sandbox-id".to_owned(),
            "bench".to_owned(),
            "--openshell-endpoint".to_owned(),
            endpoint,
        ]
    }
}

/// A policy that permits the client its servers, among `count` others.
fn document(count: usize) -> String {
    super::judged(count)
}

/// A start with a gateway, to one with files.
pub(crate) fn start(name: &str) {
    let lab = Lab::with_web();
    let document = super::policy(0);
    let host = Host::start(&lab, &document);
    let files = sandboxed(&lab, &lab.file("policy.yaml", document), "/bin/true");
    let ours = format!(
        "{} {} -- /bin/true",
        installed(&lab).display(),
        host.words().join(" ")
    );
    pairs(name, MILLI, || run(&lab, &files), || run(&lab, &ours));
}

/// From SIGHUP to the acknowledgement of a policy of a thousand endpoints.
pub(crate) fn reload(name: &str) {
    let (lab, _server) = host();
    let host = Host::start(&lab, &document(1000));
    let mut command = lab.command();
    command
        .args(host.words())
        .args(["--", "/bin/sleep", "600"])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let mut child = lab.inside(move || command.stderr(Stdio::null()).spawn().unwrap());
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let times = (0..9).map(|n| {
        host.gateway.set_policy(policy(&document(1001 + n)));
        let begin = Instant::now();
        let before = host.gateway.heard().statuses.len();
        assert_eq!(lab.shell(&format!("kill -HUP {}", child.id())), "");
        host.gateway.wait(|heard| heard.statuses.len() > before);
        begin.elapsed().as_secs_f64()
    });
    let time = super::client::median_of(times.collect());
    results::figure(name, time * MILLI.factor, MILLI);
    let before = ticks(child.id());
    std::thread::sleep(Duration::from_secs(20));
    // A hundred ticks a second.
    let share = (ticks(child.id()) - before) / 20.0;
    results::figure("gateway: idle with a session", share, PERCENT);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Processor time of a process in ticks, a hundredth of a second each.
fn ticks(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
}

/// A supervisor whose command is a client that says when it is ready.
struct Client {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(lab: &Lab, words: &[String], level: &str, task: &[&str]) -> Self {
        let mut command = lab.command();
        command
            .args(words)
            .args(["--", &this(), "client"])
            .args(task)
            .env("OPENSHELL_LOG_PUSH_LEVEL", level);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = lab.inside(move || command.spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut client = Self { child, lines };
        client.ready();
        client
    }

    fn ready(&mut self) {
        assert_eq!(self.lines.next().unwrap().unwrap(), "ready");
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        self.child.wait().unwrap();
    }
}

/// Processor time of the supervisor a request at 5,000 a second whose log lines a gateway gets, to
/// one whose lines it does not; then its memory, to that of one with files.
pub(crate) fn cost(name: &str) {
    const SECONDS: usize = 6;
    let (lab, _server) = host();
    let host = Host::start(&lab, &document(0));
    let per_request = |level| {
        let mut client = Client::start(
            &lab,
            &host.words(),
            level,
            &["paced", "5000", &SECONDS.to_string()],
        );
        let before = ticks(client.child.id());
        client.ready();
        let spent = ticks(client.child.id()) - before;
        client.end();
        spent / 100.0 / (5000 * SECONDS) as f64
    };
    pairs(name, MICRO, || per_request("error"), || per_request("info"));
    let file = lab.file("policy.yaml", document(0)).display().to_string();
    let files = ["--policy-data".to_owned(), file];
    let memory = |words: &[String]| {
        let mut client = Client::start(&lab, words, "info", &["paced", "1000", "1"]);
        client.ready();
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", client.child.id())).unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        let resident: f64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
        client.end();
        resident / 1024.0
    };
    pairs(
        "gateway: memory after 1,000 requests / files",
        MIB,
        || memory(&files),
        || memory(&host.words()),
    );
}

/// The slowest of each hundred small messages there and back by a hundred relays at once, 10 ms
/// between two of a relay, in milliseconds.
pub(crate) fn small(name: &str) {
    let lab = Lab::with_web();
    let host = Host::start(&lab, &document(0));
    let client = Client::start(&lab, &host.words(), "error", &["echo"]);
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let target = || {
        Some(Target::Tcp(TcpRelayTarget {
            host: "127.0.0.1".to_owned(),
            port: SINK.into(),
        }))
    };
    let relays: Vec<_> = (0..100)
        .map(|_| host.gateway.relay(&host.serving, target()).unwrap())
        .collect();
    let tasks = relays.into_iter().map(|mut relay| async move {
        let mut times = Vec::new();
        let mut due = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..200 {
            due.tick().await;
            let begin = Instant::now();
            let payload = Some(Payload::Data(bytes::Bytes::from_static(&[7; 64])));
            relay.to.send(Ok(RelayFrame { payload })).await.unwrap();
            let mut left = 64;
            while left > 0 {
                match relay.from.message().await.unwrap().unwrap().payload {
                    Some(Payload::Data(data)) => left -= data.len(),
                    other => panic!("{other:?}"),
                }
            }
            times.push(begin.elapsed().as_secs_f64());
        }
        times
    });
    let running: Vec<_> = tasks.map(|task| host.serving.handle.spawn(task)).collect();
    let mut times: Vec<_> = running
        .into_iter()
        .flat_map(|task| host.serving.handle.block_on(task).unwrap())
        .collect();
    times.sort_by(f64::total_cmp);
    let slowest = times[times.len() * 99 / 100];
    results::figure(name, slowest * MILLI.factor, MILLI);
    client.end();
}

/// Requests through the proxy whose log lines a gateway gets, to those whose lines it does not.
pub(crate) fn logs(name: &str) {
    let (lab, _server) = host();
    let host = Host::start(&lab, &document(0));
    let this = this();
    let rate = |level: &str| {
        let words = host.words();
        let sandbox = Sandbox::bare(&lab).args(&words.each_ref().map(String::as_str));
        let finished = sandbox.env("OPENSHELL_LOG_PUSH_LEVEL", level).run(&[
            &this,
            "client",
            "throughput",
            "plain",
            "4",
            "2",
        ]);
        finished.ok().lines().last().unwrap().parse().unwrap()
    };
    pairs(name, RATE, || rate("error"), || rate("info"));
}

/// A gibibyte to a server inside by a relay, to a copy over loopback; then the same by a session
/// without logic.
pub(crate) fn relay(name: &str) {
    let lab = Lab::with_web();
    let direct = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = std::thread::spawn(move || swallow(listener.accept().unwrap().0));
        let begin = Instant::now();
        for _ in 0..BYTES / FRAME {
            stream.write_all(&[7; FRAME]).unwrap();
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        served.join().unwrap();
        begin.elapsed().as_secs_f64().recip()
    };
    let by_relay = |host: &Host| {
        let target = Target::Tcp(TcpRelayTarget {
            host: "127.0.0.1".to_owned(),
            port: SINK.into(),
        });
        let mut relay = host.gateway.relay(&host.serving, Some(target)).unwrap();
        let begin = Instant::now();
        host.serving.handle.block_on(async {
            let frame = bytes::Bytes::from(vec![7; FRAME]);
            for _ in 0..BYTES / FRAME {
                relay
                    .to
                    .send(Ok(RelayFrame {
                        payload: Some(Payload::Data(frame.clone())),
                    }))
                    .await
                    .unwrap();
            }
            drop(relay.to);
            while relay.from.message().await.unwrap().is_some() {}
        });
        begin.elapsed().as_secs_f64().recip()
    };
    let start = |mut command: std::process::Command| {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = lab.inside(move || command.spawn().unwrap());
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut [0; 6])
            .unwrap();
        child
    };
    let end = |mut child: Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let host = Host::start(&lab, &document(0));
    let mut command = lab.command();
    command
        .args(host.words())
        .args(["--", &this(), "client", "sink"]);
    let supervisor = start(command);
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    pairs(name, SPEED, direct, || by_relay(&host));
    let without_logic = Host::start(&lab, &document(0));
    let mut command = std::process::Command::new(this());
    command.args(["client", "session", &without_logic.address.to_string()]);
    let plain = start(command);
    without_logic.gateway.wait(|heard| !heard.hellos.is_empty());
    pairs(
        "gateway: the same / a session without logic",
        SPEED,
        || by_relay(&without_logic),
        || by_relay(&host),
    );
    for item in [supervisor, plain] {
        end(item);
    }
}

/// A session with the gateway at `address` without a sandbox, and a server to which its relays
/// lead.
pub(crate) fn session(address: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address.parse().unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            swallow(client.unwrap());
        }
    });
    println!("ready");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(gateway::plain::serve(address, target));
}

/// Port of the server inside.
const SINK: u16 = 8000;

/// Serves clients one by one inside; reads all that they send.
pub(crate) fn sink() {
    let listener = TcpListener::bind(("127.0.0.1", SINK)).unwrap();
    println!("ready");
    loop {
        swallow(listener.accept().unwrap().0);
    }
}

/// Sends each client inside what it sends, until the end of the input.
pub(crate) fn echo() {
    let listener = TcpListener::bind(("127.0.0.1", SINK)).unwrap();
    println!("ready");
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut from, mut to) = client
                .and_then(|client| Ok((client.try_clone()?, client)))
                .unwrap();
            to.set_nodelay(true).unwrap();
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 256 * 1024];
    while stream.read(&mut buffer).unwrap() > 0 {}
}
