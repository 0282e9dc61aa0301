//! The examples of each `--help`, run as they stand.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use lab::{Lab, Sandbox};

use crate::gateway::Host;
use crate::pages::{ADDRESS, SERVER, trusted};

/// What an example ends with, and a text that it prints; in the order of the helps.
const EXPECTED: &[(&str, i32, &str)] = &[
    (
        "--allow example.com -- curl https://example.com",
        0,
        "hello",
    ),
    ("--preset claude-code -- claude", 0, ""),
    (
        "--policy-data data/examples/first.yaml -- sh -c 'id; touch /etc/x'",
        1,
        "touch: cannot touch '/etc/x': Permission denied",
    ),
    ("init", 1, "this is not a terminal"),
    (
        "init --agent claude-code --preset git-read --hide '**/.env'",
        0,
        "policy.yaml: 2 network policies",
    ),
    (
        "init --agent none --allow api.example.com=read-only build.yaml",
        0,
        "build.yaml: 1 network policy",
    ),
    (
        "check --deny-warnings policy.yaml",
        0,
        "policy.yaml: 1 network policy, 0 warnings",
    ),
    ("check --replay yesterday.log policy.yaml", 0, "0 warnings"),
    (
        "explain policy.yaml --binary /usr/bin/curl --host example.com --port 443",
        0,
        "allowed: ",
    ),
    (
        "diff before.yaml after.yaml",
        3,
        "+ /usr/bin/curl may reach",
    ),
    ("doctor", 0, "It would start."),
    ("doctor --json policy.yaml", 0, "{"),
    ("exec --tty web -- bash", 7, ""),
    ("exec web -- sh -c 'id; pwd'", 0, "uid="),
    ("ps --json", 0, "\"web\""),
    ("cp web:results .", 0, ""),
    ("cp data.csv web:data/", 0, ""),
    ("ca show /var/lib/openshell/ca", 0, "BEGIN CERTIFICATE"),
    ("ca rotate /var/lib/openshell/ca", 0, ""),
    (
        "gateway check --sandbox-id web --openshell-endpoint http://127.0.0.1:8080",
        0,
        "",
    ),
    ("presets", 0, "claude-code"),
    (
        "copy-self /shared/openshell-sandbox",
        0,
        "openshell-sandbox",
    ),
];

/// An example that another test runs with the registries.
const MAKES: &str = "presets make python node";

/// Returns the examples of a help.
fn examples(help: &str) -> impl Iterator<Item = &str> {
    let (_, examples) = help.split_once("\nExample").unwrap();
    let lines = examples.lines().filter(|line| line.starts_with("  "));
    lines.map(|line| line.trim().strip_prefix("openshell-sandbox ").unwrap())
}

const POLICY: &str = "network_policies: {web: {endpoints: [{host: example.com, port: 443}], \
                      binaries: [{path: /usr/bin/curl}]}}\n";

