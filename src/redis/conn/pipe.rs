//! One connection and all that is under way on it. Sending does not wait: the caller writes its request, and notes it at the end of a queue.
//! One task reads. Replies arrive in the order of the requests, so each is for the front of that queue.
//!
//! The front also says how long the server has been silent, and which requests have waited for too long. So nobody needs to wait for a
//! request: a caller may leave, or not be polled.
//!
//! A caller may hold locks while it sends. So only the task calls what is to be done with replies, also when the connection ends: sending
//! and [`Pipe::end`] never do.

use std::{
    collections::VecDeque,
    io, mem,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    resp::{self, Bounds, Decoder, Reply},
    stream::{Reader, Stream},
};
use crate::{
    contained::contained,
    error::Source,
    redis::{
        changed_keys::ChangedKeys,
        fault::{Fault, source},
        reply_to::ReplyTo,
        script,
    },
    stats::Counters,
};

/// The clock of a connection ticks so many times within the command timeout while a request is under way.
const TICKS: u32 = 30;
/// A connection is idle if it delivered nothing for this part of the command timeout.
const QUIET: u32 = 3;
/// An idle connection is doubtful if the next request has had no reply for this part of the command timeout.
const DOUBT: u32 = 10;
/// An idle connection sends a PING after this many command timeouts, but no later than the longest time. Load balancers and address
/// translators forget a connection that is not used.
const KEEP_WARM: u32 = 3;
const KEEP_WARM_AT_MOST: Duration = Duration::from_secs(10);
/// A server that does not read must not fill the memory. With more bytes than this unwritten, nothing more is sent.
const MOST_UNWRITTEN: usize = 4 << 20;

/// See the module.
pub(super) struct Pipe<C: Called> {
    stream: Stream,
    opened: Instant,
    command_timeout: Duration,
    counters: Arc<Counters>,
    /// Who gets what the server tells unasked.
    changed: Option<Arc<ChangedKeys>>,
    state: Mutex<State<C>>,
    /// Notified when the task must look again: it has to write, or to watch the clock, or to end.
    look: Notify,
    /// Notified while the connection is [doubtful](Pipe::is_doubtful).
    doubted: Notify,
    pub(super) down: CancellationToken,
    /// The reason for which the connection ended. It is set before `down`.
    end: OnceLock<Source>,
    /// The server has accepted the login.
    is_trusted: AtomicBool,
}

/// Times in microseconds since the connection was opened.
struct State<C: Called> {
    /// What is not written yet.
    out: BytesMut,
    /// The system takes no more for now: the task writes the rest.
    is_blocked: bool,
    /// The oldest first.
    under_way: VecDeque<Unanswered<C>>,
    /// The time of the last reply.
    heard: u64,
    /// Nobody looks at the clock before the next PING.
    is_asleep: bool,
    has_ended: bool,
}

/// A request without a reply.
struct Unanswered<C: Called> {
    at: u64,
    then: Then<C>,
}

/// A reply, and the time that it took in microseconds.
pub(super) type Answered = Result<(Reply, u64), Fault>;

/// What is done with a reply.
pub(super) trait Called: Send + 'static {
    type GivenUp: Send;
    /// It does not wait; it may send other requests. If the reply came too late, the result is kept until it arrives.
    fn answered(self, answered: Answered) -> Option<Self::GivenUp>;
}

/// Who gets a reply.
pub(super) enum Then<C: Called> {
    Task(ReplyTo<Answered>),
    Call(C),
    /// It is the number of these keys that there are, as they were sent.
    Existing {
        keys: Box<[u8]>,
        count: usize,
    },
    /// Nobody waits for it anymore.
    GivenUp {
        _kept: Option<C::GivenUp>,
    },
}

impl<C: Called> Then<C> {
    pub(super) fn ignored() -> Then<C> {
        Then::GivenUp { _kept: None }
    }

