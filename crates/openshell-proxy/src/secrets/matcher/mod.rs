//! Searches text that arrives in parts for the secrets of credentials, in one pass.
//!
//! It finds secrets that are plain, in Base64, percent-encoded, escaped as in JSON or HTML, or in
//! UTF-16. All bytes of a secret may be escaped or only some, and each in a different way.

mod patterns;

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use memchr::memmem;
use zeroize::Zeroizing;

use self::patterns::{Owner, Patterns, ROOT, State};
use crate::secrets::decode::{ESCAPE_BYTES, Escape, Escapes};
use crate::secrets::placeholder::base64_forms;

/// Length in bytes of the shortest Base64 form that is searched for; shorter ones match by chance.
const BASE64_BYTES: usize = 8;

/// The encodings of a secret: plain, and as a part of Base64.
pub struct Forms {
    plain: Zeroizing<Vec<u8>>,
    base64: Vec<Zeroizing<Vec<u8>>>,
    /// All forms in lower case, to be searched for in names of fields.
    lower: Vec<Zeroizing<Vec<u8>>>,
    longest: usize,
}

impl Forms {
    /// Encodes `secret`.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        let plain = Zeroizing::new(secret.to_vec());
        let base64: Vec<_> = base64_forms(secret)
            .into_iter()
            .filter(|form| form.len() >= BASE64_BYTES)
            .collect();
        let lower = std::iter::once(&plain)
            .chain(&base64)
            .filter(|form| form.len() >= BASE64_BYTES)
            .map(|form| Zeroizing::new(form.to_ascii_lowercase()))
            .collect();
        let longest = longest(&plain, &base64);
        Self {
            plain,
            base64,
            lower,
            longest,
        }
    }

    /// Returns the length in bytes of the longest encoding in use: six for a letter or digit
    /// (`\u0061`, `&#x61;`), nine for any other byte (`&#x0002b;`, `&lbrack;`).
    #[must_use]
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Returns true if the name of a field contains the secret, in upper or lower case. Short
    /// secrets match by chance and are not searched for.
    #[must_use]
    pub fn are_in_name(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let decoded: Vec<u8> = Escapes::Percent
            .decoded(name.as_bytes())
            .to_ascii_lowercase();
        let texts = [name.as_bytes(), &decoded];
        texts.iter().any(|text| {
            let mut forms = self.lower.iter();
            forms.any(|form| memmem::find(text, form).is_some())
        })
    }

    /// Returns each form, and whether it is Base64.
    fn all(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let base64 = self.base64.iter().map(|form| (form.as_slice(), true));
        std::iter::once((self.plain.as_slice(), false)).chain(base64)
    }
}

/// Shows nothing of the secret.
impl fmt::Debug for Forms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Forms").finish_non_exhaustive()
    }
}

/// Returns the length in bytes of the longest spelling of any form.
fn longest(plain: &[u8], base64: &[Zeroizing<Vec<u8>>]) -> usize {
    let escaped = |byte: &u8| if byte.is_ascii_alphanumeric() { 6 } else { 9 };
    // In Base64, only the characters that are not letters or digits can be escaped.
    let in_base64 = |byte: &u8| if byte.is_ascii_alphanumeric() { 1 } else { 9 };
    let plain = plain.iter().map(escaped).sum();
    base64
        .iter()
        .map(|form| form.iter().map(in_base64).sum())
        .fold(plain, usize::max)
}

/// A search for all forms of several secrets.
#[derive(Debug)]
pub struct SecretSearch(Patterns);

impl SecretSearch {
    /// Prepares the search for the secrets of `forms`.
    #[must_use]
    pub fn new<'f>(forms: impl Iterator<Item = &'f Forms>) -> Self {
        let of_one = |(credential, forms): (usize, &'f Forms)| {
            forms.all().map(move |(form, is_base64)| {
                (
                    form,
                    Owner {
                        credential,
                        is_base64,
                    },
                )
            })
        };
        let all: Vec<_> = forms.enumerate().flat_map(of_one).collect();
        Self(Patterns::new(&all))
    }
}

/// Progress of a search through a text.
#[derive(Debug)]
pub struct Matcher {
    plain: Progress,
    /// Progress in the text with each kind of escape decoded.
    escaped: [Decoder; 7],
}

