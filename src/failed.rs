//! The errors that users get for failed requests.

use std::time::Duration;

use crate::{
    error::{About, Error, Source},
    redis::{Answer, Fault, server_in},
};

/// The names of operations in error messages.
pub(crate) const ASKING: &str = "acquiring the lock";
pub(crate) const ASKING_PERMITS: &str = "acquiring permits";
pub(crate) const WAITING: &str = "waiting for the latch";

/// The error if there was no usable reply in time. Names the server that the cause is about.
pub(crate) fn silent(what: &str, name: &str, waited: Duration, source: Source) -> Error {
    match server_in(&source) {
        Some(server) => Error::silent_at(server, what, name, waited, source.clone()),
        None => Error::silent(what, name, waited, Some(source)),
    }
}

/// The error that the user gets for a fault of a request about that name, which is that key in Redis.
pub(crate) fn error(fault: Fault, what: &str, waited: Duration, (name, key): (&str, &str)) -> Error {
    match fault {
        Fault::Unknown(source) | Fault::Unclear(source) | Fault::NotReady(source) | Fault::NotSent(source) => {
            silent(what, name, waited, source)
        }
        Fault::Abandoned => Error::abandoned(what, name),
        Fault::Denied(denial) => Error::Denied { reason: denial.right.to_string(), source: denial.source },
        Fault::Conflict => Error::Conflict { name: name.to_owned(), key: key.to_owned(), about: About::Lock },
        Fault::Server(source) | Fault::NoMemory(source) => Error::Server { source },
        // Only without a cluster URL: with one, the request is sent to the right server.
        Fault::Elsewhere(_, source) => {
            Error::config("url", format!("the server belongs to a cluster; use redis-cluster:// ({source})"))
        }
        Fault::Closed => Error::Closed,
    }
}

/// The error for a reply that no script gives.
pub(crate) fn unexpected(answer: &Answer) -> Error {
    Error::unexpected(&format!("{answer:?}"))
}
