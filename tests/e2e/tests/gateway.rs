//! Sandboxes that a gateway launched.

use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use gateway::proto::inference::v1::{GetInferenceBundleResponse, ResolvedRoute};
use gateway::proto::sandbox::v1::{GetSandboxConfigResponse, SandboxPolicy};
use gateway::proto::v1::{
    GetSandboxProviderEnvironmentResponse, StaticCredentialBinding, StaticCredentialEndpointBinding,
};
use gateway::{Answers, Gateway, Generation, Message, Serving};
use lab::Lab;
use lab::host::UID;
use lab::sandbox::Sandbox;
use rustix::process::Signal;

const LOADED: i32 = 2;
const FAILED: i32 = 3;

/// A gateway on the lab's loopback interface.
pub(crate) struct Host {
    pub(crate) gateway: Gateway,
    serving: Option<Serving>,
    pub(crate) address: std::net::SocketAddr,
}

impl Host {
    pub(crate) fn start(lab: &Lab, answers: Answers) -> Self {
        let listener = lab.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let gateway = Gateway::new(answers);
        let address = listener.local_addr().unwrap();
        let serving = Some(gateway.serve(listener));
        Self {
            gateway,
            serving,
            address,
        }
    }

    /// Starts one that gives a policy.
    pub(crate) fn of_today(lab: &Lab) -> Self {
        Self::start(lab, answers(Generation::Today, Some(web("/a"))))
    }

    /// Starts one that gives a policy and the routes to models.
    pub(crate) fn of_agents(lab: &Lab, policy: &str, routes: Vec<ResolvedRoute>) -> Self {
        let mut given = answers(Generation::Today, Some(gateway::policy(policy)));
        given.bundle.routes = routes;
        Self::start(lab, given)
    }

    /// Ends the gateway's process.
    pub(crate) fn end(&mut self) {
        self.gateway.end_session();
        drop(self.serving.take());
    }

    /// Ends the gateway's process, and starts it again at the same address.
    fn restart(&mut self, lab: &Lab) {
        self.end();
        let address = self.address;
        let listener = lab.inside(move || {
            // Its connections may not have ended yet.
            lab::wait_for(
                || TcpListener::bind(address).ok(),
                || format!("{address} is in use"),
            )
        });
        self.serving = Some(self.gateway.serve(listener));
    }

    pub(crate) fn sandbox<'l>(&self, lab: &'l Lab) -> Sandbox<'l> {
        sandbox(lab, &format!("http://{}", self.address))
    }
}

/// A sandbox that a gateway at `endpoint` launched.
fn sandbox<'l>(lab: &'l Lab, endpoint: &str) -> Sandbox<'l> {
    Sandbox::bare(lab)
        .args(&[
            "--sandbox-id",
            "box-1",
            "--openshell-endpoint",
            endpoint,
            "--sandbox",
            "dev",
        ])
        .env("OPENSHELL_SANDBOX_UID", &UID.to_string())
        .env("OPENSHELL_SANDBOX_GID", &UID.to_string())
        .env("OPENSHELL_POLICY_POLL_INTERVAL_SECS", "1")
        .env("OPENSHELL_ROUTE_REFRESH_INTERVAL_SECS", "1")
}

/// curl may go to `path` of web.test:8080.
pub(crate) fn web(path: &str) -> SandboxPolicy {
    gateway::policy(&format!(
        "network_policies: {{web: {{endpoints: [{{host: web.test, port: 8080, allowed_ips: \
         [10.99.0.1], protocol: rest, enforcement: enforce, rules: [{{allow: {{method: GET, path: \
         {path}}}}}]}}], binaries: [{{path: /usr/bin/curl}}]}}}}"
    ))
}

/// Everything of a gateway of `generation` that has `policy`.
pub(crate) fn answers(generation: Generation, policy: Option<SandboxPolicy>) -> Answers {
    let mut config = GetSandboxConfigResponse {
        policy: policy.map(|policy| policy.encode_to_vec()),
        version: 1,
        config_revision: 1,
        policy_hash: "hash1".to_owned(),
        ..Default::default()
    };
    if generation == Generation::Today {
        (config.provider_env_revision, config.workspace) = (1, "team".to_owned());
    }
    Answers {
        generation,
        config,
        ..Answers::default()
    }
}

fn environment(revision: u64, secret: &str) -> GetSandboxProviderEnvironmentResponse {
    GetSandboxProviderEnvironmentResponse {
        environment: [
            ("API_KEY".to_owned(), secret.to_owned()),
            ("REGION".to_owned(), "north".to_owned()),
        ]
        .into(),
        non_secret_environment_keys: vec!["REGION".to_owned()],
        provider_env_revision: revision,
        ..Default::default()
    }
}

fn bundle(revision: &str) -> GetInferenceBundleResponse {
    let route = ResolvedRoute {
        name: "r".to_owned(),
        base_url: "mock://x".to_owned(),
        protocols: vec!["openai_chat_completions".to_owned()],
        model_id: revision.to_owned(),
        ..ResolvedRoute::default()
    };
    GetInferenceBundleResponse {
        routes: vec![route],
        revision: revision.to_owned(),
        generated_at_ms: 0,
    }
}

const FETCH: &str = "curl -s -o /dev/null -w '%{http_code}\\n' http://web.test:8080";

// Conformance: SEC-01, SEC-02, SEC-03.
#[test]
fn a_sandbox_gets_policy_credentials_and_models_from_gateways_of_both_generations() {
    for (generation, placeholder) in [
        (Generation::April, "openshell:resolve:env:API_KEY"),
        (Generation::Today, "openshell:resolve:env:v1_API_KEY"),
    ] {
        let lab = Lab::with_web();
        let upstream = lab.http("10.99.0.1:8080");
        let mut given = answers(generation, Some(web("/a")));
        given.environment = environment(u64::from(generation == Generation::Today), "s3cret-Value");
        given.bundle = bundle("m1");
        let host = Host::start(&lab, given);
        let script = format!(
            "id -u; echo $API_KEY $REGION; env | grep -c '^OPENSHELL_[^S]'; {FETCH}/a -H \"X-Key: $API_KEY\"; {FETCH}/b
            curl -s https://inference.local/v1/chat/completions -d '{{\"messages\":[]}}' -H 'content-type: application/json' \
            | grep -o '\"model\":\"[a-z0-9]*\"'"
        );
        let finished = host.sandbox(&lab).sh(&script);
        let expected = format!("{UID}\n{placeholder} north\n0\n200\n403\n\"model\":\"m1\"");
        assert_eq!(finished.ok(), expected, "{finished:?}");
        let seen = String::from_utf8(upstream.seen().concat()).unwrap();
        assert!(seen.contains("X-Key: s3cret-Value"), "{seen}");
        let heard = host.gateway.wait(|heard| !heard.statuses.is_empty());
        assert_eq!(
            (heard.statuses[0].version, heard.statuses[0].status),
            (1, LOADED),
            "{heard:?}"
        );
        assert!(
            heard.updates.is_empty(),
            "a policy is the gateway's to change"
        );
        assert!(!finished.log.contains("s3cret-Value"));
        assert_eq!(
            finished.logged("policy loaded from the gateway").len(),
            1,
            "{}",
            finished.log
        );
        assert!(
            finished.logged("[version:1 hash:hash1]").len() == 1
                && finished.logged("sandbox=box-1").len() > 5
        );
    }
}

/// The same bytes, where a message of type `T` is decoded from `bytes` and encoded again.
fn recoded<T: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    T::decode(bytes).unwrap().encode_to_vec()
}

#[test]
fn gateways_of_another_implementation_understand_and_are_understood_byte_for_byte() {
    use gateway::proto::v1::{GatewayMessage, GetSandboxProviderEnvironmentResponse};
    let proto = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let descriptors = protox::compile(
        ["sandbox.proto", "openshell.proto", "inference.proto"],
        [proto],
    )
    .unwrap();
    for generation in ["april", "today"] {
        let lab = Lab::with_web();
        let upstream = lab.http("10.99.0.1:8080");
        let folder = lab.folder("gateway");
        std::fs::write(folder.join("descriptors"), descriptors.encode_to_vec()).unwrap();
        let program = lab.file("gateway.py", include_str!("data/gateway.py"));
        let words = [
            program.to_str().unwrap(),
            folder.to_str().unwrap(),
            "127.0.0.1:7000",
            generation,
        ];
        let _gateway = lab.program(&[&["/usr/bin/python3"], &words[..]].concat());
        let finished = sandbox(&lab, "http://127.0.0.1:7000").sh(&format!(
            "echo $REGION; {FETCH}/a -H \"X-Key: $API_KEY\"; {FETCH}/b; curl -s \
             https://inference.local/v1/chat/completions -d '{{\"messages\":[]}}' -H \
             content-type:application/json | grep -o m1"
        ));
        assert!(finished.ok().starts_with("north\n200\n403"), "{finished:?}");
        assert!(
            String::from_utf8(upstream.seen().concat())
                .unwrap()
                .contains("X-Key: s3cret-Value")
        );
        let seen = std::fs::read_to_string(folder.join("seen")).unwrap();
        let mut types = std::collections::BTreeSet::new();
        for line in seen.lines() {
            let seen: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(seen["same"], true, "{line}");
            types.insert(seen["type"].as_str().unwrap().to_owned());
        }
        let mut expected = vec![
            "GetInferenceBundleRequest",
            "GetSandboxConfigRequest",
            "GetSandboxProviderEnvironmentRequest",
            "PushSandboxLogsRequest",
            "ReportPolicyStatusRequest",
            "SubmitPolicyAnalysisRequest",
        ];
        if generation == "today" {
            expected.extend(["ReportMainProcessExitRequest", "SupervisorMessage"]);
            expected.sort_unstable();
        }
        assert_eq!(
            types.into_iter().collect::<Vec<_>>(),
            expected,
            "{generation}"
        );
        let sent =
            |name: &str| std::fs::read(folder.join(format!("openshell.{name}.sent"))).unwrap();
        let config = sent("sandbox.v1.GetSandboxConfigResponse");
        assert_eq!(recoded::<GetSandboxConfigResponse>(&config), config);
        let credentials = sent("v1.GetSandboxProviderEnvironmentResponse");
        assert_eq!(
            recoded::<GetSandboxProviderEnvironmentResponse>(&credentials),
            credentials
        );
        let routes = sent("inference.v1.GetInferenceBundleResponse");
        assert_eq!(recoded::<GetInferenceBundleResponse>(&routes), routes);
        if generation == "today" {
            let accepted = sent("v1.GatewayMessage");
            assert_eq!(recoded::<GatewayMessage>(&accepted), accepted);
        }
    }
}

