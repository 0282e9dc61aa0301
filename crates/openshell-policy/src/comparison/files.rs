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
            "the sandbox starts even if the kernel cannot restrict some rights (best_effort)"
                .to_owned(),
        );
    }
    plain(one, other, &mut words);
    patterns(one, other, &mut words);
    by_name(one, other, &mut words);
    words
}

/// Adds what `one` permits and `other` does not, at the plain paths that either of them lists.
fn plain(one: &Filesystem, other: &Filesystem, words: &mut Vec<String>) {
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
}

/// Adds what `one` permits because of patterns, and of paths in the home or the working directory,
/// in either policy. What those mean depends on the run, so they are compared as texts.
fn patterns(one: &Filesystem, other: &Filesystem, words: &mut Vec<String>) {
    for (verb, listed, known) in [
        ("read", &other.hidden, &one.hidden),
        ("write to", &other.read_only, &one.read_only),
        ("execute", &other.noexec, &one.noexec),
        ("read", &one.read_only, &other.read_only),
        ("write to", &one.read_write, &other.read_write),
    ] {
        for path in listed {
            if !is_plain(path) && !known.contains(path) {
                let path = path.as_path().display();
                words.push(format!("the command may {verb} {path}"));
            }
        }
    }
}

/// Adds paths that matter because `one` lists them by name: such an entry keeps hooks of git and
/// sockets writable, and under `/tmp` and `/dev/shm` it means the host's files.
fn by_name(one: &Filesystem, other: &Filesystem, words: &mut Vec<String>) {
    let is_temporary = |path: &Path| path.starts_with("/tmp") || path.starts_with("/dev/shm");
    let is_special = |path: &Path| {
        path.components().any(|part| part.as_os_str() == ".git")
            || is_temporary(path)
            || access(other, path) == Access::Write
    };
    for listed in &one.read_write {
        let path = listed.as_path();
        if is_plain(listed)
            && !other.read_write.contains(listed)
            && is_special(path)
            && access(other, path) == access(one, path)
        {
            let path = path.display();
            words.push(format!(
                "the command may write to {path}, which is listed by name"
            ));
        }
    }
    for listed in &one.read_only {
        if is_plain(listed) && !other.read_only.contains(listed) && is_temporary(listed.as_path()) {
            let path = listed.as_path().display();
            words.push(format!("the command may read {path} of the host"));
        }
    }
}

/// Returns true if the path is absolute and not a pattern.
fn is_plain(path: &GrantedPath) -> bool {
    !path.is_pattern() && path.as_path().is_absolute()
}

/// Returns the access that the most specific entry gives; a hidden path stays hidden.
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
        // Grants of one path add up.
        (read, write) if read > write => Access::Read,
        _ => Access::Write,
    }
}
