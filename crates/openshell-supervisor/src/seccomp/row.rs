//! A row of a filter: system call, conditions, action, reason.

use libc::{c_int, c_long};

/// Result of a refused call (SECCOMP_RET_ERRNO), chosen so that programs fall back instead of
/// failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// EPERM: operation not permitted.
    NotPermitted,
    /// ENOSYS: system call not implemented.
    NotImplemented,
    /// EPROTONOSUPPORT: protocol not supported.
    NoProtocol,
    /// ENOPROTOOPT: option not available.
    NoOption,
    /// EOPNOTSUPP: operation not supported.
    NotSupported,
    /// ENOTTY: no such command for this file.
    NoTerminal,
    /// Success without effect, for callers that treat a refusal of the state already in force as an
    /// error.
    NoOp,
}

impl Action {
    /// Error number that the caller gets; 0 for success.
    #[must_use]
    pub fn errno(self) -> c_int {
        match self {
            Self::NotPermitted => libc::EPERM,
            Self::NotImplemented => libc::ENOSYS,
            Self::NoProtocol => libc::EPROTONOSUPPORT,
            Self::NoOption => libc::ENOPROTOOPT,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::NoTerminal => libc::ENOTTY,
            Self::NoOp => 0,
        }
    }
}

/// A comparison with an argument. Except for [`Comparison::NotNull`] it ignores the upper 32 bits,
/// as the kernel does for the arguments below, so that setting them does not evade a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Index of the argument, from 0.
    pub argument: u8,
    /// Comparison that must hold.
    pub comparison: Comparison,
}

/// Comparison of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal to this number.
    Equal(u32),
    /// Not equal to this number.
    Unequal(u32),
    /// Not a null pointer; compares all 64 bits.
    NotNull,
    /// Equal to the value under the mask.
    Masked {
        /// Bits to compare.
        mask: u32,
        /// Their values.
        value: u32,
    },
    /// Not equal to the value under the mask.
    Unmasked {
        /// Bits to compare.
        mask: u32,
        /// Their values.
        value: u32,
    },
}

/// A row of a filter.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name of the constant with the call's number.
    pub name: &'static str,
    /// Number on this architecture.
    pub number: c_long,
    /// Conditions that must all hold; always refused if empty.
    pub when: &'static [Condition],
    /// Result for the caller.
    pub action: Action,
    /// Harm that the call could do.
    pub reason: &'static str,
    /// Programs that need the call, with their remedy; empty if all known ones fall back.
    pub breaks: &'static str,
}

macro_rules! row {
    ($name:ident, $when:expr, $action:ident, $reason:expr) => {
        row!($name, $when, $action, $reason, "")
    };
    ($name:ident, $when:expr, $action:ident, $reason:expr, $breaks:expr) => {
        Row {
            name: stringify!($name),
            number: libc::$name,
            when: $when,
            action: Action::$action,
            reason: $reason,
            breaks: $breaks,
        }
    };
}

macro_rules! other_options {
    ($level:ident, $reason:expr) => {{
        const WHEN: &[Condition] =
            &other_options::<{ options::$level.allowed.len() + 1 }>(options::$level);
        row!(SYS_setsockopt, WHEN, NoOption, $reason)
    }};
}

pub(super) use other_options;
pub(super) use row;
