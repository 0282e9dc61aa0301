//! The host's settings of SSH clients, for commands that keep the caller's identity. In their user
//! namespace root's files seem to belong to nobody, and ssh reads an included file only if it
//! belongs to root or the user (ssh_config(5), Include).

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_supervisor::confine::{Mount, Purpose};
use openshell_supervisor::files::carve_outs::CarveOut;
use openshell_supervisor::files::landlock::Request;
use openshell_supervisor::host::privilege::Privilege;
use openshell_supervisor::runs::sandbox_files::SandboxFile;

use crate::startup::host::ca_files::write_file;

const FOLDER: &str = "/etc/ssh/ssh_config.d";

/// The most files that are copied, and the most bytes of each; a distribution has one or two.
const FILES: usize = 64;
const BYTES: u64 = 64 * 1024;

/// Copies the settings that the policy grants to the sandbox's files. Returns the mount that shows
/// them in their place; `None` if ssh can read the host's own, or if the policy takes something out
/// of the folder.
///
/// # Errors
/// Fails if a copy cannot be written.
pub(crate) fn create(
    privilege: &Privilege,
    landlock: &Request,
    carve_outs: &[CarveOut],
    files: &SandboxFile,
) -> anyhow::Result<Option<Mount>> {
    let folder = Path::new(FOLDER);
    if privilege.caller().is_none()
        || carve_outs
            .iter()
            .any(|carve_out| carve_out.path.starts_with(folder))
    {
        return Ok(None);
    }
    let is_hidden = |path: &Path| {
        carve_outs
            .iter()
            .any(|carve_out| path.starts_with(&carve_out.path))
    };
    let copied = settings(folder, |path| landlock.reaches(path) && !is_hidden(path));
    if copied.is_empty() {
        return Ok(None);
    }
    let folder = files.join("ssh_config.d");
    std::fs::create_dir(folder.outside()).with_context(|| format!("cannot make {folder}"))?;
    for (name, content) in copied {
        write_file(&folder.join(&name), [content.as_slice()])?;
    }
    Ok(Some(Mount {
        source: folder.inside().to_owned(),
        target: FOLDER.into(),
        purpose: Purpose::SshSettings,
    }))
}

/// Returns the names and contents of the settings that the caller may read, and that are granted
/// after symlinks are followed.
fn settings(folder: &Path, is_granted: impl Fn(&Path) -> bool) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_setting = |path: &PathBuf| {
        let is_file = path
            .metadata()
            .is_ok_and(|data| data.is_file() && data.len() <= BYTES);
        is_file
            && path
                .extension()
                .is_some_and(|extension| extension == "conf")
    };
    let read = |path: PathBuf| {
        Some((
            path.file_name()?.to_str()?.to_owned(),
            std::fs::read(path).ok()?,
        ))
    };
    let is_shown = |path: &PathBuf| std::fs::canonicalize(path).is_ok_and(|real| is_granted(&real));
    paths
        .filter(is_setting)
        .filter(is_shown)
        .take(FILES)
        .filter_map(read)
        .collect()
}
