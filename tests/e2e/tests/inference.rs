//! `https://inference.local`: models by the operator's routes, backends and keys.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gateway::proto::inference::v1::ResolvedRoute;
use lab::host::Program;
use lab::{Finished, Lab, Sandbox};
use rustix::process::Signal;
use serde_json::Value;

/// A backend at 10.99.0.1:9000 that records its requests.
pub(crate) struct Backend {
    folder: PathBuf,
    _program: Program,
}

impl Backend {
    pub(crate) fn start(lab: &Lab) -> Self {
        let folder = lab.folder("backend");
        let program = lab.file("backend.py", include_str!("data/backend.py"));
        let words = [
            "/usr/bin/python3",
            program.to_str().unwrap(),
            folder.to_str().unwrap(),
            "9000",
        ];
        Self {
            _program: lab.program(&words),
            folder,
        }
    }

    /// Returns the folder in which it finds what its model says.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns method, target, headers and body of each request.
    pub(crate) fn seen(&self) -> Vec<Value> {
        let lines = std::fs::read_to_string(self.folder.join("seen")).unwrap_or_default();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

const ALL: &str = "openai_chat_completions, openai_completions, openai_responses, \
                   openai_embeddings, anthropic_messages, model_discovery";

/// Returns a route to the backend; `how` selects its behaviour.
pub(crate) fn route(how: &str, more: &str) -> String {
    format!(
        "{{name: \"{how}\", endpoint: \"http://10.99.0.1:9000/{how}/v1\", model: m1, api_key: \
         sk-of-the-operator, protocols: [{ALL}]{more}}}"
    )
}

/// The same route as a gateway gives it.
pub(crate) fn resolved(how: &str) -> ResolvedRoute {
    ResolvedRoute {
        name: how.to_owned(),
        base_url: format!("http://10.99.0.1:9000/{how}/v1"),
        protocols: ALL.split(", ").map(str::to_owned).collect(),
        api_key: "sk-of-the-operator".to_owned(),
        model_id: "m1".to_owned(),
        ..ResolvedRoute::default()
    }
}

/// Writes a route file that only its owner may read.
pub(crate) fn file(lab: &Lab, text: &str) -> String {
    let path = lab.file("routes.yaml", text);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.display().to_string()
}

fn sandbox<'l>(lab: &'l Lab, routes: &str) -> Sandbox<'l> {
    // No policy applies to the models.
    lab.sandbox(&super::policy("{}")).args(&[
        "--inference-routes",
        &file(lab, &format!("routes: {routes}")),
    ])
}

/// Runs each line of `words` by curl against the models, and prints the status behind each answer.
fn curl(lab: &Lab, routes: &str, words: &[&str]) -> Finished {
    let lines: Vec<_> = words
        .iter()
        .map(|words| {
            format!(
                "curl -sS --path-as-is --suppress-connect-headers -w ' %{{http_code}}\\n' \
                     {words} || echo failed"
            )
        })
        .collect();
    let finished = sandbox(lab, routes).sh(&format!(
        "U=https://inference.local/v1\n{}\ntrue",
        lines.join("\n")
    ));
    statuses_beside(finished)
}

/// Returns the output of `finished` with each status of curl on the line of the refusal before it,
/// which ends in a line feed.
pub(crate) fn statuses_beside(mut finished: Finished) -> Finished {
    finished.stdout = finished.stdout.replace("}\n ", "} ");
    finished
}

const CHAT: &str = "$U/chat/completions -d '{\"model\": \"gpt-x\", \"messages\": []}'";

// Conformance: INF-01, INF-02, INF-03, INF-05, INF-06.
#[test]
fn mock_routes_answer_by_their_interfaces() {
    let lab = Lab::with_web();
    let mock = |interfaces: &str| {
        format!("[{{name: a, endpoint: \"mock://x\", model: m1, protocols: [{interfaces}]}}]")
    };
    let finished = curl(
        &lab,
        &mock("openai_chat_completions"),
        &[&format!("-i {CHAT}"), "$U/messages -d '{}'"],
    );
    assert!(
        finished
            .ok()
            .to_lowercase()
            .contains("x-openshell-mock: true")
            && finished.stdout.contains("\"model\":\"m1\""),
        "{finished:?}"
    );
    assert!(
        finished
            .stdout
            .contains("Hello from openshell mock backend"),
        "{finished:?}"
    );
    let last = finished.stdout.lines().last().unwrap();
    assert!(
        last.contains("\"error\":\"no compatible inference route available\"")
            && last.ends_with(" 400"),
        "{finished:?}"
    );
    let words = [
        "$U/models",
        "$U/models/abc",
        "'$U/messages?beta=1' -d '{}'".replace('\'', "\"").leak(),
    ];
    let finished = curl(&lab, &mock("model_discovery, anthropic_messages"), &words);
    assert_eq!(finished.ok().matches(" 200").count(), 3, "{finished:?}");
}

