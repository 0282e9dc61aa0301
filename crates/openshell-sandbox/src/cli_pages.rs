//! The manual pages and the completions of shells in `data/`, made from the command line's own
//! description.
//!
//! `cargo test -p openshell-sandbox pages` fails if a file is not current, and writes it again.

use std::ffi::OsString;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use roff::{Roff, bold, roman};

use crate::cli::Args;
use crate::invocation::Invocation;
use crate::subcommands::Named;

/// Returns the whole command line. [`crate::invocation::parse`] splits it by its first word.
fn whole() -> Command {
    let named = Named::command();
    let subcommands: Vec<_> = named.get_subcommands().cloned().collect();
    Args::command()
        .subcommands(subcommands)
        .disable_help_subcommand(true)
        .args_conflicts_with_subcommands(true)
}

/// Files of the program, and what is in them.
const FILES: &[(&str, &str)] = &[
    (
        "~/.config/openshell/presets, /etc/openshell/presets",
        "Presets: yours, and the machine's.",
    ),
    (
        "/var/log/openshell.YYYY-MM-DD.log",
        "The log of root's sandboxes; /var/log/openshell.log leads to today's.",
    ),
    (
        "$XDG_STATE_HOME/openshell, ~/.local/state/openshell",
        "The log of yours, if you cannot write to /var/log.",
    ),
    (
        "/run/openshell, $XDG_RUNTIME_DIR/openshell",
        "Folders of running sandboxes.",
    ),
    (
        "/etc/openshell-tls",
        "Inside: the certificates that programs trust.",
    ),
    (
        "/usr/share/doc/openshell-sandbox",
        "If the package is installed: pages, examples, schemas.",
    ),
];

/// Returns the variables that the program reads, each with its meaning: the table of the page that
/// lists them.
fn variables() -> Vec<(String, String)> {
    let page = include_str!("../../../docs/operations/environment.md");
    let (_, rest) = page
        .split_once("## Variables that the program reads")
        .unwrap();
    let (table, _) = rest.split_once("\n## ").unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let rows = rows.map(|row| {
        let mut cells = row.trim_matches(['|', ' ']).split(" | ").map(plain);
        (cells.next().unwrap(), cells.next().unwrap())
    });
    rows.collect()
}

/// Returns Markdown without its signs for code and links.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, link)) = rest.split_once('[') {
        let (words, after) = link.split_once("](").unwrap();
        text = text + before + words;
        rest = after.split_once(')').unwrap().1;
    }
    (text + rest).replace('`', "")
}

/// The parts of the text behind the options of a help.
#[derive(Default)]
struct AfterHelp {
    notes: Vec<String>,
    exit_codes: String,
    examples: Vec<String>,
}

impl AfterHelp {
    fn of(command: &Command) -> Self {
        let mut parts = Self::default();
        let text = command.get_after_help().unwrap().to_string();
        for paragraph in text.split("\n\n") {
            let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
            if let Some(codes) = paragraph.strip_prefix("Exit codes:") {
                parts.exit_codes = codes.trim().to_owned();
            } else if first.starts_with("Example") {
                parts.examples = rest.lines().map(|line| line.trim().to_owned()).collect();
            } else if !first.starts_with("Subcommands") {
                parts.notes.push(paragraph.to_owned());
            }
        }
        parts
    }
}

