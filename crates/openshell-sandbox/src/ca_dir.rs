//! A folder with one certificate authority for many sandboxes (`--ca-dir`).
//!
//! `ca.pem` holds the private key, the certificate, and earlier certificates. It is written
//! completely next to its place and then linked or renamed into it, under a lock of the folder. So
//! nobody reads a part of it, and all processes use the same authority. A mounted secret, `tls.crt`
//! and `tls.key`, is used unchanged.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::secret::Secret;
use openshell_proxy::wire::tls::authority::Authority;
use openshell_supervisor::paths::own_folder::OwnFolder;
use openshell_supervisor::paths::trusted_symlinks::{is_on_read_only_mount, is_root};
use openshell_telemetry::logging;
use rustix::fs::{AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;
use time::OffsetDateTime;

use openshell_sources::secrets::secret_file;

/// The file of an authority that this program makes.
const OWN: &str = "ca.pem";

/// The files of a mounted secret.
const MOUNTED: [&str; 2] = ["tls.key", "tls.crt"];

/// How long before the end of an authority the next one is made.
const RENEWAL: time::Duration = time::Duration::days(30);

/// The longest wait for another process that makes the authority.
const LOCK: Duration = Duration::from_secs(10);

/// The most bytes of a file.
const BYTES: u64 = 1024 * 1024;

/// Which authority the caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// The existing one, unless it ends soon.
    Current,
    /// Another one.
    Next,
}

/// Returns the paths of the files with the key, whether or not they exist yet.
pub(crate) fn key_files(folder: &Path) -> [PathBuf; 2] {
    [OWN, MOUNTED[0]].map(|name| folder.join(name))
}

/// Returns the authority in `folder`. Makes it if it is missing, and replaces it 30 days before its
/// end.
///
/// # Errors
/// Fails if the folder or a file in it is open to others, does not hold an authority, or cannot be
/// read or written.
pub(crate) fn open(folder: &Path) -> anyhow::Result<Authority> {
    open_as(folder, Wanted::Current)
}

/// Replaces the authority in `folder`. Sandboxes that start from now on use the new one, and trust
/// the old one until its end.
///
/// # Errors
/// Fails as [`open`] does, or if the authority is a mounted secret.
pub(crate) fn rotate(folder: &Path) -> anyhow::Result<Authority> {
    open_as(folder, Wanted::Next)
}

/// Returns the authority in `folder`, without making one.
///
/// # Errors
/// Fails if the authority cannot be read or is open to others, or if there is none.
pub(crate) fn show(folder: &Path) -> anyhow::Result<Authority> {
    let at = || format!("--ca-dir {}", folder.display());
    let own = own_text(folder).and_then(|text| {
        text.map(|text| parse(text.expose()).context(OWN))
            .transpose()
    });
    let found = own.and_then(|own| own.map_or_else(|| read_mounted(folder), |own| Ok(Some(own))));
    found
        .and_then(|found| {
            found.context("it holds no certificate authority; a run with this --ca-dir makes one")
        })
        .with_context(at)
}

fn open_as(folder: &Path, wanted: Wanted) -> anyhow::Result<Authority> {
    let at = || format!("--ca-dir {}", folder.display());
    let open = || {
        let folder = make_folder(folder)?;
        in_folder(&folder.reached(), wanted)
    };
    open().with_context(at)
}

/// Opens the folder. Makes it for this user only if it is missing; others must not be able to write
/// to one that exists.
fn make_folder(folder: &Path) -> anyhow::Result<OwnFolder> {
    let folder = OwnFolder::make(folder, 0o700).context("it cannot be made")?;
    let held = File::open(folder.reached()).context("it cannot be read")?;
    let inspect = || -> io::Result<_> {
        let has_own = match rustix::fs::statat(&held, OWN, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => false,
            found => found.map(|_| true)?,
        };
        Ok((
            held.metadata()?,
            is_own(&held)?,
            is_on_read_only_mount(&held)?,
            has_own,
        ))
    };
    let (data, is_own, is_read_only, has_own) = inspect().context("it cannot be read")?;
    // A mounted secret belongs to root, and its folder has the mode of /tmp.
    let is_mounted = is_read_only && is_root(data.uid()) && !has_own;
    if !is_own || data.mode() & 0o022 != 0 && !is_mounted {
        bail!(
            "others may change it: root or this user must own it, and only the owner may write to \
             it (chmod 700)"
        );
    }
    Ok(folder)
}

