//! Credentials with their secrets, from the credentials file and from the caller's variables.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, anyhow, bail};
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::credential::{
    Binding, CredentialName, CredentialSpec, SHORT_SECRET_BYTES, Source as SecretSource,
};
use openshell_policy::secret::Secret;
use openshell_policy::violation::WarningKind;
use openshell_policy::yaml;
use openshell_supervisor::command::environment::{self, Environment};
use openshell_supervisor::files::protected::Protection;
use openshell_telemetry::logging;

use crate::input::Phase;
use crate::secrets::environment_secrets::EnvironmentSecrets;
use crate::secrets::secret_file;

/// The content of a credentials file, without the secrets that are stored elsewhere.
#[derive(Debug, Default)]
pub struct ParsedCredentials {
    /// The credentials.
    pub specs: Vec<CredentialSpec>,
    /// What an operator may want to change.
    pub warnings: Vec<String>,
}

/// The sources of credentials that a reload reads again.
#[derive(Debug)]
pub struct CredentialSources {
    file: Option<CredentialFile>,
    /// The secrets from the caller's variables.
    environment: Option<EnvironmentSecrets>,
}

/// A credentials file that can be read again.
#[derive(Debug)]
struct CredentialFile {
    path: PathBuf,
    /// Values of the variables that the file named at the start; the environment lacks them later.
    variables: BTreeMap<String, Secret>,
}

/// The sources of credentials, with the file's content at the start.
#[derive(Debug)]
pub struct OpenedCredentials {
    sources: CredentialSources,
    parsed: ParsedCredentials,
}

/// A credential with its secret.
#[derive(Debug)]
pub struct Held {
    /// The name in placeholders and messages.
    pub name: CredentialName,
    /// The secret.
    pub secret: Secret,
    /// The hosts, ports and paths that the secret may be sent to.
    pub binding: Binding,
    /// When the credential expires, if it does.
    pub expires: Option<SystemTime>,
    /// Other names in placeholders.
    pub aliases: Vec<String>,
}

/// Credentials with their secrets.
#[derive(Debug)]
pub struct CredentialSet {
    /// The credentials.
    pub held: Vec<Held>,
    /// Variables of commands: placeholders, and values that are not secret.
    pub variables: Vec<(String, String)>,
    /// What an operator is told about the credentials.
    pub report: CredentialReport,
}

/// The log lines about credentials.
#[derive(Clone, Debug)]
pub struct CredentialReport {
    pub(crate) warnings: Vec<String>,
    pub(crate) summary: String,
}

impl Held {
    /// Returns a credential that does not expire, under one name.
    fn new(name: CredentialName, secret: Secret, binding: Binding) -> Self {
        Self {
            name,
            secret,
            binding,
            expires: None,
            aliases: Vec::new(),
        }
    }
}

impl OpenedCredentials {
    /// Parses the file at `path`, if there is one, and takes the variables that it names out of
    /// `environment`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is invalid, with every violation.
    pub fn open(path: Option<PathBuf>, environment: &mut Environment) -> anyhow::Result<Self> {
        let parsed = path
            .as_ref()
            .map(|path| parse(path, Phase::Start))
            .transpose()?
            .unwrap_or_default();
        let named = parsed.specs.iter().filter_map(|spec| match &spec.source {
            SecretSource::Variable(name) => Some(name),
            SecretSource::File(_) | SecretSource::Value(_) => None,
        });
        let mut variables = BTreeMap::new();
        for name in named {
            variables.extend(
                environment
                    .take(name)
                    .map(|value| (name.clone(), Secret::new(value.into_vec()))),
            );
        }
        let file = path.map(|path| CredentialFile { path, variables });
        Ok(Self {
            sources: CredentialSources {
                file,
                environment: None,
            },
            parsed,
        })
    }

    /// Also takes all variables that look like secrets out of `environment`; base URLs are looked
    /// up in `urls`. A credential of the file wins over one of the same name.
    pub fn take_secrets(&mut self, environment: &mut Environment, urls: &Environment) {
        let of_file =
            |name: &CredentialName| self.parsed.specs.iter().any(|spec| spec.name == *name);
        self.sources.environment =
            Some(EnvironmentSecrets::take(environment, urls).without(of_file));
    }

    /// Returns true if the command gets a placeholder as the variable `name`.
    pub fn has(&self, name: &str) -> bool {
        let of_file = self.parsed.specs.iter().map(|spec| &spec.name);
        let taken = self
            .sources
            .environment
            .iter()
            .flat_map(|taken| &taken.secrets)
            .map(|secret| &secret.name);
        of_file.chain(taken).any(|known| known.as_str() == name)
    }

