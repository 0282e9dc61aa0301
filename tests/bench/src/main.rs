//! Costs of the sandbox, as ratios to the direct path in the same run: `cargo run --release
//! --package bench [--json FILE] [ROW…]`.

#![expect(
    clippy::unwrap_used,
    reason = "in a benchmark a failed step is a failed run"
)]
#![expect(clippy::disallowed_methods, reason = "it starts programs, and prints")]

mod asking;
mod client;
mod containers;
mod gateway;
mod http2;
mod messages;
mod names;
mod results;
mod server;
mod ssh;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use lab::Lab;
use lab::host::{Program, UID};

use results::{KIB, MB, MIB, MICRO, MILLI, RATE, SPEED, Unit};

/// Pairs of a row; the median of their ratios counts.
const PAIRS: usize = 9;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("client") => client::run(&words[1..]),
        Some("server") => server::run(words[1].as_ref()),
        _ => report(&words),
    }
}

/// Runs the rows named as arguments, all by default, and writes their results into a file if one is
/// asked for.
fn report(words: &[String]) {
    let mut asked = words.to_vec();
    let json = asked.iter().position(|word| word == "--json").map(|at| {
        assert!(at + 1 < asked.len(), "--json needs a file");
        PathBuf::from(asked.drain(at..at + 2).next_back().unwrap())
    });
    println!(
        "load before: {}",
        std::fs::read_to_string("/proc/loadavg").unwrap().trim()
    );
    println!(
        "{:<44} {:>9} {:>9} {:>9}   absolute, medians",
        "row", "median", "min", "max"
    );
    for (name, measure) in ROWS {
        if asked.is_empty() || asked.iter().any(|word| name.contains(word.as_str())) {
            measure(name);
            if let Some(file) = &json {
                results::write(file);
            }
        }
    }
}

