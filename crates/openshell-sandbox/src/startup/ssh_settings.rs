//! The host's settings of SSH clients, for commands that keep the caller's identity: in their user namespace root's files are nobody's, and
//! ssh reads a file that settings include only if it is root's or the user's (ssh_config(5), Include).

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use openshell_supervisor::confine::{Mount, Purpose};
use openshell_supervisor::privilege::Privilege;
use openshell_supervisor::sandbox_files::SandboxFile;

use crate::startup::ca_files::write_file;

const FOLDER: &str = "/etc/ssh/ssh_config.d";

/// Files that are copied, and bytes of each; a distribution has one or two.
const FILES: usize = 64;
const BYTES: u64 = 64 * 1024;

/// Copies the settings among the sandbox's files, and returns the mount that shows them in their place; `None` where ssh reads the
/// host's own.
///
/// # Errors
/// A copy cannot be written.
pub(super) fn create(privilege: &Privilege, files: &SandboxFile) -> anyhow::Result<Option<Mount>> {
    let copied = match privilege.caller() {
        Some(_) => settings(Path::new(FOLDER)),
        None => Vec::new(),
    };
    if copied.is_empty() {
        return Ok(None);
    }
    let folder = files.join("ssh_config.d");
    std::fs::create_dir(folder.outside()).with_context(|| format!("cannot make {folder}"))?;
    for (name, content) in copied {
        write_file(&folder.join(&name), [content.as_slice()])?;
    }
    Ok(Some(Mount { source: folder.inside().to_owned(), target: FOLDER.into(), purpose: Purpose::SshSettings }))
}

/// Names and contents of the settings that the caller may read.
fn settings(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_setting = |path: &PathBuf| {
        let is_file = path.metadata().is_ok_and(|data| data.is_file() && data.len() <= BYTES);
        is_file && path.extension().is_some_and(|extension| extension == "conf")
    };
    let read = |path: PathBuf| Some((path.file_name()?.to_str()?.to_owned(), std::fs::read(path).ok()?));
    paths.filter(is_setting).take(FILES).filter_map(read).collect()
}
