//! A fault proxy: stands between clients and one server, and does to requests and replies what networks do.
//!
//! It knows requests (RESP2 arrays of words) and pairs replies with them in order, so a fault can be aimed at "the next
//! EVALSHA of this script", on whatever connection it comes. It needs nothing of the test that uses it: it runs on a
//! thread of its own, is told what to do from any thread, and ends with its handle.
//!
//! What was swallowed is never made up for by later bytes, as on a real connection: from there on that direction of
//! that connection stays silent. What was held back or not read arrives later, as after a partition that heals.

use std::{
    future::pending,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use redis_protocol::resp2::{decode::decode_range, types::RangeFrame};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::{Notify, futures::OwnedNotified, mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

use super::server::free_port;

/// Between two pieces: long enough for the other side to read the first alone.
const BETWEEN_PIECES: Duration = Duration::from_millis(1);

/// A running proxy; dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    listen: Option<mpsc::UnboundedSender<Wish>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Where on its round trip a request is hit: before the server has it, or when the server has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    There,
    Back,
}

/// What is done to one request or to its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The connection is closed instead of passing it on.
    Cut(Way),
    /// It is swallowed, and all behind it; the sockets stay open.
    Swallow(Way),
    /// It is held back, and all behind it, and nothing is read meanwhile: with a long delay the socket fills.
    Delay(Way, Duration),
    /// It arrives in pieces of so many bytes.
    Trickle(Way, usize),
    /// The reply becomes another one, unless the function has none to offer.
    Rewrite(fn(&[u8]) -> Option<Vec<u8>>),
}

/// Which requests are meant.
#[derive(Debug, Clone)]
pub(crate) enum Which {
    Any,
    /// By the first word, in capitals.
    Command(&'static str),
    /// EVALSHA of the script with this SHA-1 in hexadecimal.
    Script(String),
}

/// A fault for the next requests of a kind, counted over all connections.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    which: Which,
    fault: Fault,
    skip: u64,
    times: u64,
    number: u64,
}

/// Faults at random, the same decisions in the same order for one seed.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) which: Which,
    /// For each request the chance of each fault; together at most 1.
    pub(crate) chances: Vec<(f64, Fault)>,
}

/// What happens to everything, whatever the rules say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Nothing is read: sockets fill, and what waits in them arrives when it is over.
    Stall,
    /// Everything is swallowed: connections of this time stay silent for ever.
    Swallow,
}

/// What has happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) cut_there: u64,
    pub(crate) cut_back: u64,
    pub(crate) swallowed: u64,
    pub(crate) delayed: u64,
    pub(crate) in_pieces: u64,
    pub(crate) rewritten: u64,
}

impl Proxy {
    /// Starts one before that server, on a free port of 127.0.0.1.
    pub(crate) fn start(server: impl Into<SocketAddr>) -> Proxy {
        let listener = listener();
        listener.set_nonblocking(true).expect("it is a socket");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            server: watch::Sender::new(server.into()),
            plan: Mutex::default(),
            mode: watch::Sender::new(Mode::Pass),
            swallows: AtomicU64::new(0),
            cut: Arc::default(),
        });
        let (listen, wishes) = mpsc::unbounded_channel();
        let serving = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(run(serving, address, listener, wishes));
        });
        Proxy { shared, address, listen: Some(listen), thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// New connections go to that server, as after a failover; those there are stay.
    pub(crate) fn lead_to(&self, server: impl Into<SocketAddr>) {
        self.shared.server.send_replace(server.into());
    }

    /// One more rule. The first that fits a request decides.
    pub(crate) fn rule(&self, rule: Rule) {
        self.shared.plan().add(rule);
    }

    /// Faults at random from now on, where no rule decides.
    pub(crate) fn schedule(&self, schedule: Schedule) {
        let random = fastrand::Rng::with_seed(schedule.seed);
        self.shared.plan().schedule = Some((schedule, random));
    }

    /// No rules and no schedule any more.
    pub(crate) fn calm(&self) {
        let mut plan = self.shared.plan();
        plan.rules.clear();
        plan.schedule = None;
    }

    /// Whether every rule has been used as often as it says.
    pub(crate) fn is_spent(&self) -> bool {
        self.shared.plan().rules.iter().all(|rule| rule.times == 0)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.shared.swallows.fetch_add(u64::from(mode == Mode::Swallow), Ordering::SeqCst);
        self.shared.mode.send_replace(mode);
    }

    /// Closes all connections of this moment.
    pub(crate) fn cut_all(&self) {
        self.shared.cut.notify_waiters();
    }

    /// New connections are refused; those there are stay.
    pub(crate) fn refuse(&self) {
        self.listen(false);
    }

    /// New connections are accepted again, on the same port.
    pub(crate) fn accept(&self) {
        self.listen(true);
    }

    fn listen(&self, wanted: bool) {
        let (done, is_done) = sync_channel(1);
        let listen = self.listen.as_ref().expect("there until it is dropped");
        listen.send((wanted, done)).expect("the thread runs until it is dropped");
        is_done.recv().expect("the port can be bound again");
    }

    pub(crate) fn tally(&self) -> Tally {
        self.shared.plan().tally
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listen = None; // ends the thread
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if it panicked, it has said so
        }
    }
}