fn in_folder(folder: &Path, wanted: Wanted) -> anyhow::Result<Authority> {
    let _lock = lock(folder)?;
    let Some(text) = own_text(folder)? else {
        return match (read_mounted(folder)?, wanted) {
            (None, _) => make(folder, None, Place::Free),
            (Some(_), Wanted::Next) => bail!(
                "{} is a mounted secret; replace it where it comes from",
                MOUNTED[0]
            ),
            (Some(mounted), Wanted::Current) => {
                if ends_soon(&mounted) {
                    warn(&mounted, "replace the secret");
                }
                Ok(mounted)
            }
        };
    };
    let own = match parse(text.expose()) {
        // An authority that has ended or is broken is of no use to anybody.
        Err(_) if wanted == Wanted::Next => return make(folder, None, Place::Taken),
        own => own.context(OWN)?,
    };
    if wanted == Wanted::Current && !ends_soon(&own) {
        return Ok(own);
    }
    match make(folder, Some(&own), Place::Taken) {
        // The old authority serves until its end.
        Err(error) if wanted == Wanted::Current && own.ends() > OffsetDateTime::now_utc() => {
            warn(&own, &format!("it cannot be replaced: {error:#}"));
            Ok(own)
        }
        made => made,
    }
}

fn ends_soon(authority: &Authority) -> bool {
    authority.ends() - OffsetDateTime::now_utc() < RENEWAL
}

fn warn(authority: &Authority, remedy: &str) {
    let message = format!(
        "the certificate authority of --ca-dir expires at {}; {remedy}",
        authority.ends()
    );
    logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
}

/// Locks the folder until the file is dropped.
fn lock(folder: &Path) -> anyhow::Result<File> {
    let flags = OFlags::DIRECTORY.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(folder)
        .context("it cannot be opened")?;
    let deadline = Instant::now() + LOCK;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5))
            }
            Err(Errno::WOULDBLOCK) => bail!("another process keeps it locked; try again"),
            // The file system has no locks; there, making the link decides who wins.
            Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(file),
            Err(errno) => return Err(errno).context("it cannot be locked"),
        }
    }
}

/// Reads the authority that this program made, if there is one.
fn own_text(folder: &Path) -> anyhow::Result<Option<Secret>> {
    read(&folder.join(OWN), OFlags::NOFOLLOW, true).context(OWN)
}

/// Reads a mounted secret, if there is one.
fn read_mounted(folder: &Path) -> anyhow::Result<Option<Authority>> {
    let [key, certificate] = MOUNTED.map(|name| folder.join(name));
    // The kubelet mounts symlinks, so they are followed.
    let Some(key) = read(&key, OFlags::empty(), true).context(MOUNTED[0])? else {
        return Ok(None);
    };
    let certificate = read(&certificate, OFlags::empty(), false).context(MOUNTED[1])?;
    let certificate = certificate
        .with_context(|| format!("{} exists, but {} does not", MOUNTED[0], MOUNTED[1]))?;
    let text = Secret::new([key.expose(), b"\n", certificate.expose()].concat());
    parse(text.expose())
        .map(Some)
        .with_context(|| MOUNTED.join(" and "))
}

fn parse(text: &[u8]) -> anyhow::Result<Authority> {
    Authority::from_pem(text).context("it is not a certificate authority")
}

/// Reads a file, if it exists. If it holds a key (`is_key`), only its owner may have access.
fn read(path: &Path, flags: OFlags, is_key: bool) -> anyhow::Result<Option<Secret>> {
    let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.context("it cannot be read")?,
    };
    let data = file.metadata()?;
    if !data.is_file() || !is_own(&file)? {
        bail!("it is not a regular file that root or this user owns");
    }
    if is_key && !secret_file::is_private(&file)? {
        bail!("others may read it: give it mode 0600 (chmod 600, defaultMode: 0400)");
    }
    let mut bytes = Vec::with_capacity(usize::try_from(data.len().min(BYTES)).unwrap_or_default());
    file.take(BYTES)
        .read_to_end(&mut bytes)
        .context("it cannot be read")?;
    Ok(Some(Secret::new(bytes)))
}

/// Whether an authority's file exists already.
#[derive(Clone, Copy, Debug)]
enum Place {
    Free,
    Taken,
}

/// Makes an authority. Its file also holds the certificates of `before`, so that programs trust
/// them too.
fn make(folder: &Path, before: Option<&Authority>, at: Place) -> anyhow::Result<Authority> {
    let known = before.map(Authority::certificates).unwrap_or_default();
    let (authority, text) = Authority::create_kept(known)?;
    let new = folder.join(format!(".{OWN}.{}", std::process::id()));
    let place = folder.join(OWN);
    let placed = write(&new, &text).and_then(|()| match at {
        Place::Taken => std::fs::rename(&new, &place),
        Place::Free => std::fs::hard_link(&new, &place),
    });
    let _ = std::fs::remove_file(&new);
    match placed {
        // Another process was faster; this happens on a file system without locks.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => parse(
            own_text(folder)?
                .with_context(|| format!("another process made {OWN} and removed it; start again"))?
                .expose(),
        )
        .context(OWN),
        Err(error) => Err(error).context("the authority cannot be written"),
        Ok(()) => Ok(authority),
    }
}

