//! The filters as tables: system call, conditions, action, reason. Calls without a row are allowed.

use libc::{c_int, c_long};
use serde::{Deserialize, Serialize};

use crate::seccomp::conditions::{
    INTERNET, bits, equal, masked, not_null, other_levels, other_options, unequal,
};
use crate::seccomp::ioctls::{self, Family};
use crate::seccomp::options::{self};
pub use crate::seccomp::row::{Action, Comparison, Condition, Row};
use crate::seccomp::row::{other_options, row};

/// The highest system-call number that these tables consider (file_setattr, Linux 6.17). From 424
/// on, numbers are the same on every architecture. Newer calls get ENOSYS until they are considered
/// here, and so does the x32 table of x86-64, whose numbers begin far above.
pub const LAST_KNOWN: u32 = 469;

/// open_tree_attr(2), Linux 6.15.
const SYS_OPEN_TREE_ATTR: c_long = 467;

/// The socket families that the workload can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sockets {
    /// Unix, internet, and netlink for reading the network configuration.
    Internet,
    /// Unix only.
    Local,
}

/// The calls that the workload may make if its processes may trace each other.
const DEBUGGING: &[c_long] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
];

/// Returns the rows of the workload's filter if its processes may trace each other.
pub fn rows_with_debugging(sockets: Sockets, devices: &[Family]) -> impl Iterator<Item = Row> {
    rows(sockets, devices).filter(|row| !DEBUGGING.contains(&row.number))
}

/// Returns the rows of the workload's filter, with devices of these families.
pub fn rows(sockets: Sockets, devices: &[Family]) -> impl Iterator<Item = Row> {
    let local = match sockets {
        Sockets::Local => NO_INTERNET,
        Sockets::Internet => &[],
    };
    let shared = SHARED.iter().chain(WORKLOAD).chain(X86_64).copied();
    shared
        .chain(ioctls::rows(devices))
        .chain(local.iter().copied())
}

/// Returns further rows if the sandbox `shares` the PIDs of other programs of its user. The
/// workload must not interfere with those programs.
pub fn rows_for_shared_pids(shares: bool) -> impl Iterator<Item = Row> {
    OTHERS.iter().copied().filter(move |_| shares)
}

/// Returns the rows of the supervisor's filter.
pub fn supervisor_rows() -> impl Iterator<Item = Row> {
    SHARED.iter().chain(SUPERVISOR).chain(OLD_CLONES).copied()
}

/// The reason for refusing separate descriptor tables of threads.
const PRIVATE_DESCRIPTORS: &str = "a thread with descriptors of its own could connect another \
                                   socket than the supervisor sees, before Linux 6.9";

/// The rows of both filters.
const SHARED: &[Row] = &[
    row!(
        SYS_ptrace,
        &[],
        NotPermitted,
        "reads and changes other processes",
        "gdb, strace; LeakSanitizer, and so every program built with -fsanitize=address when it \
         ends (ASAN_OPTIONS=detect_leaks=0)"
    ),
    row!(
        SYS_process_vm_writev,
        &[],
        NotPermitted,
        "changes other processes"
    ),
    row!(
        SYS_bpf,
        &[],
        NotPermitted,
        "loads programs into the kernel",
        "bpftrace, bpftool"
    ),
    row!(
        SYS_perf_event_open,
        &[],
        NotPermitted,
        "observes the kernel and other processes",
        "perf"
    ),
    row!(
        SYS_userfaultfd,
        &[],
        NotPermitted,
        "stops the kernel in the middle of a copy, which exploits need",
        "CRIU, live migration"
    ),
    row!(
        SYS_io_uring_setup,
        &[],
        NotImplemented,
        "a second way to every system call, past this filter"
    ),
    row!(SYS_io_uring_enter, &[], NotImplemented, "as io_uring_setup"),
    row!(
        SYS_io_uring_register,
        &[],
        NotImplemented,
        "as io_uring_setup"
    ),
    row!(
        SYS_mount,
        &[],
        NotPermitted,
        "mounts could cover or expose paths",
        "mount, bubblewrap, flatpak, container engines"
    ),
    row!(
        SYS_umount2,
        &[],
        NotPermitted,
        "uncovers what a mount hides"
    ),
    row!(
        SYS_open_tree,
        &[],
        NotPermitted,
        "the newer mount interface"
    ),
    row!(
        SYS_move_mount,
        &[],
        NotPermitted,
        "the newer mount interface"
    ),
    row!(SYS_fsopen, &[], NotPermitted, "the newer mount interface"),
    row!(SYS_fsconfig, &[], NotPermitted, "the newer mount interface"),
    row!(SYS_fsmount, &[], NotPermitted, "the newer mount interface"),
    row!(SYS_fspick, &[], NotPermitted, "the newer mount interface"),
    row!(
        SYS_mount_setattr,
        &[],
        NotPermitted,
        "the newer mount interface"
    ),
    Row {
        name: "SYS_open_tree_attr",
        number: SYS_OPEN_TREE_ATTR,
        when: &[],
        action: Action::NotPermitted,
        reason: "the newer mount interface",
        breaks: "",
    },
    row!(
        SYS_pivot_root,
        &[],
        NotPermitted,
        "changes the root directory",
        "container engines"
    ),
    row!(
        SYS_open_by_handle_at,
        &[],
        NotPermitted,
        "opens files past the path that the rules speak of",
        "NFS servers, fatrace"
    ),
    row!(
        SYS_keyctl,
        &[],
        NotPermitted,
        "the kernel's key store is shared by everything with this user",
        "keyctl; Kerberos with a KEYRING cache (KRB5CCNAME=FILE:…)"
    ),
    row!(SYS_add_key, &[], NotPermitted, "as keyctl"),
    row!(SYS_request_key, &[], NotPermitted, "as keyctl"),
    row!(SYS_kexec_load, &[], NotPermitted, "replaces the kernel"),
    row!(
        SYS_kexec_file_load,
        &[],
        NotPermitted,
        "replaces the kernel"
    ),
    row!(
        SYS_init_module,
        &[],
        NotPermitted,
        "loads kernel modules",
        "insmod, modprobe"
    ),
    row!(SYS_finit_module, &[], NotPermitted, "loads kernel modules"),
    row!(
        SYS_delete_module,
        &[],
        NotPermitted,
        "unloads kernel modules"
    ),
    row!(
        SYS_reboot,
        &[],
        NotPermitted,
        "stops the machine",
        "reboot, shutdown"
    ),
    row!(
        SYS_clone3,
        &[],
        NotImplemented,
        "its flags lie in memory, out of a filter's sight; C libraries fall back to clone"
    ),
];

