//! The tests that run in one tier alone.

/// Most tests that may run in one tier: a claim that both can keep is tested in both.
const MOST: usize = 24;

#[test]
fn each_test_of_one_tier_says_why() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        // Folders hold the programs of tests.
        let Ok(text) = std::fs::read_to_string(file.unwrap().path()) else {
            continue;
        };
        let mut test = "";
        for line in text.lines() {
            test = line
                .strip_prefix("fn ")
                .and_then(|rest| rest.split('(').next())
                .unwrap_or(test);
            for tier in ["only_as_root", "only_rootless"] {
                let reason = line
                    .trim()
                    .strip_prefix(&format!("{tier}!(\""))
                    .and_then(|rest| rest.strip_suffix("\");"));
                found.extend(reason.map(|reason| format!("{tier}: {test}: {reason}")));
            }
        }
    }
    found.sort();
    println!("{}", found.join("\n"));
    assert!((1..=MOST).contains(&found.len()), "{}", found.join("\n"));
    assert!(
        found.iter().all(|line| line.split(' ').count() >= 6),
        "a reason is a sentence: {}",
        found.join("\n")
    );
}
