//! How a person is asked about what the policy refuses.

use std::ops::RangeInclusive;

/// The bounds of the time that a request waits for a person, in seconds.
const HOLD: RangeInclusive<u16> = 5..=3600;

/// The host at which programs inside ask about the policy, and propose lines of it.
pub const HOST: &str = "policy.local";

/// How a person is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approvals {
    /// How long a request waits while somebody looks, in seconds: 5 to 3,600.
    pub hold: u16,
}

/// A text that is not the time for which a request may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a time from 5 seconds to 1 hour, such as 120s or 5m")]
pub struct NoHold;

/// Parses the time for which a request waits, and returns it in seconds. It is written in seconds, or as a number with s, m or h, such as 90s or 5m.
///
/// # Errors
/// Fails if it is no such time, or beyond the bounds.
pub fn hold(text: &str) -> Result<u16, NoHold> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("", 1)];
    let mut split = units.into_iter().filter_map(|(unit, seconds)| {
        let digits = text.strip_suffix(unit)?;
        Some((digits, seconds))
    });
    let (digits, seconds) = split.next().ok_or(NoHold)?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    let number: u16 = digits.parse().map_err(|_| NoHold)?;
    let hold = number.checked_mul(seconds);
    hold.filter(|hold| is_plain && HOLD.contains(hold))
        .ok_or(NoHold)
}

#[cfg(test)]
mod tests {
    use super::{NoHold, hold};

    #[test]
    fn a_request_waits_from_five_seconds_to_an_hour() {
        for (text, seconds) in [("5", 5), ("120s", 120), ("5m", 300), ("1h", 3600)] {
            assert_eq!(hold(text), Ok(seconds));
        }
        for text in [
            "",
            "s",
            "4",
            "05",
            "+5",
            "4999ms",
            "1h1s",
            "2h",
            "-5",
            "x",
            "5 5",
            "99999999999999999h",
        ] {
            assert_eq!(hold(text), Err(NoHold), "{text}");
        }
    }
}
