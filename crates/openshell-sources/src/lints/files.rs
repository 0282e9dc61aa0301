//! Paths of a policy that are missing, closed to its user, or granted twice.

use std::path::{Path, PathBuf};

use openshell_events::words::FileAccess;
use openshell_policy::filesystem::{BASELINE, BaselineAccess, Filesystem, GrantedPath};
use openshell_policy::policy::Policy;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::identity::run_as::{self, User};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

/// Returns the warnings about the file rules of a policy.
pub(super) fn of_filesystem(filesystem: &Filesystem) -> impl Iterator<Item = String> {
    let in_proc = filesystem
        .read_write
        .iter()
        .map(GrantedPath::as_path)
        .find(|path| path.starts_with("/proc"));
    let in_proc = in_proc.map(|path| {
        format!(
            "filesystem_policy.read_write: {} lets processes write each other's memory, so rules \
             by program mean nothing; remove it, because /proc can be read in any case",
            path.display()
        )
    });
    of_everything(filesystem)
        .into_iter()
        .chain(in_proc)
        .chain(needed_and_hidden(filesystem))
}

/// Returns a line for each hidden path that holds what programs need.
fn needed_and_hidden(filesystem: &Filesystem) -> impl Iterator<Item = String> {
    let needed = BASELINE
        .iter()
        .filter(|row| row.access == BaselineAccess::ReadExecute);
    let is_hidden = |path: &str| {
        filesystem
            .hidden
            .iter()
            .find(|hidden| Path::new(path).starts_with(hidden.as_path()))
    };
    let hidden = needed.filter_map(move |row| Some((row, is_hidden(row.path)?)));
    hidden.map(|(row, hidden)| {
        let hidden = hidden.as_path().display();
        format!(
            "filesystem_policy.hidden: {hidden} holds {}, which programs need: {}",
            row.path, row.reason
        )
    })
}

fn of_everything(filesystem: &Filesystem) -> Option<String> {
    let is_everything = filesystem
        .read_write
        .iter()
        .any(|path| path.as_path() == Path::new("/"));
    is_everything.then(|| {
        "filesystem_policy.read_write: `/` grants writing wherever Unix permissions allow it; list \
         the folders that are needed"
            .to_owned()
    })
}

/// Returns a line for each granted path by which what runs inside could type into a terminal of the
/// user `uid`, and so answer questions by itself.
pub fn typing(filesystem: &Filesystem, uid: u32) -> Vec<String> {
    let places = [
        ("/tmp/.X11-unix".to_owned(), "an X display"),
        (format!("/tmp/tmux-{uid}"), "tmux"),
        ("/run/screen".to_owned(), "screen"),
    ];
    // The kernel asks for no right of a file rule when a program connects to a socket.
    let granted = filesystem.read_write.iter().chain(&filesystem.read_only);
    let mut lines = Vec::new();
    for path in granted.map(GrantedPath::as_path) {
        let reaches = |place: &str| path.starts_with(place) || Path::new(place).starts_with(path);
        for (_, what) in places.iter().filter(|(place, _)| reaches(place)) {
            lines.push(format!(
                "{} may hold sockets of {what}, by which the command can type into your terminals \
                 and answer its own questions; leave it out, or ask nobody",
                path.display()
            ));
        }
    }
    lines
}

/// Returns a line for the user, and for each path of `policy`, that is missing on this host. A
/// start reports these itself. `sudo` is the caller of `sudo`, whose user a start takes.
pub fn missing(policy: &Policy, sudo: Option<(u32, u32)>) -> Vec<String> {
    let filesystem = policy.filesystem();
    let user_error = user(policy, sudo)
        .err()
        .map(|error| format!("process: {error:#}"));
    // In a folder that can be written, a start puts an empty file in place of such a path.
    let is_kept = |path: &Path| {
        let mut written = filesystem.read_write.iter().map(GrantedPath::as_path);
        written.any(|folder| path.starts_with(folder))
    };
    let read = filesystem.read_only.iter();
    let read = read.filter(|path| !path.is_folder() && !is_kept(path.as_path()));
    let read =
        read.filter_map(|path| absent("read_only", path, "nothing is granted there until it does"));
    let write = filesystem
        .read_write
        .iter()
        .filter_map(|path| absent("read_write", path, "a start creates it"));
    let single = single_files(filesystem);
    user_error
        .into_iter()
        .chain(read)
        .chain(write)
        .chain(closed_to_user(policy, sudo))
        .chain(single)
        .collect()
}

