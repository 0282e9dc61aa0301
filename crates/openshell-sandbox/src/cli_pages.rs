//! The manual pages and the completions of shells in `data/`, made from the command line's own
//! description.
//!
//! `cargo test -p openshell-sandbox pages` fails if a file is not current, and writes it again.

use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::cli::Args;
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
        if shell == Shell::Bash {
            // The library writes the hyphen of the program's name in two ways, so that the script
            // would not know any subcommand.
            let text = String::from_utf8(script).unwrap();
            script = text
                .replace("openshell__subcmd__sandbox", "openshell__sandbox")
                .into_bytes();
        }
        (format!("completions/{file}"), script)
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
