//! What can break in the pages: links, blocks of commands, pictures, figures, and their length.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The most words in all pages, and in a sentence; and the length from which on a sentence is long.
/// One sentence in ten may be long.
const WORDS: usize = 14_000;
const SENTENCE: usize = 40;
const LONG: usize = 25;

/// A page: its path from the root of the repository, and its text.
struct Page {
    path: PathBuf,
    text: String,
}

/// A block of a page.
struct Block<'p> {
    language: &'p str,
    /// The line above, which may be a comment.
    above: &'p str,
    line: usize,
}

impl Page {
    /// Returns the README and all pages below `docs`.
    fn all() -> Vec<Self> {
        let mut paths = vec![PathBuf::from("README.md")];
        let mut folders = vec![PathBuf::from("docs")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root().join(&folder)).unwrap() {
                let entry = entry.unwrap();
                let path = folder.join(entry.file_name());
                if entry.file_type().unwrap().is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    paths.push(path);
                }
            }
        }
        paths.sort();
        paths
            .into_iter()
            .map(|path| Self {
                text: std::fs::read_to_string(root().join(&path)).unwrap(),
                path,
            })
            .collect()
    }

    /// Returns the lines outside code, with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut is_code = false;
        (1..).zip(self.text.lines()).filter(move |(_, line)| {
            let is_fence = line.trim_start().starts_with("```");
            is_code ^= is_fence;
            !is_code && !is_fence
        })
    }

    /// Returns the blocks of code.
    fn blocks(&self) -> Vec<Block<'_>> {
        let mut blocks = Vec::new();
        let mut above = "";
        let mut is_code = false;
        for (line, text) in (1..).zip(self.text.lines()) {
            if let Some(language) = text.trim_start().strip_prefix("```") {
                if !is_code {
                    blocks.push(Block {
                        language: language.trim(),
                        above,
                        line,
                    });
                }
                is_code = !is_code;
            }
            above = text.trim();
        }
        assert!(!is_code, "{}: a block without its end", self.path.display());
        blocks
    }

    /// Returns the anchors of the headings, as Markdown's renderers write them.
    fn anchors(&self) -> BTreeSet<String> {
        let mut seen = BTreeMap::<String, usize>::new();
        self.lines()
            .filter(|(_, line)| line.starts_with('#'))
            .map(|(_, line)| {
                let heading = plain(line.trim_start_matches('#').trim());
                let kept = heading
                    .chars()
                    .filter(|character| character.is_alphanumeric() || " -_".contains(*character));
                let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
                let count = seen.entry(anchor.clone()).or_default();
                *count += 1;
                match *count {
                    1 => anchor,
                    more => format!("{anchor}-{}", more - 1),
                }
            })
            .collect()
    }

    /// Returns the targets of the links, with their lines.
    fn links(&self) -> Vec<(usize, String)> {
        let mut links = Vec::new();
        for (number, line) in self.lines() {
            let line = without_code(line);
            for part in line.split("](").skip(1) {
                let target = part.split(')').next().unwrap();
                links.push((number, target.to_owned()));
            }
        }
        links
    }

    /// Returns the sentences outside tables and code.
    fn sentences(&self) -> Vec<String> {
        let mut paragraphs = vec![String::new()];
        for (_, line) in self.lines() {
            let line = line.trim();
            let item = line.trim_start_matches(|character: char| {
                character.is_ascii_digit() || "-*>.".contains(character)
            });
            let is_item = item.len() < line.len() && item.starts_with(' ');
            let is_heading = line.starts_with('#');
            let is_text = !line.starts_with('|') && !line.starts_with("<!--");
            if line.is_empty() || is_item || is_heading || !is_text {
                paragraphs.push(String::new());
            }
            if is_text {
                let paragraph = paragraphs.last_mut().unwrap();
                paragraph.push(' ');
                paragraph.push_str(if is_item { item } else { line });
            }
            if is_heading {
                paragraphs.push(String::new());
            }
        }
        let mut sentences = Vec::new();
        for paragraph in paragraphs {
            let text = plain(&paragraph);
            let mut sentence = String::new();
            for word in text.split_whitespace() {
                sentence.push_str(word);
                sentence.push(' ');
                let end = word.trim_end_matches(['*', '_', ')', '"', '`']);
                if end.ends_with(['.', '?', '!']) && !["e.g.", "etc."].contains(&end) {
                    sentences.push(std::mem::take(&mut sentence));
                }
            }
            sentences.push(sentence);
        }
        sentences.retain(|sentence| words(sentence) > 0);
        sentences
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}

/// Returns a line without the code in it.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Returns the text that a reader sees: of a link only its words, and code as one word.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            plain.push_str(&part.replace(['.', ' ', '?', '!'], "_"));
        } else {
            plain.push_str(part);
        }
    }
    while let Some((before, rest)) = plain.split_once("](") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        plain = format!("{before}{after}");
    }
    plain.replace('[', "")
}

/// Returns the number of words: what has a letter or a digit.
fn words(text: &str) -> usize {
    text.split_whitespace()
        .filter(|word| word.contains(char::is_alphanumeric))
        .count()
}

/// Returns `path` without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => assert!(normal.pop(), "{}", path.display()),
            std::path::Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    normal
}

#[test]
fn each_block_of_commands_is_a_session_that_is_run_or_says_why_it_is_not() {
    for page in Page::all() {
        for Block {
            language,
            above,
            line,
        } in page.blocks()
        {
            let place = format!("{}:{line}", page.path.display());
            let is_excused = above.starts_with("<!-- not run: ") && above.ends_with(" -->");
            assert!(!language.is_empty(), "{place}: a block without a language");
            if matches!(language, "sh" | "bash" | "shell") {
                assert!(
                    is_excused,
                    "{place}: a session (console), or `<!-- not run: … -->` above"
                );
            }
        }
    }
}

