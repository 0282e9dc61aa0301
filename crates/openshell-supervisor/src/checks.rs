//! Checks what a start needs from the kernel, the container and the caller. System-call filters,
//! pidfd_getfd(2) and the network are checked by doing what a start does.

use std::fs;
use std::os::fd::AsFd;

use rustix::process::{PidfdFlags, PidfdGetfdFlags, Resource};

use crate::files::landlock;
use crate::host::privilege::{NEEDED, Privilege};
use crate::host::switches::SWITCHES;
use crate::identity::run_as;
use crate::network::netns::{Linked, NetnsError};
use crate::seccomp::filter::Filter;
use crate::seccomp::notify::{self, FileCalls, Notified};
use crate::seccomp::rules::{Sockets, rows};

/// A check and its result.
#[derive(Clone, Debug)]
pub struct Check {
    /// The thing that was checked.
    pub name: String,
    /// Facts about the thing, or the reason why it is missing.
    pub detail: String,
    /// The consequence and the remedy if the thing is missing; `None` if it is there.
    pub missing: Option<Missing>,
}

/// The consequence of something that is missing, and the remedy.
#[derive(Clone, Debug)]
pub struct Missing {
    /// The consequence for a sandbox.
    pub costs: String,
    /// What the user can do about it.
    pub remedy: String,
}

impl Check {
    /// Returns a check of something that is there.
    pub fn ok(name: impl Into<String>, detail: impl ToString) -> Self {
        Self {
            name: name.into(),
            detail: detail.to_string(),
            missing: None,
        }
    }

    /// Returns a check of something that is missing for the reason `detail`.
    pub fn missing(
        name: impl Into<String>,
        detail: impl ToString,
        costs: &str,
        remedy: &str,
    ) -> Self {
        let missing = Missing {
            costs: costs.to_owned(),
            remedy: remedy.to_owned(),
        };
        Self {
            name: name.into(),
            detail: detail.to_string(),
            missing: Some(missing),
        }
    }
}

/// The oldest kernel that has everything that a start needs.
const KERNEL: (u32, u32) = (5, 13);

/// Checks the kernel, its settings and the caller, before the process takes its privilege.
#[must_use]
pub fn of_caller(privilege: &Privilege) -> Vec<Check> {
    let mut checks = vec![kernel(), capabilities(privilege), groups(privilege)];
    checks.extend(switches(privilege));
    checks.extend(limits());
    checks
}

fn kernel() -> Check {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(|byte: char| !byte.is_ascii_digit())
        .map_while(|number| number.parse().ok());
    match (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) {
        version if version >= KERNEL => Check::ok("kernel", format!("Linux {release}")),
        _ => Check::missing(
            "kernel",
            format!("Linux {release}"),
            "nothing starts",
            "boot Linux 5.13 or newer",
        ),
    }
}

fn capabilities(privilege: &Privilege) -> Check {
    let Some(caller) = privilege.caller() else {
        let names: Vec<_> = NEEDED.iter().map(|needed| needed.name).collect();
        return Check::ok("capabilities", names.join(", "));
    };
    let purposes = NEEDED
        .iter()
        .filter(|needed| caller.missing.contains(&needed.name));
    let purposes: Vec<_> = purposes
        .map(|needed| format!("{} for {}", needed.name, needed.purpose))
        .collect();
    Check::missing(
        "capabilities",
        format!("no {}", purposes.join(", no ")),
        "a start makes a user namespace, and commands run as the caller",
        "run as root, or in a container add them",
    )
}

fn groups(privilege: &Privilege) -> Check {
    let name = "supplementary groups";
    match privilege
        .caller()
        .map(|caller| run_as::group_names(&caller.groups))
    {
        None => Check::ok(name, "commands keep none"),
        Some(Err(error)) => Check::missing(
            name,
            error.to_string(),
            "this user cannot start a sandbox",
            "make it readable for everybody",
        ),
        Some(Ok(groups)) if groups.is_empty() => Check::ok(name, "none"),
        Some(Ok(groups)) => Check::missing(
            name,
            format!("the caller is in {}", groups.join(", ")),
            "commands stay in these groups, because only a process with CAP_SETGID can leave one",
            "start as a user who is not in the groups that matter, or as root",
        ),
    }
}

fn switches(privilege: &Privilege) -> impl Iterator<Item = Check> {
    let needs_user_namespace = privilege.caller().is_some();
    SWITCHES.iter().filter_map(move |switch| {
        let value = switch.value()?;
        let matters = needs_user_namespace || !switch.of_user_namespaces;
        Some(if matters && switch.is_forbidding() {
            Check::missing(switch.name, value, switch.costs, switch.remedy)
        } else {
            Check::ok(switch.name, value)
        })
    })
}

/// The descriptors that a sandbox with many connections needs: two for each of 4,096, and some
/// more.
const DESCRIPTORS: u64 = 8_448;

