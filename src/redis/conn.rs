//! One connection, and the task that replaces it when it is lost.
//!
//! A [`Link`] is one connection for its whole life. If anything about it is doubtful, it is closed, and [`Conn`] opens the next one. Requests
//! are safe to send twice, so nothing is lost with a link. Commands have a connection of this crate's own; messages arrive over fred, which
//! only `subscriber` uses.

mod addresses;
mod call;
mod link;
mod pipe;
mod questions;
mod resp;
mod socket;
mod stream;
mod subscriber;
mod target;
#[cfg(feature = "tls")]
mod tls_stream;

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    StreamExt,
    future::{BoxFuture, ready},
    stream::BoxStream,
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use addresses::at_any_address;
pub(super) use call::{Answers, Attempt, InFlight, ScriptCall, ScriptCaller, Sent};
pub(crate) use link::Link;
use link::Peer;
pub(crate) use questions::Asks;
use questions::is_replica;
pub(super) use questions::{Layout, has_shard_channels, is_cluster_with_all_keys, master_of, node_id, slots};
pub(crate) use resp::Reply as RawReply;
pub(super) use subscriber::{PubSubEvent, Subscriber};
pub(super) use target::Target;

use super::{
    fault::{Fault, LAST_PAUSE_OUTSIDE, source, source_at},
    url::Address,
};
use crate::{
    contained::{AFTER_PANIC, caught, conn_event},
    error::Source,
    stats::Counters,
};

/// The pauses between attempts to reconnect double from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// A connection is short-lived if it lasted no longer than this. After several of these in a row there is a pause before the next one, but
/// a short one, so that the client works even on a bad network.
const YOUNG: Duration = Duration::from_secs(1);
const LAST_PAUSE_AFTER_YOUNG: Duration = Duration::from_millis(100);

/// Why a link to a server is closed that is not the master of the sentinels.
pub(super) const NOT_THE_MASTER: &str = "the sentinels name another master";

/// Why there is no link.
const NOT_YET: &str = "there was no connection yet";

/// The place of the present link, or of the reason for which there is none.
type Slot = watch::Sender<Result<Arc<Link>, Fault>>;

/// A connection that is restored after a loss: the present link, and a task that replaces it.
#[derive(Debug)]
pub(super) struct Conn {
    link: watch::Receiver<Result<Arc<Link>, Fault>>,
    /// Notified when a caller needs a link. The first link is opened then, if not before.
    wanted: Arc<Notify>,
    was_wanted: CancellationToken,
    command_timeout: Duration,
    /// The address, for messages.
    place: String,
    closed: CancellationToken,
}

/// Called whenever a lost connection has been replaced: the server may have lost its data.
pub(super) type Reconnected = Arc<dyn Fn() + Send + Sync>;

impl Conn {
    /// Opens the first link. Then a task replaces lost links until `closed`, and calls `reconnected` for each.
    pub(super) async fn open(
        dial: &Dialer,
        reconnected: &Reconnected,
        closed: &CancellationToken,
    ) -> Result<Conn, Fault> {
        let first = Arc::new(dial.open::<Link>().await?.link); // nobody watches the master yet: its first look comes later
        Ok(Conn::keep(dial.clone(), Some(first), Arc::clone(reconnected), closed.clone()))
    }

    /// As [`open`](Conn::open), but opens the first link when it is first needed.
    pub(super) fn lazy(dial: &Dialer, reconnected: &Reconnected, closed: &CancellationToken) -> Conn {
        Conn::keep(dial.clone(), None, Arc::clone(reconnected), closed.clone())
    }

    fn keep(dial: Dialer, first: Option<Arc<Link>>, reconnected: Reconnected, closed: CancellationToken) -> Conn {
        let (command_timeout, wanted, place) = (dial.command_timeout, Arc::new(Notify::new()), dial.locator.place());
        let (slot, link) = watch::channel(first.clone().ok_or_else(|| Fault::not_sent(NOT_YET)));
        let (first_wanted, was_wanted) = (Arc::clone(&wanted), CancellationToken::new());
        if first.is_some() {
            was_wanted.cancel();
        }
        let until = closed.clone();
        tokio::spawn(async move {
            let mut links = Links { present: first, before: Vec::new() };
            let kept = async {
                while caught(supervise(&dial, &mut links, &first_wanted, &slot, &reconnected)).await.is_none() {
                    sleep(AFTER_PANIC).await;
                }
            };
            until.run_until_cancelled(kept).await;
            if let Ok(link) = slot.send_replace(Err(Fault::Closed)) {
                link.give_up("the client is closed");
            }
        });
        Conn { link, wanted, was_wanted, command_timeout, place, closed }
    }

