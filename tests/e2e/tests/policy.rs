//! Invalid input: an error that names its subject, place and remedy; the command never runs.

use lab::host::Tier;
use lab::{Finished, Lab, Sandbox, only_as_root};

/// A command that leaves a file if it runs.
const COMMAND: [&str; 3] = ["sh", "-c", "echo ran"];

#[track_caller]
fn refused(finished: &Finished, texts: &[&str]) {
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert_eq!(finished.stdout, "", "the command ran");
    for text in texts {
        assert!(
            finished.stderr.contains(text),
            "no {text:?} in {}",
            finished.stderr
        );
    }
    assert!(
        finished.stderr.lines().count() <= 20,
        "more than a screen: {}",
        finished.stderr
    );
}

// Conformance: POL-01.
#[test]
fn no_policy_names_the_ways_to_give_one() {
    let lab = Lab::with_web();
    refused(
        &Sandbox::bare(&lab).run(&COMMAND),
        &[
            "a sandbox policy is required",
            "--policy-data",
            "OPENSHELL_POLICY_DATA",
        ],
    );
}

// Conformance: POL-02, POL-03.
#[test]
fn a_policy_comes_by_flag_or_by_variable() {
    let lab = Lab::with_web();
    let data = lab.file("data.yaml", super::policy("{}"));
    let rules = lab.file(
        "rules.rego",
        include_str!("../../../data/sandbox-policy.rego"),
    );
    let data = data.to_str().unwrap();
    let rules = rules.to_str().unwrap();
    let by_flag = Sandbox::bare(&lab)
        .args(&["--policy-rules", rules, "--policy-data", data])
        .run(&COMMAND);
    assert_eq!(by_flag.ok(), "ran");
    let by_variable = Sandbox::bare(&lab)
        .env("OPENSHELL_POLICY_RULES", rules)
        .env("OPENSHELL_POLICY_DATA", data);
    assert_eq!(by_variable.run(&COMMAND).ok(), "ran");
}

// Conformance: POL-04, POL-05, POL-06.
#[test]
fn a_file_that_cannot_be_read_is_named() {
    let lab = Lab::with_web();
    let data = lab.file("data.yaml", super::policy("{}"));
    let broken = lab.file("broken.yaml", "a: [\n");
    let missing = Sandbox::bare(&lab)
        .args(&["--policy-data", "/nowhere/x.yaml"])
        .run(&COMMAND);
    refused(&missing, &["failed to read YAML data from /nowhere/x.yaml"]);
    let broken = Sandbox::bare(&lab)
        .args(&["--policy-data", broken.to_str().unwrap()])
        .run(&COMMAND);
    refused(
        &broken,
        &["failed to parse YAML data", "broken.yaml", "line 1"],
    );
    let no_rules = Sandbox::bare(&lab).args(&[
        "--policy-data",
        data.to_str().unwrap(),
        "--policy-rules",
        "/nowhere/x",
    ]);
    refused(
        &no_rules.run(&COMMAND),
        &["failed to read policy rules from /nowhere/x"],
    );
    let device = Sandbox::bare(&lab)
        .args(&["--policy-data", "/dev/zero"])
        .run(&COMMAND);
    refused(
        &device,
        &["failed to read YAML data from /dev/zero", "it is a device"],
    );
    let large = lab.file("large.yaml", "#".repeat(4 * 1024 * 1024 + 1));
    let large = Sandbox::bare(&lab)
        .args(&["--policy-data", large.to_str().unwrap()])
        .run(&COMMAND);
    refused(
        &large,
        &["failed to read YAML data from ", "more than 4 MiB"],
    );
    let rules_alone = Sandbox::bare(&lab)
        .args(&["--policy-rules", data.to_str().unwrap()])
        .run(&COMMAND);
    refused(&rules_alone, &["--policy-rules needs --policy-data"]);
}

// Conformance: POL-07, POL-24.
#[test]
fn every_violation_is_named_with_its_line() {
    let lab = Lab::with_web();
    let policy = "proces: {}\nnetwork_policies:\n  web:\n    endpoints:\n      - {host: a.test, \
                  port: 1, protocol: rest}\n";
    let finished = lab.sandbox(policy).run(&COMMAND);
    refused(
        &finished,
        &[
            "L7 policy validation failed",
            "line 1: proces: unknown key",
            "line 5: network_policies.web.endpoints[0]",
        ],
    );
}

// Conformance: PRV-02, PRV-04.
#[test]
fn a_user_that_is_missing_says_how_to_make_it() {
    only_as_root!("another user than the caller takes capabilities");
    let lab = Lab::with_web();
    refused(
        &lab.sandbox("process: {run_as_user: not-here}")
            .run(&COMMAND),
        &["Sandbox user not found", "useradd"],
    );
    refused(
        &lab.sandbox("process: {run_as_user: root}").run(&COMMAND),
        &["line 1: process.run_as_user", "never runs as root"],
    );
}