// Conformance: INF-04.
#[test]
fn what_is_nothing_of_a_models_is_refused_and_ends_the_connection() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let words = [
        "$U/other",
        "$U/models -d x",
        "-i https://inference.local/",
        "$U/models/../../admin",
        "$U/chat/completions",
        "$U/models/%2e%2e/keys -X DELETE",
        "https://inference.local/v1/chat/completions/ -d '{}'",
    ];
    let finished = curl(&lab, &format!("[{}]", route("ok", "")), &words);
    assert_eq!(
        finished
            .ok()
            .matches("connection not allowed by policy")
            .count(),
        7,
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("Connection: close"),
        "{finished:?}"
    );
    let finished = curl(
        &lab,
        &format!("[{}]", route("ok", "")),
        &["$U/models/a%2f..%2fb", "$U/models/..%5cx"],
    );
    assert_eq!(finished.ok().matches(" 400").count(), 2, "{finished:?}");
    assert_eq!(backend.seen().len(), 0);
    let line = "HTTP:GET [MED] DENIED GET https://inference.local/v1/other [policy:- \
                engine:inference] [request:1] [reason:connection not allowed by policy] \
                [code:inference_path_not_allowed] [by:/usr/bin/curl(3)]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
}

// Conformance: INF-07, INF-08, INF-18.
#[test]
fn where_there_are_no_models_that_is_said_before_anything_is_opened() {
    let lab = Lab::with_web();
    for sandbox in [lab.sandbox(&super::policy("{}")), sandbox(&lab, "[]")] {
        let finished = sandbox.sh(
            "curl -sS -i https://inference.local/v1/models; curl -sS https://INFERENCE.local:8443/",
        );
        assert!(
            finished.stdout.contains("503 inference_not_configured")
                && !finished.stdout.contains("200"),
            "{finished:?}"
        );
        assert!(
            finished
                .stderr
                .contains("curl: (56) CONNECT tunnel failed, response 403"),
            "another port is any host's: {finished:?}"
        );
    }
    let finished = sandbox(
        &lab,
        "[{name: a, endpoint: \"mock://x\", model: m1, protocols: \
                                  [model_discovery]}]",
    )
    .sh(
        "curl -sS https://INFERENCE.LOCAL/v1/models; curl -sS -H 'Host: other.test' \
         https://inference.local/v1/models",
    );
    assert!(
        finished.ok().contains("\"m1\"") && finished.stdout.contains("authority_mismatch"),
        "{finished:?}"
    );
}

// Conformance: INF-09.
#[test]
fn a_route_file_that_is_none_stops_the_start_and_says_where() {
    let lab = Lab::with_web();
    for (text, expected) in [
        (
            "routes: [{route: a, endpoint: \"mock://x\", model: m, protocols: [model_discovery]}]",
            "unknown key `route`; known here: name, endpoint",
        ),
        (
            "routes: [{name: a, endpoint: \"mock://x\", model: m}]",
            "line 1: routes[0]: `protocols` is missing",
        ),
        (
            "routes: [{name: a, endpoint: \"mock://x\", model: m, protocols: ['']}]",
            "routes[0].protocols: the route has no protocols; list at least one",
        ),
        (
            "routes: [{name: a, endpoint: \"mock://x\", model: m, protocols: [chat]}]",
            "`chat` is not one of openai_chat_completions",
        ),
        (
            "routes: [{name: a, endpoint: \"ftp://x\", model: m, api_key: k, protocols: \
             [model_discovery]}]",
            "`ftp://x` is not http://HOST",
        ),
        (
            "routes: [{name: a, endpoint: \"http://x\", model: m, protocols: [model_discovery]}]",
            "exactly one of `api_key`, `api_key_env` and `api_key_file`",
        ),
        (
            "routes: [{name: a, endpoint: \"http://x\", model: m, api_key: k, api_key_env: K, \
             protocols: [model_discovery]}]",
            "exactly one of",
        ),
        (
            "routes: [{name: a, endpoint: \"http://x\", model: m, api_key_env: K, protocols: \
             [model_discovery]}]",
            "route 'a': environment variable K is not set",
        ),
        (
            "routes: [{name: a, endpoint: \"http://x\", model: m, api_key_file: /not/there, \
             protocols: [model_discovery]}]",
            "route 'a': failed to read /not/there",
        ),
        (
            "routes: [{name: a, endpoint: \"http://x\", model: m, api_key: k, protocols: \
             [model_discovery], timeouts: {first: 1}}]",
            "unknown key `first`: did you mean `first_byte`? known here: connect, first_byte, idle",
        ),
        (
            "routes: [{name: a, endpoint: \"http://x\", model: m, api_key: k, protocols: \
             [model_discovery], budget: {max_tokens: 0}}]",
            "routes[0].budget.max_tokens: expected a whole number, from 1 on",
        ),
        ("max_request_bytes: 1\n", "`routes` is missing"),
        ("routes: {}", "expected a list, found a map"),
    ] {
        let path = file(&lab, text);
        let finished = lab
            .sandbox(&super::policy("{}"))
            .args(&["--inference-routes", &path])
            .sh("echo ran");
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (1, ""),
            "{text}: {finished:?}"
        );
        assert!(
            finished.stderr.contains(expected) && finished.stderr.contains("routes.yaml"),
            "{text}: {}",
            finished.stderr
        );
    }
}

