//! Tokens that tell the gateway which sandbox is calling.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openshell_policy::secret::Secret;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};

/// A source of tokens, which are read again each time because files rotate.
pub trait TokenSource: fmt::Debug + Send + Sync {
    /// Reads the token.
    ///
    /// # Errors
    /// Fails if the token cannot be read or is empty.
    fn read(&self) -> io::Result<Secret>;

    /// Returns true if a platform issued the token; the gateway exchanges it for one of its own.
    fn is_exchanged(&self) -> bool;
}

/// Shortest and longest wait for a renewal.
const RENEWAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(12 * 60 * 60));

/// Wait for the renewal of a token whose expiry is unknown.
const UNKNOWN_EXPIRY: Duration = Duration::from_secs(6 * 60 * 60);

/// The token of all calls.
#[derive(Debug, Default)]
pub(crate) struct Token {
    state: Mutex<State>,
    /// All tokens that were read or issued.
    known: watch::Sender<Tokens>,
}

/// Tokens that a sandbox has had, each of them once: the first and the most recent ones.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Tokens that calls to the gateway carry.
    pub issued: Vec<Arc<Secret>>,
    /// Tokens of a platform, which the gateway exchanges.
    pub exchanged: Vec<Arc<Secret>>,
}

/// How many tokens of a kind are kept, which is more than are valid at once.
const KNOWN: usize = 8;

fn remember(known: &mut Vec<Arc<Secret>>, secret: Secret) {
    if known.iter().any(|before| before.ct_eq(&secret)) {
        return;
    }
    if known.len() == KNOWN {
        known.remove(1);
    }
    known.push(Arc::new(secret));
}

#[derive(Debug, Default)]
struct State {
    held: Option<Held>,
    /// The token that was last read from the source, before any renewal.
    of_source: Option<Arc<Secret>>,
    /// Number of replacements so far.
    number: u64,
}

struct Held {
    header: MetadataValue<Ascii>,
    /// Expiry in seconds since 1970.
    expires: Option<u64>,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

impl Token {
    /// Makes all calls from now on carry `secret`. `expires` is its expiry in milliseconds since
    /// 1970, if the gateway has told it.
    ///
    /// # Errors
    /// Fails if the token contains characters that no header may hold.
    pub(crate) fn replace(&self, secret: Secret, expires: Option<u64>) -> io::Result<()> {
        let header = zeroize::Zeroizing::new([b"Bearer ", secret.expose()].concat());
        let text = std::str::from_utf8(&header)
            .ok()
            .and_then(|text| text.parse::<MetadataValue<Ascii>>().ok());
        let mut header = text.ok_or_else(|| {
            io::Error::other("the token has characters that a header cannot carry")
        })?;
        header.set_sensitive(true);
        let expires = expires
            .map(|expires| expires / 1000)
            .or_else(|| expiry(secret.expose()));
        let mut state = self.state();
        state.held = Some(Held { header, expires });
        state.number += 1;
        self.known
            .send_modify(|known| remember(&mut known.issued, secret));
        Ok(())
    }

    /// Replaces the token with one from a source, unless the source still gives the same token as
    /// before: a renewed token is newer than that.
    ///
    /// # Errors
    /// Fails as [`Self::replace`] does.
    pub(crate) fn replace_by_source(&self, secret: Secret) -> io::Result<()> {
        if self
            .state()
            .of_source
            .as_ref()
            .is_some_and(|known| known.ct_eq(&secret))
        {
            return Ok(());
        }
        let copy = Arc::new(Secret::new(secret.expose().to_vec()));
        self.replace(secret, None)?;
        self.state().of_source = Some(copy);
        Ok(())
    }

    /// Returns the number of the current token, which changes with each replacement.
    pub(crate) fn number(&self) -> u64 {
        self.state().number
    }

    /// Remembers a platform's token. Only the call that exchanges it carries it.
    pub(crate) fn remember_exchanged(&self, secret: Secret) {
        self.known
            .send_modify(|known| remember(&mut known.exchanged, secret));
    }

