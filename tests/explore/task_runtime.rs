//! In the place of src/task_runtime.rs: runtimes that the exploration starts and ends.

use std::future::Future;

use crate::{
    error::{Error, Result},
    explore::tokio::{
        runtime::Handle,
        task::{AbortHandle, JoinHandle},
        time::{Instant, sleep_until},
    },
};

#[derive(Debug)]
pub(crate) struct TaskRuntime {
    handle: Handle,
    is_own: bool,
}

impl TaskRuntime {
    pub(crate) fn find(own_thread: Option<bool>) -> Result<TaskRuntime> {
        let is_own = own_thread.unwrap_or(false);
        Ok(TaskRuntime { handle: if is_own { Handle::new() } else { Handle::current() }, is_own })
    }

    pub(crate) fn around(_what: &str) -> Result<()> {
        Ok(())
    }

    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let task = self.handle.spawn(work);
        let _aborted = AbortOnDrop(task.abort_handle());
        task.await.map_err(|error| Error::config("own_thread", format!("the task that connects has failed: {error}")))
    }

    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.handle.within(work)
    }

    /// The client's own runtime ends with that task.
    pub(crate) fn keep_until(self, last_task: JoinHandle<()>) {
        if self.is_own {
            let watching = async move {
                let _ = last_task.await;
                self.handle.end();
            };
            drop(Handle::first().spawn(watching));
        }
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Every caller has a clock here.
pub(crate) async fn pass_until(end: Instant) {
    sleep_until(end).await;
}
