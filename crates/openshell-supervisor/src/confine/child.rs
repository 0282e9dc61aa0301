//! The steps of a child of init, from init's root to a process that may only execute the command.

use super::Confinement;
use super::step::{AtStep, Step, StepFailed};
use crate::files::landlock::{self};
use crate::seccomp::filter::Filter;
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;
use std::path::PathBuf;

impl Confinement {
    /// Confines the calling process, a child of init that has init's root, until it may only
    /// execute the command.
    pub(crate) fn apply_to_child(
        &self,
        filter: &Filter,
        directories: &[PathBuf],
    ) -> Result<(), StepFailed> {
        use Step as S;
        no_core_dumps().at(S::CoreLimit)?;
        // Emptying the bounding set needs a capability, so it comes before the change of user. If a
        // capability stayed in the set, a file's capabilities could bring it back after that
        // change.
        capabilities()
            .try_for_each(remove_from_bounding_set)
            .at(S::BoundingSet)?;
        rustix::thread::clear_ambient_capability_set().at(S::AmbientSet)?;
        // Groups come before the user, who may no longer change them.
        let groups: Vec<Gid> = self
            .identity
            .groups
            .iter()
            .map(|gid| Gid::from_raw(*gid))
            .collect();
        if !self.identity.is_callers {
            rustix::thread::set_thread_groups(&groups).at(S::Groups)?;
        }
        let uid = Uid::from_raw(self.identity.uid);
        let gid = Gid::from_raw(self.identity.gid);
        rustix::thread::set_thread_res_gid(gid, gid, gid).at(S::Group)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).at(S::User)?;
        let none = CapabilitySet::empty();
        let nothing = CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, nothing).at(S::Capabilities)?;
        self.verify_identity(&groups).at(S::IdentityVerified)?;
        // This is done as the workload's user, who may not enter every directory.
        enter_first(directories, self.masks).at(S::WorkingDirectory)?;
        rustix::thread::set_no_new_privs(true).at(S::NoNewPrivileges)?;
        if self.is_init_exposed {
            // Init and every other command are outside of this domain.
            landlock::domain::scope_signals().at(S::SignalScope)?;
        }
        crate::sys::reset_signals().at(S::Signals)?;
        // The filter is the last restriction, because it refuses what the others need.
        filter.install().at(S::SystemCallFilter)?;
        self.prove()
    }

    pub(super) fn verify_identity(&self, groups: &[Gid]) -> rustix::io::Result<()> {
        let mut actual: Vec<u32> = rustix::process::getgroups()?
            .iter()
            .map(|gid| gid.as_raw())
            .collect();
        let mut wanted: Vec<u32> = groups.iter().map(|gid| gid.as_raw()).collect();
        actual.sort_unstable();
        wanted.sort_unstable();
        let sets = rustix::thread::capabilities(None)?;
        let numbers = [
            (rustix::process::getuid().as_raw(), self.identity.uid),
            (rustix::process::geteuid().as_raw(), self.identity.uid),
            (rustix::process::getgid().as_raw(), self.identity.gid),
            (rustix::process::getegid().as_raw(), self.identity.gid),
        ];
        let same = numbers.iter().all(|(actual, wanted)| actual == wanted) && actual == wanted;
        let powerless = (sets.effective | sets.permitted | sets.inheritable).is_empty();
        let unbounded = capabilities().try_fold(false, |any, capability| {
            Ok::<_, Errno>(any || is_in_bounding_set(capability)?)
        })?;
        if same && powerless && !unbounded {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }

    /// Proves each mechanism by an attempt that would succeed without it.
    pub(super) fn prove(&self) -> Result<(), StepFailed> {
        match rustix::fs::memfd_create("proof", rustix::fs::MemfdFlags::CLOEXEC) {
            Err(Errno::PERM) => {}
            Err(errno) => return Err(errno).at(Step::SystemCallFilterProved),
            Ok(_) => return Err(Errno::EXIST).at(Step::SystemCallFilterProved),
        }
        // Without a mapping of root, the proof is another act that needs a capability of the user
        // namespace.
        let privileged = if self.identity.is_callers {
            rustix::thread::remove_capability_from_bounding_set(CapabilitySet::SETPCAP)
        } else {
            rustix::thread::set_thread_uid(Uid::ROOT)
        };
        match privileged {
            Err(Errno::PERM) => Ok(()),
            Err(errno) => Err(errno).at(Step::IdentityProved),
            Ok(()) => Err(Errno::EXIST).at(Step::IdentityProved),
        }
    }
}

/// Changes to the first of `directories` that may be entered and is not a folder that replaces a
/// masked one (those have the device number `masks`). If there is none, the error is that of the
/// first directory.
fn enter_first(directories: &[PathBuf], masks: Option<u64>) -> rustix::io::Result<()> {
    let mut first_error = None;
    for directory in directories {
        let is_masked = || {
            masks
                .is_some_and(|device| rustix::fs::stat(".").is_ok_and(|data| data.st_dev == device))
        };
        match rustix::process::chdir(directory) {
            Ok(()) if !is_masked() => return Ok(()),
            Ok(()) => first_error = first_error.or(Some(Errno::ACCESS)),
            Err(errno) => first_error = first_error.or(Some(errno)),
        }
    }
    Err(first_error.unwrap_or(Errno::NOENT))
}

/// Keeps core dumps inside. With a limit of 1 byte no core file is written, because every core is
/// larger, and the kernel does not run the program of a piped `kernel.core_pattern`; with a limit
/// of 0 it would run that program (core(5)). If the caller's hard limit is 0, the limit can only be
/// 0, which is enough only if `kernel.core_pattern` is not piped. The filter keeps the workload
/// from changing the limit.
fn no_core_dumps() -> io::Result<()> {
    let at_most = |bytes| {
        rustix::process::setrlimit(
            Resource::Core,
            Rlimit {
                current: Some(bytes),
                maximum: Some(bytes),
            },
        )
    };
    let Err(errno) = at_most(1) else {
        return Ok(());
    };
    let is_piped = std::fs::read("/proc/sys/kernel/core_pattern")
        .map_or(true, |pattern| pattern.starts_with(b"|"));
    if is_piped {
        Err(errno.into())
    } else {
        Ok(at_most(0)?)
    }
}

/// Iterates over every capability bit.
fn capabilities() -> impl Iterator<Item = CapabilitySet> {
    (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

fn is_in_bounding_set(capability: CapabilitySet) -> rustix::io::Result<bool> {
    match rustix::thread::capability_is_in_bounding_set(capability) {
        // The bit is beyond the last capability that this kernel knows.
        Err(Errno::INVAL) => Ok(false),
        result => result,
    }
}

fn remove_from_bounding_set(capability: CapabilitySet) -> rustix::io::Result<()> {
    if is_in_bounding_set(capability)? {
        rustix::thread::remove_capability_from_bounding_set(capability)?;
    }
    Ok(())
}
