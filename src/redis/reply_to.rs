//! A caller that waits for something from a task of the client.

use tokio::sync::oneshot;

use crate::{contained::contained, sync::tokio};

/// The caller's waker is the program's code. If it panics, that must not end the task that sends the reply, nor a task that drops this.
#[derive(Debug)]
pub(super) struct ReplyTo<T>(Option<oneshot::Sender<T>>);

impl<T> ReplyTo<T> {
    pub(super) fn new() -> (ReplyTo<T>, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (ReplyTo(Some(sender)), receiver)
    }

    /// Resolves when the caller has left.
    pub(super) async fn left(&mut self) {
        if let Some(sender) = &mut self.0 {
            sender.closed().await;
        }
    }

    /// A caller that has left releases the lock.
    pub(super) fn send(mut self, reply: T) {
        let sender = self.0.take();
        contained(|| _ = sender.map(|sender| sender.send(reply)));
    }
}

impl<T> Drop for ReplyTo<T> {
    fn drop(&mut self) {
        if let Some(sender) = self.0.take() {
            contained(|| drop(sender));
        }
    }
}