/// Further rows of the workload's filter.
const WORKLOAD: &[Row] = &[
    row!(
        SYS_process_vm_readv,
        &[],
        NotPermitted,
        "reads other processes",
        "gdb, py-spy"
    ),
    row!(
        SYS_memfd_create,
        &[],
        NotPermitted,
        "a program that exists only in memory escapes the file rules",
        "programs that run from memory; others use a file in /tmp or /dev/shm"
    ),
    row!(
        SYS_memfd_secret,
        &[],
        NotPermitted,
        "memory that the supervisor's operator cannot inspect"
    ),
    row!(
        SYS_execveat,
        &[bits(4, libc::AT_EMPTY_PATH)],
        NotPermitted,
        "runs a program that has no path"
    ),
    row!(
        SYS_pidfd_getfd,
        &[],
        NotPermitted,
        "takes descriptors from other processes"
    ),
    row!(
        SYS_seccomp,
        &[equal(0, 1)],
        NotPermitted,
        "SECCOMP_SET_MODE_FILTER: shadows this filter's answers",
        "browsers' and other programs' own sandboxes (chromium --no-sandbox, file -S)"
    ),
    row!(
        SYS_prctl,
        &[equal(0, libc::PR_SET_SECCOMP)],
        NotPermitted,
        "the older way to install a filter"
    ),
    row!(
        SYS_chroot,
        &[],
        NotPermitted,
        "changes the root directory",
        "chroot, debootstrap, schroot"
    ),
    row!(
        SYS_setns,
        &[],
        NotPermitted,
        "enters another namespace",
        "nsenter, ip netns"
    ),
    row!(
        SYS_unshare,
        &[bits(0, libc::CLONE_NEWUSER)],
        NotPermitted,
        "a user namespace brings every capability back",
        "bubblewrap, rootless containers, unshare -U; browsers' own sandboxes (chromium \
         --no-sandbox)"
    ),
    row!(
        SYS_clone,
        &[bits(0, libc::CLONE_NEWUSER)],
        NotPermitted,
        "a user namespace brings every capability back",
        "as unshare"
    ),
    row!(
        SYS_unshare,
        &[bits(0, libc::CLONE_FILES)],
        NotPermitted,
        PRIVATE_DESCRIPTORS
    ),
    row!(
        SYS_clone,
        &[masked(
            0,
            libc::CLONE_THREAD | libc::CLONE_FILES,
            libc::CLONE_THREAD
        )],
        NotPermitted,
        PRIVATE_DESCRIPTORS
    ),
    row!(
        SYS_close_range,
        &[bits(2, libc::CLOSE_RANGE_UNSHARE as i32)],
        NotPermitted,
        PRIVATE_DESCRIPTORS
    ),
    row!(
        SYS_io_setup,
        &[],
        NotImplemented,
        "four calls use up the asynchronous I/O of the whole host (fs.aio-max-nr); programs fall \
         back to threads",
        "MySQL and MariaDB (innodb_use_native_aio=0), fio with ioengine=libaio"
    ),
    row!(
        SYS_fanotify_init,
        &[],
        NotPermitted,
        "watches files that are not granted, which the file rules cannot refuse",
        "fatrace"
    ),
    row!(
        SYS_setrlimit,
        &[equal(0, libc::RLIMIT_CORE as i32)],
        NoOp,
        "at any other value than 1 a crash runs the host's handler of core dumps as root",
        "core dumps, which are off whatever is set"
    ),
    row!(
        SYS_prlimit64,
        &[equal(1, libc::RLIMIT_CORE as i32), not_null(2)],
        NoOp,
        "as setrlimit",
        "core dumps, which are off whatever is set"
    ),
    row!(
        SYS_prlimit64,
        &[
            unequal(0, 0),
            unequal(1, libc::RLIMIT_CORE as i32),
            not_null(2)
        ],
        NotPermitted,
        "sets limits of other processes of the user, the supervisor's among them if it is the \
         caller's",
        "prlimit --pid"
    ),
    row!(
        SYS_syslog,
        &[],
        NotPermitted,
        "the kernel's log tells of the host, its addresses included",
        "dmesg"
    ),
    row!(
        SYS_socket,
        &[
            unequal(0, libc::AF_UNIX),
            unequal(0, libc::AF_INET),
            unequal(0, libc::AF_INET6),
            unequal(0, libc::AF_NETLINK),
        ],
        NotPermitted,
        "other families (packet, vsock, bluetooth, alg…) reach past the fence or into rarely used \
         kernel code",
        "tcpdump, arping, bluetoothctl"
    ),
    row!(
        SYS_socket,
        &[equal(0, libc::AF_NETLINK), unequal(2, libc::NETLINK_ROUTE)],
        NotPermitted,
        "netlink for anything but reading links, addresses and routes",
        "ss, nft, iptables, udevadm"
    ),
    row!(
        SYS_socketpair,
        &[unequal(0, libc::AF_UNIX)],
        NotPermitted,
        "as socket"
    ),
    row!(
        SYS_socket,
        &[
            INTERNET,
            unequal(2, libc::IPPROTO_IP),
            unequal(2, libc::IPPROTO_TCP),
            unequal(2, libc::IPPROTO_UDP),
            unequal(2, libc::IPPROTO_ICMP),
            unequal(2, libc::IPPROTO_ICMPV6),
        ],
        NoProtocol,
        "MPTCP, SCTP, DCCP, UDP-Lite, L2TP, SMC and the like: the fence and the supervisor know \
         none, and their code is rarely used"
    ),
    // Protocol 0 selects the type's first protocol, so types are restricted too. The flags of a
    // type are above its lower four bits.
    row!(
        SYS_socket,
        &[INTERNET, masked(1, 0xf, libc::SOCK_RAW)],
        NoProtocol,
        "raw sockets write headers of their own",
        "ping and traceroute, which have nothing to reach either"
    ),
    row!(
        SYS_socket,
        &[INTERNET, bits(1, 4)],
        NoProtocol,
        "SOCK_RDM, SOCK_SEQPACKET (SCTP) and SOCK_DCCP by another name"
    ),
    row!(
        SYS_socket,
        &[INTERNET, bits(1, 8)],
        NoProtocol,
        "SOCK_PACKET: the older packet sockets"
    ),
    other_options!(
        SOCKET,
        "socket filters (SO_ATTACH_FILTER, _BPF, _REUSEPORT_*) run programs in the kernel; the \
         others are rarely used"
    ),
    other_options!(
        TCP,
        "fast open makes connections later than connect(2), by which the supervisor knows who \
         makes them; TCP_ULP loads protocols; TCP_REPAIR forges state"
    ),
    other_options!(UDP, "UDP_ENCAP: IPsec and L2TP inside of datagrams"),
    other_options!(
        IP,
        "addresses of others (IP_TRANSPARENT, IP_FREEBIND), options in headers, IPsec policies, \
         the tables of iptables"
    ),
    other_options!(
        IPV6,
        "IPV6_ADDRFORM, extension headers, IPsec policies, the tables of ip6tables"
    ),
    other_options!(NETLINK, "rarely used kernel code"),
    row!(
        SYS_setsockopt,
        &other_levels(),
        NoOption,
        "TLS in the kernel, MPTCP, AF_ALG, packet sockets and the like"
    ),
    row!(
        SYS_sendto,
        &[bits(3, libc::MSG_FASTOPEN)],
        NotSupported,
        "fast open, as the options of TCP"
    ),
    row!(
        SYS_sendmsg,
        &[bits(2, libc::MSG_FASTOPEN)],
        NotSupported,
        "fast open, as the options of TCP"
    ),
    row!(
        SYS_sendmmsg,
        &[bits(3, libc::MSG_FASTOPEN)],
        NotSupported,
        "fast open, as the options of TCP"
    ),
    row!(
        SYS_personality,
        &[
            // The query, the default, and the values that setarch and sanitizers set: 32 bits, an
            // older version number, no randomisation.
            unequal(0, -1),
            unequal(0, 0),
            unequal(0, PER_LINUX32),
            unequal(0, UNAME26),
            unequal(0, PER_LINUX32 | UNAME26),
            unequal(0, libc::ADDR_NO_RANDOMIZE),
            unequal(0, PER_LINUX32 | libc::ADDR_NO_RANDOMIZE),
        ],
        NotPermitted,
        "other systems' calling conventions, executable data, a mapped first page"
    ),
];

