//! Search for secrets in a text that arrives in parts.

use std::sync::Arc;

use crate::secrets::needles::{BEFORE, Needles};

/// Bytes of a part that a secret which began before it can reach: [`Needles`] look at some 700
/// bytes at most.
const REACH: usize = 1024;

/// A search through one text.
#[derive(Debug)]
pub struct Scan {
    needles: Arc<Needles>,
    /// The end of the text so far.
    tail: Vec<u8>,
    /// Bytes at the end of it in which a secret may begin that is not found yet.
    open: usize,
}

impl Scan {
    /// Begins a search.
    #[must_use]
    pub fn new(needles: Arc<Needles>) -> Self {
        Self {
            needles,
            tail: Vec::new(),
            open: 0,
        }
    }

    /// Calls `found` with each secret that is complete with `part`, the next one. May find one
    /// twice.
    pub fn push(&mut self, part: &[u8], mut found: impl FnMut(usize)) {
        let before = self.tail.len();
        if before == 0 {
            let undecided = self.needles.search(part, 0..part.len(), false, &mut found);
            self.keep(part, undecided);
            return;
        }
        let from = before - self.open;
        self.tail
            .extend_from_slice(part.get(..REACH).unwrap_or(part));
        if part.len() <= REACH {
            let undecided =
                self.needles
                    .search(&self.tail, from..self.tail.len(), false, &mut found);
            let tail = std::mem::take(&mut self.tail);
            self.keep(&tail, undecided);
            return;
        }
        // What begins in the first bytes of the part is judged by what stands before it, and by as
        // much after it as counts.
        self.needles
            .search(&self.tail, from..before + BEFORE, true, &mut found);
        let undecided = self
            .needles
            .search(part, BEFORE..part.len(), false, &mut found);
        self.keep(part, undecided);
    }

    /// Calls `found` with each secret that the end of the text completes.
    pub fn finish(&mut self, found: impl FnMut(usize)) {
        let tail = std::mem::take(&mut self.tail);
        self.needles
            .search(&tail, tail.len() - self.open..tail.len(), true, found);
        self.open = 0;
    }

    /// Bytes at the end of the text so far that may be the beginning of a secret.
    #[must_use]
    pub fn undecided(&self) -> usize {
        let from = self.tail.len() - self.open;
        // An anchor that is complete was judged undecided, or else is of no account.
        let begun = self
            .needles
            .begun(self.tail.get(from..).unwrap_or_default())
            .map(|at| from + at);
        let undecided = self
            .needles
            .search(&self.tail, from..self.tail.len(), false, |_| ());
        begun
            .into_iter()
            .chain(undecided)
            .min()
            .map_or(0, |at| self.tail.len() - at)
    }

    /// Keeps the end of `text`: from the place that is `undecided`, or that the longest anchor
    /// could have begun at, and what stands before it.
    fn keep(&mut self, text: &[u8], undecided: Option<usize>) {
        let anchor = text
            .len()
            .saturating_sub(self.needles.longest().saturating_sub(1));
        let from = undecided.map_or(anchor, |undecided| undecided.min(anchor));
        let kept = text.get(from.saturating_sub(BEFORE)..).unwrap_or_default();
        self.tail.clear();
        self.tail.extend_from_slice(kept);
        self.open = text.len() - from;
    }
}
