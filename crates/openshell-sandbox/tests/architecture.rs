//! Facts about the architecture that a program can check.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each crate, which of ours it may use, and what its sources never mention.
const CRATES: &[(&str, &[&str], &[&str])] = &[
    (
        "openshell-events",
        &[],
        &[
            "std::fs",
            "tokio",
            "std::time",
            "TcpStream",
            "prost",
            "async fn",
            "serde",
        ],
    ),
    (
        "openshell-policy",
        &["openshell-events"],
        &[
            "std::fs",
            "tokio",
            "std::time",
            "TcpStream",
            "prost",
            "async fn",
        ],
    ),
    (
        "openshell-supervisor",
        &["openshell-events", "openshell-policy"],
        &["hyper", "rustls", "prost", "tokio", "regorus"],
    ),
    (
        "openshell-proxy",
        &["openshell-events", "openshell-policy"],
        &["clone_process", "setns", "unshare", "landlock::", "prost"],
    ),
    (
        "openshell-gateway",
        &["openshell-events", "openshell-policy"],
        &["std::fs", "std::env", "openshell_proxy", "rustix"],
    ),
    (
        "openshell-access",
        &[
            "openshell-events",
            "openshell-policy",
            "openshell-supervisor",
        ],
        &[
            "clone_process",
            "setns",
            "unshare",
            "landlock::",
            "prost",
            "std::env",
            "std::process",
            "openshell_proxy",
        ],
    ),
    (
        "openshell-telemetry",
        &["openshell-events", "openshell-policy"],
        &[
            "std::env",
            "process::Command",
            "openshell_proxy",
            "openshell_gateway::",
            "openshell_supervisor",
            "clap",
        ],
    ),
    (
        "openshell-sources",
        &[
            "openshell-events",
            "openshell-gateway",
            "openshell-policy",
            "openshell-supervisor",
            "openshell-telemetry",
        ],
        &["std::process", "openshell_proxy", "clap", "regorus"],
    ),
    (
        "openshell-sandbox",
        &[
            "openshell-events",
            "openshell-gateway",
            "openshell-policy",
            "openshell-proxy",
            "openshell-access",
            "openshell-sources",
            "openshell-supervisor",
            "openshell-telemetry",
        ],
        &["libc::", "hyper::", "regorus", "tonic::", "prost::"],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The text of every Rust source.
fn all_sources() -> String {
    ["crates", "tests"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder)))
        .map(|(_, text)| text)
        .collect()
}

/// Every Rust source beneath `folder`.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = read(&path);
            found.push((path, text));
        }
    }
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs")
}

/// The code of a source: without comments and without its own tests.
fn code(text: &str) -> String {
    let code = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn crates_use_only_those_that_the_architecture_allows() {
    let listed: BTreeSet<_> = CRATES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let folders = std::fs::read_dir(root().join("crates")).unwrap();
    let present: BTreeSet<_> = folders
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(present, listed, "a crate without edges in this test");
    for (name, allowed, _) in CRATES {
        let manifest = read(&root().join("crates").join(name).join("Cargo.toml"));
        let dependencies = manifest
            .split("\n[dependencies]\n")
            .nth(1)
            .unwrap()
            .split("\n[dev-")
            .next()
            .unwrap();
        let ours = dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next());
        for used in ours.filter(|used| used.starts_with("openshell-")) {
            assert!(allowed.contains(&used), "{name} uses {used}");
        }
    }
}

#[test]
fn crates_never_contain_what_belongs_elsewhere() {
    for (name, _, foreign) in CRATES {
        for (path, text) in sources(&root().join("crates").join(name).join("src")) {
            let code = code(&text);
            for word in foreign.iter().filter(|_| !is_test(&path)) {
                assert!(!code.contains(word), "{} mentions {word}", path.display());
            }
        }
    }
}

