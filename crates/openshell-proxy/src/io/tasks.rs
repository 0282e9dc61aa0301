//! The tasks of one client's connections, on the thread that serves the client: none outlives it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hyper::rt::Executor;
use tokio::task::{AbortHandle, JoinSet};

/// The tasks of one client's connections.
#[derive(Clone, Debug, Default)]
pub struct ConnectionTasks(Arc<Mutex<Tasks>>);

/// Spawns tasks while their owner lives, without keeping it alive, so that tasks may hold one.
#[derive(Clone, Debug)]
pub struct Spawner(Weak<Mutex<Tasks>>);

#[derive(Debug, Default)]
struct Tasks {
    set: JoinSet<()>,
    /// True once the client has gone; no more tasks are spawned then.
    is_over: bool,
}

/// Aborts its task when it is dropped.
#[derive(Debug)]
pub struct AbortOnDrop(Option<AbortHandle>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl ConnectionTasks {
    /// Spawns `task`, which is aborted when the handle is dropped.
    #[must_use]
    pub fn add(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDrop {
        AbortOnDrop(lock(&self.0).spawn(task))
    }

    /// A spawner for tasks that spawn others.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }

    /// Returns a guard that aborts all tasks when it is dropped.
    #[must_use]
    pub fn end_on_drop(&self) -> EndOnDrop {
        EndOnDrop(self.clone())
    }
}

/// Aborts the tasks of a client when it is dropped.
#[derive(Debug)]
pub struct EndOnDrop(ConnectionTasks);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let ended = {
            let mut tasks = lock(&self.0.0);
            tasks.is_over = true;
            std::mem::take(&mut tasks.set)
        };
        // Tasks may spawn others while they are dropped.
        drop(ended);
    }
}

impl Tasks {
    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        // Results of tasks that have ended are discarded.
        while self.set.try_join_next().is_some() {}
        (!self.is_over).then(|| self.set.spawn(task))
    }
}

/// Locks a value that is consistent at every moment, so a poisoned lock is used all the same.
fn lock(tasks: &Mutex<Tasks>) -> MutexGuard<'_, Tasks> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F> Executor<F> for Spawner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            drop(lock(&tasks).spawn(task));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;

    use hyper::rt::Executor as _;
    use tokio::task::yield_now;

    use super::ConnectionTasks;

    /// A task that never ends, and holds `held`.
    async fn holding(held: Arc<()>) {
        pending::<()>().await;
        drop(held);
    }

    /// Waits until `held` is held by no task.
    async fn released(held: &Arc<()>) {
        while Arc::strong_count(held) > 1 {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_task_ends_with_its_guard_and_all_of_them_with_their_client() {
        let (tasks, held) = (ConnectionTasks::default(), Arc::new(()));
        let (end, guard) = (tasks.end_on_drop(), tasks.add(holding(Arc::clone(&held))));
        yield_now().await;
        assert_eq!(Arc::strong_count(&held), 2);
        drop(guard);
        released(&held).await;
        // A task that keeps its own set alive ends as well.
        let (spawner, own) = (tasks.spawner(), tasks.clone());
        let kept = Arc::clone(&held);
        spawner.execute(async move {
            let _own = own;
            holding(kept).await;
        });
        yield_now().await;
        drop(end);
        released(&held).await;
        spawner.execute(holding(Arc::clone(&held)));
        assert_eq!(Arc::strong_count(&held), 1, "nothing is spawned afterwards");
    }
}