type Row = (&'static str, fn(&str));

const ROWS: &[Row] = &[
    ("start: /bin/true / bwrap", |name| start(name, &policy(0))),
    ("start: /bin/true, 1,000 endpoints / bwrap", |name| {
        start(name, &endpoints())
    }),
    ("start: a tool call, carve-outs / bwrap", tool_call),
    ("crowd: start beside 299 / beside none", crowd),
    ("crowd: PSS of supervisor and init, of 100", idle_memory),
    ("connect: new CONNECT + request / direct", connect),
    ("connect: new CONNECT + request / relay", connect_relay),
    ("inside: connect of loopback / outside", |name| {
        connects(name, "loopback")
    }),
    ("inside: connect of a Unix socket / outside", |name| {
        connects(name, "unix")
    }),
    ("names: answer,", names::answers),
    ("names: connection + request / relay", |name| {
        names::connections(name, "known")
    }),
    ("names: the same with its look-up / relay", |name| {
        names::connections(name, "unknown")
    }),
    (
        "asking: answer of an unknown name / a known one",
        names::unknown,
    ),
    ("asking: new CONNECT + request, --ask / without", |name| {
        asking::permitted(name)
    }),
    ("asking: once, answer to upstream, p99", asking::once),
    ("asking: run, answer to upstream, p99", |name| {
        asking::for_run(name, 10)
    }),
    ("asking: run, 1,000 policies, p99", |name| {
        asking::for_run(name, 1_000)
    }),
    ("asking: 64 held", asking::held),
    (
        "asking: p99 beside 2,000 refused a second / no --ask",
        asking::beside_refused,
    ),
    ("asking: start with --ask-command / without", asking::start),
    (
        "names: p99 of requests beside 10,000 questions",
        names::beside_questions,
    ),
    ("names: a policy with 1,000 others in use", names::swapped),
    ("names: 1 GiB by name, speed / CONNECT", names::bytes),
    (
        "names: pgbench -S, 8 clients, speed / direct",
        names::postgresql,
    ),
    ("names: redis, 50 clients, speed / direct", |name| {
        names::redis(name, 1)
    }),
    ("names: redis, the same in pipelines of 16", |name| {
        names::redis(name, 16)
    }),
    ("policies: 1,000 / few", policies),
    ("idle: 1,000 idle processes / none", idle),
    ("process: new process a connection, 1,000 idle", process),
    ("process: the same, 10,000 idle / none", crowded),
    ("tunnel: small requests / plain relay", tunnel),
    ("bytes: 1 GiB through a tunnel, speed / direct", bytes),
    ("tls: new TLS tunnel + request / direct", tls),
    ("inspected: request, plain, one path / direct", |name| {
        inspected(name, "plain", 1)
    }),
    ("inspected: request, plain, 10,000 paths / direct", |name| {
        inspected(name, "plain", 10_000)
    }),
    ("inspected: request, TLS, one path / direct", |name| {
        inspected(name, "tls", 1)
    }),
    ("inspected: request, TLS, 10,000 paths / direct", |name| {
        inspected(name, "tls", 10_000)
    }),
    (
        "inspected: 10,000 paths, 1,000 policies / few",
        inspected_policies,
    ),
    ("rate: 16 connections, plain, a second / direct", |name| {
        rate(name, "plain", "16", "2")
    }),
    ("rate: 16 connections, TLS, a second / direct", |name| {
        rate(name, "tls", "16", "2")
    }),
    ("rate: 64 KiB, 4 connections, TLS / direct", |name| {
        rate(name, "tls", "4", "65536")
    }),
    ("tls-bytes: 1 GiB, speed / direct", tls_bytes),
    ("events: delay, p50 and p99", events),
    ("http2: 100 streams, TLS, a second / direct", http2_rate),
    ("http2: call of gRPC's, p50 / direct", calls),
    ("http2: p99 beside a slow stream / without", beside),
    ("credential: request with one / without, plain", |name| {
        credential(name, "plain")
    }),
    ("credential: request with one / without, TLS", |name| {
        credential(name, "tls")
    }),
    ("searched: 1 GiB down for a secret, TLS / not", searched),
    ("leaks: 1 GiB up, speed / off, plain", |name| {
        leaks_up(name, "plain", "report")
    }),
    ("leaks: 1 GiB up, speed / off, TLS", |name| {
        leaks_up(name, "tls", "report")
    }),
    ("leaks: 1 GiB up, block, speed / off, TLS", |name| {
        leaks_up(name, "tls", "block")
    }),
    ("observe: requests / enforced, plain", |name| {
        observe(name, "plain")
    }),
    ("observe: requests / enforced, TLS", |name| {
        observe(name, "tls")
    }),
    ("files: open and close, --log-files / without", opens),
    ("files: 2,000 files read, --log-files / without", |name| {
        tree(name, &["--log-files"])
    }),
    (
        "files: 2,000 files read, --observe-files / without",
        |name| tree(name, &["--observe-files", "--observe", OBSERVED]),
    ),
    ("leaks: small requests / off, plain", |name| {
        leaks_small(name, "plain")
    }),
    ("leaks: small requests / off, TLS", |name| {
        leaks_small(name, "tls")
    }),
    ("models: 50 streams, first byte / backend, p50", |name| {
        streams(name, "first", "50")
    }),
    ("models: 50 streams, first byte / backend, p99", |name| {
        streams(name, "first", "99")
    }),
    ("models: 50 streams, event delay / backend, p99", |name| {
        streams(name, "delay", "99")
    }),
    ("models: short answers a second / backend", completions),
    ("models: memory", model_memory),
    ("memory", memory),
    ("messages: tools/call of 1 KiB / request", |name| {
        messages::calls(name, 1024)
    }),
    ("messages: tools/call of 100 KiB / request", |name| {
        messages::calls(name, 100 * 1024)
    }),
    (
        "messages: 1 KiB, new arguments / new paths",
        messages::conditions,
    ),
    ("messages: 1,000 rules for tools / 10", messages::rules),
    (
        "messages: a list of 200 tools, filtered / whole",
        messages::lists,
    ),
    (
        "messages: delay of an event / of a request",
        messages::events,
    ),
    (
        "messages: memory, 1,000 half bodies of 1 MiB",
        messages::halves,
    ),
    ("reload: 1,000 policies", reload),
    ("gateway: start / files", gateway::start),
    (
        "gateway: SIGHUP, 1,000 policies, acknowledged",
        gateway::reload,
    ),
    ("gateway: requests with lines pushed / not", gateway::logs),
    (
        "gateway: CPU us a request, 5,000/s, pushed / not",
        gateway::cost,
    ),
    ("gateway: 100 relays of small messages, p99", gateway::small),
    (
        "gateway: 1 GiB by a relay, speed / loopback",
        gateway::relay,
    ),
    ("ssh: host true / sshd", ssh::command),
    ("ssh: 1 GiB of output, speed / sshd", ssh::bytes),
    ("ssh: rsync of 20,000 files / sshd", ssh::files),
    ("ssh: memory of an idle session, of 200", ssh::sessions),
    ("exec: /bin/true / bwrap", ssh::exec),
    (
        "container: /bin/true in a sandbox / alone",
        containers::start,
    ),
    (
        "container: PSS of supervisor and init, of 200",
        containers::memory,
    ),
];

/// Measures both of a pair in turn, and prints the ratios of the second to the first.
fn pairs(name: &str, unit: Unit, mut first: impl FnMut() -> f64, mut second: impl FnMut() -> f64) {
    let results: Vec<_> = (0..PAIRS).map(|_| (first(), second())).collect();
    let sorted = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        values
    };
    let ratios = sorted(results.iter().map(|(one, other)| other / one).collect());
    let median = |values: Vec<f64>| sorted(values)[PAIRS / 2] * unit.factor;
    let one = median(results.iter().map(|(one, _)| *one).collect());
    let other = median(results.iter().map(|(_, other)| *other).collect());
    let least_to_most = [ratios[PAIRS / 2], ratios[0], ratios[PAIRS - 1]];
    results::ratio(name, least_to_most, Some(([other, one], unit)));
}

