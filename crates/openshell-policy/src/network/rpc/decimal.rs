//! Numbers as decimals of any length, so that a comparison loses no digit.

use std::cmp::Ordering;
use std::fmt;

/// A decimal number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// The digits without zeros at either end; empty for zero. The first one stands behind the point.
    digits: String,
    /// The power of ten by which that is multiplied.
    exponent: i64,
}

impl Decimal {
    /// Parses the text of a JSON number (RFC 8259 §6); returns `None` for another text, and for an
    /// exponent that does not fit into 64 bits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.parse().ok()?;
        let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let all = [whole, fraction].concat();
        if all.is_empty() || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let behind = all.trim_start_matches('0');
        let digits = behind.trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self {
                is_negative: false,
                digits,
                exponent: 0,
            });
        }
        let zeros = i64::try_from(all.len() - behind.len()).ok()?;
        let whole = i64::try_from(whole.len()).ok()?;
        Some(Self {
            is_negative: unsigned.len() < mantissa.len(),
            digits,
            exponent: exponent.checked_add(whole - zeros)?,
        })
    }

    /// Returns the nearest IEEE 754 double, which is what many servers compute with.
    #[must_use]
    pub fn to_double(&self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    /// Returns the number, if it is an integer of at most 64 bits.
    #[must_use]
    pub fn to_integer(&self) -> Option<i64> {
        let length = usize::try_from(self.exponent).ok()?;
        // An integer of 64 bits has at most 19 digits.
        if length > 19 || self.digits.len() > length {
            return None;
        }
        let sign = if self.is_negative { "-" } else { "" };
        format!("{sign}0{:0<length$}", self.digits).parse().ok()
    }

    /// Returns the number of digits.
    #[must_use]
    pub fn precision(&self) -> usize {
        self.digits.len()
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self
                .exponent
                .cmp(&other.exponent)
                .then_with(|| self.digits.cmp(&other.digits)),
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.is_negative { "-" } else { "" };
        let Self {
            digits, exponent, ..
        } = self;
        write!(f, "{sign}0.{digits}0e{exponent}")
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.is_negative, other.is_negative) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::Decimal;

    fn decimal(text: &str) -> Decimal {
        Decimal::parse(text).unwrap()
    }

    #[test]
    fn numbers_are_equal_if_they_have_the_same_digits_however_they_are_written() {
        for same in [
            ["1", "1.0"],
            ["1", "10e-1"],
            ["0", "-0.0e7"],
            ["120", "1.2E+2"],
            ["-0.001", "-1e-3"],
            ["9007199254740993", "9007199254740993.000"],
        ] {
            assert_eq!(decimal(same[0]), decimal(same[1]), "{same:?}");
        }
        for other in [
            ["1", "-1"],
            ["9007199254740993", "9007199254740992"],
            ["0.1", "0.10000000000000000001"],
            ["1e400", "1e401"],
        ] {
            assert_ne!(decimal(other[0]), decimal(other[1]), "{other:?}");
        }
    }

    #[test]
    fn numbers_are_ordered_by_their_values() {
        let ascending = [
            "-1e400", "-12", "-3", "-0.5", "-0.05", "0", "0.049", "0.05", "0.5", "2.9", "3", "12",
            "100", "1e400",
        ];
        for pair in ascending.windows(2) {
            assert!(decimal(pair[0]) < decimal(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in [
            "",
            "-",
            "x",
            "1x",
            "1e",
            ".",
            "1e99999999999999999999",
            "0x1",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "the values are exact")]
    fn the_nearest_double_is_that_of_other_readers() {
        assert_eq!(
            decimal("9007199254740993").to_double(),
            9_007_199_254_740_992.0
        );
        assert_eq!(decimal("0.1").to_double(), 0.1);
        assert_eq!(decimal("-12e3").to_double(), -12000.0);
        assert_eq!(decimal("1e400").to_double(), f64::INFINITY);
        assert_eq!(decimal("0").to_double(), 0.0);
    }
}
