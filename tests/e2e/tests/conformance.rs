//! The conformance suites of MCP find the same inside a sandbox as outside. Run by `tests/conformance`.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::collections::BTreeMap;
use std::fs::read_dir;
use std::path::{Path, PathBuf};

use lab::Lab;
use lab::host::UID;
use serde_json::Value;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mcp");

/// The suites, and the words by which they run what they have for a revision.
const RUNS: [(&str, &str); 3] = [
    ("0.1", "--suite all"),
    ("0.2", "--requirements 2025-11-25"),
    ("0.2", "--requirements 2026-07-28"),
];

/// Checks that measure times: a machine that runs all clients at once fails them now and then.
const TIMED: [&str; 1] = ["client-sse-retry-timing"];

/// Checks of servers about what a policy refuses before them: a method that nobody knows, or a revision,
/// of which the refusal names those of the policy.
const REFUSED: [&str; 2] = [
    "sep-2575-http-server-method-not-found-404",
    "sep-2575-server-unsupported-version-error",
];

/// The folder that `tests/conformance` has made.
fn folder() -> PathBuf {
    std::env::var_os("CONFORMANCE")
        .expect("run tests/conformance")
        .into()
}

/// The status of each check, and what it says of it, by its scenario, its id and its number there.
type Checks = BTreeMap<(String, String, usize), (String, String)>;

/// Returns the checks whose results a suite has written below `results`.
fn checks(results: &Path) -> Checks {
    let mut all = Checks::new();
    let mut folders = vec![results.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        folders.extend(entries.filter(|path| path.is_dir()));
        let Ok(text) = std::fs::read_to_string(folder.join("checks.json")) else {
            continue;
        };
        let name = folder.strip_prefix(results).unwrap().display().to_string();
        let scenario = name.split("-20").next().unwrap().to_owned();
        let written: Vec<Value> = serde_json::from_str(&text).unwrap();
        for check in written {
            let id = check["id"].as_str().unwrap().to_owned();
            let status = check["status"].as_str().unwrap().to_owned();
            let number = (0..).find(|n| !all.contains_key(&(scenario.clone(), id.clone(), *n)));
            let said = check["errorMessage"].to_string();
            all.insert((scenario.clone(), id, number.unwrap()), (status, said));
        }
    }
    all
}

/// Returns the number of checks with `status`.
fn count(checks: &Checks, status: &str) -> usize {
    checks.values().filter(|(known, _)| known == status).count()
}

/// Prints the counts of a run, and returns what passed outside and not inside.
fn compared(about: &str, outside: &Path, inside: &Path) -> Vec<String> {
    let (outside, inside) = (checks(outside), checks(inside));
    let passed = |checks| (count(checks, "SUCCESS"), count(checks, "FAILURE"));
    let ((out_passed, out_failed), (in_passed, in_failed)) = (passed(&outside), passed(&inside));
    println!(
        "{about}: outside {out_passed} passed, {out_failed} failed; inside {in_passed} passed, {in_failed} failed"
    );
    assert!(out_passed > 0, "{about}: the suite has run");
    let mut lost = Vec::new();
    for (check, (status, _)) in &outside {
        let of_inside = inside.get(check);
        let is_same = of_inside.is_some_and(|(known, _)| known == status);
        let is_explained = TIMED.iter().chain(&REFUSED).any(|known| *known == check.1);
        if status == "SUCCESS" && !is_same && !is_explained {
            lost.push(format!("{about}: {check:?} is {of_inside:?} inside"));
        }
    }
    lost
}

/// Returns a new folder for results, in which the workload may write.
fn results(lab: &Lab, name: &str) -> PathBuf {
    let folder = lab.folder(name);
    std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
    folder
}

/// Returns the words that start Node, and the file of a suite.
fn program(suite: &str) -> (String, String) {
    let folder = folder().display().to_string();
    let module = "node_modules/@modelcontextprotocol/conformance/dist/index.js";
    (
        format!("{folder}/sdk/node_modules/node/bin/node"),
        format!("{folder}/{suite}/{module}"),
    )
}

#[test]
fn the_suites_find_the_same_of_a_server_from_inside() {
    let mut lost = Vec::new();
    for (number, (suite, words)) in RUNS.into_iter().enumerate() {
        let lab = Lab::with_web();
        let (node, index) = program(suite);
        let packages = format!("PACKAGES={}/sdk", folder().display());
        let script = format!("{SCRIPTS}/conformance-server.mjs");
        let _server = lab.program(&["env", &packages, &node, &script, "10.99.0.1", "8080"]);
        let ran = |host: &str, to: &Path| {
            format!(
                "cd {to}; {node} {index} server --url http://{host}:8080/mcp {words} -o {to} > {to}/log 2>&1; true",
                to = to.display()
            )
        };
        let outside = results(&lab, &format!("outside-{number}"));
        let inside = results(&lab, &format!("inside-{number}"));
        let printed = lab.shell(&ran("10.99.0.1", &outside));
        assert_eq!(printed, "", "{suite} {words}");
        let policy = format!(
            "process: {{run_as_user: \"{UID}\"}}\nfilesystem_policy: {{read_only: [{}], read_write: [{}]}}\n\
             network_policies: {{suite: {{endpoints: [{{host: web.test, port: 8080, allowed_ips: [10.99.0.1], path: \
             /mcp, protocol: mcp, enforcement: enforce, mcp: {{strict_tool_names: false, \
             allow_all_known_mcp_methods: true}}}}], binaries: [{{path: \"/**\"}}]}}}}\n",
            folder().display(),
            inside.display()
        );
        let finished = lab.sandbox(&policy).sh(&ran("web.test", &inside));
        assert_eq!(finished.ok(), "");
        lost.extend(compared(
            &format!("server, {suite} {words}"),
            &outside,
            &inside,
        ));
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}

#[test]
fn the_suites_find_the_same_of_a_client_inside() {
    let mut lost = Vec::new();
    for (number, (suite, words)) in RUNS.into_iter().enumerate() {
        let lab = Lab::with_web();
        let (node, index) = program(suite);
        let folder = folder().display().to_string();
        let client = format!("{node} {SCRIPTS}/conformance-client.mjs");
        let ran = |command: &str, to: &Path| {
            let to = to.display();
            format!(
                "export PACKAGES={folder}/sdk CONFORMANCE={folder} USER_INSIDE={UID} SANDBOX='{}' FOLDERS='{folder} {SCRIPTS}'
                 cd {to}; {node} {index} client --command '{command}' {words} -o {to} > {to}/log 2>&1; true",
                lab.binary()
            )
        };
        let outside = results(&lab, &format!("outside-{number}"));
        let inside = results(&lab, &format!("inside-{number}"));
        let within = format!("env LOCALHOST=web.test python3 {SCRIPTS}/sandboxed.py {client}");
        assert_eq!(lab.shell(&ran(&client, &outside)), "", "{suite} {words}");
        assert_eq!(lab.shell(&ran(&within, &inside)), "", "{suite} {words}");
        lost.extend(compared(
            &format!("client, {suite} {words}"),
            &outside,
            &inside,
        ));
    }
    assert!(lost.is_empty(), "{}", lost.join("\n"));
}
