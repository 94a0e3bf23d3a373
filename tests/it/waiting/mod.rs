//! Waiting: in order, notified, never much longer than the wait limit; and a caller that leaves leaves nothing behind.

mod cancelled;
mod channels;
mod crowd;
mod deadlocks;
mod listeners;
mod missed_wakeups;
mod passing;
mod pubsub;
mod slow_callers;
mod turns;
mod unpolled;
mod waiters;
mod wakers;
