//! Names the steps of a child, and which of them failed.

use std::io;

use serde::{Deserialize, Serialize};

/// A step of a child before it becomes the command, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "the names are those of the steps in `Confinement::apply_to_child`"
)]
pub enum Step {
    Session,
    Terminal,
    StandardStreams,
    Descriptors,
    CoreLimit,
    BoundingSet,
    AmbientSet,
    Groups,
    Group,
    User,
    Capabilities,
    IdentityVerified,
    WorkingDirectory,
    NoNewPrivileges,
    SignalScope,
    Signals,
    SystemCallFilter,
    SystemCallFilterProved,
    IdentityProved,
}

impl Step {
    /// Returns a description of the step that can follow "cannot".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "start a session",
            Self::Terminal => "take the terminal",
            Self::StandardStreams => "take the standard streams",
            Self::Descriptors => "close inherited descriptors",
            Self::CoreLimit => {
                "switch core dumps off (kernel.core_pattern pipes them to a program even at the \
                 caller's hard limit of 0; raise that limit: `ulimit -Hc`, LimitCORE=)"
            }
            Self::BoundingSet => "empty the capability bounding set (it needs CAP_SETPCAP)",
            Self::AmbientSet => "empty the ambient capabilities",
            Self::Groups => "drop supplementary groups (it needs CAP_SETGID)",
            Self::Group => "change the group (it needs CAP_SETGID)",
            Self::User => "change the user (it needs CAP_SETUID)",
            Self::Capabilities => "give up capabilities",
            Self::IdentityVerified => "verify the identity that was taken",
            Self::WorkingDirectory => "enter the working directory",
            Self::NoNewPrivileges => "set no_new_privs",
            Self::SignalScope => "restrict signals to the command's own processes (Landlock)",
            Self::Signals => "reset signals",
            Self::SystemCallFilter => {
                "install the system-call filter (the kernel must have CONFIG_SECCOMP_FILTER)"
            }
            Self::SystemCallFilterProved => {
                "prove the system-call filter: memfd_create was not refused"
            }
            Self::IdentityProved => "prove the identity: an act of root was not refused",
        }
    }
}

/// A step that failed, and its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepFailed {
    /// The step that failed.
    pub step: Step,
    /// The error number of the system.
    pub errno: i32,
}

/// Names the step that failed.
pub(crate) trait AtStep<T> {
    fn at(self, step: Step) -> Result<T, StepFailed>;
}

impl<T, E: Into<io::Error>> AtStep<T> for Result<T, E> {
    fn at(self, step: Step) -> Result<T, StepFailed> {
        self.map_err(|error| StepFailed {
            step,
            errno: error.into().raw_os_error().unwrap_or(libc::EINVAL),
        })
    }
}
