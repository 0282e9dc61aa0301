//! The search for a ClientHello anywhere in what a client sends. A protocol that begins differently
//! may still turn to TLS (STARTTLS).

use memchr::memmem;

/// The most bytes that it takes to recognize a ClientHello: a record header, five bytes of its
/// record, and three of the next header.
const BYTES: usize = 13;

/// The beginnings of a handshake record, and of the type and version in the older form, each with
/// the number of bytes before it.
const BEGINNINGS: [(&[u8], usize); 2] = [(&[0x16, 3], 0), (&[1, 3], 2)];

/// A search through a text that arrives in parts.
#[derive(Debug, Default)]
pub(super) struct HelloSearch {
    /// The end of the parts before.
    tail: Vec<u8>,
}

impl HelloSearch {
    /// Returns true as soon as the parts hold enough of a ClientHello to recognize it, which is
    /// before it is complete; `part` is the next one.
    pub(super) fn finds_in(&mut self, part: &[u8]) -> bool {
        let across = [&self.tail, part.get(..BYTES).unwrap_or(part)].concat();
        let is_found = has_hello(&across) || has_hello(part);
        let ends: &[u8] = if part.len() < BYTES { &across } else { part };
        self.tail = ends
            .get(ends.len().saturating_sub(BYTES - 1)..)
            .unwrap_or_default()
            .to_vec();
        is_found
    }
}

fn has_hello(text: &[u8]) -> bool {
    BEGINNINGS.iter().any(|(beginning, before)| {
        let mut found = memmem::find_iter(text, beginning);
        found.any(|at| {
            at.checked_sub(*before)
                .and_then(|at| text.get(at..))
                .is_some_and(is_hello)
        })
    })
}

/// Returns true if `text` begins with a ClientHello (RFC 8446 §4.1.2, §5.1), whose records may be
/// as short as a byte, or with one in the older form (RFC 5246 §E.2).
fn is_hello(text: &[u8]) -> bool {
    match text {
        [0x16, 3, 0..=4, 0, length @ 1..=5, 1, rest @ ..] => {
            matches!(
                rest.get(usize::from(*length) - 1..),
                Some([0x16, 3, 0..=4, ..])
            )
        }
        [0x16, 3, 0..=4, _, _, 1, 0, _, _, 3, 0..=4, ..] => true,
        [
            first @ 0x80..=0xff,
            length,
            1,
            3,
            0..=4,
            0,
            ciphers,
            0,
            session,
            0,
            challenge @ 16..=32,
            ..,
        ] => {
            let rest = 9 + u16::from(*ciphers) + u16::from(*session) + u16::from(*challenge);
            u16::from_be_bytes([first & 0x7f, *length]) == rest
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::HelloSearch;

    fn is_found(parts: &[&[u8]]) -> bool {
        let mut search = HelloSearch::default();
        parts.iter().any(|part| search.finds_in(part))
    }

    #[test]
    fn a_hello_is_found_behind_any_bytes_and_wherever_it_is_cut() {
        for hello in [
            b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03".as_slice(),
            b"\x16\x03\x03\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\x16\x03\x01\x00\x01\x01\x16\x03\x01",
            b"\x16\x03\x01\x00\x05\x01\x00\x00\xc4\x03\x16\x03\x01",
            b"\x80\x2b\x01\x03\x01\x00\x12\x00\x00\x00\x10",
        ] {
            let text = [
                b"STARTTLS\r\n\x16\x03\x01\x03".as_slice(),
                hello,
                b"rest of it".as_slice(),
            ]
            .concat();
            for cut in 0..text.len() {
                let (first, rest) = text.split_at(cut);
                assert!(is_found(&[first, rest]), "{} {cut}", text.escape_ascii());
            }
            assert!(
                is_found(&text.chunks(1).collect::<Vec<_>>()),
                "{}",
                hello.escape_ascii()
            );
        }
    }

    #[test]
    fn other_bytes_are_none() {
        for text in [
            b"\x16\x03\x01\x00\xc8\x02\x00\x00\xc4\x03\x03".as_slice(),
            b"\x17\x03\x03\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\x16\x03\x01\x00\xc8\x01\x01\x00\xc4\x03\x03",
            b"\x80\x2c\x01\x03\x01\x00\x12\x00\x00\x00\x10",
            b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
        ] {
            assert!(!is_found(&[text]), "{}", text.escape_ascii());
        }
    }
}
