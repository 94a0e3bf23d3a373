//! Clients use locks of all kinds while their server fails in all ways. The clock is paused, so that hours take no time.
//!
//! `MEMORY_STORMS=2000 cargo test --test memory --features test-util storms` for more; `MEMORY_SEED=7` for one of them.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fastrand::Rng;
use leasehold::{Client, Error, Guard, MemoryServer, MultiGuard, MultiLock, Result};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep, timeout},
};

use crate::{HOUR, support::ms};

const CLIENTS: usize = 3;
const WORKERS: usize = 8;
const ROUNDS: usize = 12;
/// Longer than any lease, and than the time after which the queue of a fair lock forgets a waiter that has died.
const ALL_OVER: Duration = Duration::from_secs(700);

/// What the server does besides its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weather {
    /// It does not reply, connections end, replies are lost, and users lose permissions. Holds that are certain exclude each other.
    Rough,
    /// Locks are lost, too.
    Lossy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Mutex,
    Lock,
    Fair,
    Fenced,
    Read,
    Write,
    Multi,
}

const WAYS: [Way; 7] = [Way::Mutex, Way::Lock, Way::Fair, Way::Fenced, Way::Read, Way::Write, Way::Multi];

#[derive(Debug)]
enum Held {
    One(Guard, Option<u64>),
    Several(MultiGuard),
}

impl Held {
    fn is_certain(&self) -> bool {
        let (lost, left) = match self {
            Held::One(guard, _) => (guard.is_lost(), guard.remaining()),
            Held::Several(guard) => (guard.is_lost(), guard.remaining()),
        };
        !lost && !left.is_zero()
    }

    fn names(&self) -> Vec<String> {
        match self {
            Held::One(guard, _) => vec![guard.name().to_owned()],
            Held::Several(guard) => guard.names().map(str::to_owned).collect(),
        }
    }

    async fn check(&self) -> Result<()> {
        match self {
            Held::One(guard, _) => guard.check().await,
            Held::Several(guard) => guard.check().await,
        }
    }

    async fn unlock(self) -> Result<()> {
        match self {
            Held::One(guard, _) => guard.unlock().await,
            Held::Several(guard) => guard.unlock().await,
        }
    }
}

/// All holds of a test, by name.
#[derive(Debug, Default)]
struct Table {
    holds: HashMap<String, Vec<(Way, Arc<Held>)>>,
    token: u64,
    acquired: u32,
}

impl Table {
    /// Two holds that are certain at one time must both be for reading.
    fn enter(&mut self, weather: Weather, way: Way, held: &Arc<Held>) {
        self.acquired += 1;
        for name in held.names() {
            let beside = self.holds.entry(name).or_default();
            for (other, known) in beside.iter().filter(|_| weather == Weather::Rough && held.is_certain()) {
                let may = (way, *other) == (Way::Read, Way::Read);
                assert!(may || !known.is_certain(), "two at a time: {held:#?} beside {known:#?}");
            }
            beside.push((way, Arc::clone(held)));
        }
        if let (Held::One(_, Some(token)), Weather::Rough) = (&**held, weather) {
            assert!(*token > self.token, "token {token} after {}", self.token);
            self.token = *token;
        }
    }

    fn leave(&mut self, held: &Arc<Held>) {
        for name in held.names() {
            let beside = self.holds.get_mut(&name).expect("it has entered");
            beside.retain(|(_, known)| !Arc::ptr_eq(known, held));
        }
    }
}

#[derive(Clone)]
struct Scene {
    weather: Weather,
    server: MemoryServer,
    clients: Vec<Client>,
    table: Arc<Mutex<Table>>,
}

/// What fails in such weather.
fn is_expected(error: &Error) -> bool {
    matches!(
        error,
        Error::Unavailable { .. } | Error::Denied { .. } | Error::Lost { .. } | Error::Conflict { .. } | Error::Closed
    )
}

