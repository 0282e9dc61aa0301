//! Aids for writing policies: proposals, observation, `check` and `explain`.

use lab::Lab;
use lab::sandbox::Sandbox;

/// Sends a CONNECT for each argument and prints the status lines.
const ASK: &str = r"
import os, socket, sys
host, port = os.environ['HTTPS_PROXY'][7:].split(':')
for target in sys.argv[1:]:
    s = socket.create_connection((host, int(port)), 20)
    s.sendall(f'CONNECT {target} HTTP/1.1\r\n\r\n'.encode())
    print(s.recv(4096).split(b'\r\n')[0].decode())
";

const PERMITTED: &str = "HTTP/1.1 200 Connection Established";

fn base() -> String {
    format!("process: {{run_as_user: \"{}\"}}\n", lab::host::UID)
}

#[test]
fn the_proposals_of_a_run_let_the_same_run_pass() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let _public = lab.http("198.51.100.10:443");
    let file = lab.folder("out").join("proposals.yaml");
    let targets = [
        "web.test:8080",
        "public.lab.test:443",
        "127.0.0.1:1",
        "web.test:8080",
    ];
    let ask = |policy: &str, file: &str| {
        lab.sandbox(policy)
            .args(&["--proposals", file])
            .python(ASK, &targets)
    };
    let refused = ask(&base(), file.to_str().unwrap());
    assert!(
        refused
            .ok()
            .lines()
            .all(|line| line.ends_with("403 no_network_policies")),
        "{refused:?}"
    );
    let fragment = std::fs::read_to_string(&file).unwrap();
    assert!(
        fragment.contains("refused 2 times") && !fragment.contains("127.0.0.1"),
        "{fragment}"
    );
    let passed = ask(&format!("{}{fragment}", base()), "/dev/null");
    assert_eq!(passed.code(), 1, "a device is no file: {passed:?}");
    let passed = ask(&format!("{}{fragment}", base()), file.to_str().unwrap());
    let statuses: Vec<_> = passed.ok().lines().collect();
    assert_eq!(
        (statuses[0], statuses[1], statuses[3]),
        (PERMITTED, PERMITTED, PERMITTED),
        "{passed:?}"
    );
    assert!(statuses[2].contains("403"), "never reachable");
}

#[test]
fn an_observed_run_makes_the_policy_with_which_it_passes() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let _public = lab.http("198.51.100.10:443");
    let file = lab.folder("out").join("observed.yaml");
    let targets = [
        "web.test:8080",
        "public.lab.test:443",
        "127.0.0.1:8080",
        "10.99.0.1:2379",
    ];
    let observed = lab
        .sandbox(&base())
        .args(&["--observe", file.to_str().unwrap()])
        .python(ASK, &targets);
    let expected = [
        PERMITTED,
        PERMITTED,
        "HTTP/1.1 403 always_blocked_address",
        "HTTP/1.1 403 control_plane_port",
    ];
    assert_eq!(observed.ok(), expected.join("\n"), "{}", observed.log);
    assert!(
        observed.stderr.contains("openshell-sandbox: OBSERVING"),
        "loudly said: {}",
        observed.stderr
    );
    let line = "-> web.test:8080 [policy:- engine:observe] [code:no_network_policies]";
    assert_eq!(observed.logged(line).len(), 1, "{}", observed.log);
    let policy = std::fs::read_to_string(&file).unwrap();
    assert!(
        policy.contains("10.99.0.1") && !policy.contains("127.0.0.1") && !policy.contains("2379"),
        "{policy}"
    );
    let enforced = lab.sandbox(&policy).python(
        ASK,
        &["web.test:8080", "public.lab.test:443", "web.test:8081"],
    );
    let statuses: Vec<_> = enforced.ok().lines().collect();
    assert_eq!(
        (statuses[0], statuses[1]),
        (PERMITTED, PERMITTED),
        "{enforced:?}"
    );
    assert!(
        statuses[2].contains("403 endpoint_not_in_policy"),
        "it is minimal"
    );
}

