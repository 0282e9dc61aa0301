//! The modules of each crate: no circle among them, and no protocol that compiles without being
//! judged.

#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_owned()
}

/// Every Rust source beneath `folder`, by its path.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                found.push(path)
            }
            false => {}
        }
    }
    found
}

/// The code of a source: without comments, strings of one line and its own tests.
fn code(text: &str) -> String {
    let code = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut plain = String::new();
    let mut quoted = false;
    let mut characters = code.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if quoted => drop(characters.next()),
            '\'' if !quoted && characters.peek() == Some(&'"') => drop(characters.next()),
            '"' => quoted = !quoted,
            _ if quoted => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Paths that `code` uses: those of its `use` declarations, each written out, and those in
/// expressions.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("use ") {
        let is_word = rest[..at]
            .chars()
            .next_back()
            .is_none_or(|before| before.is_whitespace() || before == ')');
        let (declaration, behind) = rest[at + 4..]
            .split_once(';')
            .unwrap_or((&rest[at + 4..], ""));
        if is_word {
            expand(
                "",
                &declaration.split_whitespace().collect::<Vec<_>>().join(" "),
                &mut found,
            );
            rest = behind;
        } else {
            rest = &rest[at + 4..];
        }
    }
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in code.match_indices(start) {
            let end = code[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
            let path = &code[at..end.map_or(code.len(), |end| at + end)];
            found.push(
                path.trim_end_matches(':')
                    .split("::")
                    .map(str::to_owned)
                    .collect(),
            );
        }
    }
    found
}

/// The paths of a tree such as `a::{b, c::{self, d}}`.
fn expand(prefix: &str, tree: &str, found: &mut Vec<Vec<String>>) {
    let mut depth = 0;
    let mut part = String::new();
    let mut parts = Vec::new();
    for character in tree.chars() {
        match character {
            ',' if depth == 0 => parts.push(std::mem::take(&mut part)),
            '{' | '}' => {
                depth = if character == '{' {
                    depth + 1
                } else {
                    depth - 1
                };
                part.push(character);
            }
            _ => part.push(character),
        }
    }
    parts.push(part);
    for part in parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty())
    {
        match part.split_once('{') {
            Some((before, inner)) => {
                let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
                expand(&format!("{prefix}{}", before.trim()), inner, found);
            }
            None => {
                let name = part.split(" as ").next().unwrap_or(part);
                found.push(
                    format!("{prefix}{name}")
                        .split("::")
                        .map(|name| name.trim().to_owned())
                        .collect(),
                );
            }
        }
    }
}

/// The modules of the crate at `source`, each with those that it uses.
fn modules(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let name = |path: &Path| {
        let path = path.strip_prefix(source).unwrap().with_extension("");
        let mut parts: Vec<_> = path
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        if matches!(
            parts.last().map(String::as_str),
            Some("mod" | "lib" | "main")
        ) {
            parts.pop();
        }
        parts
    };
    let is_test = |path: &PathBuf| path.ends_with("tests.rs") || path.ends_with("testing.rs");
    let files: Vec<_> = sources(source)
        .into_iter()
        .filter(|path| !is_test(path))
        .collect();
    let known: BTreeSet<_> = files.iter().map(|path| name(path).join("::")).collect();
    let resolve = |mut path: Vec<String>| {
        while !path.is_empty() && !known.contains(&path.join("::")) {
            path.pop();
        }
        path.join("::")
    };
    let mut graph = BTreeMap::new();
    for path in &files {
        let own = name(path);
        let mut used = BTreeSet::new();
        for mut path in paths(&code(&std::fs::read_to_string(path).unwrap())) {
            let mut base = own.clone();
            let is_relative = match path.first().map(String::as_str) {
                Some("crate") => {
                    base.clear();
                    path.remove(0);
                    true
                }
                Some("self" | "super") => {
                    while path.first().is_some_and(|first| first == "super") {
                        base.pop();
                        path.remove(0);
                    }
                    path.retain(|part| part != "self");
                    true
                }
                // A module of its own, as `mod.rs` names them.
                Some(first) => {
                    known.contains(&[own.clone(), vec![first.to_owned()]].concat().join("::"))
                }
                None => false,
            };
            let target = resolve([base, path].concat());
            if is_relative && !target.is_empty() && target != own.join("::") {
                used.insert(target);
            }
        }
        if !own.is_empty() {
            graph.insert(own.join("::"), used);
        }
    }
    graph
}

/// A circle of `graph`, if it has one: the modules on the way from one back to it.
fn circle(graph: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn walk(
        graph: &BTreeMap<String, BTreeSet<String>>,
        at: &str,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(begin) = way.iter().position(|before| before == at) {
            return Some(way[begin..].to_vec());
        }
        if !done.contains(at) {
            way.push(at.to_owned());
            for next in graph.get(at).into_iter().flatten() {
                if let Some(circle) = walk(graph, next, way, done) {
                    return Some(circle);
                }
            }
            way.pop();
            done.insert(at.to_owned());
        }
        None
    }
    let mut way = Vec::new();
    let mut done = BTreeSet::new();
    graph
        .keys()
        .find_map(|start| walk(graph, start, &mut way, &mut done))
}

