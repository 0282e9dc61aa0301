//! State that all connections share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use crate::workload::Workload;

/// The sandbox, and the tasks of its clients.
pub(crate) struct Shared {
    pub(crate) workload: Arc<Workload>,
    /// Tasks of sessions and relays, which may outlive their connections for a while.
    tasks: Mutex<JoinSet<()>>,
}

impl Shared {
    pub(crate) fn new(workload: Workload) -> Self {
        Self {
            workload: Arc::new(workload),
            tasks: Mutex::default(),
        }
    }

    /// Runs a task for as long as the server lives.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        // A panic elsewhere cannot leave the set half changed.
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }

    /// Waits until all tasks have ended.
    pub(crate) async fn finish(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }
}

/// The state of a client's authentication.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authenticated(Arc<(AtomicU8, Notify)>);

/// States of [`Authenticated`].
const PENDING: u8 = 0;
const DONE: u8 = 1;
const LATE: u8 = 2;

impl Authenticated {
    /// Notes that the client is authenticated. Returns true the first time, false after that, and
    /// `None` if it is too late.
    pub(crate) fn set(&self) -> Option<bool> {
        let (state, set) = &*self.0;
        match state.compare_exchange(PENDING, DONE, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                set.notify_one();
                Some(true)
            }
            Err(DONE) => Some(false),
            Err(_) => None,
        }
    }

    /// Makes sure that the client can no longer authenticate; returns false if it already has.
    pub(crate) fn give_up(&self) -> bool {
        self.0
            .0
            .compare_exchange(PENDING, LATE, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.0.load(Ordering::Relaxed) == DONE
    }

    pub(crate) async fn wait(&self) {
        self.0.1.notified().await;
    }
}
