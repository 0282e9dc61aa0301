//! Answers, on its own threads, the system calls of the sandbox that wait for the supervisor
//! (seccomp_unotify(2)).

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::sys::notify::{self, Answer, Notification};

/// The largest number of threads. None of them waits for a connection, but each may have to wait
/// for memory of its caller, a lock of a socket, or a slow file system.
pub(crate) const THREADS: usize = 8;

/// The listener for calls of all commands. The calls wait until they are answered.
#[derive(Debug)]
pub struct WaitingCalls(Arc<OwnedFd>);

/// Answers the calls of one kind.
pub(crate) trait Handle: Send + Sync {
    /// Answers a call. Must not wait for anything that its caller can delay for long.
    fn answer(&self, call: &Notification) -> Answer;

    /// Reports that calls are no longer answered, so that every further call waits forever.
    fn failed(&self, error: io::Error);
}

/// A handler of calls of one kind.
#[derive(Clone)]
pub struct Handler(Arc<dyn Handle>);

impl Handler {
    pub(crate) fn new(handle: Arc<dyn Handle>) -> Self {
        Self(handle)
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

/// The handlers of the calls that the filter hands over. A call without a handler goes on.
#[derive(Clone, Debug, Default)]
pub struct Handlers {
    /// The handler of connect(2) and listen(2).
    pub connects: Option<Handler>,
    /// The handler of calls that name files.
    pub files: Option<Handler>,
}

/// An error for a thread that cannot be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the thread that identifies callers; raise the limit of processes (pids.max, \
     ulimit -u)"
)]
pub struct ThreadError(#[source] io::Error);

impl WaitingCalls {
    pub(crate) fn new(listener: OwnedFd) -> Self {
        Self(Arc::new(listener))
    }

    /// Returns the listener.
    pub(crate) fn listener(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }

    /// Starts to answer the calls. The threads end with the last process of the sandbox, or with
    /// the supervisor.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub fn serve(self, handlers: Handlers) -> Result<(), ThreadError> {
        notify::wake_on_one_processor(self.0.as_fd());
        let threads = AtomicUsize::new(0);
        let receiving = AtomicUsize::new(0);
        Arc::new(Server {
            listener: self.0,
            handlers,
            threads,
            receiving,
        })
        .start_thread()
        .map_err(ThreadError)
    }
}

struct Server {
    listener: Arc<OwnedFd>,
    handlers: Handlers,
    /// The number of threads, and of those among them that are not answering a notification.
    threads: AtomicUsize,
    receiving: AtomicUsize,
}

impl Server {
    /// Starts a thread that receives calls, unless there are [`THREADS`] already.
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let free = |count: usize| (count < THREADS).then_some(count + 1);
        let taken = self
            .threads
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        taken.map_err(|_| io::ErrorKind::QuotaExceeded)?;
        self.receiving.fetch_add(1, Ordering::Relaxed);
        let server = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || server.serve());
        started.map(drop).inspect_err(|_| {
            self.receiving.fetch_sub(1, Ordering::Relaxed);
            self.threads.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Answers notifications until no process of the sandbox is left.
    fn serve(self: Arc<Self>) {
        let guard = FailureNotice(&self);
        loop {
            let received = notify::receive(self.listener.as_fd());
            match received {
                Ok(call) => {
                    // Another thread receives meanwhile, so that calls do not wait for each other.
                    // If none can be started, they do.
                    if self.receiving.fetch_sub(1, Ordering::Relaxed) == 1 {
                        let _ = self.start_thread();
                    }
                    let answer = self.answer(&call);
                    // An error means that the caller was killed.
                    let _ = notify::answer(self.listener.as_fd(), call.id, answer);
                    self.receiving.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The caller was killed, or no process is left.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                    if self.is_deserted() {
                        return std::mem::forget(guard);
                    }
                }
                Err(error) => {
                    std::mem::forget(guard);
                    return self.report_failure(&error);
                }
            }
        }
    }

    fn answer(&self, call: &Notification) -> Answer {
        let handler = match i64::from(call.number) {
            libc::SYS_connect | libc::SYS_listen => &self.handlers.connects,
            _ => &self.handlers.files,
        };
        handler
            .as_ref()
            .map_or(Answer::Continue, |Handler(handle)| handle.answer(call))
    }

    /// Returns true if no process of the sandbox is left.
    fn is_deserted(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut listener = [PollFd::new(&*self.listener, PollFlags::empty())];
        let polled = rustix::event::poll(&mut listener, Some(&now));
        polled.is_ok() && listener[0].revents().contains(PollFlags::HUP)
    }

    fn report_failure(&self, error: &io::Error) {
        for Handler(handle) in [&self.handlers.connects, &self.handlers.files]
            .into_iter()
            .flatten()
        {
            handle.failed(io::Error::new(error.kind(), error.to_string()));
        }
    }
}

/// Reports that a thread has ended by a panic.
struct FailureNotice<'s>(&'s Server);

impl Drop for FailureNotice<'_> {
    fn drop(&mut self) {
        self.0
            .report_failure(&io::Error::other("its thread panicked"));
    }
}