/// Returns a manual page (man-pages(7)).
fn manual_page(mut command: Command) -> String {
    let is_whole = command.has_subcommands();
    let usage = if is_whole {
        "openshell-sandbox [OPTIONS] [--] [COMMAND [ARGUMENT]...]\nopenshell-sandbox SUBCOMMAND \
         [OPTIONS] ..."
            .to_owned()
    } else {
        let usage = command.render_usage().to_string();
        usage.trim_start_matches("Usage: ").to_owned()
    };
    let after = AfterHelp::of(&command);
    // What the short help leaves out belongs here too.
    let command = command
        .override_usage(usage)
        .mut_args(|option| option.hide_short_help(false));
    let man = clap_mangen::Man::new(command);
    let part = |render: &dyn Fn(&mut Vec<u8>) -> std::io::Result<()>| {
        let mut bytes = Vec::new();
        render(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let mut page = part(&|page| man.render_title(page));
    page += &part(&|page| man.render_name_section(page));
    page += &part(&|page| man.render_synopsis_section(page));
    page += &part(&|page| man.render_description_section(page));
    page += &section(None, |text| {
        for note in &after.notes {
            text.control("PP", [])
                .text([roman(note.replace('\n', " "))]);
        }
    });
    page += &with_subsections(&part(&|page| man.render_options_section(page)));
    if is_whole {
        page += &part(&|page| man.render_subcommands_section(page));
        let files = FILES.iter().map(|(file, meaning)| (*file, *meaning));
        page += &section(Some("FILES"), |text| list(text, files));
        let variables = variables();
        let variables = variables
            .iter()
            .map(|(name, meaning)| (name.as_str(), meaning.as_str()));
        page += &section(Some("ENVIRONMENT"), |text| list(text, variables));
    }
    page += &section(Some("EXIT STATUS"), |text| {
        for line in after.exit_codes.lines() {
            text.text([roman(line.trim())]).control("br", []);
        }
    });
    page += &section(Some("EXAMPLES"), |text| {
        text.control("EX", []);
        for example in &after.examples {
            text.text([roman(example.as_str())]);
        }
        text.control("EE", []);
    });
    let related = if is_whole {
        "landlock(7), seccomp(2), namespaces(7), bwrap(1)"
    } else {
        "openshell-sandbox(1)"
    };
    page + &section(Some("SEE ALSO"), |text| {
        text.text([roman(related)]);
    })
}

fn section(title: Option<&str>, write: impl FnOnce(&mut Roff)) -> String {
    let mut text = Roff::new();
    if let Some(title) = title {
        text.control("SH", [title]);
    }
    write(&mut text);
    text.to_roff()
}

fn list<'t>(text: &mut Roff, entries: impl Iterator<Item = (&'t str, &'t str)>) {
    for (name, meaning) in entries {
        text.control("TP", []);
        text.text([bold(name)]).text([roman(meaning)]);
    }
}

/// Makes the headings of options, which the library writes as sections, parts of one section.
fn with_subsections(options: &str) -> String {
    let lines = options.lines().map(|line| match line.strip_prefix(".SH ") {
        Some(heading) if heading != "OPTIONS" => {
            let heading = heading.trim_matches('"');
            let rest = heading.get(1..).unwrap_or_default().to_lowercase();
            format!(".SS {}{rest}\n", &heading[..1])
        }
        _ => format!("{line}\n"),
    });
    lines.collect()
}

/// Fails if any of `pages`, given with their paths in `data/`, differs from its file, and writes
/// it.
fn compare(pages: Vec<(String, Vec<u8>)>) {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data"));
    let is_old = |(path, content): &(String, Vec<u8>)| {
        std::fs::read(data.join(path)).ok().as_ref() != Some(content)
    };
    let old: Vec<_> = pages.into_iter().filter(is_old).collect();
    for (path, content) in &old {
        std::fs::write(data.join(path), content).unwrap();
    }
    let old: Vec<_> = old.iter().map(|(path, _)| path).collect();
    assert!(old.is_empty(), "not current, and written again: {old:?}");
}

#[test]
fn manual_pages_are_those_of_the_command_line() {
    let whole = whole();
    let subcommands = whole.get_subcommands().map(|subcommand| {
        let name = format!("openshell-sandbox-{}", subcommand.get_name());
        let called = format!("openshell-sandbox {}", subcommand.get_name());
        let command = subcommand.clone().display_name(&name).bin_name(called);
        (command, name)
    });
    let pages = subcommands
        .chain([(whole.clone(), "openshell-sandbox".to_owned())])
        .map(|(command, name)| {
            let page = manual_page(command);
            (format!("man/{name}.1"), page.into_bytes())
        });
    compare(pages.collect());
}

#[expect(clippy::disallowed_methods, reason = "the test runs man itself")]
#[test]
fn man_shows_each_page_with_all_sections_and_without_a_complaint() {
    let data = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/man"));
    for page in std::fs::read_dir(data).unwrap() {
        let page = page.unwrap().path();
        let shown = std::process::Command::new("man")
            .args(["--warnings", "--local-file"])
            .arg(&page)
            .env("MANWIDTH", "80")
            .output()
            .unwrap();
        let complaints = String::from_utf8(shown.stderr).unwrap();
        assert!(shown.status.success(), "{}: {complaints}", page.display());
        assert_eq!(complaints, "", "{}", page.display());
        let text = String::from_utf8(shown.stdout).unwrap();
        let is_heading = |line: &&str| line.starts_with(|first: char| first.is_ascii_uppercase());
        let headings: Vec<_> = text.lines().filter(is_heading).collect();
        let start = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"];
        let end = ["EXIT STATUS", "EXAMPLES", "SEE ALSO"];
        let of_all = ["SUBCOMMANDS", "FILES", "ENVIRONMENT"];
        let is_whole = page.file_name().unwrap() == "openshell-sandbox.1";
        let middle = if is_whole { &of_all[..] } else { &[] };
        assert_eq!(
            headings,
            [&start[..], middle, &end].concat(),
            "{}",
            page.display()
        );
    }
}

/// Returns a generated script with what only the program knows: presets, sandboxes, and the command
/// after `--`.
fn with_values(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => {
            // The library writes the hyphen of the program's name in two ways, so that the script
            // would not know any subcommand.
            let script = script.replace("openshell__subcmd__sandbox", "openshell__sandbox");
            let (script, _) = script
                .split_once("\nif [[ \"${BASH_VERSINFO[0]}\"")
                .unwrap();
            // Bash itself offers files, and quotes their names. Words of a function stay as they are,
            // and a name such as `$(…)` would be executed.
            let files = "COMPREPLY=($(compgen -f \"${cur}\"))";
            assert!(script.contains(files));
            let script = script.replace(files, "COMPREPLY=()");
            format!("{script}{}", include_str!("../completions/values.bash"))
        }
        Shell::Zsh => {
            let (script, start) = script.split_once("\nif [ \"$funcstack[1]\"").unwrap();
            // The library takes a subcommand for the command of a run. After `--` no part of it is
            // asked.
            let is_command = |line: &&str| line.starts_with("'::command -- ");
            let lines: Vec<_> = script.lines().filter(|line| !is_command(line)).collect();
            let script = lines.join("\n").replace("$line[2]", "$line[1]").replace(
                "\n_openshell-sandbox() {",
                "\n_openshell_sandbox_generated() {",
            );
            let values = include_str!("../completions/values.zsh");
            format!("{script}\n{values}\nif [ \"$funcstack[1]\"{start}")
        }
        _ => format!("{script}{}", include_str!("../completions/values.fish")),
    }
}