/// A script inside that does each step that the test asks for by a file in its work folder, and
/// prints what came of it.
const STEPS: &str = r#"n=1; while :; do
  until [ -e step$n ]; do sleep 0.02; done
  [ -s step$n ] || exit 0
  sh ./step$n > out$n.new 2>&1; mv out$n.new out$n; n=$((n+1))
done"#;

/// A running sandbox that does steps.
struct Steps<'l> {
    lab: &'l Lab,
    folder: std::path::PathBuf,
    started: lab::sandbox::Started<'l>,
    count: std::cell::Cell<usize>,
}

impl<'l> Steps<'l> {
    fn start(lab: &'l Lab, sandbox: Sandbox<'l>) -> Self {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = lab.folder(&format!("work-{number}"));
        let started = sandbox
            .args(&["--workdir", folder.to_str().unwrap()])
            .start(&["sh", "-c", STEPS]);
        Self {
            lab,
            folder,
            started,
            count: 0.into(),
        }
    }

    /// What `script` prints inside.
    fn step(&self, script: &str) -> String {
        let number = self.count.get() + 1;
        self.count.set(number);
        let new = self.folder.join("new");
        let step = self.folder.join(format!("step{number}"));
        std::fs::write(&new, script).unwrap();
        std::fs::rename(&new, &step).unwrap();
        let out = self.folder.join(format!("out{number}"));
        lab::wait_until(
            || script.is_empty() || out.exists(),
            || format!("step {number} was not done: {}", self.lab.log()),
        );
        std::fs::read_to_string(&out)
            .unwrap_or_default()
            .trim_end()
            .to_owned()
    }

    /// Does `script` until it prints `expected`.
    fn until(&self, script: &str, expected: &str) {
        let printed = std::cell::RefCell::new(String::new());
        lab::wait_until(
            || {
                printed.replace(self.step(script));
                *printed.borrow() == expected
            },
            || {
                format!(
                    "{script}: {}, and not {expected}: {}",
                    printed.borrow(),
                    self.lab.log()
                )
            },
        );
    }

    fn end(self) -> lab::Finished {
        let _ = self.step("");
        self.started.wait()
    }
}

// Conformance: POL-25, POL-26.
#[test]
fn a_changed_policy_is_in_force_after_a_poll_and_an_invalid_one_leaves_what_was() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    for generation in [Generation::April, Generation::Today] {
        let host = Host::start(&lab, answers(generation, Some(web("/a"))));
        let gateway = &host.gateway;
        gateway.answer(|answers| {
            answers.config.policy_validation_failure_mode = match generation {
                Generation::April => String::new(),
                Generation::Today => "retain_last_valid".to_owned(),
            }
        });
        let steps = Steps::start(&lab, host.sandbox(&lab));
        assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "200\n403");
        gateway.set_policy(web("/b"));
        gateway.wait(|heard| heard.statuses.len() == 2);
        assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "403\n200");
        let mut invalid = web("/c");
        for rule in invalid.network_policies.values_mut() {
            rule.endpoints[0].enforcement = "loudly".to_owned();
        }
        gateway.set_policy(invalid);
        let heard = gateway.wait(|heard| heard.statuses.len() == 3);
        assert_eq!(
            (heard.statuses[2].version, heard.statuses[2].status),
            (3, FAILED)
        );
        assert!(
            heard.statuses[2].load_error.contains("`loudly`"),
            "{heard:?}"
        );
        assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "403\n200");
        // The same under another number is no better.
        let same = gateway.answer(|answers| answers.config.policy.clone().unwrap());
        gateway.set_policy(SandboxPolicy::decode(same.as_slice()).unwrap());
        let heard = gateway.wait(|heard| heard.statuses.len() == 4);
        assert_eq!(
            (heard.statuses[3].version, heard.statuses[3].status),
            (4, FAILED)
        );
        // The same valid policy under another number is acknowledged.
        gateway.set_policy(web("/b"));
        gateway.wait(|heard| heard.statuses.len() == 5);
        gateway.set_policy(web("/b"));
        let heard = gateway.wait(|heard| heard.statuses.len() == 6);
        assert!(
            heard.statuses[4..]
                .iter()
                .all(|status| status.status == LOADED),
            "{heard:?}"
        );
        let finished = steps.end();
        let line = "CONFIG:FAILED [MED] Policy reload failed";
        assert!(
            finished
                .logged(line)
                .iter()
                .any(|line| line.contains("[version:3 hash:hash3")),
            "{}",
            finished.log
        );
    }
}

#[test]
fn a_gateway_of_today_fails_closed_until_a_valid_policy_comes() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let steps = Steps::start(&lab, host.sandbox(&lab));
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    let mut invalid = web("/a");
    for rule in invalid.network_policies.values_mut() {
        rule.endpoints[0].enforcement = "loudly".to_owned();
    }
    host.gateway.set_policy(invalid);
    host.gateway.wait(|heard| heard.statuses.len() == 2);
    let asked = "curl -s http://web.test:8080/a | grep -o policy_invalid | head -1";
    assert_eq!(steps.step(asked), "policy_invalid");
    host.gateway.set_policy(web("/a"));
    host.gateway.wait(|heard| heard.statuses.len() == 3);
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    assert!(steps.end().logged("[code:policy_invalid]").len() == 1);
}

/// Encodes the field `number` of a message, which has these bytes (Protocol Buffers, "Encoding").
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    for mut value in [u64::from(number << 3 | 2), bytes.len() as u64] {
        while value > 0x7f {
            field.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        field.push(value as u8);
    }
    field.extend(bytes);
    field
}

#[test]
fn an_endpoint_with_a_field_that_is_not_known_refuses_is_named_once_and_leaves_the_others() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let _other = lab.http("10.99.0.1:8081");
    let known = gateway::policy(
        "network_policies: {web: {endpoints: [{host: web.test, port: 8080, allowed_ips: \
         [10.99.0.1], path: /a, protocol: rest, enforcement: enforce, access: full}], binaries: \
         [{path: /usr/bin/curl}]}}",
    );
    let endpoint = [
        field(1, b"web.test"),
        vec![2 << 3, 0x91, 0x3f],
        field(8, b"10.99.0.1"),
        field(27, b"narrower"),
    ];
    let rule = [
        field(2, &endpoint.concat()),
        field(3, &field(1, b"/usr/bin/curl")),
    ];
    let later = field(5, &[field(1, b"later"), field(2, &rule.concat())].concat());
    let mut given = answers(Generation::Today, Some(known.clone()));
    given.config.policy = Some([known.encode_to_vec(), later].concat());
    let host = Host::start(&lab, given);
    let steps = Steps::start(&lab, host.sandbox(&lab));
    assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "200\n403");
    let asked = "curl -s http://web.test:8081/ | grep -o not_in_this_build | head -1";
    assert_eq!(steps.step(asked), "not_in_this_build");
    // A wrong wire type is no policy: what is in force stays.
    let broken = field(5, &[field(1, b"web"), vec![2 << 3, 7]].concat());
    host.gateway.answer(|answers| {
        answers.config.version += 1;
        answers.config.config_revision += 1;
        answers.config.policy = Some(broken);
    });
    lab::wait_until(
        || lab.log().contains("the policy cannot be decoded"),
        || lab.log(),
    );
    assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "200\n403");
    let finished = steps.end();
    let warning = "field 27 of an endpoint is not in this build: every connection is refused";
    assert_eq!(finished.logged(warning).len(), 1, "{}", finished.log);
}

// Conformance: POL-27, SEC-15.
#[test]
fn without_a_policy_the_gateway_is_sent_the_images_and_without_credentials_the_sandbox_starts() {
    let lab = Lab::with_web();
    let mut given = answers(Generation::Today, None);
    given
        .faults
        .insert("GetSandboxProviderEnvironment", (14, usize::MAX));
    let host = Host::start(&lab, given);
    let written = "network_policies: {of_image: {endpoints: [{host: a.test, port: 1}], binaries: \
                   [{path: /bin/a}]}}";
    image(
        &lab,
        &format!(
            "mkdir -p /run/image/openshell; echo '{written}' > /run/image/openshell/policy.yaml"
        ),
    );
    let finished = host.sandbox(&lab).sh("echo started");
    assert_eq!(finished.ok(), "started", "{finished:?}");
    let heard = host.gateway.heard();
    let update = &heard.updates[0];
    assert_eq!(
        (update.name.as_str(), update.workspace.as_str()),
        ("dev", "team")
    );
    assert!(
        update
            .policy
            .as_ref()
            .unwrap()
            .network_policies
            .contains_key("of_image"),
        "{heard:?}"
    );
    assert_eq!(
        finished.logged("CONFIG:FAILED [HIGH] no credentials").len(),
        1,
        "{}",
        finished.log
    );
}

// Conformance: INF-20.
#[test]
fn credentials_and_models_follow_the_gateway_and_old_placeholders_mean_new_values() {
    let lab = Lab::with_web();
    let upstream = lab.http("10.99.0.1:8080");
    let mut given = answers(Generation::Today, Some(web("/a")));
    given.environment = environment(1, "first-Value");
    let host = Host::start(&lab, given);
    let steps = Steps::start(&lab, host.sandbox(&lab));
    let seen = || String::from_utf8(upstream.seen().concat()).unwrap();
    let send = format!("{FETCH}/a -H \"X-Key: $(printf %s openshell:resolve:env:v1_API_KEY)\"");
    assert_eq!(steps.step(&send), "200");
    assert!(seen().contains("X-Key: first-Value"));
    let chat = "curl -s https://inference.local/v1/chat/completions -d '{\"messages\":[]}' -H \
                'content-type: application/json' | grep -oE \
                'inference_[a-z_]+|\"model\":\"[a-z0-9]*\"' | head -1";
    assert!(
        steps.step(chat).starts_with("inference_no"),
        "{}",
        steps.step(chat)
    );
    host.gateway.answer(|answers| {
        answers.environment = environment(2, "second-Value");
        (
            answers.config.provider_env_revision,
            answers.config.config_revision,
        ) = (2, 2);
        answers.bundle = bundle("m2");
    });
    steps.until(chat, "\"model\":\"m2\"");
    let is_sent = || {
        assert_eq!(steps.step(&send), "200");
        seen().contains("X-Key: second-Value")
    };
    lab::wait_until(is_sent, || lab.log());
    // A gateway that withdraws them by its silence.
    host.gateway.answer(|answers| {
        answers.config.provider_env_revision = 3;
        answers
            .faults
            .insert("GetSandboxProviderEnvironment", (14, usize::MAX));
    });
    steps.until(&send, "500");
    host.gateway.answer(|answers| {
        answers.environment = environment(3, "third-Value");
        answers
            .environment
            .credential_expires_at_ms
            .insert("API_KEY".to_owned(), 1);
        answers.faults.clear();
    });
    steps.until(
        "curl -s http://web.test:8080/a -H 'X-Key: openshell:resolve:env:API_KEY' | grep -o 'has \
         expired' | head -1",
        "has expired",
    );
    let binding = StaticCredentialBinding {
        endpoints: vec![StaticCredentialEndpointBinding {
            host: "other.test".to_owned(),
            port: 443,
            path: String::new(),
        }],
        ..Default::default()
    };
    host.gateway.answer(|answers| {
        answers.environment = environment(4, "fourth-Value");
        answers
            .environment
            .static_credential_bindings
            .insert("API_KEY".to_owned(), binding);
        answers.config.provider_env_revision = 4;
    });
    steps.until(&send, "403");
    let finished = steps.end();
    assert_eq!(
        finished
            .logged("CONFIG:FAILED [HIGH] credentials withdrawn")
            .len(),
        1,
        "{}",
        finished.log
    );
    for secret in ["first-Value", "second-Value", "third-Value", "fourth-Value"] {
        assert!(!finished.log.contains(secret));
    }
    assert!(!seen().contains("third-Value") && !seen().contains("fourth-Value"));
}

