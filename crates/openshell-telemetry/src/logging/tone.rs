//! Colours of messages on a terminal.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Neither of the others.
    Plain,
    /// What a person should look at.
    Warning,
    /// What was refused, or failed.
    Refusal,
}

/// True if messages on a terminal have colours.
static HAS_COLOURS: AtomicBool = AtomicBool::new(false);

/// Gives messages on a terminal colours, or none.
pub fn set_colours(are_wanted: bool) {
    HAS_COLOURS.store(are_wanted, Ordering::Relaxed);
}

/// Start of a red text, without what the command has set (ECMA-48, SGR 0 and 31).
const RED: &str = "\x1b[0;31m";

/// The same for a yellow one (SGR 33).
const YELLOW: &str = "\x1b[0;33m";

/// End of a coloured text (SGR 0).
const END: &str = "\x1b[0m";

/// The indent of remedies, which keep the colour of the terminal.
const REMEDY: &str = "      ";

impl Tone {
    /// Returns `text`, which goes to `stream`, in its colour, if that is a terminal and colours are
    /// wanted.
    pub(super) fn paint<'t>(self, text: &'t str, stream: &impl IsTerminal) -> Cow<'t, str> {
        let colour = match self {
            Self::Plain => return Cow::Borrowed(text),
            Self::Warning => YELLOW,
            Self::Refusal => RED,
        };
        if !HAS_COLOURS.load(Ordering::Relaxed) || !stream.is_terminal() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(painted(text, colour))
    }
}

/// Returns `text` in `colour`, apart from remedies. Each line ends its colour, because the command
/// may write between them.
fn painted(text: &str, colour: &str) -> String {
    let lines = text.split('\n').map(|line| {
        if line.starts_with(REMEDY) {
            line.to_owned()
        } else {
            format!("{colour}{line}{END}")
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{RED, painted};

    #[test]
    fn each_line_ends_its_colour_and_remedies_have_none() {
        assert_eq!(
            painted("refused:\n  1 x a\n      add b", RED),
            "\x1b[0;31mrefused:\x1b[0m\n\x1b[0;31m  1 x a\x1b[0m\n      add b"
        );
    }
}