    /// The present link. Waits if there is none, unless the server refuses this user.
    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        let now = self.link.borrow().clone();
        match now {
            Ok(link) if !link.down().is_cancelled() => return Ok(link),
            Err(fault) if fault.is_final() => return Err(fault),
            _ => {}
        }
        self.need();
        let mut slot = self.link.clone();
        let usable = |now: &Result<Arc<Link>, Fault>| match now {
            Ok(link) => !link.down().is_cancelled(),
            Err(fault) => fault.is_final(),
        };
        let found = async { slot.wait_for(usable).await.map(|now| now.clone()) };
        match timeout(self.command_timeout, found).await {
            Ok(Ok(found)) => found,
            // The task that replaces links was dropped with its runtime.
            Ok(Err(_gone)) if self.closed.is_cancelled() => Err(Fault::Closed),
            Ok(Err(_gone)) => Err(Fault::Abandoned),
            Err(_) => Err(self.none_yet()),
        }
    }

    /// Resolves when a caller has needed a link.
    pub(super) async fn needed(&self) {
        self.was_wanted.cancelled().await;
    }

    /// The present link, if it is alive.
    pub(super) fn link_now(&self) -> Option<Arc<Link>> {
        self.link.borrow().as_ref().ok().filter(|link| !link.down().is_cancelled()).cloned()
    }

    /// As [`Link::shortest_round_trip`], of the present link. `None` if there is no link.
    pub(super) fn shortest_round_trip(&self) -> Option<Duration> {
        self.link.borrow().as_ref().ok()?.shortest_round_trip()
    }

    /// True if a caller waits for a link that cannot be opened, or if the present link has given no reply for this long.
    pub(super) fn is_unwell(&self, late: Duration) -> bool {
        match &*self.link.borrow() {
            Ok(link) => link.down().is_cancelled() || link.silence() > late,
            Err(_) => self.was_wanted.is_cancelled(),
        }
    }

    /// The error for requests that need not wait for a link: the server refuses this user, or the client is closed.
    pub(super) fn refusal(&self) -> Option<Fault> {
        self.link.borrow().as_ref().err().filter(|fault| fault.is_final()).cloned()
    }

    /// A request waits for a link.
    pub(super) fn need(&self) {
        self.was_wanted.cancel();
        self.wanted.notify_one();
    }

    /// Changes with the link.
    pub(super) fn changes(&self) -> watch::Receiver<Result<Arc<Link>, Fault>> {
        self.link.clone()
    }

    /// Why a request was not sent in time.
    pub(super) fn why_unsent(&self) -> Fault {
        match self.link_now() {
            Some(link) => Fault::not_sent("too many requests wait for this server").at(link.address()),
            None => self.none_yet(),
        }
    }

    /// The reason for which there is no link. Whatever it is, nothing was sent.
    fn none_yet(&self) -> Fault {
        let last = self.link.borrow().as_ref().err().cloned().and_then(Fault::source);
        Fault::NotSent(last.unwrap_or_else(|| source("the connection was closed"))).at(&self.place)
    }

    /// The reason for which a request has no reply yet: the reason for which there is no connection, else `last`, the failure of its last
    /// attempt.
    pub(super) fn trouble(&self, last: Option<Source>) -> Source {
        match &*self.link.borrow() {
            Ok(link) if link.down().is_cancelled() => source_at(link.address(), link.lost_by()),
            Ok(link) => last.unwrap_or_else(|| source_at(link.address(), source("no reply yet"))),
            Err(fault) => {
                let last = fault.clone().at(&self.place).source();
                last.unwrap_or_else(|| source_at(&self.place, source("there is no connection")))
            }
        }
    }
}

/// What a supervisor knows. A panic leaves it as it is.
struct Links {
    present: Option<Arc<Link>>,
    /// Connections that the server may not have closed yet.
    before: Vec<Peer>,
}

/// Opens the first link when a caller needs it, and replaces lost links until it is dropped.
async fn supervise(dial: &Dialer, links: &mut Links, wanted: &Notify, slot: &Slot, reconnected: &Reconnected) {
    let mut pause = Duration::ZERO;
    loop {
        let link = match &links.present {
            Some(link) => Arc::clone(link),
            None => Arc::clone(links.present.insert(dial.first_link(wanted, slot).await)),
        };
        let opened = Instant::now();
        let successor = dial.successor(&link).await;
        let lost = Instant::now();
        // The first time without a pause. Several short-lived connections in a row must not keep the client busy.
        pause = if opened.elapsed() < YOUNG {
            (pause * 2).clamp(FIRST_PAUSE, LAST_PAUSE_AFTER_YOUNG)
        } else {
            Duration::ZERO
        };
        sleep(pause.saturating_sub(FIRST_PAUSE)).await;
        conn_event!(warn, server = %link.address(), cause = %link.lost_by(),
                "connection lost; reconnecting");
        let next = match successor {
            Some(next) => next,
            None => dial.until_open(slot, for_now).await,
        };
        dial.counters.reconnects.up();
        links.before.extend(link.peer.clone());
        while let Some(peer) = links.before.last()
            && next.link.close_predecessor(peer).await
        {
            links.before.pop();
        }
        let link = links.present.insert(next.publish(slot));
        conn_event!(warn, server = %link.address(), after = ?lost.elapsed(), "reconnected");
        reconnected();
    }
}