// Conformance: INF-10, INF-11, INF-12, INF-13.
#[test]
fn the_operators_key_and_model_are_put_in_and_the_clients_left_out() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let routes = "[{name: ok, endpoint: \"http://10.99.0.1:9000/ok/v1/\", model: m1, api_key_env: \
                  KEY, protocols: [openai_chat_completions]}, {name: claude, endpoint: \
                  \"http://10.99.0.1:9000/ok\", model: c1, provider_type: anthropic, api_key: \
                  sk-ant, protocols: [anthropic_messages, model_discovery]}]";
    let words = "-H 'Authorization: Bearer mine' -H 'X-Api-Key: mine' -H 'Cookie: c=1' -H \
                 'OpenAI-Organization: mine' -H 'X-Stainless-Lang: js' -H 'Proxy-Authorization: x' \
                 -H 'X-Forwarded-For: 1'";
    let finished = sandbox(&lab, routes).env("KEY", "sk-from-env").sh(&format!(
        "U=https://inference.local/v1; echo KEY=$KEY
         curl -sS {words} -H 'Content-Type: application/json' $U/chat/completions -d '{{\"model\":\"x\", \"n\": 1.50}}' -D - -o /dev/null
         curl -sS {words} $U/chat/completions -d '{{}}' -o /dev/null
         curl -sS {words} -H 'Content-Type: text/plain; charset=utf-8' $U/chat/completions -d '{{\"k\":1}}' -o /dev/null
         curl -sS {words} \"$U/messages?beta=true\" -d '{{\"model\":\"x\"}}' -o /dev/null
         curl -sS {words} -H 'Anthropic-Version: 2030-01-01' $U/models -o /dev/null"
    ));
    let head = finished.ok().to_lowercase();
    assert!(
        head.starts_with("key=\n")
            && head.contains("x-request-id: r1")
            && head.contains("transfer-encoding: chunked"),
        "{finished:?}"
    );
    assert!(
        !head.contains("set-cookie") && !head.contains("organization"),
        "{finished:?}"
    );
    let seen = backend.seen();
    let text = |index: usize, part: usize| seen[index][part].as_str().unwrap().to_owned();
    let header = |index: usize, name: &str| seen[index][2][name].as_str().unwrap_or("-").to_owned();
    assert_eq!(text(0, 1), "/ok/v1/chat/completions");
    assert_eq!(
        [text(0, 3), text(1, 3), text(2, 3)],
        [
            "{\"model\":\"m1\", \"n\": 1.50}",
            "{\"model\":\"m1\"}",
            "{\"model\":\"m1\",\"k\":1}"
        ]
    );
    assert_eq!(
        [0, 1, 2].map(|index| header(index, "content-type")),
        ["application/json"; 3]
    );
    assert_eq!(header(0, "authorization"), "Bearer sk-from-env");
    assert_eq!(
        [
            header(0, "x-api-key"),
            header(0, "cookie"),
            header(0, "openai-organization"),
            header(0, "x-forwarded-for")
        ],
        ["-"; 4]
    );
    assert_eq!(
        [
            header(0, "x-stainless-lang"),
            header(0, "host"),
            header(0, "content-type")
        ],
        ["js", "10.99.0.1:9000", "application/json"]
    );
    assert_eq!(
        [text(3, 1), text(4, 1)],
        ["/ok/v1/messages?beta=true", "/ok/v1/models"]
    );
    assert_eq!(
        [
            header(3, "x-api-key"),
            header(3, "authorization"),
            header(3, "anthropic-version")
        ],
        ["sk-ant", "-", "2023-06-01"]
    );
    assert_eq!(header(4, "anthropic-version"), "2030-01-01");
    for secret in ["sk-from-env", "sk-ant"] {
        assert!(
            !finished.log.contains(secret) && !finished.stderr.contains(secret),
            "{finished:?}"
        );
    }
    let line = "HTTP:POST [INFO] ALLOWED POST https://inference.local/v1/chat/completions \
                [policy:- engine:inference] [request:1] [route:ok tokens:11/22] [by:/usr/bin/curl";
    assert_eq!(finished.logged(line).len(), 3, "{}", finished.log);
}