#[test]
fn a_program_whose_path_is_a_pattern_is_left_out_of_what_a_run_writes() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let [tools, out] = ["tools", "out"].map(|name| lab.folder(name));
    let policy = format!(
        "{}filesystem_policy: {{read_write: [{}]}}\n",
        base(),
        tools.display()
    );
    let script =
        "cp $(readlink -f /usr/bin/python3) \"$TOOLS/**\"; \"$TOOLS/**\" -c \"$ASK\" web.test:8080";
    for flag in ["--observe", "--proposals"] {
        let file = out.join(format!("{flag}.yaml"));
        let sandbox = lab
            .sandbox(&policy)
            .env("ASK", ASK)
            .env("TOOLS", tools.to_str().unwrap())
            .env("PYTHONHOME", "/usr");
        let finished = sandbox.args(&[flag, file.to_str().unwrap()]).sh(script);
        assert!(finished.stdout.starts_with("HTTP/1.1 "), "{finished:?}");
        let written = std::fs::read_to_string(file).unwrap();
        assert!(
            !written.contains("/**") && written.contains("network_policies: {}"),
            "{flag}: {written}"
        );
    }
}

#[test]
fn an_output_that_was_replaced_during_the_run_is_said() {
    let lab = Lab::with_web();
    let folder = lab.folder("own");
    let file = folder.join("observed.yaml");
    let arguments = [
        "--observe",
        file.to_str().unwrap(),
        "--workdir",
        folder.to_str().unwrap(),
    ];
    let inside = "rm -f observed.yaml; echo forged > observed.yaml; touch ready; until test -e go; \
                  do :; done";
    let running = lab
        .sandbox(&base())
        .args(&arguments)
        .start(&["sh", "-c", inside]);
    let outside =
        "until test -e ready; do :; done; rm observed.yaml; echo forged > observed.yaml; touch go";
    assert_eq!(
        lab.shell(&format!("cd {}; {outside}", folder.display())),
        ""
    );
    let finished = running.wait();
    assert!(
        finished.stderr.contains("Device or resource busy"),
        "not by the workload: {finished:?}"
    );
    assert!(
        finished.stderr.contains("was replaced during the run"),
        "{finished:?}"
    );
}

#[test]
fn an_output_that_a_workload_could_have_led_elsewhere_is_refused() {
    let lab = Lab::with_web();
    let folder = lab.folder("planted");
    let victim = lab.file("victim", "kept");
    std::os::unix::fs::symlink(&victim, folder.join("out.yaml")).unwrap();
    std::os::unix::fs::lchown(folder.join("out.yaml"), Some(lab::host::UID), None).unwrap();
    for flag in ["--proposals", "--observe"] {
        let finished = lab
            .sandbox(&base())
            .args(&[flag, folder.join("out.yaml").to_str().unwrap()])
            .sh("true");
        assert_eq!(finished.code(), 1, "{finished:?}");
        assert!(
            finished.stderr.contains("cannot be written"),
            "{finished:?}"
        );
    }
    assert_eq!(std::fs::read(victim).unwrap(), b"kept");
}

#[test]
fn explain_says_what_the_proxy_says() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let python = super::python();
    let wildcard = super::policy(&format!(
        "{{w: {{endpoints: [{{host: \"*.test\", port: 8080}}], binaries: [{{path: {python}}}]}}}}"
    ));
    let wildcard = wildcard.replace("*.test", "*.lab.test");
    let inside = super::web().replace(
        "port: 8080,",
        "port: 8080, protocol: rest, enforcement: enforce, access: full,",
    );
    let linked = super::web().replace(&python, "/usr/bin/python3");
    for policy in [
        super::web(),
        base(),
        wildcard,
        inside,
        linked,
        super::web().replace("10.99.0.1", "10.50.0.0/16"),
        super::web().replace(&python, "/usr/bin/x"),
    ] {
        for (host, port) in [
            ("web.test", "8080"),
            ("WEB.test", "8080"),
            ("web.test", "8081"),
            ("loop.lab.test", "8080"),
            ("no.lab.test", "8080"),
            ("10.99.0.1", "8080"),
        ] {
            let live = lab
                .sandbox(&policy)
                .python(ASK, &[&format!("{host}:{port}")]);
            let file = lab.file("explained.yaml", &policy);
            let words = [
                "explain",
                file.to_str().unwrap(),
                "--binary",
                &python,
                "--host",
                host,
                "--port",
                port,
            ];
            let explained = lab.shell(&format!("{} {}", lab.binary(), words.join(" ")));
            let said = explained
                .lines()
                .find(|line| line.starts_with("allowed: ") || line.starts_with("refused: "))
                .unwrap();
            let agree = match live.ok() {
                PERMITTED => said.starts_with("allowed: "),
                refused => said.ends_with(&format!(": {}", refused.rsplit(' ').next().unwrap())),
            };
            assert!(
                agree,
                "{policy}\n{host}:{port}: the proxy says {:?}, explain {explained}",
                live.ok()
            );
        }
    }
}

