//! Tests of questions and answers, by a desk over a policy.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use openshell_events::reason::ReasonCode;
use openshell_policy::yaml;
use parking_lot::Mutex;

use crate::approvals::answer::{Answerer, Asked, Decision, Done, Unanswered};
use crate::approvals::desk::{Desk, Outcome, Settings};
use crate::approvals::keep::{Difference, Keep};
use crate::approvals::listing::Listed;
use crate::approvals::wish::{Wish, WishedBody, WishedMessage, WishedRequest};
use crate::decide::message::Message;
use crate::decide::own_lines::OwnLines;
use crate::decide::snapshot::Snapshot;
use crate::decide::store::PolicyStore;
use crate::ground::peer::{Caller, Program};
use crate::reach::authorize::asker::Asker;
use crate::testing;

const HOLD: Duration = Duration::from_secs(120);

const BY: Answerer = Answerer {
    way: "terminal",
    uid: Some(1000),
    reason: "",
};

/// A policy with one endpoint, which has rules.
const RULES: &str = "{host: api.test, port: 443, protocol: rest, enforcement: enforce, access: \
                     read-only}";

/// A file in memory, or a full disk.
#[derive(Clone, Debug, Default)]
struct Shelf {
    lines: Arc<Mutex<Vec<String>>>,
    is_full: bool,
}

impl Keep for Shelf {
    fn difference(&self, line: &str) -> Result<Difference, String> {
        Ok(Difference {
            file: "policy.yaml".to_owned(),
            first: Some(self.lines.lock().len() + 1),
            lines: vec![line.to_owned()],
        })
    }

    fn keep(&self, line: &str, _: &[String]) -> Result<Difference, String> {
        if self.is_full {
            return Err("the disk is full".to_owned());
        }
        let difference = self.difference(line);
        self.lines.lock().push(line.to_owned());
        difference
    }
}

fn desk_over(policy: Snapshot) -> (Arc<Desk>, Arc<PolicyStore>) {
    desk_with(policy, Shelf::default())
}

fn desk_with(policy: Snapshot, shelf: Shelf) -> (Arc<Desk>, Arc<PolicyStore>) {
    let store = Arc::new(PolicyStore::new(policy));
    let settings = Settings {
        hold: HOLD,
        rate: 10,
        asks_of_refusals: true,
    };
    let is_writable = Box::new(|path: &std::path::Path| path.starts_with("/tmp"));
    let audit = Arc::new(testing::Remembered::default());
    let desk = Desk::new(
        settings,
        Arc::clone(&store),
        is_writable,
        Box::new(shelf),
        audit,
    );
    (desk, store)
}

fn desk(endpoints: &str) -> (Arc<Desk>, Arc<PolicyStore>) {
    desk_over(testing::snapshot(1, endpoints))
}

fn caller(executable: &str, is_modified: bool) -> Caller {
    let program = Program {
        executable: executable.to_owned(),
        ancestors: vec!["/usr/bin/bash".to_owned()],
        cmdline_paths: Vec::new(),
        is_modified,
    };
    Caller {
        pid: 7,
        program: program.into(),
    }
}

fn asker(caller: &Caller) -> Asker {
    Asker {
        caller: caller.clone(),
        unexamined: None,
    }
}

fn connection(target: &str) -> Wish {
    Wish {
        caller: caller("/usr/bin/curl", false),
        target: testing::target(target),
        code: ReasonCode::EndpointNotInPolicy,
        addresses: Vec::new(),
        request: None,
        own: OwnLines::default(),
    }
}

fn request(target: &str, method: Method, target_of_uri: &str) -> Wish {
    let message = Message::of_head(method, target_of_uri.parse().unwrap());
    let path = message.uri.path().to_owned();
    let query = message.uri.query().map(str::to_owned);
    Wish {
        code: ReasonCode::RequestNotInRules,
        request: Some(WishedRequest {
            message,
            is_clear: false,
            path,
            query,
            body: None,
            rpc: None,
            credentials: Vec::new(),
            is_upgrade: false,
            has_secret: false,
        }),
        ..connection(target)
    }
}

/// A request that waits.
type Waiting = tokio::task::JoinHandle<Outcome>;

