//! User and group that the workload runs as, by name or number, before any look-up.

use crate::violation::ViolationKind;

/// A user or group as the policy names it. Never root by word or number; that a name does not resolve to 0 is checked
/// where it is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// To be looked up in `/etc/passwd` or `/etc/group`.
    Name(String),
    /// Needs no entry. Never 0, never `u32::MAX` (which system calls read as "leave as it is").
    Id(u32),
}

impl Identity {
    /// Reads a name or a decimal number.
    ///
    /// # Errors
    /// `root`, 0, 4294967295, an empty name, or characters that no user database entry can hold.
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

/// Who the workload runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// The user.
    pub user: Identity,
    /// The group; `None` means the user's primary group, or the user's number where it has no entry.
    pub group: Option<Identity>,
}

impl Default for RunAs {
    fn default() -> Self {
        let sandbox = Identity::Name("sandbox".to_owned());
        Self { user: sandbox.clone(), group: Some(sandbox) }
    }
}
