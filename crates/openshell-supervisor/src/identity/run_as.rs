//! Resolves the policy's user and group to numbers through `/etc/passwd` and `/etc/group`, before
//! anything is forked.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use openshell_events::words::FileAccess;
use openshell_policy::process::{Identity, RunAs};
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize};

use crate::host::privilege::{Caller, NOBODY, Privilege, inside, is_caller_root};
use crate::paths::mounts::by_descriptor;

/// The user and group ids of the workload. None of them is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The user id.
    pub uid: u32,
    /// The primary group id.
    pub gid: u32,
    /// The supplementary group ids. Unless they are the caller's, the primary id is always among
    /// them.
    pub groups: Vec<u32>,
    /// True if these are the caller's user and groups, which commands keep.
    pub is_callers: bool,
}

impl ProcessIdentity {
    /// Returns true if the supervisor, the calling process, has this user.
    #[must_use]
    pub fn is_supervisors(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    /// Runs `act` on a thread that has this user and no capabilities. The thread sees files as the
    /// workload would, whatever file system they are in. Changing only the effective user would not
    /// be enough: a FUSE file system compares all ids of a process with those of its owner
    /// (fuse(8), `allow_other`).
    ///
    /// # Errors
    /// Fails if a thread cannot be created, or cannot take the identity.
    pub fn look<T: Send>(&self, act: impl FnOnce() -> T + Send) -> io::Result<T> {
        let (looked, ()) = self.look_beside(act, || ())?;
        Ok(looked)
    }

    /// Runs `act` like [`Self::look`], and `meanwhile` on the calling thread.
    ///
    /// # Errors
    /// Fails if a thread cannot be created, or cannot take the identity.
    ///
    /// # Panics
    /// Panics if one of them does.
    pub fn look_beside<T: Send, U>(
        &self,
        act: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce() -> U,
    ) -> io::Result<(T, U)> {
        let mut looked = Err(io::ErrorKind::Other.into());
        let result = &mut looked;
        // The end of the scope waits for the result only; a join would wait for the thread's exit,
        // which may have to wait for a processor.
        let other = std::thread::scope(|scope| {
            let looking = move || *result = self.take_on_thread().map(|()| act());
            let thread = std::thread::Builder::new().name("look".to_owned());
            let started = thread.spawn_scoped(scope, looking);
            started.map_err(|error| {
                let remedy = "raise the limit of processes (pids.max, ulimit -u)";
                io::Error::new(
                    error.kind(),
                    format!("cannot start a thread for it: {error}; {remedy}"),
                )
            })?;
            io::Result::Ok(meanwhile())
        })?;
        Ok((looked?, other))
    }

    /// Gives the calling thread this identity, for good. Each of these calls changes only the
    /// calling thread (credentials(7)).
    fn take_on_thread(&self) -> io::Result<()> {
        if !self.is_callers {
            let groups: Vec<_> = self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
            let uid = Uid::from_raw(self.uid);
            let gid = Gid::from_raw(self.gid);
            rustix::thread::set_thread_groups(&groups)?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        let none = CapabilitySet::empty();
        let nothing = CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        Ok(rustix::thread::set_capabilities(None, nothing)?)
    }

    /// Returns true if owner, group and mode let the user enter the folder `path` and all of its
    /// ancestors.
    fn may_enter(&self, path: &Path) -> bool {
        path.ancestors().all(|folder| self.has_mode(folder, 0o1))
    }

    /// Returns true if the user may enter the folder `path` and create entries in it.
    #[must_use]
    pub fn may_write(&self, path: &Path) -> bool {
        if self.is_callers {
            // Owners and groups without a mapping all look alike. access(2) does not take
            // capabilities into account.
            let rights = Access::WRITE_OK | Access::EXEC_OK;
            return path.is_dir() && rustix::fs::access(path, rights).is_ok();
        }
        self.may_enter(path) && self.has_mode(path, 0o2)
    }

    /// Returns true if owner, group and mode give the user `access` to `path`, which has no
    /// symlinks, and to the folders on the way to it.
    #[must_use]
    pub fn may_reach(&self, path: &Path, access: FileAccess) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else {
            return false;
        };
        let is_reached =
            self.is_callers || path.parent().is_none_or(|folder| self.may_enter(folder));
        is_reached && self.may_use(&file, access)
    }

    /// Returns true if owner, group and mode give the user `access` to an open file or folder. The
    /// ACLs of other users are not looked at.
    pub(crate) fn may_use(&self, file: &OwnedFd, access: FileAccess) -> bool {
        let (bits, right) = match access {
            FileAccess::Read | FileAccess::List => (0o4, Access::READ_OK),
            FileAccess::Write => (0o2, Access::WRITE_OK),
            FileAccess::Execute => (0o1, Access::EXEC_OK),
        };
        if self.is_callers {
            // The name in /proc needs no right to search folders. Errors other than EACCES do not
            // come from the mode.
            return rustix::fs::access(by_descriptor(file), right) != Err(Errno::ACCESS);
        }
        rustix::fs::fstat(file)
            .is_ok_and(|data| self.permits([data.st_uid, data.st_gid, data.st_mode], bits))
    }

    /// Returns true if `path` is a folder whose mode grants `bits` to the user.
    fn has_mode(&self, path: &Path, bits: u32) -> bool {
        std::fs::metadata(path).is_ok_and(|data| {
            data.is_dir() && self.permits([data.uid(), data.gid(), data.mode()], bits)
        })
    }

    /// Returns true if the mode of a file or folder grants `bits` to the user.
    fn permits(&self, [uid, gid, mode]: [u32; 3], bits: u32) -> bool {
        let shift = match (uid == self.uid, self.groups.contains(&gid)) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        (mode >> shift) & bits == bits
    }
}

/// The workload's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user and group ids.
    pub identity: ProcessIdentity,
    /// The user's name, or the decimal user id if the user has no entry.
    pub name: String,
    /// The home directory in the entry.
    pub home: Option<PathBuf>,
    /// The shell in the entry, if it names one.
    pub shell: Option<PathBuf>,
}