fn this() -> String {
    std::env::current_exe().unwrap().display().to_string()
}

/// Creates a host with running servers.
fn host() -> (Lab, Program) {
    let lab = Lab::with_web();
    let server = lab.program(&[&this(), "server", &certificate(&lab)]);
    (lab, server)
}

/// Path of the server's certificate.
fn certificate(lab: &Lab) -> String {
    lab.folder("server")
        .join("certificate.pem")
        .display()
        .to_string()
}

/// A policy that permits the client its servers as passthrough, among `count` others.
fn policy(count: usize) -> String {
    policy_with(count, "tls: skip")
}

/// The same with rules for requests.
fn judged(count: usize) -> String {
    let rules = "{allow: {method: GET, path: \"/**\"}}, {allow: {method: POST, path: \"/api/**\", \
                 query: {v: \"1*\"}}}";
    policy_with(
        count,
        &format!("protocol: rest, enforcement: enforce, rules: [{rules}]"),
    )
}

fn policy_with(count: usize, words: &str) -> String {
    policy_with_programs(count, words, &[])
}

/// The same for this program and `others`.
fn policy_with_programs(count: usize, words: &str, programs: &[PathBuf]) -> String {
    let this = this();
    let programs: Vec<_> = programs
        .iter()
        .map(|program| program.display().to_string())
        .chain([this])
        .collect();
    let readable = programs.join(", ");
    let binaries: Vec<_> = programs
        .iter()
        .map(|program| format!("{{path: {program}}}"))
        .collect();
    let binaries = binaries.join(", ");
    let endpoints = format!("[{{host: 10.99.0.1, ports: [8080, 8081, 8443, 8444], {words}}}]");
    let others: String = (0..count)
        .map(|n| {
            format!(
                "  p{n}: {{endpoints: [{{host: h{n}.test, port: 443}}, {{host: \
                     \"*.h{n}.test\", port: 443}}], binaries: [{{path: /usr/bin/b{n}}}]}}\n"
            )
        })
        .collect();
    format!(
        "process: {{run_as_user: \"{UID}\"}}\nfilesystem_policy: {{read_only: \
         [{readable}]}}\nnetwork_policies:\n  bench: {{endpoints: {endpoints}, binaries: \
         [{binaries}]}}\n{others}"
    )
}

fn inside(lab: &Lab, policy: &str, task: &[&str]) -> f64 {
    inside_with(lab, policy, &[], task)
}

fn inside_with(lab: &Lab, policy: &str, flags: &[&str], task: &[&str]) -> f64 {
    let this = this();
    let certificate = certificate(lab);
    let sandbox = lab
        .sandbox(policy)
        .args(&["--upstream-ca-file", &certificate])
        .args(flags);
    let finished = sandbox.run(&[&[&this, "client"], task].concat());
    finished.ok().lines().last().unwrap().parse().unwrap()
}