    /// Returns a receiver for the tokens so far, which learns of each new one.
    pub(crate) fn follow(&self) -> watch::Receiver<Tokens> {
        self.known.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the header of calls, if there is a token.
    pub(crate) fn header(&self) -> Option<MetadataValue<Ascii>> {
        self.state().held.as_ref().map(|held| held.header.clone())
    }

    /// Returns the time to wait before the token should be renewed: 80 to 90 percent of the rest of
    /// its life, chosen at random.
    pub(crate) fn renewal(&self) -> Duration {
        let state = self.state();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        match state.held.as_ref().and_then(|held| held.expires) {
            None => UNKNOWN_EXPIRY,
            Some(expires) => {
                let left = Duration::from_secs(expires).saturating_sub(now);
                left.mul_f64(0.8 + 0.1 * crate::channel::spread())
                    .clamp(RENEWAL.0, RENEWAL.1)
            }
        }
    }
}

/// Returns the expiry of a JSON Web Token (RFC 7519 §4.1.4) in seconds since 1970; `None` if it has
/// none. The token is not verified here, only by the gateway.
fn expiry(token: &[u8]) -> Option<u64> {
    let claims = token.split(|byte| *byte == b'.').nth(1)?;
    let claims = zeroize::Zeroizing::new(BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?);
    let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
    claims["exp"].as_u64().filter(|expires| *expires != 0)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use openshell_policy::secret::Secret;

    use super::{KNOWN, Token, UNKNOWN_EXPIRY};

    fn renewal(token: &str) -> Duration {
        let held = Token::default();
        held.replace(Secret::new(token.as_bytes().to_vec()), None)
            .unwrap();
        assert!(!format!("{held:?}{:?}", held.header()).contains(token));
        held.renewal()
    }

    #[test]
    fn a_token_is_renewed_at_four_fifths_of_its_life() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs();
        let token = |claims: &str| format!("e30.{}.sig", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let wait = renewal(&token(&format!("{{\"exp\":{}}}", now + 1000))).as_secs();
        assert!((795..=900).contains(&wait), "{wait}");
        assert_eq!(renewal(&token("{\"exp\":1}")), Duration::from_secs(1));
        assert_eq!(
            renewal(&token(&format!("{{\"exp\":{}}}", u64::MAX))),
            Duration::from_secs(12 * 3600)
        );
        for unknown in [
            "opaque",
            "a.b.c",
            &token("{}"),
            &token("{\"exp\":0}"),
            &token("{\"exp\":\"soon\"}"),
        ] {
            assert_eq!(renewal(unknown), UNKNOWN_EXPIRY, "{unknown}");
        }
    }

    #[test]
    fn a_source_that_has_nothing_new_leaves_a_renewed_token() {
        let held = Token::default();
        let secret = |text: &str| Secret::new(text.as_bytes().to_vec());
        held.replace_by_source(secret("first")).unwrap();
        held.replace(secret("renewed"), None).unwrap();
        let carried = || held.header().unwrap().to_str().unwrap().to_owned();
        held.replace_by_source(secret("first")).unwrap();
        assert_eq!((carried().as_str(), held.number()), ("Bearer renewed", 2));
        held.replace_by_source(secret("rotated")).unwrap();
        assert_eq!((carried().as_str(), held.number()), ("Bearer rotated", 3));
    }

    #[test]
    fn the_first_token_and_the_last_ones_are_remembered() {
        let held = Token::default();
        let followed = held.follow();
        for number in [0, 0, 1, 2, 1].into_iter().chain(3..20) {
            held.replace(Secret::new(format!("token-{number}").into_bytes()), None)
                .unwrap();
        }
        let known: Vec<_> = followed
            .borrow()
            .issued
            .iter()
            .map(|known| known.expose().to_vec())
            .collect();
        let last = (20 - KNOWN + 1..20).map(|number| format!("token-{number}").into_bytes());
        assert_eq!(
            known,
            [b"token-0".to_vec()]
                .into_iter()
                .chain(last)
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_no_header_may_hold_is_no_token() {
        for token in ["a\nb", "a\u{0}b", "\u{e9}\u{1}"] {
            assert!(
                Token::default()
                    .replace(Secret::new(token.as_bytes().to_vec()), None)
                    .is_err(),
                "{token:?}"
            );
        }
    }
}
