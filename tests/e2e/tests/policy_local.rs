//! policy.local: programs inside read the policy and what was refused, and propose lines.

use std::fs;

use lab::container::{Container, DEFAULT, DOCUMENTED, Files};
use lab::sandbox::{Finished, Sandbox};
use lab::{Lab, only_as_root};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::approvals::{Asking, line};

/// A policy that permits reading at the host of the tests, which lies inside the network.
fn reading() -> String {
    super::policy(
        "{web: {endpoints: [{host: web.test, port: 80, protocol: rest, enforcement: enforce, \
         access: read-only, allowed_ips: [10.99.0.1]}], binaries: [{path: /usr/bin/curl}]}}",
    )
}

/// A proposal to publish at the host of the tests.
fn publish(path: &str) -> String {
    let endpoint = json!({
        "host": "web.test", "port": 80, "protocol": "rest",
        "rules": [{"allow": {"method": "POST", "path": path}}],
    });
    proposal(&endpoint)
}

fn proposal(endpoint: &Value) -> String {
    let rule = json!({"endpoints": [endpoint], "binaries": [{"path": "/usr/bin/curl"}]});
    json!({
        "intent_summary": "publish \u{202e}what was asked for",
        "operations": [{"addRule": {"ruleName": "publish", "rule": rule}}],
    })
    .to_string()
}

/// Functions of a shell: proposes what stands in a file, and asks for what became of it.
const PROPOSE: &str = "set -e
    local=http://policy.local/v1
    propose() { curl -sS $local/proposals -d \"$1\" | tee proposed >&2; grep -o 'p-[0-9a-z]*' \
    proposed; }
    wait_for() { curl -sS \"$local/proposals/$1/wait?timeout=60\"; }
";

/// Returns the JSON objects that `finished` printed, one a line.
fn printed(finished: &Finished) -> Vec<Value> {
    let lines = finished.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}: {finished:?}")))
        .collect()
}

/// A sandbox in a folder of its own, which the workload can write.
fn within<'l>(lab: &'l Lab, policy: &str) -> Sandbox<'l> {
    let folder = lab.folder("work");
    lab.sandbox(policy)
        .args(&["--workdir", folder.to_str().unwrap()])
}

