//! The credentials file: credentials with their secrets.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use openshell_policy::credential::{CredentialSpec, SHORT_SECRET_BYTES, Source as SecretSource};
use openshell_policy::secret::Secret;
use openshell_policy::violation::WarningKind;
use openshell_policy::words::{ConfigState, Severity};
use openshell_policy::yaml;
use openshell_proxy::credentials::vault::Vault;
use openshell_supervisor::environment::{self, Environment};
use openshell_supervisor::protected::Protection;

use crate::logging;
use crate::sources::input::Phase;
use crate::sources::secret_file;

/// The content of a credentials file, without the secrets that are elsewhere.
#[derive(Debug)]
pub(crate) struct ParsedCredentials {
    pub(crate) specs: Vec<CredentialSpec>,
    pub(crate) warnings: Vec<String>,
}

/// A credentials file that can be read again.
#[derive(Debug)]
pub(crate) struct CredentialFile {
    path: PathBuf,
    /// Values of the variables that the file named at the start; the environment is gone later.
    variables: BTreeMap<String, Secret>,
}

/// A credentials file with its content at the start.
#[derive(Debug)]
pub(crate) struct OpenedCredentials {
    file: CredentialFile,
    parsed: ParsedCredentials,
}

/// Credentials with their secrets.
pub(crate) struct CredentialSet {
    pub(crate) vault: Vault,
    /// Variables of commands: placeholders, and values that are no secrets.
    pub(crate) variables: Vec<(String, String)>,
    pub(crate) report: CredentialReport,
}

/// The log lines about credentials.
pub(crate) struct CredentialReport {
    pub(super) warnings: Vec<String>,
    pub(super) summary: String,
}

impl OpenedCredentials {
    /// Parses the file at `path`, and takes the variables that it names out of `environment`.
    ///
    /// # Errors
    /// The file cannot be read or is invalid, with every violation.
    pub(crate) fn open(path: PathBuf, environment: &mut Environment) -> anyhow::Result<Self> {
        let parsed = parse(&path, Phase::Start)?;
        let named = parsed.specs.iter().filter_map(|spec| match &spec.source {
            SecretSource::Variable(name) => Some(name),
            SecretSource::File(_) | SecretSource::Value(_) => None,
        });
        let mut variables = BTreeMap::new();
        for name in named {
            variables.extend(environment.take(name).map(|value| (name.clone(), Secret::new(value.into_vec()))));
        }
        Ok(Self { file: CredentialFile { path, variables }, parsed })
    }

    /// Returns the files that hold secrets.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.parsed.files()
    }

    /// Looks up the secrets.
    ///
    /// # Errors
    /// A secret is missing or invalid.
    pub(crate) fn resolve(self) -> anyhow::Result<(CredentialFile, CredentialSet)> {
        let credentials = self.file.resolve(self.parsed, Phase::Start)?;
        Ok((self.file, credentials))
    }
}

impl ParsedCredentials {
    fn files(&self) -> impl Iterator<Item = &Path> {
        self.specs.iter().filter_map(|spec| match &spec.source {
            SecretSource::File(path) => Some(path.as_path()),
            SecretSource::Variable(_) | SecretSource::Value(_) => None,
        })
    }
}

impl CredentialFile {
    /// Reads the file again, and looks up the secrets.
    ///
    /// # Errors
    /// The file cannot be read or is invalid, with every violation; a secret is missing or invalid, or in a file that the
    /// workload can read.
    pub(crate) fn reload(&self, protection: &Protection) -> anyhow::Result<CredentialSet> {
        let parsed = parse(&self.path, Phase::Reload)?;
        if let Some(file) = parsed.files().find(|file| !protection.hides(file)) {
            let (own, file) = (self.path.display(), file.display());
            bail!("{own} names {file}, which the policy lets the workload read; move it, or start again");
        }
        self.resolve(parsed, Phase::Reload)
    }

    fn resolve(&self, parsed: ParsedCredentials, phase: Phase) -> anyhow::Result<CredentialSet> {
        let ParsedCredentials { specs, mut warnings } = parsed;
        let (mut credentials, mut errors, mut variables) = (Vec::new(), Vec::new(), Vec::new());
        for CredentialSpec { name, source, binding } in specs {
            let is_elsewhere = !matches!(source, SecretSource::Value(_));
            match self.secret(source, phase) {
                Ok(secret) => {
                    if is_elsewhere && secret.expose().len() < SHORT_SECRET_BYTES {
                        warnings.push(format!(
                            "{}: credentials.{name}: {}",
                            self.path.display(),
                            WarningKind::SecretShort
                        ));
                    }
                    variables.push((name.to_string(), name.placeholder()));
                    credentials.push((name, secret, binding));
                }
                Err(error) => errors.push(format!("credentials.{name}: {error:#}")),
            }
        }
        if !errors.is_empty() {
            bail!("{}: {}", self.path.display(), errors.join("\n  "));
        }
        let summary = format!("{}: {} credentials", self.path.display(), credentials.len());
        let vault = Vault::new(credentials);
        Ok(CredentialSet { vault, variables, report: CredentialReport { warnings, summary } })
    }

    fn secret(&self, source: SecretSource, phase: Phase) -> anyhow::Result<Secret> {
        let secret = match source {
            SecretSource::Value(secret) => return Ok(secret),
            SecretSource::Variable(name) => match self.variables.get(&name) {
                Some(secret) => Secret::new(secret.expose().to_vec()),
                None if phase == Phase::Start => bail!("the variable {name} is not set"),
                None => bail!("the variable {name} was not named at the start, and the environment is read only then"),
            },
            SecretSource::File(path) => return secret_file::read(&path, phase),
        };
        secret_file::checked(secret)
    }
}

impl CredentialReport {
    /// Logs the warnings, and last that the credentials are in force.
    pub(crate) fn log(&self, event: &str) {
        for warning in &self.warnings {
            logging::config_event(ConfigState::Validated, Severity::Medium, &format!("credentials warning: {warning}"));
        }
        logging::config_event(ConfigState::Loaded, Severity::Info, &format!("{event} from {}", self.summary));
    }
}

/// Parses the credentials file at `path`.
///
/// # Errors
/// The file cannot be read or is invalid, with every violation; or it holds secrets, and others may read it.
pub(crate) fn parse(path: &Path, phase: Phase) -> anyhow::Result<ParsedCredentials> {
    let failed = || format!("failed to read credentials from {}", path.display());
    let (text, is_private) = secret_file::open(path, yaml::MAX_DOCUMENT_BYTES, phase).with_context(failed)?;
    let text = std::str::from_utf8(text.expose()).map_err(|_| anyhow!("it is not UTF-8")).with_context(failed)?;
    let (specs, warnings) = yaml::credentials(text, environment::is_reserved).map_err(|violations| {
        let lines: Vec<_> = violations.0.iter().map(|violation| format!("\n  {violation}")).collect();
        anyhow!("{}: invalid credentials:{}", path.display(), lines.concat())
    })?;
    let holds_secrets = specs.iter().any(|spec| matches!(spec.source, SecretSource::Value(_)));
    if holds_secrets && !is_private {
        return Err(anyhow!(secret_file::PUBLIC)).with_context(failed);
    }
    let warnings = warnings.iter().map(|warning| format!("{}: {warning}", path.display())).collect();
    Ok(ParsedCredentials { specs, warnings })
}
