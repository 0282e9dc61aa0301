//! Containers of an OCI runtime, in which the binary is PID 1.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::host::Lab;

/// Capabilities that engines give by default.
pub const DEFAULT: &[&str] = &[
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
pub const DOCUMENTED: &[&str] = &["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE"];

/// The file systems of a container.
#[derive(Clone, Debug)]
pub enum Files {
    /// The lab's system folders, with empty /tmp, /run and /var.
    Host,
    /// /usr and its links alone: neither /etc nor /var, /run and /tmp.
    Programs,
    /// The files of an image, in this folder, which stay as they are.
    Image(PathBuf),
}

/// A container before its start.
#[derive(Clone, Debug)]
pub struct Container {
    /// User and group of PID 1.
    pub uid: u32,
    /// Its bounding set, and for root what it has.
    pub capabilities: Vec<&'static str>,
    /// True if parts of /proc are masked, as engines do.
    pub is_masked: bool,
    /// Where its files come from.
    pub files: Files,
    /// True if it may not write into them.
    pub is_read_only: bool,
    /// True if neither set-id programs nor file capabilities give it rights
    /// (`allowPrivilegeEscalation: false`).
    pub no_new_privileges: bool,
    /// True if it has a terminal.
    pub has_terminal: bool,
    /// System calls of the container, as `linux.seccomp` of the runtime's configuration.
    pub seccomp: Option<Value>,
    /// Users of the host behind those of the container, the first and their number, if it has a
    /// user namespace.
    pub users: Option<(u32, u32)>,
    /// Further read-only binds, each with source and destination.
    pub binds: Vec<(PathBuf, String)>,
    /// Further writable binds, each with source and destination.
    pub volumes: Vec<(PathBuf, String)>,
    /// Working directory.
    pub workdir: String,
    /// Further variables, as `NAME=VALUE`.
    pub variables: Vec<&'static str>,
}

impl Container {
    /// Returns a container of the lab's files, for a user with capabilities.
    #[must_use]
    pub fn new(uid: u32, capabilities: &[&[&'static str]]) -> Self {
        Self {
            uid,
            capabilities: capabilities.concat(),
            is_masked: true,
            files: Files::Host,
            is_read_only: false,
            no_new_privileges: false,
            has_terminal: false,
            seccomp: None,
            users: None,
            binds: vec![],
            volumes: vec![],
            workdir: "/".to_owned(),
            variables: vec![],
        }
    }

    fn config(&self, root: &Path, words: &[&str]) -> Value {
        let bind = |from: &Path, to: &str, access: &str| json!({"destination": to, "type": "bind", "source": from, "options": ["rbind", access]});
        let tmpfs = |to: &str, mode: &str| json!({"destination": to, "type": "tmpfs", "source": "tmpfs", "options": [mode]});
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            tmpfs("/dev", "mode=755"),
            json!({"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": ["newinstance", "ptmxmode=0666", "mode=0620"]}),
            tmpfs("/dev/shm", "mode=1777"),
        ];
        let folders: &[&str] = match self.files {
            Files::Host => &["/usr", "/bin", "/lib", "/lib64", "/sbin", "/etc"],
            Files::Programs => &["/usr", "/bin", "/lib", "/lib64", "/sbin"],
            Files::Image(_) => &[],
        };
        mounts.extend(
            folders
                .iter()
                .map(|folder| bind(Path::new(folder), folder, "ro")),
        );
        if matches!(self.files, Files::Host) {
            mounts.extend([
                tmpfs("/tmp", "mode=1777"),
                tmpfs("/run", "mode=755"),
                tmpfs("/var", "mode=755"),
            ]);
        }
        mounts.extend(self.binds.iter().map(|(from, to)| bind(from, to, "ro")));
        mounts.extend(self.volumes.iter().map(|(from, to)| bind(from, to, "rw")));
        let names: Vec<_> = self
            .capabilities
            .iter()
            .map(|name| format!("CAP_{name}"))
            .collect();
        let effective = if self.uid == 0 { names.clone() } else { vec![] };
        let (masked, read_only) = if self.is_masked {
            (
                vec![
                    "/proc/acpi",
                    "/proc/kcore",
                    "/proc/keys",
                    "/proc/timer_list",
                ],
                vec!["/proc/bus", "/proc/irq", "/proc/sys"],
            )
        } else {
            (vec![], vec![])
        };
        let mut namespaces: Vec<_> = ["pid", "network", "ipc", "uts", "mount"]
            .map(|kind| json!({"type": kind}))
            .into();
        namespaces.extend(self.users.map(|_| json!({"type": "user"})));
        let mapping: Vec<_> = self
            .users
            .iter()
            .map(|(first, size)| json!({"containerID": 0, "hostID": first, "size": size}))
            .collect();
        let variables = ["PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm"]
            .iter()
            .chain(&self.variables);
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "terminal": self.has_terminal,
                "user": {"uid": self.uid, "gid": self.uid},
                "args": words,
                "env": variables.collect::<Vec<_>>(),
                "cwd": self.workdir,
                "noNewPrivileges": self.no_new_privileges,
                "capabilities": {"bounding": names, "effective": effective, "permitted": effective, "inheritable": [], "ambient": []},
            },
            "root": {"path": root, "readonly": self.is_read_only},
            "mounts": mounts,
            "linux": {
                "namespaces": namespaces,
                "uidMappings": mapping,
                "gidMappings": mapping,
                "maskedPaths": masked,
                "readonlyPaths": read_only,
                "seccomp": self.seccomp,
            },
        })
    }

    /// Runs `words` as PID 1, and returns everything printed, with the exit code last.
    ///
    /// # Panics
    /// The container's files cannot be made.
    #[must_use]
    pub fn run(&self, lab: &Lab, words: &[&str]) -> String {
        lab.shell(&format!("{}; echo $?", self.script(lab, words)))
    }

    /// Returns the line of a shell that runs `words` as PID 1.
    ///
    /// # Panics
    /// The container's files cannot be made.
    #[must_use]
    pub fn script(&self, lab: &Lab, words: &[&str]) -> String {
        let bundle = tempfile::tempdir_in(lab.folder("bundles")).unwrap().keep();
        let root = bundle.join("rootfs");
        for folder in ["rootfs", "changes"] {
            std::fs::create_dir(bundle.join(folder)).unwrap();
        }
        std::fs::write(
            bundle.join("config.json"),
            self.config(&root, words).to_string(),
        )
        .unwrap();
        let bundle = bundle.display();
        let root = self.users.map_or(0, |(first, _)| first);
        // Root of a user namespace cannot make them.
        let folders = self
            .binds
            .iter()
            .chain(&self.volumes)
            .filter(|(from, _)| from.is_dir());
        let folders: String = folders
            .map(|(_, to)| format!(" {bundle}/rootfs{to}"))
            .collect();
        let files = match &self.files {
            Files::Image(image) => format!(
                "mount -t tmpfs none {bundle}/changes; mkdir {bundle}/changes/up \
                 {bundle}/changes/work; mount -t overlay -o \
                 lowerdir={},upperdir={bundle}/changes/up,workdir={bundle}/changes/work none \
                 {bundle}/rootfs; chown {root}:{root} {bundle}/rootfs; mkdir -p \
                 {bundle}/rootfs{folders}; ",
                image.display()
            ),
            _ => String::new(),
        };
        // The machine's control groups are of the first version, which the runtime does not know.
        format!(
            "unshare -m sh -c 'umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; \
             {files}exec crun --root /run/crun --cgroup-manager=disabled run -b {bundle} box-$$'"
        )
    }
}

