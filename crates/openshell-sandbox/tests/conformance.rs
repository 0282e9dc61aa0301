//! The rows of docs/internals/conformance.md and the tests that name them agree.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::collections::BTreeSet;
use std::path::Path;

/// Start of the comment above a test that lists its rows: ids, separated by commas, and a full
/// stop.
const COMMENT: &str = "// Conformance: ";

/// The page, parsed.
struct Catalogue {
    /// Each row's id and its tests, in the order of the page.
    rows: Vec<(String, Vec<String>)>,
    /// Ids of the rows that are not built yet.
    reserved: Vec<String>,
}

impl Catalogue {
    fn read() -> Self {
        let page = std::fs::read_to_string(root().join("docs/internals/conformance.md")).unwrap();
        let rows = page.lines().filter_map(row).collect();
        let reserved = page
            .lines()
            .filter_map(|line| line.strip_prefix("- ")?.split_once(':'));
        Self {
            rows,
            reserved: reserved.flat_map(|(ids, _)| expanded(ids)).collect(),
        }
    }

    fn ids(&self) -> impl Iterator<Item = &str> {
        self.rows
            .iter()
            .map(|(id, _)| id)
            .chain(&self.reserved)
            .map(String::as_str)
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}

/// The id and the tests of a table row; `None` for a table's head and for any other line.
fn row(line: &str) -> Option<(String, Vec<String>)> {
    let cells: Vec<_> = line
        .strip_prefix("| ")?
        .strip_suffix(" |")?
        .split(" | ")
        .collect();
    let [id, _, tests] = cells[..] else {
        panic!("not three cells: {line}")
    };
    (id != "id").then(|| {
        assert!(is_id(id), "{line}");
        (
            id.to_owned(),
            tests
                .split('`')
                .skip(1)
                .step_by(2)
                .map(str::to_owned)
                .collect(),
        )
    })
}

fn is_id(text: &str) -> bool {
    text.split_once('-').is_some_and(|(area, number)| {
        area.starts_with(|letter: char| letter.is_ascii_uppercase())
            && area
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
            && is_number(number)
    })
}

fn is_number(text: &str) -> bool {
    text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The ids of a list such as `AGG-01 to AGG-05, AGG-15`; none if `list` is anything else.
fn expanded(list: &str) -> Vec<String> {
    let ranges = list
        .split(", ")
        .map(|range| range.split_once(" to ").unwrap_or((range, range)));
    let ranges: Vec<_> = ranges
        .filter(|(first, last)| is_id(first) && is_id(last))
        .collect();
    let ids = ranges.into_iter().flat_map(|(first, last)| {
        let (area, first) = first.split_once('-').unwrap();
        let last = last.strip_prefix(area).unwrap().strip_prefix('-').unwrap();
        let numbers = first.parse::<u8>().unwrap()..=last.parse().unwrap();
        numbers.map(move |number| format!("{area}-{number:02}"))
    });
    ids.collect()
}

/// The text of every Rust source beneath `folder`.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(std::fs::read_to_string(&path).unwrap());
        }
    }
    found
}

fn all_sources() -> Vec<String> {
    ["crates", "tests"]
        .iter()
        .flat_map(|folder| sources(&root().join(folder)))
        .collect()
}

/// The name of the private function that `line` begins.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    matches!(before.trim(), "" | "async").then(|| after.split('(').next())?
}

/// Each id in a comment, with the test below it.
fn commented(sources: &[String]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for text in sources {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(ids) = line.trim_start().strip_prefix(COMMENT) else {
                continue;
            };
            let attributes = lines
                .clone()
                .take_while(|line| line.trim_start().starts_with("#["));
            let is_test = attributes
                .clone()
                .any(|attribute| attribute.contains("test"));
            let name = lines
                .clone()
                .nth(attributes.count())
                .and_then(function)
                .filter(|_| is_test);
            let name = name.unwrap_or_else(|| panic!("no test below: {line}"));
            let ids = ids
                .strip_suffix('.')
                .unwrap_or_else(|| panic!("no full stop: {line}"));
            found.extend(ids.split(", ").map(|id| (id.to_owned(), name.to_owned())));
        }
    }
    found
}

#[test]
fn rows_and_tests_name_each_other() {
    let rows = Catalogue::read().rows;
    let of_page = rows
        .iter()
        .flat_map(|(id, tests)| tests.iter().map(|test| (id.clone(), test.clone())));
    let of_page: BTreeSet<_> = of_page.collect();
    let of_tests: BTreeSet<_> = commented(&all_sources()).into_iter().collect();
    let page_alone: Vec<_> = of_page.difference(&of_tests).collect();
    let tests_alone: Vec<_> = of_tests.difference(&of_page).collect();
    assert!(
        page_alone.is_empty(),
        "rows whose test does not exist or does not name them: {page_alone:?}"
    );
    assert!(
        tests_alone.is_empty(),
        "ids of tests that no row names: {tests_alone:?}"
    );
    for (id, tests) in rows {
        assert!(!tests.is_empty(), "{id} has no test");
    }
}

#[test]
fn an_id_stands_once_in_the_catalogue() {
    let catalogue = Catalogue::read();
    let mut seen = BTreeSet::new();
    for id in catalogue.ids() {
        assert!(seen.insert(id), "{id} stands twice");
    }
}

#[test]
fn a_test_that_names_rows_has_a_name_of_its_own() {
    let sources = all_sources();
    let functions: Vec<_> = sources
        .iter()
        .flat_map(|text| text.lines().filter_map(function))
        .collect();
    for (id, test) in commented(&sources) {
        assert_eq!(
            functions.iter().filter(|name| **name == test).count(),
            1,
            "{id}: {test}"
        );
    }
}

#[test]
fn no_name_of_a_test_begins_with_an_id() {
    let catalogue = Catalogue::read();
    let areas: BTreeSet<_> = catalogue
        .ids()
        .filter_map(|id| id.split_once('-'))
        .map(|(area, _)| area)
        .collect();
    for text in all_sources() {
        for name in text.lines().filter_map(function) {
            let mut words = name.split('_');
            let is_area = words
                .next()
                .is_some_and(|word| areas.contains(word.to_uppercase().as_str()));
            assert!(!is_area || !words.next().is_some_and(is_number), "{name}");
        }
    }
}
