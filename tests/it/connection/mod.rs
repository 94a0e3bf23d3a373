//! The connection to a server: how it begins, fails, and comes back, and what a server refuses.

mod acl;
mod credentials;
mod dying;
mod idle;
mod links;
mod out_of_memory;
mod outage;
mod passwords;
mod refused;
mod starting;
mod storms;
#[cfg(feature = "tls")]
mod tls;
mod unexpected_replies;
mod urls;
