//! Time that passes only when the scheduler decides it: while all tasks are asleep, or, in hasty executions, at any moment.

use std::{
    future::{Future, poll_fn},
    ops::{Add, Sub},
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use super::world::{self, Alarm};

/// No scenario waits for as long as this.
const TOO_LONG: Duration = Duration::from_secs(1200);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration); // public functions name it

impl Instant {
    pub(crate) fn now() -> Instant {
        Instant(now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        now().saturating_sub(self.0)
    }

    pub(crate) fn checked_add(self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }

    pub(crate) fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, time: Duration) -> Instant {
        Instant(self.0.saturating_add(time))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    fn sub(self, time: Duration) -> Instant {
        Instant(self.0.saturating_sub(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// Since a beginning that is the same for all.
pub(crate) fn now() -> Duration {
    world::with(|world| world.now)
}

#[derive(Debug)]
pub(crate) struct Sleep {
    until: Instant,
    alarm: Option<Alarm>,
}

pub(crate) fn sleep_until(until: Instant) -> Sleep {
    Sleep { until, alarm: None }
}

pub(crate) fn sleep(time: Duration) -> Sleep {
    sleep_until(Instant::now() + time)
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now() >= self.until.0 {
            return Poll::Ready(());
        }
        let (until, alarm, waker) = (self.until.0, self.alarm, cx.waker().clone());
        let (alarm, replaced) = world::with(|world| {
            world.numbers += 1;
            let alarm = alarm.unwrap_or((until, world.numbers));
            (alarm, world.alarms.insert(alarm, waker))
        });
        self.alarm = Some(alarm);
        drop(replaced); // a waker may do anything when it is dropped
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm {
            drop(world::with(|world| world.alarms.remove(&alarm)));
        }
    }
}

#[derive(Debug)]
pub(crate) struct Elapsed;

pub(crate) async fn timeout_at<F: Future>(until: Instant, work: F) -> Result<F::Output, Elapsed> {
    let (mut work, mut alarm) = (pin!(work), sleep_until(until));
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => Pin::new(&mut alarm).poll(cx).map(|()| Err(Elapsed)),
    })
    .await
}

pub(crate) async fn timeout<F: Future>(time: Duration, work: F) -> Result<F::Output, Elapsed> {
    timeout_at(Instant::now() + time, work).await
}

#[derive(Debug)]
pub(crate) struct Interval {
    next: Instant,
    pause: Duration,
}

pub(crate) fn interval(pause: Duration) -> Interval {
    Interval { next: Instant::now(), pause }
}

impl Interval {
    pub(crate) async fn tick(&mut self) {
        sleep_until(self.next).await;
        self.next = self.next + self.pause;
    }
}

/// The task that moves the time to the next alarm, over and over. The scheduler knows it.
pub(super) async fn run() {
    world::with(|world| world.clock = shuttle::current::get_current_task());
    loop {
        shuttle::future::yield_now().await;
        let all_asleep = world::with(|world| std::mem::take(&mut world.all_asleep));
        if all_asleep {
            world::look_around();
        }
        if !advance() && all_asleep {
            world::violated("all tasks are asleep forever");
        }
    }
}

/// False if there is nothing to wait for.
fn advance() -> bool {
    let next = world::with(|world| world.alarms.first_key_value().map(|((time, _), _)| *time));
    let Some(next) = next.filter(|next| *next < TOO_LONG) else { return false };
    let woken: Vec<_> = world::with(|world| {
        world.now = next.max(world.now);
        let later = world.alarms.split_off(&(world.now, u64::MAX));
        std::mem::replace(&mut world.alarms, later).into_values().collect()
    });
    woken.into_iter().for_each(|waker| waker.wake());
    true
}