/// The reason why a user or group cannot be resolved.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum RunAsError {
    #[error("cannot read {path}, which names users and groups")]
    Read {
        path: &'static str,
        source: io::Error,
    },
    #[error(
        "Sandbox user not found: `{0}` has no entry in /etc/passwd; the image must include it. \
         Create it (`useradd --system --home-dir /sandbox {0}`) or set `process.run_as_user` and \
         `run_as_group` in the policy"
    )]
    NoUser(String),
    #[error(
        "Sandbox group not found: `{0}` has no entry in /etc/group; the image must include it. \
         Create it (`groupadd --system {0}`) or set `process.run_as_group` in the policy"
    )]
    NoGroup(String),
    #[error("`{0}` is root under another name (number 0); name an unprivileged user and group")]
    Root(String),
    #[error(
        "process: commands cannot become {wanted}, because this run is user {uid} in group {gid} \
         and lacks {missing}; leave `process` out, so that they stay that user, or run as root"
    )]
    Other {
        wanted: String,
        uid: u32,
        gid: u32,
        missing: String,
    },
    #[error("cannot read the caller's groups")]
    Groups { source: io::Error },
}

/// The user database of the host: passwd(5) and group(5).
struct Database {
    passwd: String,
    group: String,
}

impl Database {
    fn read() -> Result<Self, RunAsError> {
        let read = |path| match std::fs::read_to_string(path) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(source) => Err(RunAsError::Read { path, source }),
        };
        Ok(Self {
            passwd: read("/etc/passwd")?,
            group: read("/etc/group")?,
        })
    }
}

