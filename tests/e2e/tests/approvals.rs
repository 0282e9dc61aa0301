//! Questions to a person: what is refused waits, and one answer lets it go on.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab::Lab;
use lab::sandbox::{Finished, Sandbox, Started};
use rustix::process::Signal;
use serde_json::Value;

use super::origin::Origin;
use super::python;

/// A policy that permits nothing of what the tests ask for.
pub(super) fn policy() -> String {
    super::policy(
        "{other: {endpoints: [{host: other.test, port: 443}], binaries: [{path: /usr/bin/curl}]}}",
    )
}

/// A running sandbox that asks.
pub(super) struct Asking<'l> {
    lab: &'l Lab,
    started: Started<'l>,
}

impl<'l> Asking<'l> {
    pub(super) fn start(lab: &'l Lab, policy: &str, command: &[&str]) -> Self {
        Self::of(lab.sandbox(policy), lab, command)
    }

    pub(super) fn of(sandbox: Sandbox<'l>, lab: &'l Lab, command: &[&str]) -> Self {
        Self::with(sandbox, lab, "--ask", command)
    }

    /// Starts a sandbox with `flag`, which makes it ask.
    pub(super) fn with(sandbox: Sandbox<'l>, lab: &'l Lab, flag: &str, command: &[&str]) -> Self {
        let started = sandbox.args(&["--name", "web", flag]).start(command);
        super::ssh::wait_for(lab, "PROC:LAUNCH");
        Self { lab, started }
    }

    /// Runs `openshell-sandbox approvals` with `words`; returns what it printed, and its exit code.
    pub(super) fn approvals(&self, words: &str) -> (String, i32) {
        approvals(self.lab, words)
    }

    /// Returns the questions once `is_wanted` holds for them.
    pub(super) fn questions(&self, is_wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        lab::wait_for(
            || {
                let questions = self.listed();
                is_wanted(&questions).then_some(questions)
            },
            || format!("{:?}\n{}", self.listed(), self.lab.log()),
        )
    }

    fn listed(&self) -> Vec<Value> {
        // Before the sandbox serves, there is only an error.
        let (listed, _) = self.approvals("--json web");
        let lines = listed.lines();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Returns the only question under which something waits.
    pub(super) fn held(&self) -> Value {
        let is_held = |question: &Value| question["state"] == "held";
        let questions = self.questions(|questions| questions.iter().any(is_held));
        questions.into_iter().find(is_held).unwrap()
    }

    /// Gives `answer` to `question`; it must be taken.
    #[track_caller]
    pub(super) fn decide(&self, question: &Value, answer: &str) {
        let id = question["id"].as_str().unwrap();
        let (said, code) = self.approvals(&format!("decide {id} {answer}"));
        assert_eq!(code, 0, "{said}");
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.started.signal(signal);
    }

    pub(super) fn wait(self) -> Finished {
        self.started.wait()
    }
}

fn approvals(lab: &Lab, words: &str) -> (String, i32) {
    let said = lab.shell(&format!("{} approvals {words}; echo $?", lab.binary()));
    let said = said.trim_end();
    let (text, code) = said.rsplit_once('\n').unwrap_or(("", said));
    (text.to_owned(), code.parse().unwrap())
}

pub(super) fn line(question: &Value) -> &str {
    question["lines"][0]["yaml"].as_str().unwrap()
}

/// curl by the proxy, whose output is the body and then the status.
const CURL: [&str; 6] = ["curl", "-sS", "-m", "60", "-w", " %{http_code}\n"];

#[test]
fn a_request_waits_until_one_answer_lets_it_go_on_and_the_next_one_is_asked_again() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:80");
    let url = "http://web.test/v1/items?draft=1";
    let asking = Asking::start(&lab, &policy(), &[&CURL[..], &[url, url]].concat());
    let question = asking.held();
    assert_eq!(question["kind"], "request");
    assert_eq!(question["program"], "/usr/bin/curl");
    assert_eq!(question["host"], "web.test");
    assert_eq!(question["path"], "/v1/items");
    assert_eq!(question["query"], "draft=1");
    assert_eq!(question["reason_code"], "endpoint_not_in_policy");
    assert!(
        line(&question).contains("{method: GET, path: /v1/items}"),
        "{question}"
    );
    assert!(web.seen().is_empty(), "nothing goes upstream");
    asking.decide(&question, "once");
    // It leads inside the network, which nobody was shown.
    let question = asking.held();
    assert_eq!(question["kind"], "addresses");
    assert_eq!(question["addresses"], serde_json::json!(["10.99.0.1"]));
    assert!(web.seen().is_empty(), "nothing goes upstream");
    asking.decide(&question, "once");
    lab::wait_until(|| web.seen().len() == 1, || lab.log());
    let next = asking.held();
    assert_eq!(next["kind"], "request");
    asking.decide(&next, "deny");
    let finished = asking.wait();
    let output = &finished.stdout;
    assert!(output.starts_with("hello 200\n"), "{output}");
    assert!(
        output.contains("\"asked\":\"denied\"") && output.contains(" 403\n"),
        "{output}"
    );
    for (event, count) in [
        ("APPROVAL:ASKED [LOW]", 3),
        ("APPROVAL:GRANTED [MED]", 2),
        ("APPROVAL:DENIED [INFO]", 1),
    ] {
        assert_eq!(
            finished.logged(event).len(),
            count,
            "{event}: {}",
            finished.log
        );
    }
    let granted = finished.logged("APPROVAL:GRANTED")[0];
    for part in ["[id:q-", "[by:terminal]", "[uid:", "[scope:once]"] {
        assert!(granted.contains(part), "{part}: {granted}");
    }
    let requests = finished.logged("HTTP:GET");
    assert_eq!(requests.len(), 2, "one event a request: {requests:#?}");
    assert!(
        requests.iter().all(|line| line.contains("[approval:q-")),
        "{requests:#?}"
    );
    let lines = finished.log.lines();
    let mut others = lines.filter(|line| !line.contains("PROC:"));
    assert!(
        others.all(|line| !line.contains("draft=1")),
        "no query is logged"
    );
}

