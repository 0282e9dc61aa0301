//! Sandboxes that a gateway launched.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use gateway::proto::v1::{RelayFrame, TcpRelayTarget, relay_frame::Payload, relay_open::Target};
use gateway::{Answers, Gateway, Serving, policy};
use lab::Lab;
use lab::sandbox::Sandbox;

use super::{MILLI, host, pairs, run, sandboxed, this};

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
        let (gateway, address) = (Gateway::new(Answers::default()), listener.local_addr().unwrap());
        gateway.answer(|answers| answers.config.workspace = "bench".to_owned());
        gateway.set_policy(policy(document));
        let serving = gateway.serve(listener);
        Self { gateway, serving, address }
    }

    fn words(&self) -> [String; 4] {
        let endpoint = format!("http://{}", self.address);
        ["--sandbox-id".to_owned(), "bench".to_owned(), "--openshell-endpoint".to_owned(), endpoint]
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
    let ours = format!("{} {} -- /bin/true", lab.program_path().display(), host.words().join(" "));
    pairs(name, MILLI, || run(&lab, &files), || run(&lab, &ours));
}

/// From SIGHUP to the acknowledgement of a policy of a thousand endpoints.
pub(crate) fn reload(name: &str) {
    let (lab, _server) = host();
    let host = Host::start(&lab, &document(1000));
    let mut command = lab.command();
    command.args(host.words()).args(["--", "/bin/sleep", "600"]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = lab.inside(move || command.stderr(Stdio::null()).spawn().unwrap());
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let times = (0..9).map(|n| {
        host.gateway.set_policy(policy(&document(1001 + n)));
        let (begin, before) = (Instant::now(), host.gateway.heard().statuses.len());
        assert_eq!(lab.shell(&format!("kill -HUP {}", child.id())), "");
        host.gateway.wait(|heard| heard.statuses.len() > before);
        begin.elapsed().as_secs_f64()
    });
    println!("{name:<44} {:>9.1} ms", super::client::median_of(times.collect()) * 1e3);
    let ticks = |pid: u32| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()
    };
    let before = ticks(child.id());
    std::thread::sleep(Duration::from_secs(20));
    // A hundred ticks a second.
    println!("{:<44} {:>9.2} % of a core", "gateway: idle with a session", (ticks(child.id()) - before) / 20.0);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Requests through the proxy whose log lines a gateway gets, to those whose lines it does not.
pub(crate) fn logs(name: &str) {
    let (lab, _server) = host();
    let host = Host::start(&lab, &document(0));
    let this = this();
    let rate = |level: &str| {
        let words = host.words();
        let sandbox = Sandbox::bare(&lab).args(&words.each_ref().map(String::as_str));
        let finished =
            sandbox.env("OPENSHELL_LOG_PUSH_LEVEL", level).run(&[&this, "client", "throughput", "plain", "4", "2"]);
        finished.ok().lines().last().unwrap().parse().unwrap()
    };
    pairs(name, 1.0, || rate("error"), || rate("info"));
}

/// A gibibyte to a server inside by a relay, to a copy over loopback.
pub(crate) fn relay(name: &str) {
    let lab = Lab::with_web();
    let host = Host::start(&lab, &document(0));
    let mut command = lab.command();
    command.args(host.words()).args(["--", &this(), "client", "sink"]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = lab.inside(move || command.stderr(Stdio::null()).spawn().unwrap());
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let by_relay = || {
        let target = Target::Tcp(TcpRelayTarget { host: "127.0.0.1".to_owned(), port: SINK.into() });
        let mut relay = host.gateway.relay(&host.serving, Some(target)).unwrap();
        let begin = Instant::now();
        host.serving.handle.block_on(async {
            let frame = bytes::Bytes::from(vec![7; FRAME]);
            for _ in 0..BYTES / FRAME {
                relay.to.send(Ok(RelayFrame { payload: Some(Payload::Data(frame.clone())) })).await.unwrap();
            }
            drop(relay.to);
            while relay.from.message().await.unwrap().is_some() {}
        });
        begin.elapsed().as_secs_f64().recip()
    };
    let direct = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = std::thread::spawn(move || swallow(listener.accept().unwrap().0));
        let begin = Instant::now();
        (0..BYTES / FRAME).for_each(|_| stream.write_all(&[7; FRAME]).unwrap());
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        served.join().unwrap();
        begin.elapsed().as_secs_f64().recip()
    };
    pairs(name, 1.0, direct, by_relay);
    child.kill().unwrap();
    child.wait().unwrap();
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

fn swallow(mut stream: TcpStream) {
    let mut buffer = vec![0; 256 * 1024];
    while stream.read(&mut buffer).unwrap() > 0 {}
}
