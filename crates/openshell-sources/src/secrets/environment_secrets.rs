//! Variables of the caller that look like secrets, and the credentials made from them.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use openshell_policy::credential::{
    Binding, BoundHost, CredentialName, SHORT_SECRET_BYTES, check_secret,
};
use openshell_policy::inference::Backend;
use openshell_policy::issuers::{Issuer, Issuers};
use openshell_policy::network::host::Host;
use openshell_policy::secret::Secret;
use openshell_policy::violation::WarningKind;
use openshell_supervisor::command::environment::{self, Environment};

/// Words at the end of names of variables that hold secrets.
const WORDS: &[&[u8]] = &[
    b"APIKEY",
    b"AUTHTOKEN",
    b"CREDENTIALS",
    b"KEY",
    b"PASS",
    b"PASSPHRASE",
    b"PASSWD",
    b"PASSWORD",
    b"PGPASSWORD",
    b"SECRET",
    b"SSHPASS",
    b"TOKEN",
];

/// The most names of secrets in one line.
const NAMED: usize = 10;

/// A secret of the environment, and the hosts that it is for; there may be none.
#[derive(Debug)]
pub struct EnvironmentSecret {
    pub(super) name: CredentialName,
    pub(super) secret: Secret,
    /// The hosts, each as written and parsed.
    hosts: Vec<(String, BoundHost)>,
}

/// The secrets that were taken out of an environment.
#[derive(Debug, Default)]
pub struct EnvironmentSecrets {
    pub(super) secrets: Vec<EnvironmentSecret>,
    /// Variables that cannot be credentials, each with the reason. The command does not get them.
    kept_out: Vec<String>,
}

/// Returns a list of the variables that look like secrets, by their names or their values; empty if
/// there are none.
pub fn listed(variables: &Environment) -> String {
    let names = names(&Issuers::known(), variables);
    in_words(
        &names
            .iter()
            .map(|name| name.display().to_string())
            .collect::<Vec<_>>(),
    )
}

fn in_words(names: &[String]) -> String {
    let shown = names.get(..NAMED).unwrap_or(names).join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn names(issuers: &Issuers, variables: &Environment) -> Vec<OsString> {
    let is_secret = |name: &OsStr, value: &OsStr| {
        let known = name.to_str().unwrap_or_default();
        let value = value.as_bytes();
        !value.trim_ascii().is_empty()
            && !environment::is_reserved(known)
            && (is_named(name.as_bytes())
                || has_password(value)
                || issuers.of(known, value).is_some())
    };
    variables
        .iter()
        .filter(|(name, value)| is_secret(name, value))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Returns true if the last word of a name, ignoring a number after it, is a word for secrets.
fn is_named(name: &[u8]) -> bool {
    let mut words = name.split(|byte| *byte == b'_' || *byte == b'-').rev();
    let is_number = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    let word = words.find(|word| !is_number(word)).unwrap_or_default();
    let has_more = words.next().is_some();
    WORDS.iter().any(|known| known.eq_ignore_ascii_case(word))
        || has_more && word.eq_ignore_ascii_case(b"PWD")
}

/// Returns true for a URL with a password (RFC 3986 §3.2.1).
fn has_password(value: &[u8]) -> bool {
    let begin = value
        .windows(3)
        .position(|part| part == b"://")
        .and_then(|at| value.get(at + 3..))
        .unwrap_or_default();
    let authority = begin
        .split(|byte| matches!(byte, b'/' | b'?' | b'#'))
        .next()
        .unwrap_or_default();
    let user = authority
        .iter()
        .rposition(|byte| *byte == b'@')
        .and_then(|at| authority.get(..at))
        .unwrap_or_default();
    user.iter()
        .position(|byte| *byte == b':')
        .is_some_and(|colon| colon + 1 < user.len())
}

impl EnvironmentSecrets {
    /// Takes all variables that look like secrets out of `environment`, and those whose values
    /// contain such a secret. `urls` are the variables that the command gets; base URLs are looked
    /// up in them.
    pub fn take(environment: &mut Environment, urls: &Environment) -> Self {
        let issuers = Issuers::known();
        let mut taken = Self::default();
        for name in names(&issuers, environment) {
            let Some((name, value)) = name
                .to_str()
                .and_then(|name| Some((name, environment.take(name)?)))
            else {
                environment.discard(&name);
                taken.kept_out.push(format!(
                    "the command does not get {}: its name is not UTF-8",
                    name.display()
                ));
                continue;
            };
            let secret = Secret::new(value.into_vec());
            let issuer = issuers.of(name, secret.expose());
            let hosts = issuer
                .map(|issuer| hosts(issuer, issuers.named(name), urls))
                .unwrap_or_default();
            match CredentialName::parse(name)
                .and_then(|name| check_secret(secret.expose()).map(|()| name))
            {
                Ok(name) => taken.secrets.push(EnvironmentSecret {
                    name,
                    secret,
                    hosts,
                }),
                Err(fault) => {
                    taken.kept_out.push(format!(
                        "the command gets neither {name} nor a placeholder for it: {fault}"
                    ));
                }
            }
        }
        for name in taken.holders(environment) {
            environment.discard(&name);
            taken.kept_out.push(format!(
                "the command does not get {}: it holds a secret of another variable",
                name.display()
            ));
        }
        taken
    }

    /// Returns the variables whose values hold one of the secrets.
    fn holders(&self, environment: &Environment) -> Vec<OsString> {
        let holds = |value: &[u8]| {
            let secrets = self.secrets.iter().map(|taken| taken.secret.expose());
            let mut long = secrets.filter(|secret| secret.len() >= SHORT_SECRET_BYTES);
            long.any(|secret| value.windows(secret.len()).any(|part| part == secret))
        };
        let holders = environment
            .iter()
            .filter(|(_, value)| holds(value.as_bytes()));
        holders.map(|(name, _)| name.to_owned()).collect()
    }

    /// Drops the secrets whose names are known elsewhere, as `is_known` says.
    pub(super) fn without(mut self, is_known: impl Fn(&CredentialName) -> bool) -> Self {
        self.secrets.retain(|secret| !is_known(&secret.name));
        self
    }

    /// Returns one line that names every credential and its hosts.
    pub(super) fn summary(&self) -> String {
        let lines = self
            .secrets
            .iter()
            .map(|secret| match secret.hosts.as_slice() {
                [] => format!("{} (no host)", secret.name),
                hosts => {
                    let hosts: Vec<_> = hosts.iter().map(|(host, _)| host.as_str()).collect();
                    format!("{} ({})", secret.name, hosts.join(", "))
                }
            });
        let lines: Vec<_> = lines.collect();
        format!(
            "--secrets-from-env: {}",
            if lines.is_empty() {
                "no secrets".to_owned()
            } else {
                lines.join(", ")
            }
        )
    }

    /// Returns warnings about secrets that go nowhere or are short, and about variables that the
    /// command does not get.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let named = |is_meant: &dyn Fn(&EnvironmentSecret) -> bool| {
            let meant = self.secrets.iter().filter(|secret| is_meant(secret));
            in_words(
                &meant
                    .map(|secret| secret.name.to_string())
                    .collect::<Vec<_>>(),
            )
        };
        let unbound = named(&|secret| secret.hosts.is_empty());
        let short = named(&|secret| {
            !secret.hosts.is_empty() && secret.secret.expose().len() < SHORT_SECRET_BYTES
        });
        let lines = [
            (
                unbound,
                "no hosts are known, so the proxy refuses the placeholder everywhere; name the \
                 hosts in a --credentials file"
                    .to_owned(),
            ),
            (short, WarningKind::SecretShort.to_string()),
        ];
        let lines = lines.into_iter().filter(|(names, _)| !names.is_empty());
        lines
            .map(|(names, line)| format!("{names}: {line}"))
            .chain(self.kept_out.iter().take(NAMED).cloned())
    }
}