// Conformance: INF-14, INF-17, INF-19.
#[test]
fn backends_that_fail_are_said_without_saying_who_they_are() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let down = "{name: down, endpoint: \"http://10.99.0.1:9/v1\", model: m1, api_key: k, \
                protocols: [openai_chat_completions]}";
    let nowhere = "{name: nowhere, endpoint: \"http://no.such.lab.test/v1\", model: m1, api_key: \
                   k, protocols: [openai_chat_completions]}";
    let limits = ", timeouts: {first_byte: 1, idle: 1}";
    for (routes, status, expected) in [
        (format!("[{down}]"), "503", "inference service unavailable"),
        (
            format!("[{nowhere}]"),
            "503",
            "inference service unavailable",
        ),
        (
            format!("[{}]", route("hang", limits)),
            "503",
            "inference service unavailable: the backend did not begin to answer within 1 s \
             (`timeouts.first_byte` of the route)",
        ),
        (
            format!("[{}]", route("reset", "")),
            "502",
            "inference service error",
        ),
        (
            format!("[{}]", route("redirect", "")),
            "502",
            "inference service error",
        ),
        (
            format!("[{}]", route("401", "")),
            "401",
            "{\"error\": {\"message\": \"no\"}}",
        ),
        (
            format!("[{}]", route("429", "")),
            "429",
            "{\"error\": {\"message\": \"no\"}}",
        ),
        (
            format!("[{}]", route("500", "")),
            "500",
            "{\"error\": {\"message\": \"no\"}}",
        ),
        (
            format!("[{}, {}]", route("500", ""), route("ok", "")),
            "500",
            "no",
        ),
        (
            format!("[{down}, {nowhere}, {}]", route("ok", "")),
            "200",
            "Hello there.",
        ),
    ] {
        let finished = curl(&lab, &routes, &[CHAT]);
        assert!(
            finished.ok().contains(expected) && finished.stdout.trim().ends_with(status),
            "{routes}: {finished:?}"
        );
        assert!(
            !finished.stdout.contains("10.99.0.1") && !finished.stdout.contains("lab.test"),
            "{finished:?}"
        );
    }
    let targets: Vec<_> = backend
        .seen()
        .iter()
        .map(|seen| seen[1].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(targets.len(), 8, "{targets:?}");
}

// Conformance: INF-15.
#[test]
fn each_event_comes_when_it_is_made() {
    let lab = Lab::with_web();
    let _backend = Backend::start(&lab);
    let program = r#"
import json, os, subprocess, time
curl = subprocess.Popen(['curl', '-sSN', 'https://inference.local/v1/chat/completions', '-d', '{"stream": true}'], stdout=subprocess.PIPE)
late = [time.time() - json.loads(line[6:])['at'] for line in curl.stdout if line.startswith(b'data: ')]
print(len(late), max(late) < 0.2)
"#;
    let finished = sandbox(&lab, &format!("[{}]", route("slow", ""))).python(program, &[]);
    assert_eq!(finished.ok(), "4 True", "{finished:?}");
}