/// Resolves `run_as` for a start with this `privilege`. A numeric user needs no entry, and without
/// one has no further groups. Without a group, the user gets the primary group of its entry.
/// Without a user, the workload runs as the caller. If the caller is root, it runs as the first of
/// these that exists: `sandbox`; the user and group who called `sudo`, without further groups;
/// `nobody`.
///
/// # Errors
/// Fails if a name has no entry, a user or group resolves to 0, commands cannot become the user or
/// group, or the database cannot be read.
pub fn resolve(
    run_as: &RunAs,
    privilege: &Privilege,
    sudo: Option<(u32, u32)>,
) -> Result<User, RunAsError> {
    let database = Database::read()?;
    match privilege {
        Privilege::Capabilities => {
            let caller = rustix::process::geteuid().as_raw();
            database.resolve(run_as, caller, sudo.filter(|(uid, _)| *uid != 0))
        }
        Privilege::UserNamespace(caller) => database.caller(run_as, caller),
    }
}

impl Database {
    /// Resolves `run_as` for a `caller` with the capability to become any user.
    fn resolve(
        &self,
        run_as: &RunAs,
        caller: u32,
        sudo: Option<(u32, u32)>,
    ) -> Result<User, RunAsError> {
        let group = run_as.group.as_ref();
        let has_sandbox = || passwd_entries(&self.passwd).any(|entry| entry.name == "sandbox");
        match (&run_as.user, caller, sudo) {
            (Some(user), _, _) => self.named(user, group),
            (None, 1.., _) => self.named(&Identity::Id(caller), group),
            (None, 0, _) if has_sandbox() => {
                self.named(&Identity::Name("sandbox".to_owned()), group)
            }
            (None, 0, Some((uid, gid))) => {
                let mut user =
                    self.named(&Identity::Id(uid), group.or(Some(&Identity::Id(gid))))?;
                user.identity.groups = vec![user.identity.gid];
                Ok(user)
            }
            (None, 0, None) => self.named(&Identity::Id(NOBODY), group),
        }
    }

    /// Resolves `run_as` for a start whose commands keep the caller's user.
    fn caller(&self, run_as: &RunAs, caller: &Caller) -> Result<User, RunAsError> {
        let Caller { uid, gid, .. } = *caller;
        let users = |name: &str| {
            Some(
                passwd_entries(&self.passwd)
                    .find(|entry| entry.name == name)?
                    .uid,
            )
        };
        let groups = |name: &str| {
            Some(
                group_entries(&self.group)
                    .find(|entry| entry.name == name)?
                    .gid,
            )
        };
        let is = |named: &Option<Identity>, own: u32, number: &dyn Fn(&str) -> Option<u32>| {
            match named {
                None => true,
                Some(Identity::Id(id)) => *id == own,
                Some(Identity::Name(name)) => own != 0 && number(name) == Some(own),
            }
        };
        if !is(&run_as.user, uid, &users) || !is(&run_as.group, gid, &groups) {
            let missing = caller.missing.join(", ");
            return Err(RunAsError::Other {
                wanted: run_as.to_string(),
                uid,
                gid,
                missing,
            });
        }
        let uid = inside(uid);
        let gid = inside(gid);
        // Groups without a mapping have the number of the group `nobody`.
        let groups = rustix::process::getgroups().map_err(|errno| RunAsError::Groups {
            source: errno.into(),
        })?;
        let groups = groups.into_iter().map(Gid::as_raw).collect();
        let identity = ProcessIdentity {
            uid,
            gid,
            groups,
            is_callers: true,
        };
        // If root starts without capabilities, its entry is that of `nobody`, because it appears as
        // `nobody` inside.
        let entry = passwd_entries(&self.passwd).find(|entry| entry.uid == identity.uid);
        Ok(User::new(identity, entry.as_ref()))
    }

