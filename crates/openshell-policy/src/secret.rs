//! Secret values.

use std::fmt;

use zeroize::Zeroizing;

/// Secret bytes, which must not appear in logs, errors or responses. `Debug` redacts them; dropping
/// wipes their memory.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Wraps `bytes`; no other copy of them should remain.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Removes one newline at the end, because editors add one.
    #[must_use]
    pub fn without_last_newline(mut self) -> Self {
        if self.0.last() == Some(&b'\n') {
            self.0.pop();
        }
        self
    }

    /// Exposes the bytes.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Compares two secrets in a time that depends only on their lengths.
    #[must_use]
    pub fn ct_eq(&self, other: &Self) -> bool {
        let differs = self
            .0
            .iter()
            .zip(other.0.iter())
            .fold(0, |differs, (one, other)| differs | (one ^ other));
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
        assert_eq!(
            format!("{:?}", Some(Secret::new(b"hunter2".to_vec()))),
            "Some(Secret(…))"
        );
    }
}
