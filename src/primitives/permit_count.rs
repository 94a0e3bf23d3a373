//! Requests about the number of permits of a semaphore, and about their holders.

use std::{collections::BTreeMap, time::Duration};

use super::{
    handle::Holder,
    plain_semaphore::{self, PLAIN, PlainSemaphore},
    semaphore::{SEMAPHORE, Semaphore, TAKEN},
};
use crate::{
    error::{About, Error, Result},
    kind::{ExtraKey, KindScript},
    redis::{Answer, Code},
};

const RECEIPT: ExtraKey = ExtraKey::OfRequest("leasehold_receipt");
static CHANGE: KindScript = script!("receipt.lua", "semaphore/permits.lua", "semaphore/change.lua"; TAKEN, RECEIPT);

impl Semaphore {
    /// Creates the semaphore with so many permits; false if there is one already.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn try_set_permits(&self, n: u32) -> Result<bool> {
        Ok(self.change("try_set_permits", i64::from(n), "new").await? == Code::Granted)
    }

    /// Sets how many permits there are in all, free and held. Takes none away from a holder: if more are held, none is free until enough
    /// were released.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn set_permits(&self, n: u32) -> Result<()> {
        self.change("set_permits", i64::from(n), "all").await.map(|_changed| ())
    }

    /// Adds so many permits, or removes them if `n` is negative. Takes none away from a holder. An error if `n` has more than 32 bits.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn add_permits(&self, n: i64) -> Result<()> {
        self.change("add_permits", in_32_bits(n)?, "more").await.map(|_changed| ())
    }

    async fn change(&self, what: &'static str, n: i64, how: &'static str) -> Result<Code> {
        match self.0.change_by(what, (&SEMAPHORE, &CHANGE), n, how).await?.code {
            code @ (Code::Granted | Code::Held) => Ok(code),
            _ => Err(self.0.conflict().of(About::Permits)),
        }
    }

    /// The number of free permits: 0 if they were not set. It may be below zero after a change that removed permits that are held.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn available(&self) -> Result<i64> {
        let answer = self.ask("available", "free").await?;
        let free = answer.and_then(|answer| answer.words().and_then(|[free]: [&str; 1]| free.parse().ok()));
        Ok(free.unwrap_or_default())
    }

    /// The holders of permits. `holds` is the number of permits, and `remaining` is `None` if they never expire, as those of a JVM may.
    /// The `id` is that of the first of these permits. It begins with [`Permits::id`](crate::Permits::id).
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn inspect(&self) -> Result<Vec<Holder>> {
        Ok(self.ask("inspect", "").await?.map(|answer| holders(&answer)).unwrap_or_default())
    }

    /// `None` if there is no semaphore.
    async fn ask(&self, what: &'static str, more: &str) -> Result<Option<Answer>> {
        let answer =
            self.0.tell(what, (&SEMAPHORE, &SEMAPHORE.inspect), ("", more), self.0.engine.outage_ends()).await?;
        match answer.code {
            Code::Held => Ok(Some(answer)),
            Code::Free => Ok(None),
            _ => Err(self.0.conflict().of(About::Permits)),
        }
    }
}

impl PlainSemaphore {
    /// Creates the semaphore with so many permits; false if there is one already.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn try_set_permits(&self, n: u32) -> Result<bool> {
        let answer =
            self.0.change_by("try_set_permits", (&PLAIN, &plain_semaphore::CHANGE), i64::from(n), "new").await?;
        self.number(&answer).map(|created| created.is_some())
    }

    /// Adds so many permits, or removes them if `n` is negative. Without a semaphore it creates one. `available` may then be below zero. An
    /// error if `n` has more than 32 bits.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn add_permits(&self, n: i64) -> Result<()> {
        let n = in_32_bits(n)?;
        let answer = self.0.change_by("add_permits", (&PLAIN, &plain_semaphore::CHANGE), n, "more").await?;
        self.number(&answer).map(|_added| ())
    }

    /// The number of free permits: 0 if there is no semaphore.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors).
    ///
    /// # Cancel safety
    ///
    /// See [the type](Self#cancel-safety).
    pub async fn available(&self) -> Result<i64> {
        let give_up = self.0.engine.outage_ends();
        let answer = self.0.tell("available", (&PLAIN, &PLAIN.inspect), ("", ""), give_up).await?;
        self.number(&answer).map(Option::unwrap_or_default)
    }

    /// Acquires all permits that are free, and returns their number. **Await it to the end**, see below.
    ///
    /// # Errors
    ///
    /// See [the type](Self#errors). After an error the permits may be gone, and the client cannot tell how many. Restore them with
    /// [`add_permits`](PlainSemaphore::add_permits).
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: if you drop the future, the permits may be gone, as after an error.
    pub async fn drain(&self) -> Result<u64> {
        let answer = self.0.change_by("drain", (&PLAIN, &plain_semaphore::CHANGE), 0, "all").await?;
        Ok(self.number(&answer)?.and_then(|free| u64::try_from(free).ok()).unwrap_or_default())
    }

    /// The number in the reply; `None` if there is none.
    fn number(&self, answer: &Answer) -> Result<Option<i64>> {
        match answer.code {
            Code::Granted | Code::Held | Code::Free => {
                Ok(answer.words().and_then(|[number]: [&str; 1]| number.parse().ok()))
            }
            _ => Err(self.0.conflict().of(About::Permits)),
        }
    }
}

/// A greater change could leave a number that Lua cannot count with.
fn in_32_bits(n: i64) -> Result<i64> {
    let fits = u32::try_from(n.unsigned_abs()).is_ok();
    fits.then_some(n).ok_or_else(|| Error::config("permits", "a change must be at most 4,294,967,295"))
}

/// The number of digits that all permits of a hold have in common.
const OF_HOLD: usize = 28;

/// Permits with the same first digits are those of one hold.
fn holders(answer: &Answer) -> Vec<Holder> {
    let [_free, taken] = answer.words().unwrap_or_default();
    let words: Vec<_> = taken.split(' ').collect();
    let mut holders: BTreeMap<&str, Holder> = BTreeMap::new();
    for permit in words.chunks_exact(2) {
        let hold = permit[0].get(..OF_HOLD).unwrap_or(permit[0]);
        let remaining = permit[1].parse().ok().map(Duration::from_millis);
        let one = || Holder { id: permit[0].to_owned(), holds: 0, remaining, client: None };
        holders.entry(hold).or_insert_with(one).holds += 1;
    }
    holders.into_values().collect()
}
