//! Bad input: an error that names the thing, its place and the remedy; the command never runs.

use lab::{Finished, Lab, Sandbox};

/// Whatever the sandbox is given, the command leaves this behind if it runs.
const COMMAND: [&str; 3] = ["sh", "-c", "echo ran"];

#[track_caller]
fn refused(finished: &Finished, texts: &[&str]) {
    assert_eq!(finished.code(), 1, "{finished:?}");
    assert_eq!(finished.stdout, "", "the command ran");
    for text in texts {
        assert!(finished.stderr.contains(text), "no {text:?} in {}", finished.stderr);
    }
    assert!(finished.stderr.lines().count() <= 20, "more than a screen: {}", finished.stderr);
}

#[test]
fn pol_01_no_policy_names_the_ways_to_give_one() {
    let lab = Lab::with_web();
    refused(
        &Sandbox::bare(&lab).run(&COMMAND),
        &["a sandbox policy is required", "--policy-data", "OPENSHELL_POLICY_DATA"],
    );
}

#[test]
fn pol_02_and_03_a_policy_comes_by_flag_or_by_variable() {
    let lab = Lab::with_web();
    let data = lab.file("data.yaml", crate::policy("{}"));
    let rules = lab.file("rules.rego", include_str!("../../../data/sandbox-policy.rego"));
    let (data, rules) = (data.to_str().unwrap(), rules.to_str().unwrap());
    let by_flag = Sandbox::bare(&lab).args(&["--policy-rules", rules, "--policy-data", data]).run(&COMMAND);
    assert_eq!(by_flag.ok(), "ran");
    let by_variable = Sandbox::bare(&lab).env("OPENSHELL_POLICY_RULES", rules).env("OPENSHELL_POLICY_DATA", data);
    assert_eq!(by_variable.run(&COMMAND).ok(), "ran");
}

#[test]
fn pol_04_05_06_a_file_that_cannot_be_read_is_named() {
    let lab = Lab::with_web();
    let data = lab.file("data.yaml", crate::policy("{}"));
    let broken = lab.file("broken.yaml", "a: [\n");
    let missing = Sandbox::bare(&lab).args(&["--policy-data", "/nowhere/x.yaml"]).run(&COMMAND);
    refused(&missing, &["failed to read YAML data from /nowhere/x.yaml"]);
    let broken = Sandbox::bare(&lab).args(&["--policy-data", broken.to_str().unwrap()]).run(&COMMAND);
    refused(&broken, &["failed to parse YAML data", "broken.yaml", "line 1"]);
    let no_rules = Sandbox::bare(&lab).args(&["--policy-data", data.to_str().unwrap(), "--policy-rules", "/nowhere/x"]);
    refused(&no_rules.run(&COMMAND), &["failed to read policy rules from /nowhere/x"]);
    let endless = Sandbox::bare(&lab).args(&["--policy-data", "/dev/zero"]).run(&COMMAND);
    refused(&endless, &["failed to read YAML data from /dev/zero", "more than 4 MiB"]);
    let rules_alone = Sandbox::bare(&lab).args(&["--policy-rules", data.to_str().unwrap()]).run(&COMMAND);
    refused(&rules_alone, &["--policy-rules needs --policy-data"]);
}

#[test]
fn pol_07_and_24_every_violation_is_named_with_its_line() {
    let lab = Lab::with_web();
    let policy =
        "proces: {}\nnetwork_policies:\n  web:\n    endpoints:\n      - {host: a.test, port: 1, protocol: rest}\n";
    let finished = lab.sandbox(policy).run(&COMMAND);
    refused(
        &finished,
        &["L7 policy validation failed", "line 1: proces: unknown key", "line 5: network_policies.web.endpoints[0]"],
    );
}

#[test]
fn prv_02_04_a_user_that_is_missing_says_how_to_make_it() {
    let lab = Lab::with_web();
    refused(&lab.sandbox("process: {run_as_user: not-here}").run(&COMMAND), &["Sandbox user not found", "useradd"]);
    refused(
        &lab.sandbox("process: {run_as_user: root}").run(&COMMAND),
        &["line 1: process.run_as_user", "never runs as root"],
    );
}

#[test]
fn fs_11_a_path_that_goes_through_a_symlink_is_refused_with_the_one_to_write() {
    let lab = Lab::with_web();
    let folder = lab.folder("links");
    std::os::unix::fs::symlink("/etc", folder.join("link")).unwrap();
    let link = format!("{}filesystem_policy: {{read_write: [{}/link]}}\n", crate::policy("{}"), folder.display());
    refused(&lab.sandbox(&link).run(&COMMAND), &["goes through a symlink", "write /etc"]);
}

#[test]
fn usage_errors_end_with_1_and_help_with_0() {
    let lab = Lab::with_web();
    refused(&Sandbox::bare(&lab).args(&["--no-such-flag"]).run(&COMMAND), &["--no-such-flag"]);
    refused(&Sandbox::bare(&lab).args(&["--proxy-port", "0"]).run(&COMMAND), &["--proxy-port"]);
    refused(&Sandbox::bare(&lab).args(&["--timeout", "99999999999"]).run(&COMMAND), &["--timeout"]);
    refused(
        &Sandbox::bare(&lab).args(&["--log-level", "loud", "--policy-data", "/x"]).run(&COMMAND),
        &["loud is not one of"],
    );
    let help = Sandbox::bare(&lab).args(&["--help"]).run(&COMMAND);
    assert!(help.ok().contains("--policy-data"));
    assert!(Sandbox::bare(&lab).args(&["--version"]).run(&COMMAND).ok().starts_with("openshell-sandbox 0."));
}

#[test]
fn without_privilege_the_start_says_what_it_needs() {
    let lab = Lab::with_web();
    let policy = lab.file("policy.yaml", crate::policy("{}"));
    let binary = lab::sandbox::binary().display();
    let run = |drop: &str| {
        lab.shell(&format!("setpriv {drop} {binary} --policy-data {} -- echo ran; echo $?", policy.display()))
    };
    let unprivileged = run("--reuid 61184 --clear-groups --no-new-privs");
    assert!(unprivileged.contains("CAP_SYS_ADMIN") && unprivileged.ends_with("1\n"), "{unprivileged}");
    for (capability, named) in [
        ("net_admin", "CAP_NET_ADMIN"),
        ("setuid", "CAP_SETUID"),
        ("setpcap", "CAP_SETPCAP"),
        ("sys_ptrace", "CAP_SYS_PTRACE"),
    ] {
        let printed = run(&format!("--bounding-set -{capability} --inh-caps -{capability}"));
        assert!(
            printed.contains(named) && printed.ends_with("1\n") && !printed.contains("ran\n"),
            "{capability}: {printed}"
        );
    }
}

#[test]
fn every_example_runs_on_a_plain_debian() {
    let lab = Lab::with_web();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/examples");
    let examples: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(examples.len() >= 2, "{examples:?}");
    for example in examples {
        let finished =
            lab.sandbox(&std::fs::read_to_string(&example).unwrap()).sh("id -un; touch /etc/x || echo refused");
        assert_eq!(finished.ok(), "nobody\nrefused", "{}", example.display());
        assert!(!finished.stderr.contains("OCSF"), "{} warns: {}", example.display(), finished.stderr);
    }
}
