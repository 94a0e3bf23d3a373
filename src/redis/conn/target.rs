//! One server to connect to.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
    thread,
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

use crate::{
    credentials::Credentials,
    redis::{
        changed_keys::ChangedKeys,
        fault::{Fault, source},
        url::Address,
    },
    tls::TlsContext,
};

/// One server, and the login for it. Never printed, because it can contain a password.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: Address,
    /// The address that was found for the host. Not of a unix socket.
    pub(crate) found: Option<SocketAddr>,
    pub(crate) credentials: Credentials,
    pub(crate) database: Option<u8>,
    pub(crate) tls: Option<TlsContext>,
    pub(crate) client_name: Option<String>,
    /// Whom the server tells that keys have changed.
    pub(crate) changed: Option<Arc<ChangedKeys>>,
    /// Asks who this client is on the server, so that the next connection can close this one.
    pub(crate) asks_peer: bool,
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
        if let Ok(ip) = host.parse::<IpAddr>() {
            let found = SocketAddr::new(ip, *port);
            return Ok(vec![Target { found: Some(found), ..self }]);
        }
        let (name, port) = (host.to_string(), *port);
        let failed = |why: &str| Fault::not_sent(&format!("the host {host} cannot be resolved: {why}"));
        let found = match timeout(time, look_up(name, port)).await {
            Ok(found) => found.map_err(|error| failed(&error.to_string()))?,
            Err(_) => return Err(failed(&format!("no reply within {time:?}"))),
        };
        match &*found {
            [] => Err(failed("it has no address")),
            found => Ok(found.iter().map(|one| Target { found: Some(*one), ..self.clone() }).collect()),
        }
    }

    /// `None`: the server wants no login. Without a password the server uses the default user.
    pub(super) fn auth(&self) -> Option<Vec<&str>> {
        match &self.credentials {
            Credentials { user: Some(user), password } => {
                Some(vec!["AUTH", user, password.as_deref().unwrap_or_default()])
            }
            Credentials { user: None, password } => password.as_deref().map(|password| vec!["AUTH", password]),
        }
    }

    /// A server may repeat what the client sent: an error message ends where the password may begin.
    pub(super) fn without_secret(&self, fault: Fault) -> Fault {
        let Some(words) = fault.clone().source().map(|source| source.to_string()) else { return fault };
        match self.secret_from(&words) {
            Some(at) => fault.with_source(|_| source(&format!("{}.. (the rest may repeat a password)", &words[..at]))),
            None => fault,
        }
    }

    fn secret_from(&self, words: &str) -> Option<usize> {
        const REPEATED: &str = "args beginning with";
        const ENOUGH: usize = 8;
        let password = self.credentials.password.as_deref().filter(|password| !password.is_empty())?;
        let start = password.char_indices().nth(ENOUGH).map_or(password, |(end, _)| &password[..end]);
        [REPEATED, start].into_iter().filter_map(|text| words.find(text)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_repeats_is_cut() {
        let target = |password: &str| Target {
            address: Address::Tcp("h".into(), 1),
            found: None,
            credentials: Credentials::new("us", password),
            database: None,
            tls: None,
            client_name: None,
            changed: None,
            asks_peer: true,
        };
        let shown = |password: &str, words: &str| {
            let fault = target(password).without_secret(Fault::said(words));
            (matches!(fault, Fault::Denied(_)), fault.source().expect("words").to_string())
        };
        let (_, words) = shown("pass-word-1", "ERR unknown command 'AUTH', with args beginning with: 'us' 'pass-wo");
        assert!(words.starts_with("ERR unknown command 'AUTH', with ..") && !words.contains("pass-wo"), "{words}");
        let (_, words) = shown("pass-word-1", "ERR what is pass-word-?");
        assert!(words.starts_with("ERR what is ..") && !words.contains("pass-wo"), "{words}");
        // However little is left to show, its meaning is still known.
        let (denied, words) = shown("W", "WRONGPASS invalid username-password pair");
        assert!(denied && !words.contains("WRONG"), "{words}");
        let (denied, words) = shown("", "WRONGPASS invalid username-password pair");
        assert!(denied && words.contains("username-password pair"), "{words}");
    }
}