#[test]
fn explain_knows_the_models_and_what_no_policy_permits() {
    let lab = Lab::with_web();
    let file = lab.file("explained.yaml", base());
    let explain = |host: &str, port: u16| {
        let binary = lab.binary();
        let file = file.display();
        lab.shell(&format!(
            "{binary} explain {file} --binary /usr/bin/curl --host {host} --port {port}; echo $?"
        ))
    };
    let models = explain("inference.local", 443);
    assert!(
        models.starts_with("allowed: CONNECT inference.local:443 by ") && models.ends_with("\n0\n"),
        "{models}"
    );
    assert!(explain("inference.local", 80).starts_with("refused: "));
    let loopback = explain("127.0.0.1", 80);
    assert!(
        loopback.contains("  no fix: no policy permits 127.0.0.1:80: it is the host itself"),
        "{loopback}"
    );
    assert!(!loopback.contains("  fix: "), "{loopback}");
}

#[test]
fn check_names_what_is_wrong_and_what_is_doubtful() {
    let lab = Lab::with_web();
    let check = |policy: &str| {
        let file = lab.file("checked.yaml", policy);
        lab.shell(&format!(
            "{} check {}; echo $?",
            lab.binary(),
            file.display()
        ))
    };
    let doubtful = check(&super::policy(
        "{a: {endpoints: [{host: x.test, port: 1}], binaries: [{path: /no/such}]}}",
    ));
    assert!(
        doubtful.contains("network_policies.a.binaries[0]: /no/such does not exist"),
        "{doubtful}"
    );
    assert!(
        doubtful.ends_with("1 network policy, 1 warning\n0\n"),
        "{doubtful}"
    );
    let wrong =
        check("network_policies: {a: {endpoints: [{host: \"*\", port: 1}]}}\nversions: 1\n");
    assert!(
        wrong.contains("line 1: ") && wrong.contains("line 2: ") && wrong.ends_with("\n1\n"),
        "{wrong}"
    );
    // After `--` the word is a command.
    assert_eq!(
        Sandbox::bare(&lab).run(&["check", "x"]).code(),
        1,
        "no policy"
    );
}

#[test]
fn explain_and_observe_know_requests() {
    let lab = Lab::with_web();
    let _upstream = lab.http("10.99.0.1:8080");
    let rules =
        "protocol: rest, enforcement: enforce, rules: [{allow: {method: GET, path: \"/pub/**\"}}]";
    let policy = super::web().replace("port: 8080,", &format!("port: 8080, {rules},"));
    let file = lab.file("judged.yaml", &policy).display().to_string();
    let explain = |file: &str, method: &str, path: &str| {
        let binary = lab.binary();
        lab.shell(&format!(
            "{binary} explain {file} --binary {} --host web.test --port 8080 --method {method} \
             --path '{path}'; echo $?",
            super::python()
        ))
    };
    let allowed = explain(&file, "GET", "/pub/x?y=1");
    assert!(
        allowed.starts_with("allowed: GET web.test:8080/pub/x?y=1 by ")
            && allowed.ends_with("\n0\n"),
        "{allowed}"
    );
    let refused = explain(&file, "GET", "/pub/../x");
    assert!(
        refused.contains(": request_not_in_rules")
            && refused.contains("reason: GET /x not permitted by policy"),
        "{refused}"
    );
    assert!(
        refused.contains("`- allow: {method: GET, path: /x}`") && refused.ends_with("\n1\n"),
        "{refused}"
    );
    assert!(explain(&file, "GET", "/%00").contains("bad_request"));
    let audited = lab
        .file("audited.yaml", policy.replace("enforce,", "audit,"))
        .display()
        .to_string();
    assert!(
        explain(&audited, "POST", "/x").contains("audit only: POST /x not permitted by policy")
    );
    // The observed policy permits the same run, and no more.
    let observed = lab
        .folder("out")
        .join("observed.yaml")
        .display()
        .to_string();
    let ask = |policy: &str, flags: &[&str], method: &str| {
        let request = format!("{method} /x/1 HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n");
        lab.sandbox(policy)
            .args(flags)
            .python(super::RAW, &[&super::connect("web.test:8080"), &request])
    };
    assert!(
        ask(&policy, &["--observe", &observed], "GET")
            .ok()
            .ends_with("hello")
    );
    let observed = std::fs::read_to_string(observed).unwrap();
    assert!(
        observed.contains("rules: [{allow: {method: \"GET\", path: \"**\"}}]")
            && observed.contains("# paths: \"/x/1\""),
        "{observed}"
    );
    assert!(ask(&observed, &[], "GET").ok().ends_with("hello"));
    assert!(
        ask(&observed, &[], "POST")
            .ok()
            .contains("403 request_not_in_rules")
    );
    // With the proposals added, the same run passes.
    let proposals = lab
        .folder("out")
        .join("proposals.yaml")
        .display()
        .to_string();
    assert!(
        ask(&policy, &["--proposals", &proposals], "GET")
            .ok()
            .contains("403 request_not_in_rules")
    );
    let proposed = std::fs::read_to_string(proposals).unwrap();
    assert!(
        proposed.contains("rules: [{allow: {method: \"GET\", path: \"/x/1\"}}]"),
        "{proposed}"
    );
    let added = proposed.split_once("network_policies:").unwrap().1;
    let united = policy
        .replace("network_policies: {", "network_policies:\n  ")
        .replace("}]}}\n", "}]}\n")
        + added;
    assert!(ask(&united, &[], "GET").ok().ends_with("hello"), "{united}");
}

