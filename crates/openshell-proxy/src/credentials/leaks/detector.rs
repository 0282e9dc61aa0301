//! Detects leaks: decides what is searched for, and what follows when it is found.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use hyper::HeaderMap;
use hyper::http::request::Parts;
use openshell_policy::issuers::Issuers;
use openshell_policy::secret::Secret;
use parking_lot::Mutex;

use crate::credentials::leaks::own_secrets::OwnSecrets;
use crate::credentials::leaks::scan::Scan;
use crate::credentials::vault::{Credential, Vault};
use crate::denial::refusal::Refusal;
use crate::ground::limits::Limits;
use crate::ground::shares::Shares;
use crate::ground::target::Target;
use crate::report::finding::SecretFinding;
use crate::report::record::Record;
use crate::secrets::decode::Escapes;
use crate::secrets::needles::{Kind, Needles, Sought, Value};

/// What happens about secrets in requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeakMode {
    /// Requests are not searched for secrets.
    Off,
    /// Each secret is reported once for each host, and the request goes on.
    #[default]
    Report,
    /// A request with a secret is refused.
    Block,
}

/// The leak detector of one sandbox.
#[derive(Debug)]
pub struct LeakDetector {
    mode: LeakMode,
    own: ArcSwap<OwnSecrets>,
    prepared: ArcSwapOption<Prepared>,
    /// What was reported of shapes, and of known secrets. They are counted separately, so that
    /// texts that only look like secrets do not use up the reports of known ones.
    reported: [Mutex<Reported>; 2],
    /// Turns for searching large texts.
    turns: Shares,
}

/// A search for the credentials of one vault and for the supervisor's own secrets.
#[derive(Debug)]
struct Prepared {
    vault: Arc<Vault>,
    own: Arc<OwnSecrets>,
    needles: Arc<Needles>,
}

/// What is to be reported when a secret is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Secret,
    /// So many secrets were found that not all could be reported one by one; this is how many were
    /// not.
    Unreported(u64),
}

/// What has been reported.
#[derive(Debug, Default)]
struct Reported {
    /// The names of secrets, with the hosts for which they were reported.
    pairs: HashSet<(String, String)>,
    /// Number of findings that were not reported because there were too many.
    unreported: u64,
}

impl Reported {
    /// Returns what is to be reported when the secret `name` is found in a request to `host`: the
    /// secret, if this is the first time for the pair; once there are too many pairs, the number of
    /// findings that were not reported, whenever it is a power of two.
    fn news(&mut self, name: &str, host: &str) -> Option<News> {
        let pair = (name.to_owned(), host.to_owned());
        if self.pairs.contains(&pair) {
            return None;
        }
        if self.pairs.len() < Limits::LEAKS_REPORTED {
            self.pairs.insert(pair);
            return Some(News::Secret);
        }
        self.unreported += 1;
        self.unreported
            .is_power_of_two()
            .then_some(News::Unreported(self.unreported))
    }
}

/// A leak detector for the requests to one target.
#[derive(Clone, Debug)]
pub struct LeakWatch {
    detector: Arc<LeakDetector>,
    needles: Arc<Needles>,
    finding: SecretFinding,
    /// The policy that permits the request.
    policy: Option<String>,
    blocks: bool,
}

impl Default for LeakDetector {
    fn default() -> Self {
        Self::new(LeakMode::default())
    }
}

impl LeakDetector {
    /// Creates a detector.
    #[must_use]
    pub fn new(mode: LeakMode) -> Self {
        let own = ArcSwap::default();
        let prepared = ArcSwapOption::default();
        Self {
            mode,
            own,
            prepared,
            reported: Default::default(),
            turns: Shares::new(Limits::LARGE_SEARCHES),
        }
    }

    /// Returns the detector for the request of `record`, with the credentials of `vault`; `None` if
    /// requests are not searched for secrets.
    #[must_use]
    pub fn watch(
        self: &Arc<Self>,
        vault: &Arc<Vault>,
        record: &Record,
        policy: Option<&str>,
    ) -> Option<LeakWatch> {
        (self.mode != LeakMode::Off).then(|| LeakWatch {
            detector: Arc::clone(self),
            needles: self.needles(vault),
            finding: record.secret_finding(),
            policy: policy.map(str::to_owned),
            blocks: self.mode == LeakMode::Block,
        })
    }

