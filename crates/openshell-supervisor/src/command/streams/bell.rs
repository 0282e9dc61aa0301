//! Where a bell can be written between what a program writes on a terminal.

/// Where the output of a program stands among its control sequences (ECMA-48 §5) and its characters in
/// UTF-8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// Between two of them.
    #[default]
    Between,
    /// Inside a character, of which so many bytes are left.
    Character(u8),
    /// Behind ESC.
    Escape,
    /// Inside a control sequence, up to its final byte.
    Sequence,
    /// Inside a control string, up to BEL or to ST.
    Text,
    /// Behind an ESC there, which may begin ST.
    TextEscape,
}

impl Place {
    /// Returns the place behind `bytes`.
    pub(super) fn behind(self, bytes: &[u8]) -> Self {
        bytes.iter().fold(self, |place, byte| place.next(*byte))
    }

    fn next(self, byte: u8) -> Self {
        match (self, byte) {
            // CAN and SUB end every sequence.
            (_, 0x18 | 0x1a) => Self::Between,
            (Self::Text, 0x07) | (Self::TextEscape, b'\\') => Self::Between,
            (Self::Text | Self::TextEscape, 0x1b) => Self::TextEscape,
            (Self::Text, _) => Self::Text,
            (_, 0x1b) => Self::Escape,
            (Self::Escape | Self::TextEscape, b'[') => Self::Sequence,
            (Self::Escape | Self::TextEscape, b']' | b'P' | b'X' | b'^' | b'_') => Self::Text,
            (Self::Escape | Self::TextEscape, 0x20..=0x2f) => Self::Escape,
            (Self::Escape | Self::TextEscape, _) => Self::Between,
            (Self::Sequence, 0x40..=0x7e) => Self::Between,
            (Self::Sequence, _) => Self::Sequence,
            (Self::Character(2..), 0x80..=0xbf) => self.one_less(),
            (_, 0xc2..=0xdf) => Self::Character(1),
            (_, 0xe0..=0xef) => Self::Character(2),
            (_, 0xf0..=0xf4) => Self::Character(3),
            (_, _) => Self::Between,
        }
    }

    fn one_less(self) -> Self {
        match self {
            Self::Character(left) => Self::Character(left.saturating_sub(1)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_bell_is_never_inside_a_sequence_or_a_character() {
        for text in [
            "\x1b[31m",
            "\x1b[?1049h",
            "\x1b]0;title\x07",
            "\x1b]8;;https://web.test\x1b\\",
            "\x1bP1$r0m\x1b\\",
            "\x1b_Gf=100;AAAA\x1b\\",
            "\x1b(B",
            "\x1b7",
            "\x1b]0;left open\x1b[1m",
            "\x1b[3\x18",
            "é",
            "✓",
            "🦀",
        ] {
            let bytes = text.as_bytes();
            for at in 1..bytes.len() {
                let (before, _) = bytes.split_at(at);
                let place = Place::default().behind(before);
                assert_ne!(place, Place::Between, "{text:?} at {at}");
            }
            assert_eq!(Place::default().behind(bytes), Place::Between, "{text:?}");
        }
    }

    #[test]
    fn plain_text_and_broken_characters_have_a_place_everywhere() {
        for bytes in [
            &b"plain\r\ntext\t"[..],
            b"\x80\xbf\xff",
            b"\xc3a",
            b"\xe2\x9ca",
        ] {
            assert_eq!(Place::default().behind(bytes), Place::Between, "{bytes:?}");
        }
    }
}
