//! In the place of src/redis/conn.rs: connections to the server of this execution. A request is one message to a task
//! that stands for the connection: it runs requests in the order in which they were sent, also those whose caller has
//! left, each at a moment that the scheduler chooses, and so is the moment of the answer.

use std::{
    fmt::{self, Debug, Formatter},
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};
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

pub(super) type Answers = Vec<Result<Answer, Fault>>;
/// `None`: the server does not know the script.
type Reply = Result<Option<Answers>, Fault>;

/// Called whenever a lost connection has been replaced.
pub(super) type Reconnected = Arc<dyn Fn() + Send + Sync>;

/// There is only one server.
#[derive(Debug, Clone)]
pub(super) struct Dialer;

#[derive(Debug)]
struct Call {
    script: &'static str,
    parts: Vec<Part>,
    reply: oneshot::Sender<Reply>,
}

#[derive(Debug)]
pub(super) struct Link {
    calls: mpsc::UnboundedSender<(Call, UnderWay)>,
}

impl Link {
    pub(super) async fn run(&self, script: &Script, parts: &[Part]) -> Result<Answers, Fault> {
        loop {
            if let Some(answers) = self.try_run(script, parts).await? {
                return Ok(answers);
            }
            self.load(script).await?;
        }
    }

    pub(super) async fn try_run(&self, script: &Script, parts: &[Part]) -> Reply {
        let (reply, answers) = oneshot::channel();
        let call = Call { script: script.source, parts: parts.to_vec(), reply };
        let _ = self.calls.send((call, UnderWay::new())); // a link that is lost drops it, and so the reply
        answers.await.unwrap_or_else(|_| Err(Fault::unknown("the connection was lost")))
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
        let slot =
            Arc::new(Slot { link: Mutex::default(), links: AtomicU64::new(0), reconnected, closed: closed.clone() });
        slot.connect();
        Conn { slot }
    }

    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        self.link_now().ok_or(Fault::Closed)
    }

    pub(super) async fn needed(&self) {}

    pub(super) fn shortest_round_trip(&self) -> Option<Duration> {
        let is_far = self.slot.links.load(Ordering::Relaxed).is_multiple_of(2);
        Some(if is_far { Duration::from_millis(3) } else { Duration::ZERO })
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
        self.links.fetch_add(1, Ordering::Relaxed);
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Link { calls }));
        spawn(self.closed.clone().run_until_cancelled_owned(Arc::clone(self).serve(inbox)));
    }

    async fn serve(self: Arc<Slot>, mut inbox: mpsc::UnboundedReceiver<(Call, UnderWay)>) {
        while let Some((call, _under_way)) = inbox.recv().await {
            let fate = server::fate();
            if fate == Fate::Unknown {
                world::tell(|| format!("server: unknown script {}", server::title(call.script)));
                let _ = call.reply.send(Ok(None));
                continue;
            }
            if !matches!(fate, Fate::RequestLost | Fate::Cut { after: false }) {
                let answers = call.parts.iter().map(|part| answer(call.script, part)).collect();
                match server::pause() {
                    Some(pause) => sleep(pause).await,
                    None => world::step().await,
                }
                if fate == Fate::Answered {
                    let _ = call.reply.send(Ok(Some(answers)));
                    continue;
                }
            }
            world::tell(|| format!("no reply to {}: {fate:?}", server::title(call.script)));
            let _ = call.reply.send(Err(Fault::unknown("no reply")));
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
