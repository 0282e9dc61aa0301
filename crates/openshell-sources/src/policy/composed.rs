//! The policy of a command line: hosts, paths and presets, with or without a policy file.

use std::fmt::Write;
use std::io;
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use openshell_policy::address::AddressRange;
use openshell_policy::yaml;
use openshell_supervisor::paths::trusted_symlinks::resolve;

use super::presets::Preset;

/// A host that every program may connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// The host, as a policy names it.
    pub host: String,
    /// The port.
    pub port: NonZeroU16,
    /// The addresses that it may have, public or not; `None` for all public ones.
    pub addresses: Option<AddressRange>,
    /// What requests to the host may do; `None` for any bytes.
    pub access: Option<Access>,
}

/// What may be done at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Requests that read.
    ReadOnly,
    /// Requests that read or write.
    ReadWrite,
    /// All requests.
    Full,
    /// Bytes that are not requests.
    Tcp,
}

/// What the flags of a command line grant and hide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'f> {
    /// Hosts.
    pub allow: &'f [Allowed],
    /// Files and folders that may be written.
    pub write: &'f [PathBuf],
    /// Those that may be read.
    pub read: &'f [PathBuf],
    /// Those that are hidden.
    pub hide: &'f [PathBuf],
    /// Names of presets.
    pub preset: &'f [String],
}

impl Flags<'_> {
    /// Returns true if the flags grant and hide nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty()
            && self.write.is_empty()
            && self.read.is_empty()
            && self.hide.is_empty()
            && self.preset.is_empty()
    }
}

/// What a command line adds to a policy.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    documents: Arc<[String]>,
    /// Files of presets.
    pub(super) files: Vec<PathBuf>,
}

impl Additions {
    /// Returns what `args` add; nothing if nothing is given. Without a policy file, `workdir` is
    /// the folder that may be written. Presets are looked up in `folders`.
    ///
    /// # Errors
    /// Fails if a preset is unknown or invalid, or a path is not text or cannot be made absolute.
    pub fn of(
        args: Flags<'_>,
        workdir: Option<&Path>,
        folders: &[PathBuf],
    ) -> anyhow::Result<Self> {
        if args.is_empty() && workdir.is_none() {
            return Ok(Self::default());
        }
        let presets = args
            .preset
            .iter()
            .filter(|name| !name.is_empty())
            .map(|name| Preset::find(name, folders))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let files = presets
            .iter()
            .filter_map(|preset| preset.file.clone())
            .collect();
        let own = document(args, workdir)?;
        Ok(Self {
            documents: presets
                .into_iter()
                .map(|preset| preset.text)
                .chain([own])
                .collect(),
            files,
        })
    }

    /// Returns true if there are no additions.
    pub(super) fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Joins the additions with a policy file's text, if there is one.
    ///
    /// # Errors
    /// Fails if a document is invalid; those of the command line are made from its values.
    pub(super) fn joined(&self, file: Option<&str>) -> anyhow::Result<String> {
        let all: Vec<_> = file
            .into_iter()
            .chain(self.documents.iter().map(String::as_str))
            .collect();
        yaml::merged(&all).context("--allow, --write, --read, --hide, --preset")
    }
}

/// Returns the document that `args` stand for, without the presets.
fn document(args: Flags<'_>, workdir: Option<&Path>) -> anyhow::Result<String> {
    let writable: Vec<_> = workdir
        .map(Path::to_owned)
        .into_iter()
        .chain(args.write.iter().cloned())
        .collect();
    let mut folders = Vec::new();
    for (key, flag, paths) in [
        ("read_write", "--write", writable.as_slice()),
        ("read_only", "--read", args.read),
        ("hidden", "--hide", args.hide),
    ] {
        let paths = paths
            .iter()
            .map(|path| text_of(path, flag))
            .collect::<anyhow::Result<Vec<_>>>()?;
        if !paths.is_empty() {
            folders.push(format!("{key}: {}", serde_json::to_string(&paths)?));
        }
    }
    let mut document = format!("filesystem_policy: {{{}}}\n", folders.join(", "));
    document.push_str("network_policies:");
    match args.allow {
        [] => document.push_str(" {}\n"),
        allowed => {
            document.push_str("\n  command-line:\n    endpoints:\n");
            for allowed in allowed {
                writeln!(document, "      - {}", endpoint(allowed)?)?;
            }
            document.push_str("    binaries: [{path: \"/**\"}]\n");
        }
    }
    Ok(document)
}

