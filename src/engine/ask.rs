//! One question to the server, sent until it is answered or there is no more time. Sending twice is safe: every
//! script moves to a state instead of by a step.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    clock::Moment,
    config::Lease,
    error::{Error, Result, Source},
    redis::{Answer, Fault, Part, Redis, Script},
    sync::{std, tokio},
};

use super::hold::Hold;

/// Between two tries where the server refuses for now.
const PAUSE: Duration = Duration::from_millis(10);

/// An answer, and what makes it worth something.
#[derive(Debug)]
pub(crate) struct Heard {
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
pub(crate) struct Question<'a> {
    pub(crate) name: &'a str,
    /// Whose hold the server may keep because of it, and for how long.
    pub(crate) hold: Option<(&'a Hold, Lease)>,
    pub(crate) script: &'static Script,
    pub(crate) part: Part,
    pub(crate) replicas: u8,
    pub(crate) what: &'static str,
    pub(crate) give_up: Instant,
}

impl Question<'_> {
    /// A large future: callers that users hold box it together with what they do around it.
    pub(crate) async fn ask(self, redis: &Redis) -> Result<Heard> {
        let started = Instant::now();
        let mut again = false;
        let mut last = None;
        loop {
            let Some((sent, tried)) = self.send_in_time(redis).await else {
                return Err(Error::silent(self.what, started.elapsed(), last));
            };
            match tried {
                Ok((answer, replicas)) => return Ok(Heard { answer, sent, again, replicas }),
                Err(Fault::Unknown(source)) => (again, last) = (true, Some(source)),
                Err(Fault::NotReady(source)) => last = Some(source), // it has not run
                Err(fault) => return Err(error(fault, self.what, started.elapsed(), self.name)),
            }
            sleep_until(self.give_up.min(Instant::now() + PAUSE)).await;
        }
    }

    /// `None` when there is no more time. A try ends by itself after a few times the patience of the connection (to
    /// gather, to connect, to load the script, to run it); a timer is set only where less time than that is left,
    /// since a timer costs more than the request.
    async fn send_in_time(&self, redis: &Redis) -> Option<(Moment, Result<(Answer, u8), Fault>)> {
        let left = self.give_up.saturating_duration_since(Instant::now());
        if left > redis.patience() * 8 {
            Some(self.send(redis).await)
        } else {
            timeout(left, self.send(redis)).await.ok()
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

/// A fault as the user is told it.
pub(crate) fn error(fault: Fault, what: &str, waited: Duration, name: &str) -> Error {
    match fault {
        Fault::Unknown(source) | Fault::NotReady(source) => Error::silent(what, waited, Some(source)),
        Fault::Denied(source) => Error::Denied { source },
        Fault::Conflict => Error::Conflict { name: name.to_owned() },
        Fault::Server(source) => Error::Server { source },
        Fault::Closed => Error::Closed,
    }
}

/// An answer that no script gives.
pub(crate) fn unexpected(answer: &Answer) -> Error {
    let words = format!("unexpected answer {answer:?}");
    Error::Server { source: Source::from(Box::<dyn std::error::Error + Send + Sync>::from(words)) }
}
