//! The fault proxy does what it is told: looked at with a bare client, so that the other tests can rely on it.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Instant,
};

use redis::{Connection, RedisResult, Value};

use crate::support::{
    Server, before, ms,
    proxy::{Fault, Mode, Proxy, Rule, Schedule, Tally, Way, Which, twice, wrong_nonce},
    until,
};

fn connect(proxy: &Proxy) -> RedisResult<Connection> {
    let raw = redis::Client::open(proxy.url())?.get_connection()?;
    raw.set_read_timeout(Some(ms(300)))?;
    Ok(raw)
}

fn incr(raw: &mut Connection) -> RedisResult<u32> {
    redis::cmd("INCR").arg("n").query(raw)
}

fn on_incr(fault: Fault) -> Rule {
    Rule::new(Which::Command("INCR"), fault)
}

#[test]
fn cuts_before_and_after() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = connect(&proxy).expect("it listens");
    proxy.rule(on_incr(Fault::Cut(Way::There)).after(1).times(2));
    assert_eq!(incr(&mut raw).expect("the first passes"), 1);
    proxy.rule(on_incr(Fault::Cut(Way::Back))); // when the rule before it is used up
    for (ran, spent) in [(1, false), (1, false), (2, true)] {
        incr(&mut connect(&proxy).expect("it listens")).expect_err("cut");
        assert_eq!((server.ask::<u32>(&["GET", "n"]), proxy.is_spent()), (ran, spent));
    }
    assert_eq!(incr(&mut connect(&proxy).expect("it listens")).expect("all rules are used up"), 3);
    let tally = proxy.tally();
    assert_eq!((tally.cut_there, tally.cut_back), (2, 1));
}

/// Two requests are under way, and the first cut ends the connection of both. The second cut is for another connection.
#[test]
fn each_cut_of_a_reply_ends_a_connection_of_its_own() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = connect(&proxy).expect("it listens");
    proxy.rule(on_incr(Fault::Cut(Way::Back)).times(2));
    let mut both = redis::pipe();
    both.cmd("INCR").arg("n").cmd("INCR").arg("n");
    both.query::<Vec<u32>>(&mut raw).expect_err("cut");
    assert!(!proxy.is_spent(), "{:?}", proxy.tally());
    incr(&mut connect(&proxy).expect("it listens")).expect_err("cut");
    assert!(proxy.is_spent() && proxy.tally().cut_back == 2, "{:?}", proxy.tally());
    assert_eq!(incr(&mut connect(&proxy).expect("it listens")).expect("all rules are used up"), 4);
}

#[test]
fn calms_down() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = connect(&proxy).expect("it listens");
    proxy.rule(Rule::new(Which::Any, Fault::Cut(Way::There)).times(u64::MAX));
    proxy.schedule(Schedule { seed: 1, which: Which::Any, chances: vec![(1.0, Fault::Cut(Way::There))] });
    incr(&mut raw).expect_err("cut");
    proxy.calm();
    assert_eq!(incr(&mut connect(&proxy).expect("it listens")).expect("all is well"), 1);
}

#[test]
fn aims_at_one_script() {
    let server = Server::start();
    let proxy = before(&server);
    let [one, two] = ["return 1", "return 2"].map(|source| server.ask::<String>(&["SCRIPT", "LOAD", source]));
    proxy.rule(Rule::new(Which::Script(two.clone()), Fault::Cut(Way::There)));
    let mut raw = connect(&proxy).expect("it listens");
    let mut run = |sha: &str| redis::cmd("EVALSHA").arg(sha).arg(0).query::<u32>(&mut raw);
    assert_eq!(run(&one).expect("not meant"), 1);
    run(&two).expect_err("cut");
}

#[test]
fn swallows_with_the_socket_open() {
    let server = Server::start();
    let proxy = before(&server);
    for (way, ran) in [(Way::There, 0), (Way::Back, 1)] {
        let mut raw = connect(&proxy).expect("it listens");
        proxy.rule(on_incr(Fault::Swallow(way)));
        assert!(incr(&mut raw).expect_err("no answer").is_timeout());
        assert_eq!(server.ask::<Option<u32>>(&["GET", "n"]).unwrap_or(0), ran);
    }
    let mut raw = connect(&proxy).expect("it listens");
    proxy.set(Mode::Swallow);
    assert!(incr(&mut raw).expect_err("no answer").is_timeout());
    proxy.set(Mode::Pass);
    assert!(incr(&mut raw).expect_err("this connection stays silent").is_timeout());
    assert_eq!(incr(&mut connect(&proxy).expect("it listens")).expect("a new one does not"), 2);
}

#[test]
fn delays_one_direction() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = connect(&proxy).expect("it listens");
    for way in [Way::There, Way::Back] {
        proxy.rule(on_incr(Fault::Delay(way, ms(100))));
        let started = Instant::now();
        incr(&mut raw).expect("late, but there");
        assert!(started.elapsed() >= ms(100), "{:?}", started.elapsed());
    }
}

#[test]
fn delivers_in_pieces() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = TcpStream::connect(proxy.address()).expect("it listens");
    proxy.rule(Rule::new(Which::Command("PING"), Fault::Trickle(Way::Back, 2)));
    let echo = format!("$100\r\n{}\r\n", "x".repeat(100)).into_bytes();
    raw.write_all(b"*2\r\n$4\r\nPING\r\n").and_then(|()| raw.write_all(&echo)).expect("it reads");
    let (mut reply, mut reads) = (Vec::<u8>::new(), 0);
    while reply.len() < echo.len() {
        let mut piece = [0; 1_000];
        let length = raw.read(&mut piece).expect("it answers");
        reply.extend(&piece[..length]);
        reads += 1;
    }
    assert_eq!(reply, echo);
    assert!(reads > 5, "in {reads} pieces"); // of 54 sent: a busy reader finds several at once
}

