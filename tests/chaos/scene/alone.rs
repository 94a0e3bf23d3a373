//! One server, with a proxy before each client. It may be a cluster that looks like one server.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use fastrand::Rng;

use super::{KEPT, Scene, Trouble};
use crate::{
    NAMES, clock,
    director::{CALM, CLIENTS, SETTLE, Stage},
    observer::{Eye, Sight},
    proxy::{Fault, Proxy, Schedule, Way, Which},
    report,
    server::Server,
    support::{clock::Clock, deployment::cluster::with_all_slots},
    troubles,
};

/// How much later a client that is far away hears an answer, and for how long it is before that counts.
const FAR: Duration = Duration::from_millis(25);
const USED_TO_IT: Duration = Duration::from_secs(1);
/// How long the observer waits for the server.
const PATIENCE: Duration = Duration::from_secs(1);

pub(crate) struct Alone {
    pub(crate) clock: Clock,
    pub(crate) server: Server,
    pub(crate) proxies: Vec<Proxy>,
    /// The most requests in a second while the server refused.
    refused: u64,
}

impl Scene for Alone {
    const NAMES: &'static [&'static str] = &NAMES;
    const TROUBLES: &'static [Trouble<Alone>] = &troubles::TROUBLES;
    const IN_A_ROW: (u32, u32) = (3, 10);
    const SLACK: Duration = Duration::ZERO;

    fn set() -> Alone {
        let clock = Clock::new(0);
        let server = if is_hidden() { hidden(&clock) } else { Server::within(clock.environment(), &KEPT) };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let proxies = (0..CLIENTS).map(|_| Proxy::start(address)).collect();
        Alone { clock, server, proxies, refused: 0 }
    }

    fn url(&self, slot: usize) -> String {
        self.proxies[slot].url()
    }

    fn eye(&self) -> Box<dyn Eye> {
        Box::new(Sight::of(&self.server.url(), PATIENCE))
    }

    fn masters(&self) -> Vec<&Server> {
        vec![&self.server]
    }

    fn server_of(&self, _name: &str) -> &Server {
        &self.server
    }

    fn publish(&self) -> &'static str {
        "PUBLISH"
    }

    /// Only one client is far away, so that messages arrive while it still waits for its answer.
    fn calm(stage: &mut Stage<Alone>) -> Option<(u64, u64)> {
        stage.pause(SETTLE - USED_TO_IT);
        let far = Fault::Delay(Way::Back, FAR);
        let far = Schedule { seed: 0, which: Which::Command("EVALSHA"), chances: vec![(1.0, far)] };
        stage.scene.proxies[0].schedule(far);
        stage.pause(USED_TO_IT);
        let since = clock();
        stage.pause(CALM);
        let until = clock();
        stage.scene.proxies[0].calm();
        Some((since, until))
    }

    fn rows(&self) -> Vec<(&'static str, u64)> {
        let mut rows = report::requests(&self.proxies);
        rows.push(("requests a second while refused, at most", self.refused));
        rows
    }
}

/// Whether the server is in cluster mode. There is one scene in a process.
pub(crate) static HIDDEN: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_hidden() -> bool {
    HIDDEN.load(Ordering::Relaxed)
}

/// It has all slots.
fn hidden(clock: &Clock) -> Server {
    let args = [&KEPT[..], &["--cluster-enabled", "yes"]].concat();
    let server = with_all_slots(Server::within(clock.environment(), &args));
    while !server.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
        thread::sleep(Duration::from_millis(20));
    }
    server
}

impl Alone {
    pub(crate) fn slot(&self, random: &mut Rng) -> usize {
        random.usize(..self.proxies.len())
    }

    pub(crate) fn proxy(&self, random: &mut Rng) -> &Proxy {
        &self.proxies[self.slot(random)]
    }

    /// How many requests have gone through the proxies.
    pub(crate) fn requests(&self) -> u64 {
        self.proxies.iter().map(|proxy| proxy.tally().requests).sum()
    }

    pub(crate) fn refused(&mut self, a_second: u64) {
        self.refused = self.refused.max(a_second);
    }
}