impl Scene {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic")
    }

    async fn acquire(
        &self,
        client: &Client,
        way: Way,
        limit: Option<Duration>,
        lease: Option<Duration>,
    ) -> Result<Option<Held>> {
        macro_rules! take {
            ($lock:expr, $forever:ident, $once:ident, $until:ident) => {{
                let lock = $lock;
                let lock = match lease {
                    Some(lease) => lock.lease(lease),
                    None => lock,
                };
                match limit {
                    None => Some(lock.$forever().await?),
                    Some(Duration::ZERO) => lock.$once().await?,
                    Some(limit) => lock.$until(limit).await?,
                }
            }};
        }
        let one = |guard: Option<Guard>| guard.map(|guard| Held::One(guard, None));
        Ok(match way {
            Way::Mutex => one(take!(client.mutex("plain"), lock, try_lock, try_lock_for)),
            Way::Lock => one(take!(client.lock("plain"), lock, try_lock, try_lock_for)),
            Way::Fair => one(take!(client.fair_lock("fair"), lock, try_lock, try_lock_for)),
            Way::Fenced => take!(client.fenced_lock("fenced"), lock, try_lock, try_lock_for).map(|guard| {
                let token = guard.token();
                Held::One(guard.into(), Some(token))
            }),
            Way::Read => one(take!(client.rw_lock("rw"), read, try_read, try_read_for).map(Guard::from)),
            Way::Write => one(take!(client.rw_lock("rw"), write, try_write, try_write_for).map(Guard::from)),
            Way::Multi => {
                let both = MultiLock::new(["plain", "plain-2"].map(|name| client.mutex(name)));
                match limit {
                    None => Some(both.lock().await?),
                    Some(Duration::ZERO) => both.try_lock().await?,
                    Some(limit) => both.try_lock_for(limit).await?,
                }
                .map(Held::Several)
            }
        })
    }

    async fn work(self, client: Client, mut random: Rng) {
        for _ in 0..ROUNDS {
            sleep(ms(random.u64(..3_000))).await;
            let way = WAYS[random.usize(..WAYS.len())];
            let limit = [None, Some(Duration::ZERO), Some(ms(random.u64(1..20_000)))][random.usize(..3)];
            let lease = (random.u8(..4) == 0).then(|| ms(random.u64(100..40_000)));
            let dropped_after = if random.u8(..4) == 0 { ms(random.u64(..20_000)) } else { HOUR };
            let started = Instant::now();
            let acquired = timeout(dropped_after, self.acquire(&client, way, limit, lease)).await;
            if let Some(limit) = limit {
                let latest = limit + ms(3_100);
                assert!(started.elapsed() <= latest, "{way:?} with {limit:?} took {:?}", started.elapsed());
            }
            match acquired {
                Ok(Ok(Some(held))) => self.hold(way, held, &client, &mut random).await,
                Ok(Ok(None)) => assert!(limit.is_some()),
                Ok(Err(error)) => assert!(is_expected(&error), "{error:?}"),
                Err(_) => assert!(dropped_after < HOUR, "{way:?} with {limit:?} waits for an hour"),
            }
        }
    }

    async fn hold(&self, way: Way, held: Held, client: &Client, random: &mut Rng) {
        let held = Arc::new(held);
        self.table().enter(self.weather, way, &held);
        for _ in 0..random.usize(..3) {
            sleep(ms(random.u64(..8_000))).await;
            match random.u8(..3) {
                0 => _ = held.check().await.inspect_err(|error| assert!(is_expected(error), "{error:?}")),
                1 if way == Way::Lock => self.nest(client).await,
                _ => {}
            }
        }
        self.table().leave(&held);
        let held = Arc::into_inner(held).expect("the table has left it");
        match random.u8(..4) {
            0 => drop(held),
            _ => _ = held.unlock().await.inspect_err(|error| assert!(is_expected(error), "{error:?}")),
        }
    }

    async fn nest(&self, client: &Client) {
        match client.lock("plain").lock().await {
            Ok(inner) => _ = inner.unlock().await.inspect_err(|error| assert!(is_expected(error), "{error:?}")),
            Err(error) => assert!(is_expected(&error), "{error:?}"),
        }
    }

    /// Fails in one way after the other.
    async fn fail(&self, mut random: Rng) {
        let server = &self.server;
        for _ in 0..30 {
            sleep(ms(random.u64(..8_000))).await;
            let names = ["plain", "plain-2", "fair", "fenced", "rw"];
            let name = names[random.usize(..names.len())];
            match random.u8(..if self.weather == Weather::Lossy { 8 } else { 4 }) {
                0 => {
                    server.freeze();
                    sleep(ms(random.u64(..25_000))).await;
                    if random.bool() {
                        server.cut();
                        sleep(ms(random.u64(..5_000))).await;
                    }
                    server.thaw();
                }
                1 => server.cut(),
                2 => server.lose_replies(random.u32(..6)),
                3 => {
                    server.deny();
                    sleep(ms(random.u64(..5_000))).await;
                    server.thaw();
                }
                4 => server.restart(),
                5 => _ = server.forget(name),
                6 => _ = self.clients[0].lock(name).force_unlock().await,
                _ => {
                    server.set(name, "x");
                    sleep(ms(random.u64(..5_000))).await;
                    server.forget(name);
                }
            }
        }
        server.thaw();
        server.lose_replies(0);
    }

    /// All is free, and nothing remains. The place of a waiter in the queue of a fair lock that could not be removed, because the key was
    /// no lock then, remains until the next owner comes.
    async fn is_clean(&self) {
        sleep(ALL_OVER).await;
        for way in WAYS {
            let acquired = self.acquire(&self.clients[0], way, Some(Duration::ZERO), None).await;
            let held = acquired.expect("the server replies").unwrap_or_else(|| panic!("{way:?} is free"));
            held.unlock().await.expect("held");
        }
        sleep(ms(1_000)).await;
        for client in &self.clients {
            let now = client.stats().now;
            let all = (now.holds, now.waiting, now.subscriptions, now.releasing);
            assert_eq!(all, (0, 0, 0, 0), "{client:?} holds, waits, listens, releases");
        }
        let keys: Vec<_> = self.server.keys().into_iter().filter(|key| !key.contains("token")).collect();
        assert!(keys.is_empty(), "{keys:?}");
    }
}