#[test]
fn an_answer_that_is_cut_off_is_seen_to_be() {
    let lab = Lab::with_web();
    let _backend = Backend::start(&lab);
    for (how, limits) in [("half", ""), ("idle", ", timeouts: {idle: 1}"), ("bad", "")] {
        let finished = curl(&lab, &format!("[{}]", route(how, limits)), &[CHAT]);
        let is_bad = how == "bad";
        assert!(
            is_bad
                || finished
                    .stdout
                    .contains("\n\nevent: error\ndata: {\"error\":{"),
            "{how}: {finished:?}"
        );
        assert!(
            finished.stdout.contains("failed"),
            "no clean end: {how}: {finished:?}"
        );
        assert_eq!(
            finished
                .stdout
                .contains("nothing came for 1 s (`timeouts.idle`"),
            how == "idle",
            "{finished:?}"
        );
        let line = "[policy:- engine:inference] [request:1] [route:";
        assert_eq!(
            finished
                .logged(line)
                .iter()
                .filter(|line| line.contains(how))
                .count(),
            1,
            "{}",
            finished.log
        );
    }
}

#[test]
fn tokens_are_counted_by_the_routes_model_for_nothing_and_the_connection_stays() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let count = "-w ' %{http_code} %{num_connects}\n' \"$U/messages/count_tokens?beta=true\" -d \
                 '{\"model\": \"x\"}'";
    let budget = ", budget: {max_tokens: 12}";
    let words = vec![format!("-sS {count}"); 3].join(" --next ");
    let script = format!(
        "U=https://inference.local/v1; curl {words} --next -sS -o /dev/null -w '%{{http_code}}' \
         {CHAT}"
    );
    let finished = sandbox(&lab, &format!("[{}]", route("ok", budget))).sh(&script);
    let counted = "{\"input_tokens\": 11} 200";
    assert_eq!(
        finished.ok(),
        format!("{counted} 1\n{counted} 0\n{counted} 0\n200"),
        "{finished:?}"
    );
    assert_eq!(backend.seen()[0][3].as_str(), Some("{\"model\": \"m1\"}"));
    for (route, answer) in [
        (route("page", ""), "404"),
        (
            "{name: a, endpoint: \"mock://x\", model: m1, protocols: [anthropic_messages]}"
                .to_owned(),
            "200",
        ),
    ] {
        let finished = curl(
            &lab,
            &format!("[{route}]"),
            &["$U/messages/count_tokens -d '{}'"],
        );
        let is_form = finished.stdout.contains("\"type\":\"not_found_error\"")
            || finished.stdout.contains("\"input_tokens\"");
        assert!(is_form && finished.ok().ends_with(answer), "{finished:?}");
    }
}

// Conformance: INF-16.
#[test]
fn requests_share_a_connection_and_the_second_is_judged_as_well() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let program = r"
import http.client, os, ssl
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
c = http.client.HTTPSConnection(host, int(port))
c.set_tunnel('inference.local', 443)
def ask(method, path, body=None):
    c.request(method, path, body)
    r = c.getresponse()
    r.read()
    return r.status
print(ask('POST', '/v1/chat/completions', '{}'), ask('GET', '/v1/models'), ask('POST', '/v1/messages', '{}'), ask('POST', '/v1/admin', '{}'))
try: print(ask('GET', '/v1/models'))
except Exception as error: print('closed')
s = c.sock
";
    let finished = sandbox(&lab, &format!("[{}]", route("ok", ""))).python(program, &[]);
    assert!(finished.ok().starts_with("200 200 200 403"), "{finished:?}");
    assert!(
        backend
            .seen()
            .iter()
            .all(|seen| !seen[1].as_str().unwrap().contains("admin"))
    );
}

