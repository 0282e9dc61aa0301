//! Resolves the policy's user and group to numbers through `/etc/passwd` and `/etc/group`, before anything is forked.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use openshell_policy::process::{Identity, RunAs};
use serde::{Deserialize, Serialize};

/// User and group ids of the workload; none is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// Supplementary group ids, including the primary one.
    pub groups: Vec<u32>,
}

impl ProcessIdentity {
    /// Returns true if owner, group and mode let the user enter the folder `path` and all of its ancestors.
    fn may_enter(&self, path: &Path) -> bool {
        path.ancestors().all(|folder| self.has_mode(folder, 0o1))
    }

    /// Returns true if the user may enter the folder `path` and create entries in it.
    #[must_use]
    pub fn may_write(&self, path: &Path) -> bool {
        self.may_enter(path) && self.has_mode(path, 0o2)
    }

    /// Returns true if `path` is a folder whose mode grants `bits` to the user.
    fn has_mode(&self, path: &Path, bits: u32) -> bool {
        let Ok(data) = std::fs::metadata(path) else { return false };
        let shift = match (data.uid() == self.uid, self.groups.contains(&data.gid())) {
            (true, _) => 6,
            (false, true) => 3,
            (false, false) => 0,
        };
        data.is_dir() && (data.mode() >> shift) & bits == bits
    }
}

/// The workload's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User and group ids.
    pub identity: ProcessIdentity,
    /// User name, or the decimal user id if it has no entry.
    pub name: String,
    /// Home directory of the entry.
    pub home: Option<PathBuf>,
    /// Shell of the entry, if it names one.
    pub shell: Option<PathBuf>,
}

/// Failure to resolve a user or group.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum RunAsError {
    #[error("cannot read {path}, which names users and groups")]
    Read { path: &'static str, source: io::Error },
    #[error(
        "Sandbox user not found: `{0}` has no entry in /etc/passwd; the image must include it. Create it \
         (`useradd --system --home-dir /sandbox {0}`) or set `process.run_as_user` and `run_as_group` in the policy"
    )]
    NoUser(String),
    #[error(
        "Sandbox group not found: `{0}` has no entry in /etc/group; the image must include it. Create it \
         (`groupadd --system {0}`) or set `process.run_as_group` in the policy"
    )]
    NoGroup(String),
    #[error("`{0}` is root under another name (number 0); name an unprivileged user and group")]
    Root(String),
}

/// Resolves `run_as`. A numeric user needs no entry and then has no further groups; without a group it gets the primary
/// group of the entry.
///
/// # Errors
/// A name without an entry, a user or group that resolves to 0, or an unreadable database.
pub fn resolve(run_as: &RunAs) -> Result<User, RunAsError> {
    let read = |path| match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(RunAsError::Read { path, source }),
    };
    resolve_in(run_as, &read("/etc/passwd")?, &read("/etc/group")?)
}

fn resolve_in(run_as: &RunAs, passwd: &str, group: &str) -> Result<User, RunAsError> {
    let entry = match &run_as.user {
        Identity::Name(name) => passwd_entries(passwd).find(|entry| entry.name == name),
        Identity::Id(id) => passwd_entries(passwd).find(|entry| entry.uid == *id),
    };
    let uid = match (&run_as.user, &entry) {
        (_, Some(entry)) => entry.uid,
        (Identity::Id(id), None) => *id,
        (Identity::Name(name), None) => return Err(RunAsError::NoUser(name.clone())),
    };
    let gid = match (&run_as.group, &entry) {
        (Some(Identity::Id(id)), _) => *id,
        (Some(Identity::Name(name)), _) => {
            let found = group_entries(group).find(|entry| entry.name == name);
            found.ok_or_else(|| RunAsError::NoGroup(name.clone()))?.gid
        }
        (None, Some(entry)) => entry.gid,
        (None, None) => uid,
    };
    let name = entry.as_ref().map_or_else(|| uid.to_string(), |entry| entry.name.to_owned());
    if uid == 0 || gid == 0 {
        return Err(RunAsError::Root(name));
    }
    let member_of = |entry: &GroupEntry<'_>| entry.gid != gid && entry.members.split(',').any(|member| member == name);
    let mut groups: Vec<u32> = vec![gid];
    if entry.is_some() {
        groups.extend(group_entries(group).filter(member_of).map(|entry| entry.gid));
    }
    if groups.contains(&0) {
        return Err(RunAsError::Root(name));
    }
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    Ok(User {
        identity: ProcessIdentity { uid, gid, groups },
        name,
        home: entry.as_ref().and_then(|entry| path(entry.home)),
        shell: entry.as_ref().and_then(|entry| path(entry.shell)),
    })
}

struct PasswdEntry<'t> {
    name: &'t str,
    uid: u32,
    gid: u32,
    home: &'t str,
    shell: &'t str,
}

/// Entries of passwd(5), without malformed lines.
fn passwd_entries(text: &str) -> impl Iterator<Item = PasswdEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let _comment = fields.next()?;
        Some(PasswdEntry { name, uid, gid, home: fields.next()?, shell: fields.next()? })
    })
}

struct GroupEntry<'t> {
    name: &'t str,
    gid: u32,
    members: &'t str,
}

/// Entries of group(5), without malformed lines.
fn group_entries(text: &str) -> impl Iterator<Item = GroupEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password) = (fields.next()?, fields.next()?);
        Some(GroupEntry { name, gid: fields.next()?.parse().ok()?, members: fields.next()? })
    })
}

#[cfg(test)]
mod tests {
    use super::{RunAsError, User, resolve_in};
    use openshell_policy::process::{Identity, RunAs};

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\ntoor:x:0:0::/:/bin/sh\nbroken line\n\
                          sandbox:x:900:901::/sandbox:/usr/sbin/nologin\n";
    const GROUP: &str = "root:x:0:\nsandbox:x:901:\naudio:x:29:sandbox,other\nvideo:x:44:other\nwheel:x:0:evil\n";

    fn resolved(user: &str, group: Option<&str>) -> Result<User, RunAsError> {
        let identity = |text| Identity::parse(text).unwrap();
        resolve_in(&RunAs { user: identity(user), group: group.map(identity) }, PASSWD, GROUP)
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
        assert!(message.contains("Sandbox user not found") && message.contains("useradd"), "{message}");
        assert!(resolved("sandbox", Some("none")).unwrap_err().to_string().contains("groupadd"));
    }

    #[test]
    fn root_under_another_name_is_refused() {
        assert!(matches!(resolved("toor", None), Err(RunAsError::Root(_))));
        assert!(matches!(resolved("sandbox", Some("wheel")), Err(RunAsError::Root(_))));
    }

    #[test]
    fn fuzzed_users_are_found_with_the_groups_that_they_have_or_not() {
        let words: [&[u8]; 6] = [b":", b"\n", b"sandbox", b"0", b",", b"4294967296"];
        fuzz::fuzz("users and groups", &[PASSWD.as_bytes(), GROUP.as_bytes()], &words, |input| {
            let Ok(text) = std::str::from_utf8(input) else { return };
            let run_as = RunAs { user: Identity::parse("sandbox").unwrap(), group: None };
            for (passwd, group) in [(text, GROUP), (PASSWD, text)] {
                let Ok(user) = resolve_in(&run_as, passwd, group) else { continue };
                assert!(user.identity.groups.contains(&user.identity.gid));
                assert!(user.identity.uid != 0, "root is refused, whatever the files say: {text}");
            }
        });
    }
}
