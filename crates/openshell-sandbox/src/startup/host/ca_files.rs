//! CA files that make the workload's programs trust the sandbox's interception CA, mounted at the
//! paths that the programs read.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_proxy::wire::tls::authority::Authority;
use openshell_proxy::wire::tls::originate::UpstreamRoots;
use openshell_proxy::wire::tls::subject_hash::subject_hash;
use openshell_proxy::wire::tls::trust::{SYSTEM_BUNDLES, certificates, java_store};
use openshell_supervisor::command::environment::{
    AUTHORITY_FILE, BUNDLE_FILE, Environment, JAVA_STORE_FILE, named_certificates,
};
use openshell_supervisor::confine::{Mount, Purpose};
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::paths::missing::is_missing;
use openshell_supervisor::paths::own_folder::make_if_missing;
use openshell_supervisor::paths::regular_files;
use openshell_supervisor::paths::trusted_symlinks::resolve;
use openshell_supervisor::runs::run_dir::created_dirs::{CreatedDirs, HELD_MODE};
use openshell_supervisor::runs::sandbox_files::SandboxFile;
use openshell_telemetry::logging;

use crate::ca_dir;
use crate::cli::NetworkMode;
use crate::config::Config;

/// The size of the largest bundle that is read, in bytes.
const BUNDLE_BYTES: u64 = 16 * 1024 * 1024;

/// The interception CA, and the mounts that make it known.
#[derive(Default)]
pub(crate) struct CaFiles {
    /// `None` without a proxy, or if the CA files could not be written or mounted.
    pub(crate) authority: Option<Authority>,
    /// Roots for upstreams, once [`Self::write_bundles`] has read the system's.
    pub(crate) roots: UpstreamRoots,
    /// The roots of `--upstream-ca-file`, until then.
    added: Option<Vec<u8>>,
    /// The folder of the CA files inside.
    pub(crate) folder: PathBuf,
    /// Mounts of the CA files.
    pub(crate) mounts: Vec<Mount>,
    /// True if there is a Java trust store among the files.
    pub(crate) has_java: bool,
    /// What [`Self::write_bundles`] writes.
    unwritten: Option<Unwritten>,
}

/// Bundles that will be written into a mounted folder. Their files are created before, because once
/// the folder is mounted, its path leads to a read-only mount.
struct Unwritten {
    bundle: File,
    /// `None` if there is no Java.
    java: Option<File>,
    /// Certificates that the caller's variables name, in PEM.
    callers: Vec<u8>,
}

impl CaFiles {
    /// Makes the files of the CA, `own` or that of `--ca-dir`, among the sandbox's own, `files`;
    /// makes nothing without a proxy. The bundles are still empty. Logs a warning if a file cannot
    /// be made.
    ///
    /// # Errors
    /// Fails if the CA cannot be made, or `--upstream-ca-file` cannot be used.
    pub(crate) fn create(
        config: &Config,
        landlock: &Request,
        own: Option<Authority>,
        files: &SandboxFile,
        made: &mut CreatedDirs,
    ) -> anyhow::Result<Self> {
        let authority = match (&config.tls.ca_dir, own) {
            _ if config.network.mode != NetworkMode::Proxy => return Ok(Self::default()),
            (Some(folder), _) => ca_dir::open(folder)?,
            (None, Some(own)) => own,
            (None, None) => Authority::create()?,
        };
        let added = config
            .tls
            .upstream_ca_file
            .as_deref()
            .map(read_added)
            .transpose()?;
        // If TLS is not intercepted, programs inside must trust what the proxy trusts besides the
        // system's certificates.
        let mut besides = added.clone().unwrap_or_default();
        let callers = CallerCertificates::read(&config.command.environment);
        end_line(&mut besides);
        besides.extend_from_slice(&callers.besides);
        let folder = files.join("tls");
        let place = match ensure_held(config.tls.dir(), made) {
            // If the default folder cannot be made, the files are used where they are.
            Err(_) if !config.tls.is_named() => Ok(folder.inside().to_owned()),
            made => made.with_context(|| format!("cannot make {}", config.tls.dir().display())),
        };
        let is_in_run_dir = place.as_ref().is_ok_and(|place| place == folder.inside());
        let inside = if is_in_run_dir {
            folder.inside().to_owned()
        } else {
            config.tls.dir().to_owned()
        };
        let made = place
            .and_then(|place| make(place, &folder, &authority, &besides))
            .and_then(|(bundle, mut mounts)| {
                // First, because a mount on the folder covers other mounts in it.
                mounts.splice(..0, among_trusted(landlock, &folder, &authority)?);
                Ok((bundle, mounts))
            });
        Ok(match made {
            Ok((bundle, mounts)) => {
                let path = folder.join(JAVA_STORE_FILE);
                let java = has_java(&config.command.environment)
                    .then(|| create_file(&path))
                    .transpose();
                let java = java.inspect_err(log_no_java).ok().flatten();
                let unwritten = Some(Unwritten {
                    bundle,
                    java,
                    callers: callers.all,
                });
                Self {
                    authority: Some(authority),
                    folder: inside,
                    mounts,
                    added,
                    unwritten,
                    ..Self::default()
                }
            }
            Err(error) => {
                log_unavailable(&format!("{error:#}"));
                Self {
                    added,
                    ..Self::default()
                }
            }
        })
    }

