//! Searches a text for secrets, in the encodings of common software.
//!
//! Each secret has anchors: texts that it contains in one encoding, which are the beginning of its
//! shape or a part of its value. All anchors are searched for at once. Where one stands, the text
//! from there on is decoded and compared with the shape.

mod coding;
mod encoded;
mod parts;
mod shape;

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::packed;
use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use openshell_policy::credential::{Binding, BoundHost, SHORT_SECRET_BYTES};
use openshell_policy::issuers::{Issuers, Shape};
use openshell_policy::secret::Secret;
use zeroize::Zeroizing;

use self::coding::Coding;
use self::encoded::{Encoded, encoded};
pub(crate) use self::shape::BEFORE;
use self::shape::{Verdict, begins_at, compared, compared_bytes, first_bytes};
use crate::secrets::decode::Escapes;
use crate::secrets::placeholder::base64_forms_after;

/// Number of bytes of a value that are searched for: the last ones, because values of one kind
/// begin alike.
const VALUE: usize = 32;

/// The largest number of patterns in one vectorized search (`aho_corasick::packed`).
const PACKED: usize = 64;

/// The largest number of vectorized searches that are together faster than one automaton.
const SEARCHES: usize = 6;

/// Length in bytes of the longest prefix of an anchor that is searched for.
const SEARCHED: usize = 6;

/// Number of bytes that count as the beginning of an anchor; the beginning of a shape is not
/// secret.
const BEGUN: usize = 4;

/// The shapes of known issuers, whose secrets no log may show.
static SHAPES: LazyLock<Needles> =
    LazyLock::new(|| Needles::new(Issuers::known().into_shapes(), std::iter::empty()));

/// The text that is shown in place of a path, or of a text about one, that holds a secret.
pub const CONCEALED: &str = "/[SECRET]";

/// Returns true if `text`, a path or a text about one, holds what looks like a secret.
#[must_use]
pub fn has_secret(text: &str) -> bool {
    SHAPES.finds_any(text.as_bytes())
        || text.contains('%') && SHAPES.finds_any(&Escapes::Percent.decoded(text.as_bytes()))
}

/// A set of secrets to be searched for.
pub struct Needles {
    secrets: Vec<Sought>,
    anchors: Vec<Anchor>,
    /// Anchors by their first byte.
    by_first: Vec<Vec<usize>>,
    /// Searches for plain anchors, and then for encoded ones.
    plain: Vec<Search>,
    encoded: Vec<Search>,
    /// Bytes of the longest anchor.
    longest: usize,
}

/// A secret that is searched for.
#[derive(Debug)]
pub struct Sought {
    /// Its name in messages: the issuer, the credential, or the part of the supervisor.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The hosts that it is for.
    pub home: Binding,
    /// Its shape; `None` for a value, which needs no more than its anchor.
    shape: Option<Shape>,
}

/// Kind of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A secret of an issuer, known only by its shape.
    Shape,
    /// The value of a credential, for which the command has a placeholder.
    Credential,
    /// The value of a secret of the supervisor, which the command never has.
    Own,
}

/// A value that is searched for.
#[derive(Debug)]
pub struct Value<'v> {
    /// Its name in messages.
    pub name: &'v str,
    /// The secret.
    pub secret: &'v Secret,
    /// The hosts that it is for; with `None` it is for no host at all.
    pub home: Option<&'v [BoundHost]>,
    /// Its kind.
    pub kind: Kind,
}

/// A text in one encoding that shows where a secret is: the beginning of its shape, or a part of
/// its value.
struct Anchor {
    bytes: Zeroizing<Vec<u8>>,
    coding: Coding,
    secret: usize,
}

enum Search {
    Packed(packed::Searcher),
    Automaton(AhoCorasick),
}

impl std::fmt::Debug for Needles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Needles")
            .field("secrets", &self.secrets.len())
            .finish_non_exhaustive()
    }
}

