//! The gateway decides about what is asked, and about what agents propose.

use gateway::proto::sandbox::v1::{EffectiveSetting, SettingValue, setting_value::Value};
use gateway::{Answers, Generation};
use lab::Lab;
use serde_json::Value as Json;

use super::approvals::Asking;
use super::gateway::{Host, answers, web};

const B: &str = "http://web.test:8080/b";

/// curl to a path that the policy of the gateway does not permit.
const CURL: &[&str] = &["curl", "-sS", "-m", "60", "-w", " %{http_code}\\n", B];

fn today() -> Answers {
    answers(Generation::Today, Some(web("/a")))
}

/// Returns the value of a setting that is on, or off.
fn setting(is_on: bool) -> EffectiveSetting {
    EffectiveSetting {
        value: Some(SettingValue {
            value: Some(Value::BoolValue(is_on)),
        }),
        scope: 1,
    }
}

const PROPOSALS: &str = "agent_policy_proposals_enabled";

#[test]
fn a_request_waits_for_the_gateway_and_goes_on_with_its_policy() {
    for generation in [Generation::Today, Generation::April] {
        let lab = Lab::with_web();
        let _web = lab.http("10.99.0.1:8080");
        let host = Host::start(&lab, answers(generation, Some(web("/a"))));
        let asking = Asking::of(host.sandbox(&lab), &lab, CURL);
        let question = asking.held();
        let id = question["id"].as_str().unwrap();
        let (said, code) = asking.approvals(&format!("decide {id} once"));
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("the gateway decides"), "{said}");
        let draft = host.gateway.draft();
        let rule = draft.proposed_rule.clone().unwrap();
        assert_eq!(
            rule.endpoints[0].rules[0].allow.as_ref().unwrap().path,
            "/b"
        );
        assert!(draft.rationale.contains("GET /b"), "{}", draft.rationale);
        host.gateway.approve(&draft);
        let finished = asking.wait();
        assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
        assert_eq!(finished.logged("HTTP:GET").len(), 1);
        let granted = finished.logged("APPROVAL:GRANTED");
        assert!(
            granted.len() == 1 && granted[0].contains("[by:gateway]"),
            "{}",
            finished.log
        );
        let lines: Vec<_> = host
            .gateway
            .heard()
            .analyses
            .iter()
            .filter(|analysis| !analysis.proposed_chunks.is_empty())
            .map(|analysis| analysis.analysis_mode.clone())
            .collect();
        assert_eq!(lines, ["mechanistic"], "one line, once");
    }
}

#[test]
fn a_request_that_the_gateway_rejects_is_refused_and_not_proposed_again() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, today());
    let sandbox = host
        .sandbox(&lab)
        .env("OPENSHELL_DENIAL_FLUSH_INTERVAL_SECS", "1");
    let asking = Asking::of(sandbox, &lab, CURL);
    let draft = host.gateway.draft();
    host.gateway.reject(&draft, "not in this project");
    let finished = asking.wait();
    assert!(
        finished.stdout.contains("\"asked\":\"denied\"") && finished.stdout.ends_with(" 403\n"),
        "{finished:?}"
    );
    let denied = finished.logged("APPROVAL:DENIED");
    assert!(denied[0].contains("[by:gateway]"), "{denied:?}");
    let heard = host.gateway.wait(|heard| {
        let mut analyses = heard.analyses.iter();
        analyses.any(|analysis| !analysis.summaries.is_empty())
    });
    let lines = heard
        .analyses
        .iter()
        .map(|analysis| analysis.proposed_chunks.len());
    assert_eq!(lines.sum::<usize>(), 1, "{:#?}", heard.analyses);
}

#[test]
fn a_gateway_that_is_away_as_a_request_is_held_is_asked_once_it_is_back() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let mut given = today();
    given.faults.insert("SubmitPolicyAnalysis", (14, 1));
    let host = Host::start(&lab, given);
    let asking = Asking::of(host.sandbox(&lab), &lab, CURL);
    let draft = host.gateway.draft();
    host.gateway.approve(&draft);
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
}