#[test]
fn a_gateway_that_is_gone_changes_nothing_and_is_asked_again() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let mut host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let steps = Steps::start(
        &lab,
        host.sandbox(&lab)
            .env("OPENSHELL_POLICY_POLL_INTERVAL_SECS", "3600"),
    );
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    drop(host.serving.take());
    steps.started.signal(Signal::HUP);
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    host.gateway.set_policy(web("/b"));
    host.restart(&lab);
    let is_asked_again = || {
        steps.started.signal(Signal::HUP);
        host.gateway.heard().statuses.len() >= 2
    };
    lab::wait_until(is_asked_again, || lab.log());
    assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "403\n200");
    let _ = steps.end();
}

#[test]
fn tokens_of_the_gateway_and_keys_of_routes_leave_in_no_request() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let mut given = answers(Generation::Today, Some(web("/a")));
    given.tokens = vec!["token-One-of-1-and-more".to_owned()];
    given.bundle = bundle("1");
    given.bundle.routes[0].api_key = "route-key-One-0123456789".to_owned();
    let host = Host::start(&lab, given);
    let file = lab.file("token", "token-One-of-1-and-more\n");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sandbox = host.sandbox(&lab).args(&["--leaks", "block"]);
    let steps = Steps::start(
        &lab,
        sandbox.env("OPENSHELL_SANDBOX_TOKEN_FILE", file.to_str().unwrap()),
    );
    let sent = |path: &str, key: &str| steps.step(&format!("{FETCH}{path} -H 'X-Key: {key}'"));
    assert_eq!(sent("/a", "token-Two-of-2-and-more"), "200");
    for key in [
        "token-One-of-1-and-more",
        "dG9rZW4tT25lLW9mLTEtYW5kLW1vcmU=",
        "route-key-One-0123456789",
    ] {
        assert_eq!(sent("/a", key), "403", "{key}");
    }
    // The file rotates, and the gateway forgets the old token.
    std::fs::write(&file, "token-Two-of-2-and-more").unwrap();
    host.gateway
        .answer(|answers| answers.tokens = vec!["token-Two-of-2-and-more".to_owned()]);
    host.gateway.set_policy(web("/b"));
    host.gateway.wait(|heard| heard.statuses.len() == 2);
    for key in [
        "token-One-of-1-and-more",
        "token-Two-of-2-and-more",
        "route-key-One-0123456789",
    ] {
        assert_eq!(sent("/b", key), "403", "{key}");
    }
    assert_eq!(sent("/b", "of-another"), "200");
    let finished = steps.end();
    let refused = finished.logged("[code:secret_in_request]");
    assert!(
        refused.len() >= 6 && !finished.log.contains("token-") && !finished.log.contains("key-One"),
        "{refused:?}"
    );
    for of in [
        "a secret of the gateway, which",
        "a secret of route r, which",
    ] {
        assert!(
            refused.iter().any(|line| line.contains(of)),
            "{of}: {refused:?}"
        );
    }
}

#[test]
fn a_token_is_carried_renewed_and_read_again_and_shown_nowhere() {
    let lab = Lab::with_web();
    let mut given = answers(Generation::Today, Some(web("/a")));
    given.tokens = vec!["token-One".to_owned()];
    let host = Host::start(&lab, given);
    let file = lab.file("token", "token-One\n");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let sandbox = host
        .sandbox(&lab)
        .env("OPENSHELL_SANDBOX_TOKEN_FILE", file.to_str().unwrap());
    let steps = Steps::start(&lab, sandbox);
    assert_eq!(steps.step("echo up"), "up");
    // The file rotates, and the gateway forgets the old token.
    std::fs::write(&file, "token-Two").unwrap();
    host.gateway
        .answer(|answers| answers.tokens = vec!["token-Two".to_owned()]);
    host.gateway.set_policy(web("/b"));
    let heard = host.gateway.wait(|heard| heard.statuses.len() == 2);
    assert!(heard.tokens.contains(&"token-Two".to_owned()), "{heard:?}");
    let hunt = format!(
        "env; cat {} /proc/*/environ /proc/*/cmdline 2>/dev/null",
        file.display()
    );
    assert!(!steps.step(&hunt).contains("token-"));
    let finished = steps.end();
    assert!(!finished.log.contains("token-One") && !finished.log.contains("token-Two"));
    let hunted = host
        .sandbox(&lab)
        .env("OPENSHELL_SANDBOX_TOKEN", "token-Two")
        .sh("cat /proc/*/environ; env; echo");
    assert!(
        hunted.code() == 0 && !hunted.stdout.contains("token-"),
        "{hunted:?}"
    );
    let refused = host.sandbox(&lab).sh("true");
    assert_eq!(refused.code(), 1);
    assert!(
        refused.stderr.contains("OPENSHELL_SANDBOX_TOKEN_FILE"),
        "{refused:?}"
    );
}

#[test]
fn what_a_launcher_says_wrong_is_one_line_and_nothing_starts() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    assert_eq!(lab.shell("mount -t tmpfs none /sys/fs/cgroup"), "");
    for (name, value, line) in [
        (
            "OPENSHELL_MAIN_PROCESS_SPEC",
            "{\"version\":2,\"command\":[\"a\"]}",
            "has version 2",
        ),
        (
            "OPENSHELL_MAIN_PROCESS_SPEC",
            "{\"version\":1,\"command\":[]}",
            "names no command",
        ),
        (
            "OPENSHELL_MAIN_PROCESS_SPEC",
            "base64url:!",
            "is not URL-safe Base64",
        ),
        ("OPENSHELL_USER_ENVIRONMENT", "[1]", "is not a JSON object"),
        ("OPENSHELL_OCI_IMAGE_USER", "app", "both name a user"),
        (
            "OPENSHELL_SANDBOX_GID",
            "0",
            "is not the number of a user or group other than root",
        ),
        ("OPENSHELL_TLS_CA", "/nowhere", "must be set together"),
        ("OPENSHELL_SANDBOX_TOKEN_FILE", "/nowhere", "/nowhere"),
        (
            "OPENSHELL_SANDBOX_TOKEN",
            "",
            "OPENSHELL_SANDBOX_TOKEN is empty",
        ),
        ("OPENSHELL_REQUIRE_RUNTIME_PID_LIMIT", "true", "pids.max"),
    ] {
        let refused = host.sandbox(&lab).env(name, value).sh("echo ran");
        assert!(
            refused.code() == 1 && refused.stdout.is_empty(),
            "{name}: {refused:?}"
        );
        assert!(
            refused.stderr.contains(line) && refused.stderr.lines().count() == 1,
            "{name}: {}",
            refused.stderr
        );
    }
    assert_eq!(lab.shell("echo 100 > /sys/fs/cgroup/pids.max"), "");
    assert_eq!(
        host.sandbox(&lab)
            .env("OPENSHELL_REQUIRE_RUNTIME_PID_LIMIT", "true")
            .sh("echo ran")
            .ok(),
        "ran"
    );
    let none = Sandbox::bare(&lab).args(&["--sandbox-id", "x"]).sh("true");
    assert!(
        none.code() == 1 && none.stderr.contains("needs --openshell-endpoint"),
        "{none:?}"
    );
    let spec = "base64url:eyJ2ZXJzaW9uIjoxLCJjb21tYW5kIjpbImVudiJdLCJ0dHkiOmZhbHNlfQ";
    let mut words = host.sandbox(&lab).env("OPENSHELL_MAIN_PROCESS_SPEC", spec);
    words = words.env(
        "OPENSHELL_USER_ENVIRONMENT",
        "{\"MINE\":\"1\",\"LD_PRELOAD\":\"x\",\"OPENSHELL_X\":\"y\"}",
    );
    let none: [&str; 0] = [];
    let finished = words.start(&none).wait();
    assert!(
        finished.ok().lines().any(|line| line == "MINE=1"),
        "{finished:?}"
    );
    assert!(
        !finished.stdout.contains("LD_PRELOAD") && !finished.stdout.contains("OPENSHELL_X"),
        "{finished:?}"
    );
    assert_eq!(
        finished
            .logged("nobody outside may set LD_PRELOAD, OPENSHELL_X")
            .len(),
        1,
        "{}",
        finished.log
    );
}

/// What a launcher says of a main process that runs `script`.
fn main_process(script: &str, tty: bool) -> String {
    serde_json::json!({"version": 1, "command": ["/bin/sh", "-c", script], "tty": tty}).to_string()
}