fn ask(desk: &Arc<Desk>, wish: Wish) -> Waiting {
    let desk = Arc::clone(desk);
    tokio::spawn(async move {
        let asker = asker(&wish.caller);
        let (outcome, _) = desk.ask(None, asker, wish, pending()).await;
        outcome
    })
}

/// Waits until as many requests wait under the questions, and returns these.
async fn listed(desk: &Arc<Desk>, held: usize) -> Vec<Listed> {
    let begin = std::time::Instant::now();
    loop {
        let listed = desk.list();
        if listed.iter().map(|question| question.held).sum::<usize>() == held {
            return listed;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{listed:?}");
        tokio::task::yield_now().await;
    }
}

fn yaml_of(listed: &Listed) -> Vec<&str> {
    listed.lines.iter().map(|line| line.yaml.as_str()).collect()
}

#[tokio::test]
async fn a_connection_is_asked_with_a_line_that_only_reads() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let waiting = ask(&desk, connection("docs.other.test:443"));
    let questions = listed(&desk, 1).await;
    let question = &questions[0];
    assert_eq!(
        yaml_of(question),
        [
            "ask_docs.other.test_443: {endpoints: [{host: docs.other.test, port: 443, protocol: \
             rest, enforcement: enforce, access: read-only}], binaries: [{path: /usr/bin/curl, \
             exact: true}]}",
            "ask_docs.other.test_443: {endpoints: [{host: docs.other.test, port: 443, protocol: \
             tcp}], binaries: [{path: /usr/bin/curl, exact: true}]}",
        ]
    );
    assert_eq!(question.facts["site"], "other.test");
    assert_eq!(question.facts["kind"], "connection");
    assert_eq!(question.facts["marks"], serde_json::json!(["new_site"]));
    assert!(!question.lines[0].is_dangerous && question.lines[1].is_dangerous);
    assert_eq!(question.seconds_left, HOLD.as_secs() - 1);
    let id = question.id.to_string();
    assert_eq!(desk.decide(&id, Decision::Once, 0, BY), Ok(Done::default()));
    let outcome = waiting.await.unwrap();
    let Outcome::Once(own, _) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(own.lines().len(), 1);
    assert_eq!(
        desk.decide(&id, Decision::Once, 0, BY),
        Err(Unanswered::Gone)
    );
}

#[tokio::test]
async fn a_line_for_a_port_of_another_protocol_is_for_bytes() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let _waiting = ask(&desk, connection("db.other.test:5432"));
    let questions = listed(&desk, 1).await;
    let lines = yaml_of(&questions[0]);
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("protocol: tcp"), "{lines:?}");
    assert!(questions[0].lines[0].is_dangerous);
}

#[tokio::test]
async fn a_request_is_asked_with_exactly_its_method_and_path_and_then_wider() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let wish = request("api.test:443", Method::POST, "/v1/items/7*?draft=1");
    let waiting = ask(&desk, wish.clone());
    let questions = listed(&desk, 1).await;
    let paths: Vec<_> = questions[0]
        .lines
        .iter()
        .map(|line| {
            let (_, rules) = line.yaml.split_once("rules: ").unwrap();
            rules.split_once("}}]").unwrap().0.to_owned()
        })
        .collect();
    assert_eq!(
        paths,
        [
            "[{allow: {method: POST, path: \"/v1/items/7\\\\*\"",
            "[{allow: {method: POST, path: \"/v1/items/*\"",
            "[{allow: {method: POST, path: \"/v1/*/*\"",
            "[{allow: {method: POST, path: \"/v1/**\"",
        ]
    );
    assert_eq!(
        questions[0].lines[0].permits,
        [
            "/usr/bin/curl may send to api.test:443: POST /v1/items/7\\\\*",
            "with any query, header and body",
        ]
    );
    let id = questions[0].id.to_string();
    let done = desk.decide(&id, Decision::Run, 0, BY).unwrap();
    let grant = done.grant.unwrap();
    assert!(matches!(waiting.await.unwrap(), Outcome::Judge(_)));
    assert_eq!(store.load().generation(), 2);
    assert!(wish.judge(&store.load()).is_ok());
    let other = request("api.test:443", Method::POST, "/v1/items/8");
    assert!(other.judge(&store.load()).is_err());
    assert_eq!(desk.grants().len(), 1);
    assert!(
        desk.revoke(&grant, BY)
            .unwrap()
            .yaml
            .starts_with("ask_api.test_443")
    );
    assert!(wish.judge(&store.load()).is_err());
    assert_eq!(store.load().generation(), 3);
    assert_eq!(desk.revoke(&grant, BY), Err(Unanswered::Gone));
    assert_eq!(desk.granted().len(), 1, "the summary still names it");
}

