//! Leaders that are killed, and a job that a fleet of processes with wrong clocks runs once per period.

use std::{
    env,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use leasehold::{Client, Guard, Once};

use crate::{
    kinds::fair_processes::record,
    support::{Server, Stopwatch, client, clock::Clock, ms, plain, process::Process, until, within},
};

const LEASE: Duration = ms(1_500);
/// So many processes of this binary may need that long to start.
const START: Duration = ms(90_000);
/// How late a candidate may be on an idle machine.
const LATE: Duration = ms(300);

const FLEET: u32 = 40;
const PERIODS: usize = 20;
/// So long that forty processes on two cores, beside other tests, have their turn within one.
const PERIOD: Duration = ms(1_000);
/// The server rounds a lease to milliseconds, and records a grant a little later than it counts from.
const GRAIN: Duration = ms(20);

/// How far its clock is ahead, in seconds.
const SHIFT: &str = "LEASEHOLD_TEST_CLOCK_SHIFT";

/// Not a test: a child that leads until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn leads() {
    let client = Client::builder().url(Process::url()).watchdog(LEASE).connect_timeout(START).connect();
    let client = client.await.expect("the server is there");
    let leader = client.leader("x");
    leader.run(async |_: &Guard| std::future::pending::<()>().await).await.expect("it leads until it is killed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_within_its_lease() {
    let server = Server::start();
    let next = client(&server, |builder| builder.watchdog(LEASE)).await;
    for _ in 0..3 {
        let mut leader = Process::start("kinds::leader_processes::leads", &server.url());
        until("it to lead", START, || server.exists("x")).await;
        let campaign = tokio::spawn(next.leader("x").run(async |_: &Guard| ()));
        until("the next one to wait", ms(5_000), || next.stats().now.waiting == 1).await;
        leader.kill();
        let (watch, left) = (Stopwatch::start(), server.pttl("x"));
        let left = Duration::from_millis(left.try_into().expect("the leader's lease"));
        within("the next leader", LEASE + LATE, campaign).await.0.expect("no panic").expect("done");
        let took = watch.elapsed();
        println!("{left:?} of the lease were left, and the next one led after {took}");
        assert!(took < left + LATE && took > left.saturating_sub(ms(5)), "{took} instead of {left:?}");
    }
}

/// The number of this many processes: from 20 minutes behind to 19 ahead.
fn shift_of(process: u32) -> i64 {
    (i64::from(process) - i64::from(FLEET) / 2) * 60
}

/// By how many seconds the wall clock of this process is ahead of the server's.
fn ahead(raw: &mut redis::Connection) -> i64 {
    let (theirs, _): (i64, i64) = redis::cmd("TIME").query(raw).expect("answered");
    let ours = SystemTime::now().duration_since(UNIX_EPOCH).expect("later than 1970").as_secs();
    i64::try_from(ours).expect("no centuries") - theirs
}

/// Not a test: one process of the fleet. The job writes the number of the process into a list.
#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn runs_the_job() {
    let raw = redis::Client::open(Process::url()).and_then(|client| client.get_connection());
    let mut raw = raw.expect("the server is there");
    let shift: i64 = env::var(SHIFT).expect("started by another test").parse().expect("a number");
    let is_wrong = (ahead(&mut raw) - shift).abs() <= 5;
    assert!(is_wrong, "its clock is {} s ahead, not {shift} s", ahead(&mut raw));
    let client = Client::builder().url(Process::url()).connect_timeout(START).connect().await;
    let client = client.expect("the server is there");
    let job = client.mutex("job");
    while !redis::cmd("EXISTS").arg("over").query::<bool>(&mut raw).expect("answered") {
        let work = async || {
            let _: u32 = redis::cmd("RPUSH").arg("runs").arg(shift).query(&mut raw).expect("answered");
        };
        match job.run_once_per(PERIOD, work).await {
            Ok(Once::AlreadyRan { next_in }) => {
                assert!(next_in <= PERIOD, "{next_in:?}");
                tokio::time::sleep(next_in).await;
            }
            Ok(_) => {}
            Err(error) => assert!(error.is_unavailable(), "{error}"), // a machine that stands still for seconds
        }
    }
    client.close().await.expect("nothing is left");
}

/// When the job's lock was granted, by the clock of the server. Released within its `min_hold` it rests under another field.
fn grants(record: &[String]) -> Vec<f64> {
    let is_grant = |line: &&String| line.contains(r#"lua] "HINCRBY" "job" "#) && line.ends_with(r#"" "1""#);
    let grants = record.iter().filter(is_grant).filter(|line| !line.contains(r#":rest" "#));
    let time = |line: &String| line.trim_start_matches('+').split(' ').next().and_then(|time| time.parse().ok());
    grants.map(|line| time(line).unwrap_or_else(|| panic!("no time: {line}"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly"]
async fn forty_processes_with_wrong_clocks_run_a_job_once_in_each_of_twenty_periods() {
    let server = Server::start();
    let clocks: Vec<_> = (0..FLEET).map(|process| Clock::new(shift_of(process))).collect();
    let client = plain(&server).await;
    let first = client.mutex("job").lock().await.expect("free");
    let mut fleet: Vec<_> = (0..FLEET)
        .map(|process| {
            let (shift, [library, seconds]) = (shift_of(process).to_string(), clocks[process as usize].environment());
            let more = [(SHIFT, shift.as_str()), (&library.0, &library.1), (&seconds.0, &seconds.1)];
            Process::start_with("kinds::leader_processes::runs_the_job", &server.url(), &more)
        })
        .collect();
    // Each has a connection of its own beside its client's.
    let connected = || server.ask::<String>(&["CLIENT", "LIST"]).lines().count() >= 2 * FLEET as usize;
    until("all to be connected", START, connected).await;
    let record = record(&server);
    first.unlock().await.expect("held to the end");
    let runs = || server.ask::<usize>(&["LLEN", "runs"]);
    until("the periods to pass", 2 * PERIOD * (PERIODS as u32 + 1), || runs() > PERIODS).await;
    let _: String = server.ask(&["SET", "over", "1"]);
    let _: String = server.ask(&["SET", "done", "1"]);
    until("the fleet to end", START, || fleet.iter_mut().all(Process::is_done)).await;

    let grants = grants(&record.join().expect("no panic"));
    let periods: Vec<_> = grants.windows(2).map(|pair| Duration::from_secs_f64(pair[1] - pair[0])).collect();
    println!("between the runs: {periods:?}");
    assert!(periods.len() >= PERIODS, "{} periods", periods.len());
    for period in &periods {
        assert!(*period > PERIOD - GRAIN, "two runs within one period: {period:?}");
        assert!(*period < 2 * PERIOD, "no run in a period: {period:?}");
    }
    let by: Vec<i64> = server.ask(&["LRANGE", "runs", "0", "-1"]);
    println!("run by the processes whose clocks are ahead by: {by:?} s");
    assert!(by.len() >= grants.len(), "{} runs", by.len());
}
