//! One connection for commands, from its login to its end.

use std::{
    hash::{BuildHasher, RandomState},
    io::{self, ErrorKind},
    iter::once,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use futures_util::future::{BoxFuture, join_all};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Connection,
    addresses::at_any_address,
    call::{Answers, InFlight, ScriptCall},
    pipe::{Answered, Called, Pipe, Room, Then},
    questions::Asks,
    resp::{self, Malformed, Reply},
    stream::Stream,
    target::Target,
};
use crate::{
    config::Confirmed,
    contained::conn_event,
    error::Source,
    redis::{
        answer::Answer,
        fault::{Fault, source},
        script::{Part, Script},
        url::Address,
    },
    stats::Counters,
};

/// Why a link to a replica is closed.
const REPLICA: &str = "this server is no longer the master";
/// A digest that no script has.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
/// Version 3 of the protocol, in which a server may send what nobody asked for; and it is to tell when others change what was read after
/// `CLIENT CACHING YES`. The third shows that this user may say so.
const TRACKING: &[&[&str]] =
    &[&["HELLO", "3"], &["CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP"], &["CLIENT", "CACHING", "YES"]];
/// The server tells this connection when another one changes a key that the next command reads here. That is no script: servers before 7.2
/// note all keys of a script at each of its reads.
const CACHING: &[u8] = b"*3\r\n$6\r\nCLIENT\r\n$7\r\nCACHING\r\n$3\r\nYES\r\n";
/// A round trip is long if it takes more than this part of the command timeout.
const LONG: u32 = 4;

/// One connection. It is never repaired.
pub(crate) struct Link {
    pipe: Arc<Pipe<LinkCall>>,
    address: Address,
    command_timeout: Duration,
    nonce: AtomicU64,
    /// The id and the address of this connection on the server, if the server says so.
    pub(super) peer: Option<Peer>,
    /// The server tells when keys change that this connection has read on purpose.
    is_told: bool,
    /// The shortest time from a request to its reply so far, in microseconds: the time of the network, without that of a busy server.
    shortest: AtomicU64,
    /// The last one. Not a mean, because requests that are too many must be noticed before they come too late.
    last: AtomicU64,
    counters: Arc<Counters>,
}

/// A link on which a call can be sent now.
pub(crate) struct CallRoom<'a> {
    link: &'a Arc<Link>,
    room: Room<'a, LinkCall>,
}

impl CallRoom<'_> {
    /// Sends a call, without waiting. Its caller gets the reply.
    pub(crate) fn send(self, call: ScriptCall) {
        let first = self.link.begin_call(call.requests.len());
        let is_tracked = self.link.is_told && call.script.is_tracked();
        let keys = if is_tracked { Some(sent_keys(call.parts())) } else { None };
        let room = self.room.write(|out| write_call(out, call.script, call.parts(), first));
        let room = room.and(Then::Call(LinkCall { link: Arc::clone(self.link), first, call }));
        let room = match keys {
            Some((count, keys)) => room
                .write(|out| write_tracking(out, count, &keys))
                .and(Then::ignored())
                .and(Then::Existing { keys, count }),
            None => room,
        };
        room.send();
    }
}

/// A call on a link, with the nonce of its first part.
struct LinkCall {
    link: Arc<Link>,
    first: u64,
    call: ScriptCall,
}

impl Called for LinkCall {
    type GivenUp = InFlight;

    fn answered(self, answered: Answered) -> Option<InFlight> {
        let LinkCall { link, first, call } = self;
        let answers = link.read(answered, call.script, call.parts(), first);
        Arc::clone(&call.in_flight.caller).answered(call, answers)
    }
}

/// The id and the address of a connection on its server. CLIENT KILL takes both: a server that was restarted uses the same ids again, and
/// must not close the connection of another client.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    id: String,
    addr: String,
}

impl Peer {
    /// Reads CLIENT INFO. `None` for a unix socket, because all its connections have the same address.
    pub(crate) fn parse(info: &str) -> Option<Peer> {
        let field = |name: &str| info.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let (id, addr) = (field("id")?.to_owned(), field("addr")?.to_owned());
        (!addr.ends_with(":0")).then_some(Peer { id, addr })
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("down", &self.down().is_cancelled()).finish_non_exhaustive()
    }
}

/// The task of the pipe would otherwise go on.
impl Drop for Link {
    fn drop(&mut self) {
        self.pipe.end(source("the connection was closed"));
    }
}

impl Asks for Link {
    fn address(&self) -> &Address {
        &self.address
    }