/// Calls that Docker and containerd give to CAP_SYS_ADMIN alone; Podman gives most of them to
/// everybody.
const ADMINISTRATORS: &[&str] = &[
    "clone3",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "setdomainname",
    "sethostname",
    "setns",
    "umount",
    "umount2",
    "unshare",
];

/// An engine whose own profile of system calls a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Podman, whose profile Debian's containers-common has.
    Podman,
    /// Docker and containerd (`RuntimeDefault` in Kubernetes).
    Docker,
}

/// Returns the profile of system calls in `file`, of the engines' form, for a container with
/// `capabilities`, in the runtime's.
///
/// # Panics
/// The file is no profile.
#[must_use]
pub fn profile(file: &Path, capabilities: &[&str], engine: Option<Engine>) -> Value {
    let profile: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let architecture = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    let is_capability = |name: &Value| {
        name.as_str()
            .is_some_and(|name| capabilities.iter().any(|has| name.ends_with(has)))
    };
    let has = |condition: &Value| {
        let all = |name: &str, is_met: &dyn Fn(&Value) -> bool| {
            condition[name]
                .as_array()
                .is_none_or(|values| values.iter().any(is_met))
        };
        all("caps", &is_capability) && all("arches", &|name| name == architecture)
    };
    let is_empty = |condition: &Value| condition.as_object().is_none_or(serde_json::Map::is_empty);
    let applies = |rule: &&Value| {
        has(&rule["includes"]) && (is_empty(&rule["excludes"]) || !has(&rule["excludes"]))
    };
    let is_administrators = capabilities.contains(&"SYS_ADMIN");
    let mut rules: Vec<Value> = profile["syscalls"]
        .as_array()
        .unwrap()
        .iter()
        .filter(applies)
        .cloned()
        .collect();
    for rule in &mut rules {
        let fields = rule.as_object_mut().unwrap();
        let keys = ["names", "action", "args", "errnoRet"];
        fields.retain(|key, value| keys.contains(&key.as_str()) && !value.is_null());
        if engine == Some(Engine::Docker)
            && !is_administrators
            && fields["action"] == "SCMP_ACT_ALLOW"
        {
            let names = fields["names"].as_array_mut().unwrap();
            names.retain(|name| !ADMINISTRATORS.contains(&name.as_str().unwrap()));
        }
    }
    rules.retain(|rule| {
        rule["names"]
            .as_array()
            .is_some_and(|names| !names.is_empty())
    });
    let mut profile = json!({"defaultAction": profile["defaultAction"], "defaultErrnoRet": profile["defaultErrnoRet"], "syscalls": rules});
    profile
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    profile
}
