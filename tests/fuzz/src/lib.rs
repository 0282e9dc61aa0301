//! Inputs for parsers: samples and random mutations of them, for one second, or for `FUZZ_SECONDS`.
//! The same seed gives the same inputs, so that failures are reproducible.

#![forbid(unsafe_code)]
#![expect(
    clippy::unwrap_used,
    reason = "in a test a failed step is a failed test"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the time of a run comes from the environment"
)]

use std::time::{Duration, Instant};

/// A reproducible generator of random numbers (xorshift64).
#[derive(Debug)]
pub struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    /// Returns a number below `bound`, or 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap() % bound.max(1)
    }

    /// Returns one of `samples`, with some bytes changed, inserted, removed or copied from another.
    fn mutated(&mut self, samples: &[&[u8]], words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = samples[self.below(samples.len())].to_vec();
        for _ in 0..self.below(6) {
            let at = self.below(bytes.len() + 1);
            match self.below(5) {
                0 if at < bytes.len() => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                1 => bytes.insert(at, u8::try_from(self.below(256)).unwrap()),
                2 => bytes.truncate(at),
                3 => drop(bytes.splice(at..at, words[self.below(words.len())].iter().copied())),
                _ => {
                    let other = samples[self.below(samples.len())];
                    let from = self.below(other.len() + 1);
                    bytes.extend_from_slice(&other[from..]);
                }
            }
        }
        bytes
    }
}

/// Runs `check` on `samples`, and on mutations with `words` in them, for the time of a run. Prints
/// their number.
///
/// # Panics
/// `check` panics.
pub fn fuzz(name: &str, samples: &[&[u8]], words: &[&[u8]], mut check: impl FnMut(&[u8])) {
    let seconds = std::env::var("FUZZ_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    for sample in samples.iter() {
        check(sample);
    }
    let mut random = Random::default();
    let mut count = 0_u64;
    while Instant::now() < end {
        let input = random.mutated(samples, words);
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&input)));
        assert!(checked.is_ok(), "{name}: {}", input.escape_ascii());
        count += 1;
    }
    println!("{name}: {count} inputs");
}