// Conformance: FS-11.
#[test]
fn a_path_that_goes_through_a_symlink_is_refused_with_the_one_to_write() {
    let lab = Lab::with_web();
    let folder = lab.folder("links");
    std::os::unix::fs::symlink("/etc", folder.join("link")).unwrap();
    let link = format!(
        "{}filesystem_policy: {{read_write: [{}/link]}}\n",
        super::policy("{}"),
        folder.display()
    );
    refused(
        &lab.sandbox(&link).run(&COMMAND),
        &["goes through a symlink", "write /etc"],
    );
}

#[test]
fn usage_errors_end_with_1_and_help_with_0() {
    let lab = Lab::with_web();
    refused(
        &Sandbox::bare(&lab).args(&["--no-such-flag"]).run(&COMMAND),
        &["--no-such-flag"],
    );
    refused(
        &Sandbox::bare(&lab)
            .args(&["--proxy-port", "0"])
            .run(&COMMAND),
        &["--proxy-port"],
    );
    refused(
        &Sandbox::bare(&lab)
            .args(&["--timeout", "99999999999"])
            .run(&COMMAND),
        &["--timeout"],
    );
    refused(
        &Sandbox::bare(&lab)
            .args(&["--log-level", "loud", "--policy-data", "/x"])
            .run(&COMMAND),
        &["loud is not one of"],
    );
    let help = Sandbox::bare(&lab).args(&["--help"]).run(&COMMAND);
    assert!(help.ok().contains("--policy-data"));
    assert!(
        Sandbox::bare(&lab)
            .args(&["--version"])
            .run(&COMMAND)
            .ok()
            .starts_with("openshell-sandbox 0.")
    );
}

#[test]
fn without_a_capability_another_user_is_refused_with_the_ways_out() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", "process: {run_as_user: \"61190\"}\n");
    let run = |prefix: &str| {
        lab.shell(&format!(
            "{prefix} {} --policy-data {} -- echo ran; echo $?",
            lab.binary(),
            policy.display()
        ))
    };
    if lab::host::tier() == Tier::Rootless {
        let printed = run("");
        assert!(
            printed.contains("CAP_SETUID") && printed.ends_with("1\n"),
            "{printed}"
        );
        assert!(
            printed.contains("leave `process` out") && printed.contains("run as root"),
            "{printed}"
        );
        return;
    }
    for (capability, named) in [
        ("net_admin", "CAP_NET_ADMIN"),
        ("setuid", "CAP_SETUID"),
        ("setpcap", "CAP_SETPCAP"),
        ("sys_ptrace", "CAP_SYS_PTRACE"),
    ] {
        let printed = run(&format!(
            "setpriv --bounding-set -{capability} --inh-caps -{capability}"
        ));
        let line = format!(
            "process: commands cannot become user 61190, because this run is user 0 in group 0 \
             and lacks {named};"
        );
        assert!(
            printed.contains(&line) && printed.ends_with("1\n"),
            "{capability}: {printed}"
        );
    }
}

#[test]
fn every_example_runs_on_a_plain_debian() {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    // The example of an image writes to a volume.
    let made = lab.shell(&format!(
        "chmod 777 {}; mount -t tmpfs lab /var/lib && mkdir -m 777 /var/lib/service",
        work.display()
    ));
    assert_eq!(made, "");
    for example in super::examples::names() {
        let finished = lab
            .sandbox(&super::examples::Example::read(&lab, &example).text)
            .current_dir(work.to_str().unwrap())
            .sh("id -u; touch /etc/x || echo refused");
        let user = if lab::host::tier() == Tier::Root {
            65534
        } else {
            lab::host::UID
        };
        assert_eq!(finished.ok(), format!("{user}\nrefused"), "{example}");
        assert!(
            !finished.stderr.contains("OCSF"),
            "{example} warns: {}",
            finished.stderr
        );
    }
}

/// Returns the messages of `check` for `policy` on `lab`, with its exit code.
fn check(lab: &Lab, flags: &str, policy: &str) -> String {
    let file = lab.file("checked.yaml", policy);
    lab.shell(&format!(
        "{} check {flags} {}; echo $?",
        lab.binary(),
        file.display()
    ))
}