#[tokio::test]
async fn what_shows_the_same_shares_a_question_and_one_answer_lets_one_go() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let wish = || request("api.test:443", Method::POST, "/v1");
    let first = ask(&desk, wish());
    let before = listed(&desk, 1).await;
    let second = ask(&desk, wish());
    let questions = listed(&desk, 2).await;
    assert_eq!(questions.len(), 1);
    assert_eq!(questions[0].id, before[0].id);
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::Once, 0, BY).unwrap();
    assert!(matches!(first.await.unwrap(), Outcome::Once(..)));
    let questions = listed(&desk, 1).await;
    assert_ne!(questions[0].id.to_string(), id, "a new id");
    assert!(!second.is_finished());
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::Deny, 0, BY).unwrap();
    let outcome = second.await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(Some(Asked::Denied))));
}

#[tokio::test]
async fn what_differs_in_anything_that_is_shown_is_another_question() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let wish = || request("api.test:443", Method::POST, "/v1?a=1");
    let mut wishes = vec![wish()];
    wishes.push(request("api.test:443", Method::POST, "/v1?a=2"));
    wishes.push(request("api.test:443", Method::PUT, "/v1?a=1"));
    let mut other = wish();
    other.caller = caller("/usr/bin/curl", true);
    wishes.push(other);
    let mut other = wish();
    other.request.as_mut().unwrap().body = Some(WishedBody {
        media_type: None,
        bytes: Some(1),
    });
    wishes.push(other);
    let mut other = wish();
    other.request.as_mut().unwrap().credentials = vec!["KEY".to_owned()];
    wishes.push(other);
    let count = wishes.len();
    let _waiting: Vec<_> = wishes.into_iter().map(|wish| ask(&desk, wish)).collect();
    let questions = listed(&desk, count).await;
    assert_eq!(questions.len(), count);
    let texts: std::collections::BTreeSet<_> =
        questions.iter().map(|question| &question.text).collect();
    assert_eq!(texts.len(), count);
}

#[tokio::test]
async fn an_answer_meets_the_policy_of_its_moment() {
    // A deny rule, another inspection, and rules that agree.
    for (endpoints, expected) in [
        (
            "{host: api.test, port: 443, protocol: rest, enforcement: enforce, access: read-only, \
             deny_rules: [{method: POST, path: \"/v1\"}]}",
            Err(Unanswered::Stale),
        ),
        (
            "{host: api.test, port: 443, tls: skip}",
            Ok(Done::default()),
        ),
        (
            "{host: api.test, port: 443, protocol: rest, enforcement: enforce, access: full}",
            Ok(Done::default()),
        ),
    ] {
        let (desk, store) = desk(RULES);
        let _watch = desk.watch();
        let waiting = ask(&desk, request("api.test:443", Method::POST, "/v1"));
        let questions = listed(&desk, 1).await;
        store.replace(testing::snapshot(2, endpoints));
        let id = questions[0].id.to_string();
        let decided = desk.decide(&id, Decision::Once, 0, BY);
        assert_eq!(decided, expected, "{endpoints}");
        let outcome = waiting.await.unwrap();
        assert!(
            matches!(outcome, Outcome::Judge(_)),
            "{endpoints}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn a_reload_keeps_what_fits_and_drops_what_the_policy_says_itself() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let wish = request("api.test:443", Method::POST, "/v1");
    let _waiting = ask(&desk, wish.clone());
    let questions = listed(&desk, 1).await;
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::Run, 0, BY).unwrap();
    let same = testing::snapshot(2, RULES);
    assert_eq!(store.replace(same), []);
    assert!(wish.judge(&store.load()).is_ok());
    assert_eq!(store.load().generation(), 3, "numbers grow");
    let invalid = testing::snapshot(4, RULES).policy().clone();
    let invalid = Snapshot::refusing(4, invalid, "a fault".to_owned()).unwrap();
    assert_eq!(store.replace(invalid), []);
    assert!(wish.judge(&store.load()).is_err());
    assert_eq!(store.replace(testing::snapshot(5, RULES)), []);
    assert!(wish.judge(&store.load()).is_ok());
    let full = RULES.replace("read-only", "full");
    let dropped = store.replace(testing::snapshot(6, &full));
    assert_eq!(dropped.len(), 1);
    assert_eq!(dropped[0].unfit, None);
    desk.dropped(&dropped);
    assert!(desk.grants().is_empty());
}

#[tokio::test]
async fn a_line_that_does_not_fit_beside_a_new_policy_is_dropped_and_the_reload_succeeds() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let _waiting = ask(&desk, request("api.test:443", Method::POST, "/v1"));
    let questions = listed(&desk, 1).await;
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::Run, 0, BY).unwrap();
    let skipped = "{host: api.test, port: 443, tls: skip}";
    let dropped = store.replace(testing::snapshot(3, skipped));
    assert_eq!(dropped.len(), 1);
    assert!(dropped[0].unfit.is_some());
    assert_eq!(store.load().generation(), 3);
}