/// Returns a line for each writable path that is a file, because no file can be renamed over it.
pub fn single_files(filesystem: &Filesystem) -> impl Iterator<Item = String> {
    let written = filesystem.read_write.iter().map(GrantedPath::as_path);
    let files = written.filter(|path| path.symlink_metadata().is_ok_and(|data| data.is_file()));
    files.map(|file| {
        let folder = file.parent().unwrap_or(file).display();
        format!(
            "filesystem_policy.read_write: {} is a single file: programs can write it in place, \
             but cannot replace it by a rename, as many do; move it to a folder of its own and \
             grant that, or grant {folder}",
            file.display()
        )
    })
}

/// Returns the `writable` paths to which the calling thread's user may not write; the kernel
/// decides.
pub fn closed(writable: &[PathBuf]) -> Vec<&Path> {
    let is_closed = |path: &&Path| {
        let answer = rustix::fs::accessat(CWD, *path, Access::WRITE_OK, AtFlags::EACCESS);
        matches!(answer, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
    };
    writable
        .iter()
        .map(PathBuf::as_path)
        .filter(is_closed)
        .collect()
}

/// Returns a line for a writable path that `user` may not write to.
pub fn closed_line(path: &Path, user: &User) -> String {
    let path = path.display();
    let name = &user.name;
    format!(
        "filesystem_policy.read_write: the user {name} cannot write to {path}: its owner and \
         mode, or its file system, do not permit it; list a folder of that user, or name another \
         user in `process`"
    )
}

/// Returns a line for each writable path to which the user of `policy` may not write, judged by
/// owners and modes.
fn closed_to_user(policy: &Policy, sudo: Option<(u32, u32)>) -> Vec<String> {
    let Ok(user) = user(policy, sudo) else {
        return Vec::new();
    };
    let listed = policy
        .filesystem()
        .read_write
        .iter()
        .map(GrantedPath::as_path);
    let real = listed.filter_map(|path| Some((path, std::fs::canonicalize(path).ok()?)));
    let closed = real.filter(|(_, real)| !user.identity.may_reach(real, FileAccess::Write));
    closed.map(|(path, _)| closed_line(path, &user)).collect()
}

/// Returns a line for a path that does not exist, which says what follows, or that cannot be
/// examined. Leaves out paths of the baseline, which an image may lack.
fn absent(key: &str, granted: &GrantedPath, then: &str) -> Option<String> {
    let path = granted.as_path();
    if path.to_string_lossy().contains('*')
        || BASELINE.iter().any(|row| Path::new(row.path) == path)
    {
        return None;
    }
    let why = match path.try_exists() {
        Ok(true) => return None,
        Ok(false) => format!("does not exist; {then}"),
        Err(error) => format!("cannot be read: {error}"),
    };
    Some(format!("filesystem_policy.{key}: {} {why}", path.display()))
}

/// Returns the user that commands of `policy` would have if this caller started them.
pub fn user(policy: &Policy, sudo: Option<(u32, u32)>) -> anyhow::Result<User> {
    let privilege = Privilege::of_start(true)?;
    Ok(run_as::resolve(policy.run_as(), &privilege, sudo)?)
}

/// Returns a line for each path of `read_only` that is also the writable `workdir`.
pub fn read_only_in(workdir: &Path, filesystem: &Filesystem) -> Vec<String> {
    let covered = filesystem
        .read_only
        .iter()
        .filter(|path| path.as_path() == workdir);
    let line = |path: &GrantedPath| {
        let path = path.as_path().display();
        let workdir = workdir.display();
        format!(
            "filesystem_policy.read_only: `{path}` is not read-only: --workdir {workdir} makes it \
             writable; set `include_workdir: false` to prevent that"
        )
    };
    covered.map(line).collect()
}
