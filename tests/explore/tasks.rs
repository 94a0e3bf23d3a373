//! Tasks in the hands of the scheduler, with tokio's names.

use std::{
    collections::HashMap,
    convert::Infallible,
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use shuttle::current::TaskId;
pub(crate) use shuttle::future::{AbortHandle, JoinHandle};

use super::world;

pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    Handle::current().spawn(work)
}

/// A runtime. Its tasks are dropped when it ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handle(usize);

/// All runtimes of an execution. The first one belongs to the scenario.
pub(super) struct Runtimes {
    all: Vec<RuntimeState>,
    of: HashMap<TaskId, usize>,
}

#[derive(Default)]
struct RuntimeState {
    has_ended: bool,
    tasks: Vec<AbortHandle>,
}

impl Default for Runtimes {
    fn default() -> Runtimes {
        Runtimes { all: vec![RuntimeState::default()], of: HashMap::new() }
    }
}

impl Handle {
    pub(crate) fn first() -> Handle {
        Handle(0)
    }

    pub(crate) fn new() -> Handle {
        world::with(|world| {
            world.runtimes.all.push(RuntimeState::default());
            Handle(world.runtimes.all.len() - 1)
        })
    }

    pub(crate) fn current() -> Handle {
        let task = shuttle::current::get_current_task();
        Handle(world::with(|world| task.and_then(|task| world.runtimes.of.get(&task).copied()).unwrap_or(0)))
    }

    #[allow(clippy::unnecessary_wraps)]
    pub(crate) fn try_current() -> Result<Handle, Infallible> {
        Ok(Handle::current())
    }

    /// Drops `work` if the runtime has ended.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        if self.has_ended() {
            drop(work);
            let task = shuttle::future::spawn(pending());
            task.abort();
            return task;
        }
        let runtime = *self;
        let task = shuttle::future::spawn(async move {
            runtime.begin_task();
            wakeful(work).await
        });
        let abort = task.abort_handle();
        world::with(|world| world.runtimes.all[runtime.0].tasks.push(abort));
        if runtime.has_ended() {
            task.abort();
        }
        task
    }

    /// What `work` spawns is spawned here.
    pub(crate) fn within<T>(self, work: impl FnOnce() -> T) -> T {
        let before = Handle::current();
        self.begin_task();
        let result = work();
        before.begin_task();
        result
    }

    /// Drops all its tasks, each at its next await. Those that are spawned later are dropped at once.
    pub(crate) fn end(self) {
        let tasks = world::with(|world| {
            let state = &mut world.runtimes.all[self.0];
            state.has_ended = true;
            std::mem::take(&mut state.tasks)
        });
        tasks.iter().for_each(AbortHandle::abort);
    }

    fn has_ended(self) -> bool {
        world::with(|world| world.runtimes.all[self.0].has_ended)
    }

    fn begin_task(self) {
        let task = shuttle::current::me();
        world::with(|world| world.runtimes.of.insert(task, self.0));
    }
}

pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    shuttle::future::block_on(wakeful(work))
}

/// Polls `work` after a wake-up, and only then. shuttle 0.9.9 takes a wake-up that comes while a poll waits for a lock for the lock's own,
/// and the task sleeps on. It also polls tasks that nobody woke, which would hide a wake-up that is missing.
async fn wakeful<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let called = Arc::new(Called { called: AtomicBool::new(true), task: Mutex::default() });
    let waker = Waker::from(Arc::clone(&called));
    poll_fn(|cx| {
        called.listen(cx.waker());
        if !called.called.swap(false, Ordering::Relaxed) {
            return Poll::Pending;
        }
        let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_pending() && called.called.load(Ordering::Relaxed) {
            cx.waker().wake_by_ref();
        }
        polled
    })
    .await
}

struct Called {
    called: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Called {
    fn listen(&self, task: &Waker) {
        *self.task.lock().expect("nobody panics with it") = Some(task.clone());
    }
}

impl Wake for Called {
    fn wake(self: Arc<Called>) {
        self.called.store(true, Ordering::Relaxed);
        let task = self.task.lock().expect("nobody panics with it").clone();
        task.into_iter().for_each(Waker::wake);
    }
}