#[test]
fn an_answer_for_the_run_holds_until_it_is_taken_back() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let folder = lab.folder("work");
    let script = "curl -sS -m 60 -w ' %{http_code}\\n' http://web.test/a; touch first; \
                  while ! [ -e go ]; do sleep 0.05; done; \
                  curl -sS -m 60 -w ' %{http_code}\\n' http://web.test/a";
    let folder = folder.to_str().unwrap();
    let sandbox = lab.sandbox(&policy()).args(&["--workdir", folder]);
    let asking = Asking::of(sandbox, &lab, &["sh", "-c", script]);
    asking.decide(&asking.held(), "run");
    asking.decide(&asking.held(), "run");
    let path = |name: &str| std::path::Path::new(folder).join(name);
    lab::wait_until(|| path("first").exists(), || lab.log());
    let (listed, _) = asking.approvals("--json web");
    let grants: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["grant"].is_string())
        .collect();
    assert_eq!(grants.len(), 2, "{listed}");
    let (_, code) = asking.approvals("revoke g1");
    assert_eq!(code, 0);
    let (said, code) = asking.approvals("revoke g1");
    assert_eq!(code, 3, "{said}");
    let (_, code) = asking.approvals("revoke g2");
    assert_eq!(code, 0);
    fs::write(path("go"), "").unwrap();
    let question = asking.held();
    asking.decide(&question, "deny_run");
    let finished = asking.wait();
    assert!(
        finished.stdout.starts_with("hello 200\n"),
        "{}",
        finished.stdout
    );
    assert!(finished.stdout.ends_with(" 403\n"), "{}", finished.stdout);
    assert_eq!(finished.logged("APPROVAL:REVOKED").len(), 2);
    for said in [
        "1 question waits for your answer: openshell-sandbox approvals web",
        "permitted by you:",
    ] {
        let stderr = &finished.stderr;
        assert!(stderr.contains(said), "{said}: {stderr}");
    }
}

#[test]
fn a_tunnel_of_each_door_waits_and_its_first_request_that_writes_is_asked_again() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    for door in [&["-p"][..], &["--socks5-hostname"][..]] {
        let tunnel = match door {
            ["-p"] => "curl -sS -m 60 -p",
            _ => "curl -sS -m 60 --socks5-hostname \"${ALL_PROXY#*//}\"",
        };
        let script = format!(
            "{tunnel} http://web.test:8080/a; {tunnel} -w ' %{{http_code}}' -d x \
             http://web.test:8080/b; echo"
        );
        let asking = Asking::start(&lab, &policy(), &["sh", "-c", &script]);
        let question = asking.held();
        assert_eq!(question["kind"], "connection", "{door:?}");
        assert!(line(&question).contains("access: read-only"), "{question}");
        // The connection and its address, of the first client and then of the second.
        asking.decide(&question, "once");
        for _ in 0..3 {
            asking.decide(&asking.held(), "once");
        }
        let question = asking.held();
        assert_eq!(question["kind"], "request", "{door:?}");
        assert_eq!(question["method"], "POST");
        assert_eq!(question["body"]["bytes"], 1);
        let marks = question["marks"].to_string();
        assert!(
            marks.contains("writes") && marks.contains("body"),
            "{marks}"
        );
        asking.decide(&question, "once");
        let finished = asking.wait();
        assert_eq!(
            finished.stdout, "hellohello 200\n",
            "{door:?}: {finished:?}"
        );
    }
}

#[test]
fn a_connection_that_is_permitted_once_does_what_was_shown_and_nothing_else() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:8080");
    let script = "curl -sS -m 60 -p http://web.test:8080/a http://web.test:8080/b; curl -sS -m 60 \
                  -p -o /dev/null -w '%{http_connect}' http://web.test:8080/c";
    let asking = Asking::start(&lab, &policy(), &["sh", "-c", script]);
    asking.decide(&asking.held(), "once");
    asking.decide(&asking.held(), "once");
    let question = asking.held();
    assert_eq!(question["kind"], "connection", "a new connection");
    asking.decide(&question, "deny");
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hellohello403", "{finished:?}");
    assert_eq!(web.seen().len(), 1, "one connection");
}

