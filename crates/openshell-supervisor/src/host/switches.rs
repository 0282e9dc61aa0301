//! Reads the kernel settings that forbid what a sandbox is made of.

use std::io;
use std::path::Path;

/// A setting of the kernel (sysctl(8)).
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// The setting's name.
    pub name: &'static str,
    /// The value that forbids something.
    pub forbids: &'static str,
    /// The consequence of that value.
    pub costs: &'static str,
    /// The command that permits it again.
    pub remedy: &'static str,
    /// True if the setting concerns user namespaces, which only a start without capabilities needs.
    pub of_user_namespaces: bool,
}

/// Every setting that is looked at.
pub const SWITCHES: &[Switch] = &[
    Switch {
        name: "user.max_user_namespaces",
        forbids: "0",
        costs: "no user namespace can be made, so a start needs root",
        remedy: "sysctl user.max_user_namespaces=15000",
        of_user_namespaces: true,
    },
    Switch {
        name: "kernel.unprivileged_userns_clone",
        forbids: "0",
        costs: "only root can make a user namespace",
        remedy: "sysctl kernel.unprivileged_userns_clone=1",
        of_user_namespaces: true,
    },
    Switch {
        name: "kernel.apparmor_restrict_unprivileged_userns",
        forbids: "1",
        costs: "user namespaces have no capabilities, so mounts in them fail",
        remedy: "give this program an AppArmor profile with `userns,`, or sysctl \
                 kernel.apparmor_restrict_unprivileged_userns=0",
        of_user_namespaces: true,
    },
    Switch {
        name: "kernel.yama.ptrace_scope",
        forbids: "3",
        costs: "no process can take a descriptor of another (pidfd_getfd), not even root",
        remedy: "boot with kernel.yama.ptrace_scope=2 (a running kernel cannot leave 3)",
        of_user_namespaces: false,
    },
];

impl Switch {
    /// Reads the value; `None` if this kernel has no such setting.
    #[must_use]
    pub fn value(&self) -> Option<String> {
        let text =
            std::fs::read_to_string(format!("/proc/sys/{}", self.name.replace('.', "/"))).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns true if the setting has the value that forbids something.
    #[must_use]
    pub fn is_forbidding(&self) -> bool {
        self.value().is_some_and(|value| value == self.forbids)
    }
}

/// Returns the setting that forbids user namespaces, with its remedy. If there is none, returns the
/// meaning of `error`.
pub(crate) fn why_no_user_namespace(error: &io::Error) -> String {
    if let Some(switch) = of_user_namespaces().find(Switch::is_forbidding) {
        return format!(
            "{} is {}: {}; {}",
            switch.name, switch.forbids, switch.costs, switch.remedy
        );
    }
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EUSERS) => {
            "there are too many user namespaces, or they are nested too deep; raise \
             user.max_user_namespaces"
                .to_owned()
        }
        // Some container engines return ENOSYS for what their profile forbids.
        Some(libc::EINVAL | libc::ENOSYS) if !Path::new("/proc/self/ns/user").exists() => {
            "this kernel has none; boot one with CONFIG_USER_NS".to_owned()
        }
        _ => "a container's seccomp or AppArmor profile, or a chroot, forbids it; with Docker or \
              Podman, `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`, or a \
              profile that permits unshare and mount, such as data/seccomp.json"
            .to_owned(),
    }
}

/// Returns text about the setting that takes the capabilities of user namespaces away, for the end
/// of an error message.
pub(crate) fn powerless_user_namespace() -> Option<String> {
    let switch = of_user_namespaces().find(Switch::is_forbidding)?;
    Some(format!(
        "{} is {}: {}; {}",
        switch.name, switch.forbids, switch.costs, switch.remedy
    ))
}

fn of_user_namespaces() -> impl Iterator<Item = Switch> {
    SWITCHES
        .iter()
        .filter(|switch| switch.of_user_namespaces)
        .copied()
}