#[test]
fn a_program_proposes_a_line_waits_for_the_answer_and_goes_on() {
    let lab = Lab::with_web();
    let web = lab.http("10.99.0.1:80");
    let script = format!(
        "{PROPOSE}
        curl -sS -d x http://web.test/notes
        id=$(propose '{}')
        curl -sS $local/proposals/$id
        wait_for $id
        curl -sS -o /dev/null -w '{{\"status\": %{{http_code}}}}\\n' -d x http://web.test/notes
        curl -sS -o /dev/null -w '{{\"status\": %{{http_code}}}}\\n' -d x http://web.test/others",
        publish("/notes")
    );
    let sandbox = within(&lab, &reading());
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    let question = asking.held();
    assert_eq!(question["kind"], "proposal");
    assert_eq!(question["host"], "web.test");
    assert_eq!(question["intent"], "publish \\u{202e}what was asked for");
    let text = question["text"].as_str().unwrap();
    assert!(
        text.ends_with("the workload says \"publish \\u{202e}what was asked for\""),
        "{text}"
    );
    assert!(
        line(&question).starts_with("publish: {") && line(&question).contains("path: /notes"),
        "{question}"
    );
    for mark in ["writes", "no_tls"] {
        assert!(question["marks"].to_string().contains(mark), "{question}");
    }
    let permits = question["lines"][0]["permits"].to_string();
    assert!(
        permits.contains("with any query, header and body"),
        "{permits}"
    );
    let id = question["id"].as_str().unwrap();
    let (said, code) = asking.approvals(&format!("decide {id} once"));
    assert_eq!(code, 1);
    assert!(said.contains("nothing waits under a proposal"), "{said}");
    assert!(web.seen().is_empty());
    asking.decide(&question, "run");
    let finished = asking.wait();
    let printed = printed(&finished);
    let steps: Vec<_> = printed[0]["next_steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        steps,
        [
            "read_skill",
            "inspect_policy",
            "inspect_recent_denials",
            "submit_proposal"
        ]
    );
    assert_eq!(printed[1]["status"], "pending");
    assert_eq!(printed[2]["status"], "approved");
    assert_eq!(printed[2]["policy_reloaded"], true);
    assert_eq!(printed[2]["rule_name"], "publish");
    assert_eq!(printed[3]["status"], 200, "{finished:?}");
    assert_eq!(printed[4]["status"], 403, "no more than was proposed");
    for event in ["CONFIG:PROPOSED [LOW]", "CONFIG:APPROVED [MED]"] {
        assert_eq!(finished.logged(event).len(), 1, "{event}: {}", finished.log);
    }
    assert!(
        !finished.log.contains("asked for"),
        "no words of the workload"
    );
    assert!(
        finished.stderr.contains("permitted by you:"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_proposal_is_denied_with_a_reason_and_not_asked_again_in_the_run() {
    let lab = Lab::with_web();
    let script = format!(
        "{PROPOSE}
        id=$(propose '{0}')
        wait_for $id
        curl -sS $local/proposals -d '{0}'
        wait_for $(propose '{1}')",
        publish("/notes"),
        publish("/others"),
    );
    let sandbox = within(&lab, &reading());
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    asking.decide(&asking.held(), "deny_run --reason 'not today'");
    let other = asking.held();
    assert!(line(&other).contains("/others"), "{other}");
    asking.decide(&other, "deny");
    let finished = asking.wait();
    let printed = printed(&finished);
    assert_eq!(printed[0]["status"], "rejected");
    assert_eq!(printed[0]["rejection_reason"], "not today");
    assert_eq!(printed[1]["rejected_chunks"], 1, "{}", printed[1]);
    assert_eq!(printed[2]["status"], "rejected", "{}", printed[2]);
    assert_eq!(finished.logged("CONFIG:REJECTED [INFO]").len(), 2);
    assert!(!finished.log.contains("not today"), "{}", finished.log);
}

#[test]
fn a_program_reads_its_policy_and_its_refusals_at_each_door_and_nothing_that_is_hidden() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:80");
    let hidden = lab.folder("hidden");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}], hidden: [{}]}}\n",
        reading(),
        hidden.parent().unwrap().display(),
        hidden.display()
    );
    let script = "local=http://policy.local/v1
        curl -sS -d x 'http://web.test/notes?key=sesame' > /dev/null
        curl -sS http://nowhere.test/ > /dev/null
        curl -sS $local/policy/current
        curl -sS $local/denials
        curl -sS --noproxy '*' \"$local/denials?last=1\"
        curl -sS --socks5-hostname ${ALL_PROXY#*//} \"$local/denials?last=1\"
        explain() { curl -sS -G $local/explain -d method=$1 --data-urlencode url=$2; }
        explain GET http://web.test/a
        explain POST http://web.test/a
        explain GET https://nowhere.test:8443/
        curl -sS http://policy.local:81/v1/denials
        curl -sS https://policy.local/ 2> /dev/null || echo '{\"https\": true}'
        curl -sSp http://policy.local/ 2> /dev/null || echo '{\"connect\": true}'";
    let finished = within(&lab, &policy).args(&["--policy-local"]).sh(script);
    let printed = printed(&finished);
    let current = printed[0]["policy_yaml"].as_str().unwrap();
    assert!(current.contains("web.test"), "{current}");
    for kept in ["hidden", "10.99.0.1"] {
        assert!(!current.contains(kept), "{kept}: {current}");
    }
    assert_eq!(printed[0]["generation"], 1);
    let denials = printed[1]["denials"].as_array().unwrap();
    let codes: Vec<_> = denials
        .iter()
        .map(|denial| &denial["reason_code"])
        .collect();
    assert_eq!(codes, ["endpoint_not_in_policy", "request_not_in_rules"]);
    assert_eq!(denials[1]["path"], "/notes");
    assert!(!finished.stdout.contains("sesame"), "{}", finished.stdout);
    assert_eq!(printed[2], printed[3], "by name and by SOCKS5");
    assert_eq!(printed[2]["denials"].as_array().unwrap().len(), 1);
    assert_eq!(printed[4]["verdict"], "allowed");
    assert_eq!(printed[5]["verdict"], "refused");
    assert_eq!(printed[5]["reason_code"], "request_not_in_rules");
    assert_eq!(printed[6]["reason_code"], "endpoint_not_in_policy");
    assert_eq!(printed[7]["error"], "invalid_policy_local_scheme");
    assert_eq!(printed[8]["https"], true);
    assert_eq!(printed[9]["connect"], true);
    assert_eq!(
        finished.logged("code:endpoint_not_in_policy").len(),
        1,
        "explaining is no denial"
    );
}

