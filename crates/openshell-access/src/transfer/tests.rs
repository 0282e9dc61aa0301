use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::outcome::{LeftOut, TransferError};
use super::pack::pack;
use super::unpack::{Links, Options, is_within, unpack};

const CAREFUL: Options = Options {
    links: Links::Within,
    git_hooks: false,
    follows_links: false,
};

fn copy(from: &Path, to: &Path, options: Options) -> Result<LeftOut, TransferError> {
    let mut stream = Vec::new();
    pack(from, false, &mut stream)?;
    unpack(&stream[..], to, from.file_name().unwrap(), options)
}

/// Unpacks a stream as `name`.
fn receive(stream: &[u8], to: &Path, name: &str) -> Result<LeftOut, TransferError> {
    unpack(stream, to, name.as_ref(), CAREFUL)
}

/// Returns a stream with one entry.
fn stream(kind: tar::EntryType, path: &[u8], target: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..path.len()].copy_from_slice(path);
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_size(content.len() as u64);
    header.set_mtime(1_700_000_000);
    if !target.is_empty() {
        header.set_link_name(target).unwrap();
    }
    header.set_cksum();
    let mut builder = tar::Builder::new(Vec::new());
    builder.append(&header, content).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn a_tree_arrives_with_its_modes_times_links_and_names() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    let long = "n".repeat(200);
    fs::create_dir_all(tree.join("a").join(&long)).unwrap();
    fs::write(tree.join("a").join(&long).join(&long), "deep").unwrap();
    fs::write(tree.join("run"), "#!/bin/sh").unwrap();
    fs::set_permissions(tree.join("run"), fs::Permissions::from_mode(0o4750)).unwrap();
    fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o550)).unwrap();
    symlink("run", tree.join("link")).unwrap();
    symlink("../run", tree.join("a").join(&long).join("out")).unwrap_or_default();
    let left_out = copy(&tree, &folder.path().join("copy"), CAREFUL).unwrap();
    assert_eq!(left_out.lines().count(), 0, "{left_out:?}");
    let copied = folder.path().join("copy");
    assert_eq!(
        fs::read_to_string(copied.join("a").join(&long).join(&long)).unwrap(),
        "deep"
    );
    assert_eq!(
        fs::metadata(copied.join("run")).unwrap().mode() & 0o7777,
        0o750,
        "without set-user-id"
    );
    assert_eq!(
        fs::metadata(copied.join("a")).unwrap().mode() & 0o7777,
        0o550
    );
    assert_eq!(
        fs::metadata(copied.join("run")).unwrap().mtime(),
        fs::metadata(tree.join("run")).unwrap().mtime()
    );
    assert_eq!(
        fs::read_link(copied.join("link")).unwrap(),
        Path::new("run")
    );
    // The second copy goes into the folder, which now exists.
    copy(&tree, &copied, CAREFUL).unwrap();
    assert_eq!(
        fs::read_to_string(copied.join("tree/run")).unwrap(),
        "#!/bin/sh"
    );
    copy(&tree.join("run"), &folder.path().join("file"), CAREFUL).unwrap();
    assert_eq!(
        fs::read_to_string(folder.path().join("file")).unwrap(),
        "#!/bin/sh"
    );
}

#[test]
fn links_within_the_tree_are_kept_and_those_that_could_leave_it_are_not() {
    for (target, depth, is_kept) in [
        ("x", 0, true),
        ("./x/y", 0, true),
        ("..", 1, true),
        ("../x", 1, true),
        ("..", 0, false),
        ("../../x", 1, false),
        ("/etc", 5, false),
        // `s` may be a link to the root.
        ("s/../x", 0, false),
        ("../s/../..", 1, false),
        ("", 0, true),
    ] {
        assert_eq!(is_within(target, depth), is_kept, "{target} at {depth}");
    }
}

