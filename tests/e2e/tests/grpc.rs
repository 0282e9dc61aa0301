//! gRPC: calls through the sandbox work as without it, and refusals are gRPC statuses.

use lab::{Finished, Lab};

use super::origin::{FULL, Origin, policy};
use super::sdks::{Packages, installed};

/// Creates a lab with the service, and the client library from the package registry.
struct Calls {
    lab: Lab,
    origin: Origin,
    packages: Packages,
}

const CLIENT: &str = include_str!("data/calls.py");

impl Calls {
    fn start() -> Self {
        Self::with(installed(
            "grpc",
            "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" grpcio",
        ))
    }

    fn with(packages: Packages) -> Self {
        let lab = Lab::with_web();
        let path = format!("PYTHONPATH={}", packages.0.display());
        let origin = Origin::of(
            &lab,
            "calls.py",
            CLIENT,
            &["/usr/bin/env", &path, "/usr/bin/python3"],
        );
        Self {
            lab,
            origin,
            packages,
        }
    }

    fn run(&self, rules: &str, words: &[&str], program: &str) -> Finished {
        let folder = self.packages.0.display().to_string();
        let policy = policy(&[&super::python()], rules)
            + &format!("filesystem_policy: {{read_only: [{folder}]}}\n");
        let sandbox = self
            .lab
            .sandbox(&policy)
            .args(&["--upstream-ca-file", &self.origin.authority()])
            .args(words);
        sandbox
            .env("PYTHONPATH", &folder)
            .python(&[CLIENT, program].concat(), &[])
    }
}

