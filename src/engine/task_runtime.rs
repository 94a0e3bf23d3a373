//! Where a client's tasks run: on the caller's runtime if that has threads of its own, else on one thread of ours.
//!
//! A current-thread runtime stands still whenever its `block_on` has returned or the body blocks; leases must be
//! renewed and guards given back all the same. The price is a switch of threads per request, 7 % of a round trip on
//! a two-core machine; from a multi-threaded runtime it would be up to 25 %.

use std::{future::Future, io, thread};

use tokio::{
    runtime::{Builder, Handle, RuntimeFlavor},
    sync::oneshot,
    task::JoinHandle,
};

use crate::{
    error::{Error, Result},
    sync::tokio,
};

/// A runtime that is being driven, by somebody.
#[derive(Debug)]
pub(crate) struct TaskRuntime {
    handle: Handle,
    /// Our own thread ends when it has been given a task to wait for, and that task has ended.
    own: Option<oneshot::Sender<JoinHandle<()>>>,
}

impl TaskRuntime {
    /// `own_thread` decides; without it the flavour of the caller's runtime does.
    pub(crate) fn find(own_thread: Option<bool>) -> Result<TaskRuntime> {
        let current = Handle::try_current().ok();
        let threaded = |handle: &Handle| handle.runtime_flavor() != RuntimeFlavor::CurrentThread;
        match current {
            Some(handle) if !own_thread.unwrap_or(!threaded(&handle)) => Ok(TaskRuntime { handle, own: None }),
            _ => TaskRuntime::own_thread().map_err(|error| Error::config("own_thread", error.to_string())),
        }
    }

    fn own_thread() -> io::Result<TaskRuntime> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (own, last) = oneshot::channel::<JoinHandle<()>>();
        thread::Builder::new().name("leasehold".into()).spawn(move || {
            runtime.block_on(async {
                if let Ok(task) = last.await {
                    let _ = task.await;
                }
            });
        })?;
        Ok(TaskRuntime { handle, own: Some(own) })
    }

    /// Whether whoever polls this does so inside a runtime: else its timers would panic.
    pub(crate) fn around(what: &str) -> Result<()> {
        if cfg!(leasehold_explore) {
            return Ok(()); // where time is another
        }
        Handle::try_current().map(drop).map_err(|_| Error::no_runtime(what))
    }

    /// Runs `work` there; it is dropped if the caller loses interest.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let task = tokio_util::task::AbortOnDropHandle::new(self.handle.spawn(work));
        task.await.map_err(|error| Error::config("own_thread", error.to_string()))
    }

    /// Runs `work` so that what it spawns lives there.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        work()
    }

    /// Keeps our own thread for as long as that task runs.
    pub(crate) fn keep_until(self, last_task: JoinHandle<()>) {
        if let Some(own) = self.own {
            let _ = own.send(last_task); // fails only if the thread is gone, and the task with it
        }
    }
}