#[test]
fn requests_are_bounded_and_budgets_hold() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let path = file(
        &lab,
        &format!(
            "max_request_bytes: 1000\nroutes: [{}]",
            route("ok", ", budget: {max_requests: 2}")
        ),
    );
    let finished = lab.sandbox(&super::policy("{}")).args(&["--inference-routes", &path]).sh(
        "U=https://inference.local/v1/chat/completions
         head -c 1001 /dev/zero | curl -sS $U --data-binary @- -w ' %{http_code}\n'
         head -c 5000 /dev/zero | curl -sS $U -H 'Transfer-Encoding: chunked' -T - -X POST -w ' %{http_code}\n'
         for n in 1 2 3; do curl -sS $U -d '{}' -o out -w '%{http_code} '; done; cat out; rm out",
    );
    let finished = statuses_beside(finished);
    let lines: Vec<_> = finished.ok().lines().collect();
    assert!(
        lines[..2]
            .iter()
            .all(|line| line.contains("at most 1000 bytes") && line.ends_with(" 413")),
        "{finished:?}"
    );
    assert!(
        lines[2].starts_with("200 200 429 ")
            && lines[2].contains("the max_requests of route ok are used up for this run"),
        "{finished:?}"
    );
    assert_eq!(backend.seen().len(), 2);
    let finished = curl(
        &lab,
        &format!("[{}]", route("ok", ", budget: {max_tokens: 34}")),
        &[CHAT, CHAT, CHAT],
    );
    let statuses: Vec<_> = finished
        .ok()
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(
        statuses,
        ["200", "200", "429"],
        "33 tokens each: {finished:?}"
    );
    // The reserved cost of a request is released, independent of the length of the replaced model
    // name.
    let long = route("ok", ", budget: {max_tokens: 34}")
        .replace("model: m1", &format!("model: {}", "m".repeat(2000)));
    let finished = curl(&lab, &format!("[{long}]"), &[CHAT, CHAT, CHAT]);
    let statuses: Vec<_> = finished
        .ok()
        .lines()
        .map(|line| line.rsplit(' ').next().unwrap())
        .collect();
    assert_eq!(
        statuses,
        ["200", "200", "429"],
        "33 tokens each: {finished:?}"
    );
}

#[test]
fn a_call_that_its_client_gives_up_costs_what_its_request_has() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let path = file(
        &lab,
        &format!(
            "routes: [{}]",
            route("hang", ", budget: {max_tokens: 1000}")
        ),
    );
    let finished = lab
        .sandbox(&super::policy("{}"))
        .args(&["--inference-routes", &path])
        .sh("U=https://inference.local/v1/chat/completions
         body=$(head -c 4000 /dev/zero | tr '\\0' x)
         curl -sS $U -d \"{\\\"x\\\":\\\"$body\\\"}\" --max-time 1 -o /dev/null
         curl -sS $U -d '{}' -o /dev/null -w '%{http_code}'");
    assert_eq!(finished.ok(), "429", "{finished:?}");
    assert_eq!(backend.seen().len(), 1);
}

