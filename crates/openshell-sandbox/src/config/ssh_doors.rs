//! The ways into the SSH server.

use crate::cli::Args;
use anyhow::{Context, anyhow, bail};
use openshell_policy::secret::Secret;
use openshell_supervisor::command::environment::Environment;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The doors of the SSH server.
#[derive(Debug, Default)]
pub(crate) struct SshDoors {
    /// The door for clients with a preface, if there is one.
    pub(crate) tcp: Option<SshOverTcp>,
    pub(crate) socket: Option<PathBuf>,
    /// False if the shells of clients must not read the user's profile.
    pub(crate) has_login_shells: bool,
}

/// The door for clients with a preface.
#[derive(Debug)]
pub(crate) struct SshOverTcp {
    pub(crate) address: SocketAddr,
    pub(crate) secret: Secret,
    pub(crate) skew: Duration,
}

impl SshDoors {
    /// Takes the doors that `args` or `environment` name, and adds warnings.
    ///
    /// # Errors
    /// Fails if a value is invalid, or the secret is missing.
    pub(super) fn read(
        args: &mut Args,
        environment: &mut Environment,
        warnings: &mut Vec<String>,
    ) -> anyhow::Result<Self> {
        let mut variable = |name: &str| environment.take(name).filter(|value| !value.is_empty());
        let address = variable("OPENSHELL_SSH_LISTEN_ADDR");
        let secret = variable("OPENSHELL_SSH_HANDSHAKE_SECRET");
        let skew = variable("OPENSHELL_SSH_HANDSHAKE_SKEW_SECS");
        let socket = variable("OPENSHELL_SSH_SOCKET_PATH");
        let has_login_shells =
            variable("OPENSHELL_NO_LOGIN_SHELL").is_none_or(|value| value != "1");
        let address = parsed(address, "OPENSHELL_SSH_LISTEN_ADDR")?;
        let address = address.map(|text| {
            text.trim().parse().map_err(|_| {
                anyhow!(
                    "OPENSHELL_SSH_LISTEN_ADDR is not of the form ADDR:PORT, for example \
                     0.0.0.0:2222"
                )
            })
        });
        let skew = parsed(skew, "OPENSHELL_SSH_HANDSHAKE_SKEW_SECS")?;
        let skew = skew.map(|text| {
            text.trim().parse().map_err(|_| {
                anyhow!("OPENSHELL_SSH_HANDSHAKE_SKEW_SECS is not a whole number of seconds")
            })
        });
        let skew = Duration::from_secs(
            args.ssh_handshake_skew_secs
                .or(skew.transpose()?)
                .unwrap_or(300)
                .into(),
        );
        let named = args
            .ssh_handshake_secret
            .take()
            .filter(|secret| !secret.is_empty());
        if named.is_some() {
            let warning = "--ssh-handshake-secret shows in the list of processes; set \
                           OPENSHELL_SSH_HANDSHAKE_SECRET";
            warnings.push(warning.to_owned());
        }
        let secret = named
            .map(String::into_bytes)
            .or(secret.map(OsString::into_vec))
            .map(Secret::new);
        let tcp = match (args.ssh_listen_addr.or(address.transpose()?), secret) {
            (Some(address), Some(secret)) => Some(SshOverTcp {
                address,
                secret,
                skew,
            }),
            (Some(_), None) => bail!(
                "--ssh-listen-addr needs the handshake secret (OPENSHELL_SSH_HANDSHAKE_SECRET): \
                 without it, any client could enter"
            ),
            // A secret without an address opens no door.
            (None, _) => None,
        };
        let socket = args.ssh_socket_path.take().or(socket.map(PathBuf::from));
        let socket = socket.as_deref().map(socket_path).transpose()?;
        Ok(Self {
            tcp,
            socket,
            has_login_shells,
        })
    }
}

/// Returns the text of a variable; `None` if it is blank.
fn parsed(value: Option<OsString>, name: &str) -> anyhow::Result<Option<String>> {
    let text = value
        .map(OsString::into_string)
        .transpose()
        .map_err(|_| anyhow!("{name} is not UTF-8"))?;
    Ok(text.filter(|text| !text.trim().is_empty()))
}

/// Returns the absolute form of the socket's `path`.
fn socket_path(path: &Path) -> anyhow::Result<PathBuf> {
    if path.as_os_str().as_encoded_bytes().starts_with(b"@") {
        bail!(
            "--ssh-socket-path {} is an abstract socket, which has no permissions; name a path",
            path.display()
        );
    }
    std::path::absolute(path).context("--ssh-socket-path")
}