#[test]
fn an_observation_replaces_only_what_an_observation_wrote() {
    let lab = Lab::with_web();
    let policy = lab.file("own.yaml", base());
    let path = policy.to_str().unwrap();
    for flags in [
        &["--observe", path][..],
        &["--observe", path, "--observe-merge"],
    ] {
        let refused = lab.sandbox(&base()).args(flags).sh("echo ran");
        assert_eq!(
            (refused.code(), refused.stdout.as_str()),
            (1, ""),
            "{refused:?}"
        );
        assert!(
            refused
                .stderr
                .contains("the file exists and was not written by --observe"),
            "{refused:?}"
        );
        assert_eq!(std::fs::read_to_string(&policy).unwrap(), base());
    }
    // An empty file, as created by mktemp, has no content to lose.
    let file = lab.file("observed.yaml", "");
    for _ in 0..2 {
        assert_eq!(
            lab.sandbox(&base())
                .args(&["--observe", file.to_str().unwrap()])
                .sh("echo ran")
                .ok(),
            "ran"
        );
        assert!(
            std::fs::read_to_string(&file)
                .unwrap()
                .starts_with("# Observed, not reviewed: ")
        );
    }
}

#[test]
fn an_observation_that_is_merged_lets_both_runs_pass() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let _public = lab.http("198.51.100.10:443");
    let file = lab.file("observed.yaml", "");
    let path = file.to_str().unwrap();
    let request =
        |method: &str| format!("{method} /x HTTP/1.1\\r\\nHost: web.test:8080\\r\\n\\r\\n");
    let send = |policy: &str, flags: &[&str], method: &str| {
        lab.sandbox(policy).args(flags).python(
            super::RAW,
            &[&super::connect("web.test:8080"), &request(method)],
        )
    };
    let merge = ["--observe", path, "--observe-merge"];
    assert!(send(&base(), &merge, "GET").ok().ends_with("hello"));
    assert!(send(&base(), &merge, "POST").ok().ends_with("hello"));
    assert_eq!(
        lab.sandbox(&base())
            .args(&merge)
            .python(ASK, &["public.lab.test:443"])
            .ok(),
        PERMITTED
    );
    let observed = std::fs::read_to_string(&file).unwrap();
    for method in ["GET", "POST"] {
        assert!(
            send(&observed, &[], method).ok().ends_with("hello"),
            "{observed}"
        );
    }
    assert!(
        send(&observed, &[], "PUT")
            .ok()
            .contains("403 request_not_in_rules"),
        "{observed}"
    );
    assert_eq!(
        lab.sandbox(&observed)
            .python(ASK, &["public.lab.test:443"])
            .ok(),
        PERMITTED,
        "{observed}"
    );
    // A rule that was narrowed by hand stays so.
    std::fs::write(&file, observed.replacen("\"**\"", "\"/x\"", 1)).unwrap();
    let refused = lab.sandbox(&base()).args(&merge).sh("echo ran");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (1, ""),
        "{refused:?}"
    );
    assert!(
        refused.stderr.contains("holds more than --observe writes"),
        "{refused:?}"
    );
}

