//! A request about a lock itself, sent again until the server replies or the time is over. It is safe to send it twice, because every
//! script sets a state; it does not add a step.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    clock::Moment,
    error::Result,
    failed::{error, silent},
    redis::{Answer, Fault, Part, Persistence, Redis, Script, spread},
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

/// If the server refuses for now, the pauses between two attempts double from the first to the last, so that thousands of callers do
/// not keep the server busy. After an attempt without a reply there is no longer pause, because that attempt has waited already.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// If a caller is polled this long after its time limit, nothing polled it in between. It then makes one more attempt, of this length.
const UNPOLLED: Duration = Duration::from_millis(500);
const ONCE_MORE: Duration = Duration::from_secs(1);

/// What is requested, and of which lock.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// For error messages.
    pub(crate) what: &'static str,
    pub(crate) name: &'a str,
    pub(crate) request: (&'static Script, Part),
    /// From then on the server may have forgotten that it has run the request, and would run it once more. By the clock that continues while
    /// the machine sleeps.
    pub(crate) until: Moment,
}

/// Whether an earlier attempt of a request had no reply, so that it may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doubt {
    None,
    OfEarlier,
}

impl Asked<'_> {
    /// The reply, and whether an earlier attempt may have been executed, too. A large future: callers whose futures users keep box it
    /// together with their own work.
    pub(crate) async fn ask(self, redis: &Redis, mut give_up: Instant) -> Result<(Answer, Doubt)> {
        TaskRuntime::around(self.what)?;
        let (script, part) = &self.request;
        let (since, mut pauses, mut was_polled, mut last) = (Instant::now(), Pauses::default(), true, None);
        let mut doubt = Doubt::None;
        loop {
            if self.until.left().is_zero() {
                return Err(silent(self.what, self.name, since.elapsed(), redis.trouble(part.key(), last)));
            }
            // By a timer of the caller, which does not depend on the tasks of the connection.
            let Ok(tried) = timeout_at(give_up, redis.request(script, part.clone())).await else {
                if was_polled && give_up.elapsed() > UNPOLLED {
                    was_polled = false; // not a failure of the server
                    doubt = Doubt::OfEarlier;
                    give_up = Instant::now() + redis.command_timeout().min(ONCE_MORE);
                    continue;
                }
                return Err(silent(self.what, self.name, since.elapsed(), redis.trouble(part.key(), last)));
            };
            let pause = match tried {
                Ok(answer) => return Ok((answer, doubt)),
                Err(Fault::Unknown(source)) => {
                    (last, doubt) = (Some(source), Doubt::OfEarlier);
                    FIRST_PAUSE
                }
                Err(Fault::Unclear(source)) => {
                    (last, doubt) = (Some(source), Doubt::OfEarlier);
                    pauses.next()
                }
                Err(Fault::NotSent(source)) => {
                    last = Some(source);
                    FIRST_PAUSE
                }
                Err(fault) if fault.is_for_now(Persistence::Usual) => {
                    last = fault.source();
                    pauses.next()
                }
                Err(fault) => return Err(error(fault, self.what, since.elapsed(), (self.name, part.key()))),
            };
            sleep_until(give_up.min(Instant::now() + pause)).await;
        }
    }
}

/// The pauses before the next attempts.
#[derive(Debug)]
pub(crate) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses(FIRST_PAUSE)
    }
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_PAUSE);
        spread(pause)
    }
}
