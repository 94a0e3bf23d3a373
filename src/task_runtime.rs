//! The runtime of a client's tasks: the caller's runtime if it is multi-threaded, else one thread of the client.
//!
//! A current-thread runtime does not run after its `block_on` has returned, or while the body blocks. The client must renew leases and
//! send releases even then. The price is a switch of threads per request: 7 % of a round trip on a two-core machine. From a
//! multi-threaded runtime it would be up to 25 %.

use std::{
    future::{Future, pending},
    io,
    panic::catch_unwind,
    thread,
};

use tokio::{
    runtime::{Builder, Handle, Runtime, RuntimeFlavor},
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    error::{Error, Result},
    sync::tokio,
};

/// A runtime that some thread drives.
#[derive(Debug)]
pub(crate) struct TaskRuntime {
    handle: Handle,
    /// The client's own thread. It ends when the task that is sent here has ended.
    own: Option<oneshot::Sender<JoinHandle<()>>>,
}

impl TaskRuntime {
    /// `own_thread` decides. If it is `None`, the flavor of the caller's runtime decides.
    pub(crate) fn find(own_thread: Option<bool>) -> Result<TaskRuntime> {
        let current = Handle::try_current().ok();
        match current {
            Some(handle) if !own_thread.unwrap_or(!is_threaded(&handle)) => {
                has_timers(&handle)?;
                Ok(TaskRuntime { handle, own: None })
            }
            _ => TaskRuntime::own_thread().map_err(Error::no_thread),
        }
    }

    /// The thread comes first: where it is refused, this may be a task, in which no runtime may be dropped.
    fn own_thread() -> io::Result<TaskRuntime> {
        let (give, given) = std::sync::mpsc::channel::<Runtime>();
        let (own, last) = oneshot::channel::<JoinHandle<()>>();
        let drive = async {
            if let Ok(task) = last.await {
                let _ = task.await;
            }
        };
        let name = "leasehold".into();
        thread::Builder::new().name(name).spawn(move || given.recv().map(|runtime| runtime.block_on(drive)))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        give.send(runtime).map_err(io::Error::other)?;
        Ok(TaskRuntime { handle, own: Some(own) })
    }

    /// An error if the caller polls outside a runtime: its timers would panic there.
    pub(crate) fn around(what: &str) -> Result<()> {
        Handle::try_current().map(drop).map_err(|_| Error::no_runtime(what))
    }

    /// True if a task that is spawned here runs on after the caller's `block_on` has returned.
    pub(crate) fn runs_on() -> bool {
        Handle::try_current().is_ok_and(|handle| is_threaded(&handle))
    }

    /// Runs `work` on that runtime. Dropping the future drops `work`.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let task = tokio_util::task::AbortOnDropHandle::new(self.handle.spawn(work));
        task.await.map_err(Error::connecting_ended)
    }

    /// Runs `work` here. The tasks that it spawns run on that runtime.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        work()
    }

    /// Keeps the client's own thread until that task has ended.
    pub(crate) fn keep_until(self, last_task: JoinHandle<()>) {
        if let Some(own) = self.own {
            let _ = own.send(last_task); // fails only if the thread is gone, and the task with it
        }
    }
}

/// Waits until then by the clock of the caller. Outside a runtime there is none.
pub(crate) async fn pass_until(end: Instant) {
    if Handle::try_current().is_err() {
        return pending().await;
    }
    sleep_until(end).await;
}

/// Else tokio would panic in the tasks of the client.
fn has_timers(runtime: &Handle) -> Result<()> {
    let _entered = runtime.enter();
    let timer = catch_unwind(|| drop(sleep_until(Instant::now())));
    timer.map_err(|_| Error::config("runtime", "it has no timers: call enable_all on its builder"))
}

fn is_threaded(runtime: &Handle) -> bool {
    runtime.runtime_flavor() != RuntimeFlavor::CurrentThread
}
