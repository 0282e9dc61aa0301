//! User and group of the workload, by name or number, before they are looked up.

use std::fmt;

use crate::violation::ViolationKind;

/// A user or group of a policy, which is never root by word or number. The look-up also checks that
/// a name does not resolve to 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Name in `/etc/passwd` or `/etc/group`.
    Name(String),
    /// Number, which needs no entry there. Never 0, and never `u32::MAX`, which system calls take
    /// to mean "unchanged".
    Id(u32),
}

impl Identity {
    /// Parses a name or a decimal number.
    ///
    /// # Errors
    /// Fails for `root`, 0, 4294967295, an empty name, or characters that no entry of a user
    /// database can contain.
    pub fn parse(text: &str) -> Result<Self, ViolationKind> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return match text.parse::<u32>() {
                Ok(0) => Err(ViolationKind::RunAsRoot),
                Ok(id) if id != u32::MAX => Ok(Self::Id(id)),
                Ok(_) | Err(_) => Err(ViolationKind::RunAsName),
            };
        }
        if text == "root" {
            return Err(ViolationKind::RunAsRoot);
        }
        let unusable = |c: char| c == ':' || c == '/' || c.is_whitespace() || c.is_control();
        if text.is_empty() || text.contains(unusable) || text.starts_with('-') {
            return Err(ViolationKind::RunAsName);
        }
        Ok(Self::Name(text.to_owned()))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Id(id) => id.fmt(f),
        }
    }
}

/// User and group of the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunAs {
    /// The user; `None` means the caller. If the caller is root, it means `sandbox`, else the user
    /// who called sudo, else `nobody`.
    pub user: Option<Identity>,
    /// The group; `None` means the user's primary group, or the user's number if it has no entry.
    pub group: Option<Identity>,
}

/// Settings for the processes of the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    /// User and group.
    pub run_as: RunAs,
    /// True if they may trace each other (ptrace(2)), which lets each one act as any other.
    pub debug: bool,
}

impl fmt::Display for RunAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.user, &self.group) {
            (None, None) => f.write_str("the caller"),
            (Some(user), None) => write!(f, "user {user}"),
            (None, Some(group)) => write!(f, "group {group}"),
            (Some(user), Some(group)) => write!(f, "user {user} in group {group}"),
        }
    }
}