#[tokio::test]
async fn a_line_that_would_contradict_the_policy_or_take_something_away_is_never_offered() {
    // bash may use the host without rules, and curl is one of its children.
    let document = "network_policies: {open: {endpoints: [{host: api.test, port: 443}], binaries: \
                    [{path: /usr/bin/curl}]}}";
    let (policy, _) = yaml::policy(document).unwrap();
    let snapshot = Snapshot::new(1, policy, None, &|_| None).unwrap();
    let (desk, _) = desk_over(snapshot);
    let _watch = desk.watch();
    let mut wish = connection("api.test:443");
    wish.caller = caller("/usr/bin/node", true);
    let waiting = ask(&desk, wish);
    let outcome = waiting.await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
    assert!(desk.list().is_empty() && desk.held() == 0);
}

#[tokio::test]
async fn a_message_is_asked_with_its_method_and_tool() {
    let endpoint = "{host: mcp.test, port: 443, path: /mcp, protocol: mcp, enforcement: enforce, \
                    mcp: {max_body_bytes: 2048}, rules: [{allow: {method: initialize}}]}";
    let (desk, store) = desk(endpoint);
    let _watch = desk.watch();
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"put.it","arguments":{"a":"x"}}}"#;
    let mut wish = request("mcp.test:443", Method::POST, "/mcp");
    let asked = wish.request.as_mut().unwrap();
    let head = crate::decide::message::rpc::head::RpcHead::of_client(body.as_bytes());
    asked.message.head = Some(Arc::new(head));
    asked.message.ahead.bytes = body.as_bytes().into();
    asked.rpc = Some(WishedMessage {
        method: "tools/call".to_owned(),
        about: Some(("tool", "put.it".to_owned())),
        arguments: Some(r#"{"a":"x"}"#.to_owned()),
    });
    let _waiting = ask(&desk, wish.clone());
    let questions = listed(&desk, 1).await;
    assert_eq!(
        yaml_of(&questions[0]),
        [
            "ask_mcp.test_443: {endpoints: [{host: mcp.test, port: 443, path: /mcp, protocol: mcp, \
          enforcement: enforce, mcp: {max_body_bytes: 2048}, rules: [{allow: {method: tools/call, tool: put.it}}]}], \
          binaries: [{path: /usr/bin/curl, exact: true}]}"
        ]
    );
    assert_eq!(questions[0].facts["kind"], "message");
    assert_eq!(questions[0].facts["arguments"], r#"{"a":"x"}"#);
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::Run, 0, BY).unwrap();
    assert!(wish.judge(&store.load()).is_ok());
}