impl Needles {
    /// Prepares the search for `shapes`, each with its issuer and the hosts that it is for, and for
    /// `values`. Values shorter than [`SHORT_SECRET_BYTES`] match by chance and are not searched
    /// for.
    #[must_use]
    pub fn new<'v>(
        shapes: impl Iterator<Item = (String, Vec<String>, Shape)>,
        values: impl Iterator<Item = Value<'v>>,
    ) -> Self {
        let mut secrets = Vec::new();
        let mut anchors = Vec::new();
        for (name, hosts, shape) in shapes {
            let hosts = hosts
                .iter()
                .filter_map(|host| BoundHost::parse(host).ok())
                .collect();
            let home = Binding {
                hosts: Some(hosts),
                path: None,
            };
            anchors.extend(anchors_of(shape.begins.as_bytes(), secrets.len(), 3));
            secrets.push(Sought {
                name,
                kind: Kind::Shape,
                home,
                shape: Some(shape),
            });
        }
        for Value {
            name,
            secret,
            home,
            kind,
        } in values.filter(|value| value.secret.expose().len() >= SHORT_SECRET_BYTES)
        {
            anchors.extend(anchors_of(
                distinctive(secret.expose()),
                secrets.len(),
                SHORT_SECRET_BYTES,
            ));
            let home = Binding {
                hosts: Some(home.unwrap_or_default().to_vec()),
                path: None,
            };
            secrets.push(Sought {
                name: name.to_owned(),
                kind,
                home,
                shape: None,
            });
        }
        let by_first = by_first(&anchors);
        let longest = anchors
            .iter()
            .map(|anchor| anchor.bytes.len())
            .max()
            .unwrap_or(0);
        let is_plain = |anchor: &&Anchor| {
            matches!(anchor.coding, Coding::Text) && !anchor.bytes.starts_with(b"%")
        };
        let (plain, encoded): (Vec<_>, Vec<_>) = anchors.iter().partition(is_plain);
        let plain = searches(&plain);
        let encoded = searches(&encoded);
        Self {
            secrets,
            anchors,
            by_first,
            plain,
            encoded,
            longest,
        }
    }

    /// Returns the secret whose index [`Self::search`] found.
    #[must_use]
    pub fn secret(&self, index: usize) -> Option<&Sought> {
        self.secrets.get(index)
    }

    /// Returns the number of passes of a search through a text.
    #[cfg(test)]
    pub(crate) fn passes(&self) -> usize {
        self.plain.len() + self.encoded.len()
    }

    /// Returns how many bytes before the end of a text a secret may begin without being recognized
    /// yet.
    pub(crate) fn longest(&self) -> usize {
        self.longest.max(2 * encoded::SHOWN)
    }

    /// Calls `found` with each secret that begins in the range `begins` of `text`. Returns the
    /// first offset there at which more text could show a secret, unless the text `is_whole`. If
    /// the bytes are not text, only plain secrets are searched for.
    pub fn search(
        &self,
        text: &[u8],
        begins: Range<usize>,
        is_whole: bool,
        mut found: impl FnMut(usize),
    ) -> Option<usize> {
        let mut undecided: Option<usize> = None;
        let mut judge = |at: usize, verdict: Verdict, secret: usize| match verdict {
            Verdict::Secret => found(secret),
            Verdict::Other => {}
            Verdict::Undecided => undecided = Some(undecided.map_or(at, |before| before.min(at))),
        };
        let is_text = is_text(text);
        self.search_anchors(&self.plain, text, &begins, is_whole, &mut judge);
        if is_text {
            self.search_anchors(&self.encoded, text, &begins, is_whole, &mut judge);
            for (secret, parts) in self.parts() {
                parts::search(parts, text, &begins, is_whole, |at, verdict| {
                    judge(at, verdict, secret)
                });
            }
            // Anchors are only found within one line; this finds what the end of a line splits.
            for Encoded {
                begin,
                decoded,
                goes_on,
                undecided,
            } in encoded(text, begins)
            {
                let mut in_decoded = |_, verdict, secret| {
                    if verdict == Verdict::Secret {
                        judge(begin, verdict, secret);
                    }
                };
                self.search_anchors(
                    &self.plain,
                    &decoded,
                    &(0..decoded.len()),
                    !goes_on,
                    &mut in_decoded,
                );
                for (secret, parts) in self.parts() {
                    if parts::is_in(parts, &decoded) {
                        in_decoded(0, Verdict::Secret, secret);
                    }
                }
                if let Some(at) = undecided
                    && !is_whole
                {
                    judge(at, Verdict::Undecided, 0);
                }
            }
        }
        undecided
    }

    /// Judges each place in the range `begins` of `text` where `searches` find an anchor, and calls
    /// `judge` with the verdict.
    fn search_anchors(
        &self,
        searches: &[Search],
        text: &[u8],
        begins: &Range<usize>,
        is_whole: bool,
        judge: &mut impl FnMut(usize, Verdict, usize),
    ) {
        for search in searches {
            let mut next = begins.start;
            let end = text.len().min(begins.end + SEARCHED);
            while let Some(at) = search.next(text, next..end).filter(|at| *at < begins.end) {
                next = at + 1;
                let rest = text.get(at..).unwrap_or_default();
                let first = rest.first().map_or(0, |byte| usize::from(*byte));
                for anchor in self
                    .by_first
                    .get(first)
                    .into_iter()
                    .flatten()
                    .filter_map(|index| self.anchors.get(*index))
                {
                    if rest.starts_with(&anchor.bytes) {
                        judge(at, self.judge(anchor, text, at, is_whole), anchor.secret);
                    }
                }
            }
        }
    }

    /// Returns true if `text`, which is complete, holds a secret.
    #[must_use]
    pub fn finds_any(&self, text: &[u8]) -> bool {
        let mut is_found = false;
        self.search(text, 0..text.len(), true, |_| is_found = true);
        is_found
    }

    /// Returns the first offset near the end of `text` where a shape may have begun. Values do not
    /// count: if text that begins like one were held back, a guesser would learn how much of a
    /// guess is right.
    pub(crate) fn begun(&self, text: &[u8]) -> Option<usize> {
        let from = text.len().saturating_sub(self.longest.saturating_sub(1));
        (from..text.len().saturating_sub(BEGUN - 1)).find(|at| {
            let rest = text.get(*at..).unwrap_or_default();
            let first = rest.first().map_or(0, |byte| usize::from(*byte));
            let anchors = self
                .by_first
                .get(first)
                .into_iter()
                .flatten()
                .filter_map(|index| self.anchors.get(*index));
            let is_shape = |anchor: &Anchor| {
                self.secrets
                    .get(anchor.secret)
                    .is_some_and(|secret| secret.kind == Kind::Shape)
            };
            anchors.into_iter().any(|anchor| {
                is_shape(anchor)
                    && anchor.bytes.len() > rest.len()
                    && anchor.bytes.starts_with(rest)
            })
        })
    }

    fn parts(&self) -> impl Iterator<Item = (usize, [usize; 3])> {
        let parts =
            |(index, secret): (usize, &Sought)| Some((index, secret.shape.as_ref()?.parts?));
        self.secrets.iter().enumerate().filter_map(parts)
    }

    fn judge(&self, anchor: &Anchor, text: &[u8], at: usize, is_whole: bool) -> Verdict {
        let Some(shape) = self
            .secrets
            .get(anchor.secret)
            .and_then(|secret| secret.shape.as_ref())
        else {
            return Verdict::Secret;
        };
        let is_readable = matches!(anchor.coding, Coding::Text);
        if is_readable && !begins_at(shape, text.get(..at).unwrap_or_default()) {
            return Verdict::Other;
        }
        // A text may be full of anchors; the first bytes rule out most of them.
        for most in first_bytes(shape) {
            let (decoded, _) = anchor.coding.decoded(text, at, most);
            if compared(shape, &decoded, true) == Verdict::Other {
                return Verdict::Other;
            }
        }
        let (decoded, is_cut) = anchor.coding.decoded(text, at, compared_bytes(shape));
        compared(shape, &decoded, is_cut && !is_whole)
    }
}