fn outside(lab: &Lab, task: &[&str]) -> f64 {
    outside_with(lab, "", task)
}

/// The same with variables, or a command that runs it.
fn outside_with(lab: &Lab, words: &str, task: &[&str]) -> f64 {
    let certificate = certificate(lab);
    let printed = lab.shell(&format!(
        "SSL_CERT_FILE={certificate} {words} {} client {}",
        this(),
        task.join(" ")
    ));
    printed
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{printed}"))
}

/// Seconds of one run of `command`, the mean of twenty, as the noise of one is too large.
fn run(lab: &Lab, command: &str) -> f64 {
    let command = command.to_owned();
    lab.inside(move || {
        let words: Vec<_> = command.split(' ').collect();
        let start = Instant::now();
        for _ in 0..20 {
            let mut command = Command::new(words[0]);
            lab::sandbox::as_caller(&mut command);
            assert!(
                command
                    .args(&words[1..])
                    .stderr(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            );
        }
        start.elapsed().as_secs_f64() / 20.0
    })
}

/// Returns the program as it is delivered: linked statically, and copied, as an installation does,
/// for the kernel maps the pages of a file that the linker has just written one by one.
pub(crate) fn installed(lab: &Lab) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let version = Command::new("rustc").arg("-vV").output().unwrap();
        let version = String::from_utf8(version.stdout).unwrap();
        let host = version
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .unwrap()
            .to_owned();
        let folder = std::env::current_exe()
            .unwrap()
            .parent()
            .unwrap()
            .with_file_name("static");
        let mut build = Command::new("cargo");
        build.args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            "openshell-sandbox",
        ]);
        build
            .args([
                "--config",
                ".cargo/static.toml",
                "--target",
                &host,
                "--target-dir",
            ])
            .arg(&folder);
        // They would replace those of the file.
        build
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS");
        build.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        assert!(
            build.status().unwrap().success(),
            "the static program does not build"
        );
        folder.join(host).join("release/openshell-sandbox")
    });
    let place = lab.folder("installed").join("openshell-sandbox");
    if !place.exists() {
        std::fs::copy(built, &place).unwrap();
    }
    place
}

fn sandboxed(lab: &Lab, policy: &Path, command: &str) -> String {
    format!(
        "{} --policy-data {} -- {command}",
        installed(lab).display(),
        policy.display()
    )
}

fn start(name: &str, policy: &str) {
    let lab = Lab::with_web();
    let ours = sandboxed(&lab, &lab.file("policy.yaml", policy), "/bin/true");
    let bwrap = "bwrap --unshare-all --ro-bind / / --proc /proc --dev /dev /bin/true";
    pairs(name, MILLI, || run(&lab, bwrap), || run(&lab, &ours));
}

/// A shell in a project with a repository, a hidden file and a read-only folder, against bubblewrap
/// with as many mounts.
fn tool_call(name: &str) {
    let lab = Lab::with_web();
    let work = lab.folder("work").display().to_string();
    let made = lab.shell(&format!(
        "cd {work}; git init -q; mkdir keep; echo s3cret > .env; chown -R {UID}:{UID} ."
    ));
    assert_eq!(made, "");
    let rest = format!(
        "filesystem_policy: {{read_write: [{work}], read_only: [{work}/keep], hidden: \
         [{work}/.env]}}\n"
    );
    let policy = lab.file(
        "policy.yaml",
        format!("process: {{run_as_user: \"{UID}\"}}\nnetwork_policies: {{}}\n{rest}"),
    );
    let ours = format!(
        "{} --policy-data {} --workdir {work} -- sh -c true",
        installed(&lab).display(),
        policy.display()
    );
    let bwrap = format!(
        "bwrap --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --bind {work} {work} --ro-bind \
         {work}/keep {work}/keep --ro-bind {work}/.git/hooks {work}/.git/hooks --ro-bind /dev/null \
         {work}/.env --unshare-pid --new-session --die-with-parent --chdir {work} -- sh -c true"
    );
    pairs(name, MILLI, || run(&lab, &bwrap), || run(&lab, &ours));
}

