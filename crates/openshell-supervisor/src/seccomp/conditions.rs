//! The conditions of rows on the arguments of a call.

use crate::seccomp::options::{self, Level};
use crate::seccomp::row::{Comparison, Condition};

pub(super) const fn equal(argument: u8, value: i32) -> Condition {
    Condition {
        argument,
        comparison: Comparison::Equal(value.cast_unsigned()),
    }
}

pub(super) const fn unequal(argument: u8, value: i32) -> Condition {
    Condition {
        argument,
        comparison: Comparison::Unequal(value.cast_unsigned()),
    }
}

pub(super) const fn not_null(argument: u8) -> Condition {
    Condition {
        argument,
        comparison: Comparison::NotNull,
    }
}

pub(super) const fn bits(argument: u8, value: i32) -> Condition {
    masked(argument, value, value)
}

pub(super) const fn masked(argument: u8, mask: i32, value: i32) -> Condition {
    assert!(value & !mask == 0, "no argument would match");
    Condition {
        argument,
        comparison: Comparison::Masked {
            mask: mask.cast_unsigned(),
            value: value.cast_unsigned(),
        },
    }
}

/// Matches AF_INET (2) and AF_INET6 (10), which differ in one bit.
pub(super) const INTERNET: Condition = masked(0, !8, libc::AF_INET);

/// Matches every option of `level` that is not allowed; `N` is the number of allowed options plus
/// one.
pub(super) const fn other_options<const N: usize>(level: Level) -> [Condition; N] {
    let mut conditions = [equal(1, level.number); N];
    let mut index = 1;
    while index < N {
        conditions[index] = unequal(2, level.allowed[index - 1].1);
        index += 1;
    }
    conditions
}

/// Matches every level outside [`options::LEVELS`].
pub(super) const fn other_levels() -> [Condition; options::LEVELS.len()] {
    let mut conditions = [equal(1, 0); options::LEVELS.len()];
    let mut index = 0;
    while index < conditions.len() {
        conditions[index] = unequal(1, options::LEVELS[index].number);
        index += 1;
    }
    conditions
}