/// Runs `echo ran` with `flags`. The start must fail with `reason`, and leave the file at `path`
/// unchanged.
fn is_refused_and_keeps(lab: &Lab, flags: &[&str], path: &str, reason: &str) {
    let before = std::fs::read_to_string(path).unwrap();
    let refused = Sandbox::bare(lab).args(flags).sh("echo ran");
    assert_eq!(
        (refused.code(), refused.stdout.as_str()),
        (1, ""),
        "{flags:?}: {refused:?}"
    );
    assert!(
        refused.stderr.contains(reason),
        "{flags:?}: {}",
        refused.stderr
    );
    assert_eq!(std::fs::read_to_string(path).unwrap(), before, "{flags:?}");
}

#[test]
fn an_observation_does_not_replace_the_policy_that_it_runs_under() {
    let lab = Lab::with_web();
    let file = lab.file("observed.yaml", "");
    let observed = file.to_str().unwrap();
    assert_eq!(
        lab.sandbox(&base())
            .args(&["--observe", observed])
            .sh("echo ran")
            .ok(),
        "ran"
    );
    let link = file.with_file_name("link.yaml");
    std::fs::hard_link(&file, &link).unwrap();
    for policy in [observed, link.to_str().unwrap()] {
        let flags = [
            "--policy-data",
            policy,
            "--observe",
            observed,
            "--observe-merge",
        ];
        is_refused_and_keeps(
            &lab,
            &flags[..4],
            observed,
            "the file is the policy of this run",
        );
        is_refused_and_keeps(&lab, &flags, observed, "the file is the policy of this run");
    }
}

#[test]
fn proposals_replace_only_proposals_and_nothing_that_the_run_depends_on() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let file = |name: &str, text: &str| lab.file(name, text).to_str().unwrap().to_owned();
    let notes = file("notes", "kept\n");
    let policy = file("policy.yaml", &base());
    let proposed = file("proposed.yaml", "");
    let credentials = file("credentials.yaml", "credentials: {}\n");
    let routes = file("routes.yaml", "routes: []\n");
    assert_eq!(lab.shell(&format!("chmod 600 {credentials} {routes}")), "");
    // A file of proposals may be a policy, or become one.
    let ask = lab
        .sandbox(&base())
        .args(&["--proposals", &proposed])
        .python(ASK, &["web.test:8080"]);
    assert!(ask.ok().contains("403"), "{ask:?}");
    let proposals = std::fs::read_to_string(&proposed).unwrap();
    let own = file("own.yaml", &format!("{proposals}{}", base()));
    let inputs = ["--credentials", &credentials, "--inference-routes", &routes];
    for (used, output, reason) in [
        (
            &policy,
            &notes,
            "the file exists and was not written by --proposals",
        ),
        (&policy, &policy, "the file is the policy of this run"),
        (&own, &own, "the file is the policy of this run"),
        (
            &policy,
            &credentials,
            "the file is the credentials file of this run",
        ),
        (
            &policy,
            &routes,
            "the file is the inference routes file of this run",
        ),
    ] {
        let flags = [&["--policy-data", used, "--proposals", output][..], &inputs].concat();
        is_refused_and_keeps(&lab, &flags, output, reason);
    }
    let again = lab
        .sandbox(&base())
        .args(&["--proposals", &proposed])
        .sh("true");
    assert_eq!(
        (
            again.code(),
            std::fs::read_to_string(&proposed).unwrap() == proposals
        ),
        (0, false),
        "{again:?}"
    );
}