impl Rule {
    /// Once, at the next request of that kind.
    pub(crate) fn new(which: Which, fault: Fault) -> Rule {
        Rule { which, fault, skip: 0, times: 1, number: 0 }
    }

    /// So many times in a row.
    pub(crate) fn times(self, times: u64) -> Rule {
        Rule { times, ..self }
    }

    /// So many requests of that kind pass first.
    pub(crate) fn after(self, skip: u64) -> Rule {
        Rule { skip, ..self }
    }

    fn decide(&mut self, request: &Request<'_>) -> Option<Decided> {
        if self.times == 0 || !self.which.fits(request) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.times -= 1;
        Some(Decided { fault: self.fault, by: Some(self.number) })
    }
}

/// What is to be done to one request or its reply, and the number of the rule that says so.
#[derive(Debug, Clone, Copy)]
struct Decided {
    fault: Fault,
    by: Option<u64>,
}

/// For [`Fault::Rewrite`]: a script's answer as if to another request. It expects one string that begins with the nonce.
pub(crate) fn wrong_nonce(reply: &[u8]) -> Option<Vec<u8>> {
    let Ok(Some((RangeFrame::BulkString((start, _)), _))) = decode_range(reply) else { return None };
    let mut other = reply.to_vec();
    // The first digit: another last one may make it the nonce of a neighbour.
    let first = other.get_mut(start).filter(|digit| digit.is_ascii_digit())?;
    *first = if *first == b'9' { b'8' } else { *first + 1 };
    Some(other)
}

/// For [`Fault::Rewrite`]: one reply too many, so that each later request of the connection gets the one before.
pub(crate) fn twice(reply: &[u8]) -> Option<Vec<u8>> {
    Some([reply, reply].concat())
}

/// What the handle and the connections share.
#[derive(Debug)]
struct Shared {
    server: watch::Sender<SocketAddr>,
    plan: Mutex<Plan>,
    mode: watch::Sender<Mode>,
    /// How often everything was swallowed so far. A connection may not see a mode that lasts for a moment only.
    swallows: AtomicU64,
    cut: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Plan {
    rules: Vec<Rule>,
    /// How many rules there have ever been.
    numbered: u64,
    schedule: Option<(Schedule, fastrand::Rng)>,
    tally: Tally,
}

/// The words of a request that matter here.
#[derive(Debug)]
struct Request<'a> {
    command: &'a [u8],
    first: &'a [u8],
}

impl Shared {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    fn add(&mut self, rule: Rule) {
        self.numbered += 1;
        self.rules.push(Rule { number: self.numbered, ..rule });
    }

    fn decide(&mut self, request: &Request<'_>) -> Option<Decided> {
        self.tally.requests += 1;
        let by_rule = self.rules.iter_mut().find_map(|rule| rule.decide(request));
        by_rule.or_else(|| {
            let (schedule, random) = self.schedule.as_mut()?;
            let fault = if schedule.which.fits(request) { schedule.draw(random) } else { None };
            fault.map(|fault| Decided { fault, by: None })
        })
    }

    /// The connection has ended before this reply could be cut, for example by the cut of an earlier reply. The rule waits for another.
    fn not_done(&mut self, decided: Decided) {
        let by_it = |rule: &&mut Rule| decided.by == Some(rule.number);
        if matches!(decided.fault, Fault::Cut(_))
            && let Some(rule) = self.rules.iter_mut().find(by_it)
        {
            rule.times += 1;
        }
    }
}

impl Schedule {
    fn draw(&self, random: &mut fastrand::Rng) -> Option<Fault> {
        let mut drawn = random.f64();
        let hit = self.chances.iter().find(|(chance, _)| {
            drawn -= chance;
            drawn < 0.0
        });
        hit.map(|(_, fault)| *fault)
    }
}

