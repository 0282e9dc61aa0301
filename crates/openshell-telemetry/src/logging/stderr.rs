//! Log lines on standard error, held back while the command has the terminal.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use openshell_events::text::counted;
use parking_lot::{Mutex, MutexGuard};
use time::OffsetDateTime;
use tracing::Level;

use super::form::Form;
use super::identity::RunIdentity;
use super::queue::{Line, Output, Priority, Queue};
use super::sink::{LogEvent, Sink};
use super::tone::Tone;

/// Number of held-back lines that are shown at the end; the log has all lines from `info` up.
const HELD: usize = 20;

/// Standard error: takes events up to a level, and messages to the operator.
pub(super) struct StandardError {
    queue: Queue,
    /// The most verbose level that is shown; `None` for no events.
    level: Option<Level>,
    form: Form,
    /// True if events are shown as messages for people, like messages to the operator.
    is_plain: bool,
    identity: RunIdentity,
    /// `None` while lines are shown at once.
    held: Mutex<Option<Held>>,
}

/// Lines for standard error while the command has the terminal.
#[derive(Default)]
struct Held {
    count: u64,
    last: VecDeque<Line>,
}

impl StandardError {
    /// Creates the sink for events up to `level`, or for no events. Lines have `form`, and messages
    /// carry `identity`.
    pub(super) fn new(level: Option<Level>, form: Form, identity: RunIdentity) -> Self {
        let queue = Queue::new("log-errors", Writer { form });
        Self {
            queue,
            level,
            form,
            is_plain: false,
            identity,
            held: Mutex::default(),
        }
    }

    /// Makes the sink write events as messages for people, without their time and kind.
    pub(super) fn for_people(self) -> Self {
        Self {
            is_plain: true,
            ..self
        }
    }

    /// Prints a message, whatever level is shown; only the JSON form contains `level`, and only the
    /// text form has the colour of `tone`.
    pub(super) fn print(&self, level: Level, tone: Tone, text: &str) {
        let text = self.form.message(level, text, Some(&self.identity));
        let text = self.painted(tone, &text);
        if !self.queue.start() {
            return print_unqueued(&text);
        }
        self.push(message(&text));
    }

    /// Holds back lines until [`Self::release`], if standard error is a terminal. Waits until
    /// earlier lines are written, for `patience` at most.
    pub(super) fn hold(&self, patience: Duration) {
        if std::io::stderr().is_terminal() {
            *self.held() = Some(Held::default());
            self.queue.flush(patience);
        }
    }

    /// Shows how many lines were held back, and the last of them.
    pub(super) fn release(&self) {
        let Some(Held {
            count: count @ 1..,
            last,
        }) = self.held().take()
        else {
            return;
        };
        let which = if count > HELD as u64 {
            format!("; the last {HELD} of them")
        } else {
            String::new()
        };
        let lines = counted(count, "line", "lines");
        self.print(
            Level::INFO,
            Tone::Plain,
            &format!(
                "openshell-sandbox: {lines} held back while the command had the terminal{which}:"
            ),
        );
        for line in last {
            self.queue.push(line);
        }
    }

    /// Returns a line of the text form in its colour.
    fn painted<'t>(&self, tone: Tone, line: &'t str) -> Cow<'t, str> {
        match self.form {
            Form::Text => tone.paint(line, &std::io::stderr()),
            Form::Json => Cow::Borrowed(line),
        }
    }

    /// Writes a line, or holds it back.
    fn push(&self, line: Line) {
        if let Some(held) = self.held().as_mut() {
            held.count += 1;
            held.last.push_back(line);
            if held.last.len() > HELD {
                held.last.pop_front();
            }
            return;
        }
        self.queue.push(line);
    }

    /// Locks the held-back lines. A panic elsewhere cannot leave them half changed.
    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock()
    }
}

impl Sink for StandardError {
    /// Returns at least `info`, because audit events have that level even if an operator must look
    /// at them.
    fn max_level(&self) -> Level {
        self.level
            .map_or(Level::ERROR, |level| level.max(Level::INFO))
    }

    fn take(&self, event: &LogEvent<'_>) {
        if self
            .level
            .is_some_and(|level| event.attention_level() <= level)
        {
            let mut line = if self.is_plain {
                message(&event.for_people())
            } else {
                event.line(self.form)
            };
            line.text = self.painted(event.tone(), &line.text).into_owned();
            self.push(line);
        }
    }

    fn flush(&self, patience: Duration) {
        self.queue.flush(patience);
    }
}

/// Prints a message before logging has started.
pub(super) fn print_unqueued(text: &str) {
    Writer { form: Form::Text }.write(message(text), 0);
}

fn message(text: &str) -> Line {
    Line {
        made: OffsetDateTime::now_utc(),
        priority: Priority::State,
        text: text.to_owned(),
    }
}

struct Writer {
    form: Form,
}

impl Output for Writer {
    /// Returns a short time, because the command writes to the same terminal.
    fn group(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn write(&mut self, mut line: Line, left_out: u64) {
        if left_out > 0 {
            let missing = format!("{} left out", counted(left_out, "line", "lines"));
            line.text = format!(
                "{}\n{}",
                self.form.message(Level::WARN, &missing, None),
                line.text
            );
        }
        line.text.push('\n');
        // The line is written in one piece, because the command may write to the same stream. An
        // error, for example of a closed standard error, must not stop anything.
        let _ = std::io::stderr().write_all(line.text.as_bytes());
    }
}
