//! Names inside, and connections that need no proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lab::Lab;
use lab::host::{Program, UID};

use super::client::{median, median_of, timed};
use super::results::{self, MICRO, MILLI, RATE, SPEED};
use super::{host, inside, inside_with, link_client, outside_with, pairs, this};

/// The name of the upstream, and its port.
const NAME: &str = "web.test:8080";

/// A policy that permits the client the upstream by its name, and `programs` of databases theirs.
fn policy(programs: &[&str]) -> String {
    let binaries: String = programs
        .iter()
        .map(|path| format!("{{path: {path}}}, "))
        .collect();
    let this = this();
    format!(
        "process: {{run_as_user: \"{UID}\"}}\nfilesystem_policy: {{read_only: \
         [{this}]}}\nnetwork_policies:\n  bench: {{endpoints: [{{host: web.test, ports: [8080, \
         5432, 6379], protocol: tcp, allowed_ips: [10.99.0.1]}}, {{host: 10.99.0.1, port: 8080, \
         protocol: tcp}}], binaries: [{binaries}{{path: {this}}}]}}\n"
    )
}

/// A task of the client: connections to the upstream by its name, without a proxy.
pub(crate) fn run(words: &[String]) -> f64 {
    let count = words[1].parse().unwrap();
    match words[0].as_str() {
        // One request a connection; the name is resolved before, or each time.
        "named" => {
            let known = resolve();
            let is_known = words[2] == "known";
            median(count, || {
                timed(|| request(if is_known { known } else { resolve() }, "/"))
            })
        }
        "named-relay" => median(count, || {
            timed(|| request("10.98.0.1:8083".parse().unwrap(), "/"))
        }),
        "named-bytes" => timed(|| request(resolve(), &format!("/{count}"))).as_secs_f64(),
        // The moment at which a new name is answered, after this many others were in use.
        "swapped" => {
            for n in 0..count {
                assert!(
                    format!("h{n}.test:8080").to_socket_addrs().is_ok(),
                    "h{n}.test"
                );
            }
            println!("ready");
            while "g0.test:8080".to_socket_addrs().is_err() {}
            now()
        }
        // Questions for the name, `1/words[2]` of a second apart; this percentile.
        _ => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.200.0.1:53").unwrap();
            let pause = Duration::from_secs(1)
                .checked_div(words[2].parse().unwrap())
                .unwrap_or_default();
            let begin = Instant::now();
            let mut times: Vec<_> = (0..u32::try_from(count).unwrap())
                .map(|n| {
                    std::thread::sleep(
                        (begin + pause * n).saturating_duration_since(Instant::now()),
                    );
                    timed(|| ask(&socket)).as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            times[count * words[3].parse::<usize>().unwrap() / 100]
        }
    }
}

fn resolve() -> SocketAddr {
    NAME.to_socket_addrs().unwrap().next().unwrap()
}

/// One request in a connection of its own, read to the end.
fn request(to: SocketAddr, path: &str) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .unwrap();
    let wanted: usize = path[1..].parse().unwrap_or(2);
    let mut buffer = vec![0; 256 * 1024];
    let mut filled = 0;
    let head = loop {
        filled += stream.read(&mut buffer[filled..]).unwrap();
        if let Some(head) = buffer[..filled]
            .windows(4)
            .position(|end| end == b"\r\n\r\n")
        {
            break head + 4;
        }
    };
    let mut read = filled - head;
    while read < wanted {
        let more = stream.read(&mut buffer).unwrap();
        assert!(more > 0, "{read} of {wanted} bytes");
        read += more;
    }
}