/// After a first successful login, a refused one counts as temporary: somebody may be changing the password, or a server may not have
/// read its users yet.
fn for_now(fault: Fault) -> Fault {
    match fault {
        Fault::Denied(denial) => Fault::NotReady(denial.source),
        other => other,
    }
}

/// Finds the server for a connection. Called for each new connection, because names, masters and passwords change.
pub(super) trait Locator: std::fmt::Debug + Send + Sync {
    /// The possible servers, in the order in which they are found.
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>>;
    /// The address, for messages.
    fn place(&self) -> String;
    /// True if the server must be a master.
    fn wants_master(&self) -> bool;
    /// Checks that the server is the intended one: another server may have its address now.
    fn recognise<'a>(&'a self, _server: &'a dyn Asks) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(ready(Ok(())))
    }
    /// Changes when another server may be the right one; `None` if there are no such notifications.
    fn switches(&self) -> Option<watch::Receiver<Option<Address>>> {
        None
    }
}

/// A connection for commands, or for messages.
trait Connection: Asks + Sized {
    /// Connects, and logs in.
    fn open(
        target: &Target,
        command_timeout: Duration,
        counters: &Arc<Counters>,
    ) -> impl Future<Output = Result<Self, Fault>> + Send;
}

/// A connection that callers cannot use yet.
struct New<C> {
    link: C,
    /// Changes if another server may have become the right one since this link was begun.
    switches: Option<watch::Receiver<Option<Address>>>,
}

impl New<Link> {
    /// Callers may use the link. The task that listens to the sentinels first notes a new master, and then closes the links that are
    /// published. This publishes the link first, and then looks for a new master. So one of the two closes a link to the old one. It also
    /// looks before, because a caller may use the link at once.
    fn publish(self, slot: &Slot) -> Arc<Link> {
        let link = Arc::new(self.link);
        give_up_after_switch(&link, self.switches.as_ref());
        let _ = slot.send_replace(Ok(Arc::clone(&link)));
        give_up_after_switch(&link, self.switches.as_ref());
        link
    }
}

fn give_up_after_switch(link: &Link, switches: Option<&watch::Receiver<Option<Address>>>) {
    if let Some(switches) = switches
        && switches.has_changed().unwrap_or(false)
        && switches.borrow().as_ref() != Some(link.address())
    {
        link.give_up(NOT_THE_MASTER);
    }
}

/// Opens links.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    locator: Arc<dyn Locator>,
    command_timeout: Duration,
    counters: Arc<Counters>,
}

impl Dialer {
    pub(super) fn new(locator: Arc<dyn Locator>, command_timeout: Duration, counters: &Arc<Counters>) -> Dialer {
        Dialer { locator, command_timeout, counters: Arc::clone(counters) }
    }

    /// Connects to the first server that is the right one. Starts again if another server becomes the right one in the meantime. A server
    /// that was frozen accepts the connection when it continues, and does not know yet that another server is the master.
    async fn open<C: Connection>(&self) -> Result<New<C>, Fault> {
        let Some(mut switches) = self.locator.switches() else {
            return Ok(New { link: self.open_first().await?, switches: None });
        };
        loop {
            switches.mark_unchanged();
            tokio::select! {
                biased;
                Ok(()) = switches.changed() => {}
                opened = self.open_first() => return Ok(New { link: opened?, switches: Some(switches) }),
            }
        }
    }

    async fn open_first<C: Connection>(&self) -> Result<C, Fault> {
        let (mut found, mut last) = (self.locator.find(), None);
        while let Some(target) = found.next().await {
            match self.open_to(target).await {
                Ok(link) => return Ok(link),
                Err(fault) => last = Some(fault),
            }
        }
        Err(last.unwrap_or_else(|| Fault::not_sent(NOT_YET)))
    }

    async fn open_to<C: Connection>(&self, target: Result<Target, Fault>) -> Result<C, Fault> {
        at_any_address(target?, self.command_timeout, |place| Box::pin(self.open_at(place))).await
    }