#[test]
fn what_is_not_there_and_what_refuses_nothing_is_named_by_check() {
    let lab = Lab::with_web();
    let files =
        "filesystem_policy: {read_only: [/no/such, /app], read_write: [/no/place, /sandbox]}";
    let found = check(
        &lab,
        "",
        &format!("process: {{run_as_user: nobody-of-that-name}}\n{files}\n"),
    );
    let missing = match lab::host::tier() {
        Tier::Root => "process: Sandbox user not found: `nobody-of-that-name`",
        Tier::Rootless => "process: commands cannot become user nobody-of-that-name",
    };
    assert!(found.contains(missing), "{found}");
    assert!(
        found.contains("read_only: /no/such does not exist"),
        "{found}"
    );
    assert!(
        found.contains("read_write: /no/place does not exist; a start creates it"),
        "{found}"
    );
    assert!(
        found.ends_with("0 network policies, 3 warnings\n0\n"),
        "{found}"
    );
    let audited = "{a: {endpoints: [{host: x.test, port: 1, protocol: rest, access: read-only}], \
                   binaries: [{path: /usr/bin/curl}]}}";
    let found = check(&lab, "--deny-warnings", &super::policy(audited));
    assert!(
        found.contains(
            "endpoints[0]: `enforcement` is left out, so the rules refuse nothing at x.test:1"
        ),
        "{found}"
    );
    assert!(
        found.ends_with("1 network policy, 1 warning\n1\n"),
        "{found}"
    );
    let started = lab.sandbox(&super::policy(audited)).sh("true");
    assert!(
        started
            .stderr
            .contains("the rules refuse nothing at x.test:1"),
        "{started:?}"
    );
}

#[test]
fn a_read_only_path_that_is_writable_too_is_said_and_an_error_under_hard_requirement() {
    let lab = Lab::with_web();
    let work = lab.folder("work");
    let work = work.display();
    let listed = format!(
        "{}filesystem_policy:\n  read_only: [{work}]\n  read_write: [{work}]\n",
        super::policy("{}")
    );
    let alone = listed.replace(&format!("  read_write: [{work}]\n"), "");
    let workdir = ["--workdir", &work.to_string()].map(str::to_owned);
    let workdir: Vec<_> = workdir.iter().map(String::as_str).collect();
    for (policy, flags, expected) in [
        (
            &listed,
            &[][..],
            format!(
                "line 4: filesystem_policy.read_only[0]: `{work}` is not read-only: `read_write` \
                 lists `{work}` too (line 5); list it once"
            ),
        ),
        (
            &alone,
            &workdir[..],
            format!("`{work}` is not read-only: --workdir {work} makes it writable; set"),
        ),
    ] {
        let warned = lab
            .sandbox(policy)
            .args(flags)
            .sh(&format!("touch {work}/made; echo ran"));
        assert!(
            warned.ok() == "ran" && warned.stderr.contains(&expected),
            "{warned:?}"
        );
        let hard = format!("{policy}landlock: {{compatibility: hard_requirement}}\n");
        let refused = lab.sandbox(&hard).args(flags).sh("echo ran");
        assert!(
            refused.code() == 1 && refused.stderr.contains(&expected),
            "{refused:?}"
        );
    }
}

#[test]
fn the_examples_and_a_policy_for_ordinary_programs_have_no_warnings() {
    let lab = Lab::with_web();
    let git = lab
        .shell("readlink -f $(git --exec-path)/git-remote-https")
        .trim()
        .to_owned();
    let policy = super::policy(&format!(
        "\n  github: {{endpoints: [{{host: github.test, port: 443}}], binaries: [{{path: {git}}}, \
         {{path: /usr/bin/curl}}]}}\n  npm: {{endpoints: [{{host: registry.test, port: 443, \
         protocol: rest, enforcement: enforce, access: read-only}}], binaries: [{{path: \
         /usr/bin/node}}, {{path: {}}}, {{path: '/usr/local/lib/**'}}]}}",
        super::python()
    ));
    let found = check(&lab, "--deny-warnings", &policy);
    assert!(
        found.ends_with("2 network policies, 0 warnings\n0\n"),
        "{found}"
    );
    assert_eq!(lab.sandbox(&policy).sh("true").stderr, "");
    for name in super::examples::names() {
        drop(super::examples::Example::read(&lab, &name));
    }
}

#[test]
fn what_cannot_be_printed_is_an_error() {
    let lab = Lab::with_web();
    let binary = lab.binary();
    for words in [
        "--help",
        "--version",
        "--allow a.test --print-policy -- true",
        "presets",
        "check --help",
    ] {
        let printed = lab.shell(&format!(
            "cd /usr; {binary} {words} 2>&1 >/dev/full; echo $?"
        ));
        let expected = "openshell-sandbox: standard output cannot be written: No space left on \
                        device (os error 28)\n1\n";
        assert_eq!(printed, expected, "{words}");
    }
}
