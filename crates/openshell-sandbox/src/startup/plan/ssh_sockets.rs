//! The sockets of the SSH doors. If one cannot be opened, that is logged, and the run goes on.

use std::io;
use std::net::TcpListener;

use openshell_access::ssh::preface::Prefaces;
use openshell_events::words::{ConfigState, Severity};
use openshell_telemetry::logging;

use crate::bound_socket::BoundSocket;
use crate::config::{SshDoors, SshOverTcp};

/// The sockets of the doors.
#[derive(Default)]
pub(crate) struct SshSockets {
    pub(crate) tcp: Option<(TcpListener, Prefaces)>,
    pub(crate) socket: Option<BoundSocket>,
}

impl SshSockets {
    /// Returns the port of the TCP door, if it is open.
    pub(crate) fn port(&self) -> Option<u16> {
        self.tcp
            .as_ref()
            .and_then(|(listener, _)| listener.local_addr().ok())
            .map(|address| address.port())
    }

    /// Opens the doors that are named, and logs those that cannot be opened.
    pub(crate) fn open(doors: &mut SshDoors) -> Self {
        let mut sockets = Self::default();
        if let Some(SshOverTcp {
            address,
            secret,
            skew,
        }) = doors.tcp.take()
        {
            let listen = || {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                io::Result::Ok((listener.local_addr()?, listener))
            };
            match listen() {
                Ok((address, listener)) => {
                    log_enabled(&format!("{address}, for clients with the handshake secret"));
                    sockets.tcp = Some((listener, Prefaces::new(&secret, skew)));
                }
                Err(error) => log_failed(&format!("cannot offer SSH at {address}: {error}")),
            }
        }
        if let Some(path) = &doors.socket {
            match BoundSocket::bind(path) {
                Ok(socket) => {
                    log_enabled(&format!("{}, for this user and root", path.display()));
                    sockets.socket = Some(socket);
                }
                Err(error) => log_failed(&format!(
                    "cannot offer SSH at {}: {error:#}",
                    path.display()
                )),
            }
        }
        sockets
    }

    /// Returns true if there is a door, or if a gateway's launcher started the supervisor, because
    /// the gateway's relays are a door too.
    pub(crate) fn is_needed(&self, is_launched: bool) -> bool {
        is_launched || self.tcp.is_some() || self.socket.is_some()
    }
}

fn log_enabled(place: &str) {
    logging::config_event(
        ConfigState::Enabled,
        Severity::Info,
        &format!("SSH at {place}"),
    );
}

/// Logs that SSH, or one of its doors, is not available.
pub(crate) fn log_failed(message: &str) {
    logging::config_event(ConfigState::Failed, Severity::High, message);
}
