//! Starts the servers and the clients, makes trouble, and checks the history that the clients wrote.

use std::{
    collections::{HashMap, HashSet},
    error::Error,
    fs,
    io::Read,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{
    ARCHIVE, ATLAS, AWAY, CELLAR, CELLAR_LEASE, LEASE, LINES, LONG_LEASE, PARCEL, PERMITS, REST, SHARED, VAULT_LEASE,
    VAULTS, clock,
    history::{Emptied, Event, Failover, Far, History, Kind, Left, Silent, Spared, Violation, Wipe},
    locks::{look_at, seen},
    observer::Observer,
    report,
    scene::Scene,
    server::Server,
    troubles::Deck,
    worker::OUTAGE,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

pub(crate) const CLIENTS: usize = 4;
/// In a shorter run there are more troubles in a row, so that there is one of each.
const SHORT: Duration = Duration::from_secs(100);
/// After the last trouble leases must end, and connections come back, before all must go well again.
pub(crate) const SETTLE: Duration = Duration::from_millis(3_500);
pub(crate) const CALM: Duration = Duration::from_millis(2_500);
/// How long the clients may take to end what they have begun.
const LAST: Duration = Duration::from_secs(30);
/// Futures that are not polled may keep the lock, or their place, for so long: the first for half a second, the next ones for less.
const UNPOLLED: Duration = Duration::from_millis(1_500);
/// What a client without a runtime has asked for ends with its lease.
const WITHOUT_RUNTIME: Duration = Duration::from_secs(2);

/// So long after its death a client can keep others waiting, beyond its lease: with the mark of a writer that waits; with its
/// places in line, each of which has five seconds to come.
const MARK: Duration = Duration::from_millis(3_500);
const PLACES: Duration = Duration::from_secs(20);

/// All that trouble is made with.
pub(crate) struct Stage<S> {
    pub(crate) scene: S,
    clients: Vec<Client>,
    folder: TempDir,
    seed: u64,
    started: u64,
    history: History,
    observer: Option<Observer>,
    /// Which trouble there was, from when to when.
    diary: Vec<String>,
}

/// A client process.
struct Client {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    log: PathBuf,
}

/// True if there is no violation.
pub(crate) fn run<S: Scene>(time: Duration, seed: u64) -> Outcome<bool> {
    println!("chaos: seed {seed}, {} seconds", time.as_secs());
    let mut random = Rng::with_seed(seed);
    let mut stage = Stage::<S>::set(seed)?;
    let (mut deck, started) = (Deck::new(&mut random), Instant::now());
    let in_a_row = if time < SHORT { S::IN_A_ROW.1 } else { S::IN_A_ROW.0 };
    while started.elapsed() < time {
        for _ in 0..in_a_row {
            if started.elapsed() >= time {
                break;
            }
            let since = clock();
            let name = deck.trouble(&mut stage, &mut random);
            stage.diary.push(format!("{since} {} {name}", clock()));
            stage.pause(Duration::from_millis(random.u64(0..=800)));
        }
        let calm = S::calm(&mut stage);
        stage.history.calm.extend(calm);
    }
    let mut found = stage.end()?;
    stage.read_logs()?;
    let (violations, losses) = stage.history.judge();
    found.extend(violations);
    report::troubles(&deck.tally);
    stage.report();
    if !stage.history.failovers.is_empty() {
        report::losses(stage.history.failovers.len(), &losses);
    }
    if !stage.history.emptied.is_empty() || !stage.history.silent.is_empty() {
        report::voters(&stage.history, &losses);
    }
    let fine = report::verdict(&found, seed);
    if !fine {
        stage.write_diary()?;
        println!("logs of the clients, the troubles and the observer: {}", stage.folder.keep().display());
    }
    Ok(fine)
}

impl<S: Scene> Stage<S> {
    fn set(seed: u64) -> Outcome<Stage<S>> {
        let scene = S::set();
        let (folder, clients, observer) = (TempDir::new()?, Vec::new(), Some(Observer::start(scene.eye(), S::NAMES)));
        let (history, diary) = (expectations::<S>(), Vec::new());
        let mut stage = Stage { scene, clients, folder, seed, started: 0, history, observer, diary };
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
            .args(["worker", &self.scene.url(slot), &log.display().to_string(), &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take();
        Ok(Client { name, child, input, log })
    }

    pub(crate) fn pause(&self, time: Duration) {
        thread::sleep(time);
    }

    /// Says something to all servers that can be written to.
    pub(crate) fn ask_all(&self, words: &[&str]) {
        for server in self.scene.masters() {
            let _: redis::RedisResult<redis::Value> = server.try_ask(words); // it may be master no more
        }
    }

    pub(crate) fn wiped(&mut self, wipe: Wipe) {
        self.history.wipes.push(wipe);
    }

    /// Recent writes that the master had not replicated are gone.
    pub(crate) fn failed_over(&mut self, failover: Failover) {
        self.history.failovers.push(failover);
    }

    /// That client was farther away than the others.
    pub(crate) fn far(&mut self, slot: usize, (since, until): (u64, u64)) {
        self.history.far.push(Far { client: self.clients[slot].name.clone(), since, until });
    }

    /// A server of several has lost its data.
    pub(crate) fn emptied(&mut self, emptied: Emptied) {
        self.history.emptied.push(emptied);
    }

    /// Passes a time in which no majority of the servers can answer a client, or any of them.
    pub(crate) fn silent(&mut self, slot: Option<usize>, time: Duration) {
        let (client, since) = (slot.map(|slot| self.clients[slot].name.clone()), clock());
        self.pause(time);
        self.history.silent.push(Silent { client, since, until: clock() });
    }

    /// What went on elsewhere was none of these locks' business.
    pub(crate) fn spared(&mut self, names: Vec<String>, (since, until): (u64, u64)) {
        self.history.spared.push(Spared { names, since, until });
    }

    /// Kills a client and starts another in its place.
    pub(crate) fn kill(&mut self, random: &mut Rng) {
        let slot = random.usize(..CLIENTS);
        let client = &mut self.clients[slot];
        let _ = client.child.kill();
        let _ = client.child.wait();
        self.history.killed.insert(client.name.clone(), clock());
        let next = self.start(slot).expect("it could be started before");
        let gone = std::mem::replace(&mut self.clients[slot], next);
        self.history.clients.insert(gone.name.clone(), read(&gone.log).expect("it is there"));
    }

    pub(crate) fn stop(&self, random: &mut Rng, time: Duration) {
        let client = &self.clients[random.usize(..CLIENTS)];
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
        self.wait_for_rests();
        self.history.seen = self.observer.take().map(Observer::end).unwrap_or_default();
        for name in S::NAMES {
            self.history.left.extend(self.holders(name).into_iter().map(|id| ((*name).to_owned(), id, clock())));
        }
        self.history.keys = self.scene.masters().into_iter().flat_map(keys_left).collect();
        Ok(found)
    }

    /// What the servers have of that lock: one of them, or each.
    fn holders(&self, name: &str) -> Vec<String> {
        let words = look_at(name);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match S::ALL_HAVE_ALL {
            true => {
                self.scene.masters().into_iter().flat_map(|server| seen(name, (0, 0), server.ask(&words)).ids).collect()
            }
            false => seen(name, (0, 0), self.scene.ask(name, &words)).ids,
        }
    }

    /// Waits for released locks whose `min_hold` is not over.
    fn wait_for_rests(&self) {
        let ends = Instant::now() + REST;
        while Instant::now() < ends && !self.holders(CELLAR).is_empty() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn read_logs(&mut self) -> Outcome<()> {
        for client in &self.clients {
            self.history.clients.insert(client.name.clone(), read(&client.log)?);
        }
        Ok(())
    }

    /// Files for the search for a cause: the troubles with their times, and the holders that the observer saw.
    fn write_diary(&self) -> Outcome<()> {
        let calm = self.history.calm.iter().map(|(since, until)| format!("{since} {until} calm"));
        let troubles: Vec<_> = self.diary.iter().cloned().chain(calm).collect();
        fs::write(self.folder.path().join("troubles"), troubles.join("\n"))?;
        Ok(fs::write(self.folder.path().join("seen"), report::changes(&self.history))?)
    }

    fn report(&mut self) {
        report::rows(self.scene.rows());
        report::rows([("clients", self.started)]);
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
        println!("| how locks were acquired | times |\n|---|---|");
        report::rows(names.into_iter().zip(sums));
    }
}

fn keys_left(server: &Server) -> Vec<Left> {
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    let left = |key: String| {
        let time: i64 = server.pttl(&key);
        // One that has gone meanwhile had no time left.
        Left::new(key, if time == -1 { None } else { Some(time.max(0).unsigned_abs()) })
    };
    keys.into_iter().map(left).collect()
}

/// What the checker must know of the names and the settings.
fn expectations<S: Scene>() -> History {
    let by_name = |times: &[(&str, Duration)]| times.iter().map(|(name, time)| ((*name).to_owned(), *time)).collect();
    let mut slack: HashMap<String, Duration> =
        by_name(&S::NAMES.iter().map(|name| (*name, S::SLACK)).collect::<Vec<_>>());
    for (name, more) in [(PARCEL, UNPOLLED), (AWAY, WITHOUT_RUNTIME)] {
        *slack.entry(name.to_owned()).or_default() += more;
    }
    let (marked, lines) = (SHARED.map(|name| (name, MARK)), LINES.map(|name| (name, PLACES)));
    let permits = PERMITS.map(|(name, _)| (name, MARK));
    let vaults = VAULTS.map(|name| (name, VAULT_LEASE));
    let kept = [(ATLAS, LONG_LEASE), (CELLAR, CELLAR_LEASE + REST)];
    // They are confirmed within a third of their lease.
    let mut beliefs = by_name(&VAULTS.map(|name| (name, VAULT_LEASE / 2)));
    beliefs.insert(CELLAR.to_owned(), CELLAR_LEASE / 2);
    History {
        longest_lease: LEASE,
        late_after_failover: S::SLACK,
        leases: by_name(
            &[&[(ARCHIVE, LONG_LEASE)], &marked[..], &lines[..], &permits[..], &vaults[..], &kept[..]].concat(),
        ),
        beliefs,
        slack,
        rests: by_name(&[(CELLAR, REST)]),
        rooms: PERMITS.map(|(name, room)| (name.to_owned(), room)).into(),
        shared: HashSet::from(SHARED.map(str::to_owned)),
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
