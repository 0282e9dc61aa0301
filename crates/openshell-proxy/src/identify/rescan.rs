//! Where there are many processes a connection's caller is known by the first owner of its socket that is found. All of them
//! are looked at afterwards, off the connection's way: a further owner whom the policy refuses ends it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::denial::refusal::Refusal;
use crate::identify::fingerprint::Executable;
use crate::limits::Limits;
use crate::peer::Caller;

/// Sockets whose further owners have still to be looked for.
#[derive(Debug, Default)]
pub struct PendingRescans {
    sockets: Mutex<HashMap<u32, oneshot::Sender<RescanResult>>>,
    arrived: Notify,
}

/// A process that holds a socket, with the open files of everything that it is judged by.
#[derive(Debug)]
pub struct Owner {
    /// What it is.
    pub caller: Caller,
    pub(super) executables: Vec<Executable>,
}

/// All owners of a socket.
pub type Owners = Arc<[Owner]>;

/// All owners of a socket, or the reason for which they could not be found.
pub type RescanResult = Result<Owners, Refusal>;

impl PendingRescans {
    /// Requests a search for all owners of `inode`.
    pub fn add(&self, inode: u32) -> oneshot::Receiver<RescanResult> {
        let (found, receiver) = oneshot::channel();
        let mut sockets = self.sockets();
        // Connections may come and go faster than processes are looked at.
        if sockets.len() >= Limits::CONNECTIONS {
            sockets.retain(|_, connection| !connection.is_closed());
        }
        sockets.insert(inode, found);
        drop(sockets);
        self.arrived.notify_one();
        receiver
    }

    /// Those that were added since the last time, at least one.
    pub(crate) async fn take(&self) -> HashMap<u32, oneshot::Sender<RescanResult>> {
        loop {
            let mut taken = std::mem::take(&mut *self.sockets());
            // Connections that have ended meanwhile are nobody's.
            taken.retain(|_, connection| !connection.is_closed());
            if !taken.is_empty() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }

    /// What is behind the lock is whole at every moment.
    fn sockets(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<RescanResult>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