impl Default for Matcher {
    fn default() -> Self {
        let escapes = [
            Escapes::Percent,
            Escapes::Form,
            Escapes::Backslash,
            Escapes::Reference,
            Escapes::Mixed,
            Escapes::Zeros,
            Escapes::Lines,
        ];
        Self {
            plain: Progress::default(),
            escaped: escapes.map(Decoder::new),
        }
    }
}

impl Matcher {
    /// Searches `part`, the next part of the text, which begins at `at`. Calls `found` with the
    /// index of each secret that ends in it, and the range that its encoded form takes.
    pub fn push(
        &mut self,
        search: &SecretSearch,
        part: &[u8],
        at: usize,
        mut found: impl FnMut(usize, Range<usize>),
    ) {
        let SecretSearch(patterns) = search;
        let before = self.plain.state;
        let chunk = Chunk {
            bytes: part,
            longer: 0,
            at: at.cast_signed(),
        };
        self.plain.advance(patterns, &chunk, &mut |owner, place| {
            found(owner.credential, place)
        });
        for decoder in &mut self.escaped {
            // Without an escape nearby, the search of the plain text has the same result.
            if decoder.is_idle(before) && decoder.escapes.next(part).is_none() {
                decoder.skip(part.len(), self.plain.state);
                continue;
            }
            // Line ends are skipped only within Base64.
            let is_any = decoder.escapes != Escapes::Lines;
            let mut found = |owner: Owner, place| {
                if is_any || owner.is_base64 {
                    found(owner.credential, place);
                }
            };
            decoder.push(patterns, part, at, &mut found);
        }
    }
}

/// Progress through a decoded text.
#[derive(Debug, Default)]
struct Progress {
    /// The beginning of a pattern that the end of the text matches.
    state: State,
    /// Bytes of decoded text so far.
    decoded: u64,
    /// Escapes that a match may reach back to: the offset in the decoded text at which each one
    /// ends, and by how many bytes it and all before it are longer than their meanings.
    escapes: VecDeque<(u64, usize)>,
}

/// Decoded text: a stretch without escapes, or the meaning of one.
#[derive(Clone, Copy)]
struct Chunk<'t> {
    bytes: &'t [u8],
    /// Bytes by which the escape is longer than its meaning.
    longer: usize,
    /// Offset in the text.
    at: isize,
}

impl Progress {
    /// Advances by `chunk`.
    fn advance(
        &mut self,
        patterns: &Patterns,
        chunk: &Chunk<'_>,
        found: &mut impl FnMut(Owner, Range<usize>),
    ) {
        let Chunk { bytes, longer, at } = *chunk;
        if longer > 0 {
            self.note(self.decoded + bytes.len() as u64, longer);
        }
        let mut next = 0;
        while next < bytes.len() {
            if self.state == ROOT {
                next = patterns.next_begin(bytes, next);
            }
            let Some(byte) = bytes.get(next) else { break };
            self.state = patterns.step(self.state, *byte);
            next += 1;
            for pattern in patterns.ending(self.state) {
                let begun = (self.decoded + next as u64).saturating_sub(pattern.length as u64);
                let end = at + next.cast_signed();
                let begin = end - (pattern.length + self.longer_since(begun)).cast_signed();
                // The beginning is negative if an earlier part was sent on, which can no longer be
                // masked.
                let place = usize::try_from(begin).unwrap_or(0)..usize::try_from(end).unwrap_or(0);
                for owner in &pattern.owners {
                    found(*owner, place.clone());
                }
            }
        }
        self.decoded += bytes.len() as u64;
        self.forget(patterns.longest());
    }

    /// Records an escape that ends at `end` in the decoded text.
    fn note(&mut self, end: u64, longer: usize) {
        let before = self.escapes.back().map_or(0, |(_, longer)| *longer);
        match self.escapes.back_mut() {
            Some((last, all)) if *last == end => *all += longer,
            _ => self.escapes.push_back((end, before + longer)),
        }
    }

    /// Returns by how many bytes the escapes that end after `begun` are longer than their meanings.
    fn longer_since(&self, begun: u64) -> usize {
        let all = self.escapes.back().map_or(0, |(_, longer)| *longer);
        let passed = self.escapes.partition_point(|(end, _)| *end <= begun);
        let before = passed
            .checked_sub(1)
            .and_then(|last| self.escapes.get(last))
            .map_or(0, |(_, longer)| *longer);
        all - before
    }

