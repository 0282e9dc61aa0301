//! The tasks of a sandbox. All have one owner, and none may end before the sandbox does.

use std::collections::HashMap;
use std::future::{Future, pending};

use tokio::task::{Id, JoinSet};

/// Tasks that do not end by themselves. Dropping this value ends them.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<Option<String>>,
    names: HashMap<Id, &'static str>,
}

/// The end of a task that the sandbox cannot go on without.
#[derive(Debug, thiserror::Error)]
pub enum TaskEnded {
    #[error("the {0} ended unexpectedly, so the sandbox ends")]
    /// The task returned, although it should never end.
    Returned(&'static str),
    #[error("{0}; the sandbox ends")]
    /// The task ended for this reason.
    Reason(String),
    #[error("the {0} failed, so the sandbox ends; this is a fault of openshell-sandbox: {1}")]
    /// The task failed because of a fault in this program.
    Panicked(&'static str, String),
}

impl Tasks {
    /// Starts a task. Must be called inside a tokio runtime.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let task = async move {
            task.await;
            None
        };
        let id = self.running.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Starts a task whose end, with the reason that it returns, ends the sandbox. Must be called
    /// inside a tokio runtime.
    pub fn spawn_watch(
        &mut self,
        name: &'static str,
        task: impl Future<Output = String> + Send + 'static,
    ) {
        let id = self.running.spawn(async move { Some(task.await) }).id();
        self.names.insert(id, name);
    }

    /// Waits until a task has ended.
    pub async fn ended(&mut self) -> TaskEnded {
        let name = |id: Id| self.names.get(&id).copied().unwrap_or("task");
        match self.running.join_next_with_id().await {
            Some(Ok((id, None))) => TaskEnded::Returned(name(id)),
            Some(Ok((_, Some(reason)))) => TaskEnded::Reason(reason),
            Some(Err(error)) => TaskEnded::Panicked(name(error.id()), error.to_string()),
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::Tasks;

    #[tokio::test]
    async fn a_task_that_ends_is_named_with_its_cause_and_the_others_end_with_their_owner() {
        let mut tasks = Tasks::default();
        let (held, released) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn("proxy", async move {
            let _held = held;
            pending().await
        });
        tasks.spawn("reaper", async {});
        assert_eq!(
            tasks.ended().await.to_string(),
            "the reaper ended unexpectedly, so the sandbox ends"
        );
        tasks.spawn_watch("watch", async { "the file is gone".to_owned() });
        assert_eq!(
            tasks.ended().await.to_string(),
            "the file is gone; the sandbox ends"
        );
        tasks.spawn("monitor", async { panic!("out of luck") });
        let ended = tasks.ended().await.to_string();
        assert!(
            ended.starts_with("the monitor failed") && ended.contains("out of luck"),
            "{ended}"
        );
        drop(tasks);
        assert!(released.await.is_err(), "the proxy's task was dropped");
    }

    #[tokio::test]
    async fn without_tasks_none_ends() {
        let mut tasks = Tasks::default();
        tokio::select! {
            biased;
            ended = tasks.ended() => panic!("{ended}"),
            () = std::future::ready(()) => {}
        }
    }
}