#[test]
fn what_is_no_json_in_utf_8_reaches_no_model() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let ask = |words: &str| format!("{words} -o /dev/null $U/chat/completions");
    let words = [
        ask(r#"-H 'Content-Type: application/json; charset=utf-7' -d '{}'"#),
        ask(r#"-H 'Content-Type: application/json; charset=unicode_escape' -d '{}'"#),
        ask(
            r#"-H 'Content-Type: application/json' -H 'Content-Type: text/plain; charset=utf-16' -d '{}'"#,
        ),
        ask(r#"-H 'Content-Type: application/json' -d '+AHsAfQ'"#),
        ask(r#"--data-binary $'\xef\xbb\xbf{}'"#),
        ask(r#"--data-binary @utf16"#),
        ask(r#"--data-binary $'{"k":"\xff"}'"#),
    ];
    let calls: Vec<_> = words
        .iter()
        .map(|words| format!("curl -sS -w '%{{http_code}}\n' {words}"))
        .collect();
    let script = format!(
        "U=https://inference.local/v1; printf '{{\\0}}\\0' > utf16; {}; rm utf16",
        calls.join("; ")
    );
    let finished = sandbox(&lab, &format!("[{}]", route("ok", ""))).run(&["bash", "-c", &script]);
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        vec!["415"; words.len()],
        "{finished:?}"
    );
    assert_eq!(
        finished.logged("[code:unsupported_encoding]").len(),
        words.len(),
        "{}",
        finished.log
    );
    assert_eq!(backend.seen().len(), 0);
}

#[test]
fn a_web_socket_is_answered_426_where_models_have_none() {
    let lab = Lab::with_web();
    let upgrade = "-H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
                   -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='";
    let ask =
        |path: &str| format!("--http1.1 {upgrade} -o /dev/null https://inference.local{path}");
    let words = [
        ask("/v1/responses"),
        ask("/v1/chat/completions"),
        ask("/v1/other"),
    ];
    let finished = curl(
        &lab,
        "[{name: m, endpoint: \"mock://m\", model: m1, protocols: [openai_responses]}]",
        &words.each_ref().map(String::as_str),
    );
    let statuses: Vec<_> = finished.ok().lines().map(str::trim).collect();
    assert_eq!(statuses, ["426", "426", "403"], "{finished:?}");
}

#[test]
fn a_mock_streams_in_the_events_of_each_interface() {
    let lab = Lab::with_web();
    let routes = format!("[{{name: m, endpoint: \"mock://m\", model: m1, protocols: [{ALL}]}}]");
    let events = |path: &str| {
        let call = format!(
            "curl -sSN https://inference.local/v1{path} -d '{{\"stream\": true}}' -w \
             '%{{content_type}}'"
        );
        let finished = sandbox(&lab, &routes).sh(&call);
        let text = finished
            .ok()
            .strip_suffix("text/event-stream")
            .unwrap_or_else(|| panic!("{finished:?}"))
            .to_owned();
        let data = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]");
        (
            data.map(|data| serde_json::from_str::<Value>(data).unwrap())
                .collect::<Vec<_>>(),
            text,
        )
    };
    let (chat, text) = events("/chat/completions");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(
        chat[0]["choices"][0]["delta"]["content"],
        "Hello from openshell mock backend"
    );
    let (completion, text) = events("/completions");
    assert!(
        text.ends_with("data: [DONE]\n\n") && completion[0]["choices"][0]["text"].is_string(),
        "{text}"
    );
    let kinds = |events: &[Value]| {
        events
            .iter()
            .map(|event| event["type"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (response, text) = events("/responses");
    let of_response = kinds(&response);
    assert_eq!(
        (of_response[0].as_str(), of_response[8].as_str()),
        ("response.created", "response.completed"),
        "{text}"
    );
    assert_eq!(
        response[8]["response"]["output"][0]["content"][0]["text"],
        "Hello from openshell mock backend"
    );
    let (message, text) = events("/messages");
    let of_message = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&message), of_message, "{text}");
    assert!(text.starts_with("event: message_start\n"), "{text}");
}

#[test]
fn a_key_that_is_no_secret_leaves_answers_as_they_are() {
    let lab = Lab::with_web();
    let _backend = Backend::start(&lab);
    let finished = curl(
        &lab,
        &format!("[{}]", route("ok", "").replace("sk-of-the-operator", "e")),
        &[CHAT],
    );
    assert!(finished.ok().contains("Hello there."), "{finished:?}");
}

#[test]
fn a_backend_that_tells_its_key_is_not_heard() {
    let lab = Lab::with_web();
    let _backend = Backend::start(&lab);
    let finished = curl(
        &lab,
        &format!("[{}]", route("echo", "")),
        &[&format!("-i {CHAT}")],
    );
    assert!(
        finished.ok().contains("HTTP/1.1 401 Unauthorized")
            && finished
                .stdout
                .contains("provided: Bearer ******************"),
        "{finished:?}"
    );
    assert!(
        !finished.stdout.contains("sk-of-the-operator"),
        "{finished:?}"
    );
    assert_eq!(
        finished
            .logged("held a secret of route echo, which was masked")
            .len(),
        1,
        "{}",
        finished.log
    );
}

#[test]
fn methods_and_queries_are_the_interfaces_own() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let words = [
        "-X get '$U/models/x:predict?alt=sse&key=mine&limit=2' -d ''".replace('\'', "\""),
        "-X get $U/models/x -d 'a body'".to_owned(),
        "$U/chat/completions -d '{\"Model\": \"big\", \"n\": NaN}'".to_owned(),
        "$U/chat/completions -d '{\"model\": \"m1\", \"MODEL\": \"big\"}'".to_owned(),
    ];
    let finished = curl(
        &lab,
        &format!("[{}]", route("ok", "")),
        &words.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    let asked: Vec<_> = backend
        .seen()
        .iter()
        .map(|seen| {
            format!(
                "{} {}",
                seen[0].as_str().unwrap(),
                seen[1].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        asked,
        ["GET /ok/v1/models/x:predict?limit=2"],
        "{finished:?}"
    );
    assert_eq!(
        finished
            .ok()
            .matches("\"reason_code\":\"bad_request\"")
            .count(),
        2,
        "{finished:?}"
    );
    assert_eq!(
        finished.ok().matches("unsupported_encoding").count(),
        1,
        "{finished:?}"
    );
}

#[test]
fn a_call_that_its_client_leaves_is_cancelled_at_the_backend() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let script = "curl -sSN -m 1 https://inference.local/v1/chat/completions -d '{}' | wc -l; exec \
                  sleep 600";
    let started =
        sandbox(&lab, &format!("[{}]", route("endless", ""))).start(&["sh", "-c", script]);
    // Before the end of the sandbox, which would cancel the call too.
    lab::wait_until(
        || backend.folder.join("left").exists(),
        || "the backend goes on for nobody".to_owned(),
    );
    started.signal(Signal::TERM);
    let finished = started.wait();
    assert!(
        finished
            .log
            .contains("the client left before the end of the answer"),
        "{}",
        finished.log
    );
}

#[test]
fn what_the_system_keeps_for_itself_is_served_to_nobody() {
    let lab = Lab::with_web();
    let system = "{name: sandbox-system, endpoint: \"mock://x\", model: hidden, protocols: \
                  [model_discovery]}";
    let finished = curl(&lab, &format!("[{system}]"), &["$U/models"]);
    assert!(
        finished
            .stderr
            .contains("CONNECT tunnel failed, response 503"),
        "{finished:?}"
    );
    let other = "{name: other, endpoint: \"mock://x\", model: shown, protocols: [model_discovery]}";
    let finished = curl(&lab, &format!("[{system}, {other}]"), &["$U/models"]);
    assert!(
        finished.ok().contains("shown") && !finished.stdout.contains("hidden"),
        "{finished:?}"
    );
}

#[test]
fn malformed_requests_are_refused() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let words = [
        "$U/chat/completions -d '{}' -H 'Transfer-Encoding: gzip'",
        "'https://inference.local/v1/chat/%zz' -d '{}'",
    ];
    let finished = curl(&lab, &format!("[{}]", route("ok", "")), &words);
    assert!(
        finished.stdout.lines().all(|line| line.ends_with(" 400")),
        "{finished:?}"
    );
    assert_eq!(backend.seen().len(), 0);
}

#[test]
fn clients_get_the_base_urls_and_keys_of_the_models_unless_the_caller_has_others() {
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    let print = "echo \
                 $OPENAI_BASE_URL,$OPENAI_API_KEY,$ANTHROPIC_BASE_URL,$ANTHROPIC_AUTH_TOKEN,$ANTHROPIC_API_KEY";
    let both = format!("[{}]", route("good", ""));
    let defaults = "https://inference.local/v1,any,https://inference.local,any,";
    let run = |routes: &str, variables: &[(&str, &str)], flags: &[&str]| {
        let run = sandbox(&lab, routes).args(flags);
        variables
            .iter()
            .fold(run, |run, (name, value)| run.env(name, value))
            .sh(print)
            .ok()
            .to_owned()
    };
    assert_eq!(run(&both, &[], &[]), defaults);
    assert_eq!(run(&both, &[], &["--clear-env"]), defaults);
    let of_openai = both.replace(ALL, "openai_responses");
    assert_eq!(
        run(&of_openai, &[], &[]),
        "https://inference.local/v1,any,,,"
    );
    // The operator's key is the command's neither by its own name.
    let by_variable = both.replace("api_key: sk-of-the-operator", "api_key_env: OPENAI_API_KEY");
    assert_eq!(
        run(
            &by_variable,
            &[("OPENAI_API_KEY", "sk-of-the-operator")],
            &[]
        ),
        defaults
    );
    let own = [
        ("OPENAI_BASE_URL", "https://web.test/v1"),
        ("ANTHROPIC_API_KEY", "own"),
    ];
    assert_eq!(
        run(&both, &own, &[]),
        "https://web.test/v1,,https://inference.local,,own"
    );
    let taken = "https://inference.local/v1,any,https://inference.local,,openshell:resolve:env:ANTHROPIC_API_KEY";
    assert_eq!(
        run(
            &both,
            &[("ANTHROPIC_API_KEY", "own")],
            &["--secrets-from-env"]
        ),
        taken
    );
    let asked = sandbox(&lab, &both).env("ANTHROPIC_API_KEY", "own").args(&["--secrets-from-env"]).sh(
        "curl -sS $OPENAI_BASE_URL/chat/completions -H \"Authorization: Bearer $OPENAI_API_KEY\" -d '{\"model\": \"x\"}' -o /dev/null -w '%{http_code} '
         curl -sS $ANTHROPIC_BASE_URL/v1/messages -H \"x-api-key: $ANTHROPIC_API_KEY\" -d '{\"model\": \"x\"}' -o /dev/null -w '%{http_code}'",
    );
    assert_eq!(asked.ok(), "200 200", "{asked:?}");
    assert_eq!(backend.seen().len(), 2);
    assert!(
        backend
            .seen()
            .iter()
            .all(|seen| !seen.to_string().contains("openshell:resolve")),
        "{:?}",
        backend.seen()
    );
}
