//! A master with two replicas, and three sentinels that watch over them.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use super::{addresses, follows, says_of_itself, start_all, tls::Certificates};
use crate::support::{
    ms,
    server::{Look, Server, owned, socket_in, usual, version},
    until,
};

const SERVICE: &str = "mymaster";
/// How long a master may be silent before the sentinels hold it for dead. Shorter, and a busy machine would kill masters.
const SILENCE: &str = "1000";
/// How long the sentinels may take to agree on something.
const PATIENCE: Duration = ms(45_000); // an election that fails is held again after seconds
/// After this time a failover without a result is over: more than twice the `failover-timeout`.
const GIVEN_UP: Duration = ms(8_000);

/// Servers are named by their place. The master is 0 at first.
pub(crate) struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    passwords: Passwords,
    /// Of those that speak TLS only.
    certificates: Option<Certificates>,
}

/// Sentinels often have a password of their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Passwords {
    pub(crate) servers: Option<String>,
    pub(crate) sentinels: Option<String>,
}

impl Sentinels {
    pub(crate) async fn start() -> Sentinels {
        Sentinels::with(Passwords::default()).await
    }

    pub(crate) async fn with(passwords: Passwords) -> Sentinels {
        Sentinels::with_args(passwords, &[]).await
    }

    /// With more arguments for the command line of each server.
    pub(crate) async fn with_args(passwords: Passwords, args: &[&str]) -> Sentinels {
        Sentinels::of(passwords, args, None).await
    }

    /// Where TLS is spoken and nothing else.
    pub(crate) async fn encrypted() -> Sentinels {
        Sentinels::of(Passwords::default(), &[], Some(Certificates::here())).await
    }

    async fn of(passwords: Passwords, args: &[&str], certificates: Option<Certificates>) -> Sentinels {
        let servers = start_all(3, |_| server(&passwords, args, certificates.as_ref()));
        let master = servers[0].port().to_string();
        // Not by its arguments: it may be master when it is started again.
        for replica in &servers[1..] {
            let _: String = replica.ask(&["REPLICAOF", "127.0.0.1", &master]);
        }
        let sentinels = start_all(3, |_| sentinel(&passwords, &master, certificates.as_ref()));
        sentinels.iter().for_each(hurry);
        let all = Sentinels { servers, sentinels, passwords, certificates };
        all.settled().await;
        all
    }

    /// A sentinel of others at the port of one that is gone: its service has the same name, a master of its own, and was changed
    /// more often. It accepts no messages of our sentinels: it would answer, and within seconds they would take over its master themselves
    /// (seen with Redis 7.0).
    pub(crate) fn stranger_at(port: u16, master: &Server) -> Server {
        const NO_MESSAGES: &str = "user default on nopass ~* &* +@all -publish"; // from its first moment
        Server::at(port, |dir| {
            let file = dir.join("sentinel.conf");
            let settings = settings(&Passwords::default(), &master.port().to_string(), port, dir);
            fs::write(&file, format!("{settings}\nsentinel config-epoch {SERVICE} 1000\n{NO_MESSAGES}"))
                .expect("our own folder");
            owned(&[&file.display().to_string(), "--sentinel"])
        })
    }

    /// With the servers' password, if they have one; the sentinels' is not said.
    pub(crate) fn url(&self) -> String {
        let password = self.passwords.servers.as_ref().map_or(String::new(), |password| format!(":{password}@"));
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}-sentinel://{password}{}/{SERVICE}/0", addresses(&self.sentinels))
    }

    pub(crate) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// For what a handle that is only looked at cannot do: `crash` and `revive`.
    pub(crate) fn server_mut(&mut self, at: usize) -> &mut Server {
        &mut self.servers[at]
    }

    pub(crate) fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    pub(crate) fn sentinel_mut(&mut self, at: usize) -> &mut Server {
        &mut self.sentinels[at]
    }

    /// Starts a sentinel again that was killed; it knows what it had written down.
    pub(crate) fn revive_sentinel(&mut self, at: usize) {
        self.sentinels[at].revive();
        hurry(&self.sentinels[at]);
    }

    /// The master, as a running sentinel of ours knows it.
    pub(crate) fn master(&self) -> &Server {
        &self.servers[self.master_at()]
    }

    pub(crate) fn master_at(&self) -> usize {
        self.running().find_map(|sentinel| self.master_by(sentinel)).expect("a sentinel of ours runs")
    }

    /// Tells a sentinel to fail over, as before maintenance. What was written just before may be lost. Returns the new master, once all
    /// sentinels know it.
    ///
    /// A sentinel ends a failover without a result if the replica is too slow. The old master is well, so no sentinel begins another one.
    /// Then this tells it again, but not before [`GIVEN_UP`]: a failover that has just ended must not be followed by a second one.
    pub(crate) async fn fail_over(&self) -> usize {
        let (was, sentinel) = (self.master_at(), self.running().next().expect("a sentinel that runs"));
        let mut told: Option<Instant> = None;
        let done = || {
            if told.is_none_or(|told| told.elapsed() > GIVEN_UP) && self.master_by(sentinel) == Some(was) {
                let begins = sentinel.try_ask::<String>(&["SENTINEL", "FAILOVER", SERVICE]).is_ok();
                told = begins.then(Instant::now).or(told);
            }
            self.is_heir_of(was)
        };
        until("a replica to take over as told", PATIENCE, done).await;
        self.master_at()
    }

    /// Waits until another one is master instead of that one, which was killed or frozen, and all sentinels know.
    pub(crate) async fn heir_of(&self, was: usize) -> usize {
        until("another one to take over", PATIENCE, || self.is_heir_of(was)).await;
        self.master_at()
    }

    fn is_heir_of(&self, was: usize) -> bool {
        let known = |sentinel| self.master_by(sentinel).is_some_and(|master| master != was);
        self.running().all(known) && is_master(self.master())
    }

    /// Waits until all run and the sentinels know the whole of it, as at the start.
    pub(crate) async fn settled(&self) {
        until("the sentinels to know all", PATIENCE, || self.is_settled()).await;
    }

    fn is_settled(&self) -> bool {
        let master = self.master_at();
        let know_all =
            self.sentinels.iter().all(|sentinel| knows_all(sentinel) && self.master_by(sentinel) == Some(master));
        let follow = |(at, server): (usize, &Server)| at == master || follows(server);
        know_all && self.servers.iter().enumerate().all(follow)
    }

    /// Grows with each failover, also with one that nobody asked for because the machine stood still.
    pub(crate) fn epoch(&self) -> u64 {
        let sentinel = self.running().next().expect("a sentinel that runs");
        let known: HashMap<String, String> = sentinel.ask(&["SENTINEL", "MASTER", SERVICE]);
        known["config-epoch"].parse().expect("a number")
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.sentinels.iter().filter(|sentinel| sentinel.is_up())
    }

    /// `None` while a sentinel of others answers at its address.
    fn master_by(&self, sentinel: &Server) -> Option<usize> {
        let (_, port): (String, u16) = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]);
        self.servers.iter().position(|server| server.port() == port)
    }
}

