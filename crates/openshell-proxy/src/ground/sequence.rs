//! Work that takes long, one piece after the other on a thread of its own: what it allocates and frees
//! stays in one place of the allocator, and not in one for each thread of a pool.

use std::io;
use std::sync::mpsc;
use std::thread;

use parking_lot::Mutex;
use tokio::sync::oneshot;

type Work = Box<dyn FnOnce() + Send>;

/// A thread for work. It is started when it is first needed, and ends when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    queue: Mutex<Option<mpsc::Sender<Work>>>,
}

impl Sequence {
    /// Performs `work` after what was asked for before, and returns what it returns.
    ///
    /// # Errors
    /// Fails if the system has no more threads, or if the work panics.
    pub(crate) async fn perform<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (done, result) = oneshot::channel();
        // Nobody waits for the result of what was given up.
        self.send(Box::new(move || drop(done.send(work()))))?;
        result.await.map_err(io::Error::other)
    }

    fn send(&self, work: Work) -> io::Result<()> {
        let mut queue = self.queue.lock();
        let unsent = match &*queue {
            Some(running) => running.send(work).map_err(|mpsc::SendError(work)| work),
            None => Err(work),
        };
        let Err(work) = unsent else {
            return Ok(());
        };
        // None was started, or the last one has ended with what it performed.
        let (sender, receiver) = mpsc::channel::<Work>();
        thread::Builder::new()
            .name("long work".to_owned())
            .spawn(move || {
                for work in receiver {
                    work();
                }
            })?;
        let sent = sender.send(work);
        *queue = Some(sender);
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::Sequence;

    #[tokio::test]
    async fn all_work_is_performed_by_one_thread_also_after_a_panic() {
        let sequence = Sequence::default();
        let number = || thread::current().id();
        let first = sequence.perform(number).await.unwrap();
        assert_eq!(sequence.perform(number).await.unwrap(), first);
        assert_ne!(first, number());
        let failed = sequence.perform(|| panic!("out of luck")).await;
        assert!(failed.map(|()| "done").is_err());
        // The thread may still be ending, and takes work that it does not perform.
        while sequence.perform(number).await.is_err() {}
    }

    #[tokio::test]
    async fn the_thread_ends_with_its_owner() {
        let sequence = Sequence::default();
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        sequence
            .perform(move || {
                thread_local! {
                    static HELD: std::cell::RefCell<Option<tokio::sync::oneshot::Sender<()>>> =
                        const { std::cell::RefCell::new(None) };
                }
                HELD.set(Some(held));
            })
            .await
            .unwrap();
        drop(sequence);
        assert!(released.await.is_err());
    }
}