#[test]
fn a_main_process_has_a_terminal_of_its_own_where_its_launcher_asks_for_one() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let run = |script: &str, tty| {
        let none: [&str; 0] = [];
        let sandbox = host.sandbox(&lab).input(b"of the caller\n");
        sandbox
            .env("OPENSHELL_MAIN_PROCESS_SPEC", &main_process(script, tty))
            .start(&none)
            .wait()
    };
    let script = "tty; stty size; echo $TERM; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; ps -o \
                  tpgid= -o pgid= -p $$ | tr -s ' '; echo again > $(tty); echo errors >&2; python3 \
                  -c 'import os; print(os.stat(os.ttyname(0)).st_uid == os.getuid())'; ls -1 \
                  /dev/pts; seq 100000 | tail -1; exit 3";
    let finished = run(script, true);
    assert_eq!(finished.code(), 3, "{finished:?}");
    let lines: Vec<_> = finished.stdout.split_terminator("\r\n").collect();
    let [group, foreground] =
        <[&str; 2]>::try_from(lines[4].split_whitespace().collect::<Vec<_>>()).unwrap();
    assert_eq!(group, foreground, "in the foreground");
    let expected = [
        "/dev/pts/0",
        "24 80",
        "xterm-256color",
        "all",
        lines[4],
        "again",
        "errors",
        "True",
        "0",
        "ptmx",
        "100000",
    ];
    assert_eq!(lines, expected, "{finished:?}");
    // All of it, and nothing after the end.
    let much = run("stty -opost; seq 200000", true);
    assert_eq!(much.ok().lines().count(), 200_000);
    assert_eq!(much.stdout.lines().last(), Some("200000"));
    let piped = run("cat; tty; echo errors >&2; seq 200000 | tail -1", false);
    assert_eq!(piped.ok(), "of the caller\nnot a tty\n200000");
    assert!(piped.stderr.contains("errors\n"), "{piped:?}");
    let shut = run("exec >&- 2>&-; sleep 0.2; exit 4", true);
    assert_eq!(shut.code(), 4);
}

#[test]
fn a_launchers_shell_waits_for_clients_and_ends_when_asked() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let none: [&str; 0] = [];
    let shell = host.sandbox(&lab).start(&none);
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    shell.signal(Signal::TERM);
    let asked = Instant::now();
    let finished = shell.wait();
    // Once it is up the shell ignores SIGTERM; the grace of 10 s is not what ends it.
    let ends = [Signal::HUP, Signal::TERM].map(|signal| 128 + signal.as_raw());
    assert!(ends.contains(&finished.code()), "{finished:?}");
    assert!(
        asked.elapsed() < Duration::from_secs(5),
        "{:?}",
        asked.elapsed()
    );
}

/// Replaces the lab's /etc by one in which `script` can write below /run/image.
fn image(lab: &Lab, script: &str) {
    let mounted = "mkdir -p /run/image; mount -t overlay -o lowerdir=/run/image:/etc none /etc";
    let umounted = "umount /etc/hosts /etc/resolv.conf";
    assert_eq!(lab.shell(&format!("{umounted}; {script}\n {mounted}")), "");
}

// Conformance: POL-28, POL-29.
#[test]
fn an_unsafe_policy_of_the_image_is_a_finding_and_the_old_place_is_known() {
    for policy in [
        "process: {run_as_user: root}",
        "filesystem_policy: {read_only: [/a/../b]}",
        "network_policies: 7",
    ] {
        let lab = Lab::with_web();
        let host = Host::start(&lab, answers(Generation::Today, None));
        image(
            &lab,
            &format!(
                "mkdir -p /run/image/openshell; echo '{policy}' > /run/image/openshell/policy.yaml"
            ),
        );
        let finished = host.sandbox(&lab).sh("echo started");
        assert_eq!(finished.ok(), "started", "{finished:?}");
        assert!(
            finished.log.contains("Unsafe Disk Policy Content"),
            "{}",
            finished.log
        );
        let sent = &host.gateway.heard().updates[0];
        assert!(sent.policy.as_ref().unwrap().network_policies.is_empty());
    }
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::April, None));
    let old = "network_policies: {old: {endpoints: [{host: a.test, port: 1}], binaries: [{path: \
               /bin/a}]}}";
    image(
        &lab,
        &format!("mkdir -p /run/image/navigator; echo '{old}' > /run/image/navigator/policy.yaml"),
    );
    let finished = host.sandbox(&lab).sh("echo started");
    assert_eq!(finished.ok(), "started", "{finished:?}");
    assert_eq!(
        finished
            .logged("move it to /etc/openshell/policy.yaml")
            .len(),
        1,
        "{}",
        finished.log
    );
    assert!(
        host.gateway.heard().updates[0]
            .policy
            .as_ref()
            .unwrap()
            .network_policies
            .contains_key("old")
    );
}

// Conformance: POL-30.
#[test]
fn files_win_over_a_gateway() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let policy = lab.file("policy.yaml", super::policy("{}"));
    let finished = host
        .sandbox(&lab)
        .args(&["--policy-data", policy.to_str().unwrap()])
        .sh("echo started");
    assert_eq!(finished.ok(), "started", "{finished:?}");
    assert!(host.gateway.heard().calls.is_empty());
}

#[test]
fn an_endpoint_of_the_future_refuses_and_the_rest_of_the_policy_holds() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let mut policy = web("/a");
    let mut later = policy.network_policies["web"].clone();
    later.endpoints[0] = gateway::proto::sandbox::v1::NetworkEndpoint {
        host: "public.lab.test".to_owned(),
        port: 443,
        protocol: "graphql".to_owned(),
        ..Default::default()
    };
    policy.network_policies.insert("later".to_owned(), later);
    let host = Host::start(&lab, answers(Generation::Today, Some(policy)));
    let refused = "curl -s -o /dev/null -w '%{http_connect}\\n' https://public.lab.test/; true";
    let finished = host.sandbox(&lab).sh(&format!("{FETCH}/a; {refused}"));
    assert_eq!(finished.ok(), "200\n403", "{finished:?}");
    assert_eq!(
        finished.logged("[code:not_in_this_build]").len(),
        1,
        "{}",
        finished.log
    );
    assert_eq!(
        finished
            .logged("`protocol: graphql` is not in this build")
            .len(),
        2,
        "{}",
        finished.log
    );
}

// Conformance: AGG-01, AGG-02, AGG-03, AGG-04, AGG-05.
#[test]
fn refusals_are_summed_up_proposed_and_sent_and_nothing_is_without_one() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let sandbox = host
        .sandbox(&lab)
        .env("OPENSHELL_DENIAL_FLUSH_INTERVAL_SECS", "1");
    let steps = Steps::start(
        &lab,
        sandbox.env("OPENSHELL_ACTIVITY_FLUSH_INTERVAL_SECS", "1"),
    );
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    let is_denials = |analysis: &&gateway::proto::v1::SubmitPolicyAnalysisRequest| {
        analysis.analysis_mode == "mechanistic"
    };
    let heard = host.gateway.wait(|heard| {
        heard
            .analyses
            .iter()
            .any(|analysis| analysis.analysis_mode == "activity")
    });
    assert_eq!(
        heard.analyses.iter().filter(is_denials).count(),
        0,
        "{heard:?}"
    );
    let connect = "curl -s -p -x $HTTPS_PROXY http://other.test:443 -o /dev/null";
    let refused = format!(
        "for n in 1 2 3; do {connect}; done; cp /usr/bin/wget w; ./w -q -T 5 -t 1 -O - \
         http://other.test:443; {FETCH}/b"
    );
    let _ = steps.step(&refused);
    let heard = host.gateway.wait(|heard| {
        heard
            .analyses
            .iter()
            .filter(is_denials)
            .flat_map(|analysis| &analysis.summaries)
            .map(|one| one.count)
            .sum::<u32>()
            >= 5
    });
    let all: Vec<_> = heard.analyses.iter().filter(is_denials).collect();
    assert!(
        all.iter()
            .all(|analysis| analysis.name == "dev" && analysis.workspace == "team"),
        "{all:?}"
    );
    let summaries: Vec<_> = all
        .iter()
        .flat_map(|analysis| &analysis.summaries)
        .collect();
    let of = |binary: &str, host: &str| -> u32 {
        let of = summaries
            .iter()
            .filter(|one| one.binary.ends_with(binary) && one.host == host);
        of.map(|one| one.count).sum()
    };
    assert_eq!(
        (
            of("/curl", "other.test"),
            of("/w", "other.test"),
            of("/curl", "web.test")
        ),
        (3, 1, 1),
        "{summaries:?}"
    );
    assert!(
        summaries
            .iter()
            .all(|one| one.first_seen_ms > 0 && one.first_seen_ms <= one.last_seen_ms)
    );
    let chunks: Vec<_> = all
        .iter()
        .flat_map(|analysis| &analysis.proposed_chunks)
        .collect();
    let chunk = chunks
        .iter()
        .find(|chunk| chunk.rule_name == "allow_other_test_443")
        .unwrap();
    let rule = chunk.proposed_rule.as_ref().unwrap();
    assert_eq!(
        (
            rule.endpoints[0].host.as_str(),
            rule.endpoints[0].port,
            chunk.status.as_str()
        ),
        ("other.test", 443, "pending")
    );
    let sample = chunks
        .iter()
        .find(|chunk| chunk.rule_name == "allow_web_test_8080")
        .unwrap();
    assert_eq!(
        sample.proposed_rule.as_ref().unwrap().endpoints[0]
            .rules
            .len(),
        1,
        "{sample:?}"
    );
    let denied: u32 = heard
        .analyses
        .iter()
        .flat_map(|one| &one.network_activity_summaries)
        .map(|one| one.denied_action_count)
        .sum();
    assert!(denied <= 5, "{heard:?}");
    let _ = steps.end();
}

// Conformance: AGG-15.
#[test]
fn denials_that_a_gateway_does_not_take_are_sent_later_and_the_last_ones_at_the_end() {
    let lab = Lab::with_web();
    let mut given = answers(Generation::April, Some(web("/a")));
    given.faults.insert("SubmitPolicyAnalysis", (14, 2));
    let host = Host::start(&lab, given);
    let steps = Steps::start(
        &lab,
        host.sandbox(&lab)
            .env("OPENSHELL_DENIAL_FLUSH_INTERVAL_SECS", "1"),
    );
    let connect = "curl -s -p -x $HTTPS_PROXY http://other.test:443 -o /dev/null";
    let _ = steps.step(connect);
    let heard = host.gateway.wait(|heard| heard.analyses.len() == 1);
    assert_eq!(heard.analyses[0].summaries[0].count, 1, "{heard:?}");
    let _ = steps.step(&format!("{connect}; {connect}"));
    let finished = steps.end();
    assert_eq!(finished.ok(), "");
    let heard = host.gateway.heard();
    let sum: u32 = heard
        .analyses
        .iter()
        .flat_map(|analysis| &analysis.summaries)
        .map(|one| one.count)
        .sum();
    assert_eq!(sum, 3, "{heard:?}");
    assert!(
        heard.exits.is_empty() && heard.hellos.is_empty(),
        "a gateway of the first generation has neither"
    );
}

