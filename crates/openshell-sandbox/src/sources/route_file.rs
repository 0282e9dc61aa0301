//! From the inference route file to routes with their keys.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::inference::{KeySource, RouteSpec};
use openshell_policy::secret::Secret;
use openshell_policy::yaml;
use openshell_proxy::inference::route::{Route, RouteTable};
use openshell_supervisor::environment::Environment;

use crate::logging;
use crate::sources::secret_file;

/// The routes of a file, and the variables that hold their keys.
#[derive(Debug)]
pub(crate) struct Loaded {
    table: RouteTable,
    pub(crate) variables: Vec<String>,
    summary: String,
}

impl Loaded {
    /// The routes, of which is said that they were loaded; `None` if there are none.
    pub(crate) fn taken(self) -> Option<RouteTable> {
        logging::config_event("LOADED", "INFO", &self.summary);
        Some(self.table).filter(|table| !table.is_empty())
    }
}

/// Reads the file at `path`, with keys from files and from `environment`.
///
/// # Errors
/// It cannot be read, or is no route file: every violation with its line; or a key is missing.
pub(crate) fn load(path: &Path, environment: &Environment) -> anyhow::Result<Loaded> {
    let failed = || format!("failed to load inference routes {}", path.display());
    let (text, is_private) = secret_file::open(path, yaml::MAX_DOCUMENT_BYTES, true).with_context(failed)?;
    let text = std::str::from_utf8(text.expose()).map_err(|_| anyhow!("it is not UTF-8")).with_context(failed)?;
    let file = yaml::routes(text).map_err(|violations| {
        let lines: Vec<_> = violations.0.iter().map(|violation| format!("\n  {violation}")).collect();
        anyhow!("{}:{}", failed(), lines.concat())
    })?;
    if !is_private && file.routes.iter().any(|route| matches!(route.key, KeySource::Value(_))) {
        return Err(anyhow!(secret_file::PUBLIC)).with_context(failed);
    }
    let (mut routes, mut variables, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for mut spec in file.routes {
        let name = spec.name.clone();
        if let KeySource::Variable(variable) = &spec.key {
            variables.push(variable.clone());
        }
        match key(&mut spec, environment).and_then(|key| Ok(Route::new(spec, key)?)) {
            Ok(route) => routes.push(route),
            Err(error) => faults.push(format!("route '{name}': {error:#}")),
        }
    }
    if !faults.is_empty() {
        bail!("{}: {}", failed(), faults.join("\n  "));
    }
    let summary = format!("inference routes loaded from {}: {} routes", path.display(), routes.len());
    Ok(Loaded { table: RouteTable::new(routes, file.max_request_bytes), variables, summary })
}

fn key(spec: &mut RouteSpec, environment: &Environment) -> anyhow::Result<Option<Secret>> {
    match std::mem::replace(&mut spec.key, KeySource::None) {
        KeySource::None => Ok(None),
        KeySource::Value(secret) => Ok(Some(secret)),
        KeySource::File(path) => secret_file::read(&path, true).map(Some),
        KeySource::Variable(name) => {
            let value = environment.get(&name).ok_or_else(|| anyhow!("environment variable {name} is not set"))?;
            secret_file::checked(Secret::new(value.as_bytes().to_vec())).map(Some)
        }
    }
}
