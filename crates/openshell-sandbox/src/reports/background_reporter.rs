//! Tasks that report on the workload, and may have something left to report after its end.

use std::future::pending;
use std::time::Duration;

use tokio::sync::oneshot;

use openshell_sources::tasks::Tasks;

/// The longest wait for the last reports.
const FINISH: Duration = Duration::from_secs(1);

/// A task that reports connections, or attempts to bypass the proxy.
pub(crate) struct BackgroundReporter {
    stop: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl BackgroundReporter {
    /// Starts a task that ends after its argument completes. Must be called inside a tokio runtime.
    pub(crate) fn start<F>(
        tasks: &mut Tasks,
        name: &'static str,
        task: impl FnOnce(oneshot::Receiver<()>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let (done, ended) = oneshot::channel();
        let task = task(stopped);
        tasks.spawn(name, async move {
            task.await;
            drop(done);
            pending().await
        });
        Self { stop, ended }
    }

    /// Stops the task, and waits until it has reported everything, but at most [`FINISH`].
    pub(crate) async fn finish(self) {
        drop(self.stop);
        let _ = tokio::time::timeout(FINISH, self.ended).await;
    }
}