#[tokio::test]
async fn addresses_are_asked_with_exactly_those_that_were_found() {
    let endpoint = "{host: db.corp.test, port: 5432, protocol: tcp}";
    let (desk, store) = desk(endpoint);
    let _watch = desk.watch();
    let mut wish = connection("db.corp.test:5432");
    wish.code = ReasonCode::InternalAddress;
    wish.addresses = vec!["10.0.0.5".parse().unwrap()];
    let _waiting = ask(&desk, wish.clone());
    let questions = listed(&desk, 1).await;
    assert_eq!(
        yaml_of(&questions[0]),
        [
            "ask_db.corp.test_5432: {endpoints: [{host: db.corp.test, port: 5432, allowed_ips: \
          [\"10.0.0.5\"], protocol: tcp}], binaries: [{path: /usr/bin/curl, exact: true}]}"
        ]
    );
    assert!(questions[0].lines[0].is_dangerous);
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::Run, 0, BY).unwrap();
    assert!(wish.judge(&store.load()).is_ok());
    let mut other = wish.clone();
    other.addresses = vec!["10.0.0.6".parse().unwrap()];
    assert!(other.judge(&store.load()).is_err());
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_long_while_nobody_looks() {
    let (desk, _) = desk(RULES);
    for round in 0..5 {
        let wish = request("api.test:443", Method::POST, "/v1");
        let begin = tokio::time::Instant::now();
        let outcome = ask(&desk, wish).await.unwrap();
        let expired = matches!(outcome, Outcome::Refused(Some(Asked::Expired)));
        assert!(expired, "{round}: {outcome:?}");
        assert!(begin.elapsed() >= Duration::from_secs(10), "{round}");
    }
    let wish = || request("api.test:443", Method::POST, "/v1");
    let outcome = ask(&desk, wish()).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
    let questions = desk.list();
    assert_eq!(questions.len(), 1);
    assert_eq!((questions[0].state, questions[0].held), ("expired", 0));
    desk.glance();
    let id = questions[0].id.to_string();
    let waiting = ask(&desk, wish());
    let questions = listed(&desk, 1).await;
    assert_eq!(questions[0].id.to_string(), id, "under the same question");
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn what_became_of_a_question_that_is_listed_no_more_is_known() {
    let (desk, _) = desk(RULES);
    let outcome = ask(&desk, request("api.test:443", Method::POST, "/v1")).await;
    assert!(matches!(
        outcome.unwrap(),
        Outcome::Refused(Some(Asked::Expired))
    ));
    let id = desk.list()[0].id.to_string();
    assert!(desk.finished().is_empty());
    tokio::time::advance(Duration::from_secs(601)).await;
    assert!(desk.list().is_empty());
    assert_eq!(desk.finished(), [(id, "expired")]);
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_request_counts_from_the_moment_when_somebody_looks() {
    let (desk, _) = desk(RULES);
    let begin = tokio::time::Instant::now();
    let waiting = ask(&desk, request("api.test:443", Method::POST, "/v1"));
    listed(&desk, 1).await;
    tokio::time::advance(Duration::from_secs(9)).await;
    desk.glance();
    let outcome = waiting.await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(Some(Asked::Expired))));
    assert!(begin.elapsed() >= HOLD + Duration::from_secs(9));
}

#[tokio::test]
async fn a_client_that_gives_up_leaves_a_question_that_takes_what_lasts() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let wish = request("api.test:443", Method::POST, "/v1");
    let waiting = ask(&desk, wish.clone());
    listed(&desk, 1).await;
    waiting.abort();
    let _ = waiting.await;
    let questions = listed(&desk, 0).await;
    assert_eq!(questions[0].state, "left");
    let id = questions[0].id.to_string();
    let once = desk.decide(&id, Decision::Once, 0, BY);
    assert!(matches!(once, Err(Unanswered::Unfit(_))), "{once:?}");
    assert!(desk.decide(&id, Decision::Run, 0, BY).is_ok());
    assert!(wish.judge(&store.load()).is_ok());
    assert_eq!(desk.held(), 0);
}

