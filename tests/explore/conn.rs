//! In the place of src/redis/conn.rs: connections to the server of this execution. A request is one message to a task
//! that stands for the connection: it runs requests in the order in which they were sent, also those whose caller has
//! left, each at a moment that the scheduler chooses, and so is the moment of the answer.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    fault::Fault,
    script::{Answer, Part, Script},
};
use crate::{
    error::Result,
    explore::{
        server::{self, Fate, UnderWay},
        tokio::spawn,
        world,
    },
    stats::Counters,
};

/// Without chance.
pub(crate) fn spread(pause: Duration) -> Duration {
    pause
}

pub(super) type Answers = Vec<Result<Answer, Fault>>;
/// `None`: the server does not know the script.
type Reply = Result<Option<Answers>, Fault>;

#[derive(Debug)]
pub(crate) struct Target;

impl Target {
    pub(crate) fn parse(_url: &str) -> Result<Target> {
        Ok(Target)
    }
}

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

    pub(super) async fn confirmed(&self, wanted: u8, _time: Duration) -> Result<u8, Fault> {
        Ok(wanted)
    }
}

/// The link of the moment; the task of one that is lost puts the next one here.
#[derive(Debug)]
pub(super) struct Conn {
    slot: Arc<Slot>,
}

#[derive(Debug)]
struct Slot {
    link: Mutex<Option<Arc<Link>>>,
    generation: watch::Sender<u64>,
    closed: CancellationToken,
}

impl Conn {
    pub(super) async fn open(
        _target: &Arc<Target>,
        _command_timeout: Duration,
        _counters: &Arc<Counters>,
        generation: watch::Sender<u64>,
        closed: &CancellationToken,
    ) -> Result<Conn, Fault> {
        let slot = Arc::new(Slot { link: Mutex::default(), generation, closed: closed.clone() });
        slot.connect();
        Ok(Conn { slot })
    }

    pub(super) fn lazy(
        _target: &Arc<Target>,
        _command_timeout: Duration,
        _counters: &Arc<Counters>,
        generation: watch::Sender<u64>,
        closed: &CancellationToken,
    ) -> Conn {
        let slot = Arc::new(Slot { link: Mutex::default(), generation, closed: closed.clone() });
        slot.connect();
        Conn { slot }
    }

    pub(super) async fn link(&self) -> Result<Arc<Link>, Fault> {
        let link = self.slot.link.lock().unwrap_or_else(PoisonError::into_inner).clone();
        link.filter(|_| !self.slot.closed.is_cancelled()).ok_or(Fault::Closed)
    }
}

impl Slot {
    fn connect(self: &Arc<Slot>) {
        let (calls, inbox) = mpsc::unbounded_channel();
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Link { calls }));
        spawn(self.closed.clone().run_until_cancelled_owned(Arc::clone(self).serve(inbox)));
    }

    async fn serve(self: Arc<Slot>, mut inbox: mpsc::UnboundedReceiver<(Call, UnderWay)>) {
        while let Some((call, _under_way)) = inbox.recv().await {
            let fate = server::fate();
            if fate == Fate::Unknown {
                world::tell(|| format!("server: knows no {}", call.script));
                let _ = call.reply.send(Ok(None));
                continue;
            }
            if !matches!(fate, Fate::RequestLost | Fate::Cut { after: false }) {
                let answers = call.parts.iter().map(|part| Ok(answer(call.script, part))).collect();
                world::step().await;
                if fate == Fate::Answered {
                    let _ = call.reply.send(Ok(Some(answers)));
                    continue;
                }
            }
            world::tell(|| format!("no answer to {}: {fate:?}", call.script));
            let _ = call.reply.send(Err(Fault::unknown("no reply")));
            if let Fate::Cut { .. } = fate {
                self.connect();
                self.generation.send_modify(|count| *count += 1);
                return; // whatever else was sent is lost
            }
        }
    }
}

fn answer(script: &str, part: &Part) -> Answer {
    let words: Vec<_> = part.keys().chain(part.args()).map(|word| &part.text()[word]).collect();
    server::run(script, &words)
}

#[derive(Debug)]
pub(super) struct Subscriber {
    number: u64,
    messages: mpsc::UnboundedReceiver<String>,
}

#[derive(Debug)]
pub(super) enum PubSubEvent {
    Message(String),
    TooMuch,
    Silence,
}

impl Subscriber {
    pub(super) async fn open(
        _target: &Target,
        _command_timeout: Duration,
        _counters: &Arc<Counters>,
    ) -> Result<Subscriber, Fault> {
        let (number, messages) = server::connect();
        Ok(Subscriber { number, messages })
    }

    pub(super) async fn subscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        self.change(|mine| mine.extend(channels.iter().map(|channel| channel.to_string()))).await
    }

    pub(super) async fn unsubscribe(&self, channels: &[Arc<str>]) -> Result<(), Fault> {
        self.change(|mine| mine.retain(|name| !channels.iter().any(|channel| **channel == **name))).await
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