/// The same among the folders and files of a crate's top level.
fn folders(graph: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let top = |module: &String| module.split("::").next().unwrap_or_default().to_owned();
    let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, used) in graph {
        folders
            .entry(top(module))
            .or_default()
            .extend(used.iter().map(top).filter(|used| *used != top(module)));
    }
    folders
}

#[test]
fn no_crate_has_a_circle_of_modules_or_of_folders() {
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let source = entry.unwrap().path().join("src");
        let graph = modules(&source);
        let arrows: usize = graph.values().map(BTreeSet::len).sum();
        assert!(
            graph.len() > 3 && arrows > graph.len() / 2,
            "{}: {arrows} uses are too few to be all",
            source.display()
        );
        assert_eq!(circle(&graph), None, "{}", source.display());
        assert_eq!(
            circle(&folders(&graph)),
            None,
            "folders of {}",
            source.display()
        );
    }
}

#[test]
fn a_circle_is_found_in_every_form_of_a_path() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("circles");
    std::fs::create_dir_all(folder.join("inner")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    for (one, other) in [
        ("use crate::inner::b::B;", "use crate::a::A;"),
        (
            "use crate::{c::C, inner::{self, b::B as Z}};",
            "fn f() { crate::a::g() }",
        ),
        ("use crate::inner;", "use super::super::a;"),
    ] {
        write("lib.rs", "pub mod a;\npub mod inner;\n");
        write("a.rs", one);
        write("inner/mod.rs", "pub mod b;\nuse b::B;\n");
        write("inner/b.rs", other);
        assert!(circle(&modules(&folder)).is_some(), "{one} {other}");
        write(
            "inner/b.rs",
            "// use crate::a::A;\nfn f() { g(\"crate::a\") }\n#[cfg(test)]\nmod tests { use \
             crate::a; }",
        );
        assert_eq!(circle(&modules(&folder)), None, "{one}");
    }
}

/// Copies the folder `from` to `to`, but for what is built.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true if entry.file_name() == "target" => {}
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// A manifest or lock file with another version of the project's crates.
fn renumbered(text: &str) -> String {
    const OURS: [&str; 5] = [
        "\"openshell-",
        "\"fuzz\"",
        "\"lab\"",
        "\"e2e\"",
        "\"bench\"",
    ];
    let mut is_ours = true;
    let line = |line: &str| {
        if let Some(name) = line.strip_prefix("name = ") {
            is_ours = OURS.iter().any(|ours| name.starts_with(ours));
        }
        let is_version = is_ours && line == "version = \"0.1.0\"";
        format!(
            "{}\n",
            if is_version {
                "version = \"0.0.0\""
            } else {
                line
            }
        )
    };
    text.lines().map(line).collect()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the compiler is no command of a sandbox"
)]
fn a_protocol_that_is_not_taught_to_be_judged_does_not_compile() {
    // The same each time, so that what is compiled of it takes its place once.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("protocol");
    let _ = std::fs::remove_dir_all(&folder);
    for part in ["crates", "tests", "data", "Cargo.toml", "Cargo.lock"] {
        let from = root().join(part);
        let to = folder.join(part);
        if from.is_dir() {
            copy(&from, &to)
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
    // Cargo takes a crate for the same wherever its workspace lies; another version is another
    // crate.
    for file in ["Cargo.toml", "Cargo.lock"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        std::fs::write(folder.join(file), renumbered(&text)).unwrap();
    }
    let check = || {
        let mut check = std::process::Command::new(env!("CARGO"));
        check.args([
            "check",
            "--quiet",
            "--offline",
            "--package",
            "openshell-proxy",
            "--message-format=short",
        ]);
        // Beside the project's own, so that no dependency is compiled again.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        check
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_INCREMENTAL", "0");
        String::from_utf8(check.output().unwrap().stderr).unwrap()
    };
    assert_eq!(check(), "", "the copy compiles as it is");
    let endpoint = folder.join("crates/openshell-policy/src/network/endpoint.rs");
    let text = std::fs::read_to_string(&endpoint).unwrap();
    let taught = text
        .replacen(
            "    Tcp,\n}",
            "    Tcp,\n    /// Another.\n    Other,\n}",
            1,
        )
        .replacen(
            "Self::Tcp => \"tcp\",",
            "Self::Tcp => \"tcp\",\n            Self::Other => \"other\",",
            1,
        );
    assert_ne!(text, taught);
    std::fs::write(&endpoint, taught).unwrap();
    let errors = check();
    let refused = |line: &str| {
        line.starts_with("crates/openshell-proxy/src/decide/message/")
            && line.contains("E0004")
            && line.contains("Protocol::Other")
    };
    assert!(
        errors.lines().any(refused),
        "nothing misses the protocol:\n{errors}"
    );
}