    /// Reads the system's bundle. Writes the bundle of all certificates, and the trust store for
    /// Java if it is on the machine. The folder that they are written to may be mounted already.
    ///
    /// # Errors
    /// Fails if the bundle cannot be written.
    pub(crate) fn write_bundles(&mut self, config: &Config) -> anyhow::Result<()> {
        if config.network.mode != NetworkMode::Proxy {
            return Ok(());
        }
        let system = system_bundle();
        let added = self.added.take();
        if let (Some(unwritten), Some(authority)) = (self.unwritten.take(), &self.authority) {
            self.has_java = unwritten.write(system.as_deref(), added.as_deref(), authority)?;
        }
        self.roots = UpstreamRoots::new([system, added].into_iter().flatten().collect());
        Ok(())
    }
}

impl Unwritten {
    /// Writes the bundles. Returns true if they include a trust store for Java.
    fn write(
        self,
        system: Option<&[u8]>,
        added: Option<&[u8]>,
        authority: &Authority,
    ) -> anyhow::Result<bool> {
        let Self {
            mut bundle,
            java,
            callers,
        } = self;
        let parts = [system, added, Some(callers.as_slice())]
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty());
        // A bundle may lack a line break at its end.
        let lines = parts.flat_map(|part| [part, if part.ends_with(b"\n") { b"" } else { b"\n" }]);
        let written = lines
            .chain([authority.pem().as_bytes()])
            .try_for_each(|part| bundle.write_all(part));
        written.context("cannot write the certificates for the programs inside (--run-dir)")?;
        let Some(mut java) = java else {
            return Ok(false);
        };
        let others: Vec<_> = added.into_iter().chain([callers.as_slice()]).collect();
        let store = java_store(system.unwrap_or_default(), &others, authority);
        let written = java
            .write_all(&store)
            .context("cannot write its trust store");
        Ok(written.inspect_err(log_no_java).is_ok())
    }
}

/// Ends the last line of a bundle, so that another bundle can follow.
fn end_line(bundle: &mut Vec<u8>) {
    if !bundle.is_empty() && !bundle.ends_with(b"\n") {
        bundle.push(b'\n');
    }
}

fn log_no_java(error: &anyhow::Error) {
    let message = format!("Java inside does not trust the sandbox's certificates: {error:#}");
    logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
}