    /// Forgets the escapes that no match reaches back to.
    fn forget(&mut self, longest: usize) {
        if self.state == ROOT {
            self.escapes.clear();
            return;
        }
        let begun = self.decoded.saturating_sub(longest as u64);
        // The last of them is kept, because its sum includes all before it.
        while self.escapes.get(1).is_some_and(|(end, _)| *end <= begun) {
            self.escapes.pop_front();
        }
    }
}

/// A search through a text in which one kind of escape is decoded.
#[derive(Debug)]
struct Decoder {
    escapes: Escapes,
    progress: Progress,
    /// The beginning of an escape at the end of the text: less than [`ESCAPE_BYTES`].
    partial: Vec<u8>,
}

impl Decoder {
    fn new(escapes: Escapes) -> Self {
        Self {
            escapes,
            progress: Progress::default(),
            partial: Vec::new(),
        }
    }

    /// Returns true if no escape is begun or matched, and the state is that of the `plain` text.
    fn is_idle(&self, plain: State) -> bool {
        self.partial.is_empty() && self.progress.state == plain && self.progress.escapes.is_empty()
    }

    /// Skips `length` bytes without an escape, after which the state is that of the `plain` text.
    fn skip(&mut self, length: usize, plain: State) {
        self.progress.state = plain;
        self.progress.decoded += length as u64;
    }

    fn push(
        &mut self,
        patterns: &Patterns,
        part: &[u8],
        at: usize,
        found: &mut impl FnMut(Owner, Range<usize>),
    ) {
        let at = at.cast_signed();
        let partial = std::mem::take(&mut self.partial);
        let mut read = 0;
        if !partial.is_empty() {
            // These are enough bytes to complete the begun escape, or to rule it out.
            let joined = [&partial, part.get(..ESCAPE_BYTES).unwrap_or(part)].concat();
            let begin = at - partial.len().cast_signed();
            read = self.run(patterns, &joined, begin, partial.len(), found) - partial.len();
        }
        let rest = part.get(read..).unwrap_or_default();
        self.run(patterns, rest, at + read.cast_signed(), rest.len(), found);
    }

    /// Reads `text`, which begins at `at`, up to `until` or to the end of an escape that stands
    /// there; returns the number of bytes read.
    fn run(
        &mut self,
        patterns: &Patterns,
        text: &[u8],
        at: isize,
        until: usize,
        found: &mut impl FnMut(Owner, Range<usize>),
    ) -> usize {
        let mut read = 0;
        while read < until {
            let (plain, escape) = self.next_escape(text, read, until);
            let bytes = text.get(read..plain).unwrap_or_default();
            self.progress.advance(
                patterns,
                &Chunk {
                    bytes,
                    longer: 0,
                    at: at + read.cast_signed(),
                },
                found,
            );
            read = plain;
            match escape {
                Escape::Complete { length, meaning } => {
                    let longer = length.saturating_sub(meaning.bytes().len());
                    // The meaning ends where the escape ends.
                    let at = at + (read + longer).cast_signed();
                    self.progress.advance(
                        patterns,
                        &Chunk {
                            bytes: meaning.bytes(),
                            longer,
                            at,
                        },
                        found,
                    );
                    read += length;
                }
                Escape::Begun => {
                    self.partial = text.get(read..).unwrap_or_default().to_vec();
                    return text.len();
                }
                Escape::None => {}
            }
        }
        read
    }

    /// Returns the offset of the next escape in `text` that begins in `read..until`, and the
    /// escape; if there is none, `until` and [`Escape::None`].
    fn next_escape(&self, text: &[u8], read: usize, until: usize) -> (usize, Escape) {
        let mut at = read;
        while let Some(next) = text.get(at..until).and_then(|text| self.escapes.next(text)) {
            at += next;
            match self.escapes.read(text.get(at..).unwrap_or_default()) {
                Escape::None => at += 1,
                escape => return (at, escape),
            }
        }
        (until, Escape::None)
    }
}

#[cfg(test)]
mod tests;