    fn ask<'a>(&'a self, words: &'a [&'a str]) -> BoxFuture<'a, Result<Reply, Fault>> {
        Box::pin(async move {
            let asked = self.pipe.ask(|out| resp::command(out, words));
            self.answered(asked).await.map(|(reply, _)| reply).map_err(|fault| fault.at(&self.address))
        })
    }
}

impl Connection for Link {
    async fn open(target: &Target, command_timeout: Duration, counters: &Arc<Counters>) -> Result<Link, Fault> {
        let opening = Link::open_for_as_long_as_it_takes(target, command_timeout, counters);
        let opened = match timeout(command_timeout, opening).await {
            Ok(opened) => opened.map_err(|fault| unopened(fault, target)),
            Err(_) => Err(Fault::not_sent(&silent(command_timeout, target))),
        };
        opened.map_err(|fault| fault.at(&target.address))
    }
}

impl Link {
    /// Opens the first address of this server that works.
    pub(crate) async fn open_at_any_address(
        target: Target,
        command_timeout: Duration,
        counters: &Arc<Counters>,
    ) -> Result<Link, Fault> {
        let open = |place| Box::pin(async move { Link::open(&place, command_timeout, counters).await });
        at_any_address(target, command_timeout, open).await
    }

    async fn open_for_as_long_as_it_takes(
        target: &Target,
        command_timeout: Duration,
        counters: &Arc<Counters>,
    ) -> Result<Link, Fault> {
        let begun = Instant::now();
        let (reader, stream) = Stream::open(target).await?;
        let mut link = Link {
            pipe: Pipe::start((reader, stream), begun, command_timeout, counters, target.changed.clone()),
            address: target.address.clone(),
            command_timeout,
            nonce: AtomicU64::new(RandomState::new().hash_one(()) >> 32),
            peer: None,
            is_told: false,
            shortest: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(0),
            counters: Arc::clone(counters),
        };
        link.log_in(target).await?;
        link.pipe.trust();
        counters.round_trip.estimate(link.pipe.clock() / 3); // connecting takes several round trips: a first estimate
        Ok(link)
    }

    /// Says who this client is, in one write. The server need not know the commands after the first two, nor permit them.
    async fn log_in(&mut self, target: &Target) -> Result<(), Fault> {
        let database = target.database.filter(|database| *database != 0).map(|database| database.to_string());
        let must = [target.auth(), database.as_ref().map(|database| vec!["SELECT", database])];
        let name = target.client_name.as_ref().map(|name| vec!["CLIENT", "SETNAME", name]);
        let tracking = if target.changed.is_some() { TRACKING } else { &[] };
        let may = [name, target.asks_peer.then(|| vec!["CLIENT", "INFO"])];
        let (first, last) = (must.iter().flatten().cloned(), may.iter().flatten().cloned());
        let commands: Vec<_> = first.chain(tracking.iter().map(|words| words.to_vec())).chain(last).collect();
        let mut asked = self.pipe.ask_all(&commands)?.into_iter();
        for _ in must.iter().flatten() {
            self.answered(asked.next().ok_or_else(ended)).await.map_err(|fault| target.without_secret(fault))?;
        }
        self.is_told = !tracking.is_empty();
        for _ in tracking {
            match self.answered(asked.next().ok_or_else(ended)).await {
                Ok(_) => {}
                Err(fault @ (Fault::Unknown(_) | Fault::NotSent(_))) => return Err(target.without_secret(fault)),
                Err(fault) => {
                    self.is_told = false;
                    conn_event!(debug, ?fault, "the server does not tell of changes by others; renewals find them");
                }
            }
        }
        for _ in may.iter().flatten() {
            match self.answered(asked.next().ok_or_else(ended)).await {
                Ok((reply, _)) => self.peer = reply.text().and_then(Peer::parse),
                Err(fault) if fault.is_about_this_command() => {
                    conn_event!(debug, ?fault, "the server refused a command about this connection");
                }
                Err(fault) => return Err(target.without_secret(fault)),
            }
        }
        Ok(())
    }

    /// Closes the link: the outcome of all requests under way is unknown, and the supervisor opens another link.
    pub(crate) fn give_up(&self, why: &str) {
        self.pipe.end(source(why)); // the first reason stays
    }

    /// Cancelled when the connection has ended.
    pub(super) fn down(&self) -> &CancellationToken {
        &self.pipe.down
    }

    /// The reason for which the connection ended: the reason for closing it, or the error of the system.
    pub(super) fn lost_by(&self) -> Source {
        self.pipe.lost_by()
    }

