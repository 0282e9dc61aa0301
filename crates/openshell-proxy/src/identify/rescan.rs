//! Rescans for further owners of sockets. In a large sandbox a connection's caller is the first owner found; all
//! processes are searched afterwards, and an owner that the policy refuses ends the connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use crate::denial::refusal::Refusal;
use crate::identify::fingerprint::Executable;
use crate::limits::Limits;
use crate::peer::Caller;

/// Sockets with further owners to be searched for.
#[derive(Debug, Default)]
pub struct PendingRescans {
    sockets: Mutex<HashMap<u32, oneshot::Sender<RescanResult>>>,
    arrived: Notify,
}

/// A process that holds a socket, with the open files of all executables that it is judged by.
#[derive(Debug)]
pub struct Owner {
    /// The process and its program.
    pub caller: Caller,
    pub(super) executables: Vec<Executable>,
}

/// All owners of a socket.
pub type Owners = Arc<[Owner]>;

/// All owners of a socket, or the refusal if they could not be found.
pub type RescanResult = Result<Owners, Refusal>;

impl PendingRescans {
    /// Requests a search for all owners of `inode`.
    pub fn add(&self, inode: u32) -> oneshot::Receiver<RescanResult> {
        let (found, receiver) = oneshot::channel();
        let mut sockets = self.sockets();
        // Sockets may be added faster than rescans take them.
        if sockets.len() >= Limits::CONNECTIONS {
            sockets.retain(|_, connection| !connection.is_closed());
        }
        sockets.insert(inode, found);
        drop(sockets);
        self.arrived.notify_one();
        receiver
    }

    /// Takes all pending sockets; waits until there is one.
    pub(crate) async fn take(&self) -> HashMap<u32, oneshot::Sender<RescanResult>> {
        loop {
            let mut taken = std::mem::take(&mut *self.sockets());
            // Connections may have ended meanwhile.
            taken.retain(|_, connection| !connection.is_closed());
            if !taken.is_empty() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }

    /// Locks the sockets, which are consistent at every moment, so a poisoned lock is used all the same.
    fn sockets(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<RescanResult>>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