#[test]
fn without_the_flag_everything_is_disabled_and_refusals_are_as_before() {
    let lab = Lab::with_web();
    let script = "for path in '' v1/policy/current v1/denials v1/proposals v1/skill; do curl -sS \
                  http://policy.local/$path; done; curl -sS http://nowhere.test/";
    let finished = lab.sandbox(&reading()).sh(script);
    let printed = printed(&finished);
    let disabled = json!({"error": "feature_disabled"});
    assert!(printed[..5].iter().all(|answer| *answer == disabled));
    assert!(printed[5].get("next_steps").is_none(), "{}", printed[5]);
    assert!(printed[5].get("agent_guidance").is_none());
}

#[test]
fn the_text_for_agents_is_served_where_it_cannot_be_shown() {
    let lab = Lab::with_web();
    let script =
        "curl -sS $(curl -sS http://nowhere.test/ | grep -o 'http://policy.local/v1/skill')";
    let finished = lab.sandbox(&reading()).args(&["--policy-local"]).sh(script);
    assert!(
        finished.stdout.starts_with("---\nname: policy-advisor\n"),
        "{finished:?}"
    );
}

#[test]
fn in_an_image_the_text_for_agents_is_a_file_that_cannot_be_changed() {
    only_as_root!("a container runtime starts it");
    let lab = Lab::with_web();
    let mut container = Container {
        files: Files::Programs,
        ..Container::new(0, &[DEFAULT, DOCUMENTED])
    };
    container.binds = vec![
        (lab.program_path(), "/box/openshell-sandbox".into()),
        (
            lab.file("policy.yaml", reading()),
            "/box/policy.yaml".into(),
        ),
    ];
    container.volumes = vec![(lab.folder("etc"), "/etc/openshell".into())];
    let script = "file=$(curl -sS http://nowhere.test/ | grep -o '/etc/openshell/[^\"]*') && head -2 \
                  $file; (echo x >> $file) || mv $file /tmp || echo kept";
    let words = [
        "-p",
        "/box/policy.yaml",
        "--policy-local",
        "--",
        "sh",
        "-c",
        script,
    ];
    let printed = container.run(&lab, &[&["/box/openshell-sandbox"], &words[..]].concat());
    assert!(
        printed.contains("---\nname: policy-advisor\n") && printed.contains("\nkept\n"),
        "{printed}"
    );
    let left: Vec<_> = fs::read_dir(lab.folder("etc")).unwrap().collect();
    assert!(left.is_empty(), "the place goes with the sandbox: {left:?}");
}

