//! Secrets of the supervisor's own: keys of the routes to models, and tokens of the gateway.

use std::collections::BTreeSet;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openshell_policy::issuers::{Characters, Shape};
use openshell_policy::secret::Secret;

use crate::credentials::vault::{Credential, Vault};
use crate::secrets::needles::{Kind, Value};

/// Name of the tokens in messages.
const GATEWAY: &str = "the gateway";

/// Bytes of the longest header of a token that others are known by.
const HEADER: usize = 256;

/// Bytes of the shortest name of a key by which a signer is known; `1` is the name of many.
const KEY_NAME: usize = 8;

/// Bytes that the claims and the signature of a token have at least.
const REST: usize = 40;

/// Bytes of the shortest secret. Keys of local models are words such as `lm-studio`.
const SHORT: usize = 16;

/// Secrets that the command never has, and no request of it may hold.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnSecrets {
    /// Keys of the routes.
    pub(super) keys: Vec<Arc<Credential>>,
    /// Tokens of the gateway.
    pub(super) tokens: Vec<Arc<Secret>>,
    /// Tokens of a platform, whose others may be the command's.
    pub(super) platform_tokens: Vec<Arc<Secret>>,
}

impl OwnSecrets {
    /// The secrets themselves, but for those that are the command's too, as credentials of `vault`.
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

    /// The shapes of all tokens that the gateway signs with its keys, other sandboxes' among them.
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

/// Returns the header of a JSON Web Token (RFC 7515 §4.1) that names its key, so that all tokens
/// with this header are one signer's.
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
