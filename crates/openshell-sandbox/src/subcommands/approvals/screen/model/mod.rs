//! What the screen shows, and what keys do. It does nothing itself, so that it can be tested.

use std::time::{Duration, Instant};

use openshell_access::control::wire::{Answer, Answered, Grant, Listing, Question};
use serde_json::Value;

use crate::cli::values::REASON_CHARACTERS;

/// How long the end of a question has been on the screen before a key permits it.
const SEEN: Duration = Duration::from_millis(500);

/// What is said if a key permits something that was not read.
const READ_FIRST: &str = "read the question to its end first (arrow keys)";

/// The lines by which a page key moves.
const PAGE: usize = 8;

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Enter,
    Back,
    /// Backspace.
    Erase,
    /// Ctrl-Z.
    Suspend,
}

/// What a key makes the program do.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Leave; everything stays held.
    Leave,
    /// Stop until the shell continues the program.
    Stop,
    /// Give this answer to a sandbox.
    Give(String, Answer),
}

/// A question in the list.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) sandbox: String,
    pub(super) question: Question,
    /// When the seconds that are left were told.
    pub(super) told: Instant,
    /// True once it is answered, or asked anew.
    pub(super) is_gone: bool,
}

impl Row {
    /// Returns the seconds until its oldest request has waited too long.
    pub(super) fn seconds_left(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.told).as_secs();
        self.question.seconds_left.saturating_sub(passed)
    }

    /// Returns true if it takes a second key to permit the line with this index.
    pub(super) fn is_dangerous(&self, line: usize) -> bool {
        let lines = &self.question.lines;
        lines.get(line).is_none_or(|line| line.is_dangerous)
    }

    /// Returns true if a program has proposed it, so that nothing waits for it.
    pub(super) fn is_proposal(&self) -> bool {
        let facts: Value = serde_json::from_str(&self.question.facts).unwrap_or_default();
        facts["kind"] == "proposal"
    }

    fn is(&self, at: &Place) -> bool {
        self.sandbox == at.sandbox && self.question.id == at.id
    }
}

/// A question or grant by its ids, which never stand for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) sandbox: String,
    pub(super) id: String,
}

/// A question that is open.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) at: Place,
    /// The chosen line.
    pub(super) line: usize,
    /// The first line of text on the screen.
    pub(super) top: usize,
    /// When the end of the text came onto the screen.
    pub(super) end_seen: Option<Instant>,
    /// What a `y` confirms.
    pub(super) asked: Option<&'static str>,
    /// What saving the chosen line would change.
    pub(super) difference: Option<String>,
    /// True while it is asked what saving would change.
    pub(super) is_asking: bool,
    /// Why a proposal is denied, while that is typed.
    pub(super) denial: Option<Denial>,
}

/// A denial whose reason is typed.
#[derive(Clone, Debug)]
pub(super) struct Denial {
    decision: &'static str,
    /// What was typed so far.
    pub(super) reason: String,
}

impl Opened {
    /// Moves in the text, or among the lines of policy, of which there are as many as `lines`.
    fn shift(&mut self, key: Key, lines: usize) {
        match key {
            Key::Char('w') if self.line + 1 < lines => self.choose(self.line + 1),
            Key::Char('n') if self.line > 0 => self.choose(self.line - 1),
            Key::Down | Key::Char('j') => self.top += 1,
            Key::Up | Key::Char('k') => self.top = self.top.saturating_sub(1),
            Key::PageDown => self.top += PAGE,
            Key::PageUp => self.top = self.top.saturating_sub(PAGE),
            Key::Char(_) | Key::Enter | Key::Back | Key::Erase | Key::Suspend => {}
        }
    }

    /// Chooses the line with this index, which has to be read to its end again.
    fn choose(&mut self, line: usize) {
        self.line = line;
        self.top = 0;
        self.end_seen = None;
        self.difference = None;
    }
}