#[test]
fn an_address_inside_the_network_is_asked_although_the_policy_permits_the_name() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let policy = super::policy(
        "{web: {endpoints: [{host: web.test, port: 80}], binaries: [{path: /usr/bin/curl}]}}",
    );
    let script = "curl -sS -m 60 http://web.test/a; curl -sS -m 60 -p http://web.test/b; curl -sS -m \
                  60 -p -w ' %{http_connect}' http://web.test/c; curl -sS -m 60 -w ' %{http_code}' \
                  http://web.test/a";
    let asking = Asking::start(&lab, &policy, &["sh", "-c", script]);
    for answer in ["once", "once", "run"] {
        let question = asking.held();
        assert_eq!(question["kind"], "addresses");
        assert!(
            line(&question).contains("allowed_ips: [\"10.99.0.1\"]"),
            "{question}"
        );
        asking.decide(&question, answer);
    }
    assert_eq!(asking.wait().stdout, "hellohellohello 200hello 200");
}

#[test]
fn a_client_that_gives_up_is_never_sent_by_a_later_answer() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:80");
    let script = "curl -sS -m 1 http://web.test/a; curl -sS -m 60 -w '%{http_code}' \
                  http://web.test/a";
    let asking = Asking::start(&lab, &policy(), &["sh", "-c", script]);
    let first = asking.held();
    // The second client is held under the same question.
    super::ssh::wait_for(&lab, "APPROVAL:EXPIRED");
    assert!(lab.log().contains("[reason:client]"), "{}", lab.log());
    let second = asking.held();
    assert_eq!(second["id"], first["id"]);
    assert_eq!(second["held"], 1);
    asking.decide(&second, "deny");
    let finished = asking.wait();
    assert!(finished.stdout.ends_with("403"), "{finished:?}");
    assert!(web.seen().is_empty());
}

#[test]
fn while_nobody_looks_a_request_waits_a_short_time_and_then_gets_the_same_refusal() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let plain = lab
        .sandbox(&policy())
        .run(&[&CURL[..], &["http://web.test/a"]].concat());
    let begin = Instant::now();
    let asked = lab
        .sandbox(&policy())
        .args(&["--ask"])
        .run(&[&CURL[..], &["http://web.test/a"]].concat());
    let waited = begin.elapsed();
    assert!(
        waited >= Duration::from_secs(10) && waited < Duration::from_secs(60),
        "{waited:?}"
    );
    let without = asked.stdout.replace(",\"asked\":\"expired\"", "");
    assert_eq!(without, plain.stdout);
    assert_ne!(asked.stdout, plain.stdout);
}

#[test]
fn a_policy_file_has_a_person_asked_and_the_flag_wins() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let waiting = format!("{}approvals: {{hold: 7s}}\n", policy());
    let command = [&CURL[..], &["http://web.test/"]].concat();
    for (words, most) in [(&[][..], 7), (&["--ask=30s"], 30), (&["--ask"], 120)] {
        let sandbox = lab.sandbox(&waiting).args(words);
        let started = sandbox.args(&["--name", "web"]).start(&command);
        super::ssh::wait_for(&lab, "PROC:LAUNCH");
        let asking = Asking { lab: &lab, started };
        let left = asking.held()["seconds_left"].as_u64().unwrap();
        assert!(left <= most && left + 5 >= most, "{words:?}: {left}");
    }
    let observed = lab.sandbox(&waiting).args(&["--network", "block"]);
    assert_eq!(observed.run(&["true"]).code(), 0, "nothing is asked");
}

#[test]
fn a_grant_by_which_the_command_could_answer_for_you_is_named() {
    let lab = Lab::with_web();
    let of_user = format!("/tmp/tmux-{}/", lab::host::caller());
    let policy = format!(
        "{}filesystem_policy: {{read_only: [/tmp/.X11-unix/, {of_user}]}}\napprovals: {{hold: \
         7s}}\n",
        policy()
    );
    let silent = policy.replace("approvals: {hold: 7s}\n", "");
    let finished = lab.sandbox(&silent).run(&["true"]);
    assert!(finished.logged("type into your terminals").is_empty());
    let finished = lab.sandbox(&policy).run(&["true"]);
    let named = finished.logged("type into your terminals");
    assert_eq!(named.len(), 2, "{}", finished.log);
    assert!(
        named.iter().all(|line| line.contains("[HIGH]")),
        "{named:?}"
    );
    let file = lab.file("asking.yaml", &policy);
    let check = lab.shell(&format!("{} check {}", lab.binary(), file.display()));
    assert_eq!(
        check.matches("type into your terminals").count(),
        2,
        "{check}"
    );
}