/// A policy of a thousand endpoints.
fn endpoints() -> String {
    let endpoints: Vec<_> = (0..1000)
        .map(|n| format!("{{host: h{n}.test, port: 443}}"))
        .collect();
    format!(
        "process: {{run_as_user: \"{UID}\"}}\nnetwork_policies: {{bench: {{endpoints: [{}], \
         binaries: [{{path: /usr/bin/curl}}]}}}}\n",
        endpoints.join(", ")
    )
}

/// Running sandboxes, each of which has made a request and waits.
struct Crowd(Vec<Child>);

impl Crowd {
    fn start(lab: &Lab, policy: &Path, count: usize) -> Self {
        let start = |_| {
            let mut command = lab.command();
            command.arg("--policy-data").arg(policy).args([
                "--",
                &this(),
                "client",
                "waiting",
                "1",
            ]);
            command
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            lab.inside(move || command.spawn().unwrap())
        };
        let mut crowd = Self((0..count).map(start).collect());
        for child in &mut crowd.0 {
            let mut line = String::new();
            BufReader::new(child.stdout.as_mut().unwrap())
                .read_line(&mut line)
                .unwrap();
            assert_eq!(line, "ready\n", "its request was answered");
        }
        crowd
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in self.0.iter_mut() {
            drop(child.stdin.take());
        }
        for child in self.0.iter_mut() {
            drop(child.wait());
        }
    }
}

/// A start beside 299 sandboxes, to one beside none.
fn crowd(name: &str) {
    let (lab, _server) = host();
    let policy = lab.file("policy.yaml", policy(10));
    let ours = sandboxed(&lab, &policy, "/bin/true");
    let alone = || run(&lab, &ours);
    let first: Vec<_> = (0..PAIRS).map(|_| alone()).collect();
    let _crowd = Crowd::start(&lab, &policy, 299);
    let mut first = first.into_iter();
    pairs(name, MILLI, || first.next().unwrap(), || run(&lab, &ours));
}

/// Proportional set size of supervisor and init, the median of 100 sandboxes.
fn idle_memory(name: &str) {
    let (lab, _server) = host();
    let crowd = Crowd::start(&lab, &lab.file("policy.yaml", policy(10)), 100);
    let mut sizes: Vec<f64> = crowd
        .0
        .iter()
        .map(|child| pss(child.id()) + pss(init_of(child.id())))
        .collect();
    sizes.sort_by(f64::total_cmp);
    results::figure(name, sizes[50], MB);
}

/// The oldest child of a supervisor.
fn init_of(supervisor: u32) -> u32 {
    let children =
        std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
    children.split(' ').next().unwrap().parse().unwrap()
}