    /// Waits for a reply, and for the time that it took in microseconds. A refusal is a fault.
    async fn answered(&self, asked: Result<oneshot::Receiver<Answered>, Fault>) -> Result<(Reply, u64), Fault> {
        refusals_as_faults(asked?.await.unwrap_or_else(|_| Err(Fault::Unknown(self.lost_by()))))
    }

    /// `None` if nothing can be sent now.
    pub(crate) fn room(self: &Arc<Self>) -> Option<CallRoom<'_>> {
        Some(CallRoom { link: self, room: self.pipe.room().ok()? })
    }

    /// Runs a script over one part. If the server does not know the script, loads it once.
    pub(crate) async fn run(&self, script: &Script, part: &Part) -> Result<Answer, Fault> {
        match self.run_if_known(script, part).await {
            Err(fault) if fault.is_of_an_unknown_script() => {
                self.load(script).await?;
                self.run_if_known(script, part).await
            }
            answer => answer,
        }
    }

    async fn run_if_known(&self, script: &Script, part: &Part) -> Result<Answer, Fault> {
        let first = self.begin_call(1);
        let asked = self.pipe.ask(|out| write_call(out, script, once(part), first));
        let answered = match asked {
            Ok(reply) => reply.await.unwrap_or_else(|_| Err(Fault::Unknown(self.lost_by()))),
            Err(fault) => Err(fault),
        };
        match self.read(answered, script, once(part), first) {
            Ok(mut answers) => answers.pop().expect("one part, one answer"),
            Err(fault) => Err(Box::pin(self.explained(fault, script, part)).await),
        }
    }

    /// Returns the nonce of the first part.
    fn begin_call(&self, parts: usize) -> u64 {
        self.counters.calls.up();
        self.counters.requests.add(parts as u64);
        self.nonce.fetch_add(parts as u64, Ordering::Relaxed)
    }

    /// Reads the reply to a call: one for each part.
    fn read<'a>(
        &self,
        answered: Answered,
        script: &Script,
        parts: impl ExactSizeIterator<Item = &'a Part>,
        first: u64,
    ) -> Result<Answers, Fault> {
        let (reply, micros) = refusals_as_faults(answered).map_err(|fault| {
            let fault = fault.of_whole_call().at(&self.address);
            self.give_up_if_replica(&fault);
            fault
        })?;
        self.note_round_trip(micros);
        let mut answers = answers(&reply, first, parts.len()).ok_or_else(|| {
            self.counters.misplaced.up();
            conn_event!(error, "a reply belongs to another request; the client replaces the connection");
            self.give_up("a reply belonged to another request");
            Fault::unknown("the reply belongs to another request").at(&self.address)
        })?;
        for (answer, part) in answers.iter_mut().zip(parts) {
            if let Err(fault) = answer {
                self.give_up_if_replica(fault);
                *fault = fault.clone().at(&self.address).of(script, part);
            }
        }
        Ok(answers)
    }

    fn give_up_if_replica(&self, fault: &Fault) {
        if fault.is_by_a_replica() {
            self.give_up(REPLICA);
        }
    }

    fn note_round_trip(&self, micros: u64) {
        self.counters.round_trip.note(micros);
        self.last.store(micros, Ordering::Relaxed);
        if micros < self.shortest.load(Ordering::Relaxed) {
            self.shortest.fetch_min(micros, Ordering::Relaxed);
        }
    }

    /// The shortest round trip so far. `None` before the first reply to a script. Also `None` if the last reply took much longer, and so long
    /// that some may come too late: then more requests under way would only wait in the network.
    pub(crate) fn shortest_round_trip(&self) -> Option<Duration> {
        let [shortest, last] =
            [&self.shortest, &self.last].map(|time| Duration::from_micros(time.load(Ordering::Relaxed)));
        let long = (self.command_timeout / LONG).max(shortest.saturating_mul(2));
        (shortest <= self.command_timeout && last <= long).then_some(shortest)
    }

    /// Adds the names that the server has left out. For a call with several keys, the server never says which key it refused. So this sends
    /// one call for each key, with the digest of a script that does not exist: nothing runs, whatever is permitted.
    pub(crate) async fn explained(&self, fault: Fault, script: &Script, part: &Part) -> Fault {
        if !fault.is_for_some_keys() || part.keys().count() == 1 {
            return fault.of(script, part);
        }
        let lacks = part.keys().map(|key| async move {
            let answer = self.ask(&["EVALSHA", NO_SCRIPT, "1", key]).await;
            matches!(answer, Err(Fault::Denied(_))).then(|| key.to_owned())
        });
        let keys: Vec<_> = join_all(lacks).await.into_iter().flatten().collect();
        fault.lacking(keys).of(script, part)
    }

    pub(crate) async fn ping(&self) -> Result<(), Fault> {
        self.ask(&["PING"]).await.map(drop)
    }

    /// One plain call of a script, for measurements: without a nonce, and without reading the reply.
    #[cfg(feature = "bench")]
    pub(crate) async fn raw(&self, sha: &str, keys: Vec<String>, args: Vec<String>) -> Result<(), Fault> {
        let asked = self.pipe.ask(|out| {
            resp::begin(out, 3 + keys.len() + args.len());
            resp::word(out, b"EVALSHA");
            resp::word(out, sha.as_bytes());
            resp::number_word(out, keys.len() as u64);
            keys.iter().chain(&args).for_each(|word| resp::word(out, word.as_bytes()));
        });
        self.answered(asked).await.map(drop)
    }

    pub(crate) async fn load(&self, script: &Script) -> Result<(), Fault> {
        self.load_source(script.source).await.map(drop)
    }

    /// Returns the digest.
    pub(crate) async fn load_source(&self, source: &str) -> Result<String, Fault> {
        let said = self.ask(&["SCRIPT", "LOAD", source]).await?;
        Ok(said.text().unwrap_or_default().to_owned())
    }

    /// Runs a script over one part whose slot is being moved to this server. No other request may be under way on this connection, because
    /// ASKING applies to the next command.
    pub(crate) async fn run_announced(&self, script: &Script, part: &Part) -> Result<Answer, Fault> {
        match self.announced(script, part).await {
            Err(fault) if fault.is_of_an_unknown_script() => {
                self.load(script).await?;
                self.announced(script, part).await
            }
            answer => answer,
        }
    }

    async fn announced(&self, script: &Script, part: &Part) -> Result<Answer, Fault> {
        self.ask(&["ASKING"]).await?;
        self.run_if_known(script, part).await
    }

    /// The time since the last reply, if a request waits for one; else zero.
    pub(crate) fn silence(&self) -> Duration {
        self.pipe.silence()
    }

    /// Resolves when the connection may have become [doubtful](Self::is_doubtful).
    pub(super) async fn doubted(&self) {
        self.pipe.doubted().await;
    }

    /// True if the connection was idle, and has not replied since.
    pub(super) fn is_doubtful(&self) -> bool {
        self.pipe.is_doubtful()
    }

    /// Makes the server close the previous connection. The server may not have read its last requests yet, and these must not run after
    /// requests of this connection. If this user may not do that, they can; `docs/dev/connection.md` says how late.
    /// False if the outcome is unknown, because this connection is lost too.
    pub(super) async fn close_predecessor(&self, Peer { id, addr }: &Peer) -> bool {
        match self.ask(&["CLIENT", "KILL", "ID", id, "ADDR", addr]).await {
            Err(Fault::Unknown(_) | Fault::NotSent(_)) => false,
            Err(fault) => {
                conn_event!(
                    debug,
                    ?fault,
                    "the server refused to close the previous connection; its last requests may still run"
                );
                true
            }
            Ok(_) => true,
        }
    }

    /// The number of replicas that have all writes of this connection, after at most `time`. No other request runs on this connection
    /// during that time.
    pub(crate) async fn confirmed(&self, confirmed: Confirmed, wanted: u8, time: Duration) -> Result<u8, Fault> {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1).to_string();
        let wanted = wanted.to_string();
        let count = match confirmed {
            Confirmed::Received => self.ask(&["WAIT", &wanted, &millis]).await?.number(),
            // How many have it on disk: this server, and its replicas.
            Confirmed::Fsynced => {
                self.ask(&["WAITAOF", "0", &wanted, &millis]).await?.items().get(1).and_then(Reply::number)
            }
        };
        let count = count.ok_or_else(|| Fault::said("ERR the reply to WAIT is no number"))?;
        Ok(u8::try_from(count).unwrap_or(u8::MAX))
    }
}

