//! The binary as PID 1 of a container, under the capabilities that container engines give.

use lab::{Lab, only_as_root};
use serde_json::{Value, json};

/// Capabilities that engines give by default.
const DEFAULT: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SYS_CHROOT",
    "MKNOD",
    "AUDIT_WRITE",
    "SETFCAP",
];

/// Those that the documentation asks for besides.
const DOCUMENTED: &[&str] = &["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"];

/// A container of the lab's system folders, with empty /tmp, /run and /var.
struct Container {
    uid: u32,
    capabilities: Vec<&'static str>,
    /// True if parts of /proc are masked, as engines do.
    is_masked: bool,
}

impl Container {
    fn config(&self, program: &str, policy: &str, command: &[&str]) -> Value {
        let bind = |from: &str, to: &str| json!({"destination": to, "type": "bind", "source": from, "options": ["rbind", "ro"]});
        let tmpfs =
            |to: &str, mode: &str| json!({"destination": to, "type": "tmpfs", "source": "tmpfs", "options": [mode]});
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            tmpfs("/dev", "mode=755"),
            json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666", "mode=0620"]}),
            tmpfs("/dev/shm", "mode=1777"),
            tmpfs("/tmp", "mode=1777"),
            tmpfs("/run", "mode=755"),
            tmpfs("/var", "mode=755"),
            bind(program, "/box/openshell-sandbox"),
            bind(policy, "/box/policy.yaml"),
        ];
        mounts.extend(["/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc"].map(|folder| bind(folder, folder)));
        let names: Vec<_> = self.capabilities.iter().map(|name| format!("CAP_{name}")).collect();
        let effective = if self.uid == 0 { names.clone() } else { vec![] };
        let (masked, read_only) = match self.is_masked {
            true => (
                vec!["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list"],
                vec!["/proc/bus", "/proc/irq", "/proc/sys"],
            ),
            false => (vec![], vec![]),
        };
        let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({"type": kind}));
        let words = ["/box/openshell-sandbox", "-p", "/box/policy.yaml", "--"];
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": self.uid, "gid": self.uid},
                "args": words.iter().chain(command).collect::<Vec<_>>(),
                "env": ["PATH=/usr/bin:/bin"],
                "cwd": "/tmp",
                "capabilities": {"bounding": names, "effective": effective, "permitted": effective, "inheritable": [], "ambient": []},
            },
            "root": {"path": "rootfs"},
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces,
                "maskedPaths": masked,
                "readonlyPaths": read_only,
            },
        })
    }

    /// Runs `command` in a sandbox of the container, and returns everything printed, with the exit code last.
    fn run(&self, command: &[&str]) -> String {
        let lab = Lab::with_web();
        let bundle = lab.folder("bundle");
        std::fs::create_dir(bundle.join("rootfs")).unwrap();
        let policy = lab.file("policy.yaml", "network_policies: {}\n").display().to_string();
        let program = lab.program_path().display().to_string();
        std::fs::write(bundle.join("config.json"), self.config(&program, &policy, command).to_string()).unwrap();
        // The machine's control groups are of the first version, which the runtime does not know.
        lab.shell(&format!(
            "unshare -m sh -c 'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; \
             exec crun --root /run/crun --cgroup-manager=disabled run -b {} box'; echo $?",
            bundle.display()
        ))
    }
}

/// Attempts of a workload to become root, and to end or stop its supervisor and init.
const ATTEMPTS: &str = "id -u; grep -c '^CapEff:.0000000000000000$' /proc/self/status; touch /etc/x; \
     for p in $(ls /proc | grep '^[0-9]*$'); do [ $p = $$ ] || kill -STOP $p 2>/dev/null; done; \
     curl -s -o /dev/null -w '%{http_connect}\\n' https://example.com; echo alive";

#[test]
fn root_with_the_default_capabilities_is_nobody_in_a_user_namespace() {
    only_as_root!("a container runtime starts it");
    for is_masked in [true, false] {
        let printed = Container { uid: 0, capabilities: DEFAULT.to_vec(), is_masked }.run(&["sh", "-c", ATTEMPTS]);
        assert!(printed.contains("\n65534\n1\n") && printed.contains("\n403\nalive\n"), "{printed}");
        assert!(printed.contains("the command is root outside, and 65534 inside"), "{printed}");
        assert_eq!(printed.contains("shares the supervisor's process numbers"), is_masked, "{printed}");
        assert!(printed.ends_with("\n0\n"), "{printed}");
    }
    let shadow = Container { uid: 0, capabilities: DEFAULT.to_vec(), is_masked: true }.run(&["cat", "/etc/shadow"]);
    assert!(shadow.contains("/etc/shadow: Permission denied"), "{shadow}");
}

#[test]
fn root_without_capabilities_is_told_what_to_change() {
    only_as_root!("a container runtime starts it");
    let printed = Container { uid: 0, capabilities: vec![], is_masked: true }.run(&["echo", "ran"]);
    let lines: Vec<_> = printed.lines().filter(|line| !line.contains("umount")).collect();
    let [line, "1"] = lines[..] else { panic!("one line: {printed}") };
    assert!(line.contains("another user (`USER` of an image)") && line.contains("CAP_SETFCAP"), "{line}");
}

#[test]
fn another_user_without_capabilities_runs_as_itself() {
    only_as_root!("a container runtime starts it");
    for is_masked in [true, false] {
        let printed = Container { uid: 61184, capabilities: vec![], is_masked }.run(&["sh", "-c", ATTEMPTS]);
        assert!(printed.contains("\n61184\n1\n") && printed.contains("\n403\nalive\n"), "{printed}");
    }
}

#[test]
fn the_documented_capabilities_are_enough_for_another_user() {
    only_as_root!("a container runtime starts it");
    for is_masked in [true, false] {
        let container = Container { uid: 0, capabilities: [DEFAULT, DOCUMENTED].concat(), is_masked };
        let printed = container.run(&["sh", "-c", ATTEMPTS]);
        assert!(printed.contains("65534\n1\n") && printed.contains("\n403\nalive\n"), "{printed}");
        assert!(!printed.contains("root outside"), "{printed}");
    }
}