#[tokio::test]
async fn programs_that_the_workload_can_write_count_as_one() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let mut waiting = Vec::new();
    for number in 0..7 {
        let mut wish = connection(&format!("h{number}.other.test:443"));
        wish.caller = caller(&format!("/tmp/copy{number}"), false);
        waiting.push(ask(&desk, wish));
    }
    let mut refused = 0;
    listed(&desk, 5).await;
    for waiting in waiting {
        if waiting.is_finished() {
            refused += 1;
        }
    }
    assert_eq!(refused, 2);
    let questions = desk.list();
    let marks = questions[0].facts["marks"].to_string();
    assert!(marks.contains("writable_program"), "{marks}");
}

#[tokio::test]
async fn what_is_denied_for_the_run_is_not_asked_again() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let wish = |query: &str| request("api.test:443", Method::POST, &format!("/v1?{query}"));
    let waiting = ask(&desk, wish("a"));
    let questions = listed(&desk, 1).await;
    let id = questions[0].id.to_string();
    desk.decide(&id, Decision::DenyRun, 0, BY).unwrap();
    let outcome = waiting.await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(Some(Asked::Denied))));
    let outcome = ask(&desk, wish("b")).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
}

#[tokio::test]
async fn no_program_path_and_no_host_makes_a_line_read_as_another() {
    for executable in [
        "/opt/x}], binaries: [{path: \"/bin",
        "/opt/a\nb: c",
        "/opt/\u{202e}gnp.exe ",
        "/opt/#x",
        "/opt/\"quoted\"",
    ] {
        let (desk, store) = desk(RULES);
        let _watch = desk.watch();
        let mut wish = connection("h.other.test:443");
        wish.caller = caller(executable, false);
        let _waiting = ask(&desk, wish.clone());
        let questions = listed(&desk, 1).await;
        let yaml = yaml_of(&questions[0])[0].to_owned();
        assert!(yaml.is_ascii() && !yaml.contains('\n'), "{yaml}");
        assert!(questions[0].text.is_ascii(), "{}", questions[0].text);
        let id = questions[0].id.to_string();
        desk.decide(&id, Decision::Run, 0, BY).unwrap();
        let line = &store.load();
        let (_, added) = line
            .policy()
            .network()
            .iter()
            .find(|(name, _)| name.as_str().starts_with("ask_"))
            .unwrap();
        let paths: Vec<_> = added.binaries.iter().map(ToString::to_string).collect();
        assert_eq!(paths, [executable]);
        let mut other = wish.clone();
        other.caller = caller("/usr/bin/wget", false);
        assert!(other.judge(line).is_err());
    }
    let (desk, _) = desk(RULES);
    let mut wish = connection("h.other.test:443");
    wish.caller = caller("/opt/*", false);
    let outcome = ask(&desk, wish).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "a pattern");
}

#[tokio::test]
async fn a_question_that_is_too_long_is_not_asked() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let path = format!("/{}", "x".repeat(5_000));
    let wish = request("api.test:443", Method::POST, &path);
    let outcome = ask(&desk, wish).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
    let mut wish = request("api.test:443", Method::POST, "/v1");
    wish.request.as_mut().unwrap().query = Some("q".repeat(5_000));
    let outcome = ask(&desk, wish).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
}

#[tokio::test]
async fn when_the_sandbox_ends_all_that_waits_is_refused_and_nothing_is_asked() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let waiting = ask(&desk, request("api.test:443", Method::POST, "/v1"));
    listed(&desk, 1).await;
    desk.close();
    let outcome = waiting.await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(Some(Asked::Expired))));
    let outcome = ask(&desk, connection("h.other.test:443")).await.unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
}