    /// Returns a detector of the same secrets that refuses and reports nothing, whatever happens about
    /// secrets in requests.
    #[must_use]
    pub fn finder(self: &Arc<Self>, vault: &Arc<Vault>, record: &Record) -> LeakWatch {
        LeakWatch {
            detector: Arc::clone(self),
            needles: self.needles(vault),
            finding: record.secret_finding(),
            policy: None,
            blocks: false,
        }
    }

    /// Makes `keys` the keys of model routes that are searched for, instead of earlier ones.
    pub fn know_keys<'k>(&self, keys: impl Iterator<Item = &'k Arc<Credential>>) {
        let keys: Vec<_> = keys.cloned().collect();
        self.own.rcu(|own| OwnSecrets {
            keys: keys.clone(),
            ..OwnSecrets::clone(own)
        });
    }

    /// Makes `tokens` the gateway's tokens that are searched for, instead of earlier ones, and
    /// `platform_tokens` those of the platform that it exchanges for them.
    pub fn know_tokens(&self, tokens: &[Arc<Secret>], platform_tokens: &[Arc<Secret>]) {
        self.own.rcu(|own| OwnSecrets {
            keys: own.keys.clone(),
            tokens: tokens.to_vec(),
            platform_tokens: platform_tokens.to_vec(),
        });
    }

    /// Returns true if `text` holds a secret, also one of `vault`.
    #[must_use]
    pub fn holds_secret(&self, vault: &Arc<Vault>, text: &[u8]) -> bool {
        let mut is_found = false;
        let needles = self.needles(vault);
        needles.search(text, 0..text.len(), true, |_| is_found = true);
        is_found
    }

    /// Makes the search for the credentials of `vault` now, so that the first request does not wait
    /// for it.
    pub fn prepare(&self, vault: &Arc<Vault>) {
        if self.mode != LeakMode::Off {
            self.needles(vault);
        }
    }

    pub(super) fn needles(&self, vault: &Arc<Vault>) -> Arc<Needles> {
        let own = self.own.load_full();
        let is_current = |known: &Arc<Prepared>| {
            Arc::ptr_eq(&known.vault, vault) && Arc::ptr_eq(&known.own, &own)
        };
        if let Some(prepared) = self.prepared.load_full().filter(is_current) {
            return Arc::clone(&prepared.needles);
        }
        let credentials = vault.credentials().map(|credential| Value {
            name: credential.name(),
            secret: credential.secret(),
            home: credential.binding().hosts.as_deref(),
            kind: Kind::Credential,
        });
        let shapes = Issuers::known().into_shapes().chain(own.shapes());
        let needles = Arc::new(Needles::new(shapes, credentials.chain(own.values(vault))));
        let prepared = Prepared {
            vault: Arc::clone(vault),
            own,
            needles: Arc::clone(&needles),
        };
        self.prepared.store(Some(Arc::new(prepared)));
        needles
    }

    /// Returns what is to be reported when `secret` is found in a request to `host`.
    fn news(&self, secret: &Sought, host: &str) -> Option<News> {
        let [shapes, known] = &self.reported;
        let reported = match secret.kind {
            Kind::Shape => shapes,
            Kind::Credential | Kind::Own => known,
        };
        reported.lock().news(&secret.name, host)
    }
}

impl LeakWatch {
    /// Returns the same detector for an observed run, in which nothing is refused.
    #[must_use]
    pub fn reporting(self) -> Self {
        Self {
            blocks: false,
            ..self
        }
    }

    /// Returns true if secrets are refused, so that bytes that may be one must not leave.
    #[must_use]
    pub fn blocks(&self) -> bool {
        self.blocks
    }

    /// Begins a search through a text of the request.
    #[must_use]
    pub fn scan(&self) -> Scan {
        Scan::new(Arc::clone(&self.needles))
    }

    /// Searches a complete text.
    ///
    /// # Errors
    /// Fails if the text holds a secret and secrets are refused.
    pub fn whole(&self, text: &[u8]) -> Result<(), Refusal> {
        self.found(&self.found_in(text))
    }