#[test]
fn each_example_of_a_help_does_what_it_says() {
    let lab = Lab::new(&[(ADDRESS, "example.com")]);
    let certificates = trusted(&lab, &["example.com"]);
    let certificates = certificates.to_str().unwrap();
    let _server = lab.program(&["/usr/bin/python3", "-c", SERVER, ADDRESS, certificates]);
    let gateway = Host::of_today(&lab);
    let [work, bin, shared] = ["work", "bin", "shared"].map(|name| lab.folder(name));
    let program = bin.join("openshell-sandbox");
    std::os::unix::fs::symlink(lab.program_path(), program).unwrap();
    for (name, content) in [
        ("policy.yaml", POLICY),
        ("before.yaml", "network_policies: {}\n"),
        ("after.yaml", POLICY),
        ("data.csv", "1,2\n"),
        ("input", "exit 7\n"),
        (
            "data/examples/first.yaml",
            include_str!("../../../data/examples/first.yaml"),
        ),
        ("results/of", "it"),
        ("data/of", "it"),
        ("new/of", "it"),
    ] {
        let file = work.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    }
    let [ca, home] = ["ca", "home"].map(|name| lab.folder(name));
    let uid = lab::host::UID;
    let caller = lab::host::caller();
    let folders = [&work, &shared, &home].map(|folder| folder.display().to_string());
    let owned = lab.shell(&format!(
        "chown -R {uid}:{uid} {}; chown {caller} {ca}; chmod 700 {ca}; chmod a+x {}",
        folders.join(" "),
        bin.display(),
        ca = ca.display()
    ));
    assert_eq!(owned, "");
    let start_in = |folder: &Path, command: &str| {
        format!(
            "cd {} && export SUDO_UID={uid} SUDO_GID={uid}; {} env HOME={} PATH={}:/usr/bin:/bin \
             timeout --kill-after 1 20 {command}",
            folder.display(),
            lab.as_caller(),
            home.display(),
            bin.display(),
        )
    };
    let start = |command: &str| start_in(&work, command);
    let before = [
        "--policy-data policy.yaml --log-format json --log-dir . -- curl -sS https://example.com",
        "--policy-data policy.yaml --ca-dir ../ca -- true",
    ];
    for line in before {
        lab.shell(&start(&format!("openshell-sandbox {line}")))
            .clear();
    }
    lab.shell(&format!(
        "cd {}; mv openshell-ocsf.*-*.log yesterday.log",
        work.display()
    ))
    .clear();
    let web = Sandbox::bare(&lab)
        .env("SUDO_UID", &uid.to_string())
        .env("SUDO_GID", &uid.to_string())
        .current_dir(work.to_str().unwrap())
        .args(&["--name", "web", "--allow", "example.com"])
        .start(&["sleep", "1000"]);
    let listed = || lab.shell(&start("openshell-sandbox ps"));
    lab::wait_until(|| listed().contains("web"), listed);

    let helps = lab.shell(&start("openshell-sandbox --help"));
    let subcommands = EXPECTED
        .iter()
        .map(|(example, ..)| example.split(' ').next().unwrap());
    let subcommands: BTreeSet<_> = subcommands.filter(|word| !word.starts_with('-')).collect();
    let helps = std::iter::once(helps).chain(
        subcommands
            .iter()
            .map(|name| lab.shell(&start(&format!("openshell-sandbox {name} --help")))),
    );
    let mut wrong = String::new();
    let mut seen = BTreeSet::from([MAKES.to_owned()]);
    for help in helps {
        for example in examples(&help).filter(|example| *example != MAKES) {
            let (_, code, text) = EXPECTED
                .iter()
                .find(|(known, ..)| *known == example)
                .unwrap_or_else(|| panic!("nothing is expected of `{example}`"));
            seen.insert(example.to_owned());
            // What a reader has elsewhere, or by another name.
            let command = example
                .replace("-- claude", "-- true")
                .replace("/var/lib/openshell/ca", &ca.display().to_string())
                .replace("/shared", &shared.display().to_string())
                .replace("127.0.0.1:8080", &gateway.address.to_string());
            // A project without a policy.
            let folder = if example.starts_with("init") {
                work.join("new")
            } else {
                work.clone()
            };
            let line = start_in(
                &folder,
                &format!(
                    "openshell-sandbox {command} < {}; echo \"code $?\"",
                    work.join("input").display()
                ),
            );
            let printed = lab.shell(&line);
            if !printed.contains(text) || !printed.ends_with(&format!("code {code}\n")) {
                write!(
                    wrong,
                    "{example}: not {code} and `{text}`, but:\n{printed}\n"
                )
                .unwrap();
            }
        }
    }
    drop(web);
    assert!(wrong.is_empty(), "{wrong}");
    let expected: BTreeSet<_> = EXPECTED
        .iter()
        .map(|(example, ..)| (*example).to_owned())
        .collect();
    seen.remove(MAKES);
    assert_eq!(seen, expected);
}