#[test]
fn requests_inside_tls_wait_by_themselves_in_each_version_of_http() {
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /hello}}]";
    let endpoint = super::origin::policy(&["/usr/bin/curl"], rules);
    for version in ["--http1.1", "--http2"] {
        let lab = Lab::with_web();
        let origin = match version {
            "--http2" => Origin::http2(&lab),
            _ => Origin::start(&lab),
        };
        let urls = ["https://web.test/asked", "https://web.test/hello"];
        let words = [&CURL[..], &[version, "--parallel"], &urls[..]].concat();
        let authority = origin.authority();
        let sandbox = lab
            .sandbox(&endpoint)
            .args(&["--upstream-ca-file", &authority]);
        let asking = Asking::of(sandbox, &lab, &words);
        let question = asking.held();
        assert_eq!(question["kind"], "request");
        assert_eq!(question["path"], "/asked");
        assert_eq!(question["reason_code"], "request_not_in_rules");
        asking.decide(&question, "once");
        let finished = asking.wait();
        let asked = origin.asked();
        assert!(
            asked.contains(&"GET /asked".to_owned()),
            "{version}: {asked:?}"
        );
        assert!(
            !finished.stdout.contains(" 403\n"),
            "{version}: {finished:?}"
        );
    }
}

#[test]
fn streams_that_wait_keep_no_upstream_connection_from_others() {
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: /hello}}]";
    let endpoint = super::origin::policy(&[&python()], rules);
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    // More than the upstream, which speaks HTTP/1.1, gets connections.
    let program = "
client = Client()
for n in range(12): client.request(2 * n + 1, ask(f'/asked{n}'))
client.request(101, ask('/hello'))
print(client.until(HEADERS, stream=101))
answers = []
while len(answers) < 12:
    kind, flags, stream, payload = client.read()
    if kind == HEADERS and stream != 101: answers.append(status(payload))
print(set(answers))
";
    let program = [include_str!("data/frames.py"), program].concat();
    let authority = origin.authority();
    let sandbox = lab
        .sandbox(&endpoint)
        .args(&["--upstream-ca-file", &authority]);
    let asking = Asking::of(sandbox, &lab, &[&python(), "-c", &program]);
    let questions = asking.questions(|questions| questions.len() == 12);
    lab::wait_until(
        || origin.asked() == ["GET /hello"],
        || format!("{:?}", origin.asked()),
    );
    for question in &questions {
        asking.decide(question, "run");
    }
    let finished = asking.wait();
    assert_eq!(finished.ok(), "HEADERS 200\n{'200'}", "{finished:?}");
    assert_eq!(origin.asked().len(), 13);
    assert!(origin.connections() <= 6, "{}", origin.connections());
}

#[test]
fn a_request_with_a_body_inside_tls_goes_on_with_its_body() {
    let rules = "protocol: rest, enforcement: enforce, access: read-only";
    let endpoint = super::origin::policy(&["/usr/bin/curl"], rules);
    for version in ["--http1.1", "--http2"] {
        let lab = Lab::with_web();
        let origin = match version {
            "--http2" => Origin::http2(&lab),
            _ => Origin::start(&lab),
        };
        let words = [
            &CURL[..],
            &[version, "-v", "-d", "x=1", "https://web.test/hello"],
        ];
        let authority = origin.authority();
        let sandbox = lab
            .sandbox(&endpoint)
            .args(&["--upstream-ca-file", &authority]);
        let asking = Asking::of(sandbox, &lab, &words.concat());
        let question = asking.held();
        assert_eq!(question["method"], "POST");
        asking.decide(&question, "once");
        let finished = asking.wait();
        let asked = origin.asked();
        assert_eq!(asked, ["POST /hello"], "{version}: {finished:?}");
    }
}

#[test]
fn a_policy_that_is_loaded_while_a_request_waits_decides_about_it() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let file = lab.file("policy.yaml", policy());
    let sandbox = Sandbox::bare(&lab).args(&["--policy-data", file.to_str().unwrap()]);
    let asking = Asking::of(sandbox, &lab, &[&CURL[..], &["http://web.test/a"]].concat());
    let question = asking.held();
    let reload = |endpoint: &str| {
        let policy = super::policy(&format!(
            "{{web: {{endpoints: [{endpoint}], binaries: [{{path: /usr/bin/curl}}]}}}}"
        ));
        fs::write(&file, policy).unwrap();
        asking.started.signal(Signal::HUP);
    };
    // A deny rule wins over what was asked before it.
    let rules = "protocol: rest, enforcement: enforce, access: read-only";
    reload(&format!(
        "{{host: web.test, port: 80, allowed_ips: [10.99.0.1], {rules}, deny_rules: [{{method: GET, \
         path: /a}}]}}"
    ));
    let finished = asking.wait();
    assert!(
        finished.stdout.contains("request_in_deny_rules"),
        "{finished:?}"
    );
    assert!(question["id"].is_string());
}

#[test]
fn a_sandbox_that_asks_nobody_says_so_and_so_does_one_that_does_not_run() {
    let lab = Lab::with_web();
    let (said, code) = approvals(&lab, "web");
    assert!(said.contains("no sandbox of this user runs"), "{said}");
    assert_eq!(code, 1);
    let started = lab
        .sandbox(&policy())
        .args(&["--name", "web"])
        .start(&["sleep", "600"]);
    super::ssh::wait_for(&lab, "PROC:LAUNCH");
    for words in ["web", "--json", "decide q-1 once", "revoke g1"] {
        let (said, code) = approvals(&lab, words);
        let asks_nobody = said.contains("asks nobody") || said.contains("asks anybody");
        assert!(asks_nobody, "{words}: {said}");
        assert_eq!(code, 1, "{words}");
    }
    started.signal(Signal::TERM);
    assert_eq!(started.wait().code(), 143);
}