#[test]
fn log_lines_arrive_with_their_facts_and_without_secrets() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let mut given = answers(Generation::Today, Some(web("/a")));
    given.environment = environment(1, "s3cret-Value");
    given.faults.insert("PushSandboxLogs", (14, 1));
    let host = Host::start(&lab, given);
    let connect =
        "curl -s -p -x $HTTPS_PROXY http://web.test:8080/a -H \"X-Key: $API_KEY\" -o /dev/null";
    let finished = host
        .sandbox(&lab)
        .sh(&format!("{connect}; {FETCH}/b; sleep 2"));
    assert_eq!(finished.ok(), "403");
    let heard = host.gateway.heard();
    let line = |text: &str| {
        heard
            .logs
            .iter()
            .find(|line| line.message.contains(text))
            .unwrap_or_else(|| panic!("{text}: {heard:#?}"))
    };
    let opened = line("NET:OPEN [INFO] ALLOWED /usr/bin/curl");
    let field = |name: &str| opened.fields.get(name).map_or("-", String::as_str);
    assert_eq!(
        (field("dst_host"), field("dst_port"), field("dst_ip")),
        ("web.test", "8080", "10.99.0.1"),
        "{opened:?}"
    );
    assert_eq!(
        (
            field("src_addr"),
            field("action"),
            field("policy"),
            field("door")
        ),
        ("10.200.0.2", "allow", "web", "connect")
    );
    assert!(
        field("binary") == "/usr/bin/curl" && field("ancestors").contains("/dash"),
        "{opened:?}"
    );
    assert_eq!(
        (
            opened.source.as_str(),
            opened.sandbox_id.as_str(),
            opened.level.as_str()
        ),
        ("sandbox", "box-1", "INFO")
    );
    let refused = line("HTTP:GET [MED] DENIED");
    assert_eq!(refused.fields["l7_target"], "/b");
    assert_eq!(refused.fields["reason_code"], "request_not_in_rules");
    let loaded = line("CONFIG:LOADED [INFO] policy loaded");
    assert_eq!(
        (
            loaded.fields["version"].as_str(),
            loaded.fields["policy_hash"].as_str()
        ),
        ("1", "hash1")
    );
    assert!(!format!("{:?}", heard.logs).contains("s3cret-Value"));
    assert!(
        heard
            .logs
            .iter()
            .all(|line| !line.message.contains(" openshell_")),
        "the target is a field: {heard:#?}"
    );
    assert!(
        heard
            .logs
            .iter()
            .any(|line| line.message.contains("PROC:TERMINATE")),
        "the last lines are sent at the end"
    );
}

#[test]
fn a_session_is_kept_and_the_exit_of_the_main_process_reported() {
    let lab = Lab::with_web();
    let mut host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let steps = Steps::start(&lab, host.sandbox(&lab));
    let heard = host.gateway.wait(|heard| heard.heartbeats >= 2);
    assert_eq!(heard.hellos[0].sandbox_id, "box-1");
    host.restart(&lab);
    let heard = host.gateway.wait(|heard| heard.hellos.len() >= 2);
    assert_eq!(heard.hellos[0].instance_id, heard.hellos[1].instance_id);
    host.gateway.end_session();
    host.gateway.wait(|heard| heard.hellos.len() >= 3);
    let _ = steps.step("exit 0");
    let finished = steps.end();
    assert_eq!(finished.ok(), "");
    let exits = host.gateway.heard().exits;
    assert_eq!(
        (exits.len(), exits[0].exit_code, &exits[0].instance_id),
        (1, 0, &heard.hellos[0].instance_id)
    );
    let failed = host.sandbox(&lab).sh("exit 7");
    assert_eq!(failed.code(), 7);
    assert_eq!(host.gateway.heard().exits[1].exit_code, 7);
    assert!(
        failed.logged("session with the gateway accepted").len() >= 2,
        "{}",
        failed.log
    );
}

#[test]
fn a_check_says_what_a_gateway_has_and_changes_nothing() {
    let lab = Lab::with_web();
    let unnamed = lab.shell(&format!("{} gateway check 2>&1; echo $?", lab.binary()));
    assert!(
        unnamed.contains("no gateway is named; give --sandbox-id") && unnamed.ends_with("\n1\n"),
        "{unnamed}"
    );
    for (generation, session) in [
        (Generation::April, "not offered"),
        (Generation::Today, "offered"),
    ] {
        let mut given = answers(generation, Some(web("/a")));
        (given.environment, given.bundle) = (environment(1, "s3cret-Value"), bundle("m1"));
        let host = Host::start(&lab, given);
        let check = format!(
            "{} gateway check --sandbox-id b --openshell-endpoint http://{}; echo $?",
            lab.binary(),
            host.address
        );
        let said = lab.shell(&check);
        for line in [
            "version 1, hash hash1: 1 network policy",
            "1 name: API_KEY",
            "1 name: REGION",
            "1 name: r",
            session,
        ] {
            assert!(said.contains(line), "{line}: {said}");
        }
        assert!(
            said.trim_end().ends_with('0') && !said.contains("s3cret"),
            "{said}"
        );
        let heard = host.gateway.heard();
        assert!(
            heard.hellos.is_empty() && heard.statuses.is_empty() && heard.updates.is_empty(),
            "{heard:?}"
        );
        host.gateway
            .answer(|answers| answers.faults.insert("GetSandboxConfig", (5, 1)));
        let said = lab.shell(&check);
        assert!(
            said.contains("FAILED: GetSandboxConfig: the gateway does not know this sandbox")
                && said.trim_end().ends_with('1'),
            "{said}"
        );
    }
}

#[test]
fn the_program_copies_itself_in_one_step() {
    let lab = Lab::with_web();
    let folder = lab.folder("shared");
    let copy = format!("umask 077; {} copy-self {}", lab.binary(), folder.display());
    let path = folder.join("openshell-sandbox");
    assert_eq!(lab.shell(&copy).trim_end(), path.display().to_string());
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions())
            & 0o7777,
        0o755
    );
    assert!(
        lab.shell(&format!("{} --version", path.display()))
            .starts_with("openshell-sandbox ")
    );
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    let said = lab.shell(&format!("{} copy-self /nowhere/x", lab.binary()));
    assert!(said.contains("/nowhere/x cannot be written"), "{said}");
}

#[test]
fn a_setting_of_the_gateway_has_records_of_every_class_written_beside_the_log() {
    use gateway::proto::sandbox::v1::{EffectiveSetting, SettingValue, setting_value::Value};
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let records = || {
        lab.shell(&format!(
            "cat {}",
            lab.logs().replace("openshell.*", "openshell-ocsf.*")
        ))
    };
    let steps = Steps::start(&lab, host.sandbox(&lab));
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    assert!(records().contains("No such file"), "{}", records());
    let setting = |value| EffectiveSetting {
        value: Some(SettingValue {
            value: Some(Value::BoolValue(value)),
        }),
        scope: 1,
    };
    let set = |name: &str, value, revision| {
        host.gateway.answer(|answers| {
            answers
                .config
                .settings
                .insert(name.to_owned(), setting(value));
            answers.config.config_revision = revision;
        })
    };
    set("ocsf_json_enabled", true, 2);
    let connect = "curl -s -p -x $HTTPS_PROXY http://web.test:8080/a -o /dev/null; curl -s \
                   --noproxy '*' http://10.99.0.1:81";
    // It may come into force within a step.
    let is_written = |what: &str| records().contains(what);
    let wanted = [
        "NET:OPEN [INFO] ALLOWED",
        "HTTP:GET [INFO] ALLOWED /",
        "\"class_uid\":4002",
        "\"class_uid\":4003",
    ];
    let are_written = || {
        let _ = steps.step(&format!(
            "{FETCH}/a; {FETCH}/b; {connect}; getent hosts n$$.test; true"
        ));
        wanted.iter().all(|what| is_written(what))
    };
    lab::wait_until(are_written, || lab.log());
    set("of_the_future", true, 3);
    let finished = steps.end();
    let classes: std::collections::BTreeSet<_> = records()
        .lines()
        .map(|line| {
            let record: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(record["metadata"]["uid"], "box-1");
            let class = record["class_uid"].as_u64().unwrap();
            assert_eq!(record["type_uid"].as_u64().unwrap() / 100, class);
            class
        })
        .collect();
    assert!(
        [1007, 4001, 4002, 4003, 5019]
            .iter()
            .all(|class| classes.contains(class)),
        "{classes:?}"
    );
    for kind in ["NET:OPEN", "HTTP:GET"] {
        let records = records();
        let is_meant = |line: &&str| {
            line.contains(kind) && line.contains("\"Allowed\"") && !line.contains("[request:")
        };
        let record = records.lines().find(is_meant).unwrap();
        let record: serde_json::Value = serde_json::from_str(record).unwrap();
        assert_eq!(
            (&record["dst_endpoint"]["ip"], &record["src_endpoint"]["ip"]),
            (&"10.99.0.1".into(), &"10.200.0.2".into()),
            "{record}"
        );
        assert!(
            !record["unmapped"]["ancestors"]
                .as_array()
                .unwrap()
                .is_empty(),
            "{record}"
        );
    }
    assert_eq!(
        finished
            .logged("setting ocsf_json_enabled: - -> true [scope:sandbox]")
            .len(),
        1,
        "{}",
        finished.log
    );
}

/// Frames of a relay that carry `data`.
fn data(data: &[u8]) -> Result<gateway::proto::v1::RelayFrame, tonic::Status> {
    let payload = gateway::proto::v1::relay_frame::Payload::Data(data.to_vec().into());
    Ok(gateway::proto::v1::RelayFrame {
        payload: Some(payload),
    })
}