impl Tally {
    fn count(&mut self, fault: Fault) {
        *match fault {
            Fault::Cut(Way::There) => &mut self.cut_there,
            Fault::Cut(Way::Back) => &mut self.cut_back,
            Fault::Swallow(_) => &mut self.swallowed,
            Fault::Delay(..) => &mut self.delayed,
            Fault::Trickle(..) => &mut self.in_pieces,
            Fault::Rewrite(_) => &mut self.rewritten,
        } += 1;
    }
}

impl Fault {
    fn way(self) -> Way {
        match self {
            Fault::Cut(way) | Fault::Swallow(way) | Fault::Delay(way, _) | Fault::Trickle(way, _) => way,
            Fault::Rewrite(_) => Way::Back,
        }
    }
}

impl Which {
    fn fits(&self, request: &Request<'_>) -> bool {
        match self {
            Which::Any => true,
            Which::Command(name) => request.command.eq_ignore_ascii_case(name.as_bytes()),
            Which::Script(sha) => {
                request.command.eq_ignore_ascii_case(b"EVALSHA") && request.first.eq_ignore_ascii_case(sha.as_bytes())
            }
        }
    }
}

impl<'a> Request<'a> {
    fn of(frame: &RangeFrame, bytes: &'a [u8]) -> Request<'a> {
        let words: &[RangeFrame] = if let RangeFrame::Array(words) = frame { words } else { &[] };
        let word = |n: usize| match words.get(n) {
            Some(&RangeFrame::BulkString((start, end))) => &bytes[start..end],
            _ => b"".as_slice(),
        };
        Request { command: word(0), first: word(1) }
    }
}

/// Whether to listen, with somebody to tell when it is so.
type Wish = (bool, SyncSender<()>);

/// Accepts while that is wanted, until nobody can want anything any more.
async fn run(
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: std::net::TcpListener,
    mut wishes: mpsc::UnboundedReceiver<Wish>,
) {
    let mut listener = Some(TcpListener::from_std(listener).expect("it does not block"));
    loop {
        tokio::select! {
            wish = wishes.recv() => {
                let Some((wanted, done)) = wish else { return };
                if wanted != listener.is_some() {
                    listener = if wanted { Some(bind(address).await) } else { None };
                }
                let _ = done.send(());
            }
            accepted = accept(listener.as_ref()) => {
                if let Ok((client, _)) = accepted {
                    let cut = Arc::clone(&shared.cut).notified_owned(); // from now on, also before the task runs
                    tokio::spawn(serve(client, Arc::clone(&shared), cut));
                }
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => pending().await,
    }
}

/// On a port for servers: the system may give others to connections of clients, also while the proxy refuses new ones.
fn listener() -> std::net::TcpListener {
    loop {
        if let Ok(listener) = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())) {
            return listener;
        }
    }
}

/// Somebody else may have the port for a moment.
async fn bind(address: SocketAddr) -> TcpListener {
    for _ in 0..1_000 {
        if let Ok(listener) = TcpListener::bind(address).await {
            return listener;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("{address} is taken");
}

/// Serves one connection until either side closes it or it is cut. An error of one side closes both.
async fn serve(mut client: TcpStream, shared: Arc<Shared>, cut: OwnedNotified) -> io::Result<()> {
    let address = *shared.server.borrow();
    let mut server = TcpStream::connect(address).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    shared.plan().tally.connections += 1;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let (sent, mut under_way) = mpsc::unbounded_channel();
    let end = tokio::select! {
        end = there(Pipe::new(from_client, to_server, &shared), sent) => end,
        end = back(Pipe::new(from_server, to_client, &shared), &mut under_way) => end,
        () = cut => Ok(()),
    };
    // Before the sockets are closed: a client that connects again finds the rules as they are then.
    while let Ok(left) = under_way.try_recv() {
        left.inspect(|decided| shared.plan().not_done(*decided));
    }
    end
}

/// Requests on their way. For each that reaches the server, what shall become of its reply is noted.
async fn there<R, W>(mut pipe: Pipe<'_, R, W>, sent: mpsc::UnboundedSender<Option<Decided>>) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    while let Some(bytes) = pipe.next(length_of_request).await? {
        let (frame, _) = decode_range(&bytes).map_err(io::Error::other)?.expect("it is whole");
        let decided = pipe.shared.plan().decide(&Request::of(&frame, &bytes));
        let (now, later) = match decided {
            Some(Decided { fault, .. }) if fault.way() == Way::There => (Some(fault), None),
            later => (None, later),
        };
        let _ = sent.send(later); // before the reply can come
        if !pipe.deliver(&bytes, now).await? {
            return Ok(());
        }
    }
    // The client has closed; the server shall first do what it was asked for.
    pipe.to.shutdown().await?;
    pending().await
}

/// Replies on their way back, each with its request; published messages have none.
async fn back<R, W>(
    mut pipe: Pipe<'_, R, W>,
    under_way: &mut mpsc::UnboundedReceiver<Option<Decided>>,
) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    while let Some(bytes) = pipe.next(length_of_reply).await? {
        let is_message = bytes.starts_with(b">") || bytes.starts_with(b"*3\r\n$7\r\nmessage\r\n");
        let decided = if is_message { None } else { under_way.try_recv().ok().flatten() };
        if !pipe.deliver(&bytes, decided.map(|decided| decided.fault)).await? {
            return Ok(());
        }
    }
    Ok(())
}

fn length_of_request(bytes: &[u8]) -> io::Result<Option<usize>> {
    Ok(decode_range(bytes).map_err(io::Error::other)?.map(|(_, length)| length))
}

/// Also in version 3 of the protocol.
fn length_of_reply(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let line = end + 1;
    let number = || str::from_utf8(&bytes[1..end]).ok()?.trim_end().parse::<i64>().ok();
    let number = || number().ok_or_else(|| io::Error::other("no reply"));
    let items = match bytes[0] {
        b'*' | b'>' | b'~' => number()?.max(0),
        b'%' => number()? * 2,
        b'$' | b'=' => {
            let whole = usize::try_from(number()?).map_or(line, |length| line + length + 2);
            return Ok((bytes.len() >= whole).then_some(whole));
        }
        _ => return Ok(Some(line)),
    };
    let mut whole = line;
    for _ in 0..items {
        match length_of_reply(&bytes[whole..])? {
            Some(length) => whole += length,
            None => return Ok(None),
        }
    }
    Ok(Some(whole))
}

/// One direction of one connection.
struct Pipe<'a, R, W> {
    from: R,
    to: W,
    buffer: BytesMut,
    shared: &'a Shared,
    mode: watch::Receiver<Mode>,
    /// How often everything was swallowed before it began.
    swallows: u64,
    /// Something was swallowed, so nothing may pass any more.
    silent: bool,
    /// When the last bytes came.
    arrived: Instant,
}