fn limits() -> Vec<Check> {
    let files = rustix::process::getrlimit(Resource::Nofile).maximum;
    let descriptors = match files {
        Some(files) if files < DESCRIPTORS => Check::missing(
            "open files",
            format!("at most {files}"),
            "connections beyond half of that are refused",
            "ulimit -Hn 16384, or LimitNOFILE= of the service",
        ),
        _ => Check::ok(
            "open files",
            files.map_or("no limit".to_owned(), |files| format!("at most {files}")),
        ),
    };
    let group = |file: &str| {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
        let value = fs::read_to_string(format!("/sys/fs/cgroup{path}/{file}")).ok()?;
        Some(value.trim().to_owned())
    };
    let of_group = |file: &str| {
        Check::ok(
            file,
            group(file).unwrap_or_else(|| "no limit of a control group".to_owned()),
        )
    };
    vec![descriptors, of_group("pids.max"), of_group("memory.max")]
}

/// Checks the mechanisms of the kernel, once the process has its privilege. Installs system-call
/// filters, each on a thread that then ends.
#[must_use]
pub fn of_kernel() -> Vec<Check> {
    let mut checks = landlock();
    checks.extend([seccomp(), notifications(), descriptors_of_others()]);
    checks
}

fn landlock() -> Vec<Check> {
    let Some((abi, lacking)) = landlock::domain::support() else {
        return vec![Check::missing(
            "Landlock",
            "this kernel has none",
            "nothing starts: it confines files",
            "boot a kernel with CONFIG_SECURITY_LANDLOCK and `landlock` in `lsm=`",
        )];
    };
    let lacking = lacking.into_iter().map(|right| {
        let costs =
            "Landlock does not restrict it; under hard_requirement nothing starts unless another \
             mechanism restricts it";
        Check::missing(format!("Landlock: {right}"), format!("ABI {abi}"), costs, "boot a newer kernel")
    });
    [Check::ok("Landlock", format!("ABI {abi}"))]
        .into_iter()
        .chain(lacking)
        .collect()
}

fn seccomp() -> Check {
    let install = || {
        rustix::thread::set_no_new_privs(true)?;
        Filter::compile(rows(Sockets::Internet, &[]))
            .map_err(std::io::Error::other)?
            .install()
    };
    let installed = std::thread::scope(|scope| scope.spawn(install).join());
    match installed.unwrap_or_else(|_| Err(std::io::Error::other("the thread failed"))) {
        Ok(()) => Check::ok("seccomp", "the workload's filter can be installed"),
        Err(error) => Check::missing(
            "seccomp",
            error,
            "nothing starts: the filter restricts system calls",
            "boot a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

fn notifications() -> Check {
    let install = || {
        rustix::thread::set_no_new_privs(true)?;
        notify::install(Notified {
            connects: true,
            files: FileCalls::None,
        })
    };
    let installed = std::thread::scope(|scope| scope.spawn(install).join());
    match installed.unwrap_or_else(|_| Err(std::io::Error::other("the thread failed"))) {
        Ok(_) => Check::ok(
            "seccomp notifications",
            "connects can be handed to the supervisor",
        ),
        Err(error) => Check::missing(
            "seccomp notifications",
            error,
            "nothing starts with --network proxy: they identify callers",
            "boot Linux 5.14 or newer; in a container, use a profile without a listener of its own",
        ),
    }
}

fn descriptors_of_others() -> Check {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let taken = own.and_then(|own| {
        let wanted = std::os::fd::AsRawFd::as_raw_fd(&own.as_fd());
        rustix::process::pidfd_getfd(&own, wanted, PidfdGetfdFlags::empty())
    });
    match taken {
        Ok(_) => Check::ok("pidfd_getfd", "descriptors can be taken"),
        Err(errno) => Check::missing(
            "pidfd_getfd",
            errno,
            "nothing starts with --network proxy: it identifies callers",
            "boot Linux 5.14 or newer; in a container, use a profile that permits it",
        ),
    }
}

/// Checks the network of a sandbox by making one and dropping it.
#[must_use]
pub fn of_network(port: u16) -> Vec<Check> {
    let made = Linked::create(port).and_then(|pending| {
        pending
            .finish()
            .unwrap_or_else(|source| Err(NetnsError::Thread { source }))
    });
    let names = ["network namespace", "veth", "nf_tables", "NFLOG"];
    let costs = "nothing starts with --network proxy";
    match made {
        Ok(linked) => {
            let mut checks: Vec<_> = names[..3]
                .iter()
                .map(|name| Check::ok(*name, "made as for a sandbox"))
                .collect();
            checks.push(match linked.packet_log {
                Ok(_) => Check::ok(names[3], "the group of refused packets can be opened"),
                Err(error) => Check::missing(
                    names[3],
                    error,
                    "attempts past the proxy are refused and not reported",
                    "load nfnetlink_log",
                ),
            });
            checks
        }
        Err(error) => {
            let index = match &error {
                NetnsError::Create { .. } | NetnsError::Thread { .. } => 0,
                NetnsError::Pair { .. }
                | NetnsError::Inside { .. }
                | NetnsError::Landing { .. }
                | NetnsError::Listen { .. }
                | NetnsError::Probe { .. } => 1,
                NetnsError::Firewall { .. } => 2,
            };
            let mut checks: Vec<_> = names[..index]
                .iter()
                .map(|name| Check::ok(*name, "made as for a sandbox"))
                .collect();
            let cause = std::error::Error::source(&error)
                .map(ToString::to_string)
                .unwrap_or_default();
            checks.push(Check::missing(
                names[index],
                cause,
                costs,
                &error.to_string(),
            ));
            checks
        }
    }
}
