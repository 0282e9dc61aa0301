//! The supervisor's own secrets: keys of the routes to models, and tokens of the gateway.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openshell_policy::issuers::{Characters, Shape};
use openshell_policy::secret::Secret;

use crate::credentials::vault::{Credential, Vault};
use crate::secrets::needles::{Kind, Value};

/// The name of the tokens in messages.
const GATEWAY: &str = "the gateway";

/// Length in bytes of the longest token header by which other tokens are recognized.
const HEADER: usize = 256;

/// Length in bytes of the shortest key name by which a signer is recognized; a name such as `1` is
/// shared by many.
const KEY_NAME: usize = 8;

/// Bytes that the claims and the signature of a token have at least.
const REST: usize = 40;

/// Length in bytes of the shortest secret. Keys of local models are words such as `lm-studio`.
const SHORT: usize = 16;

/// Secrets that the command never has, and that none of its requests may hold.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnSecrets {
    /// Keys of the routes.
    pub(super) keys: Vec<Arc<Credential>>,
    /// Tokens of the gateway.
    pub(super) tokens: Vec<Arc<Secret>>,
    /// Tokens of a platform, which may also give tokens to the command.
    pub(super) platform_tokens: Vec<Arc<Secret>>,
}

impl OwnSecrets {
    /// Returns the secrets themselves, except those that the command has too, as credentials of
    /// `vault`.
    pub(super) fn values<'s>(&'s self, vault: &'s Vault) -> impl Iterator<Item = Value<'s>> {
        let keys = self.keys.iter().map(|key| (key.name(), key.secret()));
        let tokens = self
            .tokens
            .iter()
            .chain(&self.platform_tokens)
            .map(|token| (GATEWAY, &**token));
        let is_secret = |secret: &Secret| {
            let bytes = secret.expose();
            bytes.len() >= SHORT
                && bytes.iter().any(u8::is_ascii_digit)
                && bytes.iter().any(u8::is_ascii_alphabetic)
        };
        let own = keys.chain(tokens).filter(move |(_, secret)| {
            is_secret(secret)
                && !vault
                    .credentials()
                    .any(|credential| credential.secret().ct_eq(secret))
        });
        own.map(|(name, secret)| Value {
            name,
            secret,
            home: None,
            kind: Kind::Own,
        })
    }

    /// Returns the shapes of all tokens that the gateway signs with its keys, including those of
    /// other sandboxes.
    pub(super) fn shapes(&self) -> impl Iterator<Item = (String, Vec<String>, Shape)> {
        let headers: BTreeSet<_> = self
            .tokens
            .iter()
            .filter_map(|token| signer(token.expose()))
            .collect();
        headers.into_iter().map(|header| {
            let begins = format!("{header}.");
            let length = begins.len() + REST;
            (
                GATEWAY.to_owned(),
                Vec::new(),
                Shape {
                    begins,
                    length,
                    of: Characters::Dotted,
                    ..Shape::default()
                },
            )
        })
    }
}

/// Returns the header of a JSON Web Token (RFC 7515 §4.1) if it names its key, so that all tokens
/// with this header have the same signer.
fn signer(token: &[u8]) -> Option<&str> {
    let header = token
        .split(|byte| *byte == b'.')
        .next()
        .filter(|header| header.len() <= HEADER)?;
    let fields: serde_json::Value =
        serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
    fields
        .get("kid")?
        .as_str()
        .filter(|key| key.len() >= KEY_NAME)?;
    std::str::from_utf8(header).ok()
}