async fn storm(weather: Weather, seed: u64) -> u32 {
    let (server, mut random) = (MemoryServer::new(), Rng::with_seed(seed));
    let clients: Vec<_> = (0..CLIENTS).map(|_| Client::in_memory(&server).expect("valid settings")).collect();
    let scene = Scene { weather, server, clients, table: Arc::default() };
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let client = scene.clients[worker % CLIENTS].clone();
            tokio::spawn(scene.clone().work(client, random.fork()))
        })
        .collect();
    scene.fail(random).await;
    for worker in workers {
        let done = timeout(HOUR, worker).await.expect("nobody waits for ever");
        done.unwrap_or_else(|failed| resume_unwind(failed.into_panic()));
    }
    scene.is_clean().await;
    scene.table().acquired
}

fn storms(weather: Weather) {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let only = number("MEMORY_SEED");
    let seeds = only.map_or(0..number("MEMORY_STORMS").unwrap_or(100), |seed| seed..seed + 1);
    let mut acquired = 0;
    for seed in seeds.clone() {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        let ran = catch_unwind(AssertUnwindSafe(|| runtime.block_on(storm(weather, seed))));
        acquired += ran.unwrap_or_else(|panic| {
            eprintln!("{weather:?}, MEMORY_SEED={seed}");
            resume_unwind(panic)
        });
    }
    let least = 20 * u32::try_from(seeds.count()).expect("few");
    assert!(acquired > least, "{acquired} holds");
}

#[test]
fn holds_exclude_each_other_in_rough_weather() {
    storms(Weather::Rough);
}

#[test]
fn nothing_remains_after_losses() {
    storms(Weather::Lossy);
}
