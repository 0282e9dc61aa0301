//! The process that started the supervisor, for sandboxes that end with it (`--die-with-parent`).
//!
//! The parent-death signal (PR_SET_PDEATHSIG) is sent when the *thread* that forked ends, which
//! would end the sandboxes of programs with thread pools. A pidfd becomes readable only when the
//! whole process has ended (pidfd_open(2)).

use std::future::pending;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The parent process, which still runs when this value is made.
#[derive(Debug)]
pub(crate) struct Parent(OwnedFd);

impl Parent {
    /// Opens the parent. `expected` is its PID, if the parent has given it. Without it, a parent
    /// that has ended already looks like the process that adopted this one.
    ///
    /// # Errors
    /// Fails if the parent has ended, or is in another PID namespace.
    pub(crate) fn open(expected: Option<i32>) -> anyhow::Result<Self> {
        let gone = "--die-with-parent: the process that started this one has ended";
        let Some(parent) = getppid() else {
            bail!(
                "--die-with-parent: the process that started this one is in another PID namespace; \
                 leave the flag out"
            );
        };
        if expected.is_some_and(|expected| Pid::from_raw(expected) != Some(parent)) {
            bail!(gone);
        }
        let opened = pidfd_open(parent, PidfdFlags::empty()).context(gone)?;
        // The PID surely means the parent only while that process is still the parent.
        if getppid() != Some(parent) {
            bail!(gone);
        }
        Ok(Self(opened))
    }

    /// Waits until the parent has ended. Must be called inside a tokio runtime.
    pub(crate) async fn ended(self) -> String {
        #[expect(
            deprecated,
            reason = "unsound only for a type whose descriptor may change, which an OwnedFd's does \
                      not"
        )]
        let watched = AsyncFd::with_interest(self.0, Interest::READABLE);
        match watched {
            Ok(parent) => match parent.readable().await {
                Ok(_) => {
                    "the process that started this one has ended (--die-with-parent)".to_owned()
                }
                Err(error) => {
                    format!(
                        "--die-with-parent: the process that started this one cannot be watched: \
                         {error}"
                    )
                }
            },
            Err(error) => format!(
                "--die-with-parent: the process that started this one cannot be watched: {error}"
            ),
        }
    }
}

/// Waits until `parent` has ended, or forever if there is none.
pub(crate) async fn ended(parent: Option<Parent>) -> String {
    match parent {
        Some(parent) => parent.ended().await,
        None => pending().await,
    }
}
