//! Searches text that arrives in parts for many patterns at once (Aho, Corasick 1975). We have our
//! own implementation because the patterns are secrets, which it overwrites when it is dropped.

use std::collections::VecDeque;

use aho_corasick::packed;
use zeroize::Zeroizing;

/// Length in bytes of the prefixes by which the next place is found where a pattern may begin.
const BEGIN: usize = 3;

/// The largest number of prefixes that are searched for at once.
const BEGINS: usize = 64;

/// A node of the pattern tree: what the last bytes of a text match. The first node is the root,
/// where they match nothing.
pub(super) type State = u32;

pub(super) const ROOT: State = 0;

/// A set of texts to be searched for.
pub(super) struct Patterns {
    nodes: Vec<Node>,
    /// The byte that leads to each node.
    bytes: Zeroizing<Vec<u8>>,
    /// The child of the root for each byte.
    first: Vec<State>,
    patterns: Vec<Pattern>,
    begins: Option<packed::Searcher>,
    longest: usize,
}

/// A node of the tree. In its fields, [`ROOT`] means that there is no such node.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// The first child.
    child: State,
    /// The next child of the same parent.
    sibling: State,
    /// The longest other text in the tree that this node's text ends with.
    suffix: State,
    /// The longest pattern that this node's text ends with, or is.
    ends: State,
    /// The pattern that this node's text is, counted from one; 0 if it is none.
    pattern: usize,
}

/// A pattern that was found.
#[derive(Debug)]
pub(super) struct Pattern {
    /// Its length in bytes.
    pub(super) length: usize,
    /// The secrets that have this form.
    pub(super) owners: Vec<Owner>,
}

/// Owner of a pattern.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    /// Index of the credential.
    pub(super) credential: usize,
    /// True for a form in Base64.
    pub(super) is_base64: bool,
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patterns")
            .field("patterns", &self.patterns.len())
            .finish_non_exhaustive()
    }
}

impl Patterns {
    /// Prepares the search for `texts`; empty ones are skipped.
    pub(super) fn new(texts: &[(&[u8], Owner)]) -> Self {
        let mut patterns = Self {
            nodes: vec![Node::default()],
            bytes: Zeroizing::new(vec![0]),
            first: vec![ROOT; 256],
            patterns: Vec::new(),
            begins: None,
            longest: 0,
        };
        // The space is reserved so that the bytes are never moved, which would leave a copy behind.
        patterns
            .bytes
            .reserve_exact(texts.iter().map(|(text, _)| text.len()).sum());
        let mut begins: Vec<&[u8]> = Vec::new();
        for (text, owner) in texts.iter().filter(|(text, _)| !text.is_empty()) {
            patterns.add(text, *owner);
            begins.push(text.get(..BEGIN).unwrap_or(text));
        }
        patterns.link();
        begins.sort_unstable();
        begins.dedup();
        if begins.len() <= BEGINS {
            let config = packed::Config::new()
                .match_kind(packed::MatchKind::LeftmostFirst)
                .clone();
            patterns.begins = config.builder().extend(begins).build();
        }
        patterns
    }

