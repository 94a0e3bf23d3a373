//! A server in this process, for tests of programs that use locks. It runs the real scripts over data of its own.

mod data;
mod interpreter;
mod link;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
};

use super::{
    fault::Fault,
    hub::Listener,
    script::{Answer, Part, Script},
};
use crate::stats::Counters;
use data::Output;
use interpreter::Interpreter;
pub(super) use link::MemoryLink;

/// A server that lives in this process, for unit tests: [`Client::in_memory`](crate::Client::in_memory) connects to it. Clones are the same
/// server. It runs the same scripts as Redis does, in an interpreter of Lua, so locks, leases, messages and forced unlocks behave as there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> leasehold::Result<()> {
/// use leasehold::{Client, Lost, MemoryServer};
///
/// let server = MemoryServer::new();
/// let (client, other) = (Client::in_memory(&server)?, Client::in_memory(&server)?);
/// let guard = client.mutex("invoice:42").lock().await?;
/// assert!(other.mutex("invoice:42").try_lock().await?.is_none());
/// server.forget("invoice:42");
/// assert!(guard.check().await.is_err());
/// assert_eq!(guard.lost().await, Lost::Removed);
/// # Ok(()) }
/// ```
///
/// # Time
///
/// Under tokio's paused clock (`#[tokio::test(start_paused = true)]`) time passes only when the test waits or calls `tokio::time::advance`:
/// a lease of 30 s then expires in a millisecond. From the first use of a server in memory on, all clients of the process count leases on
/// tokio's clock, which may stop while the machine sleeps: use this in tests only.
///
/// # What it cannot do
///
/// Other programs cannot connect to it. There are no replicas: [`replicas`](crate::Builder::replicas) above zero acquires nothing.
#[derive(Debug, Clone)]
pub struct MemoryServer(Arc<Inside>);

#[derive(Debug)]
struct Inside {
    state: Mutex<MemoryState>,
    next_number: AtomicU64,
}

#[derive(Debug)]
struct MemoryState {
    interpreter: Interpreter,
    mood: Mood,
    /// Replies that the clients do not get.
    lost_replies: u32,
    /// By channel, client and subscription.
    listening: BTreeMap<(String, u64, u64), Subscribed>,
    links: Vec<Weak<Connected>>,
}

/// How the server treats requests.
#[derive(Debug)]
enum Mood {
    Well,
    /// It executes nothing, and keeps what arrives.
    Frozen(Vec<Waiting>),
    /// It refuses everything.
    Denying,
}

/// A request that has arrived while the server was frozen.
#[derive(Debug)]
struct Waiting {
    script: &'static Script,
    part: Part,
    reply: oneshot::Sender<Result<Answer, Fault>>,
}

/// What becomes of a request that arrives.
enum Arrived {
    Answered(Result<Answer, Fault>),
    Waits(oneshot::Receiver<Result<Answer, Fault>>),
}

/// One client's connection.
#[derive(Debug)]
struct Connected {
    /// Counts up when the connection was lost.
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Subscribed {
    listener: Arc<dyn Listener>,
    live: Arc<AtomicBool>,
    /// Messages are delivered by a task there: who sends a request may hold locks that a listener needs.
    runtime: Handle,
    counters: Arc<Counters>,
}

impl Subscribed {
    fn subscribed(&self) {
        self.live.store(true, Ordering::Release);
        let listener = Arc::clone(&self.listener);
        self.runtime.spawn(async move { listener.subscribed() });
    }

    fn message(&self) {
        self.counters.wakeups.up();
        let listener = Arc::clone(&self.listener);
        self.runtime.spawn(async move { listener.message() });
    }
}

impl Default for MemoryServer {
    fn default() -> MemoryServer {
        MemoryServer::new()
    }
}

impl MemoryServer {
    /// Starts a server without locks. It lives as long as the last of its clones and clients.
    #[must_use]
    pub fn new() -> MemoryServer {
        crate::clock::count_on_tokio();
        let state = MemoryState {
            interpreter: Interpreter::new(),
            mood: Mood::Well,
            lost_replies: 0,
            listening: BTreeMap::new(),
            links: Vec::new(),
        };
        MemoryServer(Arc::new(Inside { state: Mutex::new(state), next_number: AtomicU64::new(0) }))
    }

    /// From now on the server does not reply. It executes the requests that arrive meanwhile when it is [thawed](MemoryServer::thaw), even if
    /// their callers have given up. Leases go on.
    pub fn freeze(&self) {
        let mut state = self.state();
        if !matches!(state.mood, Mood::Frozen(_)) {
            state.mood = Mood::Frozen(Vec::new());
        }
    }

    /// Ends [`freeze`](MemoryServer::freeze) and [`deny`](MemoryServer::deny).
    pub fn thaw(&self) {
        let mut state = self.state();
        if let Mood::Frozen(waiting) = std::mem::replace(&mut state.mood, Mood::Well) {
            for Waiting { script, part, reply } in waiting {
                let answer = state.run(script, &part);
                let _ = reply.send(answer); // its caller may have given up
            }
        }
        state.listening.values().filter(|one| !one.live.load(Ordering::Acquire)).for_each(Subscribed::subscribed);
    }

