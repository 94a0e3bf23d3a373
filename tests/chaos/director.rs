//! Starts the server, the proxies and the clients, makes trouble, and reads what came of it.

use std::{
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
    ARCHIVE, AWAY, LEASE, LONG_LEASE, NAMES, PARCEL, clock,
    history::{Event, History, Kind, Violation, Wipe},
    observer::Observer,
    proxy::{Fault, Proxy, Schedule, Way, Which},
    report,
    server::Server,
    troubles::Deck,
    worker::OUTAGE,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const CLIENTS: usize = 4;
/// Troubles in a row, then a calm time. In a short run more, so that there is one of each.
const IN_A_ROW: u32 = 3;
const IN_A_ROW_IF_SHORT: u32 = 7;
const SHORT: Duration = Duration::from_secs(100);
/// After the last trouble leases must end, and connections come back, before all must go well again.
const SETTLE: Duration = Duration::from_millis(3_500);
const CALM: Duration = Duration::from_millis(2_500);
/// How much later a client that is far away hears an answer, and for how long it is before that counts.
const FAR: Duration = Duration::from_millis(25);
const USED_TO_IT: Duration = Duration::from_secs(1);
/// How long the clients may take to end what they have begun.
const LAST: Duration = Duration::from_secs(30);
/// A future that is not polled may keep its place, or what was handed to it, for so long.
const UNPOLLED: Duration = Duration::from_secs(11);
/// What a client without a runtime has asked for ends with its lease.
const WITHOUT_RUNTIME: Duration = Duration::from_secs(2);

/// All that trouble is made with.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) proxies: Vec<Proxy>,
    clients: Vec<Client>,
    folder: TempDir,
    seed: u64,
    started: u64,
    history: History,
    observer: Option<Observer>,
    /// The most requests in a second while the server refused.
    refused: u64,
    /// Which trouble there was, from when to when.
    diary: Vec<String>,
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
    let (mut deck, started) = (Deck::new(&mut random), Instant::now());
    let in_a_row = if time < SHORT { IN_A_ROW_IF_SHORT } else { IN_A_ROW };
    while started.elapsed() < time {
        for _ in 0..in_a_row {
            let since = clock();
            let name = deck.trouble(&mut stage, &mut random);
            stage.diary.push(format!("{since} {} {name}", clock()));
            stage.pause(Duration::from_millis(random.u64(0..=800)));
        }
        stage.calm();
    }
    let mut found = stage.end()?;
    stage.read_logs()?;
    found.extend(stage.history.check());
    report::troubles(&deck.tally);
    stage.report();
    let fine = report::verdict(&found, seed);
    if !fine {
        stage.write_diary()?;
        println!("the clients' logs: {}", stage.folder.keep().display());
    }
    Ok(fine)
}

impl Stage {
    fn set(seed: u64) -> Outcome<Stage> {
        // Every write is handed to the system before it is confirmed, so it survives the server's end.
        let server = Server::with(&["--appendonly", "yes", "--appendfsync", "no"]);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let proxies = (0..CLIENTS).map(|_| Proxy::start(address)).collect();
        let (folder, clients, observer) = (TempDir::new()?, Vec::new(), Some(Observer::start(&server.url())));
        let (history, diary) = (expectations(), Vec::new());
        let mut stage =
            Stage { server, proxies, clients, folder, seed, started: 0, history, observer, refused: 0, diary };
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
        self.pause(SETTLE - USED_TO_IT);
        let far = Fault::Delay(Way::Back, FAR);
        let far = Schedule { seed: 0, which: Which::Command("EVALSHA"), chances: vec![(1.0, far)] };
        self.proxies[0].schedule(far);
        self.pause(USED_TO_IT);
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

    /// How many requests have gone through the proxies.
    pub(crate) fn requests(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.tally().requests).sum()
    }

    pub(crate) fn refused(&mut self, a_second: u64) {
        self.refused = self.refused.max(a_second);
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
        self.history.seen = self.observer.take().map(Observer::end).unwrap_or_default();
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

    /// For who looks for a cause: what was done, and who had which lock.
    fn write_diary(&self) -> Outcome<()> {
        let calm = self.history.calm.iter().map(|(since, until)| format!("{since} {until} calm"));
        let troubles: Vec<_> = self.diary.iter().cloned().chain(calm).collect();
        fs::write(self.folder.path().join("troubles"), troubles.join("\n"))?;
        Ok(fs::write(self.folder.path().join("seen"), report::changes(&self.history))?)
    }

    fn report(&mut self) {
        report::requests(&self.proxies);
        report::rows([("requests a second while refused, at most", self.refused), ("clients", self.started)]);
        report::history(&self.history);
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
        println!("| way to a lock | times |\n|---|---|");
        report::rows(names.into_iter().zip(sums));
    }
}

/// What the checker must know of the names and the settings.
fn expectations() -> History {
    let by_name = |times: &[(&str, Duration)]| times.iter().map(|(name, time)| ((*name).to_owned(), *time)).collect();
    History {
        longest_lease: LEASE,
        leases: by_name(&[(ARCHIVE, LONG_LEASE)]),
        slack: by_name(&[(PARCEL, UNPOLLED), (AWAY, WITHOUT_RUNTIME)]),
        outage: OUTAGE,
        ..History::default()
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