/// What is on the screen.
#[derive(Clone, Debug)]
pub(super) enum View {
    /// The list, with the selected question.
    List(Option<Place>),
    /// One question.
    Question(Opened),
    /// What was granted and muted, with the selected one.
    Grants(usize),
    /// The keys.
    Help,
}

/// What was granted, or is not asked for.
#[derive(Clone, Debug)]
pub(super) enum Granted {
    Grant(String, Grant),
    Muted(String, String),
}

/// Everything that the screen shows.
#[derive(Debug)]
pub(super) struct Screen {
    /// The sandbox that was named.
    pub(super) name: Option<String>,
    pub(super) rows: Vec<Row>,
    pub(super) granted: Vec<Granted>,
    pub(super) view: View,
    /// What became of the last answer.
    pub(super) message: String,
}

impl Screen {
    pub(super) fn new(name: Option<String>) -> Self {
        Self {
            name,
            rows: Vec::new(),
            granted: Vec::new(),
            view: View::List(None),
            message: String::new(),
        }
    }

    /// Takes the questions of `sandbox`. No row moves while one is selected: what is gone stays in its
    /// place, and what is new comes last.
    pub(super) fn list(&mut self, sandbox: String, listing: Listing, now: Instant) {
        for row in self.rows.iter_mut().filter(|row| row.sandbox == sandbox) {
            let mut questions = listing.questions.iter();
            match questions.find(|question| question.id == row.question.id) {
                Some(question) => {
                    row.question = question.clone();
                    row.told = now;
                }
                None => row.is_gone = true,
            }
        }
        for question in listing.questions {
            let at = Place {
                sandbox: sandbox.clone(),
                id: question.id.clone(),
            };
            if !self.rows.iter().any(|row| row.is(&at)) {
                self.rows.push(Row {
                    sandbox: sandbox.clone(),
                    question,
                    told: now,
                    is_gone: false,
                });
            }
        }
        self.granted.retain(|granted| {
            let (Granted::Grant(of, _) | Granted::Muted(of, _)) = granted;
            *of != sandbox
        });
        for grant in listing.grants {
            self.granted.push(Granted::Grant(sandbox.clone(), grant));
        }
        for program in listing.muted {
            self.granted.push(Granted::Muted(sandbox.clone(), program));
        }
        self.tidy();
    }

    /// Notes that `sandbox` has ended.
    pub(super) fn end(&mut self, sandbox: &str) {
        self.list(sandbox.to_owned(), Listing::default(), Instant::now());
        if self.name.as_deref() == Some(sandbox) {
            self.message = format!("the sandbox {sandbox} has ended");
        }
    }

    /// Removes what is gone, unless something is selected or open.
    fn tidy(&mut self) {
        if matches!(self.view, View::List(None) | View::Help) {
            self.rows.retain(|row| !row.is_gone);
        }
    }

    /// Returns the row of a place.
    pub(super) fn row(&self, at: &Place) -> Option<&Row> {
        self.rows.iter().find(|row| row.is(at))
    }

    /// Does what `key` asks. A key that permits something counts only if it `is_alone`: pasted text is
    /// none.
    pub(super) fn press(&mut self, key: Key, is_alone: bool, now: Instant) -> Option<Action> {
        if key == Key::Suspend {
            return Some(Action::Stop);
        }
        match self.view.clone() {
            View::List(selected) => self.press_in_list(key, selected),
            View::Question(opened) => self.press_in_question(key, opened, is_alone, now),
            View::Grants(selected) => self.press_in_grants(key, selected),
            View::Help => {
                self.view = View::List(None);
                None
            }
        }
    }