#[test]
fn a_gateway_that_is_lost_answers_nothing_and_the_time_decides() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let mut host = Host::start(&lab, today());
    let asking = Asking::with(host.sandbox(&lab), &lab, "--ask=5", CURL);
    drop(host.gateway.draft());
    host.end();
    let finished = asking.wait();
    assert!(
        finished.stdout.contains("\"asked\":\"expired\"") && finished.stdout.ends_with(" 403\n"),
        "{finished:?}"
    );
}

#[test]
fn under_a_policy_for_all_sandboxes_nothing_is_held() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let mut given = today();
    (
        given.config.policy_source,
        given.config.global_policy_version,
    ) = (2, 7);
    let host = Host::start(&lab, given);
    let finished = host.sandbox(&lab).args(&["--ask", "--ask-local"]).run(CURL);
    assert!(finished.stdout.ends_with(" 403\n"), "{finished:?}");
    assert!(!finished.stdout.contains("asked"), "{finished:?}");
    assert!(finished.logged("APPROVAL:").is_empty());
    let said = "a policy for all sandboxes";
    assert_eq!(finished.logged(said).len(), 1, "{}", finished.log);
}

#[test]
fn with_the_launchers_leave_answers_are_given_here_too() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, today());
    let sandbox = host.sandbox(&lab).args(&["--ask-local"]);
    let asking = Asking::of(sandbox, &lab, CURL);
    let question = asking.held();
    let id = question["id"].as_str().unwrap();
    let (said, code) = asking.approvals(&format!("decide {id} save"));
    assert_eq!(code, 1, "nothing is saved at a gateway: {said}");
    asking.decide(&question, "once");
    let finished = asking.wait();
    assert_eq!(finished.stdout, "hello 200\n", "{}", finished.log);
    assert!(finished.logged("APPROVAL:GRANTED")[0].contains("[by:terminal]"));
}

/// Functions of a shell that proposes GET /b, and waits.
const PROPOSE: &str = r#"
    local=http://policy.local/v1
    propose() { curl -sS $local/proposals -d '{"intent_summary": "to read b", "operations":
        [{"addRule": {"ruleName": "b", "rule": {"endpoints": [{"host": "web.test", "port": 8080,
        "protocol": "rest", "rules": [{"allow": {"method": "GET", "path": "/b"}}]}],
        "binaries": [{"path": "/usr/bin/curl"}]}}}]}'; }
    id() { sed 's/.*accepted_chunk_ids":\["\([^"]*\)".*/\1/'; }
"#;

#[test]
fn an_agent_proposes_to_the_gateway_while_its_setting_is_on() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let mut given = today();
    given
        .config
        .settings
        .insert(PROPOSALS.to_owned(), setting(true));
    let host = Host::start(&lab, given);
    let script = format!(
        "{PROPOSE}
        id=$(propose | id); echo $id
        curl -sS $local/proposals/$id
        curl -sS \"$local/proposals/$id/wait?timeout=60\"
        curl -sS -w ' %{{http_code}}\\n' {B}
        while curl -sS $local/denials | grep -q log_available; do sleep 0.1; done
        propose"
    );
    let started = host.sandbox(&lab).start(&["sh", "-c", &script]);
    let draft = host.gateway.draft();
    assert_eq!(draft.rationale, "to read b");
    host.gateway.approve(&draft);
    // The sandbox goes on until it has seen that the setting is off.
    host.gateway.wait(|heard| {
        let mut logs = heard.logs.iter();
        logs.any(|line| line.message.contains("ALLOWED") && line.message.contains(":8080/b"))
    });
    host.gateway.answer(|answers| {
        answers
            .config
            .settings
            .insert(PROPOSALS.to_owned(), setting(false));
        answers.config.config_revision += 1;
    });
    let finished = started.wait();
    let lines: Vec<_> = finished.stdout.lines().collect();
    let json = |at: usize| serde_json::from_str::<Json>(lines[at]).unwrap();
    assert_eq!(lines[0], "chunk-1", "{finished:?}");
    assert_eq!(json(1)["chunk_id"], "chunk-1");
    assert_eq!(json(2)["status"], "approved", "{}", lines[2]);
    assert_eq!(json(2)["policy_reloaded"], true);
    assert_eq!(lines[3], "hello 200");
    assert_eq!(json(4)["error"], "feature_disabled");
    let modes = host.gateway.heard().analyses.into_iter();
    let modes: Vec<_> = modes
        .filter(|analysis| !analysis.proposed_chunks.is_empty())
        .map(|analysis| analysis.analysis_mode)
        .collect();
    assert_eq!(modes, ["agent_authored"]);
    for event in ["CONFIG:PROPOSED [LOW]", "CONFIG:APPROVED [MED]"] {
        assert_eq!(finished.logged(event).len(), 1, "{}", finished.log);
    }
}