/// Asks for the name `rate` times a second, if that is not 0, and waits for each answer.
pub(crate) fn flood(rate: u32) {
    const AT_ONCE: u32 = 10;
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("10.200.0.1:53").unwrap();
    let Some(pause) = Duration::from_secs(1).checked_div(rate / AT_ONCE) else {
        return;
    };
    let begin = Instant::now();
    for n in 1.. {
        let mut answer = [0; 512];
        for _ in 0..AT_ONCE {
            assert!(socket.send(QUESTION).is_ok());
        }
        for _ in 0..AT_ONCE {
            assert!(socket.recv(&mut answer).is_ok());
        }
        std::thread::sleep((begin + pause * n).saturating_duration_since(Instant::now()));
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// A question for the address of the name.
const QUESTION: &[u8] =
    b"\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x03web\x04test\x00\x00\x01\x00\x01";

/// Asks it, and reads the answer.
fn ask(socket: &UdpSocket) {
    socket.send(QUESTION).unwrap();
    let mut answer = [0; 512];
    let filled = socket.recv(&mut answer).unwrap();
    assert_eq!(answer[filled - 4], 198, "an address of the pool");
}

pub(crate) fn answers(name: &str) {
    let (lab, _server) = host();
    for (row, words) in [
        ("p50", ["1000000", "50"]),
        ("p99, 1,000 a second", ["1000", "99"]),
    ] {
        let times: Vec<_> = (0..5)
            .map(|_| {
                inside(
                    &lab,
                    &policy(&[]),
                    &["questions", "2000", words[0], words[1]],
                )
            })
            .collect();
        let name = format!("{name} {row}");
        results::figure(&name, median_of(times) * MICRO.factor, MICRO);
    }
}

/// The answer of a name that the policy does not know and is asked about, to that of a known one.
pub(crate) fn unknown(name: &str) {
    let (lab, _server) = host();
    let task = ["questions", "2000", "1000000", "50"];
    let known = policy(&[]);
    let other = super::policy(10);
    let asked = || inside_with(&lab, &other, &["--ask"], &task);
    pairs(name, MICRO, || inside(&lab, &known, &task), asked);
}

/// Requests through the proxy while 10,000 questions a second are answered, to those without.
pub(crate) fn beside_questions(name: &str) {
    let (lab, _server) = host();
    let asked = |rate| inside(&lab, &policy(&[]), &["asked", "10000", rate]);
    pairs(name, MILLI, || asked("0"), || asked("10000"));
}

/// From a changed policy to the answer for a name of it: with 1,000 names in use that it replaces,
/// to the same with one.
pub(crate) fn swapped(name: &str) {
    let (lab, _server) = host();
    let endpoints = |of: &str| -> String {
        (0..1000)
            .map(|n| format!("{{host: {of}{n}.test, port: 8080}}, "))
            .collect()
    };
    let this = this();
    let policy = |of| {
        format!(
            "filesystem_policy: {{read_only: [{this}]}}\nnetwork_policies:\n  bench: {{endpoints: \
             [{}], binaries: [{{path: {this}}}]}}\n",
            endpoints(of)
        )
    };
    let swap = |count: &str| {
        let mut command = lab.command();
        let file = lab.file("names.yaml", policy("h"));
        command.arg("--policy-data").arg(&file).arg("--").arg(&this);
        command
            .args(["client", "swapped", count])
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = lab.inside(move || command.spawn().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        std::fs::write(&file, policy("g")).unwrap();
        let begin = now();
        assert_eq!(lab.shell(&format!("kill -HUP {}", child.id())), "");
        let end = lines.next().unwrap().unwrap().parse::<f64>().unwrap();
        child.wait().unwrap();
        end - begin
    };
    pairs(name, MILLI, || swap("1"), || swap("1000"));
}

/// Connections by name, to those through a relay that copies whatever comes.
pub(crate) fn connections(name: &str, how: &str) {
    let (lab, _server) = host();
    link_client(&lab);
    let by_relay = || outside_with(&lab, "ip netns exec client", &["named-relay", "500"]);
    pairs(name, MILLI, by_relay, || {
        inside(&lab, &policy(&[]), &["named", "500", how])
    });
}

pub(crate) fn bytes(name: &str) {
    let (lab, _server) = host();
    let policy = policy(&[]);
    let by_name = || inside(&lab, &policy, &["named-bytes", "1073741824"]).recip();
    pairs(
        name,
        SPEED,
        || inside(&lab, &policy, &["bytes", "1073741824"]).recip(),
        by_name,
    );
}

/// Runs `command` with the host of a database as its last word, outside and inside; the first
/// number behind `word` is its result.
fn database(name: &str, lab: &Lab, program: &str, command: &str, number: impl Fn(&str) -> f64) {
    let policy = policy(&[program]);
    let outside = || number(&lab.shell(&format!("{command} web.test")));
    let inside = || {
        number(
            lab.sandbox(&policy)
                .sh(&format!("{command} web.test 2>&1"))
                .ok(),
        )
    };
    pairs(name, RATE, outside, inside);
}

/// Starts a server by a script that prints a line once it is ready.
fn server(lab: &Lab, script: &str) -> Program {
    let file = lab.file("server.sh", format!("#!/bin/sh\nset -e\n{script}\n"));
    lab.program(&[file.to_str().unwrap()])
}

pub(crate) fn postgresql(name: &str) {
    let lab = Lab::with_web();
    let users = std::fs::read_to_string("/etc/passwd").unwrap()
        + &format!("agent:x:{UID}:{UID}::/tmp:/bin/sh\n");
    let users = lab.file("passwd", users);
    assert_eq!(
        lab.shell(&format!("mount --bind {} /etc/passwd", users.display())),
        ""
    );
    let bin = std::fs::read_dir("/usr/lib/postgresql")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max()
        .unwrap();
    let bin = bin.join("bin").display().to_string();
    let folder = lab.folder("postgresql").display().to_string();
    let run = format!("setpriv --reuid {UID} --regid {UID} --clear-groups");
    let _server = server(
        &lab,
        &format!(
            "cd {folder}; {run} {bin}/initdb -D data -U agent --auth=trust >/dev/null
            echo 'host all all 0.0.0.0/0 trust' >> data/pg_hba.conf
            (until nc -z 10.99.0.1 5432; do :; done
            {bin}/pgbench -i -q -U agent -h 10.99.0.1 postgres >/dev/null 2>&1; echo ready) &
            exec {run} {bin}/postgres -D data -h 10.99.0.1 -k {folder} -c fsync=off 2>/dev/null >&2"
        ),
    );
    let tps = |text: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("tps = "))
            .unwrap_or_else(|| panic!("{text}"));
        line.split(' ').next().unwrap().parse().unwrap()
    };
    let program = format!("{bin}/pgbench");
    database(
        name,
        &lab,
        &program,
        &format!("{program} -S -n -c 8 -T 2 -U agent -d postgres -h"),
        tps,
    );
}

pub(crate) fn redis(name: &str, pipeline: u32) {
    let lab = Lab::with_web();
    let _server = server(
        &lab,
        "(until nc -z 10.99.0.1 6379; do :; done; echo ready) &
        exec redis-server --bind 10.99.0.1 --protected-mode no --save '' --dir /tmp >/dev/null",
    );
    let rate = |text: &str| {
        let line = text.lines().rfind(|line| line.starts_with("\"GET\""));
        line.unwrap_or_else(|| panic!("{text}"))
            .split('"')
            .nth(3)
            .unwrap()
            .parse()
            .unwrap()
    };
    let program = std::fs::canonicalize("/usr/bin/redis-benchmark")
        .unwrap()
        .display()
        .to_string();
    let count = 50_000 * pipeline;
    let command = format!("{program} --csv -t get -n {count} -c 50 -P {pipeline} -h");
    database(name, &lab, &program, &command, rate);
}