/// Logs that TLS cannot be intercepted.
pub(crate) fn log_unavailable(why: &str) {
    let message =
        format!("the proxy refuses connections whose TLS it would open: {why}; see --tls-dir");
    logging::config_event(ConfigState::Degraded, Severity::High, &message);
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // The user means the pipe that a shell opens for `<(…)`, which is not a regular file.
    let is_given = path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd");
    let file = if is_given {
        File::open(path)?
    } else {
        regular_files::open(path)?
    };
    let expected = file.metadata()?.len().min(BUNDLE_BYTES);
    // One byte more, so that the end is found without growing the buffer.
    let mut bytes = Vec::with_capacity(usize::try_from(expected + 1).unwrap_or_default());
    file.take(BUNDLE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BUNDLE_BYTES {
        Err(io::ErrorKind::FileTooLarge.into())
    } else {
        Ok(bytes)
    }
}

fn read_added(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = read(path)
        .with_context(|| format!("--upstream-ca-file {} cannot be read", path.display()))?;
    if certificates(&bytes).next().is_none() {
        bail!(
            "--upstream-ca-file {} holds no certificate in PEM",
            path.display()
        );
    }
    Ok(bytes)
}

/// Certificates in files that the caller's variables name. Programs inside trust them, as programs
/// outside do. The proxy does not; for that there is `--upstream-ca-file`.
#[derive(Default)]
struct CallerCertificates {
    /// All of them, in PEM.
    all: Vec<u8>,
    /// Certificates that programs trust in addition to their own, in PEM.
    besides: Vec<u8>,
}

/// Reads the first of the system's bundles that can be read, and logs those before it that exist.
fn system_bundle() -> Option<Vec<u8>> {
    for path in SYSTEM_BUNDLES {
        match read(Path::new(path)) {
            Ok(bundle) => return Some(bundle),
            Err(error) if is_missing(&error) => {}
            Err(error) => {
                let message = format!("the certificates in {path} cannot be read: {error}");
                logging::config_event(ConfigState::Degraded, Severity::Medium, &message);
            }
        }
    }
    None
}

impl CallerCertificates {
    /// Reads the files, and logs those that cannot be read.
    fn read(environment: &Environment) -> Self {
        let systems: Vec<_> = SYSTEM_BUNDLES
            .iter()
            .filter_map(|path| resolve(Path::new(path)).ok())
            .collect();
        let mut callers = Self::default();
        let mut seen = Vec::new();
        // Many variables name the same file.
        let mut resolved: HashMap<&Path, Option<PathBuf>> = HashMap::new();
        for (variable, path, is_besides) in named_certificates(environment) {
            let real = resolved
                .entry(path)
                .or_insert_with(|| std::fs::canonicalize(path).ok())
                .clone();
            // Our bundle contains the system's bundle already.
            if real.as_ref().is_some_and(|real| systems.contains(real)) {
                continue;
            }
            match read_named(path) {
                Ok(found) => {
                    if is_besides {
                        callers.besides.extend_from_slice(&found);
                    }
                    if !seen.contains(&real) {
                        callers.all.extend_from_slice(&found);
                    }
                }
                Err(error) => {
                    let path = path.display();
                    let message = format!(
                        "programs inside do not trust what {variable} names, {path}: {error}"
                    );
                    logging::config_event(ConfigState::Degraded, Severity::Low, &message);
                }
            }
            seen.push(real);
        }
        callers
    }
}

fn read_named(path: &Path) -> io::Result<Vec<u8>> {
    let found = only_certificates(&read(path)?);
    let is_one = certificates(&found).next().is_some();
    if is_one {
        Ok(found)
    } else {
        Err(io::Error::other("it holds no certificate in PEM"))
    }
}

/// Returns the certificates of a file in PEM, without its other content, such as a key.
fn only_certificates(bytes: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        is_inside = is_inside || line == b"-----BEGIN CERTIFICATE-----";
        if is_inside {
            found.extend_from_slice(line);
            found.push(b'\n');
        }
        is_inside = is_inside && line != b"-----END CERTIFICATE-----";
    }
    found
}

/// Makes the files in `folder`. Returns the bundle, still empty, and the mounts: at `place`, if
/// that is another folder, and over the system's bundles, because some programs read only those.
fn make(
    place: PathBuf,
    folder: &SandboxFile,
    authority: &Authority,
    besides: &[u8],
) -> anyhow::Result<(File, Vec<Mount>)> {
    make_folder(folder)?;
    write_file(
        &folder.join(AUTHORITY_FILE),
        [authority.pem().as_bytes(), besides],
    )?;
    let everything = folder.join(BUNDLE_FILE);
    let bundle = create_file(&everything)?;
    let systems = SYSTEM_BUNDLES
        .iter()
        .filter_map(|path| resolve(Path::new(path)).ok());
    let mut mounts: Vec<_> = systems
        .map(|place| Mount {
            source: everything.inside().to_owned(),
            target: place,
            purpose: Purpose::FurtherTrust,
        })
        .collect();
    mounts.sort_by(|one, other| one.target.cmp(&other.target));
    mounts.dedup_by(|one, other| one.target == other.target);
    if place != folder.inside() {
        mounts.push(Mount {
            source: folder.inside().to_owned(),
            target: place,
            purpose: Purpose::Trust,
        });
    }
    Ok((bundle, mounts))
}

