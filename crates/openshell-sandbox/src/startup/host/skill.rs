//! The text that tells agents how to ask for a line of policy.

use std::io::ErrorKind;
use std::path::Path;

use openshell_supervisor::confine::{Mount, Purpose};
use openshell_supervisor::files::filesystem::{Placeholder, make_placeholder};
use openshell_supervisor::runs::run_dir::created_dirs::CreatedDirs;
use openshell_supervisor::runs::sandbox_files::SandboxFile;

use crate::startup::host::ca_files::write_file;

/// Where agents find the text.
pub(super) const PLACE: &str = "/etc/openshell/skills/policy-advisor/SKILL.md";

/// The folder that images have for files of the sandbox. Hosts get none.
const FOLDER: &str = "/etc/openshell";

/// Writes the text among the sandbox's `files`. Returns the mount that shows it in its place; `None`
/// if nothing can be shown there. It is also served at policy.local.
///
/// # Errors
/// Fails if it cannot be written.
pub(super) fn create(files: &SandboxFile, made: &mut CreatedDirs) -> anyhow::Result<Option<Mount>> {
    if !Path::new(FOLDER).is_dir() {
        return Ok(None);
    }
    let place = Path::new(PLACE);
    match make_placeholder(place, Placeholder::File(""), made) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(_) => return Ok(None),
    }
    let file = files.join("skill.md");
    write_file(&file, [openshell_proxy::policy_local::SKILL.as_bytes()])?;
    Ok(Some(Mount {
        source: file.inside().to_owned(),
        target: place.to_owned(),
        purpose: Purpose::Skill,
    }))
}