impl Search {
    fn next(&self, text: &[u8], within: Range<usize>) -> Option<usize> {
        match self {
            Self::Packed(search) => search
                .find_in(text, within.into())
                .map(|found| found.start()),
            Self::Automaton(search) => search
                .find(Input::new(text).range(within))
                .map(|found| found.start()),
        }
    }
}

/// Makes the searches for the beginnings of all anchors. What a search finds is compared with each
/// anchor, so anchors with the same beginning need it only once; fewer patterns make a faster
/// search.
fn searches(anchors: &[&Anchor]) -> Vec<Search> {
    let beginning = |anchor: &&Anchor| {
        let length = match anchor.coding {
            Coding::Text if anchor.bytes.starts_with(b"-") => SEARCHED,
            Coding::Hex => 4,
            Coding::Text | Coding::Base64 { .. } => 3,
        };
        anchor.bytes.get(..length).unwrap_or(&anchor.bytes).to_vec()
    };
    let mut texts: Vec<_> = anchors.iter().map(beginning).collect();
    texts.sort_unstable();
    texts.dedup();
    let packed = |texts: &[Vec<u8>]| {
        let config = packed::Config::new()
            .match_kind(packed::MatchKind::LeftmostFirst)
            .clone();
        config.builder().extend(texts).build().map(Search::Packed)
    };
    let groups = texts.chunks(PACKED);
    let vectorized = (groups.len() <= SEARCHES)
        .then(|| groups.map(packed).collect::<Option<Vec<_>>>())
        .flatten();
    let automaton = || {
        let mut builder = AhoCorasick::builder();
        builder
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostFirst);
        // The automaton has room for all anchors of the largest set of credentials.
        builder
            .build(&texts)
            .ok()
            .map(Search::Automaton)
            .into_iter()
            .collect()
    };
    vectorized.unwrap_or_else(automaton)
}