/// A call of a script with some parts, as `frame.lua` reads it.
fn write_call<'a>(
    out: &mut BytesMut,
    script: &Script,
    parts: impl ExactSizeIterator<Item = &'a Part> + Clone,
    first: u64,
) {
    let [keys, args] = [Part::sent_keys, Part::sent_args].map(|of| parts.clone().map(|part| of(part).0).sum::<usize>());
    resp::begin(out, 4 + keys + parts.len() + args);
    out.extend_from_slice(script.evalsha());
    resp::number_word(out, keys as u64);
    parts.clone().for_each(|part| out.extend_from_slice(part.sent_keys().1));
    resp::number_word(out, parts.len() as u64);
    for (nonce, part) in (first..).zip(parts) {
        resp::number_word(out, nonce);
        out.extend_from_slice(part.sent_args().1);
    }
}

/// From here on the server tells this connection when others change the keys of these parts.
fn write_tracking(out: &mut BytesMut, count: usize, keys: &[u8]) {
    out.extend_from_slice(CACHING);
    resp::begin(out, 1 + count);
    resp::word(out, b"EXISTS");
    out.extend_from_slice(keys);
}

/// The number of keys, and these as they are sent.
fn sent_keys<'a>(parts: impl Iterator<Item = &'a Part> + Clone) -> (usize, Box<[u8]>) {
    let count = parts.clone().map(|part| part.sent_keys().0).sum();
    (count, parts.flat_map(|part| part.sent_keys().1).copied().collect())
}