#[test]
fn what_was_changed_by_hand_is_not_lost_by_merging() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let started = lab.file("policy.yaml", base());
    let file = lab.file("observed.yaml", "");
    let [started, path] = [&started, &file].map(|path| path.to_str().unwrap());
    let merge = [
        "--policy-data",
        started,
        "--observe",
        path,
        "--observe-merge",
    ];
    for _ in 0..2 {
        assert_eq!(
            Sandbox::bare(&lab)
                .args(&merge)
                .python(ASK, &["web.test:8080"])
                .ok(),
            PERMITTED
        );
    }
    let observed = std::fs::read_to_string(&file).unwrap();
    let changes = [
        (
            "\"read_only\":[",
            "\"read_only\":[\"/opt/mine\",",
            "line 2 ",
        ),
        ("_1:\n", "_1:\n    name: mine\n", "line 7 "),
        ("_1:\n", "_handmade:\n", "line 6 "),
        (
            "    binaries:",
            "    # Asked for by the web team.\n    binaries:",
            "line 9 ",
        ),
    ];
    for (from, to, line) in changes {
        let changed = observed.replacen(from, to, 1);
        assert_ne!(changed, observed, "{from}");
        std::fs::write(&file, changed).unwrap();
        is_refused_and_keeps(
            &lab,
            &merge,
            path,
            &format!("{path}: {line}is not as --observe writes it"),
        );
    }
}

#[test]
fn check_reads_several_files_and_may_deny_warnings() {
    let lab = Lab::with_web();
    let check = |flags: &str, policies: &[&str]| {
        let files = policies
            .iter()
            .enumerate()
            .map(|(n, policy)| lab.file(&format!("{n}.yaml"), policy));
        let files: Vec<_> = files.map(|file| file.display().to_string()).collect();
        lab.shell(&format!(
            "{} check {flags} {}; echo $?",
            lab.binary(),
            files.join(" ")
        ))
    };
    let doubtful =
        super::policy("{a: {endpoints: [{host: x.test, port: 1}], binaries: [{path: /no/such}]}}");
    let doubtful = doubtful.as_str();
    let both = check("", &[&base(), doubtful]);
    assert!(
        both.contains("0.yaml: 0 network policies, 0 warnings\n"),
        "{both}"
    );
    assert!(
        both.ends_with("1.yaml: 1 network policy, 1 warning\n0\n"),
        "{both}"
    );
    assert!(check("--deny-warnings", &[&base()]).ends_with("\n0\n"));
    assert!(check("--deny-warnings", &[&base(), doubtful]).ends_with("\n1\n"));
    let wrong = check("", &["a: 1\n", doubtful, "b: 1\n"]);
    assert!(
        wrong.contains("unknown key `a`") && wrong.contains("unknown key `b`"),
        "{wrong}"
    );
    assert!(
        wrong.contains("1.yaml: 1 network policy, 1 warning\n") && wrong.ends_with("\n1\n"),
        "{wrong}"
    );
}

#[test]
fn a_diff_says_in_words_what_a_policy_permits_more_and_fails_if_it_does() {
    let lab = Lab::with_web();
    let policy = |name: &str, text: &str| lab.file(name, text).display().to_string();
    let before = policy(
        "before.yaml",
        "process: {run_as_user: agent}\nnetwork_policies: {git: {endpoints: [{host: git.test, \
         port: 443, protocol: rest, enforcement: enforce, access: read-only}], binaries: [{path: \
         /usr/bin/git}]}}\nfilesystem_policy: {read_write: [/work]}\n",
    );
    let after = policy(
        "after.yaml",
        "process: {run_as_user: agent}\nnetwork_policies: {git: {endpoints: [{host: git.test, \
         port: 443, protocol: rest, enforcement: enforce, access: read-write}], binaries: [{path: \
         /usr/bin/git}, {path: /usr/bin/curl}]}}\n",
    );
    let invalid = policy("invalid.yaml", "network_policy: {}\n");
    let diff = |one: &str, other: &str| {
        lab.shell(&format!(
            "{} diff {one} {other} 2>&1; echo $?",
            lab.binary()
        ))
    };
    assert_eq!(
        diff(&before, &after),
        "+ /usr/bin/git may send to git.test:443: POST **; PUT **; PATCH **\n+ /usr/bin/curl may \
         reach git.test:443: GET **; HEAD **; OPTIONS **; POST **; PUT **; PATCH **\n- the command \
         may write to /work\n3\n"
    );
    assert!(
        diff(&after, &before).starts_with("+ the command may write to /work\n- "),
        "{}",
        diff(&after, &before)
    );
    assert_eq!(diff(&before, &before), "0\n");
    assert!(diff(&before, &invalid).ends_with(
        "known here: version, filesystem_policy, landlock, process, network_policies, approvals\n1\n"
    ));
    assert!(diff(&before, "/nowhere.yaml").contains("No such file"));
}

