//! One server, as a connection to it is made.

use std::path::PathBuf;

use fred::types::config::{Config as FredConfig, Server, ServerConfig};

use crate::{credentials::Credentials, redis::url::Address, tls::TlsContext};

/// One server and who we are there. Not printable: it can hold a password.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) credentials: Credentials,
    pub(crate) database: Option<u8>,
    pub(crate) tls: Option<TlsContext>,
    pub(crate) client_name: Option<String>,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({}, ..)", self.address)
    }
}

impl Target {
    pub(super) fn config(&self) -> FredConfig {
        let Credentials { user, password } = self.credentials.clone();
        // Without a password fred would not say who we are, and the server would take us for its default user.
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
            Address::Tcp(host, port) => ServerConfig::Centralized { server: self.named(Server::new(&**host, *port)) },
        }
    }

    #[cfg(feature = "tls")]
    fn named(&self, server: Server) -> Server {
        let name = self.tls.as_ref().and_then(|tls| tls.server_name.clone());
        Server { tls_server_name: name.map(Into::into), ..server }
    }

    #[cfg(not(feature = "tls"))]
    fn named(&self, server: Server) -> Server {
        server
    }

    #[cfg(feature = "tls")]
    fn with_tls(&self, config: FredConfig) -> FredConfig {
        let connector = self.tls.as_ref().map(|tls| fred::types::config::TlsConnector::from((*tls.config).clone()));
        FredConfig { tls: connector.map(Into::into), ..config }
    }

    #[cfg(not(feature = "tls"))]
    fn with_tls(&self, config: FredConfig) -> FredConfig {
        match &self.tls {
            None => config,
            Some(never) => match *never {},
        }
    }
}