fn is_master(server: &Server) -> bool {
    says_of_itself(server, "role:master")
}

/// Whether that sentinel has found the replicas and the other sentinels, and thinks that the master is well.
fn knows_all(sentinel: &Server) -> bool {
    let known: HashMap<String, String> = sentinel.ask(&["SENTINEL", "MASTER", SERVICE]);
    let is = |field: &str, value: &str| known.get(field).is_some_and(|found| found == value);
    is("flags", "master") && is("num-slaves", "2") && is("num-other-sentinels", "2")
}

fn server(passwords: &Passwords, more: &[&str], certificates: Option<&Certificates>) -> Server {
    let look = Look { password: passwords.servers.clone(), by_socket: certificates.is_some() };
    Server::made(look, |port, dir| {
        // Any of them may be master or replica one day.
        let secret =
            passwords.servers.as_ref().map_or(Vec::new(), |word| owned(&["--requirepass", word, "--masterauth", word]));
        let tls = certificates.map(|certificates| certificates.only_tls(port)).unwrap_or_default();
        [usual(port, dir), owned(&["--repl-diskless-sync-delay", "0"]), secret, tls, owned(more)].concat()
    })
}

/// The server's program in its other part, which it plays with a file of settings that it can write to.
fn sentinel(passwords: &Passwords, master: &str, certificates: Option<&Certificates>) -> Server {
    let look = Look { password: passwords.sentinels.clone(), by_socket: certificates.is_some() };
    Server::made(look, |port, dir| {
        let file = dir.join("sentinel.conf");
        fs::write(&file, settings(passwords, master, port, dir)).expect("our own folder");
        let tls = certificates.map(|certificates| certificates.only_tls(port)).unwrap_or_default();
        [owned(&[&file.display().to_string(), "--sentinel"]), tls].concat()
    })
}

fn settings(passwords: &Passwords, master: &str, port: u16, dir: &Path) -> String {
    let mut lines = vec![
        format!("port {port}"),
        "bind 127.0.0.1".to_owned(),
        format!("unixsocket {}", socket_in(dir).display()),
        format!("dir {}", dir.display()),
        format!("sentinel monitor {SERVICE} 127.0.0.1 {master} 2"),
        format!("sentinel down-after-milliseconds {SERVICE} {SILENCE}"),
        format!("sentinel failover-timeout {SERVICE} 3000"),
    ];
    lines.extend(passwords.servers.iter().map(|word| format!("sentinel auth-pass {SERVICE} {word}")));
    lines.extend(passwords.sentinels.iter().map(|word| format!("requirepass {word}")));
    if version() >= (6, 2) {
        // What it says to the other sentinels; before, that was its own password without a word.
        lines.extend(passwords.sentinels.iter().map(|word| format!("sentinel sentinel-pass {word}")));
    }
    lines.join("\n")
}

/// Has it look and tell more often than every few seconds; before 7.0 it does not take that, and is only slower to begin.
/// While a master is down it asks replicas how they are once a second, and takes only one that has said so within five
/// times the period of its pings: with a shorter one it finds none every other time.
fn hurry(sentinel: &Server) {
    let periods = ["INFO-PERIOD", "200", "PUBLISH-PERIOD", "200", "PING-PERIOD", "300", "TILT-PERIOD", "1000"];
    let _ = sentinel.try_ask::<String>(&[&["SENTINEL", "DEBUG"], &periods[..]].concat());
}