/// The 32-bit personality that `setarch` sets (personality(2)).
const PER_LINUX32: c_int = 0x0008;

/// The flag for a version number that begins with 2.6 (personality(2)).
const UNAME26: c_int = 0x0002_0000;

/// Further rows for x86-64, whose processors have segments.
#[cfg(target_arch = "x86_64")]
const X86_64: &[Row] = &[row!(
    SYS_modify_ldt,
    &[],
    NotPermitted,
    "16-bit segments: rarely used kernel code",
    "16-bit programs in Wine"
)];
#[cfg(not(target_arch = "x86_64"))]
const X86_64: &[Row] = &[];

/// Further rows for a workload without network.
const NO_INTERNET: &[Row] = &[
    row!(
        SYS_socket,
        &[equal(0, libc::AF_INET)],
        NotPermitted,
        "the policy's mode is no network"
    ),
    row!(
        SYS_socket,
        &[equal(0, libc::AF_INET6)],
        NotPermitted,
        "the policy's mode is no network"
    ),
];

/// Calls that affect other programs of the same user, by PID; 0 means the caller.
const OTHERS: &[Row] = &[
    row!(
        SYS_sched_setscheduler,
        &[unequal(0, 0)],
        NotPermitted,
        "slows others down",
        "priorities of single threads"
    ),
    row!(
        SYS_sched_setparam,
        &[unequal(0, 0)],
        NotPermitted,
        "as sched_setscheduler"
    ),
    row!(
        SYS_sched_setattr,
        &[unequal(0, 0)],
        NotPermitted,
        "as sched_setscheduler"
    ),
    row!(
        SYS_sched_setaffinity,
        &[unequal(0, 0)],
        NotPermitted,
        "as sched_setscheduler",
        "processors of single threads"
    ),
    row!(
        SYS_setpriority,
        &[unequal(1, 0)],
        NotPermitted,
        "as sched_setscheduler",
        "renice"
    ),
    row!(
        SYS_ioprio_set,
        &[unequal(1, 0)],
        NotPermitted,
        "as sched_setscheduler",
        "ionice -p"
    ),
    row!(
        SYS_prlimit64,
        &[unequal(0, 0), not_null(2)],
        NotPermitted,
        "takes resources from others",
        "prlimit --pid"
    ),
    row!(
        SYS_migrate_pages,
        &[unequal(0, 0)],
        NotPermitted,
        "moves memory of others"
    ),
    row!(
        SYS_move_pages,
        &[unequal(0, 0)],
        NotPermitted,
        "moves memory of others"
    ),
];

/// Further rows of the supervisor's filter, which is in force once init exists. The supervisor
/// keeps setns(2) for the thread that opens sockets inside the sandbox.
const SUPERVISOR: &[Row] = &[
    row!(
        SYS_execve,
        &[],
        NotPermitted,
        "the supervisor starts nobody: init does"
    ),
    row!(SYS_execveat, &[], NotPermitted, "as execve"),
    row!(
        SYS_clone,
        &[masked(0, libc::CLONE_THREAD, 0)],
        NotPermitted,
        "threads yes, processes no"
    ),
    row!(
        SYS_unshare,
        &[bits(0, libc::CLONE_NEWUSER)],
        NotPermitted,
        "its namespaces have been made"
    ),
    row!(
        SYS_swapon,
        &[],
        NotPermitted,
        "writes memory to a disk of its choice"
    ),
    row!(SYS_settimeofday, &[], NotPermitted, "the host's clock"),
];

/// Older calls that create processes.
#[cfg(target_arch = "x86_64")]
const OLD_CLONES: &[Row] = &[
    row!(SYS_fork, &[], NotPermitted, "as clone"),
    row!(SYS_vfork, &[], NotPermitted, "as clone"),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CLONES: &[Row] = &[];
