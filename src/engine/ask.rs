//! One request to the server, sent again until the server replies or the time is over. It is safe to send it twice, because every
//! script sets a state; it does not add a step.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    clock::Moment,
    config::Lease,
    error::Result,
    failed::{error, silent},
    redis::{Answer, Fault, Part, Persistence, Redis, Script, spread},
    sync::{std, tokio},
    task_runtime::TaskRuntime,
};

use super::hold::Hold;

/// If the server refuses for now, the pauses between two attempts double from the first to the last, so that thousands of callers do
/// not keep the server busy. After an attempt without a reply there is no longer pause, because that attempt has waited already.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// If a caller is polled this long after its time limit, nothing polled it in between. It then makes one more attempt, of this length.
const UNPOLLED: Duration = Duration::from_millis(500);
const ONCE_MORE: Duration = Duration::from_secs(1);

/// A reply, and the facts that are needed to interpret it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// The moment just before the request was sent. A lease that it grants is counted from here.
    pub(crate) sent: Moment,
    /// An earlier attempt had no reply: it may have done the work.
    pub(crate) again: bool,
    /// The number of replicas that confirmed, if confirmation was requested.
    pub(crate) replicas: u8,
}

/// A request, its name for error messages, and its time limit.
#[derive(Debug)]
pub(crate) struct ScriptRequest<'a> {
    pub(crate) name: &'a str,
    /// The hold that the server may keep because of this request, and for how long.
    pub(crate) hold: Option<(&'a Hold, Lease)>,
    pub(crate) script: &'static Script,
    pub(crate) part: Part,
    /// Makes the request again for each further attempt, if it depends on the time.
    pub(crate) anew: Option<Anew<'a>>,
    pub(crate) replicas: u8,
    pub(crate) what: &'static str,
    pub(crate) pauses: Pauses,
    pub(crate) persistence: Persistence,
    /// The moment at which the caller began; an error reports the time since then.
    pub(crate) since: Instant,
    pub(crate) give_up: Instant,
    /// The time for one more attempt that starts at `give_up`, if an earlier attempt failed and the next one would start later.
    /// Otherwise a request is sent at `give_up` as well, but no time is left for its reply.
    pub(crate) last_attempt: Option<Duration>,
}

/// Makes a request that depends on the time.
pub(crate) struct Anew<'a>(pub(crate) &'a (dyn Fn() -> Part + Sync));

impl fmt::Debug for Anew<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Anew")
    }
}

impl<'a> ScriptRequest<'a> {
    /// A request about no hold, without replicas, which a refusal ends.
    pub(crate) fn new(
        what: &'static str,
        name: &'a str,
        (script, part): (&'static Script, Part),
        (since, give_up): (Instant, Instant),
    ) -> ScriptRequest<'a> {
        let pauses = Pauses::default();
        let (hold, anew, replicas, persistence, last_attempt) = (None, None, 0, Persistence::Usual, None);
        ScriptRequest {
            name,
            hold,
            script,
            part,
            anew,
            replicas,
            what,
            pauses,
            persistence,
            since,
            give_up,
            last_attempt,
        }
    }

    /// A large future. Callers whose futures users keep box it together with their own work.
    pub(crate) async fn ask(self, redis: &Redis) -> Result<Reply> {
        self.ask_noting(redis, &mut false).await
    }

    /// As [`ask`](ScriptRequest::ask). Sets `in_doubt` if an attempt had no reply: the server may then have done the work, even if this
    /// returns an error.
    pub(crate) async fn ask_noting(mut self, redis: &Redis, in_doubt: &mut bool) -> Result<Reply> {
        TaskRuntime::around(self.what)?;
        let (mut was_polled, mut last) = (true, None);
        loop {
            // By a timer of the caller, which does not depend on the tasks of the connection.
            let Ok((sent, tried)) = timeout_at(self.give_up, self.send(redis)).await else {
                *in_doubt = true;
                if was_polled && self.give_up.elapsed() > UNPOLLED {
                    was_polled = false; // not a failure of the server
                    self.give_up = Instant::now() + redis.command_timeout().min(ONCE_MORE);
                    continue;
                }
                let why = redis.trouble(self.part.key(), last);
                return Err(silent(self.what, self.name, self.since.elapsed(), why));
            };
            let pause = match tried {
                Ok((answer, replicas)) => return Ok(Reply { answer, sent, again: *in_doubt, replicas }),
                Err(Fault::Unknown(source)) => {
                    (*in_doubt, last) = (true, Some(source));
                    FIRST_PAUSE
                }
                Err(Fault::NotSent(source)) => {
                    last = Some(source);
                    FIRST_PAUSE
                }
                Err(fault) if fault.is_for_now(self.persistence) => {
                    last = fault.source();
                    self.pauses.next()
                }
                Err(fault) => {
                    *in_doubt |= matches!(fault, Fault::Abandoned | Fault::Closed);
                    return Err(error(fault, self.what, self.since.elapsed(), self.name));
                }
            };
            self.pause(pause).await;
            if let Some(anew) = &self.anew {
                self.part = anew.0();
            }
        }
    }

    /// Sleeps before the next attempt, but not beyond the time limit. An attempt that would start so shortly before the limit that its reply
    /// may come too late starts at the limit instead.
    async fn pause(&mut self, pause: Duration) {
        let next = Instant::now() + pause;
        match self.last_attempt {
            Some(time) if next + time >= self.give_up => {
                sleep_until(self.give_up).await;
                (self.last_attempt, self.give_up) = (None, Instant::now() + time);
            }
            _ => sleep_until(self.give_up.min(next)).await,
        }
    }

    async fn send(&self, redis: &Redis) -> (Moment, Result<(Answer, u8), Fault>) {
        if let Some((hold, lease)) = self.hold {
            hold.asking(lease);
        }
        let (sent, part) = (Moment::now(), self.part.clone());
        let tried = match self.replicas {
            0 => redis.request(self.script, part).await.map(|answer| (answer, 0)),
            wanted => redis.replicated(self.script, part, wanted).await,
        };
        (sent, tried)
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
    /// For a request that has already been retried for long.
    pub(crate) fn last() -> Pauses {
        Pauses(LAST_PAUSE)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_PAUSE);
        spread(pause)
    }
}