#[test]
fn completions_of_shells_are_pages_of_the_command_line() {
    let pages = [
        (Shell::Bash, "openshell-sandbox.bash"),
        (Shell::Zsh, "_openshell-sandbox"),
        (Shell::Fish, "openshell-sandbox.fish"),
    ];
    let pages = pages.map(|(shell, file)| {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut whole(), "openshell-sandbox", &mut script);
        let script = String::from_utf8(script).unwrap();
        let script = with_values(shell, &script);
        (format!("completions/{file}"), script.into_bytes())
    });
    compare(pages.into());
}

#[expect(clippy::disallowed_methods, reason = "the test runs bash itself")]
#[test]
fn bash_completes_the_flags_of_the_program_and_of_each_subcommand() {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../data/completions/openshell-sandbox.bash"
    );
    let completed = |words: &str| {
        let ask = format!(
            "source {script}; COMP_WORDS=(openshell-sandbox {words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _openshell__sandbox openshell-sandbox \
             ${{COMP_WORDS[-1]}} ${{COMP_WORDS[-2]}}; echo ${{COMPREPLY[@]}}"
        );
        let run = std::process::Command::new("bash")
            .args(["--norc", "-c", &ask])
            .output()
            .unwrap();
        String::from_utf8(run.stdout).unwrap().trim_end().to_owned()
    };
    assert_eq!(completed("--allo"), "--allow");
    assert_eq!(completed("che"), "check");
    for subcommand in whole().get_subcommands() {
        let name = subcommand.get_name();
        assert_eq!(completed(&format!("{name} --hel")), "--help", "{name}");
    }
    assert_eq!(completed("explain --bina"), "--binary");
}

#[test]
fn each_option_of_a_run_stands_under_a_heading() {
    let without: Vec<_> = Args::command()
        .get_arguments()
        .filter(|option| !option.is_positional() && option.get_help_heading().is_none())
        .map(|option| option.get_id().to_string())
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn the_short_help_has_a_dozen_options_and_the_long_help_all_of_them() {
    let mut command = Args::command();
    let shown: Vec<_> = command
        .get_arguments()
        .filter(|option| !option.is_positional() && !option.is_hide_short_help_set())
        .filter_map(clap::Arg::get_long)
        .map(str::to_owned)
        .collect();
    assert!((10..=16).contains(&shown.len()), "{shown:?}");
    let short = command.render_help().to_string();
    let long = command.render_long_help().to_string();
    let options = command.get_arguments().filter_map(clap::Arg::get_long);
    for option in options.filter(|option| !["help", "version"].contains(option)) {
        let is_shown = shown.iter().any(|shown| shown == option);
        let is_listed = |help: &str| {
            help.lines()
                .filter(|line| line.trim_start().starts_with('-'))
                .flat_map(|line| line.split([' ', '[', ',']))
                .any(|word| word.strip_prefix("--") == Some(option))
        };
        assert!(is_listed(&long), "{option}");
        assert!(!is_shown || is_listed(&short), "{option}");
        assert!(is_shown || !is_listed(&short), "{option}");
    }
}

#[test]
fn the_help_of_a_run_names_each_subcommand() {
    let help = Args::command().render_help().to_string();
    for subcommand in whole().get_subcommands() {
        let line = format!("\n  {} ", subcommand.get_name());
        assert!(help.contains(&line), "{}", subcommand.get_name());
    }
}

#[expect(clippy::disallowed_methods, reason = "the test runs bash itself")]
#[test]
fn each_help_has_exit_codes_and_examples_that_are_command_lines() {
    let mut commands: Vec<_> = whole().get_subcommands().cloned().collect();
    commands.push(Args::command());
    for command in &mut commands {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        assert!(help.contains("Exit codes:"), "{name}");
        let (_, examples) = help.split_once("\nExample").expect("no example");
        let examples: Vec<_> = examples
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .collect();
        assert!(!examples.is_empty(), "{name}");
        for example in examples {
            let split = std::process::Command::new("bash")
                .args(["--norc", "-c", &format!("printf '%s\\n' {example}")])
                .output()
                .unwrap();
            let words = String::from_utf8(split.stdout).unwrap();
            let words = words.lines().map(OsString::from);
            let parsed = crate::invocation::parse(words, false);
            assert!(!matches!(parsed, Invocation::Printed(_)), "{example}");
        }
    }
}
