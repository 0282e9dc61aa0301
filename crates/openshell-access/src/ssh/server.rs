//! The SSH server: its keys, its algorithms, and its connections.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use openshell_events::event::Audit;
use openshell_events::words::SshActivity;
use russh::keys::key::safe_rng;
use russh::keys::{Algorithm, EcdsaCurve, PrivateKey};
use russh::server::{Config, RunningSession, run_stream};
use russh::{MethodKind, MethodSet, Preferred, SshId, cipher, compression, kex, mac};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::ssh::channels::Channels;
use crate::ssh::connection::Connection;
use crate::ssh::limits::Limits;
pub use crate::ssh::report::Client;
use crate::ssh::report::{Facts, Reporter};
use crate::ssh::shared::{Authenticated, Shared};
use crate::workload::Workload;

/// Error for a server that cannot be made.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum ServerError {
    #[error("cannot make the host keys of the SSH server")]
    HostKey { source: std::io::Error },
}

/// The SSH server of one sandbox.
pub struct Server {
    config: Arc<Config>,
    shared: Arc<Shared>,
    audit: Arc<dyn Audit>,
    connections: Arc<Semaphore>,
    channels: Arc<Semaphore>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("workload", &self.shared.workload)
            .finish_non_exhaustive()
    }
}

/// Reason for closing the connection of a client that does not authenticate.
const LATE: &str = "not authenticated in time";

/// Key exchanges (RFC 8731, RFC 5656, and draft-ietf-sshm-mlkem-hybrid-kex), with strict key
/// exchange as OpenSSH defines it. Clients under FIPS 140 offer only those over NIST curves.
const KEX: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::ECDH_SHA2_NISTP256,
    kex::ECDH_SHA2_NISTP384,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// Algorithms of the host keys, the preferred one first. Clients under FIPS 140 offer only the
/// second.
const HOST_KEYS: &[Algorithm] = &[
    Algorithm::Ed25519,
    Algorithm::Ecdsa {
        curve: EcdsaCurve::NistP256,
    },
];

/// Ciphers; libssh2 and older clients in Python support neither of the first two.
const CIPHERS: &[cipher::Name] = &[
    cipher::CHACHA20_POLY1305,
    cipher::AES_256_GCM,
    cipher::AES_256_CTR,
];

/// Message authentication, for the ciphers that do not authenticate.
const MACS: &[mac::Name] = &[mac::HMAC_SHA256_ETM];

impl Server {
    /// Makes a server with new host keys, which exist only in memory.
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn new(workload: Workload, audit: Arc<dyn Audit>) -> Result<Arc<Self>, ServerError> {
        // Without random numbers, the generator of the library would panic.
        rustix::rand::getrandom(&mut [0; 32], rustix::rand::GetRandomFlags::empty()).map_err(
            |errno| ServerError::HostKey {
                source: errno.into(),
            },
        )?;
        let make = |algorithm: &Algorithm| PrivateKey::random(&mut safe_rng(), algorithm.clone());
        let keys: Result<Vec<_>, _> = HOST_KEYS.iter().map(make).collect();
        let keys = keys.map_err(|error| ServerError::HostKey {
            source: std::io::Error::other(error.to_string()),
        })?;
        let preferred = Preferred {
            kex: Cow::Borrowed(KEX),
            key: Cow::Borrowed(HOST_KEYS),
            host_key_certificates: Cow::Borrowed(&[]),
            cipher: Cow::Borrowed(CIPHERS),
            mac: Cow::Borrowed(MACS),
            compression: Cow::Borrowed(&[compression::NONE]),
        };
        let config = Config {
            server_id: SshId::Standard(Cow::Borrowed("SSH-2.0-openshell")),
            methods: MethodSet::from(&[MethodKind::None, MethodKind::PublicKey][..]),
            auth_rejection_time: Duration::from_secs(1),
            auth_rejection_time_initial: Some(Duration::ZERO),
            keys,
            window_size: Limits::WINDOW,
            maximum_packet_size: Limits::PACKET,
            preferred,
            inactivity_timeout: None,
            keepalive_interval: Some(Limits::KEEP_ALIVE.0),
            keepalive_max: Limits::KEEP_ALIVE.1,
            nodelay: true,
            ..Config::default()
        };
        let connections = Arc::new(Semaphore::new(Limits::CONNECTIONS));
        let channels = Arc::new(Semaphore::new(Limits::CHANNELS));
        let config = Arc::new(config);
        let shared = Arc::new(Shared::new(workload));
        Ok(Arc::new(Self {
            config,
            shared,
            audit,
            connections,
            channels,
        }))
    }

    /// Serves a client until it has gone. The door that it came through has already let it in.
    pub async fn serve<S>(self: Arc<Self>, stream: S, client: Client)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let reporter = self.reporter(client);
        let Ok(slot) = Arc::clone(&self.connections).try_acquire_owned() else {
            let facts = Facts {
                reason: "too many connections",
                is_refused: true,
                ..Facts::default()
            };
            return reporter.report(SshActivity::Open, facts);
        };
        reporter.report(SshActivity::Open, Facts::default());
        let authenticated = Authenticated::default();
        let connection = Connection {
            shared: Arc::clone(&self.shared),
            reporter: reporter.clone(),
            channels: Channels::new(Arc::clone(&self.channels)),
            authenticated: authenticated.clone(),
            listeners: Vec::new(),
            _slot: slot,
        };
        let early = |reason: &str| {
            reporter.report(
                SshActivity::Auth,
                Facts {
                    reason,
                    is_refused: true,
                    ..Facts::default()
                },
            );
        };
        // A client that breaks off, or that does not speak SSH, is worth only one line in the log.
        let greeted = match timeout(
            Limits::AUTHENTICATION,
            run_stream(Arc::clone(&self.config), stream, connection),
        )
        .await
        {
            Ok(greeted) => greeted,
            Err(_) => return early(LATE),
        };
        let ended = match greeted {
            Ok(session) => match run(session, &authenticated, early).await {
                Some(ended) => ended,
                None => return,
            },
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            if authenticated.is_set() {
                tracing::debug!("an SSH connection ended: {error}");
            } else {
                early(&error.to_string());
            }
        }
    }

    /// Waits, after the sandbox has ended, until its sessions have told their clients, but no
    /// longer than `patience`.
    pub async fn finish(&self, patience: Duration) {
        let _ = timeout(patience, self.shared.finish()).await;
    }

    pub(crate) fn reporter(&self, client: Client) -> Reporter {
        Reporter {
            client,
            audit: Arc::clone(&self.audit),
        }
    }
}

/// Waits for the end of `session`; returns `None` if the client did not authenticate in time, which
/// `early` reports.
async fn run(
    mut session: RunningSession<Connection>,
    authenticated: &Authenticated,
    early: impl Fn(&str),
) -> Option<Result<(), russh::Error>> {
    let handle = session.handle();
    tokio::select! {
        ended = &mut session => return Some(ended),
        waited = timeout(Limits::AUTHENTICATION, authenticated.wait()) => {
            if waited.is_ok() || !authenticated.give_up() {
                return Some(session.await);
            }
        }
    }
    early(LATE);
    // The library goes on with the session even if nobody waits for it.
    let reason = russh::Disconnect::ByApplication;
    let _ = handle
        .disconnect(reason, LATE.to_owned(), String::new())
        .await;
    let _ = timeout(Limits::LINGER, session).await;
    None
}