#[test]
fn relays_reach_servers_inside_and_nothing_else_and_outlive_their_session() {
    use gateway::proto::v1::{TcpRelayTarget, relay_open::Target};
    let lab = Lab::with_web();
    let outside = lab.http("127.0.0.1:9000");
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let steps = Steps::start(&lab, host.sandbox(&lab));
    let echo = "import socket\ns = socket.create_server(('127.0.0.1', 8000))\nprint('up', \
                flush=True)\nc = s.accept()[0]\ntotal = 0\nwhile d := c.recv(65536): total += \
                len(d)\nc.sendall(str(total).encode())";
    let _ = steps.step(&format!(
        "(python3 -c \"{echo}\" > server 2>&1 &); until grep -q up server; do sleep 0.02; done; \
         echo up"
    ));
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let serving = host.serving.as_ref().unwrap();
    let tcp = |host: &str, port| {
        Some(Target::Tcp(TcpRelayTarget {
            host: host.to_owned(),
            port,
        }))
    };
    let relay = |target| host.gateway.relay(serving, target);
    assert!(
        relay(tcp("10.99.0.1", 8080))
            .unwrap_err()
            .contains("loopback")
    );
    assert!(
        relay(tcp("localhost", 9000))
            .unwrap_err()
            .contains("no server inside"),
        "the host's own loopback is another"
    );
    assert!(outside.seen().is_empty());
    let mut relay = relay(tcp("localhost", 8000)).unwrap();
    host.gateway.end_session();
    host.gateway.wait(|heard| heard.hellos.len() >= 2);
    let (sent, received) = serving.handle.block_on(async move {
        let mut sent = 0;
        for _ in 0..1000 {
            relay.to.send(data(&[7; 10_000])).await.unwrap();
            sent += 10_000;
        }
        // The end of one direction alone.
        drop(relay.to);
        let mut received = Vec::new();
        while let Some(frame) = relay.from.message().await.unwrap() {
            if let Some(gateway::proto::v1::relay_frame::Payload::Data(data)) = frame.payload {
                received.extend(data);
            }
        }
        (sent, String::from_utf8(received).unwrap())
    });
    assert_eq!(received, sent.to_string());
    let finished = steps.end();
    assert_eq!(
        finished
            .logged("relay of the gateway to 127.0.0.1:8000 inside")
            .len(),
        1,
        "{}",
        finished.log
    );
}

/// A port of the lab's host, each connection to which is a relay to the SSH server of the sandbox.
struct SshPort<'l> {
    lab: &'l Lab,
    config: std::path::PathBuf,
}

