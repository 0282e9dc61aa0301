//! Values that nobody is shown.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes that no log, error or answer may hold. `Debug` does not show them, and their memory is wiped when they are dropped.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Keeps `bytes`, of which no other copy should be left.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The same, less one newline at its end, as editors leave it.
    #[must_use]
    pub fn without_last_newline(mut self) -> Self {
        if self.0.last() == Some(&b'\n') {
            self.0.pop();
        }
        self
    }

    /// The bytes, for the one place that they are meant for.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Whether both are the same, in a time that tells their lengths alone.
    #[must_use]
    pub fn ct_eq(&self, other: &Self) -> bool {
        let differs = self.0.iter().zip(other.0.iter()).fold(0, |differs, (one, other)| differs | (one ^ other));
        self.0.len() == other.0.len() && differs == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::Secret;

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Some(Secret::new(b"hunter2".to_vec()))), "Some(Secret(…))");
    }
}
