//! Times in which the server runs and refuses requests: no memory, no more connections, no snapshot, no writes. A connection
//! that was open before ends each.

use std::{fs, thread, time::Instant};

use fastrand::Rng;
use redis::{Connection, FromRedisValue};

use crate::{
    director::Stage,
    proxy::{Fault, Proxy, Rule},
    scene::{Alone, is_hidden},
    support::{script, script_of},
    troubles::millis,
};

/// The server refuses writes that need memory. A release needs none.
pub(crate) fn no_memory(stage: &mut Stage<Alone>, random: &mut Rng) {
    let mut raw = stage.scene.server.raw();
    say(&mut raw, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    say(&mut raw, &["CONFIG", "SET", "maxmemory", "1"]);
    wait(stage, random);
    say(&mut raw, &["CONFIG", "SET", "maxmemory", "0"]);
}

/// Open connections stay open, and the server refuses new ones. So the connections of one client, or of all, are cut.
pub(crate) fn no_connections(stage: &mut Stage<Alone>, random: &mut Rng) {
    let mut raw = stage.scene.server.raw();
    let before: (String, String) = get(&mut raw, &["CONFIG", "GET", "maxclients"]);
    say(&mut raw, &["CONFIG", "SET", "maxclients", "1"]);
    if random.bool() {
        stage.scene.proxies.iter().for_each(|proxy| proxy.cut_all());
    } else {
        stage.scene.proxy(random).cut_all();
    }
    wait(stage, random);
    say(&mut raw, &["CONFIG", "SET", "maxclients", &before.1]);
}

/// A snapshot has failed, and so the server takes no writes (MISCONF). Even PING is refused.
pub(crate) fn no_snapshot(stage: &mut Stage<Alone>, random: &mut Rng) {
    let mut raw = stage.scene.server.raw();
    // Where the file should be there is a folder, which even root cannot write over.
    let in_the_way = stage.scene.server.folder().join("dump.rdb");
    fs::create_dir(&in_the_way).expect("our own folder");
    say(&mut raw, &["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
    say(&mut raw, &["CONFIG", "SET", "save", "3600 1000000"]);
    say(&mut raw, &["BGSAVE"]);
    let begun = Instant::now();
    while !get::<String>(&mut raw, &["INFO", "persistence"]).contains("rdb_last_bgsave_status:err") {
        assert!(begun.elapsed().as_secs() < 20, "the snapshot does not fail");
        thread::sleep(std::time::Duration::from_millis(5));
    }
    wait(stage, random);
    say(&mut raw, &["CONFIG", "SET", "save", ""]);
    fs::remove_dir(&in_the_way).expect("nothing is in it");
}

/// A replica without a master: it keeps its data and refuses writes. A server in cluster mode cannot be told so.
pub(crate) fn read_only(stage: &mut Stage<Alone>, random: &mut Rng) {
    if is_hidden() {
        return;
    }
    let mut raw = stage.scene.server.raw();
    // Nobody listens on that port, so nothing is ever copied over what is there.
    say(&mut raw, &["REPLICAOF", "127.0.0.1", "1"]);
    wait(stage, random);
    say(&mut raw, &["REPLICAOF", "NO", "ONE"]);
}

/// Only renewals get errors for a while: of the server, or of a proxy, after the server has run them.
pub(crate) fn no_renewals(stage: &mut Stage<Alone>, random: &mut Rng) {
    let server = &stage.scene.server;
    let rw = script_of(server, ["rw/rwlock", "rw/read_renew"].map(str::to_owned));
    let permits = script_of(server, ["semaphore/permits", "semaphore/renew"].map(str::to_owned));
    let fault = Fault::Rewrite(if random.bool() { not_permitted } else { upstream });
    for which in [script(server, "renew"), rw, permits] {
        let rule = |proxy: &Proxy| proxy.rule(Rule::new(which.clone(), fault).times(u64::MAX));
        stage.scene.proxies.iter().for_each(rule);
    }
    wait(stage, random);
    stage.scene.proxies.iter().for_each(|proxy| proxy.calm());
}

fn not_permitted(_: &[u8]) -> Option<Vec<u8>> {
    Some(b"-NOPERM this user has no permissions to run the 'hexists' command\r\n".to_vec())
}

fn upstream(_: &[u8]) -> Option<Vec<u8>> {
    Some(b"-upstream failure\r\n".to_vec())
}

fn wait(stage: &mut Stage<Alone>, random: &mut Rng) {
    let (since, begun) = (stage.scene.requests(), Instant::now());
    // Now and then for longer than a call rides out.
    let time = if random.u32(..4) == 0 { millis(random, 3_000..=4_500) } else { millis(random, 300..=1_800) };
    stage.pause(time);
    let passed = stage.scene.requests().saturating_sub(since);
    stage.scene.refused((passed as f64 / begun.elapsed().as_secs_f64()) as u64);
}

fn say(raw: &mut Connection, words: &[&str]) {
    let _: redis::Value = get(raw, words);
}

fn get<T: FromRedisValue>(raw: &mut Connection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query(raw).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}
