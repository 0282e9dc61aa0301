//! Variables of the caller that look like secrets, and credentials made of them.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use openshell_policy::credential::{Binding, BoundHost, CredentialName, check_secret};
use openshell_policy::inference::Backend;
use openshell_policy::issuers::{Issuer, Issuers};
use openshell_policy::secret::Secret;
use openshell_supervisor::environment::{self, Environment};

/// Ends of names under which secrets are kept.
const NAMES: &[&str] = &["_KEY", "_TOKEN", "_SECRET", "_PASSWORD"];

/// A secret of the environment with the hosts that it is for, of which there may be none.
#[derive(Debug)]
pub(crate) struct EnvironmentSecret {
    pub(super) name: CredentialName,
    pub(super) secret: Secret,
    hosts: Vec<String>,
}

/// The secrets that were taken out of an environment.
#[derive(Debug, Default)]
pub(crate) struct EnvironmentSecrets {
    pub(super) secrets: Vec<EnvironmentSecret>,
    /// Variables that cannot be credentials, each with the reason; the command does not get them.
    kept_out: Vec<String>,
}

/// Returns the names of variables that look like secrets: by the end of the name, or by their value.
pub(crate) fn names(variables: &Environment) -> Vec<String> {
    names_by(&Issuers::known(), variables)
}

fn names_by(issuers: &Issuers, variables: &Environment) -> Vec<String> {
    let is_secret = |name: &str, value: &OsStr| {
        let is_named = NAMES.iter().any(|end| name.ends_with(end));
        !value.is_empty() && (is_named || issuers.of(name, value.as_bytes()).is_some())
    };
    let named = variables.iter().filter_map(|(name, value)| Some((name.to_str()?, value)));
    let found = named.filter(|(name, value)| is_secret(name, value) && !environment::is_reserved(name));
    found.map(|(name, _)| name.to_owned()).collect()
}

impl EnvironmentSecrets {
    /// Takes all variables that look like secrets out of `environment`.
    pub(crate) fn take(environment: &mut Environment) -> Self {
        let issuers = Issuers::known();
        let mut taken = Self::default();
        for name in names_by(&issuers, environment) {
            let Some(value) = environment.take(&name) else { continue };
            let secret = Secret::new(value.into_vec());
            let hosts = issuers.of(&name, secret.expose()).map(|issuer| hosts(issuer, environment)).unwrap_or_default();
            match CredentialName::parse(&name).and_then(|name| check_secret(secret.expose()).map(|()| name)) {
                Ok(name) => taken.secrets.push(EnvironmentSecret { name, secret, hosts }),
                Err(fault) => {
                    taken.kept_out.push(format!("{name} is kept out of the command, without a placeholder: {fault}"))
                }
            }
        }
        taken
    }

    /// Returns one line that names every credential and its hosts.
    pub(super) fn summary(&self) -> String {
        let lines = self.secrets.iter().map(|secret| match secret.hosts.as_slice() {
            [] => format!("{} (no host)", secret.name),
            hosts => format!("{} ({})", secret.name, hosts.join(", ")),
        });
        let lines: Vec<_> = lines.collect();
        format!("--secrets-from-env: {}", if lines.is_empty() { "no secrets".to_owned() } else { lines.join(", ") })
    }

    /// Returns lines about variables that the command has not, or that are of no use to it.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let unbound = self.secrets.iter().filter(|secret| secret.hosts.is_empty()).map(|secret| secret.name.as_str());
        let unbound: Vec<_> = unbound.collect();
        let line = format!(
            "{}: no hosts are known, so the placeholder is refused everywhere; name the hosts in a file of --credentials",
            unbound.join(", ")
        );
        Some(line).filter(|_| !unbound.is_empty()).into_iter().chain(self.kept_out.iter().cloned())
    }
}

impl EnvironmentSecret {
    /// The hosts that it may be sent to, and no others.
    pub(super) fn binding(&self) -> Binding {
        Binding { hosts: Some(self.hosts.iter().filter_map(|host| BoundHost::parse(host).ok()).collect()), path: None }
    }
}

/// Returns the hosts of an issuer's secret: those of the URL that `environment` has for it, else the issuer's own.
fn hosts(issuer: &Issuer, environment: &Environment) -> Vec<String> {
    let url = issuer.urls.iter().find_map(|name| environment.get(name).filter(|url| !url.is_empty()));
    match url {
        Some(url) => url.to_str().and_then(host_of).into_iter().collect(),
        None => issuer.hosts.clone(),
    }
}

/// Returns host and port of a URL, if the text is one.
fn host_of(url: &str) -> Option<String> {
    match Backend::parse(url.trim()) {
        Ok(Backend::Server { host, port, .. }) => Some(format!("{host}:{port}")),
        Ok(Backend::Mock) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use openshell_policy::network::host::Host;
    use openshell_supervisor::environment::Environment;

    use super::EnvironmentSecrets;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    #[test]
    fn secrets_are_bound_to_their_issuers_hosts_and_others_to_none() {
        let mut given = environment(&[
            ("GITHUB_TOKEN", "0123456789"),
            ("MINE", "sk-ant-0123456789012345678901234567890123456789"),
            ("DEPLOY_PASSWORD", "hunter22"),
            ("OPENAI_API_KEY", "sk-0123456789012345678901234567890123456789"),
            ("OPENAI_BASE_URL", "http://models.test:8000/v1"),
            ("SIGNING_KEY", "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n"),
            ("EMPTY_TOKEN", ""),
            ("EDITOR", "vi"),
        ]);
        let taken = EnvironmentSecrets::take(&mut given);
        let left: Vec<_> = given.iter().map(|(name, _)| name.to_str().unwrap()).collect();
        assert_eq!(left.len(), 3, "{left:?}");
        let goes = |name: &str, host: &str, port| {
            let secret = taken.secrets.iter().find(|secret| secret.name.as_str() == name).unwrap();
            secret.binding().includes(&Host::parse(host).unwrap(), port)
        };
        assert!(goes("GITHUB_TOKEN", "api.github.com", 443) && !goes("GITHUB_TOKEN", "api.github.com", 80));
        assert!(goes("MINE", "api.anthropic.com", 443) && !goes("MINE", "api.openai.com", 443));
        assert!(goes("OPENAI_API_KEY", "models.test", 8000) && !goes("OPENAI_API_KEY", "api.openai.com", 443));
        assert!(!goes("DEPLOY_PASSWORD", "api.github.com", 443));
        let warnings: Vec<_> = taken.warnings().collect();
        assert!(warnings[0].starts_with("DEPLOY_PASSWORD: no hosts are known"), "{warnings:?}");
        assert!(warnings[1].starts_with("SIGNING_KEY is kept out") && !warnings[1].contains("MIIE"), "{warnings:?}");
        assert!(taken.summary().contains("GITHUB_TOKEN (api.github.com, github.com"), "{}", taken.summary());
    }
}