#[tokio::test]
async fn a_wish_with_lines_of_its_own_gets_a_further_one_that_fits_beside_them() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let waiting = ask(&desk, connection("h.other.test:443"));
    let questions = listed(&desk, 1).await;
    desk.decide(questions[0].id.as_str(), Decision::Once, 0, BY)
        .unwrap();
    let Outcome::Once(own, _ticket) = waiting.await.unwrap() else {
        panic!("not once");
    };
    let mut wish = request("h.other.test:443", Method::POST, "/v1");
    wish.own = own;
    let waiting = ask(&desk, wish.clone());
    let questions = listed(&desk, 1).await;
    let yaml = yaml_of(&questions[0])[0].to_owned();
    assert!(yaml.starts_with("ask_h.other.test_443-1: "), "{yaml}");
    desk.decide(questions[0].id.as_str(), Decision::Once, 0, BY)
        .unwrap();
    let Outcome::Once(own, _ticket) = waiting.await.unwrap() else {
        panic!("not once");
    };
    assert_eq!(own.lines().len(), 2);
    wish.own = own;
    assert!(wish.judge(&wish.own.over(store.load())).is_ok());
    let mut other = request("h.other.test:443", Method::POST, "/v2");
    other.own = wish.own.clone();
    assert!(other.judge(&other.own.over(store.load())).is_err());
    assert!(
        wish.judge(&store.load()).is_err(),
        "nobody else has the lines"
    );
}

#[tokio::test]
async fn a_line_for_the_run_closes_nothing_that_was_permitted_once() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let once = ask(&desk, request("h.other.test:443", Method::GET, "/a"));
    let questions = listed(&desk, 1).await;
    desk.decide(questions[0].id.as_str(), Decision::Once, 0, BY)
        .unwrap();
    let Outcome::Once(own, _ticket) = once.await.unwrap() else {
        panic!("not once");
    };
    let _run = ask(&desk, request("h.other.test:443", Method::GET, "/b"));
    let questions = listed(&desk, 1).await;
    desk.decide(questions[0].id.as_str(), Decision::Run, 0, BY)
        .unwrap();
    let wish = request("h.other.test:443", Method::GET, "/a");
    assert!(wish.judge(&own.over(store.load())).is_ok());
}

#[tokio::test]
async fn an_answer_that_comes_while_a_request_is_judged_again_is_not_lost() {
    let (desk, store) = desk(RULES);
    let _watch = desk.watch();
    let wish = request("api.test:443", Method::POST, "/v1");
    let waiting = ask(&desk, wish.clone());
    let questions = listed(&desk, 1).await;
    store.replace(testing::snapshot(2, RULES));
    let Outcome::Judge(ticket) = waiting.await.unwrap() else {
        panic!("it is not judged again");
    };
    desk.decide(questions[0].id.as_str(), Decision::DenyRun, 0, BY)
        .unwrap();
    let asker = asker(&wish.caller);
    let (outcome, _) = desk.ask(Some(ticket), asker, wish, pending()).await;
    let denied = matches!(outcome, Outcome::Refused(Some(Asked::Denied)));
    assert!(denied, "{outcome:?}");
    assert_eq!(desk.held(), 0);
}

#[tokio::test]
async fn what_a_line_would_permit_but_is_refused_again_is_not_asked_for_ever() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    // The policy permits it, whatever refused it.
    let wish = || request("api.test:443", Method::GET, "/v1");
    let first = desk.ask(None, asker(&wish().caller), wish(), pending());
    let (Outcome::Judge(ticket), _) = first.await else {
        panic!("it is not judged again");
    };
    let second = desk.ask(Some(ticket), asker(&wish().caller), wish(), pending());
    assert!(matches!(second.await.0, Outcome::Refused(None)));
    assert_eq!(desk.held(), 0);
}

#[tokio::test]
async fn a_method_that_stands_for_all_in_a_rule_is_not_asked() {
    let (desk, _) = desk(RULES);
    let method = Method::from_bytes(b"*").unwrap();
    let outcome = ask(&desk, request("api.test:443", method, "/v1"))
        .await
        .unwrap();
    assert!(matches!(outcome, Outcome::Refused(None)), "{outcome:?}");
}

#[tokio::test]
async fn a_question_that_nothing_waits_under_keeps_no_large_body() {
    let (desk, _) = desk(RULES);
    let _watch = desk.watch();
    let mut wish = request("api.test:443", Method::POST, "/v1");
    let asked = wish.request.as_mut().unwrap();
    asked.message.ahead.bytes = vec![b'x'; 100_000].into();
    let waiting = ask(&desk, wish);
    listed(&desk, 1).await;
    waiting.abort();
    let _ = waiting.await;
    assert!(listed(&desk, 0).await.is_empty());
}

