//! The server: it runs the scripts by the rules that tests/model compares with the Lua scripts, knows the subscribers, and loses
//! requests and replies.

#[path = "../model/rules.rs"]
mod rules;
#[allow(dead_code)]
#[path = "../model/units.rs"]
mod units;

use std::time::Duration;

use tokio::sync::mpsc;

use super::{clock, world};
use crate::redis::{Answer, Code};
use rules::{Lock, Reply, Request, What};

/// The unit of the rules.
const TICK: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(crate) struct Server {
    locks: Vec<Stored>,
    /// Every hold's id ever seen; the rules know them by their place here.
    ids: Vec<String>,
    subscribers: Vec<Subscriber>,
    /// Requests sent and not answered yet.
    under_way: usize,
    pub(crate) troubles: Troubles,
    is_troubled: bool,
}

/// A connection that listens; gone with it.
struct Subscriber {
    number: u64,
    channels: Vec<String>,
    messages: mpsc::UnboundedSender<String>,
}

struct Stored {
    key: String,
    lock: Lock,
    ends: Duration,
}

/// How often what may go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Troubles {
    /// Requests, replies or scripts lost, the connection with them or not.
    pub(crate) lost: usize,
    /// Subscriber connections lost.
    pub(crate) deaf: usize,
}

/// The most that may go wrong in this execution.
pub(crate) fn trouble(troubles: Troubles) {
    world::with(|world| (world.server.troubles, world.server.is_troubled) = (troubles, true));
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
    /// The server has lost its scripts.
    Unknown,
    /// The connection is lost, before or after the server has dealt with the request.
    Cut {
        after: bool,
    },
}

pub(crate) fn fate() -> Fate {
    let unlucky = world::with(|world| world.server.troubles.lost > 0) && world::once_in(6);
    if !unlucky {
        return Fate::Answered;
    }
    world::with(|world| world.server.troubles.lost -= 1);
    let cut = |after| Fate::Cut { after };
    let fates = [Fate::RequestLost, Fate::ReplyLost, Fate::Unknown, cut(false), cut(true)];
    fates[world::below(fates.len())]
}

/// One script over one part: the key and the arguments.
pub(crate) fn run(script: &str, words: &[&str]) -> Answer {
    let [key, id, lease, level, more, channel] = words else { panic!("not a request: {words:?}") };
    let (lease, level) = (ticks(Duration::from_millis(number(lease))), u8::try_from(number(level)).expect("few"));
    let what = match script {
        "acquire" => What::Acquire { level, lease, again: *more == "again" },
        "release" => What::Release { level },
        "renew" => What::Renew { lease },
        "hand_over" => What::HandOver { heir: id_of(more), lease },
        "force_unlock" => What::ForceUnlock,
        "inspect" => What::Inspect,
        _ => panic!("no such script: {script}"),
    };
    let after = rules::run(find(key), Request { id: id_of(id), what });
    store(key, after.lock);
    let told = if after.published { publish(channel) } else { 0 };
    let answer = answer(after.reply, told);
    world::tell(|| format!("server: {script} {} -> {answer:?}", short(&words[1..5])));
    answer
}

/// What is left of ids is their number.
fn short(words: &[&str]) -> String {
    let short = words.iter().map(|word| word.rsplit(':').next().unwrap_or(word));
    short.collect::<Vec<_>>().join(" ")
}

/// The id that has the lock, and its hold count.
pub(crate) fn holder(key: &str) -> Option<(String, u8)> {
    let lock = find(key)?;
    Some((world::with(|world| world.server.ids[usize::from(lock.id)].clone()), lock.count))
}

/// Deletes the key under its holder.
pub(crate) fn delete(key: &str) {
    world::tell(|| "server: the key is deleted".to_owned());
    let was_held = find(key).is_some();
    world::with(|world| world.robbed |= was_held);
    store(key, None);
}

/// A request on its way, until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(());

