//! The lease of one id: how long the server keeps it, how long it is certain, and how long readers may join it.

use std::time::Duration;

use super::types::{Config, Cx, Mode, Moment};

/// Readers may join a hold for this long after a request that would have admitted them. A writer waits at most this much longer.
const OPEN: Duration = Duration::from_millis(10);
const LONGEST_OPEN: Duration = Duration::from_millis(100);
/// A hold stays open for at most this many times as long.
const OPENINGS: u32 = 10;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    /// The hold is certain until then. Zero: perhaps it was not granted.
    pub(crate) certain_until: Moment,
    /// It ends then, by the clock of this client, if no other program shortens it.
    pub(crate) end: Moment,
    /// By so much it ends early, because clocks differ.
    uncertain: Duration,
    /// The last request by which the server had the hold was sent then.
    pub(crate) last_confirmed: Moment,
    /// After this time the server has nothing left of the hold.
    pub(crate) gone_by: Moment,
    /// The lock stays held until then, because of a `min_hold`.
    pub(crate) not_before: Moment,
    /// `None`: the hold is exclusive.
    sharing: Option<Box<Sharing>>,
}

/// What only shared holds have. In a box, because most holds are exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sharing {
    /// Further readers may join it until then, and no later than `limit`.
    open_until: Moment,
    limit: Moment,
    /// No other program has ended the lease before that.
    sure_until: Moment,
}

impl Sharing {
    fn new(sent: Moment, cx: &Cx<'_>) -> Sharing {
        let limit = if cx.rules.waits.are_for_permits() { Moment::ZERO } else { sent + open(cx.config) * OPENINGS };
        let sure_until = cx.rules.sure.map_or(Moment::FAR, |sure| sent + sure);
        Sharing { open_until: Moment::ZERO, limit, sure_until }
    }
}

impl Lease {
    /// Of a hold that was granted by a request that was sent at `sent`.
    pub(crate) fn new(mode: Mode, (lease, sent): (Duration, Moment), cx: &Cx<'_>) -> Lease {
        let mut new = Lease {
            certain_until: Moment::ZERO,
            end: Moment::ZERO,
            uncertain: Duration::ZERO,
            last_confirmed: sent,
            gone_by: Moment::ZERO,
            not_before: Moment::ZERO,
            sharing: (mode == Mode::Shared).then(|| Box::new(Sharing::new(sent, cx))),
        };
        new.lasts(Some(lease), sent, cx);
        new
    }

    /// Of a hold that was requested, and perhaps not granted.
    pub(crate) fn requested_only(mode: Mode, lease: Duration, cx: &Cx<'_>) -> Lease {
        let mut new = Lease::new(mode, (Duration::ZERO, Moment::ZERO), cx);
        new.requested(Some(lease), cx);
        new
    }

    pub(crate) fn mode(&self) -> Mode {
        if self.sharing.is_some() { Mode::Shared } else { Mode::Exclusive }
    }

    // ---- readers that join ----

    /// A request that was sent at `sent` would have admitted any reader.
    pub(crate) fn admits(&mut self, sent: Moment, config: &Config) {
        if let Some(sharing) = self.sharing.as_mut().filter(|_| config.handovers > 0) {
            sharing.open_until = (sent + open(config)).min(sharing.limit);
        }
    }

    pub(crate) fn close(&mut self) {
        if let Some(sharing) = &mut self.sharing {
            (sharing.open_until, sharing.limit) = (Moment::ZERO, Moment::ZERO);
        }
    }

    pub(crate) fn is_open(&self, at: Moment) -> bool {
        self.sharing.as_ref().is_some_and(|sharing| at < sharing.open_until)
    }

    // ---- its end ----

    /// A request for this lease was sent. The server may run it.
    pub(crate) fn requested(&mut self, lease: Option<Duration>, cx: &Cx<'_>) {
        self.gone_by = self.gone_by.max(lease.map_or(Moment::ZERO, |lease| cx.gone_by(lease)));
    }

    /// A request that was sent at `sent` has found the hold, and given it this lease.
    pub(crate) fn lasts(&mut self, lease: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        self.last_confirmed = self.last_confirmed.max(sent);
        self.requested(lease, cx);
        if let Some(lease) = lease {
            let certain = cx.config.certain(lease);
            self.end = self.end.max(sent + certain);
            self.uncertain = self.uncertain.max(lease - certain); // the end is that of the longest, too
        }
        self.certain_until = self.end.min(self.sure_until());
    }

    /// Nobody needs it for longer.
    pub(crate) fn ends_by(&mut self, time: Moment) {
        self.end = self.end.min(time);
        self.certain_until = self.certain_until.min(time);
    }

    /// The server has ended it by then, unless something keeps it. The holder has this time to stop after it was notified.
    pub(crate) fn over(&self) -> Moment {
        self.certain_until + self.uncertain * 2
    }

    /// No other program has ended the lease before that.
    pub(crate) fn sure_until(&self) -> Moment {
        self.sharing.as_ref().map_or(Moment::FAR, |sharing| sharing.sure_until)
    }

    /// The server had this much left of the lease of a shared hold when it ran a request that was sent at `sent`. If that is less than this
    /// client had confirmed, another program has shortened the lease, and may do so again at once. But the server may have run the request
    /// at any time between `sent` and now, and only proof makes the time shorter that a holder was told.
    pub(crate) fn note_left(&mut self, left: Option<Duration>, sent: Moment, cx: &Cx<'_>) {
        let (Some(usual), Some(sharing)) = (cx.rules.sure, &mut self.sharing) else { return };
        let time = |left| usual.min(cx.config.certain(left));
        sharing.sure_until = match left {
            Some(left) if cx.now + left < self.end => sent + time(left),
            Some(left) if sent + left < self.end => self.certain_until.max(sent + time(left)),
            _ => sharing.sure_until.max(sent + usual),
        };
    }

    /// Another program may have shortened the lease of a shared hold. Each confirmation requests what is left of it.
    pub(crate) fn to_repair(&self, now: Moment) -> Option<Duration> {
        Some(self.end.since(now)).filter(|left| self.mode() == Mode::Shared && !left.is_zero())
    }

    /// True if it is long enough for the next holder, and not longer than the usual one.
    pub(crate) fn is_long(&self, now: Moment, config: &Config) -> bool {
        (config.watchdog / 2..=config.watchdog).contains(&self.end.since(now))
    }

    pub(crate) fn keep_until(&mut self, min_hold: Option<Duration>, now: Moment) {
        self.not_before = self.not_before.max(min_hold.map_or(Moment::ZERO, |min| now + min));
    }

    /// A request for a shared hold may keep an exclusive one of the same client on the server until then.
    pub(crate) fn is_kept_until(&mut self, time: Moment) {
        if self.mode() == Mode::Exclusive {
            self.gone_by = self.gone_by.max(time);
        }
    }
}

fn open(config: &Config) -> Duration {
    (config.round_trip * 4).clamp(OPEN, LONGEST_OPEN)
}