#[tokio::test]
async fn what_is_saved_holds_for_the_run_and_is_written() {
    let shelf = Shelf::default();
    let (desk, store) = desk_with(testing::snapshot(1, RULES), shelf.clone());
    let wish = request("api.test:443", Method::POST, "/v1");
    let waiting = ask(&desk, wish.clone());
    let question = listed(&desk, 1).await.remove(0);
    let id = question.id.to_string();
    let shown = desk.difference(&id, 0).unwrap();
    assert_eq!(shown.lines, [question.lines[0].yaml.clone()]);
    assert!(shelf.lines.lock().is_empty(), "only shown");
    let done = desk.decide(&id, Decision::Save, 0, BY).unwrap();
    assert_eq!(done.kept, Some(Ok(shown)));
    assert!(matches!(waiting.await.unwrap(), Outcome::Judge(_)));
    assert!(wish.judge(&store.load()).is_ok());
    assert_eq!(*shelf.lines.lock(), [question.lines[0].yaml.clone()]);
    let grant = desk.revoke(&done.grant.unwrap(), BY).unwrap();
    assert_eq!(grant.kept_in.as_deref(), Some("policy.yaml"));
    assert!(wish.judge(&store.load()).is_err());
}

#[tokio::test]
async fn a_line_that_cannot_be_written_holds_for_the_run() {
    let shelf = Shelf {
        is_full: true,
        ..Shelf::default()
    };
    let (desk, store) = desk_with(testing::snapshot(1, RULES), shelf);
    let wish = request("api.test:443", Method::POST, "/v1");
    let waiting = ask(&desk, wish.clone());
    let id = listed(&desk, 1).await[0].id.to_string();
    let done = desk.decide(&id, Decision::Save, 0, BY).unwrap();
    assert_eq!(done.kept, Some(Err("the disk is full".to_owned())));
    assert!(matches!(waiting.await.unwrap(), Outcome::Judge(_)));
    assert!(wish.judge(&store.load()).is_ok());
    assert_eq!(desk.granted()[0].scope, "run");
    assert_eq!(desk.grants()[0].kept_in, None);
}

#[tokio::test]
async fn a_program_that_the_workload_can_write_is_never_saved() {
    let (desk, store) = desk(RULES);
    let wish = Wish {
        caller: caller("/tmp/tool", false),
        ..request("other.test:80", Method::GET, "/v1")
    };
    let waiting = ask(&desk, wish.clone());
    let id = listed(&desk, 1).await[0].id.to_string();
    let saved = desk.decide(&id, Decision::Save, 0, BY);
    assert!(matches!(saved, Err(Unanswered::Unfit(_))), "{saved:?}");
    assert!(matches!(desk.difference(&id, 0), Err(Unanswered::Unfit(_))));
    assert_eq!(store.load().generation(), 1, "nothing is done");
    assert!(!waiting.is_finished());
    assert!(desk.decide(&id, Decision::Run, 0, BY).is_ok());
}

#[tokio::test]
async fn what_only_another_line_permits_for_the_run_is_written_too() {
    let shelf = Shelf::default();
    let (desk, store) = desk_with(testing::snapshot(1, RULES), shelf.clone());
    let wish = |path: &str| request("api.test:443", Method::POST, path);
    let first = ask(&desk, wish("/v1/items/7"));
    let left = listed(&desk, 1).await.remove(0);
    first.abort();
    let _ = first.await;
    let second = ask(&desk, wish("/v1/items/8"));
    let all = listed(&desk, 1).await;
    let held = all.iter().find(|question| question.held == 1).unwrap();
    desk.decide(held.id.as_str(), Decision::Run, 1, BY).unwrap();
    assert!(matches!(second.await.unwrap(), Outcome::Judge(_)));
    assert!(wish("/v1/items/7").judge(&store.load()).is_ok());
    let done = desk.decide(left.id.as_str(), Decision::Save, 0, BY);
    let done = done.unwrap();
    assert_eq!(done.grant, None, "it was permitted already");
    assert!(matches!(done.kept, Some(Ok(_))), "{done:?}");
    assert_eq!(*shelf.lines.lock(), [left.lines[0].yaml.clone()]);
}