impl UnderWay {
    pub(crate) fn new() -> UnderWay {
        world::with(|world| world.server.under_way += 1);
        UnderWay(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        world::with(|world| world.server.under_way = world.server.under_way.saturating_sub(1)); // or it is of the world before
    }
}

/// Nothing sent is without an answer.
pub(crate) fn is_quiet() -> bool {
    world::with(|world| world.server.under_way == 0)
}

/// Something was lost, or may be.
pub(crate) fn is_troubled() -> bool {
    world::with(|world| world.server.is_troubled)
}

/// A new subscriber: its number, and what it hears.
pub(crate) fn connect() -> (u64, mpsc::UnboundedReceiver<String>) {
    let (messages, heard) = mpsc::unbounded_channel();
    let number = world::with(|world| {
        world.numbers += 1;
        world.server.subscribers.push(Subscriber { number: world.numbers, channels: Vec::new(), messages });
        world.numbers
    });
    (number, heard)
}

pub(crate) fn disconnect(number: u64) {
    let gone = world::with(|world| {
        let at = world.server.subscribers.iter().position(|subscriber| subscriber.number == number)?;
        Some(world.server.subscribers.swap_remove(at))
    });
    drop(gone);
}

/// Changes the channels of a subscriber; false if it is gone.
pub(crate) fn subscribe(number: u64, change: impl FnOnce(&mut Vec<String>)) -> bool {
    world::with(|world| {
        let subscriber = world.server.subscribers.iter_mut().find(|subscriber| subscriber.number == number);
        subscriber.map(|subscriber| change(&mut subscriber.channels)).is_some()
    })
}

/// How many heard of it.
fn publish(channel: &str) -> i64 {
    let hears = |subscriber: &&Subscriber| subscriber.channels.iter().any(|name| name == channel);
    let all: Vec<_> = world::with(|world| {
        let some = world.server.subscribers.iter().filter(hears);
        some.map(|subscriber| (subscriber.number, subscriber.messages.clone())).collect()
    });
    let mut told = 0;
    for (number, messages) in all {
        if world::with(|world| world.server.troubles.deaf > 0) && world::once_in(3) {
            world::with(|world| world.server.troubles.deaf -= 1);
            world::tell(|| "server: a subscriber's connection is lost".to_owned());
            disconnect(number);
        } else {
            told += i64::from(messages.send(channel.to_owned()).is_ok());
        }
    }
    told
}

fn find(key: &str) -> Option<Lock> {
    let now = clock::now();
    world::with(|world| {
        let locks = &mut world.server.locks;
        locks.retain(|stored| stored.ends > now);
        let stored = locks.iter().find(|stored| stored.key == key)?;
        Some(Lock { left: Some(ticks(stored.ends - now)), ..stored.lock })
    })
}

/// Its end moves only where the rules say so: what is left is rounded.
fn store(key: &str, lock: Option<Lock>) {
    let (now, before) = (clock::now(), find(key));
    world::with(|world| {
        let locks = &mut world.server.locks;
        let at = locks.iter().position(|stored| stored.key == key);
        let ended = at.map(|at| locks.swap_remove(at).ends);
        let Some(lock) = lock else { return };
        let left = lock.left.expect("no script takes the end away");
        let stays = before.is_some_and(|before| before.left == lock.left);
        let ends = ended.filter(|_| stays).unwrap_or(now + TICK * u32::from(left));
        locks.push(Stored { key: key.to_owned(), lock, ends });
    });
}

fn id_of(id: &str) -> u8 {
    world::with(|world| {
        let ids = &mut world.server.ids;
        let at = ids.iter().position(|known| known == id).unwrap_or_else(|| {
            ids.push(id.to_owned());
            ids.len() - 1
        });
        u8::try_from(at).expect("few holds")
    })
}

fn answer(reply: Reply, told: i64) -> Answer {
    let left = |left: Option<u8>| left.map_or("-1".to_owned(), |left| (TICK * u32::from(left)).as_millis().to_string());
    let text = |id: u8| world::with(|world| world.server.ids[usize::from(id)].clone());
    let (code, rest) = match reply {
        Reply::Granted(count) => (Code::Granted, count.to_string()),
        Reply::Lost => (Code::Lost, String::new()),
        Reply::Busy(rest, id) => (Code::Busy, format!("{} {}", left(rest), text(id))),
        Reply::Kept(rest) => (Code::Kept, left(rest)),
        Reply::Gone => (Code::Gone, String::new()),
        Reply::Released => (Code::Released, told.to_string()),
        Reply::Handed => (Code::Handed, String::new()),
        Reply::HandedBefore => (Code::Handed, "before".to_owned()),
        Reply::Deeper(count) => (Code::Deeper, count.to_string()),
        Reply::Free => (Code::Free, String::new()),
        Reply::Held(id, count, rest) => (Code::Held, format!("{count} {} {}", left(rest), text(id))),
    };
    Answer::new(code, rest)
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn ticks(time: Duration) -> u8 {
    u8::try_from(time.as_millis().div_ceil(TICK.as_millis())).expect("leases are short here")
}
