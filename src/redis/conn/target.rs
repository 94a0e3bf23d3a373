//! One server to connect to.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    path::PathBuf,
    thread,
    time::Duration,
};

use fred::types::config::{Config as FredConfig, Server, ServerConfig};

use tokio::{sync::oneshot, time::timeout};

use crate::{
    credentials::Credentials,
    redis::{fault::Fault, url::Address},
    tls::TlsContext,
};

/// One server, and the login for it. Never printed, because it can contain a password.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// The IP address of the host to connect to; `None` for any.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) credentials: Credentials,
    pub(crate) database: Option<u8>,
    pub(crate) tls: Option<TlsContext>,
    pub(crate) client_name: Option<String>,
}

/// In a thread of its own. If the system refuses one, that is an error; a blocking task of tokio would panic.
async fn look_up(name: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    let (found, finding) = oneshot::channel();
    let look_up = move || {
        let _ = found.send((name, port).to_socket_addrs().map(Iterator::collect)); // fails if the caller has given up
    };
    let refused = |error| io::Error::other(format!("the system refuses a thread: {error}"));
    thread::Builder::new().name("leasehold-dns".into()).spawn(look_up).map_err(refused)?;
    finding.await.unwrap_or_else(|_| Err(io::Error::other("the resolver has panicked")))
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({}, ..)", self.address)
    }
}

impl Target {
    /// One target for each IP address that the host has now, in the order of the system's resolver.
    pub(super) async fn each_address(self, time: Duration) -> Result<Vec<Target>, Fault> {
        let Address::Tcp(host, port) = &self.address else { return Ok(vec![self]) };
        if host.parse::<IpAddr>().is_ok() {
            return Ok(vec![self]);
        }
        let (name, port) = (host.to_string(), *port);
        let failed = |why: &str| Fault::not_sent(&format!("the host {host} cannot be resolved: {why}"));
        let found = match timeout(time, look_up(name, port)).await {
            Ok(found) => found.map_err(|error| failed(&error.to_string()))?,
            Err(_) => return Err(failed(&format!("no reply within {time:?}"))),
        };
        match &*found {
            [] => Err(failed("it has no address")),
            [_] => Ok(vec![self]), // keeps the whole address, also its scope
            several => Ok(several.iter().map(|one| self.at(one)).collect()),
        }
    }

    fn at(&self, socket: &SocketAddr) -> Target {
        Target { ip: Some(socket.ip()), ..self.clone() }
    }

    pub(super) fn config(&self) -> Result<FredConfig, Fault> {
        let Credentials { user, password } = self.credentials.clone();
        // Without a password fred would not send the user name, and the server would use its default user.
        let password = password.or_else(|| user.as_ref().map(|_| String::new()));
        let config = FredConfig {
            username: user,
            password,
            database: self.database.filter(|database| *database != 0),
            server: self.server(),
            ..FredConfig::default()
        };
        self.with_tls(config)
    }

    fn server(&self) -> ServerConfig {
        match &self.address {
            Address::Unix(path) => ServerConfig::Unix { path: PathBuf::from(path) },
            Address::Tcp(host, port) => {
                let place = self.ip.map_or_else(|| host.to_string(), |ip| ip.to_string());
                ServerConfig::Centralized { server: self.named(Server::new(place, *port)) }
            }
        }
    }

    #[cfg(feature = "tls")]
    fn named(&self, server: Server) -> Server {
        let host = match (&self.address, self.ip) {
            (Address::Tcp(host, _), Some(_)) => Some(host.to_string()), // an IP address is not a host name
            _ => None,
        };
        let name = self.tls.as_ref().and_then(|tls| tls.server_name.clone().or(host));
        Server { tls_server_name: name.map(Into::into), ..server }
    }

    #[cfg(not(feature = "tls"))]
    fn named(&self, server: Server) -> Server {
        server
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, config: FredConfig) -> Result<FredConfig, Fault> {
        let Some(tls) = &self.tls else { return Ok(config) };
        let settings = tls.config().map_err(|why| Fault::not_sent(&why))?;
        let connector = fred::types::config::TlsConnector::from((*settings).clone());
        Ok(FredConfig { tls: Some(connector.into()), ..config })
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, config: FredConfig) -> Result<FredConfig, Fault> {
        match &self.tls {
            None => Ok(config),
            Some(never) => match *never {},
        }
    }
}
