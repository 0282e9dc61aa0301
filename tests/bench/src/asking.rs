//! What asking a person costs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lab::Lab;
use openshell_access::control::client::{FromQuestions, Places, Questions};
use openshell_access::control::wire::{Answer, Listing};

use super::client::TARGET;
use super::results::{self, MIB, MILLI, PERCENT};
use super::{host, inside, inside_with, installed, pairs, policy, policy_with_programs, run, this};

/// The requests of one program that are asked about in a sandbox; there is a bound for a minute.
const REQUESTS: usize = 100;

/// The lines of one host that are added in a sandbox.
const LINES: usize = 100;

/// How often a policy is read again to know how long it takes.
const RELOADS: usize = 9;

/// How long requests are held, and connections idle.
const HELD: Duration = Duration::from_secs(20);

/// Rules that permit the client `/` and nothing else.
const RULES: &str =
    "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /}}]";

pub(crate) fn permitted(name: &str) {
    let (lab, _server) = host();
    let task = ["requests", "300"];
    let asked = || inside_with(&lab, &policy(10), &["--ask"], &task);
    pairs(name, MILLI, || inside(&lab, &policy(10), &task), asked);
}

/// A sandbox that asks, and somebody who follows its questions.
struct Asking {
    child: Child,
    questions: Questions,
    /// When a policy that was read again came into force.
    reloads: mpsc::Receiver<Instant>,
}