#[test]
fn a_proposal_is_saved_in_the_file_of_the_policy() {
    let lab = Lab::with_web();
    let path = lab.folder("saved").join("hosts.yaml");
    let block = reading().replace("network_policies: {web:", "network_policies:\n  web:");
    fs::write(&path, block.replace("}]}}", "}]}")).unwrap();
    let caller = lab::host::caller();
    std::os::unix::fs::chown(&path, Some(caller), Some(caller)).unwrap();
    let folder = lab.folder("work");
    let words = [
        "--policy-data",
        path.to_str().unwrap(),
        "--workdir",
        folder.to_str().unwrap(),
    ];
    let script = format!("{PROPOSE}\nwait_for $(propose '{}')", publish("/notes"));
    let sandbox = Sandbox::bare(&lab).args(&words);
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    let question = asking.held();
    let wanted = line(&question).to_owned();
    asking.decide(&question, "save");
    let finished = asking.wait();
    assert_eq!(printed(&finished)[0]["status"], "approved", "{finished:?}");
    let saved = fs::read_to_string(&path).unwrap();
    assert!(saved.contains(&wanted), "{saved}");
}

#[test]
fn a_policy_that_is_loaded_meanwhile_answers_what_it_permits_and_the_wait_goes_on() {
    let lab = Lab::with_web();
    let script = format!(
        "{PROPOSE}\nid=$(propose '{}'); touch proposed-it; wait_for $id",
        publish("/notes")
    );
    // Addresses that the policy lists would be less than a line without them permits.
    let reading = reading().replace(", allowed_ips: [10.99.0.1]", "");
    let file = lab.file("policy.yaml", &reading);
    let folder = lab.folder("work");
    let words = [
        "--policy-data",
        file.to_str().unwrap(),
        "--workdir",
        folder.to_str().unwrap(),
    ];
    let sandbox = Sandbox::bare(&lab).args(&words);
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    let first = asking.held();
    let reload = |rules: &str| {
        let text = reading.replace("access: read-only", rules);
        fs::write(&file, text).unwrap();
        asking.signal(Signal::HUP);
    };
    reload("access: read-write");
    super::ssh::wait_for(&lab, "Policy reloaded successfully");
    let finished = asking.wait();
    let standing = &printed(&finished)[0];
    assert_eq!(standing["status"], "approved", "{}", finished.log);
    assert_eq!(standing["policy_reloaded"], true);
    assert_eq!(first["state"], "held");
}

#[test]
fn a_program_outside_decides_about_proposals_and_says_why() {
    let lab = Lab::with_web();
    let hook = lab.file(
        "hook",
        "#!/bin/sh\ngrep -q '\"kind\":\"proposal\"' && echo '{\"decision\": \"deny\", \"reason\": \
         \"no\"}'\n",
    );
    let script = format!("{PROPOSE}\nwait_for $(propose '{}')", publish("/notes"));
    let finished = within(&lab, &reading())
        .args(&["--policy-local", "--ask-command", hook.to_str().unwrap()])
        .sh(&script);
    let standing = &printed(&finished)[0];
    assert_eq!(standing["status"], "rejected", "{finished:?}");
    assert_eq!(standing["rejection_reason"], "no");
}