    fn answered(self, answered: Answered) -> Option<C::GivenUp> {
        let mut kept = None;
        match self {
            Then::Task(reply) => reply.send(answered),
            Then::Call(call) => contained(|| kept = call.answered(answered)),
            Then::Existing { .. } | Then::GivenUp { .. } => {}
        }
        kept
    }

    fn is_given_up(&self) -> bool {
        matches!(self, Then::GivenUp { .. })
    }
}

/// A connection on which something can be sent now.
pub(super) struct Room<'a, C: Called> {
    pipe: &'a Pipe<C>,
    state: MutexGuard<'a, State<C>>,
}

impl<C: Called> Room<'_, C> {
    /// Encodes requests. For each of them [`and`](Room::and) must follow, and then [`send`](Room::send).
    pub(super) fn write(mut self, write: impl FnOnce(&mut BytesMut)) -> Self {
        write(&mut self.state.out);
        self
    }

    /// What is done with the reply to the next of them.
    pub(super) fn and(mut self, then: Then<C>) -> Self {
        self.state.note(self.pipe.clock(), then);
        self
    }

    /// Sends what was encoded.
    pub(super) fn send(self) {
        self.pipe.written(self.state);
    }
}

impl<C: Called> std::fmt::Debug for Pipe<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe").field("down", &self.down.is_cancelled()).finish_non_exhaustive()
    }
}

/// Ends the connection with its task, also if the runtime of the task ends. Nothing is sent after that, so no request is left without
/// an end.
struct Task<C: Called>(Arc<Pipe<C>>);

impl<C: Called> Drop for Task<C> {
    fn drop(&mut self) {
        self.0.end(source("the task of the connection has ended"));
        self.0.end_requests();
    }
}

impl<C: Called> Pipe<C> {
    /// Starts the task, on the present runtime.
    pub(super) fn start(
        (reader, stream): (Reader, Stream),
        opened: Instant,
        command_timeout: Duration,
        counters: &Arc<Counters>,
        changed: Option<Arc<ChangedKeys>>,
    ) -> Arc<Pipe<C>> {
        let pipe = Arc::new(Pipe {
            stream,
            opened,
            command_timeout,
            counters: Arc::clone(counters),
            changed,
            state: Mutex::new(State::default()),
            look: Notify::new(),
            doubted: Notify::new(),
            down: CancellationToken::new(),
            end: OnceLock::new(),
            is_trusted: AtomicBool::new(false),
        });
        let task = Task(Arc::clone(&pipe));
        tokio::spawn(async move { task.0.run(reader).await });
        pipe
    }

    // ---- sending ----

    /// Sends a request, which `write` encodes. The reply arrives at the receiver, for which any task may wait.
    pub(super) fn ask(&self, write: impl FnOnce(&mut BytesMut)) -> Result<oneshot::Receiver<Answered>, Fault> {
        let (then, receiver) = to_task();
        self.room()?.write(write).and(then).send();
        Ok(receiver)
    }

    /// Sends some commands in one write.
    pub(super) fn ask_all(&self, commands: &[Vec<&str>]) -> Result<Vec<oneshot::Receiver<Answered>>, Fault> {
        let Room { mut state, .. } = self.room()?;
        commands.iter().for_each(|words| resp::command(&mut state.out, words));
        let (thens, receivers): (Vec<_>, Vec<_>) = commands.iter().map(|_| to_task()).unzip();
        thens.into_iter().for_each(|then| state.note(self.clock(), then));
        self.written(state);
        Ok(receivers)
    }

