use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::{Gid, Uid};
use rustix::thread::UnshareFlags;

use super::{mask_all_but, shared_sockets};

const UID: u32 = 61184;

/// Runs `prepare` as root, and then `work` as a user who owns nothing, on a thread in a new mount
/// namespace.
fn apart<T: Send>(prepare: impl FnOnce() + Send, work: impl FnOnce() -> T + Send) -> T {
    let work = || {
        #[expect(
            deprecated,
            reason = "the objection is to a split descriptor table, which stays whole here"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNS).unwrap();
        let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
        rustix::mount::mount_change("/", private).unwrap();
        prepare();
        rustix::thread::set_thread_groups(&[]).unwrap();
        let nobody = (Uid::from_raw(UID), Gid::from_raw(UID));
        rustix::thread::set_thread_res_gid(nobody.1, nobody.1, nobody.1).unwrap();
        rustix::thread::set_thread_res_uid(nobody.0, nobody.0, nobody.0).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// Creates a folder with `seen/file`, `hidden/socket` and `socket`, all world-writable.
fn tree() -> (tempfile::TempDir, [UnixListener; 2]) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    for name in ["seen", "hidden"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        open_to_all(&folder.path().join(name));
    }
    std::fs::write(folder.path().join("seen/file"), "x").unwrap();
    let sockets = ["hidden/socket", "socket"].map(|name| {
        let listener = UnixListener::bind(folder.path().join(name)).unwrap();
        open_to_all(&folder.path().join(name));
        listener
    });
    open_to_all(folder.path());
    (folder, sockets)
}

fn reached(folder: &Path) -> [bool; 3] {
    let connects = |name| UnixStream::connect(folder.join(name)).is_ok();
    [
        folder.join("seen/file").exists(),
        connects("hidden/socket"),
        connects("socket"),
    ]
}

#[test]
fn what_is_not_granted_is_out_of_reach_and_the_rest_as_it_was() {
    let (folder, _sockets) = tree();
    let path = folder.path();
    let own = path.join("own");
    std::fs::write(&own, "").unwrap();
    std::os::unix::fs::chown(&own, Some(UID), None).unwrap();
    let touches = || std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o600)).is_ok();
    assert_eq!(
        apart(|| (), || reached(path)),
        [true, true, true],
        "the twin without covers"
    );
    assert!(apart(|| (), touches), "the twin without covers");
    let mask = |seen: &Path| {
        assert_eq!(
            mask_all_but([seen.to_owned()], &BTreeSet::new(), UID).unmasked,
            Vec::<String>::new()
        )
    };
    assert!(!apart(|| mask(&path.join("seen")), touches));
    assert_eq!(
        apart(|| mask(&path.join("seen")), || reached(path)),
        [true, false, false]
    );
    assert_eq!(
        apart(|| mask(path), || reached(path)),
        [true, true, true],
        "beneath what is granted"
    );
    assert_eq!(
        apart(|| mask(Path::new("/")), || reached(path)),
        [true, true, true]
    );
}

