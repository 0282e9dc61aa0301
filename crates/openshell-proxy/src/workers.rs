//! Worker threads for connections. Each has a runtime of its own, and a connection stays on one thread: its events wake
//! no other thread, and its memory returns to the same allocator cache. In a work-stealing runtime a busy thread delays
//! the events that it would have polled for.

use std::io;
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::limits::Limits;

/// The worker threads, one per available processor up to [`Limits::WORKERS`]. Dropping them ends their connections.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// Cloned into the [`WorkerSlot`] of each connection, so that its count tells the load.
    connections: Arc<()>,
    /// Ends the thread when it is dropped.
    running: oneshot::Sender<()>,
}

impl Workers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start() -> io::Result<Self> {
        let processors = available_parallelism().map_or(1, usize::from);
        (0..processors.min(Limits::WORKERS)).map(|_| Worker::start()).collect::<io::Result<_>>().map(Self)
    }

    /// The runtime of the worker with the fewest connections, and a slot to be held by the next one. `None` if every
    /// thread has ended.
    pub(crate) fn freest(&self) -> Option<(&Handle, WorkerSlot)> {
        let running = self.0.iter().filter(|worker| !worker.running.is_closed());
        let worker = running.min_by_key(|worker| Arc::strong_count(&worker.connections))?;
        Some((&worker.runtime, WorkerSlot { _connections: Arc::clone(&worker.connections) }))
    }
}

/// A connection's slot on a worker, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    _connections: Arc<()>,
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (running, ended) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().event_interval(Limits::EVENT_INTERVAL).build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new().name("connections".to_owned()).spawn(move || {
            // An error is the end of the workers.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), running })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::thread::{self, ThreadId};

    use tokio::sync::oneshot;
    use tokio::task::JoinSet;

    use super::{Worker, Workers};

    fn two() -> Workers {
        Workers(vec![Worker::start().unwrap(), Worker::start().unwrap()])
    }

    fn spawn(workers: &Workers, owner: &mut JoinSet<()>, work: impl Future<Output = ()> + Send + 'static) {
        let (runtime, place) = workers.freest().unwrap();
        let work = async move {
            work.await;
            drop(place);
        };
        owner.spawn_on(work, runtime);
    }

    /// On which thread the next connection goes on until `end` comes.
    async fn begin(workers: &Workers, owner: &mut JoinSet<()>) -> (ThreadId, oneshot::Sender<()>) {
        let ((end, ended), (tell, told)) = (oneshot::channel::<()>(), oneshot::channel());
        spawn(workers, owner, async move {
            tell.send(thread::current().id()).unwrap();
            let _ = ended.await;
        });
        (told.await.unwrap(), end)
    }

    #[tokio::test]
    async fn a_connection_is_served_by_the_thread_that_has_the_fewest() {
        let (workers, mut owner) = (two(), JoinSet::new());
        let (first, end) = begin(&workers, &mut owner).await;
        let (second, _goes_on) = begin(&workers, &mut owner).await;
        assert_ne!(first, second);
        drop(end);
        owner.join_next().await.unwrap().unwrap();
        assert_eq!(begin(&workers, &mut owner).await.0, first);
    }

    #[tokio::test]
    async fn what_goes_on_ends_with_its_owner_or_with_the_threads() {
        for ends_threads in [false, true] {
            let (workers, mut owner) = (two(), JoinSet::new());
            let (held, released) = oneshot::channel::<()>();
            spawn(&workers, &mut owner, async move {
                let _held = held;
                pending().await
            });
            if ends_threads {
                drop(workers);
                assert!(released.await.is_err());
            } else {
                drop(owner);
                assert!(released.await.is_err());
            }
        }
    }

    #[tokio::test]
    async fn a_thread_that_has_ended_gets_no_more_connections() {
        let (mut workers, mut owner) = (two(), JoinSet::new());
        let (first, _goes_on) = begin(&workers, &mut owner).await;
        let ended = std::mem::replace(&mut workers.0[0].running, oneshot::channel().0);
        drop(ended);
        assert!(owner.join_next().await.unwrap().unwrap_err().is_cancelled());
        let (other, _goes_on) = begin(&workers, &mut owner).await;
        let (again, _goes_on) = begin(&workers, &mut owner).await;
        assert_eq!((other != first, again), (true, other));
        drop(workers.0.pop());
        assert!(workers.freest().is_none());
    }

    #[tokio::test]
    async fn a_connection_that_fails_gives_its_place_back() {
        let (workers, mut owner) = (two(), JoinSet::new());
        let (first, _goes_on) = begin(&workers, &mut owner).await;
        for _ in 0..3 {
            spawn(&workers, &mut owner, async { panic!("out of luck") });
            assert!(owner.join_next().await.unwrap().unwrap_err().is_panic());
            let (next, end) = begin(&workers, &mut owner).await;
            assert_ne!(next, first);
            drop(end);
            owner.join_next().await.unwrap().unwrap();
        }
    }
}
