//! Worker threads for connections. Each thread has its own runtime, and a connection stays on one
//! thread: its events wake no other thread, and its memory returns to the same allocator cache. In
//! a work-stealing runtime, a busy thread would delay the events that it is about to poll for.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::{self, available_parallelism};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::ground::limits::Limits;

/// The worker threads. They are started when connections need them, at most one for each available
/// processor and at most [`Limits::WORKERS`]. Dropping them ends their connections.
#[derive(Debug)]
pub struct Workers {
    running: Mutex<Vec<Worker>>,
    most: usize,
}

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    /// The load is the number of clones of this: the [`WorkerSlot`] of each connection has one.
    connections: Arc<()>,
    /// Ends the thread when dropped.
    running: oneshot::Sender<()>,
}

impl Default for Workers {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::at_most(processors.min(Limits::WORKERS))
    }
}

impl Workers {
    fn at_most(most: usize) -> Self {
        Self {
            running: Mutex::default(),
            most,
        }
    }

    /// Returns the runtime of the first worker, which is started if there is none. A connection
    /// that is accepted there and served there wakes no other thread.
    ///
    /// # Errors
    /// Fails if the system has no more threads or descriptors.
    pub(crate) fn first(&self) -> io::Result<(Handle, WorkerId)> {
        let mut workers = self.running.lock();
        if workers.is_empty() {
            workers.push(Worker::start()?);
        }
        let worker = workers.first().ok_or(io::ErrorKind::NotFound)?;
        Ok((
            worker.runtime.clone(),
            WorkerId(Arc::downgrade(&worker.connections)),
        ))
    }

    /// Waits until every running worker has taken a task; returns false if one of them takes none
    /// any more.
    pub async fn respond(&self) -> bool {
        let runtimes: Vec<_> = {
            let workers = self.running.lock();
            let running = workers.iter().filter(|worker| !worker.running.is_closed());
            running.map(|worker| worker.runtime.clone()).collect()
        };
        for runtime in runtimes {
            if runtime.spawn(async {}).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Returns the runtime of an idle worker, of a new one, or of the one with the fewest
    /// connections; and a slot that the next connection holds.
    ///
    /// # Errors
    /// Fails if no thread runs and the system has no more threads or descriptors.
    pub(crate) fn freest(&self) -> io::Result<(Handle, WorkerSlot)> {
        // A worker is complete before it is added, so it can be used at once.
        let mut workers = self.running.lock();
        workers.retain(|worker| !worker.running.is_closed());
        let load = |worker: &Worker| Arc::strong_count(&worker.connections) - 1;
        let is_idle = workers.iter().any(|worker| load(worker) == 0);
        if !is_idle && workers.len() < self.most {
            match Worker::start() {
                Ok(worker) => workers.push(worker),
                Err(error) if workers.is_empty() => return Err(error),
                // The running ones serve the connection.
                Err(_) => {}
            }
        }
        let worker = workers
            .iter()
            .min_by_key(|worker| load(worker))
            .ok_or(io::ErrorKind::NotFound)?;
        Ok((
            worker.runtime.clone(),
            WorkerSlot {
                connections: Arc::clone(&worker.connections),
            },
        ))
    }
}

/// The identity of a worker.
#[derive(Debug)]
pub(crate) struct WorkerId(Weak<()>);

/// A connection's slot on a worker, which counts until it is dropped.
#[derive(Debug)]
pub(crate) struct WorkerSlot {
    connections: Arc<()>,
}

impl WorkerSlot {
    /// Returns true if this slot belongs to `worker`.
    pub(crate) fn is_of(&self, worker: &WorkerId) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.connections), worker.0.as_ptr())
    }
}

impl Worker {
    fn start() -> io::Result<Self> {
        let (running, ended) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .event_interval(Limits::EVENT_INTERVAL)
            .build()?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("connections".to_owned())
            .spawn(move || {
                // An error means that the workers have been dropped.
                let _ = runtime.block_on(ended);
                runtime.shutdown_background();
            })?;
        Ok(Self {
            runtime: handle,
            connections: Arc::default(),
            running,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::thread::{self, ThreadId};

    use tokio::sync::oneshot;
    use tokio::task::JoinSet;

    use super::Workers;

    fn two() -> Workers {
        Workers::at_most(2)
    }

    fn spawn(
        workers: &Workers,
        owner: &mut JoinSet<()>,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let (runtime, place) = workers.freest().unwrap();
        let work = async move {
            work.await;
            drop(place);
        };
        owner.spawn_on(work, &runtime);
    }

    /// Starts a connection that goes on until `end` is used; returns its thread, and `end`.
    async fn begin(workers: &Workers, owner: &mut JoinSet<()>) -> (ThreadId, oneshot::Sender<()>) {
        let (end, ended) = oneshot::channel::<()>();
        let (tell, told) = oneshot::channel();
        spawn(workers, owner, async move {
            tell.send(thread::current().id()).unwrap();
            let _ = ended.await;
        });
        (told.await.unwrap(), end)
    }

    #[tokio::test]
    async fn a_connection_is_served_by_the_thread_that_has_the_fewest() {
        let workers = two();
        let mut owner = JoinSet::new();
        assert_eq!(
            workers.running.lock().len(),
            0,
            "threads are started when they are needed"
        );
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
            let workers = two();
            let mut owner = JoinSet::new();
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
        let mut workers = two();
        let mut owner = JoinSet::new();
        let (first, _goes_on) = begin(&workers, &mut owner).await;
        let running = &mut workers.running.get_mut()[0].running;
        drop(std::mem::replace(running, oneshot::channel().0));
        assert!(owner.join_next().await.unwrap().unwrap_err().is_cancelled());
        let (other, _goes_on) = begin(&workers, &mut owner).await;
        assert_ne!(other, first, "a new one is started");
    }

    #[tokio::test]
    async fn a_connection_that_fails_gives_its_place_back() {
        let workers = two();
        let mut owner = JoinSet::new();
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
