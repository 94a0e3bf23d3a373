//! The login and the settings for connections. A provider of credentials is called for each new connection.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::Config,
    credentials::{Credentials, CredentialsProvider},
    redis::{
        changed_keys::ChangedKeys,
        conn::Target,
        fault::Fault,
        url::{Address, Url},
    },
    tls::TlsContext,
};

/// The settings that all connections of a deployment share.
#[derive(Clone)]
pub(super) struct Access {
    credentials: Credentials,
    provider: Option<CredentialsProvider>,
    database: Option<u8>,
    tls: Option<TlsContext>,
    client_name: Option<String>,
    /// Whom servers tell that keys have changed; `None` if they are not to tell it.
    changed: Option<Arc<ChangedKeys>>,
    command_timeout: Duration,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Access(..)")
    }
}

impl Access {
    pub(super) fn new(url: &Url, config: &Config) -> Access {
        Access {
            credentials: url.credentials.clone(),
            provider: config.credentials.clone(),
            database: url.database,
            tls: config.tls.clone().filter(|_| url.tls),
            client_name: config.client_name.clone(),
            changed: config.tracking.then(Arc::default),
            command_timeout: config.command_timeout,
        }
    }

    /// A connection to a sentinel, which has users of its own and no databases.
    pub(super) fn to_sentinel(&self, address: &Address, credentials: &Credentials) -> Target {
        Target {
            address: address.clone(),
            found: None,
            credentials: credentials.clone(),
            database: None,
            tls: self.tls.clone(),
            client_name: self.client_name.clone(),
            changed: None,
            asks_peer: false,
        }
    }

    /// A connection to a server. If the provider fails, it is called again for the next attempt.
    pub(super) async fn to(&self, address: Address) -> Result<Target, Fault> {
        let credentials = match &self.provider {
            Some(provider) => self.provided(provider).await?,
            None => self.credentials.clone(),
        };
        let (database, tls, client_name) = (self.database, self.tls.clone(), self.client_name.clone());
        let changed = self.changed.clone();
        Ok(Target { address, found: None, credentials, database, tls, client_name, changed, asks_peer: true })
    }

    pub(super) fn changed_keys(&self) -> Option<Arc<ChangedKeys>> {
        self.changed.clone()
    }

    /// Calls the provider in a task of its own, with a time limit: a provider that panics or hangs must not end the task that keeps the
    /// connections.
    async fn provided(&self, provider: &CredentialsProvider) -> Result<Credentials, Fault> {
        let provider = provider.clone();
        let asked = AbortOnDropHandle::new(tokio::spawn(async move { provider.ask().await }));
        match timeout(self.command_timeout, asked).await {
            Ok(Ok(provided)) => provided.map_err(Fault::NotSent),
            // Without the panic message, because that may contain a password.
            Ok(Err(_)) => Err(Fault::not_sent("the credentials function has panicked")),
            Err(_) => {
                let words = format!("the credentials function has not returned within {:?}", self.command_timeout);
                Err(Fault::not_sent(&words))
            }
        }
    }
}
