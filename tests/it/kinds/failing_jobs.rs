//! Jobs that run once per period, and may fail.

use std::{
    future::pending,
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use leasehold::{Client, Error, Lost, Once};

use crate::support::{Server, client, ms, plain, process::Process, until, within};

const FLEET: u32 = 40;
const FAILURES: u32 = 3;
/// So long that forty processes on two cores, beside other tests, have their turn within one.
const PERIOD: Duration = ms(6_000);
/// The server rounds a lease to milliseconds.
const GRAIN: Duration = ms(20);
/// So many processes of this binary may need that long to start.
const START: Duration = ms(90_000);

#[tokio::test]
async fn only_a_success_uses_up_the_period() {
    let server = Server::start();
    let [one, other] = [plain(&server).await, plain(&server).await].map(|client| client.mutex("job"));
    let failed = one.try_run_once_per(ms(60_000), async || Err::<(), _>("first")).await.expect("free");
    assert_eq!(failed, Once::Ran(Err("first")));
    until("its release", ms(2_000), || !server.exists("job")).await;
    let done = other.try_run_once_per(ms(60_000), async || Ok::<_, &str>(7)).await.expect("free");
    assert_eq!(done, Once::Ran(Ok(7)));
    let left = server.pttl("job");
    assert!((55_000..=60_000).contains(&left), "{left}");
    let late = one.try_run_once_per(ms(60_000), async || Ok::<_, &str>(8)).await.expect("answered");
    let Once::AlreadyRan { next_in } = late else { panic!("{late:?}") };
    assert!(next_in <= ms(60_000) && next_in > ms(50_000), "{next_in:?}");
}

/// The period counts from the start of the job.
#[tokio::test]
async fn a_job_that_takes_longer_than_its_period() {
    let server = Server::start();
    let job = plain(&server).await.mutex("job");
    let long = async || {
        tokio::time::sleep(ms(150)).await;
        Ok::<_, ()>(())
    };
    assert_eq!(job.try_run_once_per(ms(50), long).await.expect("free"), Once::Ran(Ok(())));
    assert_eq!(job.try_run_once_per(ms(50), async || Ok::<_, ()>(1)).await.expect("free"), Once::Ran(Ok(1)));
}

#[tokio::test]
async fn a_job_that_is_dropped_or_panics_is_left_to_the_next() {
    let server = Server::start();
    let job = plain(&server).await.mutex("job");
    let endless = job.try_run_once_per(ms(60_000), async || pending::<Result<(), ()>>().await);
    assert!(tokio::time::timeout(ms(200), endless).await.is_err());
    until("its release", ms(2_000), || !server.exists("job")).await;
    let panics = job.try_run_once_per(ms(60_000), async || -> Result<(), ()> { panic!("on purpose") });
    assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
    until("its release", ms(2_000), || !server.exists("job")).await;
    assert_eq!(job.try_run_once_per(ms(60_000), async || Ok::<_, ()>(1)).await.expect("free"), Once::Ran(Ok(1)));
}

#[tokio::test]
async fn a_lock_that_is_lost_stops_the_job() {
    let server = Server::start();
    let one = client(&server, |builder| builder.watchdog(ms(900))).await;
    let job = one.mutex("job");
    let running =
        tokio::spawn(async move { job.try_run_once_per(ms(60_000), async || pending::<Result<(), ()>>().await).await });
    until("it to run", ms(2_000), || server.exists("job")).await;
    let _: u32 = server.ask(&["DEL", "job"]);
    let told = within("the loss", ms(3_000), running).await.0.expect("no panic");
    assert!(matches!(told, Err(Error::Lost { reason: Lost::Removed, .. })), "{told:?}");
    assert!(!server.exists("job"));
}

/// `max_hold` limits each try, and not the period after a success.
#[tokio::test]
async fn a_job_that_hangs_is_left_to_the_next_after_its_max_hold() {
    let server = Server::start();
    let [one, other] = [plain(&server).await, plain(&server).await].map(|client| client.mutex("job").max_hold(ms(300)));
    let told = one.try_run_once_per(ms(60_000), async || pending::<Result<(), ()>>().await).await;
    assert!(matches!(told, Err(Error::Lost { reason: Lost::MaxHold, .. })), "{told:?}");
    until("its release", ms(2_000), || !server.exists("job")).await;
    assert_eq!(other.try_run_once_per(ms(60_000), async || Ok::<_, ()>(1)).await.expect("free"), Once::Ran(Ok(1)));
    let left = server.pttl("job");
    assert!((55_000..=60_000).contains(&left), "{left}");
}

/// The work is done, and nobody can say so to the server.
#[tokio::test]
async fn a_success_that_the_server_does_not_confirm_is_left_to_the_next() {
    let server = Server::start();
    let [one, other] = [client(&server, |builder| builder.watchdog(ms(900))).await, plain(&server).await];
    let [job, again] = [&one, &other].map(|client| client.mutex("job"));
    let work = async || {
        server.freeze();
        Ok::<_, ()>(1)
    };
    let done = within("the end", ms(5_000), job.try_run_once_per(ms(60_000), work)).await.0;
    assert_eq!(done.expect("the work is done"), Once::Ran(Ok(1)));
    server.thaw();
    until("the end of its lease", ms(5_000), || !server.exists("job")).await;
    assert_eq!(again.try_run_once_per(ms(60_000), async || Ok::<_, ()>(2)).await.expect("free"), Once::Ran(Ok(2)));
}

/// Not a test: one process of the fleet. The job writes its time into a list, and that of its call into another. It fails a few times.
#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn tries() {
    let raw = redis::Client::open(Process::url()).and_then(|client| client.get_connection());
    let mut raw = raw.expect("the server is there");
    let client = Client::builder().url(Process::url()).announce(false).connect_timeout(START).connect().await;
    let job = client.as_ref().expect("the server is there").mutex("job");
    while !redis::cmd("EXISTS").arg("over").query::<bool>(&mut raw).expect("answered") {
        let called = Instant::now();
        let work = async || {
            let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut raw).expect("answered");
            let time = seconds * 1_000 + micros / 1_000;
            let call = Duration::from_millis(time).saturating_sub(called.elapsed()).as_millis() as u64;
            let _: u32 = redis::cmd("RPUSH").arg("calls").arg(call).query(&mut raw).expect("answered");
            let runs: u32 = redis::cmd("RPUSH").arg("runs").arg(time).query(&mut raw).expect("answered");
            if runs <= FAILURES { Err(()) } else { Ok(()) }
        };
        match job.try_run_once_per(PERIOD, work).await {
            Ok(Once::AlreadyRan { next_in }) => tokio::time::sleep(next_in.min(ms(500))).await,
            Ok(_) => tokio::time::sleep(ms(50)).await,
            Err(error) => assert!(error.is_unavailable(), "{error}"), // a machine that stands still for seconds
        }
    }
    client.expect("it is there").close().await.expect("nothing is left");
}

#[tokio::test]
async fn forty_processes_run_a_job_until_it_succeeds_once_and_once_more_in_the_next_period() {
    let server = Server::start();
    let mut fleet: Vec<_> = (0..FLEET).map(|_| Process::start("kinds::failing_jobs::tries", &server.url())).collect();
    let list = |name| server.ask::<Vec<u64>>(&["LRANGE", name, "0", "-1"]);
    let runs = || list("runs");
    until("a run of the next period", START, || runs().len() > FAILURES as usize + 1).await;
    let _: String = server.ask(&["SET", "over", "1"]);
    until("the fleet to end", START, || fleet.iter_mut().all(Process::is_done)).await;
    let runs = runs();
    assert_eq!(runs.len(), FAILURES as usize + 2, "once in each period: {runs:?}");
    // The period counts from the start of the job: after its call, and before the time that the job has read.
    let first = FAILURES as usize;
    let [most, least] = [list("calls"), runs.clone()].map(|from| Duration::from_millis(runs[first + 1] - from[first]));
    assert!(most > PERIOD - GRAIN && least < 2 * PERIOD, "{most:?}, {least:?}");
}