#[test]
fn a_policy_that_asks_a_person_says_so_also_of_names_that_it_does_not_know() {
    let lab = Lab::with_web();
    let known =
        super::policy("{o: {endpoints: [{host: o.test, port: 1}], binaries: [{path: /a}]}}");
    let explained = |policy: &str, words: &str| {
        let file = lab.file("policy.yaml", policy);
        let (binary, file) = (lab.binary(), file.display());
        lab.shell(&format!(
            "{binary} explain {file} --binary /a {words} --port 5432; echo $?"
        ))
    };
    let asking = format!("approvals: {{hold: 60s}}\n{known}");
    let asked =
        "the policy has `approvals`: it waits for a person's answer if a line could permit it";
    let no_address = "the policy does not know the name, so it has no address inside";
    for words in ["--host new.test", "--host new.test --door name"] {
        let said = explained(&asking, words);
        assert!(said.contains(": endpoint_not_in_policy\n"), "{said}");
        assert!(said.ends_with(&format!("  {asked}\n1\n")), "{said}");
    }
    let said = explained(&asking, "--host new --door name");
    assert!(said.ends_with(&format!("{no_address}\n1\n")), "{said}");
    assert!(!explained(&known, "--host new.test").contains("answer"));
    let said = explained(&known, "--host new.test --door name");
    assert!(
        said.ends_with(&format!("{no_address}; with --ask it would have one\n1\n")),
        "{said}"
    );
}

#[test]
fn a_recorded_log_is_judged_by_another_policy() {
    let lab = Lab::with_web();
    let _web = lab.http("10.99.0.1:8080");
    let endpoint =
        |more: &str| format!("{{host: web.test, port: 8080, allowed_ips: [10.99.0.1]{more}}}");
    let policy = |network: &str| {
        super::policy(&format!(
            "{{web: {{endpoints: [{network}], binaries: [{{path: /usr/bin/curl}}]}}}}"
        ))
    };
    let before = policy(&endpoint(""));
    let run = lab.sandbox(&before).args(&["--log-format", "json"]).sh(
        "ask() { curl -s -o /dev/null $*; }; ask -p http://web.test:8080/a; ask -p \
             http://web.test:8080/a; ask -p -X POST http://web.test:8080/b; ask -p \
             http://other.test:80/c; true",
    );
    assert_eq!(run.code(), 0, "{run:?}");
    let recorded = lab.shell(&format!(
        "cat {}",
        lab.logs().replace("openshell.*", "openshell-ocsf.*")
    ));
    let log = lab.file("run.log", &recorded).display().to_string();
    let read_only = ", protocol: rest, enforcement: enforce, access: read-only";
    let other = ", {host: other.test, port: 80}";
    let replayed = |name: &str, text: &str, log: &str| {
        let file = lab.file(name, text).display().to_string();
        lab.shell(&format!(
            "{} check {file} --replay {log} 2>&1; echo $?",
            lab.binary()
        ))
    };
    let same = replayed("same.yaml", &before, &log);
    assert!(
        same.contains(" decisions, 0 changes\n") && same.ends_with("\n0\n"),
        "{same}"
    );
    let changed = replayed(
        "after.yaml",
        &policy(&format!("{}{other}", endpoint(read_only))),
        &log,
    );
    assert!(
        changed.contains(
            "- /usr/bin/curl -> POST web.test:8080/b: refused now, request_not_in_rules (1 x)\n"
        ),
        "{changed}"
    );
    assert!(
        changed.contains("+ /usr/bin/curl -> other.test:80: permitted now (1 x)\n"),
        "{changed}"
    );
    assert!(
        changed.contains(" decisions, 2 changes\n") && changed.ends_with("\n3\n"),
        "{changed}"
    );
    // A log that was cut.
    let cut = lab
        .file(
            "cut.log",
            &recorded[..recorded.rfind("other.test").unwrap()],
        )
        .display()
        .to_string();
    let changed = replayed(
        "after.yaml",
        &policy(&format!("{}{other}", endpoint(read_only))),
        &cut,
    );
    assert!(
        changed.contains("refused now") && changed.contains("1 line is not JSON"),
        "{changed}"
    );
    let none = lab
        .file("none.log", "2026-11-25 no JSON\n")
        .display()
        .to_string();
    assert!(
        replayed("same.yaml", &before, &none).contains("record one with --log-format json\n1\n")
    );
}