#[test]
fn what_is_malformed_too_long_too_slow_or_too_much_is_an_error_and_nothing_else() {
    let lab = Lab::with_web();
    let program = format!(
        r#"
import json, os, select, socket, sys, threading, time, urllib.parse
place = urllib.parse.urlsplit(os.environ['HTTP_PROXY'])
def connect():
    return socket.create_connection((place.hostname, place.port))
def ask(method, path, body=b'', head='', end=True, client=None):
    client = client or connect()
    length = '' if 'ength' in head or 'ncoding' in head else 'Content-Length: %d\r\n' % len(body)
    client.sendall(('%s http://policy.local%s HTTP/1.1\r\nHost: policy.local\r\n%s%s\r\n'
        % (method, path, length, head)).encode() + body)
    if not end: client.shutdown(socket.SHUT_WR)
    answer = client.makefile('rb')
    line = answer.readline().split()
    fields = {{}}
    for field in iter(answer.readline, b'\r\n'):
        if not field: break
        key, value = field.split(b':', 1)
        fields[key.lower()] = value.strip()
    body = answer.read(int(fields.get(b'content-length', 0)))
    client.close()
    return int(line[1]) if line else 0, json.loads(body) if body else {{}}
def check(what, answer, status, code):
    if (answer[0], answer[1].get('error')) != (status, code): print(what, answer)
proposal = {proposal}
text = json.dumps(proposal).encode()
check('cut', ask('POST', '/v1/proposals', text[:40], 'Content-Length: 900\r\n', end=False), 400, 'bad_request')
check('long', ask('POST', '/v1/proposals', b' ' * (64 * 1024 + 1)), 413, 'body_too_large')
check('chunked', ask('POST', '/v1/proposals', (b'1000\r\n' + b' ' * 4096 + b'\r\n') * 17 + b'0\r\n\r\n', 'Transfer-Encoding: chunked\r\n'), 413, 'body_too_large')
for what, body in [('empty', b''), ('junk', b'x'), ('twice', b'{{"operations": [], "operations": []}}'), ('deep', b'[' * 10000), ('array', b'[]')]:
    check(what, ask('POST', '/v1/proposals', body), 400, 'invalid_proposal')
secret = dict(proposal, intent_summary='ghp_' + 'A1b2C3d4' * 4 + 'E5f6')
check('secret', ask('POST', '/v1/proposals', json.dumps(secret).encode()), 400, 'invalid_proposal')
for path in ['/v1/denials?last=0', '/v1/denials?last=101', '/v1/denials?last=x', '/v1/denials?last=1&last=2', '/v1/explain', '/v1/explain?url=ftp://a.test/', '/v1/explain?url=http://a.test:0/']:
    check(path, ask('GET', path), 400, 'bad_request')
for url in ['https://a.test:99999/', 'https://a.test:443abc/']:
    check(url, ask('GET', '/v1/explain?url=' + url), 400, 'bad_request')
for path in ['/', '/v1', '/v1/proposals/p-1/x', '/v1/../etc', '/V1/denials']:
    check(path, ask('GET', path), 404, 'not_found')
check('unknown', ask('GET', '/v1/proposals/p-1'), 404, 'chunk_not_found')
check('method', ask('DELETE', '/v1/denials'), 405, 'method_not_allowed')
slow = connect()
slow.sendall(b'POST http://policy.local/v1/proposals HTTP/1.1\r\nHost: policy.local\r\nContent-Length: 900\r\n\r\n')
began = time.monotonic()
def drip():
    try:
        while True:
            slow.sendall(b' ')
            time.sleep(1)
    except OSError: pass
threading.Thread(target=drip, daemon=True).start()
if not slow.makefile('rb').readline().startswith(b'HTTP/1.1 400'): print('slow')
took = time.monotonic() - began
if not 14 < took < 40: print('slow', took)
status, answer = ask('POST', '/v1/proposals', text)
id = answer['accepted_chunk_ids'][0]
for timeout in ['0', '301', 'x', '-1', '']:
    check(timeout, ask('GET', '/v1/proposals/%s/wait?timeout=%s' % (id, timeout)), 400, 'bad_request')
def wait():
    client = connect()
    client.sendall(('GET http://policy.local/v1/proposals/%s/wait?timeout=300 HTTP/1.1\r\nHost: policy.local\r\n\r\n' % id).encode())
    return client
def answered(clients, seconds):
    return select.select(clients, [], [], seconds)[0]
waits = []
while len(waits) < 200:
    client = wait()
    if answered([client], 0.1): break
    waits.append(client)
refused = answered(waits, 1)
waits = [client for client in waits if client not in refused]
if len(waits) != 64: print(len(waits), 'waits')
check('64 waits', ask('GET', '/v1/proposals/%s' % id), 200, None)
for client in waits: client.close()
while True:
    client = wait()
    if not answered([client], 0.5): break
client.close()
for _ in range(4): ask('POST', '/v1/proposals', text)
check('6 proposals', ask('POST', '/v1/proposals', text), 429, 'limit_reached')
print('done')
"#,
        proposal = publish("/notes").replace("\\u", "\\\\u")
    );
    let policy = reading().replace("/usr/bin/curl", &super::python());
    let program = program.replace("/usr/bin/curl", &super::python());
    let finished = within(&lab, &policy)
        .args(&["--policy-local"])
        .python(&program, &[]);
    assert_eq!(finished.stdout, "done\n", "{}", finished.stderr);
}