#[test]
fn nothing_inside_reaches_the_answers() {
    let lab = Lab::with_web();
    let folder = lab.folder("work");
    let program = lab.program_path();
    let read_only = format!("[{}]", program.parent().unwrap().display());
    let policy = policy() + &format!("filesystem_policy: {{read_only: {read_only}}}\n");
    let script = format!(
        "{} approvals; {0} approvals --json web; {0} approvals decide q-1 run; find / -name 'control*' \
         -type s 2>/dev/null; python3 -c 'import socket, glob\n\
         for path in glob.glob(\"/run/openshell/*/*\") + glob.glob(\"/run/user/*/openshell/*/*\") + \
         glob.glob(\"/tmp/openshell/*/*\"):\n\
         \x20   s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         \x20   try:\n\
         \x20       s.connect(path); s.send(b\"{{\\\"Questions\\\":{{\\\"is_following\\\":false}}}}\"); \
         print(s.recv(99))\n\
         \x20   except OSError as error: print(type(error).__name__)'; echo end",
        program.display()
    );
    let sandbox = lab
        .sandbox(&policy)
        .args(&["--workdir", folder.to_str().unwrap()]);
    let asking = Asking::of(sandbox, &lab, &["sh", "-c", &script]);
    let finished = asking.wait();
    assert!(finished.stdout.ends_with("end\n"), "{finished:?}");
    assert!(!finished.stdout.contains("Questions"), "{finished:?}");
    assert!(!finished.stdout.contains("grant"), "{finished:?}");
    assert_eq!(finished.logged("APPROVAL:").len(), 0, "{}", finished.log);
}

#[test]
fn options_under_which_nobody_can_say_what_an_answer_permits_are_refused() {
    let lab = Lab::with_web();
    let rules = lab.file("rules.rego", "package openshell.sandbox\n");
    let rules = rules.to_str().unwrap();
    for (words, said) in [
        (&["--ask=4"][..], "from 5 seconds to 1 hour"),
        (&["--ask=2h"], "from 5 seconds to 1 hour"),
        (&["--ask=x"], "expected a time from 5 seconds to 1 hour"),
        (&["--ask-rate", "5"], "--ask"),
        (&["--ask", "--ask-rate", "0"], "1..=60"),
        (&["--ask", "--ask-rate", "61"], "1..=60"),
        (&["--ask", "--network", "allow"], "--network allow"),
        (&["--ask", "--network", "block"], "--network block"),
        (&["--ask", "--observe", "/tmp/observed.yaml"], "--observe"),
        (&["--ask", "--policy-rules", rules], "--policy-rules"),
    ] {
        let finished = lab.sandbox(&policy()).args(words).run(&["true"]);
        assert!(
            finished.code() == 1 || finished.code() == 2,
            "{words:?}: {finished:?}"
        );
        assert!(
            finished.stderr.contains(said),
            "{words:?}: {}",
            finished.stderr
        );
    }
    let waiting = format!("{}approvals: {{hold: 5s}}\n", policy());
    let finished = lab
        .sandbox(&waiting)
        .args(&["--policy-rules", rules])
        .run(&["true"]);
    let said = "`approvals` of the policy does not go with --policy-rules";
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
    let with_variable = lab
        .sandbox(&policy())
        .env("OPENSHELL_POLICY_RULES", rules)
        .args(&["--ask"])
        .run(&["true"]);
    let said = &with_variable.stderr;
    assert_eq!(with_variable.code(), 1, "{said}");
    assert!(said.contains("OPENSHELL_POLICY_RULES"), "{said}");
}

#[test]
fn the_built_in_rules_in_a_file_are_no_rules_of_ones_own() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:80");
    let built_in = include_str!("../../../data/sandbox-policy.rego");
    let rules = lab.file("rules.rego", built_in);
    let url = "http://web.test/v1/items";
    let policy = super::policy(
        "{web: {endpoints: [{host: web.test, port: 80, allowed_ips: [10.99.0.1], protocol: rest, \
         enforcement: enforce, rules: [{allow: {method: GET, path: /a}}]}], binaries: [{path: \
         /usr/bin/curl}]}}",
    );
    let sandbox = lab
        .sandbox(&policy)
        .args(&["--policy-rules", rules.to_str().unwrap()]);
    let asking = Asking::of(sandbox, &lab, &[&CURL[..], &[url]].concat());
    asking.decide(&asking.held(), "run");
    let finished = asking.wait();
    assert!(finished.stdout.ends_with(" 200\n"), "{finished:?}");
    assert_eq!(web.seen().len(), 1);
}

