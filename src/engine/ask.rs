//! One question to the server, sent until it is answered or there is no more time. Sending twice is safe: every
//! script moves to a state instead of by a step.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Result},
    redis::{Answer, Fault, Part, Redis, Script, spread},
    sync::{std, tokio},
};

use super::{TaskRuntime, hold::Hold};

/// Pauses between two tries double from the first to the last where the server refuses for now: thousands who ask on
/// must not keep it busy with that. A try that was not answered or not sent has waited already.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A caller that looks so long after its time was over did not look meanwhile. It asks once more, for so long.
const UNPOLLED: Duration = Duration::from_millis(500);
const ONCE_MORE: Duration = Duration::from_secs(1);

/// An answer, and what makes it worth something.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// Just before the request that was answered went out: what it gives is counted from here.
    pub(crate) sent: Moment,
    /// An earlier try had no answer: it may have done the work.
    pub(crate) again: bool,
    /// Replicas that confirmed, where that was asked for.
    pub(crate) replicas: u8,
}

/// What to ask, how to name it in an error, and how long to try.
#[derive(Debug)]
pub(crate) struct ScriptRequest<'a> {
    pub(crate) name: &'a str,
    /// Whose hold the server may keep because of it, and for how long.
    pub(crate) hold: Option<(&'a Hold, Lease)>,
    pub(crate) script: &'static Script,
    pub(crate) part: Part,
    /// Makes it anew for each further try, where it depends on the time.
    pub(crate) anew: Option<Anew<'a>>,
    pub(crate) replicas: u8,
    pub(crate) what: &'static str,
    pub(crate) pauses: Pauses,
    /// Any refusal counts as one for now: what is to be given back is asked for until there is no more time.
    pub(crate) insists: bool,
    /// Since when the caller has tried, which an error says.
    pub(crate) since: Instant,
    pub(crate) give_up: Instant,
}

/// How a request that depends on the time is made.
pub(crate) struct Anew<'a>(pub(crate) &'a (dyn Fn() -> Part + Sync));

impl fmt::Debug for Anew<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Anew")
    }
}

impl<'a> ScriptRequest<'a> {
    /// Of no hold, for one server, and taking a refusal for an answer.
    pub(crate) fn new(
        what: &'static str,
        name: &'a str,
        (script, part): (&'static Script, Part),
        (since, give_up): (Instant, Instant),
    ) -> ScriptRequest<'a> {
        let pauses = Pauses::default();
        let (hold, anew, replicas, insists) = (None, None, 0, false);
        ScriptRequest { name, hold, script, part, anew, replicas, what, pauses, insists, since, give_up }
    }

    /// A large future: callers that users hold box it together with what they do around it.
    pub(crate) async fn ask(self, redis: &Redis) -> Result<Reply> {
        self.ask_noting(redis, &mut false).await
    }

    /// The same. `in_doubt`: a try had no answer, so the server may have done it, also where this ends with an error.
    pub(crate) async fn ask_noting(mut self, redis: &Redis, in_doubt: &mut bool) -> Result<Reply> {
        TaskRuntime::around(self.what)?;
        let (mut was_polled, mut last) = (true, None);
        loop {
            // By the caller's own clock: whatever the connection's tasks do, and wherever they run.
            let Ok((sent, tried)) = timeout_at(self.give_up, self.send(redis)).await else {
                *in_doubt = true;
                if was_polled && self.give_up.elapsed() > UNPOLLED {
                    was_polled = false; // the server is not to blame
                    self.give_up = Instant::now() + redis.command_timeout().min(ONCE_MORE);
                    continue;
                }
                return Err(Error::silent(self.what, self.name, self.since.elapsed(), last));
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
                Err(fault) if fault.is_for_now(self.insists) => {
                    last = fault.source();
                    self.pauses.next()
                }
                Err(fault) => {
                    *in_doubt |= matches!(fault, Fault::Abandoned | Fault::Closed);
                    return Err(error(fault, self.what, self.since.elapsed(), self.name));
                }
            };
            sleep_until(self.give_up.min(Instant::now() + pause)).await;
            if let Some(anew) = &self.anew {
                self.part = anew.0();
            }
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

/// How long to wait before the next try.
#[derive(Debug)]
pub(crate) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses(FIRST_PAUSE)
    }
}

impl Pauses {
    /// For what has been tried for long.
    pub(crate) fn last() -> Pauses {
        Pauses(LAST_PAUSE)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST_PAUSE);
        spread(pause)
    }
}

/// A fault as the user is told it.
pub(crate) fn error(fault: Fault, what: &str, waited: Duration, name: &str) -> Error {
    match fault {
        Fault::Unknown(source) | Fault::NotReady(source) | Fault::NotSent(source) => {
            Error::silent(what, name, waited, Some(source))
        }
        Fault::Abandoned => Error::abandoned(what, name),
        Fault::Denied(denial) => Error::Denied { reason: denial.right.to_string(), source: denial.source },
        Fault::Conflict => Error::Conflict { name: name.to_owned() },
        Fault::Server(source) => Error::Server { source },
        // Only without a cluster URL: with one, the request is sent to the right server.
        Fault::Elsewhere(_, source) => {
            Error::config("url", format!("the server belongs to a cluster; use redis-cluster:// ({source})"))
        }
        Fault::Closed => Error::Closed,
    }
}

/// An answer that no script gives.
pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::unexpected(&format!("{answer:?}"))
}