    fn press_in_list(&mut self, key: Key, selected: Option<Place>) -> Option<Action> {
        let index = selected
            .as_ref()
            .and_then(|at| self.rows.iter().position(|row| row.is(at)));
        let last = self.rows.len().checked_sub(1);
        let to = match key {
            Key::Char('q') => return Some(Action::Leave),
            Key::Char('g') => {
                self.view = View::Grants(0);
                return None;
            }
            Key::Char('?') => {
                self.view = View::Help;
                return None;
            }
            Key::Enter => {
                if let Some(at) = selected {
                    self.open(at);
                }
                return None;
            }
            Key::Back => {
                self.view = View::List(None);
                self.tidy();
                return None;
            }
            Key::Down | Key::Char('j') => index.map_or(0, |index| index + 1),
            Key::Up | Key::Char('k') => match index {
                Some(index) => index.saturating_sub(1),
                None => last.unwrap_or_default(),
            },
            Key::PageDown => index.map_or(0, |index| index + PAGE),
            Key::PageUp => index.map_or(0, |index| index.saturating_sub(PAGE)),
            Key::Char(_) | Key::Erase | Key::Suspend => return None,
        };
        let row = self.rows.get(to.min(last?))?;
        self.view = View::List(Some(Place {
            sandbox: row.sandbox.clone(),
            id: row.question.id.clone(),
        }));
        None
    }

    fn open(&mut self, at: Place) {
        self.message.clear();
        self.view = View::Question(Opened {
            at,
            line: 0,
            top: 0,
            end_seen: None,
            asked: None,
            difference: None,
            is_asking: false,
            denial: None,
        });
    }

    fn press_in_question(
        &mut self,
        key: Key,
        mut opened: Opened,
        is_alone: bool,
        now: Instant,
    ) -> Option<Action> {
        if let Some(denial) = opened.denial.take() {
            self.message.clear();
            return self.type_reason(key, opened, denial);
        }
        let row = self.row(&opened.at).cloned();
        let is_proposal = row.as_ref().is_some_and(Row::is_proposal);
        let lines = row.as_ref().map_or(0, |row| row.question.lines.len());
        let is_open = row.as_ref().is_some_and(|row| !row.is_gone);
        let is_dangerous = row
            .as_ref()
            .is_some_and(|row| row.is_dangerous(opened.line));
        let seen = opened.end_seen;
        let is_read = seen.is_some_and(|seen| now.saturating_duration_since(seen) >= SEEN);
        let may_permit = is_open && is_read && is_alone;
        let is_scrolling = matches!(
            key,
            Key::Up | Key::Down | Key::PageUp | Key::PageDown | Key::Char('j' | 'k')
        );
        // What saving changes may not fit on the screen.
        opened.is_asking &= is_scrolling;
        let asked = if is_scrolling && opened.difference.is_some() {
            opened.asked
        } else {
            opened.asked.take()
        };
        let decision = match (key, asked) {
            (Key::Char('q') | Key::Back, _) => {
                self.view = View::List(None);
                self.tidy();
                return None;
            }
            (Key::Char('y'), Some(asked)) if may_permit => Some(asked),
            (Key::Char('a'), _) if is_proposal => {
                self.message = "nothing waits under a proposal; it takes r, s, d or x".to_owned();
                None
            }
            (Key::Char('a'), None) if may_permit && !is_dangerous => Some("once"),
            (Key::Char('a'), _) if may_permit => {
                opened.asked = Some("once");
                None
            }
            (Key::Char('r'), _) if may_permit => {
                opened.asked = Some("run");
                None
            }
            (Key::Char('s'), _) if may_permit => {
                let preview = Answer::Preview {
                    id: opened.at.id.clone(),
                    line: opened.line,
                };
                let sandbox = opened.at.sandbox.clone();
                opened.is_asking = true;
                self.view = View::Question(opened);
                return Some(Action::Give(sandbox, preview));
            }
            (Key::Char('a' | 'r' | 's'), _) if is_open => {
                self.message = READ_FIRST.to_owned();
                None
            }
            (Key::Char('y'), Some(asked)) if is_open && is_alone => {
                self.message = READ_FIRST.to_owned();
                opened.asked = Some(asked);
                None
            }
            (Key::Char(key @ ('d' | 'x')), _) if is_open => {
                let decision = if key == 'd' { "deny" } else { "deny_run" };
                opened.denial = is_proposal.then(|| Denial {
                    decision,
                    reason: String::new(),
                });
                (!is_proposal).then_some(decision)
            }
            (key, _) => {
                opened.shift(key, lines);
                None
            }
        };
        let Some(decision) = decision else {
            if opened.asked.is_none() {
                opened.difference = None;
            }
            self.view = View::Question(opened);
            return None;
        };
        Some(self.decide(opened, decision, String::new()))
    }

