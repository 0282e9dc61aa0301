//! Comparison of file rules.

use std::collections::BTreeSet;
use std::path::Path;

use crate::filesystem::{BASELINE, BaselineAccess, Compatibility, Filesystem, GrantedPath};

/// Access to a path, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Access {
    None,
    Read,
    Write,
}

impl Access {
    fn verb(self) -> &'static str {
        match self {
            Self::None | Self::Read => "read",
            Self::Write => "write to",
        }
    }
}

/// Returns what `one` permits and `other` does not, in words.
pub(super) fn permissions(one: &Filesystem, other: &Filesystem) -> Vec<String> {
    let mut words = Vec::new();
    if one.include_workdir && !other.include_workdir {
        words.push("the command may write to the working directory (--workdir)".to_owned());
    }
    let is_hard =
        |filesystem: &Filesystem| filesystem.compatibility == Compatibility::HardRequirement;
    if is_hard(other) && !is_hard(one) {
        words.push(
            "rights that the kernel lacks are given up instead of ending the start (best_effort)"
                .to_owned(),
        );
    }
    let lists = |filesystem: &Filesystem| {
        let all = [
            &filesystem.read_only,
            &filesystem.read_write,
            &filesystem.hidden,
            &filesystem.noexec,
        ];
        all.into_iter().flatten().cloned().collect::<Vec<_>>()
    };
    let listed: BTreeSet<GrantedPath> = lists(one).into_iter().chain(lists(other)).collect();
    for path in listed
        .iter()
        .filter(|path| is_plain(path))
        .map(GrantedPath::as_path)
    {
        let its = access(one, path);
        let others = access(other, path);
        if its > others {
            words.push(format!("the command may {} {}", its.verb(), path.display()));
        }
        let is_noexec = |filesystem: &Filesystem| {
            filesystem
                .noexec
                .iter()
                .any(|listed| path.starts_with(listed.as_path()))
        };
        if its > Access::None && !is_noexec(one) && is_noexec(other) {
            words.push(format!(
                "the command may execute what is in {}",
                path.display()
            ));
        }
    }
    // What a pattern means, or a path in the home or the working directory, depends on the run.
    for (verb, listed, known) in [
        ("read", &other.hidden, &one.hidden),
        ("write to", &other.read_only, &one.read_only),
        ("execute", &other.noexec, &one.noexec),
        ("read", &one.read_only, &other.read_only),
        ("write to", &one.read_write, &other.read_write),
    ] {
        let new = listed
            .iter()
            .filter(|path| !is_plain(path) && !known.contains(path));
        words
            .extend(new.map(|path| format!("the command may {verb} {}", path.as_path().display())));
    }
    // An entry by name keeps hooks of git and sockets writable, and stands for the host's temporary
    // files.
    let is_special = |path: &Path| {
        let has = |name: &str| path.components().any(|part| part.as_os_str() == name);
        has(".git")
            || ["/tmp", "/dev/shm"]
                .iter()
                .any(|folder| path.starts_with(folder))
            || access(other, path) == Access::Write
    };
    let new = one
        .read_write
        .iter()
        .filter(|path| is_plain(path) && !other.read_write.contains(path));
    let new = new
        .map(GrantedPath::as_path)
        .filter(|path| is_special(path) && access(other, path) == access(one, path));
    words.extend(new.map(|path| {
        format!(
            "the command may write to {}, which is listed by name",
            path.display()
        )
    }));
    let temporary = one
        .read_only
        .iter()
        .filter(|path| is_plain(path) && !other.read_only.contains(path));
    let temporary = temporary
        .map(GrantedPath::as_path)
        .filter(|path| path.starts_with("/tmp") || path.starts_with("/dev/shm"));
    words.extend(
        temporary.map(|path| format!("the command may read {} of the host", path.display())),
    );
    words
}

/// Returns true for an absolute path that is no pattern.
fn is_plain(path: &GrantedPath) -> bool {
    !path.is_pattern() && path.as_path().is_absolute()
}

/// The access of the most specific entry; a hidden path stays hidden.
fn access(filesystem: &Filesystem, path: &Path) -> Access {
    let depth = |listed: &Path| {
        path.starts_with(listed)
            .then(|| listed.components().count())
    };
    let deepest = |paths: &[GrantedPath]| {
        paths
            .iter()
            .filter_map(|listed| depth(listed.as_path()))
            .max()
    };
    if deepest(&filesystem.hidden).is_some() {
        return Access::None;
    }
    let baseline = |wanted: fn(BaselineAccess) -> bool| {
        let rows = BASELINE.iter().filter(|row| wanted(row.access));
        rows.filter_map(|row| depth(Path::new(row.path))).max()
    };
    let is_read = |access| matches!(access, BaselineAccess::ReadExecute | BaselineAccess::Read);
    let read = deepest(&filesystem.read_only).max(baseline(is_read));
    let write =
        deepest(&filesystem.read_write).max(baseline(|access| access == BaselineAccess::ReadWrite));
    match (read, write) {
        (None, None) => Access::None,
        // At the same depth the carve-out counts.
        (read, write) if read >= write => Access::Read,
        _ => Access::Write,
    }
}
