//! Everything that all connections share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use crate::workload::Workload;

/// The sandbox, and the tasks of its clients.
pub(crate) struct Shared {
    pub(crate) workload: Arc<Workload>,
    /// Sessions and relays, which may outlive their connections for a while.
    tasks: Mutex<JoinSet<()>>,
}

impl Shared {
    pub(crate) fn new(workload: Workload) -> Self {
        Self { workload: Arc::new(workload), tasks: Mutex::default() }
    }

    /// Runs a task for as long as the server lives.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        // A panic elsewhere cannot leave the set half changed.
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task)
    }
}

/// The fact that a client is authenticated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authenticated(Arc<(AtomicBool, Notify)>);

impl Authenticated {
    /// Returns true the first time.
    pub(crate) fn set(&self) -> bool {
        let is_first = !self.0.0.swap(true, Ordering::Relaxed);
        self.0.1.notify_one();
        is_first
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }

    pub(crate) async fn wait(&self) {
        self.0.1.notified().await;
    }
}