impl EnvironmentSecret {
    /// Returns a binding to the secret's hosts and no others.
    pub(super) fn binding(&self) -> Binding {
        Binding {
            hosts: Some(self.hosts.iter().map(|(_, host)| host.clone()).collect()),
            path: None,
        }
    }
}

/// Returns the hosts of a secret of `issuer`, each also as written. If `urls` has a URL for the
/// issuer that the variable is `named` after, or else for `issuer`, they are the hosts of that URL.
/// Otherwise they are the issuer's own. An invalid URL leads nowhere.
fn hosts(issuer: &Issuer, named: Option<&Issuer>, urls: &Environment) -> Vec<(String, BoundHost)> {
    let mut of_url = named
        .unwrap_or(issuer)
        .urls
        .iter()
        .filter_map(|name| urls.get(name));
    let url = of_url.find(|url| !url.is_empty());
    let written = match url.map(|url| url.to_str().map(|url| Backend::parse(url.trim()))) {
        None => issuer.hosts.clone(),
        Some(Some(Ok(Backend::Server {
            is_tls, host, port, ..
        }))) => {
            let scheme = if is_tls { "" } else { "http://" };
            vec![match host {
                Host::Address(IpAddr::V6(host)) => format!("{scheme}[{host}]:{port}"),
                host => format!("{scheme}{host}:{port}"),
            }]
        }
        Some(_) => Vec::new(),
    };
    written
        .into_iter()
        .filter_map(|host| BoundHost::parse(&host).ok().map(|bound| (host, bound)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    use openshell_policy::network::host::Host;
    use openshell_supervisor::command::environment::Environment;

    use super::{EnvironmentSecrets, Issuers, names};

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(
            variables
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into())),
        )
    }

    #[test]
    fn names_and_values_tell_secrets_from_others() {
        let issuers = Issuers::known();
        let is_secret =
            |name: &str, value: &str| !names(&issuers, &environment(&[(name, value)])).is_empty();
        for name in [
            "TOKEN",
            "lower_token",
            "API_KEY_2",
            "PGPASSWORD",
            "MYSQL_PWD",
            "DB_PASS",
            "NPM_CONFIG__AUTHTOKEN",
            "X_CREDENTIALS",
        ] {
            assert!(is_secret(name, "a value"), "{name}");
        }
        for (name, value) in [
            ("DATABASE_URL", "postgres://user:s3cret@db.test/x"),
            ("SENTRY_DSN", "https://a:b@o1.test/2"),
            ("X", "github_pat_0123456789012345678901234567890123456789"),
        ] {
            assert!(is_secret(name, value), "{name}");
        }
        for (name, value) in [
            ("PWD", "/work"),
            ("COMPASS", "north"),
            ("MONKEY", "see"),
            ("MY_TOKEN", " "),
            ("REPO", "https://user@git.test/x:y@z"),
            ("KEYBOARD", "us"),
            ("URL", "http://a.test:80/b@c"),
        ] {
            assert!(!is_secret(name, value), "{name}");
        }
    }

    #[test]
    fn what_holds_a_secret_or_has_a_name_that_is_no_text_is_kept_out() {
        let mut given = environment(&[
            ("A_TOKEN", "aaaabbbbcccc"),
            ("URLX", "https://u/aaaabbbbcccc/"),
            ("B", "b"),
        ]);
        given.set(OsString::from_vec(b"\xff_TOKEN".to_vec()), "secretsecret");
        let urls = given.clone();
        let taken = EnvironmentSecrets::take(&mut given, &urls);
        assert_eq!(
            given
                .iter()
                .map(|(name, _)| name.to_owned())
                .collect::<Vec<_>>(),
            ["B"]
        );
        assert_eq!(taken.secrets.len(), 1);
        let warnings: Vec<_> = taken.warnings().collect();
        assert!(
            warnings[1].contains("its name is not UTF-8"),
            "{warnings:?}"
        );
        assert!(
            warnings[2].starts_with("the command does not get URLX: it holds"),
            "{warnings:?}"
        );
    }

    #[test]
    fn the_base_url_that_the_command_gets_names_the_host() {
        let key = "0123456789012345678901234567890123456789";
        let bound = |value: &str, url: &str| {
            let mut given = environment(&[("OPENAI_API_KEY", value)]);
            let urls = environment(&[
                ("OPENAI_BASE_URL", url),
                ("ANTHROPIC_BASE_URL", "https://other.test"),
            ]);
            EnvironmentSecrets::take(&mut given, &urls).summary()
        };
        let hosts = |hosts: &str| format!("--secrets-from-env: OPENAI_API_KEY ({hosts})");
        assert_eq!(
            bound(key, "http://[fd00::9]:8000/v1"),
            hosts("http://[fd00::9]:8000")
        );
        assert_eq!(
            bound(key, "https://models.test/v1"),
            hosts("models.test:443")
        );
        assert_eq!(
            bound(&format!("sk-ant-{key}"), "https://models.test"),
            hosts("models.test:443")
        );
        assert_eq!(bound(key, ""), hosts("api.openai.com"));
        assert_eq!(bound(key, "https://u:p@models.test"), hosts("no host"));
    }

    #[test]
    fn secrets_are_bound_to_their_issuers_hosts_and_others_to_none() {
        let mut given = environment(&[
            ("GITHUB_TOKEN", "0123456789"),
            ("MINE", "sk-ant-0123456789012345678901234567890123456789"),
            ("DEPLOY_PASSWORD", "hunter22"),
            (
                "OPENAI_API_KEY",
                "sk-0123456789012345678901234567890123456789",
            ),
            ("OPENAI_BASE_URL", "http://models.test:8000/v1"),
            (
                "SIGNING_KEY",
                "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n",
            ),
            ("EMPTY_TOKEN", ""),
            ("EDITOR", "vi"),
        ]);
        let urls = given.clone();
        let taken = EnvironmentSecrets::take(&mut given, &urls);
        let left: Vec<_> = given
            .iter()
            .map(|(name, _)| name.to_str().unwrap())
            .collect();
        assert_eq!(left.len(), 3, "{left:?}");
        let goes = |name: &str, host: &str, port| {
            let secret = taken
                .secrets
                .iter()
                .find(|secret| secret.name.as_str() == name)
                .unwrap();
            secret.binding().includes(&Host::parse(host).unwrap(), port)
        };
        assert!(
            goes("GITHUB_TOKEN", "api.github.com", 443)
                && !goes("GITHUB_TOKEN", "api.github.com", 80)
        );
        assert!(goes("MINE", "api.anthropic.com", 443) && !goes("MINE", "api.openai.com", 443));
        assert!(
            goes("OPENAI_API_KEY", "models.test", 8000)
                && !goes("OPENAI_API_KEY", "api.openai.com", 443)
        );
        assert!(!goes("DEPLOY_PASSWORD", "api.github.com", 443));
        let warnings: Vec<_> = taken.warnings().collect();
        assert!(
            warnings[0].starts_with("DEPLOY_PASSWORD: no hosts are known"),
            "{warnings:?}"
        );
        assert!(
            warnings[1].starts_with("the command gets neither SIGNING_KEY nor")
                && !warnings[1].contains("MIIE"),
            "{warnings:?}"
        );
        assert!(
            taken
                .summary()
                .contains("GITHUB_TOKEN (api.github.com, github.com"),
            "{}",
            taken.summary()
        );
    }
}