    /// Types the reason of a denial; Enter denies.
    fn type_reason(&mut self, key: Key, mut opened: Opened, mut denial: Denial) -> Option<Action> {
        match key {
            Key::Enter => return Some(self.decide(opened, denial.decision, denial.reason)),
            Key::Char(c) if denial.reason.chars().count() < REASON_CHARACTERS => {
                denial.reason.push(c);
            }
            Key::Erase => {
                denial.reason.pop();
            }
            Key::Char(_) | Key::Up | Key::Down | Key::PageUp | Key::PageDown | Key::Suspend => {}
            Key::Back => {
                self.view = View::Question(opened);
                return None;
            }
        }
        opened.denial = Some(denial);
        self.view = View::Question(opened);
        None
    }

    fn decide(&mut self, opened: Opened, decision: &str, reason: String) -> Action {
        // After an answer nothing is selected.
        self.view = View::List(None);
        let answer = Answer::Decide {
            id: opened.at.id,
            decision: decision.to_owned(),
            line: opened.line,
            reason,
        };
        Action::Give(opened.at.sandbox, answer)
    }

    /// Shows what saving the `line` of the question `id` would change. Its end has to be read again.
    fn ask_to_save(&mut self, id: &str, line: usize, difference: String) {
        if let View::Question(opened) = &mut self.view
            && opened.at.id == id
            && opened.line == line
            && opened.is_asking
        {
            opened.is_asking = false;
            opened.difference = Some(difference);
            opened.end_seen = None;
            opened.asked = Some("save");
        }
    }

    fn press_in_grants(&mut self, key: Key, selected: usize) -> Option<Action> {
        let last = self.granted.len().saturating_sub(1);
        let to = match key {
            Key::Char('q' | 'g') | Key::Back => {
                self.view = View::List(None);
                self.tidy();
                return None;
            }
            Key::Char('u') => {
                return match self.granted.get(selected)?.clone() {
                    Granted::Grant(sandbox, grant) => {
                        Some(Action::Give(sandbox, Answer::Revoke(grant.id)))
                    }
                    Granted::Muted(sandbox, program) => {
                        Some(Action::Give(sandbox, Answer::Unmute(program)))
                    }
                };
            }
            Key::Down | Key::Char('j') => selected + 1,
            Key::Up | Key::Char('k') => selected.saturating_sub(1),
            Key::PageDown => selected + PAGE,
            Key::PageUp => selected.saturating_sub(PAGE),
            Key::Char(_) | Key::Enter | Key::Erase | Key::Suspend => selected,
        };
        self.view = View::Grants(to.min(last));
        None
    }

    /// Says what became of `answer`.
    pub(super) fn answered(&mut self, answer: &Answer, answered: Answered) {
        let answered = match (answered, answer) {
            (Answered::Done(difference), Answer::Preview { id, line }) => {
                self.ask_to_save(id, *line, difference);
                return;
            }
            (answered, _) => answered,
        };
        self.message = match (answered, answer) {
            (Answered::Done(done), Answer::Revoke(_)) => format!("taken back: {done}"),
            // What was written was shown before.
            (Answered::Done(done), _) => done.lines().next().unwrap_or_default().to_owned(),
            (Answered::Stale, _) => {
                "the policy has changed, so nothing was done; the question is asked anew".to_owned()
            }
            (Answered::Gone, _) => "gone: it was answered, or its client gave up".to_owned(),
            (Answered::Unfit(why), _) => why,
        };
        self.tidy();
    }
}

#[cfg(test)]
mod tests;