fn write(path: &Path, text: &Secret) -> io::Result<()> {
    // A file may be left from an earlier process with this PID.
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.expose())?;
    file.sync_all()
}

/// Returns true if `file` belongs to root or this user. If root has no mapping here, all users but
/// this one look like root; only a read-only mount shows that none of them can change the file
/// here.
fn is_own(file: &File) -> io::Result<bool> {
    let uid = file.metadata()?.uid();
    let is_known = uid == 0 || uid == rustix::process::geteuid().as_raw();
    Ok(is_known || is_root(uid) && is_on_read_only_mount(file)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::{open, rotate, show};

    /// Returns the path of a folder for one test, which does not exist yet.
    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("openshell-ca-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn all_who_open_a_folder_at_once_get_one_authority() {
        let folder = folder("race");
        let threads: Vec<_> = (0..16)
            .map(|_| {
                let folder = folder.clone();
                std::thread::spawn(move || open(&folder).unwrap().pem())
            })
            .collect();
        let mut all: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        all.dedup();
        assert_eq!(all.len(), 1);
        assert_eq!(show(&folder).unwrap().pem(), all[0]);
        let names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["ca.pem"]);
        let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(
            (mode(folder.clone()), mode(folder.join("ca.pem"))),
            (0o700, 0o600)
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_rotated_authority_is_another_one_and_shows_the_one_before() {
        let folder = folder("rotate");
        assert!(
            format!("{:#}", show(&folder).unwrap_err())
                .ends_with("it holds no certificate authority; a run with this --ca-dir makes one")
        );
        let old = open(&folder).unwrap();
        let new = rotate(&folder).unwrap();
        assert_ne!(old.certificates()[0], new.certificates()[0]);
        assert_eq!(new.certificates()[1..], *old.certificates());
        assert_eq!(open(&folder).unwrap().certificates(), new.certificates());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_mounted_pair_is_used_as_it_is() {
        let made = folder("made");
        let folder = folder("mounted");
        let authority = open(&made).unwrap();
        let text = std::fs::read_to_string(made.join("ca.pem")).unwrap();
        let (key, certificate) = text.split_at(text.find("-----BEGIN CERT").unwrap());
        std::fs::create_dir_all(folder.join("..data")).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        for (name, content, mode) in [("tls.key", key, 0o400), ("tls.crt", certificate, 0o444)] {
            let file = folder.join("..data").join(name);
            std::fs::write(&file, content).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::symlink(format!("..data/{name}"), folder.join(name)).unwrap();
        }
        assert_eq!(
            open(&folder).unwrap().certificates(),
            authority.certificates()
        );
        assert!(format!("{:#}", rotate(&folder).unwrap_err()).contains("is a mounted secret"));
        assert!(!folder.join("ca.pem").exists());
        let key = folder.join("..data/tls.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o440)).unwrap();
        assert!(format!("{:#}", open(&folder).unwrap_err()).contains("others may read it"));
        std::fs::remove_file(folder.join("tls.crt")).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert!(
            format!("{:#}", open(&folder).unwrap_err())
                .contains("tls.key exists, but tls.crt does not")
        );
        std::fs::remove_dir_all(made).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_or_file_that_others_may_change_or_read_or_that_is_cut_is_refused() {
        let folder = folder("open");
        let why = || format!("{:#}", open(&folder).unwrap_err());
        open(&folder).unwrap();
        let file = folder.join("ca.pem");
        let whole = std::fs::read(&file).unwrap();
        for cut in [0, 100, whole.len() / 2, whole.len() - 40] {
            std::fs::write(&file, &whole[..cut]).unwrap();
            assert!(
                why().contains("ca.pem: it is not a certificate authority: "),
                "{}",
                why()
            );
        }
        rotate(&folder).unwrap();
        open(&folder).unwrap();
        std::fs::write(&file, &whole).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(why().contains("others may read it"), "{}", why());
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(why().contains("others may change it"), "{}", why());
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::rename(&file, folder.join("other")).unwrap();
        std::os::unix::fs::symlink("other", &file).unwrap();
        assert!(why().contains("ca.pem: it cannot be read"), "{}", why());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
