//! Tasks of one client's connections, which are all driven by the task that serves the client.
//! Nothing outlives the client, and the parts of a body do not cross threads, which would double
//! its time.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, abortable};
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use parking_lot::{Mutex, MutexGuard};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A set of tasks that is driven while [`Self::run`] is polled. Tasks may be added at any time.
#[derive(Clone, Default)]
pub struct ConnectionTasks(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// Tasks that were not polled yet.
    new: Vec<Work>,
    /// The waker of the driver.
    waker: Option<Waker>,
    /// True if the driver has ended.
    is_over: bool,
}

/// A handle that adds tasks to a set without keeping it alive, so that tasks may hold it.
#[derive(Clone)]
pub struct Spawner(Weak<Mutex<Waiting>>);

/// A handle that aborts its task when it is dropped.
#[derive(Debug)]
pub struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectionTasks {
    /// Adds `work`, which is aborted when the handle is dropped.
    #[must_use]
    pub fn add(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortOnDrop {
        let (work, handle) = abortable(work);
        self.spawner().execute(async move {
            // Whether the work was aborted or completed, it has no result.
            let _ = work.await;
        });
        AbortOnDrop(handle)
    }

    /// Returns a spawner, for tasks that add tasks.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }

    /// Drives the tasks, forever. Dropping the future drops all tasks.
    pub fn run(&self) -> impl Future<Output = ()> + use<> {
        let tasks = self.clone();
        // Drops also the tasks that were never polled.
        let end = End(self.clone());
        let mut running = FuturesUnordered::new();
        poll_fn(move |cx| {
            let _ = &end;
            loop {
                let mut waiting = lock(&tasks.0);
                running.extend(waiting.new.drain(..));
                if !waiting
                    .waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(cx.waker()))
                {
                    waiting.waker = Some(cx.waker().clone());
                }
                drop(waiting);
                // A task that is added meanwhile wakes this one.
                match running.poll_next_unpin(cx) {
                    Poll::Ready(Some(())) => {}
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
    }
}

/// A guard that ends a set when it is dropped: the set then takes no more tasks.
struct End(ConnectionTasks);

impl Drop for End {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.0);
        waiting.is_over = true;
        let dropped = std::mem::take(&mut waiting.new);
        // Tasks may add others while they are dropped.
        drop(waiting);
        drop(dropped);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock()
}

impl<F> Executor<F> for Spawner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        let Some(waiting) = self.0.upgrade() else {
            return;
        };
        let mut waiting = lock(&waiting);
        if !waiting.is_over {
            waiting.new.push(Box::pin(work));
            if let Some(waker) = &waiting.waker {
                waker.wake_by_ref();
            }
        }
    }
}

impl fmt::Debug for ConnectionTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionTasks").finish_non_exhaustive()
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spawner").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use hyper::rt::Executor as _;

    use super::{ConnectionTasks, Spawner};

    #[tokio::test]
    async fn work_is_driven_ends_with_its_hold_and_takes_on_more() {
        let tasks = ConnectionTasks::default();
        let done = Arc::new(AtomicUsize::new(0));
        let spawner = tasks.spawner();
        let counted = Arc::clone(&done);
        spawner.clone().execute(async move {
            let again = Arc::clone(&counted);
            spawner.execute(async move {
                again.fetch_add(10, Ordering::Relaxed);
            });
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let held = Arc::clone(&done);
        let hold = tasks.add(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let turns = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!(
                (done.load(Ordering::Relaxed), Arc::strong_count(&done)),
                (11, 2)
            );
            drop(hold);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = tasks.run() => {}
            () = turns => {}
        }
        assert_eq!(Arc::strong_count(&done), 1);
    }

    #[test]
    fn work_that_was_never_begun_ends_with_its_tasks() {
        let tasks = ConnectionTasks::default();
        let held = Arc::new(());
        let run = tasks.run();
        for _ in 0..3 {
            // A task that holds its own set, as streams do, must not keep it alive.
            let all = (tasks.clone(), Arc::clone(&held));
            tasks.spawner().execute(async move { drop(all) });
        }
        assert_eq!(Arc::strong_count(&held), 4);
        drop(run);
        assert_eq!(Arc::strong_count(&held), 1);
        let late = Arc::clone(&held);
        tasks.spawner().execute(async move { drop(late) });
        assert_eq!(Arc::strong_count(&held), 1, "afterwards nobody is taken on");
    }

    /// A value that adds a task when it is dropped, as bodies and streams do.
    struct Again(Spawner, Arc<()>);

    impl Drop for Again {
        fn drop(&mut self) {
            let held = Arc::clone(&self.1);
            self.0.execute(async move { drop(held) });
        }
    }

    #[tokio::test]
    async fn running_tasks_are_dropped_with_their_driver_at_once_also_if_they_add_others() {
        let tasks = ConnectionTasks::default();
        let held = Arc::new(());
        let again = Again(tasks.spawner(), Arc::clone(&held));
        tasks.spawner().execute(async move {
            let _again = again;
            std::future::pending::<()>().await;
        });
        let mut run = Box::pin(tasks.run());
        let polled =
            std::future::poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_pending())).await;
        assert!(polled && Arc::strong_count(&held) == 2);
        // A stream is therefore reported before its connection has ended.
        drop(run);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