    /// An error if nothing can be sent.
    pub(super) fn room(&self) -> Result<Room<'_, C>, Fault> {
        let state = self.state();
        if state.has_ended {
            return Err(Fault::NotSent(self.lost_by()));
        }
        if state.out.len() > MOST_UNWRITTEN {
            return Err(Fault::not_sent("the server does not read what was sent before"));
        }
        Ok(Room { pipe: self, state })
    }

    /// Writes what the system takes, and tells the task what is left for it.
    fn written(&self, mut state: MutexGuard<'_, State<C>>) {
        let must_look = mem::take(&mut state.is_asleep);
        let was_blocked = state.is_blocked;
        let written = if was_blocked { Ok(false) } else { self.stream.write(&mut state.out) };
        state.is_blocked = matches!(written, Ok(false));
        let must_look = must_look || state.is_blocked && !was_blocked;
        drop(state);
        if must_look {
            self.look.notify_one();
        }
        if let Err(error) = written {
            self.end(Arc::new(error));
        }
    }

    /// The server has accepted the login: its replies may be longer from now on.
    pub(super) fn trust(&self) {
        self.is_trusted.store(true, Ordering::Relaxed);
    }

    // ---- the task ----

    async fn run(&self, mut reader: Reader) {
        let (mut decoder, mut was_paused) = (Decoder::default(), false);
        let mut tick = std::pin::pin!(sleep_until(self.opened));
        while let Some(is_blocked) = self.goes_on() {
            let done = tokio::select! {
                biased;
                arrived = reader.read(&self.stream, &mut decoder.arrived) => arrived.and_then(|()| self.read(&mut decoder)),
                ready = self.stream.writable(), if is_blocked => ready.map(|()| self.write_rest()),
                () = self.look.notified() => {
                    let soon = tick.deadline().min(Instant::now() + self.period());
                    tick.as_mut().reset(soon);
                    Ok(())
                }
                () = tick.as_mut() => Ok(()),
            };
            if let Err(error) = done {
                return self.end(Arc::new(error));
            }
            // Also if replies arrive all the time.
            if tick.deadline() <= Instant::now() {
                // The process was paused: replies may be there that nobody has read. Once: a machine that is always late has a clock, too.
                was_paused = !was_paused && tick.deadline().elapsed() > self.period() * 2;
                let next = if was_paused { self.period() / 3 } else { self.tick() };
                tick.as_mut().reset(Instant::now() + next);
            }
        }
    }

    /// `None` at the end; else whether there is something to write.
    fn goes_on(&self) -> Option<bool> {
        let state = self.state();
        (!state.has_ended).then_some(state.is_blocked)
    }

    fn period(&self) -> Duration {
        self.command_timeout / TICKS
    }

    fn write_rest(&self) {
        let mut state = self.state();
        state.is_blocked = false;
        self.written(state);
    }

    /// Delivers the replies in what has arrived.
    fn read(&self, decoder: &mut Decoder) -> io::Result<()> {
        let bounds = if self.is_trusted.load(Ordering::Relaxed) { Bounds::USUAL } else { Bounds::STRANGER };
        let now = self.clock();
        while let Some(reply) = decoder.next(bounds).map_err(io::Error::other)? {
            match reply {
                Reply::Push(told) => self.note_changed(&told),
                reply => self.deliver(reply, now)?,
            }
        }
        Ok(())
    }

    /// The server has sent this unasked. It is `invalidate` and a list of keys; without a list, all keys are meant.
    fn note_changed(&self, told: &[Reply]) {
        match (told, &self.changed) {
            ([what, keys], Some(changed)) if what.text() == Some("invalidate") => match keys {
                Reply::List(keys) => changed.add(keys.iter().filter_map(Reply::text)),
                _ => changed.add_all(),
            },
            _ => {} // nothing that this client wants to know
        }
    }

    /// A key that is gone was changed between the two commands, and the server does not tell it.
    fn note_missing(&self, then: &Then<C>, reply: &Reply) {
        if let (Then::Existing { keys, count }, Some(existing), Some(changed)) = (then, reply.number(), &self.changed)
            && existing < *count as u64
        {
            changed.add(script::words(keys));
        }
    }

    fn deliver(&self, reply: Reply, now: u64) -> io::Result<()> {
        let mut state = self.state();
        let Some(Unanswered { at, then }) = state.under_way.pop_front() else {
            drop(state);
            return Err(self.unasked());
        };
        state.heard = now;
        drop(state);
        self.note_missing(&then, &reply);
        then.answered(Ok((reply, now.saturating_sub(at)))); // a server may send a reply before its request
        Ok(())
    }

    fn unasked(&self) -> io::Error {
        if !self.down.is_cancelled() {
            self.counters.misplaced.up(); // unless one of those before it was, too
        }
        io::Error::other("the server has sent a reply that nobody asked for")
    }

    /// Looks at the clock. Returns the time until the next look.
    fn tick(&self) -> Duration {
        let period = self.period();
        let mut state = self.state();
        if state.silence(self.clock()) >= self.command_timeout {
            drop(state);
            self.end(self.no_reply());
            return period;
        }
        let late = state.take_late(self.clock(), self.command_timeout);
        let is_doubtful = state.is_doubtful(self.clock(), self.command_timeout);
        let keep_warm = (self.command_timeout * KEEP_WARM).min(KEEP_WARM_AT_MOST);
        let next = match state.under_way.back() {
            Some(_) => period,
            None => match keep_warm.saturating_sub(since(state.heard, self.clock())) {
                Duration::ZERO => {
                    resp::command(&mut state.out, &["PING"]);
                    let at = self.clock();
                    state.under_way.push_back(Unanswered { at, then: Then::ignored() });
                    self.written(state);
                    return period;
                }
                left => {
                    state.is_asleep = true;
                    left
                }
            },
        };
        drop(state);
        if is_doubtful {
            self.doubted.notify_one();
        }
        for (place, then) in late {
            let _kept = self.is_late(then);
            self.state().under_way[place].then = Then::GivenUp { _kept }; // only this task takes any from the front
        }
        next
    }

    fn is_late(&self, then: Then<C>) -> Option<C::GivenUp> {
        self.counters.timeouts.up();
        then.answered(Err(Fault::Unknown(self.no_reply())))
    }

    fn no_reply(&self) -> Source {
        source(&format!("no reply within {:?}", self.command_timeout))
    }

    // ---- the end ----

    /// Closes the connection: nothing more is sent, and its task ends. The first reason stays.
    pub(super) fn end(&self, why: Source) {
        let mut state = self.state();
        if mem::replace(&mut state.has_ended, true) {
            return;
        }
        let _ = self.end.set(why);
        state.out = BytesMut::new();
        drop(state);
        self.down.cancel();
        self.look.notify_one();
    }

    /// The outcome of all requests under way is unknown.
    fn end_requests(&self) {
        let (now, waiting) = (self.clock(), mem::take(&mut self.state().under_way));
        for Unanswered { at, then } in waiting {
            let _ = match then {
                Then::GivenUp { .. } => None,
                then if since(at, now) >= self.command_timeout => self.is_late(then),
                then => then.answered(Err(Fault::Unknown(self.lost_by()))),
            };
        }
    }

    pub(super) fn lost_by(&self) -> Source {
        self.end.get().cloned().unwrap_or_else(|| source("the connection was closed"))
    }

    // ---- its condition ----

    /// The time since the last reply, if a request waits for one; else zero.
    pub(super) fn silence(&self) -> Duration {
        self.state().silence(self.clock())
    }

    /// True if the first request after an idle time has had no reply for a while. A device between client and server may have forgotten the
    /// connection without a notification. Another connection may get a reply.
    pub(super) fn is_doubtful(&self) -> bool {
        self.state().is_doubtful(self.clock(), self.command_timeout)
    }

    /// Resolves when the connection may have become [doubtful](Self::is_doubtful).
    pub(super) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    pub(super) fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Called> Default for State<C> {
    fn default() -> State<C> {
        let (out, under_way) = Default::default();
        State { out, is_blocked: false, under_way, heard: 0, is_asleep: false, has_ended: false }
    }
}