#[test]
fn a_hostile_stream_writes_nothing_outside_and_nothing_that_runs_by_itself() {
    use tar::EntryType as Kind;
    let outer = tempfile::tempdir().unwrap();
    let destination = outer.path().join("in");
    fs::create_dir(&destination).unwrap();
    fs::write(outer.path().join("victim"), "untouched").unwrap();
    let hostile = [
        stream(Kind::Regular, b"../victim", "", b"x"),
        stream(Kind::Regular, b"/tmp/openshell-victim", "", b"x"),
        stream(Kind::Regular, b"a/../../victim", "", b"x"),
        stream(Kind::Symlink, b"a/link", "../../victim", b""),
        stream(Kind::Symlink, b"link", "victim", b""),
        stream(Kind::Link, b"a/hard", "../victim", b""),
        stream(Kind::Char, b"a/device", "", b""),
        stream(Kind::Fifo, b"a/fifo", "", b""),
        stream(Kind::Regular, b"a/.git/hooks/post-checkout", "", b"x"),
        stream(Kind::Regular, b"a/.GIT/Hooks/post-checkout", "", b"x"),
        stream(Kind::Symlink, b"a/.git", "elsewhere", b""),
        stream(Kind::Regular, b"a/.git", "", b"gitdir: elsewhere"),
    ];
    for bytes in hostile {
        let left_out = receive(&bytes, &destination, "a").unwrap();
        assert_eq!(left_out.lines().count(), 1);
    }
    assert_eq!(
        fs::read_to_string(outer.path().join("victim")).unwrap(),
        "untouched"
    );
    let names: Vec<_> = fs::read_dir(destination.join("a"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(names.is_empty(), "{names:?}");
    assert!(!Path::new("/tmp/openshell-victim").exists());
    // A symlink in the place of an entry is replaced, and one on the way is not followed.
    symlink("../victim", destination.join("file")).unwrap();
    symlink("..", destination.join("folder")).unwrap();
    let file = stream(Kind::Regular, b"file", "", b"new");
    assert_eq!(
        receive(&file, &destination, "file")
            .unwrap()
            .lines()
            .count(),
        0
    );
    assert_eq!(fs::read_to_string(destination.join("file")).unwrap(), "new");
    assert_eq!(
        fs::metadata(destination.join("file")).unwrap().mode() & 0o7777,
        0o755
    );
    let through = stream(Kind::Regular, b"folder/victim", "", b"new");
    assert!(
        receive(&through, &destination, "folder")
            .unwrap()
            .has_failures
    );
    assert_eq!(
        fs::read_to_string(outer.path().join("victim")).unwrap(),
        "untouched"
    );
}

#[test]
fn hooks_of_a_repository_under_any_name_stay_out_in_any_order() {
    use tar::EntryType as Kind;
    let hook = || stream(Kind::Regular, b"a/hooks/post-checkout", "", b"x");
    let head = || stream(Kind::Regular, b"a/HEAD", "", b"ref: refs/heads/main");
    let objects = || stream(Kind::Directory, b"a/objects", "", b"");
    let refs = || stream(Kind::Symlink, b"a/refs", "elsewhere", b"");
    let orders = [
        vec![head(), hook()],
        vec![hook(), head()],
        vec![objects(), refs(), hook()],
        vec![hook(), objects(), refs()],
        vec![objects(), hook(), refs()],
    ];
    for order in orders {
        let outer = tempfile::tempdir().unwrap();
        receive(&concatenated(order), outer.path(), "a").unwrap();
        let is_there = |name: &str| outer.path().join("a").join(name).symlink_metadata().is_ok();
        let is_repository = is_there("HEAD") || is_there("objects") && is_there("refs");
        assert!(!(is_there("hooks/post-checkout") && is_repository));
    }
    // A folder with that name in a project has nothing to do with git.
    let outer = tempfile::tempdir().unwrap();
    let project = concatenated(vec![
        stream(Kind::Regular, b"a/hooks/useThing.ts", "", b"x"),
        stream(Kind::Directory, b"a/objects", "", b""),
    ]);
    assert_eq!(
        receive(&project, outer.path(), "a")
            .unwrap()
            .lines()
            .count(),
        0
    );
}

/// Returns one stream of all entries of `streams`.
fn concatenated(streams: Vec<Vec<u8>>) -> Vec<u8> {
    let mut all = Vec::new();
    for mut stream in streams {
        // Two empty blocks end a stream.
        stream.truncate(stream.len() - 1024);
        all.extend(stream);
    }
    all.extend([0; 1024]);
    all
}

#[test]
fn the_receiver_names_the_tree_and_takes_one_alone() {
    let outer = tempfile::tempdir().unwrap();
    let mut chosen = stream(tar::EntryType::Regular, b".bashrc", "", b"x");
    assert_eq!(
        receive(&chosen, outer.path(), "results")
            .unwrap()
            .lines()
            .count(),
        0
    );
    chosen.truncate(1024);
    chosen.extend(stream(tar::EntryType::Regular, b".profile", "", b"x"));
    assert!(
        receive(&chosen, outer.path(), "results")
            .unwrap()
            .has_failures
    );
    let names: Vec<_> = fs::read_dir(outer.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["results"]);
    for name in ["", ".", "..", "a/b", "/"] {
        assert!(receive(&chosen, outer.path(), name).is_err(), "{name}");
    }
}

#[test]
fn a_name_without_end_is_no_memory_without_end() {
    let outer = tempfile::tempdir().unwrap();
    let long = stream(tar::EntryType::GNULongName, b"x", "", &vec![b'n'; 1 << 20]);
    assert!(receive(&long, outer.path(), "x").is_err());
}

#[test]
fn streams_that_break_off_are_errors_and_leave_no_half_of_a_file() {
    let outer = tempfile::tempdir().unwrap();
    let whole = stream(tar::EntryType::Regular, b"file", "", &[7; 3000]);
    for length in [0, 100, 512, 600, 3000] {
        assert!(
            receive(&whole[..length], outer.path(), "file").is_err(),
            "{length}"
        );
    }
    assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 0);
}

#[test]
fn fuzzed_streams_of_files_stay_in_their_folder() {
    let outer = tempfile::tempdir().unwrap();
    let destination = outer.path().join("in");
    let samples = [
        stream(tar::EntryType::Regular, b"a/file", "", b"content"),
        stream(tar::EntryType::Symlink, b"a/link", "file", b""),
        stream(tar::EntryType::Directory, b"a/b", "", b""),
    ];
    let words: [&[u8]; 6] = [b"../", b"/", b"L", b"2", b"1", b"x"];
    fuzz::fuzz(
        "transfer",
        &samples.each_ref().map(Vec::as_slice),
        &words,
        |bytes| {
            fs::create_dir_all(&destination).unwrap();
            let _ = receive(bytes, &destination, "a");
            assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 1);
            // Modes in the stream may make folders inaccessible.
            let _ = fs::remove_dir_all(&destination);
        },
    );
}
