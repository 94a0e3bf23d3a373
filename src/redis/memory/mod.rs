//! A server in this process, for tests of programs that use locks. It runs the real scripts over data of its own.

mod channels;
mod data;
mod interpreter;
mod link;

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

use super::{
    answer::Answer,
    fault::Fault,
    script::{Part, Script},
};
use channels::{Connected, Reception};
use data::{Data, Output};
use interpreter::Interpreter;
pub(super) use link::MemoryLink;

/// A server that lives in this process, for unit tests: [`Client::in_memory`](crate::Client::in_memory) connects to it. Clones are the same
/// server. It runs the scripts that Redis runs, in an interpreter of Lua, so locks, leases, messages and forced unlocks behave as there.
/// [`guide::testing`](crate::guide::testing) shows how to test code that loses its lock.
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
/// a lease of 30 s then expires in a millisecond. Each runtime has a paused clock of its own, so create all clients of a server in one
/// runtime. From the first server in memory on, all clients of the process count leases on tokio's clock, which may stop while the machine
/// sleeps: use this in tests only.
///
/// # What it cannot do
///
/// Other programs cannot connect to it. It has no replicas: with [`replicas`](crate::Builder::replicas) above zero, calls return
/// [`Error::Replicas`](crate::Error::Replicas).
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
    permissions: Permissions,
    /// Replies that the clients do not get.
    lost_replies: u32,
    connections: Vec<Weak<Connected>>,
}

/// How the server treats what arrives.
#[derive(Debug)]
enum Mood {
    Well,
    /// It executes nothing, and keeps what arrives.
    Frozen(Vec<Waiting>),
}

/// Something that has arrived while the server was frozen. The client may have given up, or may have another connection by now.
struct Waiting(Box<dyn FnOnce(&mut MemoryState) -> ReplySent + Send>);

/// Sends the reply. That wakes the caller, whose waker may ask the server: call it without the server's lock.
type ReplySent = Box<dyn FnOnce() + Send>;

impl Mood {
    /// Returns what has arrived meanwhile.
    fn become_well(&mut self) -> Vec<Waiting> {
        match mem::replace(self, Mood::Well) {
            Mood::Frozen(waiting) => waiting,
            Mood::Well => Vec::new(),
        }
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

/// What the clients may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permissions {
    All,
    None,
}

impl Permissions {
    fn check(self, command: &str) -> Result<(), Fault> {
        match self {
            Permissions::All => Ok(()),
            Permissions::None => {
                Err(Fault::said(&format!("NOPERM User default has no permissions to run the '{command}' command")))
            }
        }
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
            permissions: Permissions::All,
            lost_replies: 0,
            connections: Vec::new(),
        };
        MemoryServer(Arc::new(Inside { state: Mutex::new(state), next_number: AtomicU64::new(0) }))
    }

    /// From now on the server does not reply. It executes the requests that arrive meanwhile when it is [thawed](MemoryServer::thaw), even if
    /// their callers have given up. Leases go on.
    pub fn freeze(&self) {
        let mut state = self.state();
        if matches!(state.mood, Mood::Well) {
            state.mood = Mood::Frozen(Vec::new());
        }
    }

    /// Ends [`freeze`](MemoryServer::freeze) and [`deny`](MemoryServer::deny).
    pub fn thaw(&self) {
        let mut state = self.state();
        state.permissions = Permissions::All;
        let waiting = state.mood.become_well();
        let replies: Vec<_> = waiting.into_iter().map(|Waiting(serve)| serve(&mut state)).collect();
        state.data().channels.subscribe_missing();
        drop(state);
        replies.into_iter().for_each(|send| send());
    }

    /// The server executes the next `n` requests, but the clients do not receive the replies. With 0, the clients receive all replies again.
    pub fn lose_replies(&self, n: u32) {
        self.state().lost_replies = n;
    }

    /// Restarts the server without its data: all locks are gone, all connections end, and the clients connect again at once. Requests that
    /// arrived while the server was frozen are lost. Ends [`freeze`](MemoryServer::freeze) and [`deny`](MemoryServer::deny).
    pub fn restart(&self) {
        let mut state = self.state();
        let unanswered = state.mood.become_well();
        state.permissions = Permissions::All;
        state.data().clear();
        drop(state);
        self.cut();
        drop(unanswered); // wakes their callers
    }