#[test]
fn what_the_gateway_does_not_take_or_cannot_say_is_told_to_the_agent() {
    let lab = Lab::with_web();
    let mut given = today();
    given
        .config
        .settings
        .insert(PROPOSALS.to_owned(), setting(true));
    given.faults.insert("SubmitPolicyAnalysis", (14, 1));
    given.faults.insert("GetDraftPolicy", (3, 1));
    let host = Host::start(&lab, given);
    let folder = lab.folder("work");
    let script = format!(
        "{PROPOSE}
        propose
        id=$(propose | id)
        curl -sS $local/proposals/$id
        curl -sS $local/proposals/$id
        touch waits; curl -sS \"$local/proposals/$id/wait?timeout=60\"
        touch rejected; while [ ! -e go ]; do sleep 0.1; done
        propose"
    );
    let sandbox = host
        .sandbox(&lab)
        .args(&["--workdir", folder.to_str().unwrap()]);
    let started = sandbox.start(&["sh", "-c", &script]);
    let draft = host.gateway.draft();
    lab::wait_until(|| folder.join("waits").exists(), || lab.log());
    host.gateway.reject(&draft, "ask the owner first");
    lab::wait_until(|| folder.join("rejected").exists(), || lab.log());
    host.gateway
        .answer(|answers| answers.refuses_lines = Some("no more today".to_owned()));
    std::fs::write(folder.join("go"), "").unwrap();
    let finished = started.wait();
    let lines: Vec<Json> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["error"], "gateway_connect_failed", "{finished:?}");
    assert_eq!(lines[1]["error"], "gateway_lookup_failed", "{finished:?}");
    assert_eq!(lines[2]["status"], "pending");
    assert_eq!(lines[3]["status"], "rejected");
    assert_eq!(lines[3]["rejection_reason"], "ask the owner first");
    assert_eq!(lines[4]["rejected_chunks"], 1);
    assert_eq!(lines[4]["rejection_reasons"][0], "no more today");
}

#[test]
fn flags_that_do_not_go_with_a_gateway_or_without_one_stop_the_start() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, today());
    for words in [
        &["--policy-local"][..],
        &["--ask", "--ask-command", "/bin/true"],
        &["--ask-local"],
    ] {
        let finished = host.sandbox(&lab).args(words).run(&["true"]);
        assert_ne!(finished.code(), 0, "{words:?}");
        assert!(!finished.log.contains("PROC:LAUNCH"), "{words:?}");
    }
    let finished = lab
        .sandbox("network_policies: {}\n")
        .args(&["--ask", "--ask-local"])
        .run(&["true"]);
    assert_ne!(finished.code(), 0);
    assert!(
        finished.stderr.contains("goes with a gateway"),
        "{}",
        finished.stderr
    );
}
