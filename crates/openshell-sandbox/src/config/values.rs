//! Values of flags and variables.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use openshell_supervisor::command::environment::Environment;

/// Returns the variable `name`, if it is set and not empty.
pub(super) fn variable_of(environment: &Environment, name: &str) -> Option<OsString> {
    environment
        .get(name)
        .filter(|value| !value.is_empty())
        .map(OsString::from)
}

/// Returns the path in the variable `name`, if it is set and not empty.
pub(super) fn path_of(environment: &Environment, name: &str) -> Option<PathBuf> {
    variable_of(environment, name).map(PathBuf::from)
}

/// Returns an absolute path. The sandbox starts in another directory, in which a relative path
/// would name another place.
pub(super) fn absolute(path: Option<PathBuf>) -> io::Result<Option<PathBuf>> {
    path.map(std::path::absolute).transpose()
}
