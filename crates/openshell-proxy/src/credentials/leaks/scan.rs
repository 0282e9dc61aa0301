//! Searches a text that arrives in parts for secrets.

use std::sync::Arc;

use crate::secrets::needles::{BEFORE, Needles};

/// Number of bytes at the beginning of a part that can belong to a secret which began before it:
/// [`Needles`] look at some 700 bytes at most.
const REACH: usize = 1024;

/// A search through one text.
#[derive(Debug)]
pub struct Scan {
    needles: Arc<Needles>,
    /// The end of the text so far.
    tail: Vec<u8>,
    /// Number of bytes at its end in which a secret may begin that has not been found yet.
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

    /// Searches `part`, the next part. Calls `found` with each secret that it completes, and maybe
    /// twice with the same one.
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
        // What begins in the first bytes of the part is judged together with what stands before it,
        // and with as much of the part as can matter.
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

    /// Returns how many bytes at the end of the text so far may be the beginning of a secret.
    #[must_use]
    pub fn undecided(&self) -> usize {
        let from = self.tail.len() - self.open;
        // A complete anchor either was judged undecided below, or does not matter.
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

    /// Keeps the end of `text`: from the `undecided` place on, or from where the longest anchor
    /// could have begun, and some bytes before it.
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
