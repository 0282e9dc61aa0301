//! Threads that enter network namespaces to open sockets or descriptors there.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;

/// Runs `work` inside `namespace` on a separate thread, and waits for it. The calling thread stays
/// in its namespace.
///
/// # Errors
/// Fails if the namespace cannot be entered, or if `work` fails.
pub fn run_in<T: Send>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let in_namespace = || {
            enter(namespace)?;
            work()
        };
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, in_namespace)?;
        thread.join().unwrap_or_else(|_| Err(panicked()))
    })
}

/// Work that is in progress on a thread that changes its namespace. Dropping it waits until the
/// work ends.
#[derive(Debug)]
pub struct Pending<T> {
    result: Receiver<T>,
    /// `None` once the result was taken.
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Pending<T> {
    pub(super) fn start(work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        let (sender, result) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn(move || drop(sender.send(work())))?;
        Ok(Self {
            result,
            thread: Some(thread),
        })
    }
}

impl<T> Pending<T> {
    /// Waits until the thread has exited. The result stays to be taken.
    pub fn settle(&mut self) {
        // A panic has already been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }

    /// Waits for the result, and not for the exit of the thread, which may have to wait for a
    /// processor.
    ///
    /// # Errors
    /// Fails if the thread panicked.
    pub fn finish(mut self) -> io::Result<T> {
        let result = self.result.recv().map_err(|_| panicked())?;
        drop(self.thread.take());
        Ok(result)
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.settle();
    }
}

fn panicked() -> io::Error {
    io::Error::other("the namespace thread panicked")
}

/// Moves the calling thread into `namespace`.
pub(super) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(
        namespace,
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Moves the calling thread into a new, empty and unnamed network namespace. The namespace lives as
/// long as a descriptor, a socket or a process refers to it.
pub(super) fn enter_new() -> io::Result<OwnedFd> {
    crate::sys::unshare_network()?;
    Ok(rustix::fs::open(
        "/proc/thread-self/ns/net",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )?)
}
