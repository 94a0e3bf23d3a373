//! Starts the server, the proxies and the clients, makes trouble, and reads what came of it.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    io::Read,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    LEASE, NAMES, clock,
    history::{Event, History, Kind, Violation, Wipe},
    proxy::{Fault, Proxy, Schedule, Way, Which},
    server::Server,
    troubles::{self, Tally},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const CLIENTS: usize = 4;
/// Troubles in a row, then a calm time.
const IN_A_ROW: u32 = 3;
/// After the last trouble leases must end, and connections come back, before all must go well again.
const SETTLE: Duration = Duration::from_millis(3_500);
const CALM: Duration = Duration::from_millis(2_500);
/// How much later a client that is far away hears an answer.
const FAR: Duration = Duration::from_millis(60);
/// How long the clients may take to end what they have begun.
const LAST: Duration = Duration::from_secs(30);

/// All that trouble is made with.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) proxies: Vec<Proxy>,
    clients: Vec<Client>,
    folder: TempDir,
    seed: u64,
    started: u64,
    history: History,
}

/// A client process, and the slot whose proxy it goes through.
struct Client {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
}

/// True if nothing happened that must not.
pub(crate) fn run(time: Duration, seed: u64) -> Outcome<bool> {
    println!("chaos: seed {seed}, {} seconds", time.as_secs());
    let mut random = Rng::with_seed(seed);
    let mut stage = Stage::set(seed)?;
    let (mut tally, started) = (Tally::new(), Instant::now());
    while started.elapsed() < time {
        for _ in 0..IN_A_ROW {
            troubles::make(&mut stage, &mut random, &mut tally);
            stage.pause(Duration::from_millis(random.u64(0..=800)));
        }
        stage.pause(SETTLE);
        stage.calm();
    }
    let mut found = stage.end()?;
    stage.read_logs()?;
    found.extend(stage.history.check());
    stage.report(&tally);
    let fine = verdict(&found, seed);
    if !fine {
        println!("the clients' logs: {}", stage.folder.keep().display());
    }
    Ok(fine)
}

fn verdict(found: &[Violation], seed: u64) -> bool {
    for violation in found.iter().take(20) {
        println!("VIOLATION {violation}");
    }
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    found.iter().for_each(|violation| *kinds.entry(violation.kind).or_default() += 1);
    match found.len() {
        0 => println!("verdict: no violation (seed {seed})"),
        count => println!("verdict: {count} violations {kinds:?} (seed {seed})"),
    }
    found.is_empty()
}