    /// The next `n` requests are executed, and their replies are lost.
    pub fn lose_replies(&self, n: u32) {
        self.state().lost_replies = n;
    }

    /// Restarts the server without its data: all locks are gone, all connections end, and the clients connect again at once. What arrived
    /// while it was frozen is lost.
    pub fn restart(&self) {
        let mut state = self.state();
        state.mood = Mood::Well;
        state.interpreter.data().clear();
        state.connections_end();
    }

    /// All connections end, and the clients connect again at once. Nothing else is lost.
    pub fn cut(&self) {
        self.state().connections_end();
    }

    /// Sets a key to a text, as another program might: locks of that name return [`Error::Conflict`](crate::Error::Conflict) then.
    pub fn set(&self, name: &str, text: &str) {
        let set = ["SET", name, text].map(str::to_owned);
        self.state().interpreter.data().run(&set).expect("SET replaces whatever is there");
    }

    /// Deletes a lock, as `DEL` does: nobody is told. True if it was there. The name includes the prefix.
    pub fn forget(&self, name: &str) -> bool {
        self.state().interpreter.data().remove(name)
    }

    /// From now on the server denies every request, as if the user had lost its permissions.
    pub fn deny(&self) {
        self.state().mood = Mood::Denying;
    }

    /// The keys that exist now, in their order: locks under their names, and the additional keys of some kinds.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let mut names = self.state().interpreter.data().names();
        names.sort();
        names
    }

    /// Runs a command that the scripts use; for the crate's own tests.
    #[doc(hidden)]
    pub fn command(&self, words: &[&str]) -> std::result::Result<Vec<String>, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let output = self.state().interpreter.data().run(&words)?;
        Ok(match output {
            Output::Nil => Vec::new(),
            Output::Number(number) => vec![number.to_string()],
            Output::Text(text) => vec![text],
            Output::List(items) => items,
            Output::Done => vec!["OK".to_owned()],
        })
    }

    /// The number of subscriptions to a channel; for the crate's own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn listeners(&self, channel: &str) -> usize {
        self.state().listening.keys().filter(|(known, ..)| known == channel).count()
    }

    /// Different for each server.
    pub(crate) fn place(&self) -> String {
        format!("memory:{}", Arc::as_ptr(&self.0).addr())
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.0.next_number.fetch_add(1, Ordering::Relaxed)
    }
}

impl MemoryState {
    fn arrive(&mut self, script: &'static Script, part: Part) -> Arrived {
        match &mut self.mood {
            Mood::Frozen(waiting) => {
                let (reply, told) = oneshot::channel();
                waiting.push(Waiting { script, part, reply });
                return Arrived::Waits(told);
            }
            Mood::Denying => {
                let denied = Fault::said("NOPERM User default has no permissions to run the 'evalsha' command");
                return Arrived::Answered(Err(denied.of(script, &part)));
            }
            Mood::Well => {}
        }
        let answer = self.run(script, &part);
        let is_lost = self.lost_replies > 0;
        self.lost_replies = self.lost_replies.saturating_sub(1);
        Arrived::Answered(if is_lost { Err(Fault::unknown("the reply was lost")) } else { answer })
    }

    fn run(&mut self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let word = |range: std::ops::Range<usize>| &part.text()[range];
        let args = ["1", "0"].into_iter().chain(part.args().map(word)).collect();
        self.count_listeners();
        let replied = self.interpreter.run(script.source, part.keys().map(word).collect(), args);
        self.deliver();
        let answer = replied.map_err(|error| Fault::said(&format!("ERR {error}")))?;
        let (_, answer) =
            Answer::read(answer.as_bytes()).ok_or_else(|| Fault::said(&format!("ERR odd reply: {answer}")))?;
        answer.map_err(|fault| fault.of(script, part))
    }

    /// PUBLISH returns how many clients hear it.
    fn count_listeners(&self) {
        let mut data = self.interpreter.data();
        data.heard_by.clear();
        let mut last = None;
        for ((channel, client, _), one) in &self.listening {
            if one.live.load(Ordering::Acquire) && last.replace((channel, client)) != Some((channel, client)) {
                *data.heard_by.entry(channel.clone()).or_default() += 1;
            }
        }
    }

    fn deliver(&mut self) {
        let published = std::mem::take(&mut self.interpreter.data().published);
        for channel in published {
            let subscribed = self.listening.range((channel.clone(), 0, 0)..=(channel, u64::MAX, u64::MAX));
            subscribed.filter(|(_, one)| one.live.load(Ordering::Acquire)).for_each(|(_, one)| one.message());
        }
    }

    fn connections_end(&mut self) {
        self.links.retain(|link| link.strong_count() > 0);
        let changed = |link: Arc<Connected>| link.changes.send_modify(|count| *count += 1);
        self.links.iter().filter_map(Weak::upgrade).for_each(changed);
        self.listening.values().for_each(Subscribed::subscribed);
    }
}