/// Proportional set size in megabytes.
fn pss(process: u32) -> f64 {
    let sizes = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let size = sizes.lines().find_map(|line| {
        line.strip_prefix("Pss:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<f64>()
            .ok()
    });
    size.unwrap() * 1024.0 / 1e6
}

fn connect(name: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    pairs(
        name,
        MILLI,
        || outside(&lab, &["requests", "500"]),
        || inside(&lab, &policy, &["requests", "500"]),
    );
}

/// Makes a network `client` on the lab, behind a link of the same kind as a sandbox's: the lab is
/// 10.98.0.1 there.
fn link_client(lab: &Lab) {
    let made = lab.shell(
        "ip netns add client && ip link add link0 mtu 65535 type veth peer name link1 mtu 65535 \
         netns client && ip addr add 10.98.0.1/24 dev link0 && ip link set link0 up && ip -n \
         client addr add 10.98.0.2/24 dev link1 && ip -n client link set link1 up",
    );
    assert_eq!(made, "");
}

/// The same to a relay without logic, which answers each CONNECT, and copies; its client is behind
/// a link, as in a sandbox.
fn connect_relay(name: &str) {
    let (lab, _server) = host();
    link_client(&lab);
    let policy = policy(10);
    let task = ["requests", "500"];
    let by_relay = || {
        outside_with(
            &lab,
            "HTTPS_PROXY=http://10.98.0.1:8082 ip netns exec client",
            &task,
        )
    };
    pairs(name, MILLI, by_relay, || inside(&lab, &policy, &task));
}

/// Connects that stay inside the sandbox.
fn connects(name: &str, kind: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    let task = ["connects", kind, "5000"];
    pairs(
        name,
        MICRO,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

/// Connections of new processes beside 10,000 idle ones with 100 descriptors each, to those beside
/// none.
fn crowded(name: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    let mut ratios: Vec<f64> = (0..3)
        .map(|_| inside(&lab, &policy, &["crowded", "200", "10000"]))
        .collect();
    ratios.sort_by(f64::total_cmp);
    results::ratio(name, [ratios[1], ratios[0], ratios[2]], None);
}

fn policies(name: &str) {
    let (lab, _server) = host();
    let few = policy(10);
    let many = policy(1000);
    let measure = |policy: &str| inside(&lab, policy, &["requests", "500"]);
    pairs(name, MILLI, || measure(&few), || measure(&many));
}

fn idle(name: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    let measure = |idle: &str| inside(&lab, &policy, &["requests", "500", idle]);
    pairs(name, MILLI, || measure("0"), || measure("1000"));
}

fn process(name: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    let task = ["processes", "100", "1000"];
    pairs(
        name,
        MILLI,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

fn tunnel(name: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    pairs(
        name,
        MICRO,
        || outside(&lab, &["tunnel", "5000", server::RELAY]),
        || inside(&lab, &policy, &["tunnel", "5000"]),
    );
}

fn bytes(name: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    let task = ["bytes", "1073741824"];
    // Speeds: larger is better.
    pairs(
        name,
        SPEED,
        || outside(&lab, &task).recip(),
        || inside(&lab, &policy, &task).recip(),
    );
}

fn tls(name: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let task = ["tls-requests", "300"];
    pairs(
        name,
        MILLI,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

fn inspected(name: &str, how: &str, paths: usize) {
    let (lab, _server) = host();
    let policy = judged(10);
    let paths = paths.to_string();
    let task = ["paths", how, "10000", &paths];
    pairs(
        name,
        MICRO,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

fn inspected_policies(name: &str) {
    let (lab, _server) = host();
    let few = judged(10);
    let many = judged(1000);
    let measure = |policy: &str| inside(&lab, policy, &["paths", "plain", "10000", "10000"]);
    pairs(name, MICRO, || measure(&few), || measure(&many));
}

fn rate(name: &str, how: &str, connections: &str, bytes: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let task = ["throughput", how, connections, bytes];
    pairs(
        name,
        RATE,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

fn http2_rate(name: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let task = ["http2", "100"];
    pairs(
        name,
        RATE,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

fn calls(name: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let task = ["calls", "5000"];
    pairs(
        name,
        MICRO,
        || outside(&lab, &task),
        || inside(&lab, &policy, &task),
    );
}

fn beside(name: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let measure = |how: &str| inside(&lab, &policy, &["beside", how, "5000"]);
    pairs(name, MILLI, || measure("none"), || measure("slow"));
}

fn tls_bytes(name: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let task = ["tls-bytes", "1073741824"];
    pairs(
        name,
        SPEED,
        || outside(&lab, &task).recip(),
        || inside(&lab, &policy, &task).recip(),
    );
}

/// Runs a task inside, with a credential that is bound to `hosts`.
fn with_credential(lab: &Lab, hosts: &str, task: &[&str]) -> f64 {
    let secret = lab.file("secret", "a-secret-that-is-as-long-as-keys-are-in-our-days");
    let text = format!(
        "credentials: {{KEY: {{file: {}, hosts: [{hosts}]}}}}",
        secret.display()
    );
    let file = lab.file("credentials.yaml", text);
    for file in [&secret, &file] {
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let words = [
        "--upstream-ca-file",
        &certificate(lab),
        "--credentials",
        file.to_str().unwrap(),
    ];
    let finished = lab
        .sandbox(&judged(10))
        .args(&words)
        .run(&[&[&this(), "client"], task].concat());
    finished.ok().lines().last().unwrap().parse().unwrap()
}

const BOUND: &str = "\"http://10.99.0.1:8080\", \"10.99.0.1:8443\"";
const BOUND_ELSEWHERE: &str = "other.test";

fn credential(name: &str, how: &str) {
    let (lab, _server) = host();
    let ask = |hosts: &str, value: &str| {
        with_credential(
            &lab,
            hosts,
            &["paths", how, "10000", "1", &format!("X-Key: {value}")],
        )
    };
    let placeholder = "openshell:resolve:env:KEY";
    pairs(
        name,
        MICRO,
        || ask(BOUND_ELSEWHERE, "a-value-that-is-no-placeholder"),
        || ask(BOUND, placeholder),
    );
}

fn searched(name: &str) {
    let (lab, _server) = host();
    let down = |hosts: &str| with_credential(&lab, hosts, &["tls-bytes", "1073741824"]).recip();
    pairs(name, SPEED, || down(BOUND_ELSEWHERE), || down(BOUND));
}

/// Runs a task inside, with the benchmark's server as backend of the models; `base` selects its
/// behaviour.
fn with_models(lab: &Lab, base: &str, task: &[&str]) -> f64 {
    let sandbox = lab
        .sandbox(&policy(10))
        .args(&["--inference-routes", &routes(lab, base)]);
    let finished = sandbox.run(&[&[&this(), "client"], task].concat());
    finished.ok().lines().last().unwrap().parse().unwrap()
}

fn routes(lab: &Lab, base: &str) -> String {
    let route = format!(
        "routes: [{{name: a, endpoint: \"http://10.99.0.1:8080/{base}/v1\", model: m, api_key: k, \
         protocols: [openai_chat_completions]}}]"
    );
    let file = lab.file("routes.yaml", route);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    file.display().to_string()
}

fn streams(name: &str, what: &str, part: &str) {
    let (lab, _server) = host();
    let task = ["streams", "paced50", "50", "50", what, part];
    pairs(
        name,
        MILLI,
        || outside(&lab, &task),
        || with_models(&lab, "paced50", &task),
    );
}

fn completions(name: &str) {
    let (lab, _server) = host();
    let task = ["completions", "16"];
    pairs(
        name,
        RATE,
        || outside(&lab, &task),
        || with_models(&lab, "ok", &task),
    );
}

/// Peak resident memory of the supervisor, in KiB: with a short response of a model, and with one
/// of 1 GiB.
fn model_memory(_: &str) {
    let (lab, _server) = host();
    for (name, base) in [
        ("a short answer", "2"),
        ("an answer of 1 GiB", "1073741824"),
    ] {
        let file = lab.file("policy.yaml", policy(10));
        let mut command = lab.command();
        command
            .arg("--policy-data")
            .arg(file)
            .arg("--inference-routes")
            .arg(routes(&lab, base))
            .arg("--")
            .arg(this());
        command
            .args(["client", "model-bytes", base])
            .env_clear()
            .env("PATH", "/usr/bin:/bin");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = lab.inside(move || command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse::<f64>()
            .unwrap();
        let name = format!("models: memory at most, with {name}");
        results::figure(&name, peak / 1024.0, MIB);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}

fn leaks_up(name: &str, how: &str, mode: &str) {
    let (lab, _server) = host();
    let policy = judged(10).replace("/api/**\", query: {v: \"1*\"}", "/upload\"");
    let task = ["upload", how, "1073741824", "X-Any: header"];
    let upload = |mode: &str| inside_with(&lab, &policy, &["--leaks", mode], &task).recip();
    pairs(name, SPEED, || upload("off"), || upload(mode));
}

fn observe(name: &str, how: &str) {
    let (lab, _server) = host();
    let observed = lab
        .folder("observed")
        .join("policy.yaml")
        .display()
        .to_string();
    let policy = judged(10);
    let ask = |flags: &[&str]| inside_with(&lab, &policy, flags, &["paths", how, "20000", "1"]);
    pairs(name, MICRO, || ask(&[]), || ask(&["--observe", &observed]));
}

fn opens(name: &str) {
    let (lab, _server) = host();
    let policy = policy(0);
    let open = |flags: &[&str]| inside_with(&lab, &policy, flags, &["opens", "5000"]);
    pairs(name, MICRO, || open(&[]), || open(&["--log-files"]));
}

/// File of an observed policy, which each run replaces.
const OBSERVED: &str = "observed.yaml";

fn tree(name: &str, flags: &[&str]) {
    let (lab, _server) = host();
    let folder = lab.folder("tree");
    for number in 0..2000 {
        std::fs::write(folder.join(number.to_string()), [b'x'; 4096]).unwrap();
    }
    let path = folder.display().to_string();
    let observed = lab.folder("observed").join(OBSERVED).display().to_string();
    let flags = flags.iter().map(|flag| {
        if *flag == OBSERVED {
            observed.as_str()
        } else {
            flag
        }
    });
    let plain = ["--read", path.as_str()];
    let policy = policy(0);
    let flags: Vec<_> = plain.into_iter().chain(flags).collect();
    let read = |flags: &[&str]| inside_with(&lab, &policy, flags, &["tree", &path]);
    pairs(name, MILLI, || read(&plain), || read(&flags));
}

fn leaks_small(name: &str, how: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    let ask = |mode: &str| {
        inside_with(
            &lab,
            &policy,
            &["--leaks", mode],
            &["paths", how, "20000", "1"],
        )
    };
    pairs(name, MICRO, || ask("off"), || ask("report"));
}

fn events(_: &str) {
    let (lab, _server) = host();
    let policy = judged(10);
    for (name, how, part) in [
        ("plain, p50", "plain", "50"),
        ("plain, p99", "plain", "99"),
        ("TLS, p50", "tls", "50"),
        ("TLS, p99", "tls", "99"),
    ] {
        let task = ["events", how, "500", part];
        pairs(
            &format!("events: delay, {name} / direct"),
            MILLI,
            || outside(&lab, &task),
            || inside(&lab, &policy, &task),
        );
    }
}

/// Resident memory of the supervisor, in KiB: after a hundred requests, and with a thousand idle
/// tunnels.
fn memory(_: &str) {
    let (lab, _server) = host();
    let policy = policy(10);
    let few = resident(&lab, &policy, &["waiting", "100"]);
    let many = resident(&lab, &policy, &["tunnels", "1000"]);
    results::figure("memory: after 100 requests", few / 1024.0, MIB);
    results::figure(
        "memory: an idle tunnel, of 1,000",
        (many - few) / 1000.0,
        KIB,
    );
}

/// Returns the resident memory of a supervisor, in KiB, while its command waits in `task`.
fn resident(lab: &Lab, policy: &str, task: &[&str]) -> f64 {
    let policy = lab.file("policy.yaml", policy);
    let mut command = lab.command();
    command
        .arg("--policy-data")
        .arg(policy)
        .arg("--")
        .arg(this())
        .arg("client")
        .args(task);
    command
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command.stderr(Stdio::null());
    let mut child = lab.inside(move || command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let status = BufReader::new(File::open(format!("/proc/{}/status", child.id())).unwrap());
    let resident = status.lines().map_while(Result::ok).find_map(|line| {
        line.strip_prefix("VmRSS:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<f64>()
            .ok()
    });
    drop(child.stdin.take());
    child.wait().unwrap();
    resident.unwrap()
}

/// The slowest of a hundred requests in an open tunnel during repeated reloads of the policy, to
/// the same without.
fn reload(name: &str) {
    let (lab, _server) = host();
    let policy = lab.file("policy.yaml", policy(1000));
    let steady = |reloads: usize| {
        let mut command = lab.command();
        command
            .arg("--policy-data")
            .arg(&policy)
            .arg("--")
            .arg(this())
            .args(["client", "steady"]);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let mut child = lab.inside(move || command.spawn().unwrap());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        for _ in 0..reloads {
            assert_eq!(lab.shell(&format!("kill -HUP {}", child.id())), "");
            std::thread::sleep(Duration::from_millis(500));
        }
        if reloads == 0 {
            std::thread::sleep(Duration::from_secs(2));
        }
        drop(child.stdin.take());
        let result = lines.next().unwrap().unwrap().parse::<f64>().unwrap();
        child.wait().unwrap();
        result
    };
    pairs(
        &format!("{name}, p99 of requests"),
        MILLI,
        || steady(0),
        || steady(4),
    );
    println!(
        "{}",
        lab.shell("grep -h 'reloaded' /var/log/openshell.*.log | tail -1")
            .trim()
    );
}
