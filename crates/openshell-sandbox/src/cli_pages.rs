//! The manual pages and the completions of shells in `data/`, made from the command line's own
//! description.
//!
//! `cargo test -p openshell-sandbox pages` fails if a file is not current, and writes it again.

use std::ffi::OsString;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

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
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).unwrap();
            (format!("man/{name}.1"), page)
        });
    compare(pages.collect());
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