impl<'l> SshPort<'l> {
    fn open(lab: &'l Lab, host: &Host) -> Self {
        use gateway::proto::v1::relay_frame::Payload;
        use std::io::{Read, Write};
        let listener = lab.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = listener.local_addr().unwrap().port();
        let gateway = host.gateway.clone();
        let handle = host.serving.as_ref().unwrap().handle.clone();
        // It ends with the test's process.
        std::thread::spawn(move || {
            for (number, client) in listener.incoming().enumerate() {
                let (mut from, mut to) = client
                    .and_then(|client| Ok((client.try_clone()?, client)))
                    .unwrap();
                let target = (number % 2 == 0).then_some(
                    gateway::proto::v1::relay_open::Target::Ssh(Default::default()),
                );
                let mut relay = gateway.relay_by(&handle, target).unwrap();
                let outwards = handle.clone();
                std::thread::spawn(move || {
                    let mut buffer = [0; 16_000];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        if outwards
                            .block_on(relay.to.send(data(&buffer[..count])))
                            .is_err()
                        {
                            break;
                        }
                    }
                });
                let inwards = handle.clone();
                std::thread::spawn(move || {
                    while let Ok(Some(frame)) = inwards.block_on(relay.from.message()) {
                        if let Some(Payload::Data(data)) = frame.payload
                            && to.write_all(&data).is_err()
                        {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        let config = format!(
            "Host box\n HostName 127.0.0.1\n Port {port}\n User any\n StrictHostKeyChecking no\n \
             UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
        );
        Self {
            lab,
            config: lab.file("ssh_config", config),
        }
    }

    fn shell(&self, script: &str) -> String {
        let config = self.config.display();
        self.lab
            .shell(&format!(
                "ssh() {{ command ssh -F {config} \"$@\"; }}; {script}"
            ))
            .replace('\r', "")
    }
}

#[test]
fn a_relay_to_the_ssh_server_runs_commands_and_forwards_connections() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let steps = Steps::start(&lab, host.sandbox(&lab));
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let port = SshPort::open(&lab, &host);
    // The two forms in which a gateway sends commands.
    let seen = port.shell(
        "ssh box \"K='v w' K2='x' sh -c 'echo \\$K \\$K2; exit 4'\"; echo $?; ssh box \"cd '/' && \
         K='v' pwd\"; head -c 5000000 /dev/zero | ssh box 'cat | wc -c'; ssh box '(python3 -m \
         http.server --bind 127.0.0.1 8123 > /dev/null 2>&1 &) ; until curl -s -o /dev/null \
         127.0.0.1:8123; do sleep 0.05; done'; printf 'HEAD / HTTP/1.0\\r\\n\\r\\n' | ssh -W \
         127.0.0.1:8123 box | head -1; ssh box 'env | grep -c OPENSHELL_S; true'",
    );
    assert_eq!(seen, "v w x\n4\n/\n5000000\nHTTP/1.0 200 OK\n1\n");
    let finished = steps.end();
    assert!(
        finished.logged("SSH:OPEN [INFO] ALLOWED channel-").len() >= 5,
        "{}",
        finished.log
    );
}

#[test]
fn clients_attach_to_the_main_process_with_its_output_its_keyboard_and_its_end() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let script = "echo early; stty size; read line; echo got $line; trap 'echo usr' USR1; until [ \
                  -e $HOME/go ]; do sleep 0.05; done; stty size; seq 50000; echo last; exit 6";
    let none: [&str; 0] = [];
    let folder = lab.folder("work").display().to_string();
    let sandbox = host
        .sandbox(&lab)
        .args(&["--workdir", &folder])
        .env("HOME", &folder);
    let started = sandbox
        .env("OPENSHELL_MAIN_PROCESS_SPEC", &main_process(script, true))
        .start(&none);
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let port = SshPort::open(&lab, &host);
    let client = "import os, pty, select, sys, fcntl, termios, struct, signal, subprocess
def start(*words):
    pid, fd = pty.fork()
    if pid == 0: os.execvp('ssh', ['ssh', '-F', sys.argv[1], *words])
    return pid, fd, bytearray()
def until(client, text):
    pid, fd, seen = client
    while text not in seen:
        assert select.select([fd], [], [], 60)[0], bytes(seen[-300:])
        try: data = os.read(fd, 65536)
        except OSError: data = b''
        assert data, bytes(seen[-300:])
        seen += data
    del seen[:seen.index(text) + len(text)]
def code(client): return os.waitstatus_to_exitcode(os.waitpid(client[0], 0)[1])
one = start('-t', '-s', 'box', 'openshell-main')
until(one, b'early')
# Another one sees the same, and has no keyboard.
other = start('-t', '-s', 'box', 'openshell-main')
until(other, b'early')
os.write(other[1], b'unheard\\n')
os.write(one[1], b'typed\\n')
until(one, b'got typed'); until(other, b'got typed')
# Detached, and attached again: everything is shown again.
os.write(one[1], b'\\x10\\x11')
print('detached', code(one))
again = start('-t', '-s', 'box', 'openshell-main')
until(again, b'early'); until(again, b'got typed')
fcntl.ioctl(again[1], termios.TIOCSWINSZ, struct.pack('HHHH', 33, 99, 0, 0)); os.kill(again[0], signal.SIGWINCH)
subprocess.run(['ssh', '-F', sys.argv[1], 'box', 'until [ \"$(stty size < /dev/pts/0)\" = \"33 99\" ]; do sleep 0.05; done; : > $HOME/go'])
for client in again, other:
    until(client, b'33 99'); until(client, b'50000'); until(client, b'last')
    print('ended', code(client))
";
    let client = lab.file("client.py", client);
    let seen = lab.shell(&format!(
        "/usr/bin/python3 {} {}",
        client.display(),
        port.config.display()
    ));
    assert_eq!(seen, "detached 0\nended 6\nended 6\n");
    assert_eq!(started.wait().code(), 6);
}

/// A launcher's files of mutual TLS, in `folder`.
struct TlsFiles {
    folder: std::path::PathBuf,
}

impl TlsFiles {
    /// Writes the certificates for `trusted` servers, of a client of `client`.
    fn write(
        lab: &Lab,
        trusted: &gateway::Authority,
        client: &gateway::Authority,
        has_expired: bool,
    ) -> Self {
        static NUMBER: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let name = format!(
            "tls-{}",
            NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        );
        Self::write_in(lab, &name, (trusted, client), has_expired)
    }

    fn write_in(
        lab: &Lab,
        folder: &str,
        (trusted, client): (&gateway::Authority, &gateway::Authority),
        has_expired: bool,
    ) -> Self {
        let (chain, key) = client.issue("sandbox", has_expired);
        let path = lab.folder(folder);
        for (name, text) in [
            ("ca.crt", &trusted.pem),
            ("tls.crt", &chain),
            ("tls.key", &key),
        ] {
            drop(lab.file(&format!("{folder}/{name}"), text));
        }
        Self { folder: path }
    }

    fn set<'l>(&self, sandbox: Sandbox<'l>) -> Sandbox<'l> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        sandbox
            .env("OPENSHELL_TLS_CA", &path("ca.crt"))
            .env("OPENSHELL_TLS_CERT", &path("tls.crt"))
            .env("OPENSHELL_TLS_KEY", &path("tls.key"))
    }
}

#[test]
fn mutual_tls_trusts_one_authority_and_shows_its_key_to_nobody_inside() {
    use gateway::Authority;
    let lab = Lab::with_web();
    let authority = Authority::create();
    let other = Authority::create();
    let start = |tls: tonic::transport::ServerTlsConfig| {
        let listener = lab.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let gateway = Gateway::new(answers(Generation::Today, Some(web("/a"))));
        let address = listener.local_addr().unwrap();
        let serving = Some(gateway.serve_with(listener, Some(tls)));
        Host {
            gateway,
            serving,
            address,
        }
    };
    let host = start(authority.server("gateway.test"));
    let endpoint = format!("https://{}", host.address);
    let sandbox = |files: &TlsFiles| {
        let sandbox =
            Sandbox::bare(&lab).args(&["--sandbox-id", "box-1", "--openshell-endpoint", &endpoint]);
        let id = UID.to_string();
        let sandbox = sandbox
            .env("OPENSHELL_SANDBOX_UID", &id)
            .env("OPENSHELL_SANDBOX_GID", &id);
        files
            .set(sandbox)
            .env("OPENSHELL_POLICY_POLL_INTERVAL_SECS", "1")
    };
    let named =
        |files: &TlsFiles| sandbox(files).env("OPENSHELL_GATEWAY_TLS_SERVER_NAME", "gateway.test");
    let good = TlsFiles::write_in(&lab, "rotated", (&authority, &authority), false);
    let steps = Steps::start(&lab, named(&good));
    let hunt = format!(
        "cat {0}/tls.key /proc/*/environ 2>&1 | grep -c PRIVATE; env | grep -c OPENSHELL_TLS; true",
        good.folder.display()
    );
    assert_eq!(steps.step(&hunt), "0\n0");
    // Certificates that have rotated are those of the next connection.
    let mut host = host;
    drop(TlsFiles::write_in(&lab, "rotated", (&other, &other), false));
    host.gateway.end_session();
    drop(host.serving.take());
    let address = host.address;
    let listener = lab.inside(move || {
        lab::wait_for(
            || TcpListener::bind(address).ok(),
            || format!("{address} is in use"),
        )
    });
    host.serving = Some(
        host.gateway
            .serve_with(listener, Some(other.server("gateway.test"))),
    );
    host.gateway.set_policy(web("/b"));
    host.gateway.wait(|heard| heard.statuses.len() == 2);
    drop(steps.end());
    let mut started = Vec::new();
    for (trusted, client, has_expired, is_named, said) in [
        (&authority, &other, false, true, "invalid peer certificate"),
        (
            &other,
            &authority,
            false,
            true,
            "check that it trusts OPENSHELL_TLS_CERT",
        ),
        (
            &other,
            &other,
            true,
            true,
            "check that it trusts OPENSHELL_TLS_CERT",
        ),
        (&other, &other, false, false, "not valid for name"),
    ] {
        let files = TlsFiles::write(&lab, trusted, client, has_expired);
        let run = if is_named {
            named(&files)
        } else {
            sandbox(&files)
        };
        started.push((run.start(&["echo", "ran"]), said));
    }
    for (started, said) in started {
        let refused = started.wait();
        assert_eq!(
            (refused.code(), refused.stdout.as_str()),
            (1, ""),
            "{refused:?}"
        );
        assert!(refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
}

#[test]
fn a_volume_of_secrets_may_rotate_and_shows_nothing_inside() {
    let lab = Lab::with_web();
    let mut given = answers(Generation::Today, Some(web("/a")));
    given.tokens = vec!["token-One".to_owned()];
    let host = Host::start(&lab, given);
    image(&lab, "mkdir -p /run/image/openshell/auth");
    // As Kubernetes replaces the files of a volume.
    let write = |number: usize, token: &str| {
        let owner = lab::host::caller();
        let script = format!(
            "cd /etc/openshell/auth && mkdir ..{number} && echo {token} > ..{number}/token && ln -s ..{number} ..data_tmp &&
            mv -T ..data_tmp ..data && {{ [ -e token ] || ln -s ..data/token token; }} && chown -R {owner} . && rm -rf ..{}",
            number - 1
        );
        assert_eq!(lab.shell(&script), "");
    };
    assert_eq!(lab.shell("mount -t tmpfs none /etc/openshell/auth"), "");
    write(1, "token-One");
    let steps = Steps::start(
        &lab,
        host.sandbox(&lab)
            .env("OPENSHELL_SANDBOX_TOKEN_FILE", "/etc/openshell/auth/token"),
    );
    let hunt =
        "cat /etc/openshell/auth/* /etc/openshell/auth/..*/* 2>/dev/null | grep -c token-; true";
    assert_eq!(steps.step(hunt), "0");
    write(2, "token-Two");
    host.gateway
        .answer(|answers| answers.tokens = vec!["token-Two".to_owned()]);
    host.gateway.set_policy(web("/b"));
    let heard = host.gateway.wait(|heard| heard.statuses.len() == 2);
    assert!(heard.tokens.contains(&"token-Two".to_owned()), "{heard:?}");
    assert_eq!(steps.step(hunt), "0");
    let finished = steps.end();
    assert_eq!(finished.ok(), "", "{finished:?}");
}

#[test]
fn a_gateway_that_refuses_ends_the_start_at_once_and_one_that_is_slow_does_not() {
    let lab = Lab::with_web();
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    for (code, said) in [
        (7, "refuses this sandbox"),
        (5, "does not know this sandbox"),
        (16, "OPENSHELL_SANDBOX_TOKEN_FILE"),
        (3, "refuses the request"),
    ] {
        host.gateway
            .answer(|answers| answers.faults.insert("GetSandboxConfig", (code, 1)));
        let begin = Instant::now();
        let refused = host.sandbox(&lab).sh("echo ran");
        assert_eq!(
            (refused.code(), refused.stdout.as_str()),
            (1, ""),
            "{refused:?}"
        );
        assert!(
            refused.stderr.contains(said) && refused.stderr.lines().count() == 1,
            "{}",
            refused.stderr
        );
        assert!(begin.elapsed().as_secs() < 20);
    }
    for code in [14, 4, 8, 13, 2] {
        host.gateway
            .answer(|answers| answers.faults.insert("GetSandboxConfig", (code, 1)));
        assert_eq!(host.sandbox(&lab).sh("echo ran").ok(), "ran", "{code}");
    }
    // What is not there is asked for five times.
    let absent = Sandbox::bare(&lab)
        .args(&[
            "--sandbox-id",
            "x",
            "--openshell-endpoint",
            "http://127.0.0.1:9",
        ])
        .sh("true");
    assert!(
        absent.code() == 1 && absent.stderr.contains("Connection refused"),
        "{absent:?}"
    );
    // Nothing of a gateway that never answers holds up the end.
    host.gateway.answer(|answers| {
        answers.silent = vec![
            "SubmitPolicyAnalysis",
            "PushSandboxLogs",
            "ReportMainProcessExit",
            "ReportPolicyStatus",
            "ConnectSupervisor",
        ];
    });
    let begin = Instant::now();
    assert_eq!(
        host.sandbox(&lab)
            .sh("curl -s -p -x $HTTPS_PROXY http://other.test:443; echo ran")
            .ok(),
        "ran"
    );
    assert!(begin.elapsed().as_secs() < 30);
}

#[test]
fn a_server_inside_that_does_not_read_keeps_no_policy_from_arriving() {
    use gateway::proto::v1::{TcpRelayTarget, relay_open::Target};
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let steps = Steps::start(&lab, host.sandbox(&lab));
    let deaf = "import socket, time\ns = socket.create_server(('127.0.0.1', 8000))\nprint('up', \
                flush=True)\nheld = []\nwhile True: held.append(s.accept()[0])";
    let _ = steps.step(&format!(
        "(python3 -c \"{deaf}\" > server 2>&1 &); until grep -q up server; do sleep 0.02; done"
    ));
    host.gateway.wait(|heard| !heard.hellos.is_empty());
    let serving = host.serving.as_ref().unwrap();
    let target = || {
        Some(Target::Tcp(TcpRelayTarget {
            host: "127.0.0.1".to_owned(),
            port: 8000,
        }))
    };
    let relays: Vec<_> = (0..20)
        .map(|_| host.gateway.relay(serving, target()).unwrap())
        .collect();
    for relay in &relays {
        let to = relay.to.clone();
        // Until nothing more goes in.
        serving
            .handle
            .spawn(async move { while to.send(data(&[7; 64 * 1024])).await.is_ok() {} });
    }
    host.gateway.set_policy(web("/b"));
    host.gateway.wait(|heard| heard.statuses.len() == 2);
    assert_eq!(steps.step(&format!("{FETCH}/a; {FETCH}/b")), "403\n200");
    let beats = host.gateway.heard().heartbeats;
    host.gateway.wait(|heard| heard.heartbeats > beats + 2);
    let memory = lab.shell(&format!(
        "awk '/^VmRSS/ {{print $2}}' /proc/{}/status",
        steps.started.pid()
    ));
    assert!(
        memory.trim().parse::<u64>().unwrap() < 80_000,
        "{memory} KiB"
    );
    drop(relays);
    let _ = steps.end();
}

#[test]
fn a_credential_goes_where_an_endpoint_in_force_names_its_provider() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let with = |provider: Option<&str>, enforcement: &str| {
        let mut policy = web("/a");
        let endpoint = &mut policy.network_policies.get_mut("web").unwrap().endpoints[0];
        endpoint.credential_binding =
            provider.map(
                |provider| gateway::proto::sandbox::v1::NetworkCredentialBinding {
                    provider: provider.to_owned(),
                },
            );
        endpoint.enforcement = enforcement.to_owned();
        policy
    };
    let mut given = answers(Generation::Today, Some(with(None, "enforce")));
    given.config.policy_validation_failure_mode = "retain_last_valid".to_owned();
    given.environment = environment(1, "s3cret-Value");
    let binding = StaticCredentialBinding {
        credential_identity: "github".to_owned(),
        ..Default::default()
    };
    given
        .environment
        .static_credential_bindings
        .insert("API_KEY".to_owned(), binding);
    let host = Host::start(&lab, given);
    let steps = Steps::start(&lab, host.sandbox(&lab));
    let send = format!("{FETCH}/a -H \"X-Key: $API_KEY\"");
    assert_eq!(steps.step(&send), "403");
    // One that is not in force binds nothing.
    host.gateway.set_policy(with(Some("github"), "loudly"));
    host.gateway.wait(|heard| heard.statuses.len() == 2);
    host.gateway.answer(|answers| {
        (
            answers.config.provider_env_revision,
            answers.environment.provider_env_revision,
        ) = (2, 2)
    });
    let loads = || lab.log().matches("Credentials reloaded").count();
    lab::wait_until(|| loads() >= 1, || lab.log());
    assert_eq!(steps.step(&send), "403");
    host.gateway.set_policy(with(Some("github"), "enforce"));
    steps.until(&send, "200");
    host.gateway.set_policy(with(Some("other"), "enforce"));
    steps.until(&send, "403");
    let _ = steps.end();
}

/// Opens tunnels to web.test:8080 and other.test:8080, keeps them, and counts at the end those of
/// each that still carry data.
const MANY: &str = r"
import os, socket, sys, time
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
def connect(name):
    s = socket.create_connection((host, int(port)), 20)
    s.sendall(b'CONNECT ' + name.encode() + b':8080 HTTP/1.1\r\n\r\n')
    assert b' 200 ' in s.recv(4096)
    return s
held = {name: [connect(name) for n in range(250)] for name in ('web.test', 'db.test')}
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
for name, sockets in held.items():
    alive = 0
    for s in sockets:
        s.settimeout(5)
        try:
            s.sendall(bytes(1))
            alive += s.recv(16) == bytes(1)
        except OSError: pass
    print(name, alive)
";

#[test]
fn two_hundred_policies_in_a_row_close_what_they_revoke_and_nothing_else() {
    let lab = Lab::new(&[("10.99.0.1", "web.test db.test")]);
    let _upstream = lab.echo("10.99.0.1:8080".parse().unwrap());
    let policy = |hosts: &[&str], number: usize| {
        let endpoints: Vec<_> = hosts
            .iter()
            .map(|host| {
                format!("{{host: {host}, port: 8080, tls: skip, allowed_ips: [10.99.0.1]}}")
            })
            .chain([format!("{{host: h{number}.test, port: 1}}")])
            .collect();
        let python = super::python();
        gateway::policy(&format!(
            "network_policies: {{web: {{endpoints: [{}], binaries: [{{path: {python}}}]}}}}",
            endpoints.join(", ")
        ))
    };
    let host = Host::start(
        &lab,
        answers(Generation::Today, Some(policy(&["web.test", "db.test"], 0))),
    );
    let folder = lab.folder("work");
    let sandbox = host
        .sandbox(&lab)
        .args(&["--workdir", folder.to_str().unwrap()]);
    let sandbox = sandbox.env("OPENSHELL_POLICY_POLL_INTERVAL_SECS", "3600");
    let started = sandbox.start(&["/usr/bin/python3", "-c", MANY]);
    lab::wait_until(|| folder.join("ready").exists(), || lab.log());
    for number in 1..=200_usize {
        host.gateway
            .set_policy(policy(&["web.test", "db.test"], number));
        started.signal(Signal::HUP);
    }
    host.gateway.set_policy(policy(&["web.test"], 201));
    started.signal(Signal::HUP);
    let heard = host.gateway.wait(|heard| {
        heard
            .statuses
            .last()
            .is_some_and(|status| status.version == 202)
    });
    assert!(
        heard.statuses.iter().all(|status| status.status == LOADED),
        "{heard:?}"
    );
    assert!(
        heard.statuses.is_sorted_by_key(|status| status.version),
        "in their order"
    );
    std::fs::write(folder.join("go"), "").unwrap();
    let finished = started.wait();
    assert_eq!(finished.ok(), "web.test 250\ndb.test 0", "{finished:?}");
}

/// Passes connections on to a gateway, and of the gateway's bytes only as many as are allowed.
struct Stalling {
    /// Bytes that may still pass; `None` means all.
    left: Arc<(Mutex<Option<usize>>, Condvar)>,
    address: std::net::SocketAddr,
}

impl Stalling {
    fn start(lab: &Lab, gateway: std::net::SocketAddr) -> Self {
        use std::io::{Read, Write};
        let listener = lab.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let left: Arc<(Mutex<Option<usize>>, Condvar)> = Arc::default();
        let allowed = Arc::clone(&left);
        let serve = move || {
            for client in listener.incoming() {
                let Ok(mut client) = client else { return };
                let Ok(mut server) = std::net::TcpStream::connect(gateway) else {
                    continue;
                };
                let mut from = client.try_clone().unwrap();
                let mut to = server.try_clone().unwrap();
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
                let allowed = Arc::clone(&allowed);
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while matches!(server.read(&mut byte), Ok(1)) {
                        let (left, changed) = &*allowed;
                        let mut left = changed
                            .wait_while(left.lock().unwrap(), |left| *left == Some(0))
                            .unwrap();
                        *left = left.map(|left| left - 1);
                        drop(left);
                        if client.write_all(&byte).is_err() {
                            return;
                        }
                    }
                });
            }
        };
        lab.inside(move || std::thread::spawn(serve));
        Self { left, address }
    }

    fn allow(&self, bytes: Option<usize>) {
        *self.left.0.lock().unwrap() = bytes;
        self.left.1.notify_all();
    }
}

#[test]
fn a_gateway_that_hangs_in_a_message_changes_nothing_until_it_goes_on() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let host = Host::start(&lab, answers(Generation::Today, Some(web("/a"))));
    let stalling = Stalling::start(&lab, host.address);
    let launched = sandbox(&lab, &format!("http://{}", stalling.address));
    let steps = Steps::start(&lab, launched);
    host.gateway.wait(|heard| heard.heartbeats >= 1);
    // A message of many bytes.
    let large = |path: &str| {
        let mut policy = web(path);
        let rule = policy.network_policies["web"].clone();
        policy
            .network_policies
            .extend((0..100).map(|number| (format!("more-{number}"), rule.clone())));
        for (name, rule) in policy
            .network_policies
            .iter_mut()
            .filter(|(name, _)| name.starts_with("more"))
        {
            rule.endpoints[0].host = format!("{name}.test");
        }
        policy
    };
    for (bytes, old, new) in [(40, "/a", "/b"), (1500, "/b", "/a"), (5000, "/a", "/b")] {
        // In the head of an answer, and in its message.
        stalling.allow(Some(bytes));
        host.gateway.set_policy(large(new));
        steps.started.signal(Signal::HUP);
        let asked = host.gateway.heard().calls.len();
        let both = format!("{FETCH}{old}; {FETCH}{new}");
        assert_eq!(steps.step(&both), "200\n403", "{bytes}");
        assert_eq!(steps.step(&both), "200\n403", "{bytes}");
        stalling.allow(None);
        host.gateway.wait(|heard| heard.calls.len() > asked);
        steps.until(&both, "403\n200");
    }
    stalling.allow(Some(30));
    host.gateway.set_policy(web("/a"));
    steps.started.signal(Signal::HUP);
    let begin = Instant::now();
    assert_eq!(steps.end().code(), 0);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "it holds up no end: {:?}",
        begin.elapsed()
    );
}