#[test]
fn calls_of_each_kind_go_through_and_are_refused_in_their_own_words() {
    let calls = Calls::start();
    let program = "
def check(channel):
    one, many = channel.unary_unary(path('One')), channel.unary_stream(path('Many'))
    count, talk = channel.stream_unary(path('Count')), channel.stream_stream(path('Talk'))
    print(one(b'hello'), b' '.join(many(b'')), count(iter([b'abc', b'de'])))
    answer, call = one.with_call(b'hello')
    print(dict(call.trailing_metadata()))
    # Each word waits for the answer to the previous one.
    words, heard = [b'a', b'b', b'c'], threading.Semaphore(1)
    def say():
        for word in words: heard.acquire(); yield word
    said_back = []
    for word in talk(say()): said_back.append(word); heard.release()
    print(said_back)
    large = bytes(20_000_000)
    print(one(large) == large)
    print(said(lambda: one(b'fail')))
    print(said(lambda: one(b'sleep5', timeout=0.3)))
    call = many(b''); call.cancel()
    print(said(lambda: list(call)))
check(secure()); check(clear())
";
    let finished = calls.run(FULL, &[], program);
    let each = [
        "b'hello' b'0 - 1 - 2 - 3 - 4 -' b'5'",
        "{'x-end': 'yes'}",
        "[b'a-', b'b-', b'c-']",
        "True",
        "FAILED_PRECONDITION as asked",
        "DEADLINE_EXCEEDED Deadline Exceeded",
        "CANCELLED Locally cancelled by application!",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        [each, each].concat(),
        "{finished:?}"
    );
    let line =
        "HTTP:POST [INFO] ALLOWED POST https://web.test/lab.Calls/Talk [policy:web engine:l7]";
    assert_eq!(finished.logged(line).len(), 1, "{}", finished.log);
    assert!(
        finished.logged("NET:OPEN [INFO] ALLOWED").len() <= 2,
        "one connection each: {}",
        finished.log
    );

    let rules = "protocol: rest, enforcement: enforce, rules: [{allow: {method: POST, path: \
                 /lab.Calls/One}}]";
    let program = "
for channel in (secure(), clear()):
    print(channel.unary_unary(path('One'))(b'hello'), said(lambda: list(channel.unary_stream(path('Many'))(b''))))
    print(channel.unary_unary(path('One'))(b'hello'))
";
    let finished = calls.run(rules, &[], program);
    for line in finished.ok().lines().step_by(2) {
        let told = "b'hello' PERMISSION_DENIED request_not_in_rules: POST /lab.Calls/Many not \
                    permitted by policy; ";
        assert!(
            line.starts_with(told)
                && line.contains("- allow: {method: POST, path: /lab.Calls/Many}"),
            "{finished:?}"
        );
    }
    assert_eq!(finished.stdout.lines().count(), 4);
    assert!(
        finished
            .stdout
            .lines()
            .skip(1)
            .step_by(2)
            .all(|line| line == "b'hello'"),
        "{finished:?}"
    );

    // The secret arrives, and no message returns it; each message is forwarded when it is complete.
    let credentials = calls.lab.file(
        "credentials.yaml",
        "credentials: {KEY: {value: s3cret-Value.42, hosts: [\"web.test\"]}}",
    );
    std::fs::set_permissions(
        &credentials,
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    let program = "
import os
channel, metadata = secure(), (('x-key', os.environ['KEY']),)
print(b' '.join(channel.unary_stream(path('Many'))(b'', metadata=metadata)))
heard, said_back = threading.Semaphore(1), []
def say():
    for word in (b'a', b'b'): heard.acquire(); yield word
for word in channel.stream_stream(path('Talk'))(say(), metadata=metadata): said_back.append(word); heard.release()
print(said_back)
print(said(lambda: channel.unary_unary(path('One'))(os.environ['KEY'].encode())))
print(said(lambda: clear().unary_unary(path('One'))(b'x', metadata=metadata)))
";
    let finished = calls.run(
        FULL,
        &["--credentials", credentials.to_str().unwrap()],
        program,
    );
    let stars = "*".repeat(15);
    let lines: Vec<_> = finished.ok().lines().collect();
    assert_eq!(
        lines[0],
        format!("b'0 {stars} 1 {stars} 2 {stars} 3 {stars} 4 {stars}'"),
        "{finished:?}"
    );
    assert_eq!(lines[1], format!("[b'a{stars}', b'b{stars}']"));
    assert!(
        lines[2].starts_with("PERMISSION_DENIED credential_not_replaceable"),
        "{finished:?}"
    );
    assert!(
        lines[3].starts_with("PERMISSION_DENIED credential_endpoint_mismatch"),
        "{finished:?}"
    );
    let called = calls.origin.file("calls");
    assert!(
        called.contains("many s3cret-Value.42") && !called.contains("openshell:"),
        "{called}"
    );
    assert!(!finished.log.contains("s3cret"));
}

#[test]
fn calls_need_no_proxy_and_are_judged_as_by_one() {
    let calls = Calls::start();
    let rules = "protocol: rest, enforcement: enforce, rules: [{allow: {method: POST, path: \
                 /lab.Calls/One}}]";
    let program = "
import os
for name in list(os.environ):
    if name.lower().endswith('_proxy'): del os.environ[name]
for channel in (secure(), clear()):
    print(channel.unary_unary(path('One'))(b'hello'), said(lambda: list(channel.unary_stream(path('Many'))(b'')))[:44])
";
    let finished = calls.run(rules, &["--log-level", "info"], program);
    let line = "b'hello' PERMISSION_DENIED request_not_in_rules: POST";
    assert_eq!(finished.ok(), format!("{line}\n{line}"), "{finished:?}");
    assert_eq!(finished.logged("[door:name]").len(), 2, "{}", finished.log);
}

#[test]
fn what_takes_calls_without_http2_is_unavailable() {
    let packages = installed(
        "grpc-h1",
        "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" grpcio",
    );
    let lab = Lab::with_web();
    let calls = Calls {
        origin: Origin::start(&lab),
        lab,
        packages,
    };
    let program = "print(said(lambda: secure().unary_unary(path('One'))(b'hello')))";
    let finished = calls.run(FULL, &[], program);
    let told = "UNAVAILABLE upstream_unreachable: POST /lab.Calls/One failed: the upstream does \
                not speak HTTP/2, which gRPC needs";
    assert_eq!(finished.ok(), told, "{finished:?}");
}

#[test]
fn the_client_of_another_library_calls_as_well() {
    let packages = installed(
        "grpc-tonic",
        "/usr/bin/pip3 install -q --no-cache-dir --target \"$FOLDER\" grpcio",
    );
    let calls = Calls::with(packages);
    // Where it was built may be a folder of root's.
    let client = calls.lab.folder("client").join("calls");
    std::fs::copy(env!("CARGO_BIN_EXE_calls"), &client).unwrap();
    let client = client.to_str().unwrap();
    let run = |rules: &str| {
        let policy =
            policy(&[client], rules) + &format!("filesystem_policy: {{read_only: [{client}]}}\n");
        calls
            .lab
            .sandbox(&policy)
            .args(&["--upstream-ca-file", &calls.origin.authority()])
            .run(&[client])
    };
    let finished = run(FULL);
    let each = [
        "one hello",
        "count 5",
        "Many 5",
        "Talk 2",
        "large true",
        "late Cancelled Timeout expired",
    ];
    assert_eq!(
        finished.ok().lines().collect::<Vec<_>>(),
        [each, each].concat(),
        "{finished:?}"
    );
    let refused = run(
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: POST, path: \
         /lab.Calls/One}}]",
    );
    let told = "Many PermissionDenied request_not_in_rules: POST /lab.Calls/Many not permitted by \
                policy; ";
    assert_eq!(
        refused
            .ok()
            .lines()
            .filter(|line| line.starts_with(told))
            .count(),
        2,
        "{refused:?}"
    );
    assert_eq!(
        refused
            .ok()
            .lines()
            .filter(|line| *line == "one hello")
            .count(),
        2
    );
}