#[test]
fn links_lead_to_files_and_headings_and_each_page_is_linked_from_another() {
    let pages = Page::all();
    let anchors: BTreeMap<_, _> = pages
        .iter()
        .map(|page| (page.path.clone(), page.anchors()))
        .collect();
    let mut linked = BTreeSet::new();
    let mut broken = Vec::new();
    for page in &pages {
        for (line, target) in page.links() {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() {
                page.path.clone()
            } else {
                normal(&page.path.parent().unwrap().join(file))
            };
            let is_there = root().join(&path).exists();
            let has_anchor =
                anchor.is_empty() || anchors.get(&path).is_some_and(|all| all.contains(anchor));
            if !is_there || !has_anchor {
                broken.push(format!("{}:{line}: {target}", page.path.display()));
            }
            if path != page.path {
                linked.insert(path);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    for page in pages
        .iter()
        .filter(|page| page.path != Path::new("README.md"))
    {
        assert!(
            linked.contains(&page.path),
            "no page links to {}",
            page.path.display()
        );
    }
}

#[test]
fn the_pages_are_short_and_their_sentences_too() {
    let mut sum = 0;
    let mut sentences = 0;
    let mut long = 0;
    let mut too_long = Vec::new();
    let mut pages = String::new();
    for page in Page::all() {
        let counts: Vec<_> = page
            .sentences()
            .into_iter()
            .map(|sentence| (words(&sentence), sentence))
            .collect();
        let of_page: usize = counts.iter().map(|(count, _)| count).sum();
        pages.push_str(&format!("{of_page:6} {}\n", page.path.display()));
        sum += of_page;
        sentences += counts.len();
        long += counts.iter().filter(|(count, _)| *count > LONG).count();
        for (count, sentence) in counts.iter().filter(|(count, _)| *count > SENTENCE) {
            too_long.push(format!("{}: {count}: {sentence}", page.path.display()));
        }
    }
    println!("{pages}{sum} words; {long} of {sentences} sentences are long");
    assert!(too_long.is_empty(), "{too_long:#?}");
    assert!(sum <= WORDS, "{sum} words\n{pages}");
    assert!(long * 10 <= sentences, "{long} of {sentences} are long");
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the script is no command of a sandbox"
)]
fn pictures_and_tables_of_figures_are_as_the_script_makes_them() {
    let checked = std::process::Command::new("python3")
        .arg(root().join("docs/pictures/draw"))
        .arg("--check")
        .output()
        .unwrap_or_else(|error| panic!("python3: {error}"));
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(checked.status.success(), "{said}");
}

/// Returns what a row of the benchmark's file says: what it measured, compared with what, the
/// ratio, and when.
fn figures(row: &Map<String, Value>) -> [String; 4] {
    let text = |key: &str| {
        let text = row.get(key).and_then(Value::as_str);
        text.unwrap_or("–").to_owned()
    };
    let ratio = match ["median", "min", "max"].map(|key| row.get(key).and_then(Value::as_f64)) {
        [Some(median), Some(min), Some(max)] => format!("{median:.2} ({min:.2}–{max:.2})"),
        _ => "–".to_owned(),
    };
    [text("measured"), text("compared"), ratio, text("date")]
}

/// Returns the same of a line of the page, or nothing if it has no figures.
fn shown_figures(line: &str) -> Option<[String; 4]> {
    let cells: Vec<_> = line
        .strip_prefix("| ")?
        .strip_suffix(" |")?
        .split(" | ")
        .collect();
    let cells = match cells[..] {
        [measured, compared, ratio, _, date] => [measured, compared, ratio, date],
        [measured, _, date] => [measured, "–", "–", date],
        _ => return None,
    };
    let is_dated = cells[3].starts_with(|character: char| character.is_ascii_digit());
    is_dated.then(|| cells.map(str::to_owned))
}

#[test]
fn tables_of_figures_have_the_rows_of_the_benchmarks_file_and_no_others() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let rows: Vec<Map<String, Value>> =
        serde_json::from_str(&read("docs/internals/performance.json")).unwrap();
    let on_the_page = rows.iter().filter(|row| row.contains_key("table"));
    let mut known: Vec<_> = on_the_page.map(figures).collect();
    let page = read("docs/internals/performance.md");
    let mut shown: Vec<_> = page.lines().filter_map(shown_figures).collect();
    known.sort();
    shown.sort();
    assert!(!known.is_empty());
    assert_eq!(shown, known);
}

#[test]
fn each_picture_is_shown_by_a_page_and_each_shown_one_has_a_text() {
    let mut shown = BTreeSet::new();
    for page in Page::all() {
        for (number, line) in page.lines() {
            let line = without_code(line);
            for picture in line.split("![").skip(1) {
                let place = format!("{}:{number}", page.path.display());
                let (text, rest) = picture.split_once("](").unwrap();
                assert!(words(text) > 0, "{place}: a picture without a text");
                let target = rest.split(')').next().unwrap();
                shown.insert(normal(&page.path.parent().unwrap().join(target)));
            }
        }
    }
    let folder = Path::new("docs/pictures");
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let path = folder.join(entry.unwrap().file_name());
        if path.extension().is_some() {
            assert!(shown.contains(&path), "no page shows {}", path.display());
        }
    }
}
