//! In the place of src/redis/conn.rs: connections to the server of this execution. A request is one message to a task
//! that stands for the connection: it runs requests in the order in which they were sent, also those whose caller has
//! left, each at a moment that the scheduler chooses, and so is the moment of the answer.

use std::{
    fmt::{self, Debug, Formatter},
    mem,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::{SmallVec, smallvec};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    answer::Answer,
    fault::{Fault, source},
    pending::{OnReply, PendingRequest, Requests, Urgency},
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

pub(super) type Answers = SmallVec<[Result<Answer, Fault>; 1]>;
type Then = Box<dyn FnOnce(Requests, Result<Answers, Fault>) + Send>;

/// Called whenever a lost connection has been replaced.
pub(super) type Reconnected = Arc<dyn Fn() + Send + Sync>;

/// There is only one server.
#[derive(Debug, Clone)]
pub(super) struct Dialer;

struct Call {
    script: &'static str,
    requests: Requests,
    /// `None` at its end.
    then: Option<Then>,
    _under_way: UnderWay,
}

impl Call {
    fn end(mut self, answers: Result<Answers, Fault>) {
        if let Some(then) = self.then.take() {
            then(mem::take(&mut self.requests), answers);
        }
    }
}

/// A link that is lost drops it.
impl Drop for Call {
    fn drop(&mut self) {
        if let Some(then) = self.then.take() {
            then(mem::take(&mut self.requests), Err(Fault::unknown("the connection was lost")));
        }
    }
}

#[derive(Debug)]
pub(super) struct Link {
    calls: mpsc::UnboundedSender<Call>,
    is_far: bool,
}

impl Debug for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("Call(..)")
    }
}

impl Link {
    pub(super) fn call(
        self: &Arc<Self>,
        script: &'static Script,
        requests: Requests,
        then: impl FnOnce(&Arc<Link>, Requests, Result<Answers, Fault>) + Send + 'static,
    ) -> Result<(), Requests> {
        let link = Arc::downgrade(self); // the call waits in the link
        let there = self.is_far;
        let then: Then = Box::new(move |requests, answers| {
            let link = link.upgrade().unwrap_or_else(|| Link::lost(there));
            then(&link, requests, answers);
        });
        let call = Call { script: script.source, requests, then: Some(then), _under_way: UnderWay::new() };
        self.calls.send(call).map_err(|unsent| {
            let mut call = unsent.0;
            call.then = None;
            mem::take(&mut call.requests)
        })
    }

    fn lost(is_far: bool) -> Arc<Link> {
        Arc::new(Link { calls: mpsc::unbounded_channel().0, is_far })
    }

    pub(super) async fn run(&self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        loop {
            let (reply, answered) = oneshot::channel();
            let on_reply = OnReply::new(|_| unreachable!("the call below takes the reply"));
            let request = PendingRequest::new(script, part.clone(), Urgency::Now, on_reply);
            let then: Then = Box::new(|_, answers| _ = reply.send(answers));
            let requests = smallvec![request];
            let call = Call { script: script.source, requests, then: Some(then), _under_way: UnderWay::new() };
            let _ = self.calls.send(call);
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

    async fn serve(self: Arc<Slot>, mut inbox: mpsc::UnboundedReceiver<Call>) {
        while let Some(call) = inbox.recv().await {
            let fate = server::fate();
            if fate == Fate::Unknown {
                world::tell(|| format!("server: unknown script {}", server::title(call.script)));
                call.end(Err(Fault::said("NOSCRIPT")));
                continue;
            }
            if !matches!(fate, Fate::RequestLost | Fate::Cut { after: false }) {
                let answers = call.requests.iter().map(|request| answer(call.script, &request.part)).collect();
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
    let word = |range: Range<usize>| &part.text()[range];
    let reply = server::run(script, part.keys().map(word).collect(), part.args().map(word).collect());
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
    Message(String),
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
        self.messages.recv().await.map_or(PubSubEvent::Silence, PubSubEvent::Message)
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