    /// Ends all connections, and the clients connect again at once. Nothing else is lost. While the server is frozen, requests without a
    /// reply fail, and the server executes them when it is [thawed](MemoryServer::thaw).
    pub fn cut(&self) {
        let state = self.state();
        let connections: Vec<_> = state.connections.iter().filter_map(Weak::upgrade).collect();
        state.data().channels.subscribe_again(state.reception());
        drop(state);
        connections.iter().for_each(|connected| connected.changes.send_modify(|count| *count += 1)); // wakes callers
    }

    /// Sets a key to a text, as another program might: locks of that name return [`Error::Conflict`](crate::Error::Conflict) then.
    pub fn set(&self, name: &str, text: &str) {
        let set = ["SET", name, text].map(str::to_owned);
        self.state().data().run(&set).expect("SET replaces whatever is there");
    }

    /// Deletes a lock without a message, as `DEL` does. Returns true if it was there. The name includes the prefix.
    pub fn forget(&self, name: &str) -> bool {
        self.state().data().remove(name)
    }

    /// From now on the server denies every request, as if the user had lost its permissions.
    /// [`thaw`](MemoryServer::thaw) ends that.
    pub fn deny(&self) {
        self.state().permissions = Permissions::None;
    }

    /// The keys that exist now, in their order: locks under their names, and the additional keys of some kinds.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let mut names = self.state().data().names();
        names.sort();
        names
    }

    /// Runs a command that the scripts use; for the crate's own tests.
    #[doc(hidden)]
    pub fn command(&self, words: &[&str]) -> std::result::Result<Vec<String>, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let output = self.state().data().run(&words)?;
        Ok(match output {
            Output::Nil => Vec::new(),
            Output::Number(number) => vec![number.to_string()],
            Output::Text(text) => vec![text],
            Output::List(items) => items,
            Output::Done => vec!["OK".to_owned()],
        })
    }

    /// The number of clients that subscribe to a channel; for the crate's own tests.
    #[doc(hidden)]
    #[must_use]
    pub fn listeners(&self, channel: &str) -> usize {
        self.state().data().channels.count(channel)
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
    fn data(&self) -> MutexGuard<'_, Data> {
        let mut data = self.interpreter.data();
        data.set_clock();
        data
    }

    fn connect(&mut self, connected: &Arc<Connected>) {
        self.connections.retain(|known| known.strong_count() > 0);
        self.connections.push(Arc::downgrade(connected));
    }

    /// Does this work when the server is not frozen. The receiver resolves to the reply; to an error, if the server restarts before.
    fn arrive<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut MemoryState) -> Result<T, Fault> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Fault>> {
        let (reply, replied) = oneshot::channel();
        let serve = move |state: &mut MemoryState| -> ReplySent {
            let replied = work(state);
            Box::new(move || _ = reply.send(replied)) // its caller may have given up
        };
        match &mut self.mood {
            Mood::Frozen(waiting) => waiting.push(Waiting(Box::new(serve))),
            Mood::Well => serve(self)(), // nobody waits yet
        }
        replied
    }

    fn execute(&mut self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        self.permissions.check("evalsha").map_err(|denied| denied.of(script, part))?;
        let answer = self.run(script, part);
        let is_lost = self.lost_replies > 0;
        self.lost_replies = self.lost_replies.saturating_sub(1);
        if is_lost { Err(Fault::unknown("the reply was lost")) } else { answer }
    }

    fn run(&mut self, script: &'static Script, part: &Part) -> Result<Answer, Fault> {
        let args = ["1", "0"].into_iter().chain(part.args()).collect();
        let replied = self.interpreter.run(script.source, part.keys().collect(), args);
        let answer = replied.map_err(|error| Fault::said(&format!("ERR {error}")))?;
        let (_, answer) =
            Answer::read(answer.as_bytes()).ok_or_else(|| Fault::said(&format!("ERR odd reply: {answer}")))?;
        answer.map_err(|fault| fault.of(script, part))
    }

    fn reception(&self) -> Reception {
        match (&self.mood, self.permissions) {
            (Mood::Frozen(_), _) => Reception::NoReply,
            (Mood::Well, Permissions::None) => Reception::Refused,
            (Mood::Well, Permissions::All) => Reception::Subscribed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Counters;

    #[tokio::test]
    async fn connections_of_dropped_clients_are_forgotten() {
        let server = MemoryServer::new();
        let connect = || {
            let connected = Arc::new(Connected::new(server.number(), &Arc::<Counters>::default()));
            server.state().connect(&connected);
            connected
        };
        let kept = connect();
        (0..100).for_each(|_| drop(connect()));
        assert!(server.state().connections.len() <= 2, "{:?}", kept.number);
    }
}
