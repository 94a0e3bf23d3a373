//! Tasks in the hands of the scheduler, with tokio's names.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures_util::{StreamExt, stream::FuturesUnordered};
pub(crate) use shuttle::future::JoinHandle;
use shuttle::future::{AbortHandle, JoinError};

pub(crate) fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    shuttle::future::spawn(wakeful(work))
}

pub(super) fn block_on<T>(work: impl Future<Output = T>) -> T {
    shuttle::future::block_on(wakeful(work))
}

/// Keeps wake-ups that come while a poll waits for a lock: shuttle 0.9.9 takes those for the lock's own, and the task
/// sleeps on.
async fn wakeful<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let called = Arc::new(Called::default());
    let waker = Waker::from(Arc::clone(&called));
    poll_fn(|cx| {
        called.listen(cx.waker());
        let polled = work.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_pending() && called.called.load(Ordering::Relaxed) {
            cx.waker().wake_by_ref();
        }
        polled
    })
    .await
}

#[derive(Default)]
struct Called {
    called: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Called {
    fn listen(&self, task: &Waker) {
        self.called.store(false, Ordering::Relaxed);
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

/// Tasks that end with it.
#[derive(Debug)]
pub(crate) struct JoinSet<T>(FuturesUnordered<JoinHandle<T>>);

impl<T> JoinSet<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T: Send + 'static> JoinSet<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn new() -> JoinSet<T> {
        JoinSet(FuturesUnordered::new())
    }

    pub(crate) fn spawn(&mut self, work: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        let task = spawn(work);
        let handle = task.abort_handle();
        self.0.push(task);
        handle
    }

    pub(crate) async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.0.next().await
    }

    pub(crate) async fn join_all(mut self) -> Vec<T> {
        let mut all = Vec::new();
        while let Some(done) = self.join_next().await {
            all.push(done.expect("nobody ends it before"));
        }
        all
    }
}

impl<T> Drop for JoinSet<T> {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}