    /// Resolves the given user, and the group if one is given.
    fn named(&self, user: &Identity, group: Option<&Identity>) -> Result<User, RunAsError> {
        let entry = match user {
            Identity::Name(name) => passwd_entries(&self.passwd).find(|entry| entry.name == name),
            Identity::Id(id) => passwd_entries(&self.passwd).find(|entry| entry.uid == *id),
        };
        let uid = match (user, &entry) {
            (_, Some(entry)) => entry.uid,
            (Identity::Id(id), None) => *id,
            (Identity::Name(name), None) => return Err(RunAsError::NoUser(name.clone())),
        };
        let gid = match (group, &entry) {
            (Some(Identity::Id(id)), _) => *id,
            (Some(Identity::Name(name)), _) => {
                let found = group_entries(&self.group).find(|entry| entry.name == name);
                found.ok_or_else(|| RunAsError::NoGroup(name.clone()))?.gid
            }
            (None, Some(entry)) => entry.gid,
            (None, None) => uid,
        };
        let mut groups: Vec<u32> = vec![gid];
        if let Some(entry) = &entry {
            let is_member = |group: &GroupEntry<'_>| {
                group.members.split(',').any(|member| member == entry.name)
            };
            let others =
                group_entries(&self.group).filter(|group| group.gid != gid && is_member(group));
            groups.extend(others.map(|group| group.gid));
        }
        let has_root = uid == 0 || groups.contains(&0);
        let user = User::new(
            ProcessIdentity {
                uid,
                gid,
                groups,
                is_callers: false,
            },
            entry.as_ref(),
        );
        if has_root {
            Err(RunAsError::Root(user.name))
        } else {
            Ok(user)
        }
    }
}

/// Only users that are people have numbers in this range (login.defs(5), `UID_MIN`, `UID_MAX`).
const PEOPLE: std::ops::Range<u32> = 1000..60_000;

/// Returns the homes of root, of people, and of the users `further` according to the user database.
/// The root folder is not among them.
///
/// # Errors
/// Fails if the database cannot be read.
pub fn homes(further: &[u32]) -> Result<Vec<PathBuf>, RunAsError> {
    let database = Database::read()?;
    let is_meant = |uid: u32| uid == 0 || PEOPLE.contains(&uid) || further.contains(&uid);
    let entries = passwd_entries(&database.passwd).filter(|entry| is_meant(entry.uid));
    Ok(entries
        .map(|entry| PathBuf::from(entry.home))
        .filter(|home| home.parent().is_some())
        .collect())
}

/// Returns the home of the calling process's user according to the user database; `None` if the
/// user has none, or the database cannot be read.
#[must_use]
pub fn home_of_caller() -> Option<PathBuf> {
    if is_caller_root() {
        return None;
    }
    let database = Database::read().ok()?;
    let uid = rustix::process::geteuid().as_raw();
    let entry = passwd_entries(&database.passwd).find(|entry| entry.uid == uid)?;
    Some(PathBuf::from(entry.home)).filter(|home| home.is_absolute() && home.parent().is_some())
}

impl User {
    fn new(identity: ProcessIdentity, entry: Option<&PasswdEntry<'_>>) -> Self {
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        Self {
            name: entry.map_or_else(|| identity.uid.to_string(), |entry| entry.name.to_owned()),
            home: entry.and_then(|entry| path(entry.home)),
            shell: entry.and_then(|entry| path(entry.shell)),
            identity,
        }
    }
}

/// Returns each group's name, or its number if it has no name.
///
/// # Errors
/// Fails if the user database cannot be read.
pub fn group_names(groups: &[u32]) -> Result<Vec<String>, RunAsError> {
    let database = Database::read()?.group;
    let name = |gid: &u32| {
        group_entries(&database)
            .find(|entry| entry.gid == *gid)
            .map(|entry| entry.name.to_owned())
    };
    Ok(groups
        .iter()
        .map(|gid| name(gid).unwrap_or_else(|| gid.to_string()))
        .collect())
}

struct PasswdEntry<'t> {
    name: &'t str,
    uid: u32,
    gid: u32,
    home: &'t str,
    shell: &'t str,
}