/// A refusal is a fault.
fn refusals_as_faults(answered: Answered) -> Answered {
    match answered? {
        (Reply::Error(words), _) => Err(Fault::said(&words)),
        answered => Ok(answered),
    }
}

/// Reads a reply: one for each part. `None` if a nonce or the form does not match the request.
fn answers(reply: &Reply, first: u64, parts: usize) -> Option<Answers> {
    let replies = match reply {
        Reply::List(replies) => &**replies,
        one => std::slice::from_ref(one),
    };
    let of_part = |(nonce, reply): (u64, &Reply)| match reply {
        Reply::Text(text) => Answer::read(text).filter(|(named, _)| *named == nonce).map(|(_, answer)| answer),
        _ => None,
    };
    (replies.len() == parts).then(|| (first..).zip(replies).map(of_part).collect())?
}

/// A connection that was closed before it was ready, with the most frequent cause as a hint, because neither side names the cause.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed before it was ready; {hint}")]
struct Unopened {
    hint: &'static str,
    source: Source,
}

/// The reason for which a connection could not be opened: nothing was sent.
fn unopened(fault: Fault, target: &Target) -> Fault {
    match fault {
        Fault::Unknown(cause) | Fault::NotSent(cause) if may_be_of_tls(&cause) => {
            Fault::NotSent(Arc::new(Unopened { hint: hint(target), source: cause }))
        }
        Fault::Unknown(cause) => Fault::NotSent(cause),
        other => other,
    }
}

fn may_be_of_tls(cause: &Source) -> bool {
    const CLOSED: [ErrorKind; 3] = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
    let Some(error) = cause.downcast_ref::<io::Error>() else { return false };
    let is_foreign = error.get_ref().and_then(|inner| inner.downcast_ref()) == Some(&Malformed::Foreign);
    is_foreign || CLOSED.contains(&error.kind())
}

fn hint(target: &Target) -> &'static str {
    match target.tls {
        Some(_) => "does the server use TLS, and does it require a client certificate?",
        None => "does the server use TLS (rediss://)?",
    }
}

fn silent(command_timeout: Duration, target: &Target) -> String {
    let hint = if target.tls.is_some() { "; does the server use TLS?" } else { "" };
    format!("no connection within {command_timeout:?}{hint}")
}

/// There is a receiver for each command.
fn ended() -> Fault {
    Fault::not_sent("the connection was closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_the_server_takes_us_for() {
        let Peer { id, addr } = Peer::parse("id=7 addr=127.0.0.1:5000 laddr=127.0.0.1:6379 fd=8\n").expect("over TCP");
        assert_eq!((&*id, &*addr), ("7", "127.0.0.1:5000"));
        for other in ["id=7 addr=/run/r.sock:0 laddr=/run/r.sock:0", "ERR unknown", ""] {
            assert!(Peer::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn replies_must_name_their_request() {
        let reply = |text: &str| Reply::Text(text.as_bytes().into());
        let both = Reply::List(vec![reply("7 granted 1"), reply("8 gone")]);
        assert!(answers(&reply("7 granted 1"), 7, 1).is_some());
        assert!(answers(&both, 7, 2).is_some());
        assert!(answers(&both, 7, 1).is_none() && answers(&both, 8, 2).is_none());
        assert!(answers(&reply("8 granted 1"), 7, 1).is_none());
        assert!(answers(&reply("7 granted 1"), 7, 2).is_none());
        assert!(answers(&Reply::Number(7), 7, 1).is_none());
    }
}