/// Returns the absolute form of `path`. The part up to the last `..` is resolved, because a symlink
/// in it may lead elsewhere.
///
/// # Errors
/// Fails if that part cannot be found, or is behind a symlink that a command may have made.
fn without_dots(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let parts: Vec<_> = absolute.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else {
        return Ok(absolute);
    };
    let (above, below) = parts.split_at(last + 1);
    let mut resolved = resolve(&above.iter().collect::<PathBuf>())?;
    resolved.extend(below);
    // A slash at the end means a folder that may be missing.
    if path.as_os_str().as_bytes().ends_with(b"/") {
        resolved.push("");
    }
    Ok(resolved)
}

/// Returns an absolute path as text.
fn text_of(path: &Path, flag: &str) -> anyhow::Result<String> {
    let absolute =
        if path.starts_with("~") || path.starts_with("$WORKDIR") || path.starts_with("**") {
            path.to_owned()
        } else {
            without_dots(path).with_context(|| format!("{flag} {}", path.display()))?
        };
    let absolute = absolute.into_os_string().into_string();
    absolute.map_err(|path| {
        anyhow::anyhow!(
            "{flag} {}: it is not UTF-8 text; name the folder that contains it",
            path.display()
        )
    })
}

fn endpoint(allowed: &Allowed) -> anyhow::Result<String> {
    let Allowed {
        host,
        port,
        addresses,
        access,
    } = allowed;
    let rules = match access {
        None => "",
        Some(Access::Tcp) => ", protocol: tcp",
        Some(Access::ReadOnly) => ", protocol: rest, enforcement: enforce, access: read-only",
        Some(Access::ReadWrite) => ", protocol: rest, enforcement: enforce, access: read-write",
        Some(Access::Full) => ", protocol: rest, enforcement: enforce, access: full",
    };
    let addresses = match addresses {
        None => String::new(),
        Some(range) => format!(", allowed_ips: [\"{range}\"]"),
    };
    Ok(format!(
        "{{host: {}, port: {port}{addresses}{rules}}}",
        serde_json::to_string(host)?
    ))
}

/// The folder of the image's user, in which a container's command works.
const IMAGE_HOME: &str = "/sandbox";

/// Folders of a home that other programs run or trust, so that they are unlikely as a project.
const SENSITIVE: &[&str] = &[".config", ".ssh", ".local", ".gnupg", "bin"];

/// Returns the folder that may be written if no policy file is given, and a warning about it.
///
/// # Errors
/// Fails if it is the root, one of `homes`, or above one, which is too much to be intended.
pub fn project(
    named: Option<&Path>,
    current: Option<&Path>,
    homes: &[PathBuf],
) -> anyhow::Result<(PathBuf, Option<String>)> {
    if let Some(named) = named {
        return Ok((named.to_owned(), None));
    }
    let current =
        current.context("the current directory does not exist; name a folder with --workdir")?;
    let real = |home: &PathBuf| std::fs::canonicalize(home).unwrap_or_else(|_| home.clone());
    let homes: Vec<_> = homes
        .iter()
        .map(real)
        .filter(|home| home != Path::new(IMAGE_HOME))
        .collect();
    let what = match homes.iter().find(|home| home.starts_with(current)) {
        _ if current == Path::new("/") => Some("the root".to_owned()),
        Some(home) if home == current => Some("a home".to_owned()),
        Some(home) => Some(format!("above the home {}", home.display())),
        None => None,
    };
    if let Some(what) = what {
        bail!(
            "without a policy file the command may write to the current directory, but {} is \
             {what}; change to a project's folder, or name one with --workdir",
            current.display()
        );
    }
    let is_sensitive = |home: &PathBuf| {
        SENSITIVE
            .iter()
            .any(|name| current.starts_with(home.join(name)))
    };
    let warning = homes.iter().any(is_sensitive).then(|| {
        format!(
            "the command may write to {}, from which other programs read settings or run programs; \
             if it is not your project, name your project with --workdir",
            current.display()
        )
    });
    Ok((current.to_owned(), warning))
}
