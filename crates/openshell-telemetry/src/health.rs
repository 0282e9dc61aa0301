//! The state of a sandbox as probes see it.

use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

/// How long a thread that works may take to start a task.
const RESPONSE: Duration = Duration::from_millis(500);

/// The phase of a sandbox's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The workload does not run yet.
    Starting,
    /// The workload runs.
    Ready,
    /// The sandbox was asked to end, or its command has ended.
    Draining,
    /// A part that the sandbox cannot do without has failed.
    Failed,
}

/// Tests whether threads respond; see [`Health::test_with`].
pub type Respond = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

struct Test(Respond);

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test").finish_non_exhaustive()
    }
}

/// The phase and the threads of a sandbox.
#[derive(Debug)]
pub struct Health {
    phase: AtomicU8,
    /// The runtime of the supervisor's own tasks.
    main: Handle,
    /// The test of the threads for connections, once there are some.
    workers: OnceLock<Test>,
}

impl Health {
    /// Creates the state of a sandbox that is starting; must be called on the runtime of its tasks.
    ///
    /// # Panics
    /// Panics if it is called outside of a tokio runtime.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it needs a runtime")]
    pub fn new() -> Self {
        Self {
            phase: AtomicU8::new(0),
            main: Handle::current(),
            workers: OnceLock::new(),
        }
    }

    /// Enters `phase`, unless a later phase was entered before.
    pub fn enter(&self, phase: Phase) {
        let number = match phase {
            Phase::Starting => 0,
            Phase::Ready => 1,
            Phase::Draining => 2,
            Phase::Failed => 3,
        };
        self.phase.fetch_max(number, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            2 => Phase::Draining,
            _ => Phase::Failed,
        }
    }

    /// Sets the test of the threads for connections, which returns true once every thread has taken
    /// a task, and false if one never will. Only the first call has an effect.
    pub fn test_with(&self, respond: Respond) {
        let _ = self.workers.set(Test(respond));
    }

    /// Returns why the sandbox is not healthy: a part has failed, or a thread takes no tasks.
    pub(crate) async fn failure(&self) -> Option<&'static str> {
        if self.phase() == Phase::Failed {
            return Some("a part of the sandbox has failed");
        }
        // A start also reads files and waits for init on this thread, but only for milliseconds.
        if !matches!(
            timeout(RESPONSE, self.main.spawn(async {})).await,
            Ok(Ok(()))
        ) {
            return Some("the supervisor's tasks do not run");
        }
        match self.workers.get() {
            Some(Test(respond)) if timeout(RESPONSE, respond()).await != Ok(true) => {
                Some("a thread of connections does not run")
            }
            _ => None,
        }
    }

    /// Returns why the sandbox is not ready.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        match self.phase() {
            Phase::Ready => None,
            Phase::Starting => Some("the command does not run yet"),
            Phase::Draining => Some("the sandbox ends"),
            Phase::Failed => Some("a part of the sandbox has failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use tokio::runtime::Builder;

    use super::{Health, Phase};

    #[test]
    fn a_runtime_that_hangs_is_no_healthy_one_within_a_second() {
        let (send, receive) = mpsc::channel();
        let (release, hung) = mpsc::channel::<()>();
        let main = std::thread::spawn(move || {
            Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(async {
                    let health = Health::new();
                    tokio::task::yield_now().await;
                    // This thread now hangs like one with a task that blocks; nothing runs on it
                    // any more.
                    send.send(health).unwrap();
                    let _ = hung.recv();
                    std::future::pending::<()>().await;
                });
        });
        let health = receive.recv().unwrap();
        let probe = Builder::new_current_thread().enable_all().build().unwrap();
        let begun = Instant::now();
        assert_eq!(
            probe.block_on(health.failure()),
            Some("the supervisor's tasks do not run")
        );
        assert!(begun.elapsed().as_secs_f64() < 1.0);
        drop(release);
        while probe.block_on(health.failure()).is_some() {}
        health.test_with(Box::new(|| Box::pin(async { false })));
        assert_eq!(
            probe.block_on(health.failure()),
            Some("a thread of connections does not run")
        );
        drop(main);
    }

    #[tokio::test]
    async fn phases_go_forward_alone() {
        let health = Health::new();
        assert_eq!(health.unready(), Some("the command does not run yet"));
        health.enter(Phase::Ready);
        assert_eq!((health.unready(), health.failure().await), (None, None));
        health.enter(Phase::Draining);
        health.enter(Phase::Ready);
        assert_eq!(
            (health.unready(), health.failure().await),
            (Some("the sandbox ends"), None)
        );
        health.enter(Phase::Failed);
        assert!(health.unready().is_some() && health.failure().await.is_some());
    }
}