#[test]
fn the_flags_beside_a_line_permit_the_same_in_the_next_run() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:80");
    let folder = lab.folder("work");
    let with_flags = |words: &str| {
        let sandbox = Sandbox::bare(&lab).args(&["--workdir", folder.to_str().unwrap()]);
        sandbox.args(&words.split(' ').collect::<Vec<_>>())
    };
    let url = "http://web.test/v1/items";
    let methods = [
        ("GET", "read-only"),
        ("POST", "read-write"),
        ("DELETE", "full"),
    ];
    for (seen, (method, access)) in methods.into_iter().enumerate() {
        let command = [&CURL[..], &["-X", method, url]].concat();
        let sandbox = with_flags("--allow other.test");
        let asking = Asking::of(sandbox, &lab, &command);
        let question = asking.held();
        let flags = question["lines"][0]["flag"].as_str().unwrap().to_owned();
        assert_eq!(flags, format!("--allow web.test:80={access}"), "{question}");
        let text = question["text"].as_str().unwrap();
        assert!(
            text.contains(&format!("next run   {flags} (for every program)")),
            "{text}"
        );
        asking.decide(&question, "once");
        let question = asking.held();
        let addresses = question["lines"][0]["flag"].as_str().unwrap().to_owned();
        assert_eq!(addresses, "--allow web.test:80@10.99.0.1");
        asking.decide(&question, "deny");
        asking.wait();
        assert_eq!(web.seen().len(), seen);
        let finished = with_flags(&flags).run(&command);
        assert!(
            finished.stdout.ends_with(" 403\n"),
            "it leads inside: {finished:?}"
        );
        let finished = with_flags(&addresses).run(&command);
        assert!(finished.stdout.ends_with(" 200\n"), "{finished:?}");
        assert_eq!(web.seen().len(), seen + 1);
    }
    let file = Asking::start(&lab, &policy(), &[&CURL[..], &[url]].concat());
    let question = file.held();
    assert_eq!(question["lines"][0]["flag"], Value::Null, "{question}");
    file.decide(&question, "deny");
    file.wait();
}

#[test]
fn what_a_person_permitted_is_no_change_of_a_recorded_log() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let policy = |rule: &str| {
        super::policy(&format!(
            "{{web: {{endpoints: [{{host: web.test, port: 80, allowed_ips: [10.99.0.1], protocol: rest, \
             enforcement: enforce, rules: [{{allow: {rule}}}]}}], binaries: [{{path: /usr/bin/curl}}]}}}}"
        ))
    };
    let before = policy("{method: GET, path: /a}");
    let sandbox = lab.sandbox(&before).args(&["--log-format", "json"]);
    let urls = ["/a", "/b", "/b", "/c"].map(|path| format!("http://web.test{path}"));
    let urls = urls.each_ref().map(String::as_str);
    let sandbox = sandbox.args(&["--name", "web", "--ask"]);
    let started = sandbox.start(&[&CURL[..], &urls].concat());
    let asking = Asking { lab: &lab, started };
    asking.decide(&asking.held(), "run");
    let next = |questions: &[Value]| {
        let mut held = questions
            .iter()
            .filter(|question| question["state"] == "held");
        held.any(|question| question["path"] == "/c")
    };
    asking.questions(next);
    asking.decide(&asking.held(), "once");
    assert!(asking.wait().stdout.ends_with(" 200\n"));
    let log = lab.logs().replace("openshell.*", "openshell-ocsf.*");
    let replayed = |policy: &str| {
        let file = lab.file("replayed.yaml", policy).display().to_string();
        let binary = lab.binary();
        lab.shell(&format!(
            "{binary} check {file} --replay \"$(ls {log})\" 2>&1; echo $?"
        ))
    };
    let said = replayed(&before);
    let apart = "A person permitted in that run:\n\
                 - /usr/bin/curl -> GET web.test:80/b: refused now, request_not_in_rules (2 x)\n\
                 - /usr/bin/curl -> GET web.test:80/c: refused now, request_not_in_rules (1 x)\n";
    assert!(said.contains(apart), "{said}");
    assert!(
        said.contains(" decisions, 0 changes, 2 that a person permitted\n0\n"),
        "{said}"
    );
    let said = replayed(&policy("{method: GET, path: \"/[bc]\"}"));
    let apart = "- /usr/bin/curl -> GET web.test:80/a: refused now, request_not_in_rules (1 x)\n\
                 A person permitted in that run:\n\
                 = /usr/bin/curl -> GET web.test:80/b: permitted now too (2 x)\n\
                 = /usr/bin/curl -> GET web.test:80/c: permitted now too (1 x)\n";
    assert!(said.contains(apart), "{said}");
    assert!(
        said.contains(" decisions, 1 changes, 2 that a person permitted\n3\n"),
        "{said}"
    );
}

#[test]
fn a_program_that_asks_for_too_much_is_refused_at_once() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    // Twenty at once, of which sixteen may wait.
    let program = "
import os, socket, sys, threading
host, port = os.environ['HTTP_PROXY'][7:].split(':')
codes = []
def ask(number):
    s = socket.create_connection((host, int(port)))
    s.sendall(b'GET http://web.test/%d HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n' % number)
    codes.append(s.recv(99))
threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
for thread in threads: thread.start()
while len(codes) < 4: pass
print(len(codes), flush=True)
open('refused', 'w').close()
for thread in threads: thread.join()
print(len(codes))
";
    let folder = lab.folder("work");
    let sandbox = lab
        .sandbox(&policy())
        .args(&["--workdir", folder.to_str().unwrap()]);
    let asking = Asking::of(sandbox, &lab, &[&python(), "-c", program]);
    lab::wait_until(|| folder.join("refused").exists(), || lab.log());
    let questions = asking.questions(|questions| questions.len() == 16);
    for question in &questions {
        asking.decide(question, "deny_run");
    }
    assert_eq!(asking.wait().stdout, "4\n20\n");
}

#[test]
fn a_program_that_knows_no_proxy_is_asked_about_by_name_at_any_port() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let script = "unset http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY; curl -sS -m 60 \
                  http://web.test:8080/a; python3 -c 'import socket; \
                  print(len(socket.getaddrinfo(\"unknown.lab.test\", 80, type=socket.SOCK_STREAM)))'; \
                  getent hosts single || echo none";
    let asking = Asking::start(&lab, &policy(), &["sh", "-c", script]);
    let question = asking.held();
    assert_eq!(question["kind"], "connection");
    assert_eq!(question["host"], "web.test");
    assert_eq!(question["port"], 8080);
    assert_eq!(question["program"], "/usr/bin/curl");
    asking.decide(&question, "once");
    asking.decide(&asking.held(), "once");
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hello1\nnone\n", "{finished:?}");
    let lookups = finished.logged("DNS:RESOLVE");
    assert!(
        lookups.iter().any(|line| line.contains("web.test A")),
        "{lookups:#?}"
    );
    assert!(
        lookups.iter().any(|line| line.contains("single")),
        "{lookups:#?}"
    );
}

#[test]
fn a_second_request_behind_a_held_one_waits_and_is_asked_by_itself() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:80");
    let program = "
import os, socket
host, port = os.environ['HTTP_PROXY'][7:].split(':')
s = socket.create_connection((host, int(port)))
s.settimeout(60)
request = 'GET http://web.test/%s HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n'
s.sendall((request % 'a' + request % 'b').encode())
out = b''
try:
    while data := s.recv(65536): out += data
except OSError: pass
print(out.count(b' 200 '), out.count(b' 403 '))
";
    let policy = super::policy(&format!(
        "{{web: {{endpoints: [{{host: web.test, port: 80, allowed_ips: [10.99.0.1], protocol: rest, \
         enforcement: enforce, rules: [{{allow: {{method: GET, path: /x}}}}]}}], binaries: [{{path: \
         {}}}]}}}}",
        python()
    ));
    let asking = Asking::start(&lab, &policy, &[&python(), "-c", program]);
    let question = asking.held();
    assert_eq!(question["path"], "/a");
    assert!(
        question["marks"].to_string().contains("interpreter"),
        "{question}"
    );
    assert!(web.seen().is_empty(), "nothing is sent");
    asking.decide(&question, "once");
    let question = asking.held();
    assert_eq!(question["path"], "/b");
    asking.decide(&question, "deny");
    assert_eq!(asking.wait().stdout, "1 1\n");
}

