//! The background thread, and how a calling thread waits for a result.

use std::{
    future::Future,
    io,
    mem::needs_drop,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process,
    sync::OnceLock,
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle, Runtime, RuntimeFlavor},
    task::{block_in_place, spawn_blocking},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    contained::contained,
    error::{Error, Lost, Result},
    owner::Owner,
};

/// Callbacks that may block at once. Each has a thread, which ends when it is idle; tokio's own limit of 512 would also hold up the look-up
/// of host names.
const CALLBACKS: usize = 1 << 16;

/// Runs `work` on this thread, which is its owner, until there is a result.
pub(super) fn wait<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let place = Place::to_wait()?;
    let background = background()?;
    let work = || background.block_on(Owner::thread().scope(work));
    match place {
        Place::Plain => work(),
        Place::Worker => beside_tasks(work)?,
        Place::Ending => refused("leasehold::blocking was called while its thread ends"),
    }
}

/// Hands the other tasks of this thread over to another thread. A `LocalSet` cannot do that: there tokio panics before it runs `work`, and
/// nothing else says so.
fn beside_tasks<T>(work: impl FnOnce() -> T) -> Result<T> {
    let mut has_begun = false;
    let begin = || {
        has_begun = true;
        work()
    };
    match catch_unwind(AssertUnwindSafe(|| block_in_place(begin))) {
        Ok(done) => Ok(done),
        Err(panic) if has_begun => resume_unwind(panic),
        Err(_) => refused(
            "leasehold::blocking was called inside a tokio LocalSet or runtime whose tasks would all stop: use the async interface, or a \
             thread of your own",
        ),
    }
}

fn refused<T>(reason: &str) -> Result<T> {
    Err(Error::config("runtime", reason))
}

/// Waits for a release, but for no longer than `limit`. Where this thread cannot wait, the release goes on in the background. Also if tokio
/// panics because this thread ends, which [`Place`] does not always see: a panic in the destructor of a thread-local value ends the process.
pub(super) fn released(limit: Duration, release: impl Future<Output = Result<()>> + Send) {
    // A failed release is logged, and goes on in the background too.
    let wait = || _ = wait(async { timeout(limit, release).await.unwrap_or(Ok(())) });
    contained(|| match Place::to_wait() {
        Ok(Place::Ending) => on_another_thread(wait),
        Ok(Place::Plain | Place::Worker) | Err(_) => wait(),
    });
}

/// Runs `work` with the timers and tasks of the background thread. For a guard: its thread was started to acquire it.
pub(super) fn enter<T: Send>(work: impl FnOnce(&Handle) -> T + Send) -> T {
    let background = BACKGROUND.get().expect("it was started before there was a guard").1.handle();
    let work = || {
        let _entered = background.enter();
        work(background)
    };
    match Place::here() {
        Ok(Place::Ending) => on_another_thread(work),
        Ok(Place::Plain | Place::Worker) | Err(_) => work(),
    }
}

/// For the destructor of a thread-local value: what tokio keeps for this thread may be gone.
fn on_another_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = thread::scope(|threads| threads.spawn(work).join());
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs `callback`, on a thread of its own, after a loss; never once the guard is `over`.
pub(super) fn when<L: Future<Output = Lost> + Send + 'static, C: FnOnce(Lost) + Send + 'static>(
    watch: impl FnOnce() -> L + Send,
    over: CancellationToken,
    callback: C,
) {
    enter(|background| {
        let lost = watch();
        background.spawn(async move {
            let lost = tokio::select! {
                biased; // a release that finds a loss says so first
                lost = lost => Some(lost),
                () = over.cancelled() => None,
            };
            match lost {
                Some(lost) => _ = spawn_blocking(move || callback(lost)).await, // fails only if it panics
                None => drop_elsewhere(callback),
            }
        });
    });
}

/// Its destructor may block, which would stop the background thread, and with it every lock of this process.
fn drop_elsewhere<T: Send + 'static>(value: T) {
    if needs_drop::<T>() {
        spawn_blocking(move || drop(value));
    }
}

/// What the calling thread does.
enum Place {
    Plain,
    /// It runs tasks, and others can run them meanwhile.
    Worker,
    /// It ends, and runs the destructors of thread-local values.
    Ending,
}

/// Destroyed at the end of a thread, before all thread-local values that are older.
struct CanWait;

impl Drop for CanWait {
    fn drop(&mut self) {}
}

thread_local! {
    static CAN_WAIT: CanWait = const { CanWait };
}

impl Place {
    /// Of a thread that waits next. What tokio needs for that is another thread-local value than the one that [`here`](Place::here) looks
    /// at, and may be gone before it. It is made in the first wait of the thread, directly after `CAN_WAIT`.
    fn to_wait() -> Result<Place> {
        match Place::here()? {
            Place::Plain if CAN_WAIT.try_with(|_| ()).is_err() => Ok(Place::Ending),
            place => Ok(place),
        }
    }

    fn here() -> Result<Place> {
        match Handle::try_current() {
            Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread => refused(
                "leasehold::blocking was called inside a current-thread tokio runtime, whose tasks would all stop: use the \
                 async interface, or a thread of your own",
            ),
            Ok(_) => Ok(Place::Worker),
            Err(error) if error.is_thread_local_destroyed() => Ok(Place::Ending),
            Err(_) => Ok(Place::Plain),
        }
    }
}

/// Started once for all clients of this process. A process that is forked later does not have its thread.
static BACKGROUND: OnceLock<(u32, Runtime)> = OnceLock::new();

fn background() -> Result<&'static Runtime> {
    if BACKGROUND.get().is_none()
        && let Err((_, late)) = BACKGROUND.set((process::id(), start().map_err(Error::no_thread)?))
    {
        late.shutdown_background(); // another thread was faster
    }
    match BACKGROUND.get().expect("it was set just now, or before") {
        (process, runtime) if *process == process::id() => Ok(runtime),
        _ => refused("this process was forked after leasehold::blocking was used: use it after the fork only"),
    }
}

/// tokio panics if the system refuses it the thread of a worker.
fn start() -> io::Result<Runtime> {
    let start = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(CALLBACKS)
            .thread_name("leasehold-blocking")
            .enable_all()
            .build()
    };
    catch_unwind(start).unwrap_or_else(|_panic| Err(io::Error::other("the system refuses a thread")))
}
