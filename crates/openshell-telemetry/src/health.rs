//! The state of a sandbox as probes see it.

use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

/// Longest time in which a thread that works takes a task.
const RESPONSE: Duration = Duration::from_millis(500);

/// Phase of a sandbox's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The workload does not run yet.
    Starting,
    /// It runs.
    Ready,
    /// The sandbox was asked to end, or its command has ended.
    Draining,
    /// A part without which the sandbox cannot go on has failed.
    Failed,
}

/// Tests threads; see [`Health::test_with`].
pub type Respond = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

struct Test(Respond);

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Test").finish_non_exhaustive()
    }
}

/// Phase and threads of a sandbox.
#[derive(Debug)]
pub struct Health {
    phase: AtomicU8,
    /// The runtime of the supervisor's own tasks.
    main: Handle,
    /// The test of the threads of connections, once there are some.
    workers: OnceLock<Test>,
}

impl Health {
    /// Creates the state of a sandbox that starts, on the runtime of its tasks.
    ///
    /// # Panics
    /// This is called outside of a tokio runtime.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it needs a runtime")]
    pub fn new() -> Self {
        Self {
            phase: AtomicU8::new(0),
            main: Handle::current(),
            workers: OnceLock::new(),
        }
    }

    /// Enters `phase`; a later one is not left for an earlier one.
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

    /// Takes the test of the threads of connections: it is true once all have taken a task, and
    /// false if one never will. The first one counts.
    pub fn test_with(&self, respond: Respond) {
        let _ = self.workers.set(Test(respond));
    }

    /// Why the sandbox is not healthy: a part has failed, or a thread takes no task.
    pub(crate) async fn failure(&self) -> Option<&'static str> {
        if self.phase() == Phase::Failed {
            return Some("a part of the sandbox has failed");
        }
        // A start looks at files and waits for init on this thread, which takes milliseconds.
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

    /// Why the sandbox is not ready.
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
                    // As a task that blocks does; nothing runs here from now on.
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