/// The folder in which OpenSSL looks up certificates by the hashes of their subjects, on Debian,
/// Red Hat, SUSE and Alpine.
const HASHED_FOLDER: &str = "/etc/ssl/certs";

/// Makes the mount that adds the authority to the system's folder of hashed certificates. Returns
/// `None` if there is no such folder, or if the command may write to something in it.
fn among_trusted(
    landlock: &Request,
    folder: &SandboxFile,
    authority: &Authority,
) -> anyhow::Result<Option<Mount>> {
    let Ok(place) = resolve(Path::new(HASHED_FOLDER)) else {
        return Ok(None);
    };
    if !place.is_dir() || landlock.grants_writing_within(&place) {
        return Ok(None);
    }
    let top = folder.join("certs");
    make_folder(&top)?;
    write_file(&top.join(AUTHORITY_FILE), [authority.pem().as_bytes()])?;
    for hash in authority.certificates().iter().filter_map(subject_hash) {
        let names = (0..SAME_HASH).map(|number| format!("{hash}.{number}"));
        let is_free = |name: &String| {
            let folders = [&*place, top.outside()];
            folders.iter().all(|folder| {
                folder
                    .join(name)
                    .symlink_metadata()
                    .is_err_and(|error| is_missing(&error))
            })
        };
        if let Some(name) = names.into_iter().find(is_free) {
            symlink(AUTHORITY_FILE, top.join(&name).outside())
                .with_context(|| format!("cannot write {top}"))?;
        }
    }
    Ok(Some(Mount {
        source: top.inside().to_owned(),
        target: place,
        purpose: Purpose::AmongTrusted,
    }))
}

/// The most certificates of one subject in a folder of hashed ones; OpenSSL tries each.
const SAME_HASH: u32 = 16;

fn make_folder(folder: &SandboxFile) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(folder.outside())?;
    // The caller's umask may have removed bits.
    std::fs::set_permissions(folder.outside(), Permissions::from_mode(0o755))
}

/// Writes `parts` to a new file that every user may read.
///
/// # Errors
/// Fails if the file exists, or cannot be written.
pub(crate) fn write_file<'p>(
    file: &SandboxFile,
    parts: impl IntoIterator<Item = &'p [u8]>,
) -> anyhow::Result<()> {
    let mut opened = create_file(file)?;
    let written = parts
        .into_iter()
        .try_for_each(|part| opened.write_all(part));
    written.with_context(|| format!("cannot write {file}"))
}

/// Creates a file that every user may read, whatever the caller's umask is.
fn create_file(file: &SandboxFile) -> anyhow::Result<File> {
    let create = || -> io::Result<File> {
        let created = File::create_new(file.outside())?;
        created.set_permissions(Permissions::from_mode(0o644))?;
        Ok(created)
    };
    create().with_context(|| format!("cannot write {file}"))
}

/// How often the sandbox tries to make the folder of the certificates.
const TRIES: u32 = 100;

/// Makes the folder `path` if it is missing, and keeps it while the sandbox lives.
fn ensure_held(path: &Path, made: &mut CreatedDirs) -> io::Result<PathBuf> {
    for _ in 0..TRIES {
        let place = ensure(path, HELD_MODE, made)?;
        // Another sandbox that is ending may have removed it at this moment.
        if made.hold(&place)? {
            return Ok(place);
        }
    }
    Err(io::Error::other(
        "another process removes or replaces it again and again",
    ))
}

/// Makes the folder `path` with `mode` if it is missing. The workload sees a mount on it, which has
/// a different mode.
fn ensure(path: &Path, mode: u32, made: &mut CreatedDirs) -> io::Result<PathBuf> {
    match resolve(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            let folder = ensure(parent, 0o755, made)?.join(name);
            if make_if_missing(&folder, mode)? {
                made.add(&folder)?;
            }
            Ok(folder)
        }
        result => result,
    }
}

/// Returns true if Java is installed, which needs its own trust store.
fn has_java(environment: &Environment) -> bool {
    let home = environment
        .get("JAVA_HOME")
        .map(|home| Path::new(home).join("bin"));
    let path = environment.get("PATH").map(std::env::split_paths);
    let folders = path
        .into_iter()
        .flatten()
        .chain(home)
        .chain([PathBuf::from("/usr/bin")]);
    folders
        .into_iter()
        .any(|folder| folder.join("java").exists())
}
