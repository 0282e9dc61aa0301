//! Reads the names in a git index (gitformat-index(5)), which an earlier command may have written.

use std::collections::BTreeSet;

/// Returns those of `names` that git compares with the files (git-update-index(1),
/// `--skip-worktree` and `--assume-unchanged`). There are none if the index cannot be read to its
/// end.
pub(super) fn compared(index: &[u8], names: &BTreeSet<&[u8]>) -> BTreeSet<Vec<u8>> {
    // The names of objects have one of these lengths in a repository.
    [20, 32]
        .into_iter()
        .filter_map(|object| entries(index, object, names))
        .flatten()
        .collect()
}

/// Returns those of `names` in the index that git compares; `None` if the index has another form.
/// The names of objects have `object` bytes.
fn entries(index: &[u8], object: usize, names: &BTreeSet<&[u8]>) -> Option<Vec<Vec<u8>>> {
    let rest = index.strip_prefix(b"DIRC")?;
    let (version, rest) = number(rest)?;
    let (count, mut rest) = number(rest)?;
    let mut name = Vec::new();
    let mut found = Vec::new();
    for _ in 0..count {
        let entry = rest;
        // The times, device, inode, mode, owner and size come before the name of the object.
        let flags = *rest.get(40 + object)?;
        let is_extended = version >= 3 && flags & EXTENDED != 0;
        let is_skipped = is_extended && rest.get(42 + object)? & SKIP_WORKTREE != 0;
        let is_compared = flags & ASSUME_VALID == 0 && !is_skipped;
        rest = rest.get(if is_extended { 44 } else { 42 } + object..)?;
        match version {
            2 | 3 => name.clear(),
            4 => {
                let (kept, after) = kept(rest, name.len())?;
                name.truncate(kept);
                rest = after;
            }
            _ => return None,
        }
        let length = rest.iter().position(|byte| *byte == 0)?;
        name.extend_from_slice(rest.get(..length)?);
        rest = rest.get(length + 1..)?;
        if version < 4 {
            let read = entry.len() - rest.len();
            rest = entry.get(read.next_multiple_of(8)..)?;
        }
        if is_compared && names.contains(name.as_slice()) {
            found.push(name.clone());
        }
    }
    Some(found)
}

/// Bits of the first byte of an entry's flags, and of the first byte of its extended flags.
const ASSUME_VALID: u8 = 0x80;
const EXTENDED: u8 = 0x40;
const SKIP_WORKTREE: u8 = 0x40;

fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), rest))
}

/// Returns how many bytes of the previous name, which has `length` bytes, the next name begins
/// with, and the rest of the index. The entry says how many bytes are dropped, as a number of
/// variable length like those in packs.
fn kept(bytes: &[u8], length: usize) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let mut dropped = usize::from(first & 0x7f);
    let mut is_last = first & 0x80 == 0;
    while !is_last {
        let (byte, after) = rest.split_first()?;
        dropped = dropped
            .checked_add(1)?
            .checked_mul(128)?
            .checked_add(usize::from(byte & 0x7f))?;
        (is_last, rest) = (byte & 0x80 == 0, after);
    }
    Some((length.checked_sub(dropped)?, rest))
}

#[expect(clippy::disallowed_methods, reason = "the tests run git itself")]
#[cfg(test)]
mod tests {
    use std::process::Command;

    fn compares(index: &[u8], name: &[u8]) -> bool {
        !super::compared(index, &std::iter::once(name).collect()).is_empty()
    }

    #[test]
    fn names_are_found_in_each_version_that_git_writes() {
        for (version, format) in [
            ("2", "sha1"),
            ("4", "sha1"),
            ("2", "sha256"),
            ("4", "sha256"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let git = |words: &[&str]| {
                let run = Command::new("git")
                    .current_dir(&folder)
                    .args(words)
                    .output()
                    .unwrap();
                assert!(
                    run.status.success(),
                    "{words:?}: {}",
                    String::from_utf8(run.stderr).unwrap()
                );
            };
            git(&["init", "-q", &format!("--object-format={format}")]);
            std::fs::create_dir_all(folder.path().join("a/deep/folder")).unwrap();
            for name in [
                ".env",
                "a/deep/folder/.env",
                "a/deep/folder/other",
                "b",
                "new",
            ] {
                std::fs::write(folder.path().join(name), name).unwrap();
            }
            git(&[
                "update-index",
                "--index-version",
                version,
                "--add",
                ".env",
                "a/deep/folder/.env",
                "a/deep/folder/other",
                "b",
            ]);
            git(&["add", "--intent-to-add", "new"]);
            let index = std::fs::read(folder.path().join(".git/index")).unwrap();
            for (name, is_there) in [
                (".env", true),
                ("a/deep/folder/.env", true),
                ("b", true),
                ("new", true),
                ("a/.env", false),
                ("a", false),
            ] {
                assert_eq!(
                    compares(&index, name.as_bytes()),
                    is_there,
                    "{name} in version {version}, {format}"
                );
            }
            git(&["update-index", "--skip-worktree", "b"]);
            git(&["update-index", "--assume-unchanged", ".env"]);
            let index = std::fs::read(folder.path().join(".git/index")).unwrap();
            for (name, is_compared) in
                [("b", false), (".env", false), ("a/deep/folder/other", true)]
            {
                assert_eq!(
                    compares(&index, name.as_bytes()),
                    is_compared,
                    "{name} in version {version}, {format}"
                );
            }
            for length in 0..index.len() {
                compares(index.get(..length).unwrap(), b"c");
            }
        }
    }
}