/// Returns the entries of passwd(5), without malformed lines.
fn passwd_entries(text: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let _password = fields.next()?;
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let _comment = fields.next()?;
        Some(PasswdEntry {
            name,
            uid,
            gid,
            home: fields.next()?,
            shell: fields.next()?,
        })
    })
}

struct GroupEntry<'t> {
    name: &'t str,
    gid: u32,
    members: &'t str,
}

/// Returns the entries of group(5), without malformed lines.
fn group_entries(text: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let _password = fields.next()?;
        Some(GroupEntry {
            name,
            gid: fields.next()?.parse().ok()?,
            members: fields.next()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Database, RunAsError, User};
    use crate::host::privilege::Caller;
    use openshell_policy::process::{Identity, RunAs};

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\ntoor:x:0:0::/:/bin/sh\nbroken line\n\
                          sandbox:x:900:901::/sandbox:/usr/sbin/nologin\n";
    const GROUP: &str =
        "root:x:0:\nsandbox:x:901:\naudio:x:29:sandbox,other\nvideo:x:44:other\nwheel:x:0:evil\n";

    fn database() -> Database {
        Database {
            passwd: PASSWD.to_owned(),
            group: GROUP.to_owned(),
        }
    }

    fn run_as(user: Option<&str>, group: Option<&str>) -> RunAs {
        let identity = |text| Identity::parse(text).unwrap();
        RunAs {
            user: user.map(identity),
            group: group.map(identity),
        }
    }

    fn resolved(user: &str, group: Option<&str>) -> Result<User, RunAsError> {
        database().resolve(&run_as(Some(user), group), 0, None)
    }

    #[test]
    fn a_look_at_files_has_all_ids_of_the_user_and_the_caller_is_itself_again_also_after_a_panic() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let own = || {
            let ids = (
                rustix::process::getuid(),
                rustix::process::geteuid(),
                rustix::process::getegid(),
            );
            (
                ids,
                rustix::process::getgroups().unwrap(),
                rustix::thread::capabilities(None).unwrap(),
            )
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("roots");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let identity = &resolved("61184", None).unwrap().identity;
        let before = own();
        let status = || std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let status = identity.look(status).unwrap();
        for ids in ["Uid:", "Gid:"] {
            let all = format!("{ids}\t61184\t61184\t61184\t61184\n");
            assert!(status.contains(&all), "{status}");
        }
        let error = identity.look(|| std::fs::read(&file).unwrap_err()).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        let in_a_thread = || {
            std::thread::scope(|scope| {
                scope
                    .spawn(|| std::fs::read(&file).is_err())
                    .join()
                    .unwrap()
            })
        };
        assert!(identity.look(in_a_thread).unwrap());
        assert_eq!(own(), before);
        let look = std::panic::AssertUnwindSafe(|| identity.look(|| panic!("within")));
        assert!(std::panic::catch_unwind(look).is_err());
        assert_eq!(own(), before);
        std::fs::read(&file).unwrap();
    }

    // Conformance: PRV-01.
    #[test]
    fn a_name_brings_its_groups_and_no_others() {
        let user = resolved("sandbox", Some("sandbox")).unwrap();
        assert_eq!((user.identity.uid, user.identity.gid), (900, 901));
        assert_eq!(user.identity.groups, [901, 29]);
        assert_eq!(user.home.unwrap().to_str(), Some("/sandbox"));
    }

    #[test]
    fn a_number_needs_no_entry_and_gets_no_groups() {
        let user = resolved("61184", None).unwrap();
        assert_eq!((user.identity.uid, user.identity.gid), (61184, 61184));
        assert_eq!(user.identity.groups, [61184]);
        assert_eq!((user.name.as_str(), user.home), ("61184", None));
    }

    #[test]
    fn a_missing_group_means_the_primary_one() {
        assert_eq!(resolved("sandbox", None).unwrap().identity.gid, 901);
    }

    // Conformance: PRV-02, PRV-04.
    #[test]
    fn a_missing_user_or_group_says_how_to_create_it() {
        let message = resolved("nobody-here", None).unwrap_err().to_string();
        assert!(
            message.contains("Sandbox user not found") && message.contains("useradd"),
            "{message}"
        );
        assert!(
            resolved("sandbox", Some("none"))
                .unwrap_err()
                .to_string()
                .contains("groupadd")
        );
    }

    #[test]
    fn root_under_another_name_is_refused() {
        assert!(matches!(resolved("toor", None), Err(RunAsError::Root(_))));
        assert!(matches!(
            resolved("sandbox", Some("wheel")),
            Err(RunAsError::Root(_))
        ));
    }

    #[test]
    fn without_a_user_it_is_the_caller_and_for_root_sandbox_or_who_called_sudo_or_nobody() {
        let other = Database {
            passwd: "dev:x:1000:100::/home/dev:\n".to_owned(),
            group: "docker:x:5:dev\n".to_owned(),
        };
        let ids = |database: &Database, caller, sudo| {
            let user = database.resolve(&RunAs::default(), caller, sudo).unwrap();
            (user.identity.uid, user.identity.gid, user.identity.groups)
        };
        assert_eq!(
            ids(&database(), 0, Some((1000, 100))),
            (900, 901, vec![901, 29])
        );
        assert_eq!(
            ids(&other, 0, Some((1000, 7))),
            (1000, 7, vec![7]),
            "without the groups of its entry"
        );
        assert_eq!(ids(&other, 0, None), (65534, 65534, vec![65534]));
        assert_eq!(ids(&other, 1000, None), (1000, 100, vec![100, 5]));
    }

    #[test]
    fn without_capabilities_only_the_caller_may_be_named() {
        let caller = |uid, gid| Caller {
            uid,
            gid,
            groups: vec![29],
            missing: vec!["CAP_SETUID"],
        };
        let resolved =
            |user, group, caller: Caller| database().caller(&run_as(user, group), &caller);
        for (user, group) in [
            (None, None),
            (Some("sandbox"), None),
            (Some("900"), Some("901")),
            (None, Some("sandbox")),
        ] {
            let user = resolved(user, group, caller(900, 901)).unwrap();
            assert_eq!(
                (user.identity.uid, user.identity.gid, user.name.as_str()),
                (900, 901, "sandbox")
            );
        }
        for (user, group) in [
            (Some("7"), None),
            (Some("nobody-here"), None),
            (None, Some("audio")),
            (Some("900"), Some("7")),
        ] {
            let message = resolved(user, group, caller(900, 901))
                .unwrap_err()
                .to_string();
            assert!(
                message.contains("leave `process` out") && message.contains("run as root"),
                "{message}"
            );
        }
        let root = resolved(None, None, caller(0, 0)).unwrap();
        assert_eq!((root.identity.uid, root.identity.gid), (65534, 65534));
        assert!(resolved(Some("toor"), None, caller(0, 0)).is_err());
    }

    #[test]
    fn fuzzed_users_are_found_with_the_groups_that_they_have_or_not() {
        let words: [&[u8]; 6] = [b":", b"\n", b"sandbox", b"0", b",", b"4294967296"];
        fuzz::fuzz(
            "users and groups",
            &[PASSWD.as_bytes(), GROUP.as_bytes()],
            &words,
            |input| {
                let Ok(text) = std::str::from_utf8(input) else {
                    return;
                };
                for (passwd, group) in [(text, GROUP), (PASSWD, text)] {
                    let database = Database {
                        passwd: passwd.to_owned(),
                        group: group.to_owned(),
                    };
                    let Ok(user) = database.resolve(&run_as(Some("sandbox"), None), 0, None) else {
                        continue;
                    };
                    assert!(user.identity.groups.contains(&user.identity.gid));
                    assert!(
                        user.identity.uid != 0,
                        "root is refused, whatever the files say: {text}"
                    );
                }
            },
        );
    }
}
