//! Takes the privilege under which a sandbox is made: the capabilities that the supervisor has, or
//! those of its own user namespace (user_namespaces(7)). The choice depends on capabilities, not on
//! the user id, because root in a container may have none.

use std::io;
use std::sync::LazyLock;

use rustix::process::{Gid, getegid, geteuid};
use rustix::thread::CapabilitySet;

use crate::host::switches;
use crate::sys;

/// The user and group inside for callers that are root, because no process of a sandbox runs with
/// number 0. The kernel shows this number for users without a mapping.
pub const NOBODY: u32 = 65534;

/// A capability that is needed to make a sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Needed {
    /// The capability.
    pub capability: CapabilitySet,
    /// Its name (capabilities(7)).
    pub name: &'static str,
    /// The purpose, in words that can follow "for".
    pub purpose: &'static str,
    /// True if only a sandbox with its own network needs the capability.
    pub for_network: bool,
}

const fn needed(
    capability: CapabilitySet,
    name: &'static str,
    purpose: &'static str,
    for_network: bool,
) -> Needed {
    Needed {
        capability,
        name,
        purpose,
        for_network,
    }
}

/// Every capability that is needed to make a sandbox.
pub const NEEDED: &[Needed] = &[
    needed(
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "namespaces and mounts",
        false,
    ),
    needed(
        CapabilitySet::SETUID,
        "CAP_SETUID",
        "the workload's user",
        false,
    ),
    needed(
        CapabilitySet::SETGID,
        "CAP_SETGID",
        "the workload's groups",
        false,
    ),
    needed(
        CapabilitySet::SETPCAP,
        "CAP_SETPCAP",
        "the capability bounding set",
        false,
    ),
    needed(
        CapabilitySet::NET_ADMIN,
        "CAP_NET_ADMIN",
        "the sandbox's link and fence",
        true,
    ),
    needed(
        CapabilitySet::SYS_PTRACE,
        "CAP_SYS_PTRACE",
        "telling which program is calling",
        true,
    ),
];

/// The reason why the supervisor cannot get the privilege that it needs to make a sandbox.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum PrivilegeError {
    #[error("cannot read the supervisor's capabilities and groups")]
    Read { source: io::Error },
    #[error(
        "cannot make a user namespace, which a sandbox needs without {missing}: {why}; remedy \
         that, run as root, or see `openshell-sandbox doctor`"
    )]
    Namespace {
        missing: String,
        why: String,
        source: io::Error,
    },
    #[error("cannot map the user into the sandbox's user namespace: {why}")]
    Map { why: String, source: io::Error },
}

/// The privilege under which a sandbox is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The supervisor's own capabilities.
    Capabilities,
    /// The capabilities of a user namespace, to which only the caller's user and group are mapped.
    UserNamespace(Caller),
}

/// The user who started the supervisor. The numbers are those outside of the supervisor's user
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The user id.
    pub uid: u32,
    /// The primary group id.
    pub gid: u32,
    /// The supplementary group ids, without the primary one. The kernel lets nobody without
    /// CAP_SETGID drop them.
    pub groups: Vec<u32>,
    /// The names of the capabilities that were missing.
    pub missing: Vec<&'static str>,
}

impl Privilege {
    /// Returns the privilege that a start would have, without a change to the process. A sandbox
    /// with its own network needs more capabilities.
    ///
    /// # Errors
    /// Fails if capabilities or groups cannot be read.
    pub fn of_start(isolates_network: bool) -> Result<Self, PrivilegeError> {
        let read = |errno: rustix::io::Errno| PrivilegeError::Read {
            source: errno.into(),
        };
        let effective = rustix::thread::capabilities(None).map_err(read)?.effective;
        let needed = NEEDED
            .iter()
            .filter(|needed| isolates_network || !needed.for_network);
        let missing: Vec<_> = needed
            .filter(|needed| !effective.contains(needed.capability))
            .map(|needed| needed.name)
            .collect();
        if missing.is_empty() {
            return Ok(Self::Capabilities);
        }
        let uid = geteuid().as_raw();
        let gid = getegid().as_raw();
        let mut groups: Vec<u32> = rustix::process::getgroups()
            .map_err(read)?
            .into_iter()
            .map(Gid::as_raw)
            .collect();
        groups.retain(|group| *group != gid);
        Ok(Self::UserNamespace(Caller {
            uid,
            gid,
            groups,
            missing,
        }))
    }

    /// Takes the privilege. If capabilities are missing, the process enters its own user namespace,
    /// for good. Call this before any thread exists.
    ///
    /// # Errors
    /// Fails if the kernel or a container's profile forbids user namespaces, or the caller cannot
    /// be mapped into one.
    pub fn acquire(isolates_network: bool) -> Result<Self, PrivilegeError> {
        let privilege = Self::of_start(isolates_network)?;
        if let Self::UserNamespace(caller) = &privilege {
            caller.enter_user_namespace()?;
        }
        Ok(privilege)
    }

    /// Returns the caller, if commands keep the caller's identity.
    #[must_use]
    pub fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Capabilities => None,
            Self::UserNamespace(caller) => Some(caller),
        }
    }
}

impl Caller {
    fn enter_user_namespace(&self) -> Result<(), PrivilegeError> {
        sys::unshare_user().map_err(|source| {
            let why = switches::why_no_user_namespace(&source);
            PrivilegeError::Namespace {
                missing: self.missing.join(", "),
                why,
                source,
            }
        })?;
        let map = |source: io::Error| PrivilegeError::Map {
            why: self.why_not_mapped(),
            source,
        };
        // This is required before an unprivileged process may map its group.
        match std::fs::write("/proc/self/setgroups", "deny") {
            // The file does not exist on Linux 3.18 and older.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(map)?,
        }
        let line = |id: u32| format!("{} {id} 1", inside(id));
        std::fs::write("/proc/self/gid_map", line(self.gid)).map_err(map)?;
        std::fs::write("/proc/self/uid_map", line(self.uid)).map_err(map)
    }

    fn why_not_mapped(&self) -> String {
        let effective = rustix::thread::capabilities(None)
            .map(|sets| sets.effective)
            .unwrap_or(CapabilitySet::empty());
        // A process has every capability in its own namespace, unless a profile takes them away.
        match self.uid {
            _ if effective.is_empty() => {
                switches::why_no_user_namespace(&io::Error::from_raw_os_error(libc::EPERM))
            }
            0 => "since Linux 5.12 root without CAP_SETFCAP cannot be mapped; run as another user \
                  (`USER` of an image), or add CAP_SETFCAP"
                .to_owned(),
            _ => "/proc must be mounted and writable".to_owned(),
        }
    }
}

/// Returns true unless the process is in a user namespace without a mapping of root. All users
/// except the caller appear there as [`NOBODY`].
pub(crate) fn is_root_mapped() -> bool {
    static IS_MAPPED: LazyLock<bool> = LazyLock::new(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.is_empty()
            || map
                .lines()
                .any(|line| line.split_ascii_whitespace().next() == Some("0"))
    });
    *IS_MAPPED
}

/// Returns true in a user namespace in which the caller appears as [`NOBODY`] because it is root
/// outside.
pub(crate) fn is_caller_root() -> bool {
    !is_root_mapped() && geteuid().as_raw() == NOBODY
}

/// Returns the number in the user namespace of a caller's user or group.
pub(crate) fn inside(id: u32) -> u32 {
    if id == 0 { NOBODY } else { id }
}
