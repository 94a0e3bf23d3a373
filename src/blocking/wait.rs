//! The background thread, and how a calling thread waits for a result.

use std::{future::Future, io, sync::OnceLock, time::Duration};

use tokio::{
    runtime::{Builder, Handle, Runtime, RuntimeFlavor},
    task::{block_in_place, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Lost, Result},
    owner::Owner,
};

/// Runs `work` on this thread, which is its owner, until there is a result.
pub(super) fn wait<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let place = Place::here()?;
    let background = background()?;
    let work = || background.block_on(Owner::thread().scope(work));
    match place {
        Place::Plain => work(),
        Place::Worker => block_in_place(work),
    }
}

/// Waits for a release, but for no longer than `limit`. Where this thread cannot wait, the release goes on in the background.
pub(super) fn released(limit: Duration, release: impl Future<Output = Result<()>>) {
    // A failed release is logged, and goes on in the background too.
    let _ = wait(async { timeout(limit, release).await.unwrap_or(Ok(())) });
}

/// Runs `work` with the timers and tasks of the background thread. For a guard: its thread was started to acquire it.
pub(super) fn enter<T>(work: impl FnOnce(&Handle) -> T) -> T {
    let background = background().expect("it was started before there was a guard").handle();
    let _entered = background.enter();
    work(background)
}

/// Runs `callback`, on a thread of its own, after a loss; never once the guard is `over`.
pub(super) fn when<L: Future<Output = Lost> + Send + 'static>(
    watch: impl FnOnce() -> L,
    over: CancellationToken,
    callback: impl FnOnce(Lost) + Send + 'static,
) {
    enter(|background| {
        let lost = watch();
        background.spawn(async move {
            let lost = tokio::select! {
                biased; // a release that finds a loss says so first
                lost = lost => lost,
                () = over.cancelled() => return,
            };
            let _ = spawn_blocking(move || callback(lost)).await; // fails only if it panics
        });
    });
}

/// What the calling thread does.
enum Place {
    Plain,
    /// It runs tasks, and others can run them meanwhile.
    Worker,
}

impl Place {
    fn here() -> Result<Place> {
        let refused = |reason: &str| Err(Error::config("runtime", reason));
        match Handle::try_current() {
            Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread => refused(
                "leasehold::blocking was called inside a current-thread tokio runtime, whose tasks would all stop: use the \
                 async interface, or a thread of your own",
            ),
            Ok(_) => Ok(Place::Worker),
            Err(error) if error.is_thread_local_destroyed() => {
                refused("leasehold::blocking was called while its thread ends")
            }
            Err(_) => Ok(Place::Plain),
        }
    }
}

/// Started once for all clients.
fn background() -> Result<&'static Runtime> {
    static BACKGROUND: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = BACKGROUND.get() {
        return Ok(runtime);
    }
    let failed = |error| Error::config("runtime", format!("the background thread cannot be started: {error}"));
    if let Err(late) = BACKGROUND.set(start().map_err(failed)?) {
        late.shutdown_background(); // another thread was faster
    }
    Ok(BACKGROUND.get().expect("it was set just now"))
}

fn start() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("leasehold-blocking").enable_all().build()
}