#[test]
fn in_chaos_of_its_gateway_no_request_is_lost_or_decided_otherwise() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let mut policy = web("/a");
    for rule in policy.network_policies.values_mut() {
        rule.binaries[0].path = super::python();
    }
    let mut host = Host::start(&lab, answers(Generation::Today, Some(policy)));
    let steps = Steps::start(
        &lab,
        host.sandbox(&lab)
            .env("OPENSHELL_DENIAL_FLUSH_INTERVAL_SECS", "1"),
    );
    // Requests, permitted and refused in turn, until the file is there.
    let load = "import os, urllib.request, urllib.error\nok = bad = other = 0\nwhile not os.path.exists('stop'):\n    \
                for path, wanted in (('/a', 200), ('/b', 403)):\n        \
                try: code = urllib.request.urlopen('http://web.test:8080' + path, timeout=20).status\n        \
                except urllib.error.HTTPError as error: code = error.code\n        \
                except Exception: code = 0\n        \
                ok += code == wanted; bad += code != wanted\nprint(ok > 100, bad)\n";
    std::fs::write(steps.folder.join("load.py"), load).unwrap();
    let _ = steps.step("(python3 load.py > result 2>&1; echo done >> result) & echo started");
    for _ in 0..15 {
        let calls = host.gateway.heard().calls.len();
        host.restart(&lab);
        host.gateway.wait(|heard| heard.calls.len() > calls);
    }
    let _ =
        steps.step("touch stop; until grep -q done result; do sleep 0.05; done; cat result > last");
    let result = std::fs::read_to_string(steps.folder.join("last")).unwrap();
    assert_eq!(result, "True 0\ndone\n");
    assert_eq!(steps.end().code(), 0);
}

#[test]
fn what_is_no_gateway_ends_the_start_with_a_line_and_a_large_answer_is_taken() {
    let lab = Lab::with_web();
    let _other = lab.http("127.0.0.1:9001");
    let refused = Sandbox::bare(&lab)
        .args(&[
            "--sandbox-id",
            "x",
            "--openshell-endpoint",
            "http://127.0.0.1:9001",
        ])
        .sh("echo ran");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (1, ""),
        "{refused:?}"
    );
    let last = refused.stderr.lines().last().unwrap();
    assert!(
        last.starts_with("openshell-sandbox: GetSandboxConfig: "),
        "{last}"
    );
    let mut large = web("/a");
    // Fields that nobody reads, of 32 MiB.
    large.network_policies.get_mut("web").unwrap().name = "x".repeat(32 * 1024 * 1024);
    let given = answers(Generation::Today, Some(large));
    let host = Host::start(&lab, given);
    assert_eq!(host.sandbox(&lab).sh("echo ran").ok(), "ran");
    // More than a message may have is a failure like any other.
    host.gateway
        .answer(|answers| answers.config.workspace = "x".repeat(70 * 1024 * 1024));
    let refused = host.sandbox(&lab).sh("echo ran");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (1, ""),
        "{}",
        refused.stderr
    );
}

#[test]
fn an_invalid_first_policy_permits_nothing_until_a_valid_one_comes() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let mut invalid = web("/a");
    invalid
        .network_policies
        .values_mut()
        .for_each(|rule| rule.endpoints[0].enforcement = "loudly".to_owned());
    let host = Host::start(&lab, answers(Generation::April, Some(invalid)));
    let steps = Steps::start(&lab, host.sandbox(&lab));
    assert_eq!(steps.step(&format!("{FETCH}/a")), "403");
    let heard = host.gateway.wait(|heard| heard.statuses.len() == 1);
    assert_eq!(
        (heard.statuses[0].version, heard.statuses[0].status),
        (1, FAILED)
    );
    host.gateway.set_policy(web("/a"));
    let heard = host.gateway.wait(|heard| heard.statuses.len() == 2);
    assert_eq!(
        (heard.statuses[1].version, heard.statuses[1].status),
        (2, LOADED)
    );
    assert_eq!(steps.step(&format!("{FETCH}/a")), "200");
    assert_eq!(
        steps
            .end()
            .logged("CONFIG:FAILED [HIGH] the gateway's policy is invalid")
            .len(),
        1
    );
}

#[test]
fn a_gateway_delivers_rules_for_messages_and_what_it_demands_of_a_later_build_refuses_alone() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let endpoint = "host: web.test, port: 8080, allowed_ips: [10.99.0.1]";
    let policy = gateway::policy(&format!(
        "network_policies: {{web: {{endpoints: [{{{endpoint}, path: /mcp, protocol: mcp, enforcement: enforce, rules: [{{allow: \
         {{method: tools/call, tool: \"get_*\"}}}}]}}, {{{endpoint}, path: /rpc, protocol: json-rpc, enforcement: enforce, rules: \
         [{{allow: {{method: sum}}}}]}}], binaries: [{{path: /usr/bin/curl}}]}}}}"
    ));
    let host = Host::start(&lab, answers(Generation::Today, Some(policy)));
    let call = |tool: &str| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":\"{tool}\"}}}}"
        )
    };
    let post = "curl -sS -w '\\n' -H 'content-type: application/json' http://web.test:8080";
    let finished = host.sandbox(&lab).sh(&format!(
        "{post}/mcp -d '{}'; {post}/mcp -d '{}'; {post}/rpc -d '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"sum\"}}'",
        call("get_x"),
        call("set_x"),
    ));
    let lines: Vec<_> = finished
        .ok()
        .lines()
        .filter(|line| !line.is_empty())
        .collect();
    let [first, refused, last] = lines.as_slice() else {
        panic!("{finished:?}")
    };
    assert_eq!([*first, *last], ["hello"; 2], "{finished:?}");
    assert!(
        refused.contains("tool set_x is not permitted by policy (request_not_in_rules)"),
        "{refused}"
    );
}
