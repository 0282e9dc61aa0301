//! A row of a filter: system call, conditions, action, reason.

use libc::{c_int, c_long};

/// The result of a refused call (SECCOMP_RET_ERRNO), chosen so that programs fall back instead of
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
    /// Success without effect, for callers that treat it as an error if the state already in force
    /// is refused.
    NoOp,
}

impl Action {
    /// Returns the error number that the caller gets; 0 for success.
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

/// A comparison with an argument. Except for [`Comparison::NotNull`], it ignores the upper 32 bits,
/// as the kernel does for the arguments concerned, so setting those bits does not evade a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The index of the argument, from 0.
    pub argument: u8,
    /// The comparison that must hold.
    pub comparison: Comparison,
}

/// A comparison of an argument's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// It is equal to this number.
    Equal(u32),
    /// It is not equal to this number.
    Unequal(u32),
    /// It is not a null pointer; compares all 64 bits.
    NotNull,
    /// Its bits under the mask equal the value.
    Masked {
        /// The bits to compare.
        mask: u32,
        /// The values of these bits.
        value: u32,
    },
    /// Its bits under the mask do not equal the value.
    Unmasked {
        /// The bits to compare.
        mask: u32,
        /// The values of these bits.
        value: u32,
    },
}

/// A row of a filter.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name of the constant that holds the call's number.
    pub name: &'static str,
    /// The call's number on this architecture.
    pub number: c_long,
    /// The conditions that must all hold; if empty, the call is always refused.
    pub when: &'static [Condition],
    /// The result for the caller.
    pub action: Action,
    /// The harm that the call could do.
    pub reason: &'static str,
    /// The programs that need the call, with a remedy; empty if all known programs fall back.
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
