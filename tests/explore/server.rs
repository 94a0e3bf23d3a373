//! The server: it runs the scripts themselves over data in memory, knows the subscribers, and loses requests and replies.

#[path = "channels.rs"]
mod channels;
#[path = "../../src/redis/memory/data.rs"]
mod data;
#[path = "../../src/redis/memory/interpreter.rs"]
mod interpreter;

use std::{cell::RefCell, time::Duration};

use tokio::sync::mpsc;

use super::world;
use data::Output;
use interpreter::Interpreter;

thread_local! {
    /// Keeps the compiled scripts from one execution to the next.
    static INTERPRETER: RefCell<Interpreter> = RefCell::new(Interpreter::new());
}

#[derive(Default)]
pub(crate) struct Server {
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

/// How often what may go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Troubles {
    /// Requests, replies or scripts lost, the connection with them or not.
    pub(crate) lost: usize,
    /// Subscriber connections lost.
    pub(crate) deaf: usize,
    /// Replies that take a while.
    pub(crate) slow: usize,
}

/// The data of the last execution are gone.
pub(super) fn begin() {
    INTERPRETER.with_borrow(|interpreter| interpreter.data().clear());
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

/// The time for which the server thinks.
pub(crate) fn pause() -> Option<Duration> {
    let is_slow = world::with(|world| world.server.troubles.slow > 0) && world::once_in(2);
    world::with(|world| world.server.troubles.slow -= usize::from(is_slow));
    is_slow.then_some(Duration::from_millis(100))
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

/// Runs one script over one part. Returns the reply of the script.
pub(crate) fn run(script: &'static str, keys: Vec<&str>, args: Vec<&str>) -> String {
    let shown = args.iter().map(|word| short(word)).collect::<Vec<_>>().join(" ");
    let args = ["1", "0"].into_iter().chain(args).collect();
    let replied = INTERPRETER.with_borrow_mut(|interpreter| interpreter.run(script, keys, args));
    let reply = replied.unwrap_or_else(|error| world::violated(&format!("{}: {error}", title(script))));
    world::tell(|| format!("server: {} {shown} -> {}", title(script), short(&reply)));
    reply
}

/// The name of a script: what its comment says first.
pub(crate) fn title(script: &str) -> &str {
    let before = &script[..script.rfind("-- KEYS").unwrap_or(script.len())];
    let comment = before.rsplit("\n\n").next().unwrap_or("");
    let line = comment.lines().rev().take_while(|line| line.starts_with("--")).last().unwrap_or("");
    let end = line.char_indices().nth(24).map_or(line.len(), |(at, _)| at);
    line[..end].trim_start_matches(['-', ' '])
}

/// What is left of ids is their number.
fn short(words: &str) -> String {
    let short = |word: &str| match word.split_once(':') {
        Some((client, hold)) if client.len() == 36 => format!("{}:{hold}", &client[..2]),
        _ => word.to_owned(),
    };
    words.split(' ').map(short).collect::<Vec<_>>().join(" ")
}

/// One id that has the lock, and its hold count.
pub(crate) fn holder(key: &str) -> Option<(String, u64)> {
    holders(key).into_iter().next()
}

/// All of them: several readers may have a lock.
pub(crate) fn holders(key: &str) -> Vec<(String, u64)> {
    let words = ["HGETALL", key].map(str::to_owned);
    let Output::List(fields) = command(&words) else { return Vec::new() };
    let pairs = fields.chunks_exact(2).filter(|pair| pair[0] != "mode");
    pairs.map(|pair| (pair[0].clone(), pair[1].parse().expect("a number"))).collect()
}

/// A queue of waiters, or the mark of one.
pub(crate) fn has_waiters(key: &str) -> bool {
    let keys = ["redisson_lock_queue", "redisson_lock_timeout", "leasehold_rwlock_waits"];
    let exists = |prefix| command(&["EXISTS".to_owned(), format!("{prefix}:{{{key}}}")]) == Output::Number(1);
    keys.into_iter().any(exists)
}

/// The value of a key that is a number, if there is one.
pub(crate) fn number(key: &str) -> Option<i64> {
    match command(&["GET", key].map(str::to_owned)) {
        Output::Text(text) => text.parse().ok(),
        _ => None,
    }
}

/// The waiter of a semaphore that has the next turn.
pub(crate) fn has_mark(key: &str) -> bool {
    command(&["EXISTS".to_owned(), format!("leasehold_semaphore_waits:{{{key}}}")]) == Output::Number(1)
}

/// Deletes the key under its holder.
pub(crate) fn delete(key: &str) {
    world::tell(|| "server: the key is deleted".to_owned());
    let deleted = command(&["DEL", key].map(str::to_owned));
    world::with(|world| world.robbed |= deleted == Output::Number(1));
}

fn command(words: &[String]) -> Output {
    INTERPRETER.with_borrow(|interpreter| {
        let mut data = interpreter.data();
        data.set_clock();
        data.run(words).expect("a valid command")
    })
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
fn publish(channel: &str) -> usize {
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
            told += usize::from(messages.send(channel.to_owned()).is_ok());
        }
    }
    told
}
