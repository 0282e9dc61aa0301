//! Questions and answers for scripts, one JSON object a line.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::{Context as _, bail};
use openshell_access::control::client::{Found, FromQuestions, Places, Questions, answer};
use openshell_access::control::wire::{Answer, Answered, Grant, Listing};
use openshell_telemetry::logging::{print_line, print_stderr};
use serde_json::{Value, json};

use crate::subcommands::exec::places;

/// The exit code for what is gone or asked anew.
const GONE: u8 = 3;

/// How questions are answered.
const ANSWERS: &str = "answer: openshell-sandbox approvals decide ID once (what is shown, this time), run \
                       (the line, until the sandbox ends), save, deny or deny_run; no answer in time \
                       refuses it";

/// The listings that wait to be printed. Then the sandboxes wait.
const LISTINGS: usize = 64;

/// Prints the questions of the sandbox `name`, or of all sandboxes; as JSON if `is_json`, and those
/// to come too if `is_following`.
///
/// # Errors
/// No such sandbox runs, or none asks.
pub(super) fn list(
    run_dir: Option<&Path>,
    name: Option<&str>,
    is_json: bool,
    is_following: bool,
) -> anyhow::Result<ExitCode> {
    let places = places(run_dir)?;
    let sandboxes = named(&places, name)?;
    let (sender, listings) = mpsc::sync_channel(LISTINGS);
    let mut firsts = Vec::new();
    for (name, socket) in sandboxes {
        // A sandbox may end meanwhile.
        let Ok(questions) = Questions::open(socket, is_following) else {
            continue;
        };
        let Ok(Some(FromQuestions::Listed(first))) = questions.next() else {
            continue;
        };
        firsts.push((name.clone(), Some(first)));
        if is_following {
            let sender = sender.clone();
            std::thread::spawn(move || {
                while let Ok(Some(message)) = questions.next() {
                    if let FromQuestions::Listed(listing) = message
                        && sender.send((name.clone(), Some(listing))).is_err()
                    {
                        return;
                    }
                }
                // A receiver that has gone needs no listing.
                let _ = sender.send((name, None));
            });
        }
    }
    drop(sender);
    if firsts.is_empty() {
        bail!("{}", asks_nobody(name));
    }
    let mut known = BTreeMap::new();
    for (sandbox, listing) in firsts.into_iter().chain(listings) {
        let is_over = listing.is_none();
        let listing = listing.unwrap_or_default();
        if is_json {
            print_changes(&sandbox, &listing, &mut known);
        } else {
            print_listing(&sandbox, &listing);
        }
        if is_over {
            known.retain(|(of, _), _| *of != sandbox);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the sandboxes that are meant, each with a connection.
fn named(places: &Places, name: Option<&str>) -> anyhow::Result<Vec<(String, OwnedFd)>> {
    if let Some(name) = name {
        return Ok(vec![(name.to_owned(), places.connect(name)?)]);
    }
    let mut sandboxes = Vec::new();
    for found in places.list() {
        match found {
            Found::Described(description) => {
                // It may have ended meanwhile.
                if let Ok(socket) = places.connect(&description.name) {
                    sandboxes.push((description.name, socket));
                }
            }
            Found::Silent { folder, error } => print_stderr(&format!(
                "openshell-sandbox: the sandbox of {} does not answer: {error}",
                folder.display()
            )),
        }
    }
    if sandboxes.is_empty() {
        bail!(
            "no sandbox of this user runs on this host (looked in {})",
            places.text()
        );
    }
    Ok(sandboxes)
}

pub(super) fn asks_nobody(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("sandbox {name} asks nobody; start it with --ask or --policy-local"),
        None => {
            "no running sandbox asks anybody; start one with --ask or --policy-local".to_owned()
        }
    }
}

/// What was printed last of each question, by its sandbox and id.
type Known = BTreeMap<(String, String), (String, usize)>;

/// Prints what has changed in the `listing` of `sandbox`, one object a line.
fn print_changes(sandbox: &str, listing: &Listing, known: &mut Known) {
    for question in &listing.questions {
        let key = (sandbox.to_owned(), question.id.clone());
        let state = (question.state.clone(), question.held);
        if known.insert(key, state.clone()) != Some(state) {
            print_line(&question.to_json(sandbox).to_string());
        }
    }
    let is_listed = |id: &String| listing.questions.iter().any(|question| question.id == *id);
    let gone: Vec<_> = known
        .keys()
        .filter(|(of, id)| of == sandbox && !is_listed(id) && !id.starts_with('g'))
        .cloned()
        .collect();
    for key in gone {
        let mut finished = listing.finished.iter();
        let what = finished.find(|(id, _)| *id == key.1);
        let state = what.map_or("gone", |(_, what)| what.as_str());
        print_line(&json!({"id": key.1, "sandbox": sandbox, "state": state}).to_string());
        known.remove(&key);
    }
    let is_granted = |id: &String| listing.grants.iter().any(|grant| grant.id == *id);
    let revoked: Vec<_> = known
        .keys()
        .filter(|(of, id)| of == sandbox && id.starts_with('g') && !is_granted(id))
        .cloned()
        .collect();
    for key in revoked {
        print_line(&json!({"grant": key.1, "sandbox": sandbox, "state": "revoked"}).to_string());
        known.remove(&key);
    }
    for grant in &listing.grants {
        let key = (sandbox.to_owned(), grant.id.clone());
        if known.insert(key, (String::new(), 0)).is_none() {
            print_line(&grant_json(sandbox, grant).to_string());
        }
    }
}

fn grant_json(sandbox: &str, grant: &Grant) -> Value {
    json!({
        "grant": grant.id,
        "sandbox": sandbox,
        "yaml": grant.yaml,
        "permits": grant.permits,
        "file": grant.kept_in,
    })
}

/// Prints the `listing` of `sandbox` for a person.
fn print_listing(sandbox: &str, listing: &Listing) {
    for question in &listing.questions {
        let waits = match question.state.as_str() {
            "held" => format!(
                "{} waiting, {} s left",
                question.held, question.seconds_left
            ),
            state => state.to_owned(),
        };
        print_line(&format!("{}  ({sandbox}; {waits})", question.id));
        for line in question.text.lines() {
            print_line(&format!("  {line}"));
        }
    }
    if !listing.questions.is_empty() {
        print_line(ANSWERS);
    }
    for grant in &listing.grants {
        let until = match &grant.kept_in {
            Some(file) => format!("permitted, and written to {file}"),
            None => "permitted for the run".to_owned(),
        };
        print_line(&format!("{}  ({sandbox}; {until})", grant.id));
        print_line(&format!("  {}", grant.yaml));
    }
    for program in &listing.muted {
        print_line(&format!("{program}  ({sandbox}; not asked for any more)"));
    }
}

/// Answers the question `id`, in whichever sandbox it is asked.
///
/// # Errors
/// No sandbox asks, or the question does not take the answer.
pub(super) fn decide(
    run_dir: Option<&Path>,
    id: &str,
    decision: &str,
    line: u8,
    reason: &str,
) -> anyhow::Result<ExitCode> {
    let decide = Answer::Decide {
        id: id.to_owned(),
        decision: decision.to_owned(),
        line: usize::from(line.saturating_sub(1)),
        reason: reason.to_owned(),
    };
    give(run_dir, None, &decide, "question")
}

/// Takes back the grant `grant`.
///
/// # Errors
/// No sandbox asks, or several have such a grant.
pub(super) fn revoke(
    run_dir: Option<&Path>,
    grant: &str,
    name: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let name = match name {
        Some(name) => Some(name.to_owned()),
        None => only(run_dir, |listing| {
            listing.grants.iter().any(|known| known.id == grant)
        })?,
    };
    give(
        run_dir,
        name.as_deref(),
        &Answer::Revoke(grant.to_owned()),
        "grant",
    )
}

/// Asks for `program` again.
///
/// # Errors
/// No sandbox asks, or several do not ask for it.
pub(super) fn unmute(
    run_dir: Option<&Path>,
    program: &str,
    name: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let name = match name {
        Some(name) => Some(name.to_owned()),
        None => only(run_dir, |listing| {
            listing.muted.iter().any(|muted| muted == program)
        })?,
    };
    give(
        run_dir,
        name.as_deref(),
        &Answer::Unmute(program.to_owned()),
        "program",
    )
}

/// Returns the only sandbox whose listing `is_meant`; `None` if there is none.
///
/// # Errors
/// There are several.
fn only(
    run_dir: Option<&Path>,
    is_meant: impl Fn(&Listing) -> bool,
) -> anyhow::Result<Option<String>> {
    let mut meant = Vec::new();
    for (name, socket) in named(&places(run_dir)?, None)? {
        // A sandbox may end meanwhile.
        let listed = Questions::open(socket, false).and_then(|questions| questions.next());
        if let Ok(Some(FromQuestions::Listed(listing))) = listed
            && is_meant(&listing)
        {
            meant.push(name);
        }
    }
    if meant.len() > 1 {
        bail!(
            "several sandboxes are meant, so name one: {}",
            meant.join(", ")
        );
    }
    Ok(meant.pop())
}

/// Gives an answer about a `what` to the sandbox `name`, or to the one that it is for.
fn give(
    run_dir: Option<&Path>,
    name: Option<&str>,
    given: &Answer,
    what: &str,
) -> anyhow::Result<ExitCode> {
    let mut asks = false;
    for (_, socket) in named(&places(run_dir)?, name)? {
        // Another sandbox may end meanwhile.
        let answered = match answer(&socket, given.clone()) {
            Err(_) if name.is_none() => continue,
            answered => answered.context("the sandbox has ended")?,
        };
        asks |= answered.is_some();
        match answered {
            None | Some(Answered::Gone) => {}
            Some(Answered::Done(done)) => {
                for line in done.lines() {
                    print_line(line);
                }
                return Ok(ExitCode::SUCCESS);
            }
            Some(Answered::Stale) => {
                print_stderr(
                    "openshell-sandbox: the policy has changed since the question was asked, so \
                     it is asked anew",
                );
                return Ok(ExitCode::from(GONE));
            }
            Some(Answered::Unfit(why)) => bail!("{why}"),
        }
    }
    if !asks {
        bail!("{}", asks_nobody(name));
    }
    print_stderr(&format!(
        "openshell-sandbox: there is no such {what} any more"
    ));
    Ok(ExitCode::from(GONE))
}
