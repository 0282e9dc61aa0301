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
    let is_hard = |filesystem: &Filesystem| filesystem.compatibility == Compatibility::HardRequirement;
    if is_hard(other) && !is_hard(one) {
        words.push("rights that the kernel lacks are given up instead of ending the start (best_effort)".to_owned());
    }
    let lists = |filesystem: &Filesystem| {
        let all = [&filesystem.read_only, &filesystem.read_write, &filesystem.hidden, &filesystem.noexec];
        all.into_iter().flatten().cloned().collect::<Vec<_>>()
    };
    let listed: BTreeSet<GrantedPath> = lists(one).into_iter().chain(lists(other)).collect();
    for path in listed.iter().filter(|path| !path.is_pattern()).map(GrantedPath::as_path) {
        let (its, others) = (access(one, path), access(other, path));
        if its > others {
            words.push(format!("the command may {} {}", its.verb(), path.display()));
        }
        let is_noexec =
            |filesystem: &Filesystem| filesystem.noexec.iter().any(|listed| path.starts_with(listed.as_path()));
        if its > Access::None && !is_noexec(one) && is_noexec(other) {
            words.push(format!("the command may execute what is in {}", path.display()));
        }
    }
    for (verb, listed, known) in [
        ("read", &other.hidden, &one.hidden),
        ("write to", &other.read_only, &one.read_only),
        ("execute", &other.noexec, &one.noexec),
    ] {
        let gone = listed.iter().filter(|path| path.is_pattern() && !known.contains(path));
        words.extend(gone.map(|path| format!("the command may {verb} what {} matches", path.as_path().display())));
    }
    let new = one.read_only.iter().filter(|path| path.is_pattern() && !other.read_only.contains(path));
    words.extend(new.map(|path| format!("the command may read what {} matches", path.as_path().display())));
    words
}

/// The access of the most specific entry; what is hidden is hidden whatever lists it.
fn access(filesystem: &Filesystem, path: &Path) -> Access {
    let depth = |listed: &Path| path.starts_with(listed).then(|| listed.components().count());
    let deepest = |paths: &[GrantedPath]| paths.iter().filter_map(|listed| depth(listed.as_path())).max();
    if deepest(&filesystem.hidden).is_some() {
        return Access::None;
    }
    let baseline = |wanted: fn(BaselineAccess) -> bool| {
        let rows = BASELINE.iter().filter(|row| wanted(row.access));
        rows.filter_map(|row| depth(Path::new(row.path))).max()
    };
    let is_read = |access| matches!(access, BaselineAccess::ReadExecute | BaselineAccess::Read);
    let read = deepest(&filesystem.read_only).max(baseline(is_read));
    let write = deepest(&filesystem.read_write).max(baseline(|access| access == BaselineAccess::ReadWrite));
    match (read, write) {
        (None, None) => Access::None,
        // At the same depth the carve-out counts.
        (read, write) if read >= write => Access::Read,
        _ => Access::Write,
    }
}
