//! Clients whose requests wait for a person: they go on when it answers.

use std::path::Path;

use lab::Lab;
use lab::sandbox::{Finished, Sandbox};

use super::origin::Origin;

/// How long each question waits for its answer, in seconds.
const HELD: u32 = 5;

/// A policy that permits any program the host of the tests, but none of what they ask for there.
fn policy() -> String {
    super::policy(
        "{web: {endpoints: [{host: web.test, ports: [8080, 8443, 8447, 8090], allowed_ips: \
         [10.99.0.1], protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: \
         /nothing}}]}], binaries: [{path: \"/**\"}]}}",
    )
}

/// Returns a sandbox in which every question is answered with `run`, after [`HELD`] seconds.
fn answered<'l>(lab: &'l Lab, policy: &str) -> Sandbox<'l> {
    let hook = lab.file(
        "hook",
        format!("#!/bin/sh\nsleep {HELD}\necho '{{\"decision\": \"run\"}}'\n"),
    );
    let folder = lab.folder("work");
    lab.sandbox(policy).args(&[
        "--ask",
        "--ask-command",
        hook.to_str().unwrap(),
        "--workdir",
        folder.to_str().unwrap(),
    ])
}

/// Checks that `finished` waited for answers, that they were given in time, and that it printed
/// `expected` last.
#[track_caller]
fn check(finished: &Finished, expected: &str) {
    let last = finished
        .stdout
        .trim_end()
        .lines()
        .last()
        .unwrap_or_default();
    assert_eq!(last, expected, "{finished:?}");
    assert!(!finished.logged("APPROVAL:GRANTED").is_empty());
    assert!(
        finished.logged("APPROVAL:EXPIRED").is_empty(),
        "{}",
        finished.log
    );
}

/// Runs `script` against the origin, or its programs and repositories.
fn run(lab: &Lab, origin: &Origin, script: &str) -> Finished {
    let sandbox = answered(lab, &policy());
    let authority = origin.authority();
    sandbox.args(&["--upstream-ca-file", &authority]).sh(script)
}

#[test]
fn curl_and_requests_go_on() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let curl = "curl -sS https://web.test:8443/hello";
    check(&run(&lab, &origin, curl), "hello");
    let requests = "/usr/bin/python3 -c \"import requests; \
                    print(requests.get('https://web.test:8443/hello').text)\"";
    check(&run(&lab, &origin, requests), "hello");
}

#[test]
fn the_client_of_java_goes_on() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let script = r#"cat > Client.java <<'END'
import java.net.URI;
import java.net.http.*;
public class Client {
    public static void main(String[] words) throws Exception {
        var request = HttpRequest.newBuilder(URI.create("https://web.test:8443/hello")).build();
        var answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        System.out.println(answer.body());
    }
}
END
java Client.java"#;
    check(&run(&lab, &origin, script), "hello");
}

#[test]
fn fetch_of_node_which_knows_no_proxy_goes_on() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let script = "node -e \"fetch('http://web.test:8080/a').then(async answer => \
                  console.log(await answer.text()))\"";
    let other = super::approvals::policy();
    check(&answered(&lab, &other).sh(script), "hello");
}

#[test]
fn git_clones_and_pushes() {
    let lab = Lab::with_web();
    let origin = Origin::start(&lab);
    let folder = lab.folder("repositories");
    let path = folder.display().to_string();
    let made = lab.shell(&format!(
        "git init -q --bare {path}/repo.git && git -C {path}/repo.git config http.receivepack true \
         && chmod -R a+rwX {path}"
    ));
    assert_eq!(made, "");
    let server = lab.file("git.py", include_str!("data/git.py"));
    let certificate = Path::new(&origin.authority()).with_file_name("good");
    let _server = lab.program(&[
        "/usr/bin/python3",
        server.to_str().unwrap(),
        &path,
        certificate.to_str().unwrap(),
        "10.99.0.1",
        "8447",
    ]);
    let script = "set -e; export HOME=$PWD; git init -q one; cd one; git config user.name t; git \
                  config user.email t@lab.test; echo x > x; git add x; git commit -qm x; git push \
                  -q https://web.test:8447/repo.git HEAD:refs/heads/main; cd ..; git clone -q -b \
                  main https://web.test:8447/repo.git two; cmp one/x two/x && echo same";
    check(&run(&lab, &origin, script), "same");
}

/// Runs `script`, whose tools find one tiny package each.
fn install(lab: &Lab, policy: &str, script: &str) -> Finished {
    let server = lab.file("registries.py", include_str!("data/registries.py"));
    let server = server.to_str().unwrap();
    let _program = lab.program(&["/usr/bin/python3", server, "10.99.0.1", "8090"]);
    answered(lab, policy).sh(&format!("set -e; export HOME=$PWD; {script}"))
}

#[test]
fn pip_downloads() {
    let script = "/usr/bin/python3 -m pip download -q --disable-pip-version-check --no-deps \
                  --index-url http://web.test:8090/simple --trusted-host web.test demo; ls demo*";
    let lab = Lab::with_web();
    check(
        &install(&lab, &policy(), script),
        "demo-1.0-py3-none-any.whl",
    );
}

#[test]
fn npm_installs() {
    let script = "npm install --silent --no-audit --no-fund --no-update-notifier --registry \
                  http://web.test:8090/ demo; ls node_modules";
    let lab = Lab::with_web();
    check(&install(&lab, &policy(), script), "demo");
}

#[test]
fn cargo_fetches() {
    let lab = Lab::with_web();
    // The toolchain may be in a folder of root's.
    let toolchain = Path::new(env!("CARGO")).ancestors().nth(2).unwrap();
    let here = lab.folder("toolchain");
    let mount = format!("mount --bind {} {}", toolchain.display(), here.display());
    assert_eq!(lab.shell(&mount), "");
    let policy = format!(
        "{}filesystem_policy: {{read_only: [{}]}}\n",
        policy(),
        here.display()
    );
    let script = format!(
        r#"export PATH={}/bin:$PATH; mkdir src .cargo; touch src/lib.rs
        printf '[package]\nname = "uses"\nversion = "1.0.0"\nedition = "2021"\n' > Cargo.toml
        printf '[dependencies]\ndemo = {{version = "1", registry = "local"}}\n' >> Cargo.toml
        printf '[registries.local]\nindex = "sparse+http://web.test:8090/index/"\n' > .cargo/config.toml
        cargo fetch -q; ls .cargo/registry/cache/*"#,
        here.display()
    );
    check(&install(&lab, &policy, &script), "demo-1.0.0.crate");
}
