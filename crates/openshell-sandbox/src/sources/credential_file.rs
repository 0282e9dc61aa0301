//! From the credentials file to a vault, with what there is to say about it.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::credential::{CredentialName, CredentialSpec, SHORT_SECRET_BYTES, Source as SecretSource};
use openshell_policy::secret::Secret;
use openshell_policy::violation::Doubt;
use openshell_policy::yaml;
use openshell_proxy::credentials::vault::Vault;
use openshell_supervisor::environment::{self, Environment};

use crate::logging;
use crate::sources::secret_file;

/// What a credentials file says, and what is doubtful about that.
pub(crate) type Said = (Vec<CredentialSpec>, Vec<String>);

/// Where credentials come from.
#[derive(Debug)]
pub(crate) struct Source {
    file: PathBuf,
    /// What the file named of the environment at the start; later there is none.
    variables: BTreeMap<String, Secret>,
}

/// Credentials, and what is doubtful about them.
pub(crate) struct Loaded {
    pub(crate) vault: Vault,
    pub(crate) names: Vec<CredentialName>,
    doubts: Vec<String>,
    summary: String,
}

impl Source {
    /// Of `file`, with what it says; the variables that it names are taken out of `environment`.
    ///
    /// # Errors
    /// The file cannot be read, or is no credentials file: every violation with its line.
    pub(crate) fn new(file: PathBuf, environment: &mut Environment) -> anyhow::Result<(Self, Said)> {
        let said = read_file(&file, true)?;
        let named = said.0.iter().filter_map(|spec| match &spec.source {
            SecretSource::Variable(name) => Some(name),
            SecretSource::File(_) | SecretSource::Value(_) => None,
        });
        let mut variables = BTreeMap::new();
        for name in named {
            variables.extend(environment.take(name).map(|value| (name.clone(), Secret::new(value.into_vec()))));
        }
        Ok((Self { file, variables }, said))
    }

    /// Reads it again.
    ///
    /// # Errors
    /// As [`Self::new`] and [`Self::load`].
    pub(crate) fn reload(&self) -> anyhow::Result<Loaded> {
        self.load_as(read_file(&self.file, false)?, false)
    }

    /// Looks up the secrets of what the file `said` at the start.
    ///
    /// # Errors
    /// A secret is missing, or cannot be one.
    pub(crate) fn load(&self, said: Said) -> anyhow::Result<Loaded> {
        self.load_as(said, true)
    }

    fn load_as(&self, (specs, mut doubts): Said, is_start: bool) -> anyhow::Result<Loaded> {
        let (mut credentials, mut faults, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for CredentialSpec { name, source, binding } in specs {
            let is_elsewhere = !matches!(source, SecretSource::Value(_));
            match self.secret(source, is_start) {
                Ok(secret) => {
                    if is_elsewhere && secret.expose().len() < SHORT_SECRET_BYTES {
                        doubts.push(format!("{}: credentials.{name}: {}", self.file.display(), Doubt::SecretShort));
                    }
                    names.push(name.clone());
                    credentials.push((name, secret, binding));
                }
                Err(error) => faults.push(format!("credentials.{name}: {error:#}")),
            }
        }
        if !faults.is_empty() {
            bail!("{}: {}", self.file.display(), faults.join("\n  "));
        }
        let summary = format!("{}: {} credentials", self.file.display(), credentials.len());
        let vault = Vault::new(credentials);
        Ok(Loaded { vault, names, doubts, summary })
    }

    fn secret(&self, source: SecretSource, is_start: bool) -> anyhow::Result<Secret> {
        let secret = match source {
            SecretSource::Value(secret) => return Ok(secret),
            SecretSource::Variable(name) => match self.variables.get(&name) {
                Some(secret) => Secret::new(secret.expose().to_vec()),
                None if is_start => bail!("the variable {name} is not set"),
                None => bail!("the variable {name} was not named at the start, and the environment is read only then"),
            },
            SecretSource::File(path) => return secret_file::read(&path, is_start),
        };
        secret_file::checked(secret)
    }
}

impl Loaded {
    /// Puts them in force by `take`, and says what is to be said about them, that they were loaded last.
    pub(crate) fn taken(self, how: &str, take: impl FnOnce(Vault)) {
        take(self.vault);
        for doubt in &self.doubts {
            logging::config_event("VALIDATED", "MED", &format!("credentials warning: {doubt}"));
        }
        logging::config_event("LOADED", "INFO", &format!("{how} from {}", self.summary));
    }
}

/// What `path` says, and what is doubtful about that.
///
/// # Errors
/// The file cannot be read, or is no credentials file; or it holds secrets, and others may read it.
pub(crate) fn read_file(path: &Path, is_start: bool) -> anyhow::Result<Said> {
    let failed = || format!("failed to read credentials from {}", path.display());
    let (text, is_private) = secret_file::open(path, yaml::MAX_DOCUMENT_BYTES, is_start).with_context(failed)?;
    let text = std::str::from_utf8(text.expose()).map_err(|_| anyhow!("it is not UTF-8")).with_context(failed)?;
    let (specs, warnings) = yaml::credentials(text, environment::is_sandboxs).map_err(|violations| {
        let lines: Vec<_> = violations.0.iter().map(|violation| format!("\n  {violation}")).collect();
        anyhow!("{}: invalid credentials:{}", path.display(), lines.concat())
    })?;
    let holds_secrets = specs.iter().any(|spec| matches!(spec.source, SecretSource::Value(_)));
    if holds_secrets && !is_private {
        return Err(anyhow!(secret_file::PUBLIC)).with_context(failed);
    }
    let doubts = warnings.iter().map(|warning| format!("{}: {warning}", path.display())).collect();
    Ok((specs, doubts))
}