#[test]
fn options_under_which_nothing_can_be_proposed_are_refused() {
    let lab = Lab::with_web();
    for words in [
        &["--network", "allow"][..],
        &["--network", "block"],
        &["--observe", "report"],
        &["--ask-rate", "5"],
    ] {
        let finished = lab
            .sandbox(&reading())
            .args(&["--policy-local"])
            .args(words)
            .run(&["true"]);
        assert_ne!(finished.code(), 0, "{words:?}");
        assert!(!finished.log.contains("PROC:LAUNCH"), "{words:?}");
    }
    let named = reading().replace("web.test", "policy.local");
    let finished = lab.sandbox(&named).run(&["true"]);
    assert!(
        finished
            .stderr
            .contains("policy.local is the sandbox's own"),
        "{}",
        finished.stderr
    );
}

/// A proposal is shown with all that its line lets pass besides what it names.
#[test]
fn what_a_line_that_reads_lets_pass_is_shown() {
    let lab = Lab::with_web();
    let reading = json!({
        "host": "web.test", "port": 443, "protocol": "rest", "access": "read-only",
    });
    let tool = json!({
        "host": "web.test", "port": 443, "protocol": "mcp",
        "rules": [{"allow": {"method": "tools/call", "tool": "search"}}],
    });
    let script = format!(
        "{PROPOSE}\npropose '{}'; propose '{}'; while [ ! -e go ]; do sleep 0.1; done",
        proposal(&reading),
        proposal(&tool)
    );
    let sandbox = within(&lab, &reading_elsewhere());
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    let questions = asking.questions(|questions| questions.len() == 2);
    let permits = |part: &str| {
        let of = |question: &&Value| line(question).contains(part);
        let question = questions.iter().find(of).unwrap();
        question["lines"][0]["permits"].to_string()
    };
    for words in [
        "a WebSocket, whose bytes nobody judges",
        "header and body",
        "data can leave",
    ] {
        assert!(
            permits("read-only").contains(words),
            "{}",
            permits("read-only")
        );
    }
    for words in [
        "GET of event streams and OPTIONS, at any path",
        "data can leave",
    ] {
        assert!(permits("mcp").contains(words), "{}", permits("mcp"));
    }
    fs::write(lab.folder("work").join("go"), "").unwrap();
    drop(asking.wait());
}

/// A policy that permits nothing of the host of the tests.
fn reading_elsewhere() -> String {
    super::approvals::policy()
}

/// Answers find their sandbox while others end.
#[test]
fn an_answer_is_not_disturbed_by_sandboxes_that_end_meanwhile() {
    let lab = Lab::with_web();
    let script = format!("{PROPOSE}\nwait_for $(propose '{}')", publish("/notes"));
    let sandbox = within(&lab, &reading());
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    let question = asking.held();
    let ended = lab
        .sandbox(&reading())
        .args(&["--policy-local"])
        .start(&["sleep", "1"]);
    let unknown = "q-7f3kq2m5x0c9w4r8t1v6b3n2za";
    let state = format!("grep ^State: /proc/{}/status", ended.pid());
    // The other one ends between two of these.
    while asking.approvals("--json").0.lines().count() > 0 {
        let (said, code) = asking.approvals(&format!("decide {unknown} deny"));
        assert_eq!(code, 3, "{said}");
        // Its parent, this test, has not waited for it yet.
        if lab.shell(&state).contains('Z') {
            break;
        }
    }
    drop(ended.wait());
    asking.decide(&question, "run");
    assert_eq!(printed(&asking.wait())[0]["status"], "approved");
}
