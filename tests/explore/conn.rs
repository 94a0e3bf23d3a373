//! In the place of src/redis/conn.rs: connections to the server of this execution. A request is one message to a task
//! that stands for the connection: it runs requests in the order in which they were sent, also those whose caller has
//! left, each at a moment that the scheduler chooses, and so is the moment of the answer.

use std::{
    fmt::{self, Debug, Formatter},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    answer::Answer,
    fault::{Fault, source},
    script::{Part, Script},
    url::Address,
};
use crate::{
    config::Confirmed,
    error::Source,
    explore::{
        server::{self, Fate, UnderWay},
        tokio::{spawn, time::sleep},
        world,
    },
};

/// Without chance.
pub(crate) fn spread(pause: Duration) -> Duration {
    pause
}

#[path = "../../src/redis/conn/call.rs"]
mod call;
pub(super) use call::{Answers, Attempt, InFlight, ScriptCall, ScriptCaller, Sent};

/// Called whenever a lost connection has been replaced.
pub(super) type Reconnected = Arc<dyn Fn() + Send + Sync>;

/// There is only one server.
#[derive(Debug, Clone)]
pub(super) struct Dialer;

/// What the server is asked.
struct Asked {
    script: &'static str,
    /// `None` at its end.
    by: Option<By>,
    _under_way: UnderWay,
}

enum By {
    Caller(ScriptCall),
    Task(Part, oneshot::Sender<Result<Answers, Fault>>),
}

impl Asked {
    fn new(script: &'static Script, by: By) -> Asked {
        Asked { script: script.source, by: Some(by), _under_way: UnderWay::new() }
    }

    fn parts(&self) -> Vec<&Part> {
        match &self.by {
            Some(By::Caller(call)) => call.parts().collect(),
            Some(By::Task(part, _)) => vec![part],
            None => Vec::new(),
        }
    }

    fn end(mut self, answers: Result<Answers, Fault>) {
        self.tell(answers);
    }

    fn tell(&mut self, answers: Result<Answers, Fault>) {
        match self.by.take() {
            Some(By::Caller(call)) => _ = Arc::clone(&call.in_flight.caller).answered(call, answers),
            Some(By::Task(_, reply)) => _ = reply.send(answers),
            None => {}
        }
    }
}

/// A link that is lost drops it.
impl Drop for Asked {
    fn drop(&mut self) {
        self.tell(Err(Fault::unknown("the connection was lost")));
    }
}

#[derive(Debug)]
pub(super) struct Link {
    calls: mpsc::UnboundedSender<Asked>,
    is_far: bool,
}

impl Debug for Asked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Asked(..)")
    }
}

/// A link on which a call can be sent now.
pub(super) struct CallRoom<'a>(&'a Arc<Link>);

impl CallRoom<'_> {
    pub(super) fn send(self, call: ScriptCall) {
        let CallRoom(link) = self;
        let script = call.script;
        let asked = Asked::new(script, By::Caller(call));
        // The sender may hold locks, so the task of the link ends it, or nobody needs to.
        let unsent = link.calls.send(asked);
        assert!(unsent.is_ok(), "{:?}", script);
    }
}

impl Link {
    pub(super) fn room(self: &Arc<Self>) -> Option<CallRoom<'_>> {
        (!self.calls.is_closed()).then_some(CallRoom(self))
    }

    pub(super) async fn run(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        loop {
            let (reply, answered) = oneshot::channel();
            let _ = self.calls.send(Asked::new(script, By::Task(part.clone(), reply)));
            match answered.await.unwrap_or_else(|_| Err(Fault::unknown("the connection was lost"))) {
                Err(fault) if fault.is_of_an_unknown_script() => self.load(script).await?,
                answers => return answers?.pop().expect("one part, one answer"),
            }
        }
    }

    pub(super) fn shortest_round_trip(&self) -> Option<Duration> {
        Some(if self.is_far { Duration::from_millis(3) } else { Duration::ZERO })
    }

    pub(super) async fn raw(&self, _sha: &str, _keys: Vec<String>, _args: Vec<String>) -> Result<(), Fault> {
        Ok(())
    }

    pub(super) async fn ping(&self) -> Result<(), Fault> {
        self.load_source("").await.map(drop)
    }

    pub(super) async fn load(&self, script: &Script) -> Result<(), Fault> {
        self.load_source(script.source).await.map(drop)
    }

    /// There and back.
    pub(super) async fn load_source(&self, _source: &str) -> Result<String, Fault> {
        world::step().await;
        world::step().await;
        Ok(String::new())
    }

    pub(super) async fn confirmed(&self, _how: Confirmed, wanted: u8, _time: Duration) -> Result<u8, Fault> {
        Ok(wanted)
    }
}

/// The link of the moment; the task of one that is lost puts the next one here.
#[derive(Debug)]
pub(super) struct Conn {
    slot: Arc<Slot>,
}

struct Slot {
    link: Mutex<Option<Arc<Link>>>,
    /// The links so far. Every second one is to a server that is farther away.
    links: AtomicU64,
    changes: watch::Sender<u64>,
    reconnected: Reconnected,
    closed: CancellationToken,
}