    /// Returns the length in bytes of the longest pattern.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    fn add(&mut self, text: &[u8], owner: Owner) {
        self.longest = self.longest.max(text.len());
        let mut state = ROOT;
        for byte in text {
            state = match self.below(state, *byte) {
                ROOT => self.grow(state, *byte),
                below => below,
            };
        }
        let next = self.patterns.len() + 1;
        let Some(node) = self.nodes.get_mut(state as usize) else {
            return;
        };
        if node.pattern == 0 {
            node.pattern = next;
            self.patterns.push(Pattern {
                length: text.len(),
                owners: Vec::new(),
            });
        }
        if let Some(pattern) = self.patterns.get_mut(node.pattern - 1) {
            pattern.owners.push(owner);
        }
    }

    /// Adds a child for `byte` to `state`.
    fn grow(&mut self, state: State, byte: u8) -> State {
        let new = State::try_from(self.nodes.len()).unwrap_or(ROOT);
        let sibling = match state {
            ROOT => ROOT,
            _ => self.node(state).child,
        };
        self.nodes.push(Node {
            sibling,
            ..Node::default()
        });
        self.bytes.push(byte);
        if state == ROOT {
            if let Some(first) = self.first.get_mut(usize::from(byte)) {
                *first = new;
            }
        } else {
            if let Some(node) = self.nodes.get_mut(state as usize) {
                node.child = new;
            }
        }
        new
    }

    /// Sets the links of each node to its suffix and its pattern, beginning next to the root.
    fn link(&mut self) {
        let mut waiting: VecDeque<_> = self
            .first
            .iter()
            .copied()
            .filter(|state| *state != ROOT)
            .collect();
        while let Some(state) = waiting.pop_front() {
            let node = self.node(state);
            let ends = if node.pattern > 0 {
                state
            } else {
                self.node(node.suffix).ends
            };
            if let Some(node) = self.nodes.get_mut(state as usize) {
                node.ends = ends;
            }
            let mut child = node.child;
            while child != ROOT {
                let suffix = self.step(node.suffix, self.byte(child));
                if let Some(child) = self.nodes.get_mut(child as usize) {
                    child.suffix = suffix;
                }
                waiting.push_back(child);
                child = self.node(child).sibling;
            }
        }
    }

    fn node(&self, state: State) -> Node {
        self.nodes.get(state as usize).copied().unwrap_or_default()
    }

    fn byte(&self, state: State) -> u8 {
        self.bytes.get(state as usize).copied().unwrap_or_default()
    }

    /// Returns the node that `byte` leads to from `state`, or the root if there is none.
    fn below(&self, state: State, byte: u8) -> State {
        if state == ROOT {
            return self.first.get(usize::from(byte)).copied().unwrap_or(ROOT);
        }
        let mut child = self.node(state).child;
        while child != ROOT && self.byte(child) != byte {
            child = self.node(child).sibling;
        }
        child
    }

    /// Returns the state after `byte`.
    pub(super) fn step(&self, mut state: State, byte: u8) -> State {
        loop {
            let below = self.below(state, byte);
            if below != ROOT || state == ROOT {
                return below;
            }
            state = self.node(state).suffix;
        }
    }

    /// Returns the patterns that end in `state`.
    pub(super) fn ending(&self, state: State) -> impl Iterator<Item = &Pattern> {
        let mut next = self.node(state).ends;
        std::iter::from_fn(move || {
            let node = self.node(next);
            let pattern = self.patterns.get(node.pattern.checked_sub(1)?)?;
            next = self.node(node.suffix).ends;
            Some(pattern)
        })
    }

    /// Returns the offset of the next place in `text`, at or after `from`, where a pattern may
    /// begin. Near the end, where no prefix fits, that is every place.
    pub(super) fn next_begin(&self, text: &[u8], from: usize) -> usize {
        let near_end = text.len().saturating_sub(BEGIN - 1).max(from);
        match &self.begins {
            Some(begins) => begins
                .find_in(text, (from..text.len()).into())
                .map_or(near_end, |found| found.start())
                .min(near_end),
            None => from,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Owner, Patterns, ROOT};

    #[test]
    fn all_patterns_are_found_that_end_at_each_place_of_a_text() {
        let texts = ["he", "she", "his", "hers", "e", "abab", "bab", "abab"];
        let owner = |credential| Owner {
            credential,
            is_base64: false,
        };
        let all = texts
            .iter()
            .enumerate()
            .map(|(index, text)| (text.as_bytes(), owner(index)));
        let patterns = Patterns::new(&all.collect::<Vec<_>>());
        for text in ["ushers", "ahishers", "abababab", "xhershe", ""] {
            let mut state = ROOT;
            let mut found = Vec::new();
            for (at, byte) in text.bytes().enumerate() {
                state = patterns.step(state, byte);
                let ending = patterns.ending(state);
                found.extend(
                    ending
                        .flat_map(|pattern| pattern.owners.iter())
                        .map(|owner| (at + 1, owner.credential)),
                );
            }
            let mut expected: Vec<_> = (1..=text.len())
                .flat_map(|end| (0..texts.len()).map(move |index| (end, index)))
                .filter(|(end, index)| text[..*end].ends_with(texts[*index]))
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{text}");
        }
        assert_eq!(patterns.next_begin(b"0123456789she", 0), 10);
        assert_eq!(patterns.next_begin(b"0123456789ab", 0), 10);
    }
}