impl Asking {
    fn start(lab: &Lab, policy: &str, client: &Path, task: &[&str]) -> Self {
        let file = lab.file("asked.yaml", policy);
        let mut command = lab.command();
        command.arg("--policy-data").arg(file);
        command.args(["--name", "asked", "--ask=3600", "--log-level", "info", "--"]);
        command.arg(client).arg("client").args(task);
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = lab.inside(move || command.spawn().unwrap());
        let log = BufReader::new(child.stderr.take().unwrap());
        let (reloaded, reloads) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = log.lines().map_while(Result::ok);
            for _ in lines.filter(|line| line.contains("Policy reloaded")) {
                let _ = reloaded.send(Instant::now());
            }
        });
        let socket = lab.inside(|| {
            let places = Places::new(None, None).unwrap();
            lab::wait_for(
                || places.connect("asked").ok(),
                || "the sandbox does not start".to_owned(),
            )
        });
        let questions = Questions::open(socket, true).unwrap();
        Self {
            child,
            questions,
            reloads,
        }
    }

    /// Returns the next listing for which `is_wanted` holds.
    fn listing(&self, is_wanted: impl Fn(&Listing) -> bool) -> Listing {
        loop {
            match self.questions.next().unwrap() {
                Some(FromQuestions::Listed(listing)) if is_wanted(&listing) => return listing,
                Some(_) => {}
                None => panic!("the sandbox has ended"),
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Requests that are held would wait for an hour.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves every request at the target with a short answer, and tells when it came.
fn upstream(lab: &Lab) -> mpsc::Receiver<Instant> {
    let (sender, arrived) = mpsc::channel();
    let listener = lab.inside(|| TcpListener::bind(TARGET).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 4096];
                while let Ok(1..) = stream.read(&mut buffer) {
                    if sender.send(Instant::now()).is_err() {
                        return;
                    }
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    arrived
}

/// Seconds from each answer `decision` to the first byte upstream, and seconds of each of some
/// reloads afterwards, both sorted.
fn delays(policy: &str, decision: &str, count: usize) -> (Vec<f64>, Vec<f64>) {
    let lab = Lab::with_web();
    let arrived = upstream(&lab);
    let number = count.to_string();
    let asking = Asking::start(&lab, policy, Path::new(&this()), &["held", &number]);
    let mut times = Vec::new();
    let mut last = String::new();
    while times.len() < count {
        let is_new = |listing: &Listing| {
            let mut questions = listing.questions.iter();
            questions.any(|question| question.state == "held" && question.id != last)
        };
        let listing = asking.listing(is_new);
        let mut questions = listing.questions.into_iter();
        let question = questions.find(|question| question.state == "held").unwrap();
        last = question.id.clone();
        let answer = Answer::Decide {
            id: question.id,
            decision: decision.to_owned(),
            line: 0,
            reason: String::new(),
        };
        let begin = Instant::now();
        asking.questions.answer(answer).unwrap();
        let at = arrived.recv_timeout(Duration::from_secs(30)).unwrap();
        times.push((at - begin).as_secs_f64());
    }
    let reload = |_| {
        let begin = Instant::now();
        assert_eq!(lab.shell(&format!("kill -HUP {}", asking.child.id())), "");
        let end = asking
            .reloads
            .recv_timeout(Duration::from_secs(30))
            .unwrap();
        (end - begin).as_secs_f64()
    };
    let mut reloads: Vec<_> = (0..RELOADS).map(reload).collect();
    times.sort_by(f64::total_cmp);
    reloads.sort_by(f64::total_cmp);
    (times, reloads)
}

fn percentile(times: &[f64], percent: usize) -> f64 {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// From the answer `once` to the first byte upstream, of 200 requests.
pub(crate) fn once(name: &str) {
    let policy = policy_with_programs(10, RULES, &[]);
    let (mut times, _) = delays(&policy, "once", REQUESTS);
    times.extend(delays(&policy, "once", REQUESTS).0);
    times.sort_by(f64::total_cmp);
    results::figure(name, percentile(&times, 99) * MILLI.factor, MILLI);
}

/// The same of the answer `run`, under a policy with `others` others, and a reload of that policy.
pub(crate) fn for_run(name: &str, others: usize) {
    let policy = policy_with_programs(others, RULES, &[]);
    let (times, reloads) = delays(&policy, "run", LINES);
    results::figure(name, percentile(&times, 99) * MILLI.factor, MILLI);
    let reload = percentile(&reloads, 50) * MILLI.factor;
    results::figure(&format!("{name}: a reload"), reload, MILLI);
}

/// Resident memory in MiB, and used processor time in seconds, of a process.
fn used(lab: &Lab, pid: u32) -> (f64, f64) {
    let rollup = lab.shell(&format!("grep ^Rss: /proc/{pid}/smaps_rollup"));
    let resident: f64 = rollup.split_whitespace().nth(1).unwrap().parse().unwrap();
    let stat = lab.shell(&format!("cat /proc/{pid}/stat"));
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11..13]
        .iter()
        .map(|text| text.parse::<f64>().unwrap())
        .sum();
    (resident / 1024.0, ticks / 100.0)
}

/// Memory and processor of 64 requests that are held, and of 64 idle connections.
pub(crate) fn held(name: &str) {
    let measured = |path: &str, is_held: bool| {
        let lab = Lab::with_web();
        let _arrived = upstream(&lab);
        // A program has 16 at most.
        let folder = lab.folder("programs");
        let copies: Vec<PathBuf> = (0..4)
            .map(|number| {
                let copy = folder.join(format!("client{number}"));
                std::fs::copy(this(), &copy).unwrap();
                copy
            })
            .collect();
        let policy = policy_with_programs(10, RULES, &copies);
        let words: Vec<_> = copies.iter().map(|copy| copy.to_str().unwrap()).collect();
        let task = [&["holding", path][..], &words].concat();
        let mut asking = Asking::start(&lab, &policy, Path::new(&this()), &task);
        if is_held {
            let all = |listing: &Listing| {
                listing
                    .questions
                    .iter()
                    .map(|question| question.held)
                    .sum::<usize>()
                    == 64
            };
            drop(asking.listing(all));
        }
        let mut line = String::new();
        BufReader::new(asking.child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let (_, before) = used(&lab, asking.child.id());
        std::thread::sleep(HELD);
        let (resident, after) = used(&lab, asking.child.id());
        (resident, (after - before) / HELD.as_secs_f64() * 100.0)
    };
    let (idle, _) = measured("/", false);
    let (held, processor) = measured("/held", true);
    results::figure(&format!("{name}, more memory than idle"), held - idle, MIB);
    results::figure(&format!("{name}, processor"), processor, PERCENT);
}

/// p99 of permitted requests beside 2,000 refused ones a second, with questions and without.
pub(crate) fn beside_refused(name: &str) {
    let (lab, _server) = host();
    let task = ["beside-refused", "2000"];
    let asked = || inside_with(&lab, &policy(10), &["--ask"], &task);
    pairs(name, MILLI, || inside(&lab, &policy(10), &task), asked);
}

/// A start with a program that answers, to one without.
pub(crate) fn start(name: &str) {
    let lab = Lab::with_web();
    let file = lab.file("policy.yaml", policy(0));
    let words = |flags: &str| {
        format!(
            "{} --policy-data {} --ask {flags} -- /bin/true",
            installed(&lab).display(),
            file.display()
        )
    };
    let with = words("--ask-command /bin/true ");
    let without = words("");
    pairs(
        name,
        MILLI,
        || run(&lab, &without.replace("  ", " ")),
        || run(&lab, &with.replace("  ", " ")),
    );
}
