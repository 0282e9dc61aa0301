//! The questions of running sandboxes on the whole screen, for a person who answers.

mod draw;
mod model;
mod source;
mod text;

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use openshell_access::control::console::{has_shell, stop_job};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{
    DisableBracketedPaste, EnableBracketedPaste, Event, KeyCode, KeyEvent, KeyEventKind,
    KeyModifiers, poll, read,
};
use ratatui::crossterm::execute;
use rustix::termios::{QueueSelector, tcflush};

use crate::config;
use model::{Action, Key, Screen};
use source::{Message, Source};

/// How long a frame stays if nothing happens: the seconds that requests have left are counted down.
const FRAME: Duration = Duration::from_millis(250);

/// The screen in raw mode, which is left when this is dropped.
struct Terminal(DefaultTerminal);

impl Terminal {
    /// Takes over the screen. What was typed before is thrown away.
    ///
    /// # Errors
    /// The terminal cannot be set up.
    fn enter() -> io::Result<Self> {
        // From here on a panic also leaves the screen.
        let terminal = Self(ratatui::try_init()?);
        tcflush(io::stdin(), QueueSelector::IFlush)?;
        execute!(io::stdout(), EnableBracketedPaste)?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that has gone needs nothing.
        let _ = execute!(io::stdout(), DisableBracketedPaste);
        let _ = ratatui::try_restore();
    }
}

/// Shows the questions of the sandbox `name`, or of all, until the person leaves.
///
/// # Errors
/// No sandbox asks, or the terminal fails.
pub(super) fn show(run_dir: Option<&Path>, name: Option<&str>) -> anyhow::Result<ExitCode> {
    let source = Source::start(run_dir, name)?;
    let mut screen = Screen::new(name.map(str::to_owned));
    let mut terminal = Terminal::enter().context("the terminal")?;
    let has_colours = config::are_colours_wanted();
    loop {
        loop {
            match source.messages.try_recv() {
                Ok(Message::Listed(sandbox, listing)) => {
                    screen.list(sandbox, listing, Instant::now());
                }
                Ok(Message::Ended(sandbox)) => screen.end(&sandbox),
                Ok(Message::Signal(number)) => {
                    drop(terminal);
                    return Ok(ExitCode::from(number.saturating_add(128)));
                }
                Ok(Message::Stop) => terminal = stop(terminal)?,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        let now = Instant::now();
        let drawn = terminal.0.draw(|frame| {
            draw::draw(&mut screen, frame, now, has_colours);
        });
        drawn.context("the terminal")?;
        if !poll(FRAME).context("the terminal")? {
            continue;
        }
        let event = read().context("the terminal")?;
        let Some(key) = key(&event) else { continue };
        // Pasted text on a terminal that does not mark it arrives all at once.
        let is_alone = !poll(Duration::ZERO).context("the terminal")?;
        match screen.press(key, is_alone, Instant::now()) {
            None => {}
            Some(Action::Leave) => return Ok(ExitCode::SUCCESS),
            Some(Action::Stop) => terminal = stop(terminal)?,
            Some(Action::Give(sandbox, answer)) => {
                let answered = source.give(&sandbox, &answer);
                screen.answered(&answer, answered);
            }
        }
    }
}

/// Gives the terminal back and stops, as Ctrl-Z asks; takes it again when the shell continues.
fn stop(terminal: Terminal) -> anyhow::Result<Terminal> {
    drop(terminal);
    if has_shell() {
        stop_job()?;
    }
    Terminal::enter().context("the terminal")
}

/// Returns the key of `event`, if it is one that was pressed: neither one that repeats nor pasted
/// text.
fn key(event: &Event) -> Option<Key> {
    let Event::Key(KeyEvent {
        code,
        modifiers,
        kind: KeyEventKind::Press,
        ..
    }) = event
    else {
        return None;
    };
    let is_control = modifiers.contains(KeyModifiers::CONTROL);
    Some(match code {
        KeyCode::Char('c') if is_control => Key::Char('q'),
        KeyCode::Char('z') if is_control => Key::Suspend,
        KeyCode::Char(_) if is_control || modifiers.contains(KeyModifiers::ALT) => return None,
        KeyCode::Char(c) => Key::Char(*c),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Back,
        KeyCode::Backspace => Key::Erase,
        _ => return None,
    })
}
