//! Each proof fails if its mechanism is missing. All mechanisms are per thread, so each test runs
//! on a thread of its own.

use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener};

use openshell_policy::filesystem::{Filesystem, GrantedPath};
use rustix::process::{Gid, Uid};

use super::{ApplyError, Confinement, LandlockProof, Step, prove_firewall};
use crate::files::landlock::Request;
use crate::files::landlock::domain::{CompensatingMechanisms, Granted};
use crate::identity::run_as::ProcessIdentity;
use crate::seccomp::filter::Filter;
use crate::seccomp::notify::FileCalls;
use crate::seccomp::rules::{Sockets, rows};

const UID: u32 = 61184;

fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn confinement() -> Confinement {
    Confinement {
        files: None,
        mounts: Vec::new(),
        protected: Vec::new(),
        ends_when_lost: Vec::new(),
        carve_outs: Vec::new(),
        tmp_bytes: 1024 * 1024,
        covers: None,
        landlock: Request::new(&Filesystem::default(), None),
        private_run: false,
        home: None,
        homes: Vec::new(),
        keep_visible: None,
        identity: ProcessIdentity {
            uid: UID,
            gid: UID,
            groups: vec![UID],
            is_callers: false,
        },
        sockets: Sockets::Internet,
        devices: Vec::new(),
        debug: false,
        shares_pids: false,
        file_calls: FileCalls::None,
        landlock_proof: LandlockProof::File("/nowhere".into()),
        is_init_exposed: false,
        masks: None,
    }
}

fn filter() -> Filter {
    Filter::compile(rows(Sockets::Internet, &[])).unwrap()
}

fn become_user() {
    rustix::thread::set_thread_groups(&[Gid::from_raw(UID)]).unwrap();
    let uid = Uid::from_raw(UID);
    let gid = Gid::from_raw(UID);
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    rustix::thread::set_no_new_privs(true).unwrap();
}

fn listener() -> (TcpListener, SocketAddrV4) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    match listener.local_addr().unwrap() {
        SocketAddr::V4(address) => (listener, address),
        SocketAddr::V6(_) => unreachable!("bound to an IPv4 address"),
    }
}

#[test]
fn a_filter_that_is_missing_stops_the_start() {
    let failed = on_thread(|| {
        become_user();
        confinement().prove()
    });
    assert_eq!(failed.unwrap_err().step, Step::SystemCallFilterProved);
}

#[test]
fn an_identity_that_was_kept_stops_the_start() {
    let failed = on_thread(|| {
        filter().install().unwrap();
        confinement().prove()
    });
    assert_eq!(failed.unwrap_err().step, Step::IdentityProved);
    on_thread(|| {
        assert!(
            confinement().verify_identity(&[]).is_err(),
            "root is not the workload"
        )
    });
}

#[test]
fn capabilities_that_were_kept_are_found() {
    on_thread(|| {
        rustix::thread::set_keep_capabilities(true).unwrap();
        become_user();
        assert!(
            confinement()
                .verify_identity(&[Gid::from_raw(UID)])
                .is_err()
        );
    });
}

#[test]
fn a_fence_that_is_open_stops_the_start() {
    let (_held, probe) = listener();
    assert!(matches!(
        prove_firewall(probe),
        Err(ApplyError::FirewallNotProved { .. })
    ));
}

#[test]
fn a_fence_that_does_not_answer_stops_the_start() {
    // A namespace without a route cannot reach this address.
    let failed = on_thread(|| {
        crate::sys::unshare_network().unwrap();
        prove_firewall(SocketAddrV4::new([198, 51, 100, 77].into(), 1))
    });
    assert!(matches!(failed, Err(ApplyError::FirewallNotProved { .. })));
}

#[test]
fn a_landlock_domain_that_is_missing_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proof");
    std::fs::write(&file, "").unwrap();
    let by_file = Confinement {
        landlock_proof: LandlockProof::File(file),
        ..confinement()
    };
    let granted = Granted {
        scopes: true,
        ..Granted::default()
    };
    assert!(matches!(
        by_file.prove_landlock(&granted),
        Err(ApplyError::LandlockNotProved(_))
    ));

    let name = folder.path().to_str().unwrap().as_bytes();
    let _held = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap();
    let by_socket = Confinement {
        landlock_proof: LandlockProof::AbstractSocket(name.to_vec()),
        ..confinement()
    };
    assert!(matches!(
        by_socket.prove_landlock(&granted),
        Err(ApplyError::LandlockNotProved(_))
    ));
    let unscoped = Granted {
        scopes: false,
        ..granted
    };
    assert!(
        by_socket.prove_landlock(&unscoped).unwrap().is_some(),
        "what cannot be proved is said"
    );
}

#[test]
fn a_domain_in_force_is_proved_by_file_and_by_socket() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("proof");
    std::fs::write(&file, "").unwrap();
    let name = folder.path().to_str().unwrap().as_bytes();
    let _held = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name).unwrap()).unwrap();
    // The baseline's /tmp is left out, because the file lies there.
    let usr = GrantedPath::parse("/usr").unwrap();
    let filesystem = Filesystem {
        read_only: vec![usr],
        ..Filesystem::default()
    };
    let request = Request::new(&filesystem, None).without("/tmp");
    on_thread(|| {
        let granted = request
            .enforce(
                request.resolve(),
                &[],
                &[],
                CompensatingMechanisms {
                    masked_sockets: false,
                    scopes: false,
                },
            )
            .unwrap();
        for landlock_proof in [
            LandlockProof::File(file.clone()),
            LandlockProof::AbstractSocket(name.to_vec()),
        ] {
            let confinement = Confinement {
                landlock_proof,
                ..confinement()
            };
            assert_eq!(confinement.prove_landlock(&granted).unwrap(), None);
        }
    });
}