    async fn open_at<C: Connection>(&self, target: Target) -> Result<C, Fault> {
        let link = C::open(&target, self.command_timeout, &self.counters).await?;
        if self.locator.wants_master() && is_replica(&link).await {
            return Err(Fault::said("READONLY this server is a replica; the client needs its master"));
        }
        self.locator.recognise(&link).await?;
        Ok(link)
    }

    /// If an idle link does not reply, a device between client and server may have dropped it. This opens another link in addition. If that
    /// one is ready first, it replaces the old one. `None` if the link is lost in another way.
    async fn successor(&self, link: &Link) -> Option<New<Link>> {
        while link.down().run_until_cancelled(link.doubted()).await.is_some() {
            let opened = link.down().run_until_cancelled(self.open::<Link>()).await;
            match opened {
                Some(Ok(next)) if link.is_doubtful() => {
                    link.give_up("no reply after it was idle, while another connection opened");
                    return Some(next);
                }
                Some(Err(_)) => _ = link.down().run_until_cancelled(sleep(spread(LAST_PAUSE))).await,
                _ => {} // the old link has replied, or is lost
            }
        }
        None
    }

    /// Opens the first link when a caller needs it. If the server refuses the login, the caller gets that error, because no earlier login
    /// has succeeded. The next attempt starts when a caller needs a link again, after a pause that grows. Without a caller there is no
    /// login.
    async fn first_link(&self, wanted: &Notify, slot: &Slot) -> Arc<Link> {
        let mut pause = FIRST_PAUSE;
        loop {
            wanted.notified().await;
            let opened = self.until_open_or(slot, |fault| fault, |fault| matches!(fault, Fault::Denied(_))).await;
            if let Some(first) = opened {
                return first.publish(slot);
            }
            pause = (pause * 2).min(LAST_PAUSE_OUTSIDE);
            sleep(spread(pause)).await;
            let _ = slot.send_replace(Err(Fault::not_sent(NOT_YET))); // the server may accept the login by now
        }
    }

    /// Tries until it succeeds, and reports each failure.
    async fn until_open(&self, slot: &Slot, told: impl Fn(Fault) -> Fault) -> New<Link> {
        loop {
            if let Some(link) = self.until_open_or(slot, &told, |_| false).await {
                return link;
            }
        }
    }

    /// As [`until_open`](Dialer::until_open), but returns `None` after a failure for which `ends` is true.
    async fn until_open_or(
        &self,
        slot: &Slot,
        told: impl Fn(Fault) -> Fault,
        ends: impl Fn(&Fault) -> bool,
    ) -> Option<New<Link>> {
        let mut pause = FIRST_PAUSE;
        loop {
            let fault = match self.open().await {
                Ok(link) => return Some(link),
                Err(fault) => fault,
            };
            let (is_end, longest) = (ends(&fault), fault.last_pause(LAST_PAUSE));
            let _ = slot.send_replace(Err(told(fault)));
            if is_end {
                return None;
            }
            sleep(spread(pause)).await;
            pause = (pause * 2).min(longest);
        }
    }
}

/// A random time from 0.5 to 1.5 times `pause`, so that many clients do not retry at the same moment.
pub(crate) fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    pause.mul_f64(0.5 + random)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// It panics at first, and then finds no server.
    #[derive(Debug, Default)]
    struct Panics(AtomicU32);

    impl Locator for Panics {
        fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
            assert!(self.0.fetch_add(1, Ordering::SeqCst) > 0, "on purpose");
            futures_util::stream::empty().boxed()
        }

        fn place(&self) -> String {
            "nowhere".to_owned()
        }

        fn wants_master(&self) -> bool {
            false
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_does_not_end_the_task_that_connects() {
        let (locator, closed) = (Arc::<Panics>::default(), CancellationToken::new());
        let found: Arc<dyn Locator> = Arc::clone(&locator) as _;
        let dial = Dialer::new(found, Duration::from_secs(1), &Arc::default());
        let nobody: Reconnected = Arc::new(|| {});
        let conn = Conn::lazy(&dial, &nobody, &closed);
        for _ in 0..2 {
            assert!(matches!(conn.link().await, Err(Fault::NotSent(_))));
        }
        assert!(locator.0.load(Ordering::SeqCst) > 2, "it tries again and again");
    }

    #[test]
    fn pauses_differ() {
        let second = Duration::from_secs(1);
        let drawn: Vec<_> = (0..1_000).map(|_| spread(second)).collect();
        assert!(drawn.iter().all(|pause| (second / 2..=second * 3 / 2).contains(pause)));
        let (least, most) = (drawn.iter().min(), drawn.iter().max());
        assert!(
            least < Some(&Duration::from_millis(600)) && most > Some(&Duration::from_millis(1_400)),
            "{least:?} {most:?}"
        );
    }
}
