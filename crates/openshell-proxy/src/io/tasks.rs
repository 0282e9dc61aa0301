//! What moves the bytes of one client's connections, all of it driven by the task that serves the client: a body that had to go
//! from one thread to another with every part of it would take twice the time, and nothing outlives its client.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, abortable};
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes work on at any time; drives it while [`Self::run`] runs.
#[derive(Clone, Default)]
pub struct ConnectionTasks(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    /// Work that is not begun.
    new: Vec<Work>,
    /// Who drives it.
    waker: Option<Waker>,
    /// Nobody does any longer.
    is_over: bool,
}

/// Takes work on for a crew as long as there is one, and holds on to nothing: for what is work itself.
#[derive(Clone)]
pub struct Spawner(Weak<Mutex<Waiting>>);

/// Work that ends when this is dropped.
#[derive(Debug)]
pub struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl ConnectionTasks {
    /// Takes on `work`, until the hold on it is dropped.
    #[must_use]
    pub fn add(&self, work: impl Future<Output = ()> + Send + 'static) -> AbortOnDrop {
        let (work, handle) = abortable(work);
        self.spawner().execute(async move {
            // Whether it was ended is known to whoever ended it.
            let _ = work.await;
        });
        AbortOnDrop(handle)
    }

    /// For what takes on work of its own.
    #[must_use]
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }

    /// Drives whatever work there is, for ever. What is not done when this is dropped ends with it.
    pub fn run(&self) -> impl Future<Output = ()> + use<> {
        let crew = self.clone();
        // Also what was never begun.
        let end = End(self.clone());
        let mut running = FuturesUnordered::new();
        poll_fn(move |cx| {
            let _ = &end;
            loop {
                let mut waiting = lock(&crew.0);
                running.extend(waiting.new.drain(..));
                if !waiting.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    waiting.waker = Some(cx.waker().clone());
                }
                drop(waiting);
                // Work that is taken on meanwhile has woken this task.
                match running.poll_next_unpin(cx) {
                    Poll::Ready(Some(())) => {}
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
    }
}

/// The end of a crew, which takes no work on any more.
struct End(ConnectionTasks);

impl Drop for End {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.0);
        waiting.is_over = true;
        let dropped = std::mem::take(&mut waiting.new);
        // Work may take on more while it ends.
        drop(waiting);
        drop(dropped);
    }
}

/// What is behind the lock is whole at every moment.
fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F> Executor<F> for Spawner
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, work: F) {
        let Some(waiting) = self.0.upgrade() else { return };
        let mut waiting = lock(&waiting);
        if !waiting.is_over {
            waiting.new.push(Box::pin(work));
            waiting.waker.iter().for_each(Waker::wake_by_ref);
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

    use hyper::rt::Executor as _;

    use super::ConnectionTasks;

    #[tokio::test]
    async fn work_is_driven_ends_with_its_hold_and_takes_on_more() {
        let (crew, done) = (ConnectionTasks::default(), Arc::new(AtomicUsize::new(0)));
        let (spawner, counted) = (crew.spawner(), Arc::clone(&done));
        spawner.clone().execute(async move {
            let again = Arc::clone(&counted);
            spawner.execute(async move {
                again.fetch_add(10, Ordering::Relaxed);
            });
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let held = Arc::clone(&done);
        let hold = crew.add(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let turns = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert_eq!((done.load(Ordering::Relaxed), Arc::strong_count(&done)), (11, 2));
            drop(hold);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = crew.run() => {}
            () = turns => {}
        }
        assert_eq!(Arc::strong_count(&done), 1);
    }

    #[test]
    fn work_that_was_never_begun_ends_with_its_crew() {
        let (crew, held) = (ConnectionTasks::default(), Arc::new(()));
        let run = crew.run();
        for _ in 0..3 {
            // What holds on to its crew, as streams do, would hold on to itself.
            let all = (crew.clone(), Arc::clone(&held));
            crew.spawner().execute(async move { drop(all) });
        }
        assert_eq!(Arc::strong_count(&held), 4);
        drop(run);
        assert_eq!(Arc::strong_count(&held), 1);
        let late = Arc::clone(&held);
        crew.spawner().execute(async move { drop(late) });
        assert_eq!(Arc::strong_count(&held), 1, "afterwards nobody is taken on");
    }
}
