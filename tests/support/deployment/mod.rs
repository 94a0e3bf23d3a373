//! Servers in other shapes than alone: a cluster, sentinels, TLS. All are of real processes on free ports, and end with
//! their handle.

pub(crate) mod cluster;
pub(crate) mod sentinels;
pub(crate) mod tls;

use std::{fmt::Write, thread};

use super::server::Server;

/// Starts that many servers side by side, since each takes a moment to answer.
fn start_all(number: usize, start: impl Fn(usize) -> Server + Sync) -> Vec<Server> {
    thread::scope(|scope| {
        let start = &start;
        let starting: Vec<_> = (0..number).map(|at| scope.spawn(move || start(at))).collect();
        starting.into_iter().map(|server| server.join().expect("it was started")).collect()
    })
}

/// `127.0.0.1:port` of each, with commas between.
fn addresses(servers: &[Server]) -> String {
    let mut text = String::new();
    for server in servers {
        let comma = if text.is_empty() { "" } else { "," };
        write!(text, "{comma}127.0.0.1:{}", server.port()).expect("memory");
    }
    text
}

/// Whether a replica has its master's data and hears what comes.
fn follows(replica: &Server) -> bool {
    says_of_itself(replica, "master_link_status:up")
}

fn says_of_itself(server: &Server, what: &str) -> bool {
    server.try_ask::<String>(&["INFO", "replication"]).is_ok_and(|said| said.contains(what))
}