impl Debug for Slot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Slot(..)")
    }
}

impl Conn {
    pub(super) async fn open(
        dial: &Dialer,
        reconnected: &Reconnected,
        closed: &CancellationToken,
    ) -> Result<Conn, Fault> {
        Ok(Conn::lazy(dial, reconnected, closed))
    }

    pub(super) fn lazy(_dial: &Dialer, reconnected: &Reconnected, closed: &CancellationToken) -> Conn {
        let reconnected = Arc::clone(reconnected);
        let (changes, closed) = (watch::Sender::new(0), closed.clone());
        let slot = Arc::new(Slot { link: Mutex::default(), links: AtomicU64::new(0), changes, reconnected, closed });
        slot.connect();
        Conn { slot }
    }

    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.link_now().ok_or(Fault::Closed)
    }

    pub(super) async fn needed(&self) {}

    pub(super) fn shortest_round_trip(&self) -> Option<Duration> {
        self.link_now()?.shortest_round_trip()
    }

    pub(super) fn refusal(&self) -> Option<Fault> {
        self.slot.closed.is_cancelled().then_some(Fault::Closed)
    }

    pub(super) fn need(&self) {}

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.slot.changes.subscribe()
    }

    pub(super) fn why_unsent(&self) -> Fault {
        Fault::not_sent("no connection")
    }

    pub(super) fn link_now(&self) -> Option<Arc<Link>> {
        let link = self.slot.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        link.filter(|_| !self.slot.closed.is_cancelled())
    }

    pub(super) fn trouble(&self, last: Option<Source>) -> Source {
        last.unwrap_or_else(|| source("no reply yet"))
    }

    pub(super) fn is_unwell(&self, _late: Duration) -> bool {
        false
    }
}

impl Slot {
    fn connect(self: &Arc<Slot>) {
        let (calls, inbox) = mpsc::unbounded_channel();
        let is_far = self.links.fetch_add(1, Ordering::Relaxed) % 2 == 1;
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Link { calls, is_far }));
        self.changes.send_modify(|count| *count += 1);
        spawn(self.closed.clone().run_until_cancelled_owned(Arc::clone(self).serve(inbox)));
    }

    async fn serve(self: Arc<Slot>, mut inbox: mpsc::UnboundedReceiver<Asked>) {
        while let Some(call) = inbox.recv().await {
            let fate = server::fate();
            if fate == Fate::Unknown {
                world::tell(|| format!("server: unknown script {}", server::title(call.script)));
                call.end(Err(Fault::said("NOSCRIPT")));
                continue;
            }
            if !matches!(fate, Fate::RequestLost | Fate::Cut { after: false }) {
                let answers = call.parts().into_iter().map(|part| answer(call.script, part)).collect();
                match server::pause() {
                    Some(pause) => sleep(pause).await,
                    None => world::step().await,
                }
                if fate == Fate::Answered {
                    call.end(Ok(answers));
                    continue;
                }
            }
            world::tell(|| format!("no reply to {}: {fate:?}", server::title(call.script)));
            call.end(Err(Fault::unknown("no reply")));
            if let Fate::Cut { .. } = fate {
                self.connect();
                (self.reconnected)();
                return; // whatever else was sent is lost
            }
        }
    }
}

fn answer(script: &'static str, part: &Part) -> Result<Answer, Fault> {
    let reply = server::run(script, part.keys().collect(), part.args().collect());
    let (_, answer) = Answer::read(reply.as_bytes()).expect("a reply of the frame");
    answer
}

#[derive(Debug)]
pub(super) struct Subscriber {
    number: u64,
    address: Address,
    messages: mpsc::UnboundedReceiver<String>,
}

#[derive(Debug)]
pub(super) enum PubSubEvent {
    Message { channel: String, text: String },
    TooMuch,
    Silence,
}

impl Subscriber {
    pub(super) async fn open(_dial: &Dialer, _sharded: bool) -> Result<Subscriber, Fault> {
        let (number, messages) = server::connect();
        Ok(Subscriber { number, address: Address::Tcp("nowhere".into(), 1), messages })
    }

    pub(super) async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        self.change(|mine| mine.extend(channels.iter().map(|channel| channel.to_string()))).await
    }

    pub(super) async fn unsubscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        self.change(|mine| mine.retain(|name| !channels.iter().any(|channel| **channel == **name))).await
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) async fn barrier(&self) -> Result<(), Fault> {
        self.change(|_| {}).await
    }

    pub(super) async fn next(&mut self) -> PubSubEvent {
        let message = |channel| PubSubEvent::Message { channel, text: String::new() };
        self.messages.recv().await.map_or(PubSubEvent::Silence, message)
    }

    /// There and back.
    async fn change(&self, change: impl FnOnce(&mut Vec<String>)) -> Result<(), Fault> {
        world::step().await;
        let changed = server::subscribe(self.number, change);
        world::step().await;
        changed.then_some(()).ok_or_else(|| Fault::unknown("the connection was lost"))
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        server::disconnect(self.number);
    }
}
