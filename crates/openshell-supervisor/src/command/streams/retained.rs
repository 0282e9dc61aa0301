//! Keeps the last output of a command for readers that come later.

use std::collections::VecDeque;
use std::sync::Arc;

/// A callback for what a command writes. It runs on the thread that copies the output, and must not
/// block.
pub type Tap = Arc<dyn Fn(Output, &[u8]) + Send + Sync>;

/// The number of bytes that are kept, including the book-keeping.
pub const CAPACITY: usize = 1024 * 1024;

/// What a run costs in bytes of [`CAPACITY`]. Runs count so that a command that changes streams at
/// every byte takes no more memory.
const RUN_BYTES: usize = size_of::<Run>();

/// An output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output, or everything on a terminal.
    Standard,
    /// Standard error.
    Error,
}

/// Consecutive bytes of one output.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The position of the first byte.
    start: u64,
    output: Output,
}

/// The last bytes of a command's outputs, in the order in which they were written, up to
/// [`CAPACITY`] with the book-keeping. A position is the number of bytes that were written before
/// it. Each reader keeps its own position, so a slow reader does not hold up anybody.
#[derive(Debug, Default)]
pub struct Retained {
    bytes: VecDeque<u8>,
    runs: VecDeque<Run>,
    /// The position of the next byte.
    end: u64,
}

/// Bytes of one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The output that the bytes were written to.
    pub output: Output,
    /// The bytes, at least one.
    pub bytes: Vec<u8>,
    /// The number of bytes between the reader's position and this piece that are no longer kept.
    pub lost: u64,
    /// The position after the bytes.
    pub next: u64,
}

/// The greatest length of a piece in bytes.
const PIECE_BYTES: usize = 32 * 1024;

impl Retained {
    /// Adds bytes written to `output`.
    pub fn append(&mut self, output: Output, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.runs.back().is_none_or(|run| run.output != output) {
            self.runs.push_back(Run {
                start: self.end,
                output,
            });
        }
        self.bytes.extend(bytes);
        self.end += bytes.len() as u64;
        while self.bytes.len() + self.runs.len() * RUN_BYTES > CAPACITY {
            self.drop_oldest();
        }
    }

    /// Drops the excess from the oldest run, or all of that run.
    fn drop_oldest(&mut self) {
        let excess = self.bytes.len() + self.runs.len() * RUN_BYTES - CAPACITY;
        let run_end = self.runs.get(1).map_or(self.end, |next| next.start);
        let in_run = usize::try_from(run_end - self.start()).unwrap_or(usize::MAX);
        let dropped = excess.min(in_run).min(self.bytes.len());
        self.bytes.drain(..dropped);
        let start = self.start();
        match self.runs.front_mut() {
            Some(oldest) if start < run_end => oldest.start = start,
            _ => drop(self.runs.pop_front()),
        }
    }

    /// Returns the position of the oldest byte that is kept.
    fn start(&self) -> u64 {
        self.end - self.bytes.len() as u64
    }

    /// Returns what follows `position`: at most 32 KiB, of one output. `None` if nothing follows
    /// yet.
    #[must_use]
    pub fn read(&self, position: u64) -> Option<Piece> {
        let from = position.max(self.start());
        let index = self
            .runs
            .partition_point(|run| run.start <= from)
            .checked_sub(1)?;
        let run = self.runs.get(index)?;
        let run_end = self.runs.get(index + 1).map_or(self.end, |next| next.start);
        let offset = usize::try_from(from - self.start()).ok()?;
        let length = usize::try_from(run_end.checked_sub(from)?)
            .ok()?
            .min(PIECE_BYTES);
        if length == 0 {
            return None;
        }
        let bytes = self.bytes.range(offset..offset + length).copied().collect();
        Some(Piece {
            output: run.output,
            bytes,
            lost: from - position,
            next: from + length as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CAPACITY, Output, Piece, RUN_BYTES, Retained};

    fn all(retained: &Retained, mut position: u64) -> Vec<(Output, Vec<u8>, u64)> {
        std::iter::from_fn(|| {
            let Piece {
                output,
                bytes,
                lost,
                next,
            } = retained.read(position)?;
            position = next;
            Some((output, bytes, lost))
        })
        .collect()
    }

    #[test]
    fn outputs_are_read_in_the_order_in_which_they_were_written() {
        let mut retained = Retained::default();
        assert_eq!(retained.read(0), None);
        for (output, text) in [
            (Output::Standard, "a"),
            (Output::Standard, "b"),
            (Output::Error, ""),
            (Output::Error, "c"),
        ] {
            retained.append(output, text.as_bytes());
        }
        let expected = [
            (Output::Standard, b"ab".to_vec(), 0),
            (Output::Error, b"c".to_vec(), 0),
        ];
        assert_eq!(all(&retained, 0), expected);
        assert_eq!(retained.read(3), None);
        retained.append(Output::Error, b"d");
        assert_eq!(all(&retained, 3), [(Output::Error, b"d".to_vec(), 0)]);
    }

    #[test]
    fn the_last_mebibyte_is_kept_and_a_slow_reader_is_told_what_it_lost() {
        let mut retained = Retained::default();
        let block = vec![b'x'; 300_000];
        for _ in 0..10 {
            retained.append(Output::Standard, &block);
        }
        let pieces = all(&retained, 5);
        let kept: usize = pieces.iter().map(|(_, bytes, _)| bytes.len()).sum();
        assert_eq!(kept, CAPACITY - RUN_BYTES);
        assert_eq!(pieces[0].2, 3_000_000 - 5 - kept as u64);
        assert!(pieces[1..].iter().all(|(_, _, lost)| *lost == 0));
    }

    #[test]
    fn a_command_that_changes_streams_at_every_byte_takes_no_more() {
        let mut retained = Retained::default();
        for number in 0..CAPACITY {
            let output = if number % 2 == 0 {
                Output::Standard
            } else {
                Output::Error
            };
            retained.append(output, &[u8::try_from(number % 251).unwrap()]);
        }
        assert!(retained.bytes.len() + retained.runs.len() * RUN_BYTES <= CAPACITY);
        let pieces = all(&retained, 0);
        assert_eq!(pieces.len(), CAPACITY / (RUN_BYTES + 1));
        assert_eq!(
            pieces.last().unwrap().1,
            [u8::try_from((CAPACITY - 1) % 251).unwrap()]
        );
    }
}
