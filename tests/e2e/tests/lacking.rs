//! Hosts with a missing feature: the start prints one line that names the feature, its use, and the
//! remedy.

use lab::host::{Lacking, UID};
use lab::{Lab, only_rootless};

/// Starts a sandbox on a host without `lacking`; it must not run, and must print `expected`.
#[track_caller]
fn refused(lacking: Vec<Lacking>, expected: &[&str]) {
    let lab = Lab::with_web();
    lab.without(lacking);
    let finished = lab.sandbox(&super::policy("{}")).sh("echo ran");
    assert_eq!(
        (finished.code(), finished.stdout.as_str()),
        (1, ""),
        "{finished:?}"
    );
    let errors: Vec<_> = finished.stderr.lines().collect();
    let [line] = errors[..] else {
        panic!("one line: {}", finished.stderr)
    };
    for word in expected {
        assert!(line.contains(word), "no {word:?} in {line:?}");
    }
    assert_eq!(
        lab.shell("find /run -name 'openshell-*'; tail -n +3 /proc/net/dev | grep -v lo:"),
        ""
    );
}

fn call(call: libc::c_long, errno: i32) -> Lacking {
    Lacking {
        call,
        arguments: vec![],
        errno,
    }
}

#[test]
fn a_kernel_without_landlock() {
    for errno in [libc::ENOSYS, libc::EOPNOTSUPP] {
        refused(
            vec![call(libc::SYS_landlock_create_ruleset, errno)],
            &["no Landlock", "files", "`lsm=`"],
        );
    }
}

#[test]
fn a_kernel_without_nftables() {
    let socket = Lacking {
        call: libc::SYS_socket,
        arguments: vec![
            (0, libc::AF_NETLINK as u64),
            (2, libc::NETLINK_NETFILTER as u64),
        ],
        errno: libc::EPROTONOSUPPORT,
    };
    refused(vec![socket], &["nf_tables", "fence", "--network block"]);
}

#[test]
fn a_kernel_without_system_call_filters() {
    let seccomp = [call(libc::SYS_seccomp, libc::ENOSYS)];
    refused(seccomp.to_vec(), &["seccomp", "CONFIG_SECCOMP_FILTER"]);
}

#[test]
fn a_container_that_may_not_mount() {
    refused(
        vec![call(libc::SYS_mount, libc::EACCES)],
        &["mount", "AppArmor"],
    );
}

#[test]
fn a_container_without_a_network_namespace_to_make() {
    let network = Lacking {
        call: libc::SYS_unshare,
        arguments: vec![(0, libc::CLONE_NEWNET as u64)],
        errno: libc::EPERM,
    };
    refused(
        vec![network],
        &[
            "network namespace",
            "container's profile",
            "user.max_net_namespaces",
        ],
    );
}

#[test]
fn a_container_without_a_user_namespace_to_make() {
    only_rootless!("root with its capabilities needs none");
    // This kernel has them, so that an ENOSYS comes from a profile.
    for (errno, why) in [
        (libc::EPERM, "seccomp"),
        (libc::ENOSPC, "user.max_user_namespaces"),
        (libc::ENOSYS, "seccomp"),
    ] {
        let user = Lacking {
            call: libc::SYS_unshare,
            arguments: vec![(0, libc::CLONE_NEWUSER as u64)],
            errno,
        };
        refused(
            vec![user],
            &["user namespace", "CAP_SYS_ADMIN", why, "run as root"],
        );
    }
}

#[test]
fn a_supervisor_without_netlink_routes() {
    let socket = Lacking {
        call: libc::SYS_socket,
        arguments: vec![(0, libc::AF_NETLINK as u64), (2, 0)],
        errno: libc::EPROTONOSUPPORT,
    };
    refused(vec![socket], &["veth", "CAP_NET_ADMIN", "--network block"]);
}

#[test]
fn a_kernel_without_notifications_of_system_calls() {
    // SECCOMP_FILTER_FLAG_NEW_LISTENER, with and without WAIT_KILLABLE_RECV.
    let listener = |flags: u64| Lacking {
        call: libc::SYS_seccomp,
        arguments: vec![(1, flags)],
        errno: libc::EINVAL,
    };
    refused(
        vec![listener(0x28), listener(0x08)],
        &["identifies callers", "user notification", "--network block"],
    );
}

#[test]
fn a_container_whose_filter_knows_only_the_older_calls_for_mounts_has_every_file_and_cover_too() {
    let all = [
        libc::SYS_fsopen,
        libc::SYS_open_tree,
        libc::SYS_move_mount,
        libc::SYS_mount_setattr,
    ];
    let lists: [&[libc::c_long]; 3] = [&all, &[libc::SYS_fsopen], &[libc::SYS_move_mount]];
    for (calls, errno) in lists
        .iter()
        .flat_map(|calls| [(calls, libc::ENOSYS), (calls, libc::EPERM)])
    {
        let lab = Lab::with_web();
        lab.without(calls.iter().map(|number| call(*number, errno)).collect());
        let work = lab.folder("work").display().to_string();
        assert_eq!(
            lab.shell(&format!(
                "cd {work}; echo s3cret > hidden; chown -R {UID}:{UID} ."
            )),
            ""
        );
        let rest =
            format!("filesystem_policy: {{read_write: [{work}], hidden: [{work}/hidden]}}\n");
        let sandbox = lab.sandbox(&format!("{}{rest}", super::policy("{}")));
        let finished = sandbox.sh(&format!(
            "cat {work}/hidden 2>&1; grep -c BEGIN $NODE_EXTRA_CA_CERTS; grep nameserver \
             /etc/resolv.conf"
        ));
        assert_eq!(
            finished.ok(),
            format!("cat: {work}/hidden: Permission denied\n1\nnameserver 10.200.0.1"),
            "{}",
            finished.stderr
        );
    }
}