impl Stage {
    fn set(seed: u64) -> Outcome<Stage> {
        // Every write is handed to the system before it is confirmed, so it survives the server's end.
        let server = Server::with(&["--appendonly", "yes", "--appendfsync", "no"]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let proxies = (0..CLIENTS).map(|_| Proxy::start(address)).collect();
        let history = History { longest_lease: LEASE, ..History::default() };
        let (folder, clients) = (TempDir::new()?, Vec::new());
        let mut stage = Stage { server, proxies, clients, folder, seed, started: 0, history };
        for slot in 0..CLIENTS {
            let client = stage.start(slot)?;
            stage.clients.push(client);
        }
        Ok(stage)
    }

    fn start(&mut self, slot: usize) -> Outcome<Client> {
        let number = self.started;
        self.started += 1;
        let name = format!("client-{slot}-{number}");
        let log = self.folder.path().join(&name);
        let seed = self.seed.wrapping_mul(1_000).wrapping_add(number);
        let mut child = Command::new(std::env::current_exe()?)
            .args(["worker", &self.proxies[slot].url(), &log.display().to_string(), &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        Ok(Client { name, child, input, log })
    }

    /// A time in which nothing is wrong; only one client is far away, so that messages arrive while it still waits for
    /// its answer.
    fn calm(&mut self) {
        let far = Fault::Delay(Way::Back, FAR);
        let far = Schedule { seed: 0, which: Which::Command("EVALSHA"), chances: vec![(1.0, far)] };
        self.proxies[0].schedule(far);
        let since = clock();
        self.pause(CALM);
        self.history.calm.push((since, clock()));
        self.proxies[0].calm();
    }

    pub(crate) fn slot(&self, random: &mut Rng) -> usize {
        random.usize(..self.proxies.len())
    }

    pub(crate) fn proxy(&self, random: &mut Rng) -> &Proxy {
        &self.proxies[self.slot(random)]
    }

    pub(crate) fn pause(&self, time: Duration) {
        thread::sleep(time);
    }

    pub(crate) fn ask(&self, words: &[&str]) {
        let _: redis::Value = self.server.ask(words);
    }

    pub(crate) fn wiped(&mut self, wipe: Wipe) {
        self.history.wipes.push(wipe);
    }

    /// Kills a client and starts another in its place.
    pub(crate) fn kill(&mut self, random: &mut Rng) {
        let slot = self.slot(random);
        let client = &mut self.clients[slot];
        let _ = client.child.kill();
        let _ = client.child.wait();
        self.history.killed.insert(client.name.clone(), clock());
        let next = self.start(slot).expect("it could be started before");
        let gone = std::mem::replace(&mut self.clients[slot], next);
        self.history.clients.insert(gone.name.clone(), read(&gone.log).expect("it is there"));
    }

    pub(crate) fn stop(&self, random: &mut Rng, time: Duration) {
        let client = &self.clients[self.slot(random)];
        client.signal(Signal::STOP);
        self.pause(time);
        client.signal(Signal::CONT);
    }

    /// Lets the clients end what they have begun; then nothing may be left.
    fn end(&mut self) -> Outcome<Vec<Violation>> {
        let mut found = Vec::new();
        self.clients.iter_mut().for_each(|client| client.input = None);
        let ends = Instant::now() + LAST;
        for client in &mut self.clients {
            while client.child.try_wait()?.is_none() && Instant::now() < ends {
                thread::sleep(Duration::from_millis(10));
            }
            let details = match client.child.try_wait()? {
                Some(status) if status.success() => continue,
                Some(status) => format!("{} ended with {status}", client.name),
                None => {
                    client.child.kill()?;
                    format!("{} did not end within {LAST:?}", client.name)
                }
            };
            found.push(Violation { kind: Kind::Stuck, name: "-".to_owned(), details });
        }
        for name in NAMES {
            let left = self.server.lock(name);
            if !left.is_empty() {
                found.push(Violation { kind: Kind::Leftover, name: name.to_owned(), details: format!("{left:?}") });
            }
        }
        Ok(found)
    }

    fn read_logs(&mut self) -> Outcome<()> {
        for client in &self.clients {
            self.history.clients.insert(client.name.clone(), read(&client.log)?);
        }
        Ok(())
    }

    fn report(&mut self, tally: &Tally) {
        println!("| trouble | times |\n|---|---|");
        tally.iter().for_each(|(name, times)| println!("| {name} | {times} |"));
        let mut hit = BTreeMap::new();
        for proxy in &self.proxies {
            let tally = proxy.tally();
            for (name, count) in [
                ("requests cut off before the server had them", tally.cut_there),
                ("replies cut off", tally.cut_back),
                ("requests or replies swallowed", tally.swallowed),
                ("delayed", tally.delayed),
                ("delivered in pieces", tally.in_pieces),
                ("connections opened", tally.connections),
                ("requests passed", tally.requests),
            ] {
                *hit.entry(name).or_insert(0) += count;
            }
        }
        hit.iter().for_each(|(name, count)| println!("| {name} | {count} |"));
        println!("| clients | {} |", self.started);
        println!("| turns | {} |", self.history.turns());
        println!("| calm times | {} |", self.history.calm.len());
        self.report_ways();
    }

    /// How the clients that ended by themselves came to their locks.
    fn report_ways(&mut self) {
        let mut sums = [0_u64; 6];
        for client in &mut self.clients {
            let mut said = String::new();
            let output = client.child.stdout.take();
            let _ = output.map(|mut output| output.read_to_string(&mut said));
            said.split_whitespace().zip(&mut sums).for_each(|(number, sum)| *sum += number.parse().unwrap_or(0));
        }
        let names = ["first try", "woken", "handed over", "by timer", "reentered", "lost"];
        names.iter().zip(sums).for_each(|(name, sum)| println!("| {name} | {sum} |"));
    }
}

impl Client {
    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        let _ = kill_process(id, signal); // it may have ended, which is found later
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a client wrote; a last line without an end does not count.
fn read(log: &PathBuf) -> Outcome<Vec<Event>> {
    let text = fs::read_to_string(log).unwrap_or_default(); // killed before it began
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.parse().map_err(|_| format!("not an event: {line}").into())).collect()
}