    /// Searches a complete text of `program`. A large one waits for its turn, and is searched on
    /// another thread.
    ///
    /// # Errors
    /// Fails like [`Self::whole`].
    pub async fn whole_of(self, text: Bytes, program: &str) -> Result<(), Refusal> {
        if text.len() <= Limits::SEARCHED_BYTES {
            return self.whole(&text);
        }
        let turn = self
            .detector
            .turns
            .take(program, 1, 1)
            .await
            .map_err(|error| Refusal::engine(error.to_string()))?;
        let search = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            self.whole(&text)
        });
        search
            .await
            .map_err(|error| Refusal::engine(error.to_string()))?
    }

    fn found_in(&self, text: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        self.needles
            .search(text, 0..text.len(), true, |secret| found.push(secret));
        found
    }

    /// Returns true if `text` holds a secret, of whatever host.
    #[must_use]
    pub fn finds(&self, text: &[u8]) -> bool {
        !self.found_in(text).is_empty()
    }

    /// Returns true if `text` holds a secret of another host. Reports nothing.
    ///
    /// # Errors
    /// It holds one, and secrets are refused.
    pub fn foreign(&self, text: &[u8]) -> Result<bool, Refusal> {
        let Some(target) = self.finding.target() else {
            return Ok(false);
        };
        let found = self.found_in(text);
        let mut secrets = found.iter().filter_map(|index| self.needles.secret(*index));
        match secrets.find(|secret| !secret.home.includes_host(&target.host)) {
            Some(secret) if self.blocks => {
                let policy = self.policy.clone();
                Err(Refusal::secret_in_request(&secret.name, policy))
            }
            found => Ok(found.is_some()),
        }
    }

    /// Searches the head of a request: its target, both as it is and decoded, and the values of its
    /// fields. If the target holds a secret, `record` conceals the path.
    ///
    /// # Errors
    /// Fails like [`Self::whole`].
    pub fn head(&mut self, parts: &Parts, record: &mut Record) -> Result<(), Refusal> {
        let target = parts
            .uri
            .path_and_query()
            .map_or("", |target| target.as_str());
        let mut text = target.as_bytes().to_vec();
        if target.contains('%') {
            text.push(b'\n');
            text.extend(Escapes::Percent.decoded(target.as_bytes()));
        }
        let found = self.found_in(&text);
        if !found.is_empty() {
            record.conceal_path();
            self.finding = record.secret_finding();
            self.found(&found)?;
        }
        self.fields(&parts.headers)
    }

    /// Searches the values of header fields.
    ///
    /// # Errors
    /// Fails like [`Self::whole`].
    pub fn fields(&self, fields: &HeaderMap) -> Result<(), Refusal> {
        let mut text = Vec::new();
        for value in fields.values() {
            text.extend_from_slice(value.as_bytes());
            text.push(b'\n');
        }
        self.whole(&text)
    }

    /// Judges the secrets that a search has found.
    ///
    /// # Errors
    /// Fails if a secret is not for the request's host and secrets are refused.
    pub fn found(&self, secrets: &[usize]) -> Result<(), Refusal> {
        let Some(target) = self.finding.target().filter(|_| !secrets.is_empty()) else {
            return Ok(());
        };
        for secret in secrets
            .iter()
            .filter_map(|index| self.needles.secret(*index))
        {
            if secret.home.includes_host(&target.host) {
                continue;
            }
            if self.blocks {
                return Err(Refusal::secret_in_request(
                    &secret.name,
                    self.policy.clone(),
                ));
            }
            self.report(secret, target);
        }
        Ok(())
    }

    fn report(&self, secret: &Sought, target: &Target) {
        let news = self.detector.news(secret, &target.host.to_string());
        if let Some(News::Unreported(count)) = news {
            self.finding.report(&format!(
                "a secret of {}; not every secret is reported any more because there are too many \
                 ({count} were left out)",
                secret.name
            ));
        } else if news.is_some() {
            let kind = match secret.kind {
                Kind::Shape => "what looks like a secret of",
                Kind::Credential => "the secret of the credential",
                Kind::Own => "a secret of",
            };
            self.finding.report(&format!("{kind} {}", secret.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Limits, News, Reported};

    #[test]
    fn each_secret_is_reported_once_for_a_host_and_then_how_many_are_not() {
        let mut reported = Reported::default();
        for host in 0..Limits::LEAKS_REPORTED {
            assert_eq!(reported.news("key", &host.to_string()), Some(News::Secret));
            assert_eq!(reported.news("key", &host.to_string()), None);
        }
        let news: Vec<_> = (0..5).map(|_| reported.news("key", "further")).collect();
        let left_out = |count| Some(News::Unreported(count));
        assert_eq!(news, [left_out(1), left_out(2), None, left_out(4), None]);
    }
}