#[test]
fn unsafe_is_in_the_sys_module_alone() {
    let sys = root().join("crates/openshell-supervisor/src/sys");
    // Every form that the keyword has in front of what it marks; written apart, so that this file
    // holds none.
    let forms =
        ["{", "fn", "impl", "extern", "trait"].map(|marked| format!("{} {marked}", "unsafe"));
    for (path, text) in ["crates", "tests"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder)))
    {
        let used = forms.iter().any(|form| code(&text).contains(form.as_str()));
        assert!(!used || path.starts_with(&sys), "{}", path.display());
    }
    let inside: String = sources(&sys)
        .into_iter()
        .map(|(_, text)| code(&text))
        .collect();
    assert!(
        forms.iter().any(|form| inside.contains(form.as_str())),
        "this test would find it"
    );
    for (name, ..) in CRATES
        .iter()
        .filter(|(name, ..)| *name != "openshell-supervisor")
    {
        let source = root().join("crates").join(name).join("src");
        let top = if source.join("lib.rs").exists() {
            "lib.rs"
        } else {
            "main.rs"
        };
        assert!(
            read(&source.join(top)).contains("#![forbid(unsafe_code)]"),
            "{name}"
        );
    }
}

#[test]
fn only_the_record_reports_decisions() {
    // What the fence refused was decided by the kernel, and is reported where it is heard; what
    // comes to a published port no policy decides on; names are looked up, and not
    // connected to; and a question to a person is no decision.
    for (path, text) in sources(&root().join("crates/openshell-proxy/src")) {
        let reports = code(&text).contains(".event(");
        assert_eq!(
            reports,
            [
                "record.rs",
                "reporter.rs",
                "finding.rs",
                "bypass.rs",
                "publish.rs",
                "dns/report.rs",
                "closing.rs"
            ]
            .iter()
            .any(|file| path.ends_with(file)),
            "{}",
            path.display()
        );
    }
}

#[test]
fn only_config_reads_the_environment() {
    for (path, text) in sources(&root().join("crates")) {
        let reads = ["env::var(", "env::var_os(", "env::vars"]
            .iter()
            .any(|call| code(&text).contains(call));
        assert!(
            !reads
                || path
                    .parent()
                    .is_some_and(|folder| folder.ends_with("config"))
                || is_test(&path),
            "{}",
            path.display()
        );
    }
}

#[test]
fn files_hold_one_concept_each() {
    for (path, text) in sources(&root().join("crates")) {
        let lines = code(&text).lines().count();
        assert!(
            lines <= 600 || is_test(&path),
            "{} has {lines} lines",
            path.display()
        );
    }
}

#[test]
fn no_test_is_left_out_and_no_code_left_open() {
    let words = ["ignore]", "todo!", "unimplemented!", "dbg!"]
        .map(|word| if word == "ignore]" { "#[ignore" } else { word });
    for (path, text) in ["crates", "tests"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder)))
    {
        for word in words.iter().filter(|_| !path.ends_with("architecture.rs")) {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}

#[test]
fn the_architecture_page_names_tests_that_exist() {
    let page = read(&root().join("docs/internals/architecture.md"));
    assert!(page.lines().count() <= 150);
    let all = all_sources();
    let invariants = page
        .split("## Invariants")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let named: Vec<_> = invariants.split("- **Invariant**").skip(1).collect();
    assert!(named.len() >= 8, "{named:?}");
    for line in named {
        let is_test = |text: &&str| all.contains(&format!("fn {text}()"));
        assert!(
            line.split('`').any(|text| is_test(&text)),
            "no test that exists: {line}"
        );
        let quoted = line
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|text| text.matches('_').count() > 2);
        for text in quoted {
            assert!(is_test(&text), "no such test: {text}");
        }
    }
}

#[test]
fn every_test_that_the_security_model_names_exists() {
    let all = all_sources();
    let page = read(&root().join("docs/security/model.md"));
    let quoted = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|text| text.matches('_').count() > 3 && !text.contains(' '));
    let tests: Vec<_> = quoted.collect();
    assert!(tests.len() > 30, "{tests:?}");
    for test in tests.iter() {
        assert!(
            all.contains(&format!("fn {test}()")),
            "no such test: {test}"
        )
    }
}
