//! Agents that are refused, propose a line, wait for a person, and go on. Their model is one of the lab,
//! which tells them the steps of the text for agents.

use std::path::Path;

use lab::Lab;
use lab::host::UID;

use super::approvals::{Asking, line};
use super::inference::{Backend, file as file_of_routes, route};
use super::sdks::installed;

/// What curl may do at the host of the tests, to begin with.
const LAB: &str = "  lab:
    endpoints:
      - {host: web.test, port: 8090, allowed_ips: [10.99.0.1], protocol: rest, enforcement: enforce, access: read-only}
    binaries: [{path: /usr/bin/curl}]
";

/// What the model has the agent do.
const STEPS: &str = r#"curl -sS -d note http://web.test:8090/notes
curl -sS http://policy.local/v1/skill | head -2
curl -sS http://policy.local/v1/proposals -d '{"intent_summary": "to leave the note", "operations": [{"addRule": {"ruleName": "notes", "rule": {"endpoints": [{"host": "web.test", "port": 8090, "protocol": "rest", "rules": [{"allow": {"method": "POST", "path": "/notes"}}]}], "binaries": [{"path": "/usr/bin/curl"}]}}}]}' > proposed; cat proposed
curl -sS "http://policy.local/v1/proposals/$(grep -o 'p-[0-9a-z]*' proposed)/wait?timeout=60"
curl -sS -d note http://web.test:8090/notes
"#;

/// Runs the agent of `package` by `words` with its preset; a person permits what it proposes.
fn check(package: &str, preset: &str, words: &str) {
    let install = format!("cd \"$FOLDER\" && npm install --silent --no-audit --no-fund {package}");
    let packages = installed(&format!("propose-{preset}"), &install);
    let lab = Lab::with_web();
    let backend = Backend::start(&lab);
    std::fs::write(backend.folder().join("steps"), STEPS).unwrap();
    let web = lab.http("10.99.0.1:8090");
    let [home, project] = ["home", "project"].map(|name| {
        let folder = lab.folder(name);
        std::os::unix::fs::chown(&folder, Some(UID), Some(UID)).unwrap();
        folder.display().to_string()
    });
    let presets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/presets");
    let packages = packages.0.display().to_string();
    let preset = std::fs::read_to_string(presets.join(format!("{preset}.yaml")))
        .unwrap()
        .replace("~/", &format!("{home}/"))
        .replace("  read_only:", &format!("  read_only:\n    - {packages}"));
    let policy = format!("process: {{run_as_user: \"{UID}\"}}\n{preset}{LAB}");
    let routes = file_of_routes(&lab, &format!("routes: [{}]", route("agent", "")));
    let script =
        format!("export HOME={home} PATH={packages}/node_modules/.bin:$PATH; {words} </dev/null");
    let sandbox =
        lab.sandbox(&policy)
            .args(&["--inference-routes", &routes, "--workdir", &project]);
    let asking = Asking::with(sandbox, &lab, "--policy-local", &["sh", "-c", &script]);
    let question = asking.held();
    assert_eq!(question["kind"], "proposal");
    assert_eq!(question["intent"], "to leave the note");
    assert!(line(&question).contains("path: /notes"), "{question}");
    assert!(web.seen().is_empty());
    asking.decide(&question, "run");
    let finished = asking.wait();
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(web.seen().len(), 1, "it went on: {finished:?}");
    for said in [
        "submit_proposal",
        "policy-advisor",
        "approved",
        "Hello there.",
    ] {
        let seen = backend.seen();
        let is_said = finished.stdout.contains(said)
            || seen.iter().any(|seen| seen.to_string().contains(said));
        assert!(is_said, "{said}: {finished:?}");
    }
}

#[test]
fn claude_code_proposes_and_goes_on() {
    check(
        "@anthropic-ai/claude-code",
        "claude-code",
        "claude -p 'do the steps' --allowedTools Bash",
    );
}

#[test]
fn codex_proposes_and_goes_on() {
    check(
        "@openai/codex",
        "codex",
        "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -c model=gpt-x -c \
         openai_base_url=https://inference.local/v1 'do the steps'",
    );
}
