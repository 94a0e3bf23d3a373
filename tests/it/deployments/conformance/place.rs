//! Where a server can be, and how to look at a key there.

use std::sync::{Arc, Weak};

use leasehold::{Builder, Client};
use redis::FromRedisValue;
use tokio::sync::Mutex;

#[cfg(feature = "tls")]
use crate::support::deployment::tls::Tls;
use crate::support::{
    Server,
    deployment::{cluster::Cluster, sentinels::Sentinels, tls::Certificates},
};

pub(super) enum Place {
    Alone(Server),
    UnixSocket(Server),
    #[cfg(feature = "tls")]
    Tls(Tls),
    Sentinels(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
    #[cfg(feature = "test-util")]
    Memory(leasehold::MemoryServer),
}

/// Takes seconds to start, so all that run at one time share it; with the last of them it goes.
struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    const fn new() -> Shared<T> {
        Shared(Mutex::const_new(Weak::new()))
    }

    async fn get(&self, start: impl AsyncFnOnce() -> T) -> Arc<T> {
        let mut kept = self.0.lock().await;
        if let Some(running) = kept.upgrade() {
            return running;
        }
        let started = Arc::new(start().await);
        *kept = Arc::downgrade(&started);
        started
    }
}

impl Place {
    pub(super) async fn alone() -> Place {
        Place::Alone(Server::start())
    }

    pub(super) async fn unix_socket() -> Place {
        Place::UnixSocket(Server::start())
    }

    #[cfg(feature = "tls")]
    pub(super) async fn tls() -> Place {
        Place::Tls(Tls::for_known_clients())
    }

    pub(super) async fn sentinels() -> Place {
        static SHARED: Shared<Sentinels> = Shared::new();
        Place::Sentinels(SHARED.get(Sentinels::start).await)
    }

    pub(super) async fn cluster() -> Place {
        static SHARED: Shared<Cluster> = Shared::new();
        Place::Cluster(SHARED.get(Cluster::start).await)
    }

    #[cfg(feature = "tls")]
    pub(super) async fn sentinels_with_tls() -> Place {
        static SHARED: Shared<Sentinels> = Shared::new();
        Place::Sentinels(SHARED.get(Sentinels::encrypted).await)
    }

    #[cfg(feature = "tls")]
    pub(super) async fn cluster_with_tls() -> Place {
        static SHARED: Shared<Cluster> = Shared::new();
        Place::Cluster(SHARED.get(Cluster::encrypted).await)
    }

    #[cfg(feature = "test-util")]
    pub(super) async fn memory() -> Place {
        Place::Memory(leasehold::MemoryServer::new())
    }

    pub(super) async fn client(&self, settings: impl FnOnce(Builder) -> Builder) -> Client {
        #[cfg(feature = "test-util")]
        if let Place::Memory(server) = self {
            return settings(Client::builder()).connect_in_memory(server).expect("valid settings");
        }
        settings(self.builder()).connect().await.expect("the place answers")
    }

    fn builder(&self) -> Builder {
        match self {
            Place::Alone(server) => Client::builder().url(server.url()),
            Place::UnixSocket(server) => Client::builder().url(server.socket_url()),
            #[cfg(feature = "tls")]
            Place::Tls(tls) => {
                let (certificate, key) = tls.certificates().client();
                Client::builder().url(tls.url()).tls(trusting(tls.certificates()).client_cert(certificate, key))
            }
            Place::Sentinels(sentinels) => with(sentinels.url(), sentinels.certificates()),
            Place::Cluster(cluster) => with(cluster.url(), cluster.certificates()),
            #[cfg(feature = "test-util")]
            Place::Memory(_) => unreachable!("it has no URL"),
        }
    }

    /// The words that a command gets, of a server in memory.
    #[cfg(feature = "test-util")]
    fn in_memory(&self, words: &[&str]) -> Option<Vec<String>> {
        let Place::Memory(server) = self else { return None };
        Some(server.command(words).expect("a command that works"))
    }

    #[cfg(not(feature = "test-util"))]
    fn in_memory(&self, _words: &[&str]) -> Option<Vec<String>> {
        None
    }

    /// A number of the server that has that key now.
    pub(super) fn home_of(&self, name: &str) -> u16 {
        match self.in_memory(&["EXISTS", name]) {
            Some(_) => 0,
            None => self.keeper(name).port(),
        }
    }

    /// The server that has that key now.
    fn keeper(&self, name: &str) -> &Server {
        match self {
            Place::Alone(server) | Place::UnixSocket(server) => server,
            #[cfg(feature = "tls")]
            Place::Tls(tls) => tls.server(),
            Place::Sentinels(sentinels) => sentinels.master(),
            Place::Cluster(cluster) => cluster.master_of(name),
            #[cfg(feature = "test-util")]
            Place::Memory(_) => unreachable!("it is no process"),
        }
    }

    /// How many servers share the keys.
    pub(super) fn masters(&self) -> usize {
        match self {
            Place::Cluster(cluster) => cluster.masters().len(),
            _ => 1,
        }
    }

    /// One command about that key, with one word in reply.
    pub(super) fn ask<T: FromRedisValue>(&self, name: &str, words: &[&str]) -> T {
        match self.in_memory(words) {
            Some(said) => {
                let word = said.into_iter().next().expect("a reply");
                T::from_redis_value(redis::Value::BulkString(word.into_bytes())).expect("the right type")
            }
            None => self.keeper(name).ask(words),
        }
    }

    pub(super) fn lock(&self, name: &str) -> Vec<(String, u32)> {
        let pairs = |said: Vec<String>| {
            said.chunks(2).map(|pair| (pair[0].clone(), pair[1].parse().expect("a count"))).collect()
        };
        self.in_memory(&["HGETALL", name]).map_or_else(|| self.keeper(name).lock(name), pairs)
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.ask::<u32>(name, &["EXISTS", name]) == 1
    }

    /// How many connections are subscribed to that lock's channel, in whichever way. In a cluster any node will do for one.
    pub(super) fn listeners(&self, name: &str) -> usize {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let on = |server: &Server| {
            let of =
                |kind| server.try_ask::<(String, usize)>(&["PUBSUB", kind, &channel]).map_or(0, |(_, number)| number);
            of("NUMSUB") + of("SHARDNUMSUB") // the latter from 7.0
        };
        match self {
            #[cfg(feature = "test-util")]
            Place::Memory(server) => server.listeners(&channel),
            Place::Cluster(cluster) => cluster.nodes().iter().map(on).sum(),
            Place::Sentinels(sentinels) => sentinels.servers().iter().map(on).sum(),
            _ => on(self.keeper(name)),
        }
    }
}

/// Where TLS is spoken it takes somebody to trust.
fn with(url: String, certificates: Option<&Certificates>) -> Builder {
    let builder = Client::builder().url(url);
    #[cfg(feature = "tls")]
    let builder = certificates.into_iter().fold(builder, |builder, certificates| builder.tls(trusting(certificates)));
    #[cfg(not(feature = "tls"))]
    assert!(certificates.is_none(), "only with the feature");
    builder
}

#[cfg(feature = "tls")]
fn trusting(certificates: &Certificates) -> leasehold::Tls {
    leasehold::Tls::new().ca_file(certificates.ca())
}
