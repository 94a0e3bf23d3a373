//! The commands with sentinels, with a cluster, and encrypted.

use std::collections::HashSet;

use crate::{
    command::{Running, at, wait_until},
    look::text,
    support::{
        Server,
        deployment::{cluster::Cluster, sentinels::Sentinels, tls::Tls},
    },
};

/// A lock is held, found, listed, watched and released; a doctor finds nothing bad.
fn all_commands(url: &str, names: &[&str]) {
    let look = |arguments: &[&str]| text(at(url, arguments));
    let mut held: Vec<_> = names
        .iter()
        .map(|name| {
            let mut running = Running::start(at(url, &["run", name, "-c", "echo held; read line"]));
            assert_eq!(running.line(), "held");
            running
        })
        .collect();
    for (name, running) in names.iter().zip(&held) {
        let pid = running.child.id().to_string();
        wait_until("its record is there", || look(&["status", name]).1.contains(&pid));
    }
    let (code, said) = look(&["list"]);
    let listed: HashSet<_> = said.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!((code, listed), (0, names.iter().copied().collect()), "{said}");
    let mut watch = Running::start(at(url, &["watch"]));
    assert!(watch.line().contains("lock"));
    drop(watch);
    assert_eq!(text(at(url, &["run", "-n", names[0], "true"])).0, 1);
    held.iter_mut().for_each(|one| one.write("\n"));
    assert!(held.into_iter().all(|one| one.end().0 == 0));
    assert_eq!(look(&["status", names[0]]), (1, format!("{}: free\n", names[0])));
    let (code, said) = look(&["doctor"]);
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn sentinels() {
    let sentinels = Sentinels::start().await;
    all_commands(&sentinels.url(), &["name"]);
    let said = text(at(&sentinels.url(), &["doctor"])).1;
    assert!(said.contains("1, none is late") || said.contains("2, none is late"), "{said}");
}

#[tokio::test]
async fn cluster() {
    let cluster = Cluster::start().await;
    let names = ["a", "b", "c", "d", "e", "f"];
    let servers: HashSet<_> = names.iter().map(|name| cluster.owner_of(cluster.slot_of(name))).collect();
    assert!(servers.len() > 1, "they are on several servers");
    all_commands(&cluster.url(), &names);
    let said = text(at(&cluster.url(), &["doctor"])).1;
    assert_eq!(said.lines().filter(|line| line.contains("16384 of 16384")).count(), cluster.masters().len(), "{said}");

    // One slot is served by nobody.
    let slot = cluster.slot_of("a");
    for node in cluster.nodes() {
        let _: () = node.ask(&["CLUSTER", "DELSLOTS", &slot.to_string()]);
    }
    let found = || text(at(&cluster.url(), &["doctor"]));
    wait_until("it is found", || {
        let (code, said) = found();
        code == 1 && said.contains("16383 of 16384")
    });
}

#[test]
fn encrypted() {
    let tls = Tls::start();
    let with_ca = |arguments: &[&str]| {
        let mut command = at(&tls.url(), arguments);
        command.env("SSL_CERT_FILE", tls.certificates().ca());
        command
    };
    assert_eq!(text(with_ca(&["run", "name", "true"])).0, 0);
    assert_eq!(text(with_ca(&["status", "name"])).0, 1);
    assert_eq!(text(at(&tls.url(), &["run", "name", "true"])).0, 69, "the authority is not trusted");
}

/// The replica of a server that is behind, and then gone.
#[tokio::test]
async fn a_replica_that_is_late() {
    let master = crate::support::master();
    let replica = crate::support::replica_of(&master).await;
    let doctor = || text(at(&master.url(), &["doctor"]));
    assert!(doctor().1.contains("1, none is late"));
    replica.freeze();
    wait_until("it is found", || {
        let (code, said) = doctor();
        code == 1 && said.contains("1 of 1 are not connected, or more than 5 s late")
    });
    replica.thaw();
}

#[test]
fn a_clock_that_is_wrong() {
    let clock = crate::support::clock::Clock::new(3_600);
    let server = Server::within(clock.environment(), &[]);
    let (code, said) = text(at(&server.url(), &["doctor"]));
    assert!(code == 0 && said.contains("from that of this machine. JVMs"), "{said}");
}

/// A disk on which the server cannot write.
#[test]
fn a_snapshot_that_fails() {
    let server = Server::with(&["--dbfilename", "snapshot.rdb"]);
    std::fs::create_dir(server.folder().join("snapshot.rdb")).expect("our own folder");
    let _: String = server.ask(&["BGSAVE"]);
    wait_until("it is found", || {
        let (code, said) = text(at(&server.url(), &["doctor"]));
        code == 1 && said.contains("rdb_last_bgsave_status is err")
    });
}