impl<C: Called> State<C> {
    /// A request is under way.
    fn note(&mut self, at: u64, then: Then<C>) {
        self.under_way.push_back(Unanswered { at, then });
    }

    fn silence(&self, now: u64) -> Duration {
        self.under_way.front().map_or(Duration::ZERO, |front| since(front.at.max(self.heard), now))
    }

    fn is_doubtful(&self, now: u64, command_timeout: Duration) -> bool {
        let Some(front) = self.under_way.front() else { return false };
        since(self.heard, front.at) >= command_timeout / QUIET && since(front.at, now) >= command_timeout / DOUBT
    }

    /// The requests that have waited for too long, and their places. Their replies are still to come.
    fn take_late(&mut self, now: u64, command_timeout: Duration) -> Vec<(usize, Then<C>)> {
        let late = self.under_way.iter_mut().take_while(|request| since(request.at, now) >= command_timeout);
        let waiting = late.enumerate().filter(|(_, request)| !request.then.is_given_up());
        waiting
            .map(|(place, request)| (place, mem::replace(&mut request.then, Then::GivenUp { _kept: None })))
            .collect()
    }
}

/// For a task that waits for the reply.
fn to_task<C: Called>() -> (Then<C>, oneshot::Receiver<Answered>) {
    let (reply, receiver) = ReplyTo::new();
    (Then::Task(reply), receiver)
}