#[tokio::test]
async fn stops_reading_until_the_socket_is_full_and_delivers_late() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = TcpStream::connect(proxy.address()).expect("it listens");
    until("the connection", ms(1_000), || proxy.tally().connections == 1).await;
    proxy.set(Mode::Stall);
    raw.set_write_timeout(Some(ms(200))).expect("a good time");
    let set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$10000\r\n{}\r\n", "x".repeat(10_000)).into_bytes();
    let mut written = 0;
    let full = loop {
        match raw.write(&set[written % set.len()..]) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
        assert!(written < 1_000_000_000, "it is never full");
    };
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(server.calls("set"), 0, "nothing has arrived");
    proxy.set(Mode::Pass);
    let arrived = || usize::try_from(server.calls("set"));
    until("all to arrive", ms(10_000), || arrived() == Ok(written / set.len())).await;
}

#[test]
fn refuses_and_accepts_again() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = connect(&proxy).expect("it listens");
    proxy.refuse();
    // Another program may try the port for a moment.
    let refused = (0..100).find_map(|_| TcpStream::connect(proxy.address()).err()).expect("refused");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    incr(&mut raw).expect("those there are stay");
    proxy.cut_all();
    incr(&mut raw).expect_err("cut");
    proxy.accept();
    incr(&mut connect(&proxy).expect("the same port")).expect("all is well");
}

#[test]
fn rewrites_replies() {
    let server = Server::start();
    let proxy = before(&server);
    let sha: String = server.ask(&["SCRIPT", "LOAD", "return ARGV[1] .. ' kept'"]);
    let mut raw = connect(&proxy).expect("it listens");
    let mut run = |nonce: u64| -> u64 {
        let reply: String = redis::cmd("EVALSHA").arg(&sha).arg(0).arg(nonce).query(&mut raw).expect("a whole reply");
        let (nonce, rest) = reply.split_once(' ').expect("two words");
        assert_eq!(rest, "kept");
        nonce.parse().expect("a number")
    };
    proxy.rule(Rule::new(Which::Script(sha.clone()), Fault::Rewrite(wrong_nonce)).times(2));
    assert_eq!((run(17), run(20), run(20)), (27, 30, 20));
    proxy.rule(Rule::new(Which::Script(sha.clone()), Fault::Rewrite(twice)));
    assert_eq!((run(1), run(2), run(3)), (1, 1, 2), "shifted by one");
    assert_eq!(wrong_nonce(b"-NOSCRIPT no\r\n"), None);
    assert_eq!(wrong_nonce(b":1\r\n"), None);
}

fn read(raw: &mut TcpStream, length: usize) -> std::io::Result<Vec<u8>> {
    let mut reply = vec![0; length];
    raw.read_exact(&mut reply).map(|()| reply)
}

#[tokio::test]
async fn published_messages_are_no_replies() {
    let server = Server::start();
    let proxy = before(&server);
    let mut raw = TcpStream::connect(proxy.address()).expect("it listens");
    raw.set_read_timeout(Some(ms(2_000))).expect("a good time");
    raw.write_all(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n").expect("it reads");
    assert!(read(&mut raw, 30).expect("the subscription").ends_with(b":1\r\n"));
    // Published while the first of two requests is on its way; the reply of the second is cut off.
    let on_ping = |fault| Rule::new(Which::Command("PING"), fault);
    proxy.rule(on_ping(Fault::Delay(Way::There, ms(300))));
    proxy.rule(on_ping(Fault::Cut(Way::Back)));
    raw.write_all(&b"*1\r\n$4\r\nPING\r\n".repeat(2)).expect("it reads");
    until("the first to be held back", ms(300), || proxy.tally().delayed == 1).await;
    let _: u32 = server.ask(&["PUBLISH", "c", "x"]);
    assert!(read(&mut raw, 31).expect("the message").ends_with(b"$1\r\nx\r\n"));
    assert!(read(&mut raw, 20).expect("the first reply").ends_with(b"pong\r\n$0\r\n\r\n"));
    read(&mut raw, 1).expect_err("cut");
}

/// What becomes of 200 requests, one connection after the other.
fn outcomes(server: &Server, seed: u64) -> (Vec<bool>, Tally) {
    let proxy = before(server);
    let chances =
        vec![(0.1, Fault::Cut(Way::There)), (0.1, Fault::Cut(Way::Back)), (0.3, Fault::Trickle(Way::Back, 99))];
    proxy.schedule(Schedule { seed, which: Which::Command("INCR"), chances });
    let mut raw = connect(&proxy).expect("it listens");
    let outcomes = (0..200).map(|_| {
        let is_good = incr(&mut raw).is_ok();
        if !is_good {
            raw = connect(&proxy).expect("it listens");
        }
        is_good
    });
    let outcomes: Vec<_> = outcomes.collect();
    // Whether the last connection is counted yet is chance.
    (outcomes, Tally { connections: 0, requests: 0, ..proxy.tally() })
}

#[test]
fn random_faults_are_the_same_for_one_seed() {
    let server = Server::start();
    let (first, tally) = outcomes(&server, 7);
    assert_eq!((first.clone(), tally), outcomes(&server, 7));
    assert_ne!(first, outcomes(&server, 8).0);
    let cuts = tally.cut_there + tally.cut_back;
    assert_eq!(first.iter().filter(|good| !**good).count() as u64, cuts);
    for (count, expected) in [(tally.cut_there, 20), (tally.cut_back, 20), (tally.in_pieces, 60)] {
        assert!((expected / 2..expected * 2).contains(&count), "{tally:?}");
    }
    assert!(server.ask::<Value>(&["GET", "n"]) != Value::Nil);
}