#[test]
fn a_message_is_asked_with_all_that_it_holds_and_secrets_are_masked() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:8080");
    let policy = super::messages::policy("mcp", "rules: [{allow: {method: initialize}}]");
    let token = ["gh", "p_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat();
    let call = |params: &str| {
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#)
    };
    let params = format!(r#"{{"name":"put","arguments":{{"note":"{token}","to":"x"}}}}"#);
    let hidden = r#"{"name":"put","arguments":{},"_meta":{"to":"evil"}}"#;
    let batch = format!("[{}]", call(&params));
    let post = "curl -sS -m 60 -w '%{http_code}\\n' -H 'content-type: application/json' -H 'accept: \
                application/json, text/event-stream' http://web.test:8080/mcp -d";
    let of_secret = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{token}"}}"#);
    let script = format!(
        "{post} '{}'; {post} '{}'; {post} '{of_secret}'; {post} '{batch}'",
        call(&params),
        call(hidden)
    );
    let asking = Asking::start(&lab, &policy, &["sh", "-c", &script]);
    let question = asking.held();
    assert_eq!(question["kind"], "message", "{question}");
    assert_eq!(question["message"], "tools/call");
    assert_eq!(question["tool"], "put");
    assert_eq!(question["arguments"], r#"{"note":"[SECRET]","to":"x"}"#);
    assert!(
        question["marks"].to_string().contains("secret"),
        "{question}"
    );
    assert!(
        line(&question).contains("{method: tools/call, tool: put}"),
        "{question}"
    );
    assert!(!question.to_string().contains(&token));
    asking.decide(&question, "once");
    let question = asking.held();
    assert_eq!(question["arguments"], hidden, "nothing is left out");
    asking.decide(&question, "deny");
    let finished = asking.wait();
    let answers: Vec<_> = finished.stdout.lines().collect();
    assert!(finished.stdout.starts_with("hello200"), "{answers:?}");
    assert_eq!(
        web.seen().len(),
        1,
        "the batch and the method that is a secret are refused and not asked: {answers:?}"
    );
    let lines = finished.log.lines();
    let mut others = lines.filter(|line| !line.contains("PROC:"));
    assert!(
        others.all(|line| !line.contains(&token)),
        "no argument is logged"
    );
}

/// The list in a terminal of tmux.
pub(super) struct List<'l> {
    lab: &'l Lab,
    socket: String,
}

impl<'l> List<'l> {
    /// Opens the list, in a terminal with this many columns and rows.
    pub(super) fn open(lab: &'l Lab, size: (u16, u16)) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = lab.folder("tmux").join(number.to_string());
        let socket = socket.display().to_string();
        let (columns, rows) = size;
        let list = Self { lab, socket };
        list.tmux(&format!(
            "-f /dev/null new-session -d -x {columns} -y {rows} sh"
        ));
        list.keys(&format!(
            "'stty -a | md5sum; {} approvals web; echo code $?; stty -a | md5sum' Enter",
            lab.binary()
        ));
        list
    }

    fn tmux(&self, words: &str) -> String {
        let Self { lab, socket } = self;
        lab.shell(&format!("TERM=xterm-256color tmux -S {socket} {words}"))
    }

    pub(super) fn keys(&self, keys: &str) {
        self.tmux(&format!("send-keys {keys}"));
    }

    fn screen(&self) -> String {
        self.tmux("capture-pane -p")
    }

    /// Waits until the screen shows `text`.
    #[track_caller]
    pub(super) fn shows(&self, text: &str) -> String {
        lab::wait_for(
            || Some(self.screen()).filter(|screen| screen.contains(text)),
            || format!("{text}: {}\n{}", self.screen(), self.lab.log()),
        )
    }

    /// Waits until the list has left the terminal as it was before, with this `code`.
    #[track_caller]
    fn has_left(&self, code: &str) {
        let sums = |screen: &str| -> Vec<String> {
            let lines = screen.lines().filter(|line| line.ends_with("  -"));
            // The prompt of the shell may stand before one.
            let sums = lines.map(|line| line.trim_start_matches("# ").to_owned());
            sums.collect()
        };
        let left = lab::wait_for(
            || Some(self.screen()).filter(|screen| sums(screen).len() == 2),
            || self.screen(),
        );
        assert!(left.contains(code), "{left}");
        let sums = sums(&left);
        assert_eq!(sums[0], sums[1], "the terminal is as before: {left}");
    }

    /// Presses `key` until the screen shows `text`: a key that comes too soon has no effect.
    #[track_caller]
    pub(super) fn press_until(&self, key: &str, text: &str) {
        lab::wait_until(
            || {
                self.keys(key);
                lab::pause();
                self.screen().contains(text)
            },
            || format!("{text}: {}", self.screen()),
        );
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        self.tmux("kill-server");
    }
}

#[test]
fn a_person_answers_in_the_list_in_a_terminal_of_each_size() {
    for size in [(80, 24), (200, 50), (40, 8)] {
        let lab = Lab::with_web();
        let _web = lab.http("10.99.0.1:80");
        let words = [&CURL[..], &["http://web.test/v1/items"]].concat();
        let asking = Asking::start(&lab, &policy(), &words);
        let list = List::open(&lab, size);
        list.shows("web.test:80");
        list.keys("Down Enter");
        let opened = list.shows("line 1 of");
        assert!(opened.contains("site       web.test"), "{opened}");
        // To its end, and then the one key for one request.
        list.press_until("Down", "path or a query");
        list.press_until("a", "arrows: select");
        // The second question has a dangerous mark, and takes a second key.
        list.shows("! ");
        list.keys("Down Enter");
        list.press_until("Down", "path or a query");
        list.press_until("a", "y: permit it once");
        list.keys("y");
        let finished = asking.wait();
        assert_eq!(finished.stdout, "hello 200\n", "{size:?}");
        list.shows("ended");
        list.keys("q");
        list.has_left("code 0");
    }
}

#[test]
fn the_terminal_is_as_before_when_the_list_is_stopped_or_ended_by_a_signal() {
    let lab = Lab::with_web();
    let asking = Asking::start(&lab, &policy(), &["sleep", "600"]);
    for signal in ["TERM", "HUP", "INT"] {
        let list = List::open(&lab, (80, 24));
        list.shows("Nothing waits.");
        let shell = list.tmux("display-message -p '#{pane_pid}'");
        let _ = lab.shell(&format!("pkill -{signal} -P {}", shell.trim()));
        list.has_left("code 1");
    }
    // Without its terminal the list ends too.
    let list = List::open(&lab, (80, 24));
    list.shows("Nothing waits.");
    let shell = list.tmux("display-message -p '#{pane_pid}'");
    let pid = lab.shell(&format!("pgrep -P {}", shell.trim()));
    drop(list);
    lab::wait_until(
        || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(),
        || format!("the list runs on: {pid}"),
    );
    asking.started.signal(Signal::TERM);
    let _ = asking.wait();
}