fn since(earlier: u64, now: u64) -> Duration {
    Duration::from_micros(now.saturating_sub(earlier))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        time::sleep,
    };

    use super::*;
    use crate::{
        credentials::Credentials,
        redis::{conn::target::Target, url::Address},
    };

    /// Tells its answer, and is kept if there was none.
    struct Probe {
        told: oneshot::Sender<bool>,
        kept: oneshot::Sender<()>,
    }

    impl Called for Probe {
        type GivenUp = oneshot::Sender<()>;

        fn answered(self, answered: Answered) -> Option<oneshot::Sender<()>> {
            let _ = self.told.send(answered.is_ok());
            Some(self.kept)
        }
    }

    async fn connected(command_timeout: Duration) -> (Arc<Pipe<Probe>>, tokio::net::TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target = Target {
            address: Address::Tcp("h".into(), 1),
            found: Some(listener.local_addr().expect("it is bound")),
            credentials: Credentials::new("", ""),
            database: None,
            tls: None,
            client_name: None,
            changed: None,
            asks_peer: false,
        };
        let stream = Stream::open(&target).await.expect("it listens");
        let pipe = Pipe::start(stream, Instant::now(), command_timeout, &Arc::new(Counters::new(false)), None);
        (pipe, listener.accept().await.expect("it has connected").0)
    }

    #[tokio::test]
    async fn what_was_given_up_is_kept_until_its_reply_arrives() {
        let command_timeout = Duration::from_secs(2);
        let (pipe, mut server) = connected(command_timeout).await;
        let ask = || {
            let ((told, answer), (kept, dropped)) = (oneshot::channel(), oneshot::channel());
            let room = pipe.room().expect("nothing is under way").write(|out| resp::command(out, &["PING"]));
            room.and(Then::Call(Probe { told, kept })).send();
            (answer, dropped)
        };
        let ((in_time, first), (late, mut second)) = (ask(), ask());
        server.read_exact(&mut [0; 28]).await.expect("two requests");

        sleep(command_timeout * 3 / 4).await; // so the connection is not silent when the second is late
        server.write_all(b"+PONG\r\n").await.expect("it is open");
        assert!(in_time.await.expect("a reply"));
        first.await.expect_err("dropped with its reply");
        assert!(!late.await.expect("its time is over"));
        assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Empty), "it is under way");
        server.write_all(b"+PONG\r\n").await.expect("it is open");
        second.await.expect_err("dropped with its reply");
        assert!(!pipe.down.is_cancelled());
    }
}
