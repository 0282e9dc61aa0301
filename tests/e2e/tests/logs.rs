//! Lines for people and for audit.

use lab::Lab;

use crate::policy;

#[test]
fn log_01_10_a_dated_file_that_only_root_may_read_and_no_other() {
    let lab = Lab::with_web();
    let finished = lab.sandbox(&policy("{}")).sh("cat /var/log/openshell.*.log");
    assert_eq!(finished.stdout, "", "the workload reads no log of ours");
    let day = lab.shell("date -u +%F").trim().to_owned();
    assert_eq!(lab.shell("stat -c '%n %a %u' /var/log/openshell*"), format!("/var/log/openshell.{day}.log 640 0\n"));
    for line in finished.log.lines() {
        let stamp = line.split(' ').next().unwrap();
        assert!(stamp.len() == 24 && stamp.starts_with(&day[..4]) && stamp.ends_with('Z'), "{line}");
    }
}

#[test]
fn log_02_without_a_file_the_sandbox_runs_and_says_so() {
    let lab = Lab::with_web();
    let finished = lab.sandbox(&policy("{}")).args(&["--log-dir", "/proc/nowhere"]).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    assert!(finished.stderr.contains("no log file: /proc/nowhere"), "{}", finished.stderr);
}

#[test]
fn a_log_that_others_may_write_is_not_used_and_holds_nobody_up() {
    for make in ["mkfifo", "touch"] {
        let lab = Lab::with_web();
        let folder = lab.folder("logs");
        let file = format!("{}/openshell.$(date -u +%F).log", folder.display());
        assert_eq!(lab.shell(&format!("{make} {file} && chown {0} {file}", lab::host::UID)), "");
        let finished = lab.sandbox(&policy("{}")).args(&["--log-dir", folder.to_str().unwrap()]).sh("echo ran");
        assert_eq!(finished.ok(), "ran");
        assert!(finished.stderr.contains("no log file"), "{make}: {}", finished.stderr);
    }
}

#[test]
fn log_12_standard_error_shows_what_it_is_asked_for_and_standard_output_nothing() {
    let lab = Lab::with_web();
    let ask = |arguments: &[&str], variable: &str| {
        lab.sandbox(&policy("{}")).args(arguments).env("OPENSHELL_LOG_LEVEL", variable).sh("echo ran")
    };
    let quiet = ask(&[], "");
    assert_eq!((quiet.ok(), quiet.stderr.as_str()), ("ran", ""));
    for shown in [ask(&["--log-level", "info"], ""), ask(&[], "info")] {
        assert_eq!(shown.ok(), "ran");
        assert!(shown.stderr.contains(" OCSF PROC:TERMINATE [INFO] sh(2) [exit:0]"), "{}", shown.stderr);
    }
    assert_eq!(ask(&["--log-level", "warn"], "info").stderr, "", "the flag wins");
}

#[test]
fn a_doubtful_policy_is_said_on_standard_error() {
    let lab = Lab::with_web();
    let doubtful = policy("{web: {endpoints: [{host: a.test, port: 1, protocol: rest, access: full}]}}");
    let finished = lab.sandbox(&doubtful).sh("echo ran");
    assert_eq!(finished.ok(), "ran");
    let expected = "L7 policy validation warning";
    assert!(finished.stderr.contains(expected) && finished.logged(expected).len() == 1, "{finished:?}");
}
