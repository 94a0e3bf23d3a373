//! Servers that send what no server of Redis sends, before and after the login, or read nothing. Alone in its binary, because it measures the
//! memory of its process, and so one test runs at a time.

#[allow(dead_code)]
#[path = "support/mod.rs"]
mod support;

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use leasehold::{Client, Error};
use serial_test::serial;
use support::ms;

const COMMAND_TIMEOUT: Duration = Duration::from_millis(500);
/// What a reply may have, in bytes, and what all else may take.
const BOUND: u64 = 4 << 20;
const MARGIN: u64 = 1 << 20;

type Attack = fn(&mut TcpStream) -> std::io::Result<()>;

const ATTACKS: [(&str, Attack); 8] = [
    ("nested deeply", |to| to.write_all("*1\r\n".repeat(20_000).as_bytes())),
    ("a text without end", |to| {
        to.write_all(b"$2000000000\r\n")?;
        flood(to, b"aaaaaaaaaaaaaaaa")
    }),
    ("two thousand million items", |to| {
        to.write_all(b"*2000000000\r\n")?;
        flood(to, b":1\r\n")
    }),
    ("a line without end", |to| {
        to.write_all(b"+")?;
        flood(to, b"aaaaaaaaaaaaaaaa")
    }),
    ("many items within the bound of a list", |to| {
        to.write_all(b"*100000\r\n")?;
        flood(to, b"$1000\r\n")
    }),
    ("replies to nothing", |to| flood(to, b"+OK\r\n")),
    ("no protocol of Redis", |to| flood(to, b"HTTP/1.1 200 OK\r\n")),
    ("half a reply, and then silence", |to| to.write_all(b"$100\r\nabc")),
];

/// For as long as somebody reads, but for no more than 256 MiB.
fn flood(to: &mut TcpStream, with: &[u8]) -> std::io::Result<()> {
    let block = with.repeat((1 << 16) / with.len());
    (0..256 << 4).try_for_each(|_| to.write_all(&block))
}

/// A server that lets the client in, or attacks before that.
fn hostile(attack: Attack, lets_in: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://:pass@127.0.0.1:{}", listener.local_addr().expect("it has one").port());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || serve(stream, attack, lets_in));
        }
    });
    url
}

fn serve(mut stream: TcpStream, attack: Attack, lets_in: bool) {
    let mut request = [0; 1 << 16];
    while let Ok(length @ 1..) = stream.read(&mut request) {
        let words = String::from_utf8_lossy(&request[..length]).to_ascii_uppercase();
        if !lets_in || words.contains("EVALSHA") {
            let _ = attack(&mut stream);
            thread::sleep(ms(5_000));
            return;
        }
        // One `OK` for each command: each begins with the number of its words.
        let commands = words.lines().filter(|line| line.starts_with('*')).count();
        if stream.write_all("+OK\r\n".repeat(commands).as_bytes()).is_err() {
            return;
        }
    }
}

/// The largest memory of this process so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line for it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

async fn fails(url: &str) -> (Error, Duration) {
    let begun = Instant::now();
    let client = Client::builder().url(url).command_timeout(COMMAND_TIMEOUT).outage_timeout(COMMAND_TIMEOUT);
    let tried = async { client.connect().await?.mutex("x").try_lock().await.map(drop) };
    let error = tried.await.expect_err("no such server grants a lock");
    (error, begun.elapsed())
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial]
async fn cost_an_error_and_no_memory() {
    let _warm = fails(&hostile(|to| to.write_all(b"x"), true)).await;
    for lets_in in [false, true] {
        for (what, attack) in ATTACKS {
            let url = hostile(attack, lets_in);
            let before = peak();
            let (error, took) = fails(&url).await;
            let grown = peak() - before;
            let told = format!("{what}, let in: {lets_in}: {error} after {took:?}, {grown} bytes");
            println!("{told}");
            assert!(error.is_unavailable(), "{told}");
            assert!(took < COMMAND_TIMEOUT * 4, "{told}");
            assert!(grown <= BOUND + MARGIN, "{told}");
        }
    }
}

/// The memory of a waiting call, its task and its name among it.
const OF_A_CALL: u64 = 12 << 10;

/// A server that stops reading. What is not written is bounded, and the other requests wait without being encoded.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[serial]
async fn that_stops_reading_costs_each_call_its_own_time() {
    let calls: u64 = std::env::var("CALLS").ok().and_then(|calls| calls.parse().ok()).unwrap_or(10_000);
    let url = hostile(|_| Ok(()), true);
    let client = Client::builder().url(&url).command_timeout(ms(2_000)).outage_timeout(ms(2_000)).connect().await;
    let client = client.expect("it is let in");
    let (before, limit) = (peak(), ms(1_000));
    let call = |n| {
        let lock = client.mutex(&format!("{n:0>900}"));
        tokio::spawn(async move {
            let begun = Instant::now();
            (lock.try_lock_for(limit).await.map(drop), begun.elapsed())
        })
    };
    let all: Vec<_> = (0..calls).map(call).collect();
    let mut longest = Duration::ZERO;
    for one in all {
        let (ended, took) = one.await.expect("no panic");
        let error = ended.expect_err("it grants nothing");
        assert!(error.is_unavailable(), "{error}");
        longest = longest.max(took);
    }
    let grown = peak() - before;
    println!("{calls} calls: the longest {longest:?}, {grown} bytes");
    // If each waited for those before it, the last one would take minutes. A busy machine takes seconds to begin them all.
    assert!(longest < limit * 10 + ms(calls / 10), "{longest:?}");
    assert!(grown < calls * OF_A_CALL + BOUND + MARGIN, "{grown} bytes");
}