#[test]
fn of_a_folder_that_everybody_may_write_to_the_sockets_of_others_are_covered() {
    let (folder, _sockets) = tree();
    let path = folder.path();
    let mask = |seen: &[&Path]| {
        let seen = seen.iter().map(|path| path.to_path_buf());
        assert_eq!(
            mask_all_but(seen, &BTreeSet::new(), UID).unmasked,
            Vec::<String>::new()
        );
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(
        apart(|| mask(&[path]), || reached(path)),
        [true, false, false]
    );
    let listed = [path, &path.join("socket")];
    assert_eq!(
        apart(|| mask(&listed), || reached(path)),
        [true, false, true],
        "listed by itself"
    );
    let listed = [path, &path.join("hidden")];
    assert_eq!(
        apart(|| mask(&listed), || reached(path)),
        [true, true, false],
        "with its folder"
    );
}

#[test]
fn what_workloads_left_takes_no_cover_from_what_the_host_has() {
    let (folder, _sockets) = tree();
    // This is a folder of the host: no other user may create entries in it.
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let shared = folder.path().join("seen/shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    // An earlier run left these: socket files without a listener.
    for n in 0..super::MAX_MASKS + 100 {
        drop(UnixListener::bind(shared.join(n.to_string())).unwrap());
    }
    let service = UnixListener::bind(shared.join("zzz-service")).unwrap();
    open_to_all(&shared.join("zzz-service"));
    let own_room =
        || rustix::mount::mount("test", "/mnt", "tmpfs", MountFlags::empty(), None).unwrap();
    let masked = || {
        own_room();
        let unmasked = mask_all_but(
            [folder.path().join("seen"), shared.clone()],
            &BTreeSet::new(),
            UID,
        )
        .unmasked;
        assert_eq!(unmasked.len(), 1, "{unmasked:?}");
        assert!(unmasked[0].contains("no more than 1024"), "{unmasked:?}");
    };
    let path = folder.path();
    assert_eq!(
        apart(masked, || reached(path)),
        [true, false, false],
        "the host's folder and socket"
    );
    let reaches = || UnixStream::connect(shared.join("zzz-service")).is_ok();
    assert!(apart(|| (), reaches), "the twin without covers");
    assert!(
        !apart(masked, reaches),
        "a service that listens comes before what was left"
    );
    drop(service);
}

#[test]
fn many_files_in_a_shared_folder_keep_no_service_there_uncovered() {
    let (folder, _sockets) = tree();
    let shared = folder.path().join("seen/shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    for n in 0..shared_sockets::SHARED_ENTRIES + 10 {
        std::fs::File::create(shared.join(n.to_string())).unwrap();
    }
    let _service = UnixListener::bind(shared.join("service")).unwrap();
    open_to_all(&shared.join("service"));
    let masked = || {
        let unmasked = mask_all_but(
            [folder.path().join("seen"), shared.clone()],
            &BTreeSet::new(),
            UID,
        )
        .unmasked;
        assert!(
            unmasked
                .iter()
                .any(|problem| problem.contains("more than 50000 entries")),
            "{unmasked:?}"
        );
    };
    let reaches = || UnixStream::connect(shared.join("service")).is_ok();
    assert!(apart(|| (), reaches), "the twin without covers");
    assert!(!apart(masked, reaches));
}

#[test]
fn a_socket_of_another_network_namespace_is_found_deep_in_a_shared_folder() {
    let (folder, _sockets) = tree();
    let shared = folder.path().join("seen/shared");
    let deep = shared.join("1/2/3/4/5");
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let socket = deep.join("socket");
    let bind = || {
        #[expect(
            deprecated,
            reason = "the objection is to a split descriptor table, which stays whole here"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
        UnixListener::bind(&socket).unwrap()
    };
    let _service = std::thread::scope(|scope| scope.spawn(bind).join().unwrap());
    open_to_all(&socket);
    let masked = || {
        assert_eq!(
            mask_all_but(
                [folder.path().join("seen"), shared.clone()],
                &BTreeSet::new(),
                UID
            )
            .unmasked,
            Vec::<String>::new()
        )
    };
    let reaches = || UnixStream::connect(&socket).is_ok();
    // This comes before anything connects from here: the kernel's table would then name the socket.
    assert!(!apart(masked, reaches));
    assert!(apart(|| (), reaches), "the twin without covers");
    // Many files deeper down do not prevent the start.
    for n in 0..shared_sockets::DEEP_ENTRIES {
        std::fs::File::create(deep.join(n.to_string())).unwrap();
    }
    apart(masked, || ());
}

#[test]
fn a_folder_that_the_workload_closed_is_covered_whole_and_one_of_another_user_is_not() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let shared = folder.path().join("shared");
    for name in ["own", "others"] {
        std::fs::create_dir_all(shared.join(name)).unwrap();
        std::fs::set_permissions(shared.join(name), std::fs::Permissions::from_mode(0o000))
            .unwrap();
    }
    std::os::unix::fs::chown(shared.join("own"), Some(UID), None).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let find = |visible: &[&str]| {
        let visible: BTreeSet<_> = visible
            .iter()
            .map(|name| folder.path().join(name))
            .collect();
        apart(
            || (),
            || shared_sockets::find(&visible, &BTreeSet::new(), UID),
        )
    };
    let found = find(&["shared"]);
    assert_eq!(found.closed, BTreeSet::from([shared.join("own")]));
    assert!(found.incomplete.is_none(), "{found:?}");
    let found = find(&["shared", "shared/own/listed"]);
    assert!(
        found.closed.is_empty(),
        "a cover would hide what is listed in it"
    );
    assert!(found.incomplete.unwrap().to_string().contains("shared/own"));
}

#[test]
fn what_cannot_be_covered_is_named() {
    let (folder, _sockets) = tree();
    let path = folder.path();
    let many = path.join("many");
    for n in 0..super::MAX_MASKS + 10 {
        std::fs::create_dir_all(many.join(n.to_string())).unwrap();
    }
    let masked = || {
        // The parent is empty, so that no folder of the machine counts.
        rustix::mount::mount("test", "/mnt", "tmpfs", MountFlags::empty(), None).unwrap();
        let unmasked = mask_all_but([many.join("0")], &BTreeSet::new(), UID).unmasked;
        // Folders that other tests make beside this one are named too.
        let own = unmasked.iter().find(|line| line.contains("/many/"));
        assert!(own.unwrap().contains("no more than 1024"), "{unmasked:?}");
    };
    apart(masked, || ());
}