    /// Returns the files that hold secrets.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.parsed.files()
    }

    /// Looks up the secrets.
    ///
    /// # Errors
    /// Fails if a secret is missing or invalid.
    pub fn resolve(self) -> anyhow::Result<(CredentialSources, CredentialSet)> {
        let credentials = self.sources.resolve(self.parsed, Phase::Start)?;
        Ok((self.sources, credentials))
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

impl CredentialSources {
    /// Reads the file again, if there is one, and looks up the secrets.
    ///
    /// # Errors
    /// Fails if the file cannot be read or is invalid, with every violation; or if a secret is
    /// missing or invalid, or in a file that the workload can read.
    pub fn reload(&self, protection: &Protection) -> anyhow::Result<CredentialSet> {
        let parsed = self
            .file
            .as_ref()
            .map(|file| file.parse_again(protection))
            .transpose()?
            .unwrap_or_default();
        self.resolve(parsed, Phase::Reload)
    }

    fn resolve(&self, parsed: ParsedCredentials, phase: Phase) -> anyhow::Result<CredentialSet> {
        let ParsedCredentials {
            specs,
            mut warnings,
        } = parsed;
        let mut credentials = Vec::new();
        let mut summaries = Vec::new();
        if let Some(file) = &self.file {
            credentials = file.resolve(specs, &mut warnings, phase)?;
            summaries.push(format!(
                "{}: {} credentials",
                file.path.display(),
                credentials.len()
            ));
        }
        if let Some(environment) = &self.environment {
            for own in &environment.secrets {
                if credentials.iter().all(|held| held.name != own.name) {
                    let secret = Secret::new(own.secret.expose().to_vec());
                    credentials.push(Held::new(own.name.clone(), secret, own.binding()));
                }
            }
            warnings.extend(environment.warnings());
            summaries.push(environment.summary());
        }
        let variables = credentials
            .iter()
            .map(|held| (held.name.to_string(), held.name.placeholder()))
            .collect();
        let report = CredentialReport {
            warnings,
            summary: summaries.join("; "),
        };
        Ok(CredentialSet {
            held: credentials,
            variables,
            report,
        })
    }
}

impl CredentialFile {
    fn parse_again(&self, protection: &Protection) -> anyhow::Result<ParsedCredentials> {
        let parsed = parse(&self.path, Phase::Reload)?;
        if let Some(file) = parsed.files().find(|file| !protection.hides(file)) {
            let own = self.path.display();
            let file = file.display();
            bail!(
                "{own} names {file}, which the policy lets the workload read; move it, or start \
                 again"
            );
        }
        Ok(parsed)
    }

    fn resolve(
        &self,
        specs: Vec<CredentialSpec>,
        warnings: &mut Vec<String>,
        phase: Phase,
    ) -> anyhow::Result<Vec<Held>> {
        let mut credentials = Vec::new();
        let mut errors = Vec::new();
        for CredentialSpec {
            name,
            source,
            binding,
        } in specs
        {
            let is_elsewhere = !matches!(source, SecretSource::Value(_));
            match self.secret(source, phase) {
                Ok(secret) => {
                    if is_elsewhere && secret.expose().len() < SHORT_SECRET_BYTES {
                        let short = WarningKind::SecretShort;
                        warnings.push(format!(
                            "{}: credentials.{name}: {short}",
                            self.path.display()
                        ));
                    }
                    credentials.push(Held::new(name, secret, binding));
                }
                Err(error) => errors.push(format!("credentials.{name}: {error:#}")),
            }
        }
        if errors.is_empty() {
            return Ok(credentials);
        }
        bail!("{}: {}", self.path.display(), errors.join("\n  "))
    }

    fn secret(&self, source: SecretSource, phase: Phase) -> anyhow::Result<Secret> {
        let secret = match source {
            SecretSource::Value(secret) => return Ok(secret),
            SecretSource::Variable(name) => match self.variables.get(&name) {
                Some(secret) => Secret::new(secret.expose().to_vec()),
                None if phase == Phase::Start => bail!("the variable {name} is not set"),
                None => bail!(
                    "the variable {name} was not named at the start, and the environment is read \
                     only then; start the sandbox again"
                ),
            },
            SecretSource::File(path) => return secret_file::read(&path, phase),
        };
        secret_file::checked(secret)
    }
}

impl CredentialReport {
    /// Logs the warnings, and finally that the credentials are in force.
    pub fn log(&self, event: &str) {
        for warning in &self.warnings {
            logging::config_event(
                ConfigState::Validated,
                Severity::Medium,
                &format!("credentials warning: {warning}"),
            );
        }
        logging::config_event(
            ConfigState::Loaded,
            Severity::Info,
            &format!("{event} from {}", self.summary),
        );
    }
}

/// Parses the credentials file at `path`.
///
/// # Errors
/// Fails if the file cannot be read or is invalid, with every violation; or if it holds secrets and
/// others may read it.
pub fn parse(path: &Path, phase: Phase) -> anyhow::Result<ParsedCredentials> {
    let failed = || format!("failed to read credentials from {}", path.display());
    let (text, is_private) =
        secret_file::open(path, yaml::MAX_DOCUMENT_BYTES, phase).with_context(failed)?;
    let text = std::str::from_utf8(text.expose())
        .map_err(|_| anyhow!("it is not UTF-8"))
        .with_context(failed)?;
    let (specs, warnings) =
        yaml::credentials(text, environment::is_reserved).map_err(|violations| {
            let lines: Vec<_> = violations
                .0
                .iter()
                .map(|violation| format!("\n  {violation}"))
                .collect();
            anyhow!("{}: invalid credentials:{}", path.display(), lines.concat())
        })?;
    let holds_secrets = specs
        .iter()
        .any(|spec| matches!(spec.source, SecretSource::Value(_)));
    if holds_secrets && !is_private {
        return Err(anyhow!(secret_file::PUBLIC)).with_context(failed);
    }
    let warnings = warnings
        .iter()
        .map(|warning| format!("{}: {warning}", path.display()))
        .collect();
    Ok(ParsedCredentials { specs, warnings })
}