/// Returns true if `text` is short, or if one of three samples of it is UTF-8. Compressed data,
/// images and ciphertext hold encoded secrets only by chance.
fn is_text(text: &[u8]) -> bool {
    const SAMPLE: usize = 64;
    let is_sample_text = |at: usize| {
        let sample = text.get(at..at + SAMPLE).unwrap_or_default();
        // A sample may begin and end within a character.
        let begin = sample
            .iter()
            .take(3)
            .take_while(|byte| **byte & 0xc0 == 0x80)
            .count();
        let error = std::str::from_utf8(sample.get(begin..).unwrap_or_default()).err();
        error.is_none_or(|error| error.error_len().is_none())
    };
    let last = text.len().saturating_sub(SAMPLE);
    text.len() < 16 * SAMPLE || [0, last / 2, last].into_iter().any(is_sample_text)
}

/// Returns the part of a value that no other value has by chance: of several lines one in the
/// middle, and of a long line the end.
fn distinctive(value: &[u8]) -> &[u8] {
    let lines: Vec<_> = value
        .split(|byte| *byte == b'\n')
        .filter(|line| line.len() >= VALUE)
        .collect();
    let line = lines
        .get(lines.len() / 2)
        .copied()
        .filter(|_| value.contains(&b'\n'))
        .unwrap_or(value);
    line.get(line.len().saturating_sub(VALUE)..).unwrap_or(line)
}

/// Returns the anchors of `bytes` in every encoding. Base64 forms have at least `least` characters.
fn anchors_of(bytes: &[u8], secret: usize, least: usize) -> Vec<Anchor> {
    if bytes.is_empty() {
        return Vec::new();
    }
    let anchor = |bytes: Vec<u8>, coding| Anchor {
        bytes: Zeroizing::new(bytes),
        coding,
        secret,
    };
    let hex = |upper: bool| in_hex(bytes, upper);
    let percent = |upper: bool, is_kept: fn(u8) -> bool| percent_encoded(bytes, upper, is_kept);
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let alphanumeric = |byte: u8| byte.is_ascii_alphanumeric();
    let mut anchors = vec![anchor(bytes.to_vec(), Coding::Text)];
    let in_form = bytes
        .iter()
        .map(|byte| if *byte == b' ' { b'+' } else { *byte });
    anchors.push(anchor(in_form.collect(), Coding::Text));
    anchors.push(anchor(
        percent(true, |byte| {
            byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte)
        }),
        Coding::Text,
    ));
    for upper in [true, false] {
        anchors.push(anchor(hex(upper), Coding::Hex));
        let kept: [fn(u8) -> bool; 2] = [unreserved, alphanumeric];
        anchors.extend(kept.map(|kept| anchor(percent(upper, kept), Coding::Text)));
    }
    for skipped in 0..3_usize {
        let lead = (skipped * 8).div_ceil(6);
        let forms = base64_forms_after(skipped, bytes)
            .into_iter()
            .filter(|form| form.len() >= least);
        anchors.extend(forms.map(|bytes| Anchor {
            bytes,
            coding: Coding::Base64 { lead, skipped },
            secret,
        }));
    }
    // If no byte needs an escape, several encodings are the text itself; one anchor is enough.
    let mut known: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    anchors.retain(|anchor| {
        let is_new =
            !known.contains(&anchor.bytes) || matches!(anchor.coding, Coding::Base64 { .. });
        known.push(anchor.bytes.clone());
        is_new
    });
    anchors
}

/// Returns the indices of the anchors that begin with each byte.
fn by_first(anchors: &[Anchor]) -> Vec<Vec<usize>> {
    let mut by_first = vec![Vec::new(); 256];
    for (index, anchor) in anchors.iter().enumerate() {
        let first = anchor.bytes.first().map_or(0, |byte| usize::from(*byte));
        if let Some(known) = by_first.get_mut(first) {
            known.push(index);
        }
    }
    by_first
}

fn in_hex(bytes: &[u8], upper: bool) -> Vec<u8> {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = if upper {
            write!(text, "{byte:02X}")
        } else {
            write!(text, "{byte:02x}")
        };
    }
    text.into_bytes()
}

/// Encodes all `bytes` but those that are kept (RFC 3986 §2.1).
fn percent_encoded(bytes: &[u8], upper: bool, is_kept: fn(u8) -> bool) -> Vec<u8> {
    let mut text = Vec::with_capacity(bytes.len());
    for byte in bytes {
        if is_kept(*byte) {
            text.push(*byte);
        } else {
            text.push(b'%');
            text.extend(in_hex(&[*byte], upper));
        }
    }
    text
}