impl<'a, R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Pipe<'a, R, W> {
    fn new(from: R, to: W, shared: &'a Shared) -> Pipe<'a, R, W> {
        let mode = shared.mode.subscribe();
        let swallows = shared.swallows.load(Ordering::SeqCst);
        Pipe { from, to, buffer: BytesMut::new(), shared, mode, swallows, silent: false, arrived: Instant::now() }
    }

    /// The next whole frame, when it may pass; `None` at the end.
    async fn next(&mut self, length: impl Fn(&[u8]) -> io::Result<Option<usize>>) -> io::Result<Option<Bytes>> {
        loop {
            let mode = self.mode.wait_for(|mode| *mode != Mode::Stall).await.map(|mode| *mode);
            self.silent |= mode.map_err(io::Error::other)? == Mode::Swallow;
            self.silent |= self.shared.swallows.load(Ordering::SeqCst) > self.swallows;
            if self.silent {
                self.buffer.clear();
            }
            if let Some(length) = length(&self.buffer)? {
                return Ok(Some(self.buffer.split_to(length).freeze()));
            }
            tokio::select! {
                biased;
                _ = self.mode.changed() => {}
                read = self.from.read_buf(&mut self.buffer) => {
                    self.arrived = Instant::now();
                    if read? == 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Passes a frame on, or does to it what is due. False if the connection is to be cut.
    async fn deliver(&mut self, frame: &[u8], fault: Option<Fault>) -> io::Result<bool> {
        let rewritten = if let Some(Fault::Rewrite(other)) = fault { other(frame) } else { None };
        let fault = fault.filter(|fault| rewritten.is_some() || !matches!(fault, Fault::Rewrite(_)));
        fault.inspect(|fault| self.shared.plan().tally.count(*fault));
        match fault {
            Some(Fault::Cut(_)) => return Ok(false),
            Some(Fault::Swallow(_)) => {
                self.silent = true;
                return Ok(true);
            }
            Some(Fault::Delay(_, time)) => sleep_until(self.arrived + time).await,
            Some(Fault::Trickle(_, size)) => return self.trickle(frame, size).await.map(|()| true),
            Some(Fault::Rewrite(_)) | None => {}
        }
        self.to.write_all(rewritten.as_deref().unwrap_or(frame)).await?;
        Ok(true)
    }

    async fn trickle(&mut self, frame: &[u8], size: usize) -> io::Result<()> {
        for piece in frame.chunks(size) {
            self.to.write_all(piece).await?;
            sleep(BETWEEN_PIECES).await;
        }
        Ok(())
    }
}
