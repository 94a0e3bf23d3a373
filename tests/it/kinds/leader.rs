//! A leader at a time, and a job that runs once per period.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use leasehold::{Error, Once};
use tokio::sync::mpsc;

use crate::support::{Server, client, ms, plain, until, within};

#[tokio::test]
async fn the_next_candidate_leads_when_the_leader_is_done() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let (begun, mut leads) = mpsc::unbounded_channel();
    let candidates = [(1, one), (2, two)].map(|(number, client)| {
        let begun = begun.clone();
        let work = async move |_: &leasehold::Guard| {
            begun.send(number).expect("the test listens");
            tokio::time::sleep(ms(20)).await;
            number
        };
        tokio::spawn(async move { client.leader("x").run(work).await })
    });
    for candidate in candidates {
        within("both to have led", ms(5_000), candidate).await.0.expect("no panic").expect("done");
    }
    let mut order = vec![leads.recv().await, leads.recv().await];
    order.sort_unstable();
    assert_eq!(order, [Some(1), Some(2)]);
}

#[tokio::test]
async fn lost_leadership_stops_the_work_and_it_begins_anew() {
    let server = Server::start();
    let one = client(&server, |builder| builder.watchdog(ms(600))).await;
    let (begun, mut leads) = mpsc::unbounded_channel();
    let times = Arc::new(AtomicU32::new(0));
    let running = Arc::clone(&times);
    let campaign = tokio::spawn(one.leader("x").run(async move |_: &leasehold::Guard| {
        begun.send(()).expect("the test listens");
        if running.fetch_add(1, Ordering::SeqCst) == 0 {
            std::future::pending::<()>().await;
        }
    }));
    leads.recv().await.expect("it leads");
    let _: u32 = server.ask(&["DEL", "x"]);
    within("the campaign", ms(5_000), campaign).await.0.expect("no panic").expect("done the second time");
    assert_eq!(times.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_leader_that_shuts_down_hands_over_at_once() {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    let (begun, mut leads) = mpsc::unbounded_channel();
    let leader = one.leader("x");
    let first = tokio::spawn(leader.run(async move |_: &leasehold::Guard| {
        begun.send(()).expect("the test listens");
        std::future::pending::<()>().await;
    }));
    leads.recv().await.expect("it leads");
    let next = tokio::spawn(async move { two.leader("x").run(async |_| ()).await });
    let started = Instant::now();
    one.shutdown(ms(10_000)).await.expect("released");
    within("the next leader", ms(5_000), next).await.0.expect("no panic").expect("done");
    assert!(started.elapsed() < ms(5_000), "it waited for the grace: {:?}", started.elapsed());
    assert!(matches!(first.await.expect("no panic"), Err(Error::Closed)));
}

#[tokio::test]
async fn a_leader_that_shuts_down_ends_at_once_although_the_server_is_frozen() {
    let server = Server::start();
    let client = plain(&server).await;
    let (begun, mut leads) = mpsc::unbounded_channel();
    let leader = client.leader("x").run(async move |_: &leasehold::Guard| {
        begun.send(()).expect("the test listens");
        std::future::pending::<()>().await;
    });
    let leader = tokio::spawn(leader);
    leads.recv().await.expect("it leads");
    server.freeze();
    let closing = tokio::spawn(client.shutdown(ms(1_000)));
    let (ended, _) = within("the leader to end", ms(700), leader).await;
    assert!(matches!(ended.expect("no panic"), Err(Error::Closed)));
    server.thaw();
    closing.await.expect("no panic").expect("released");
}

#[tokio::test]
async fn a_killed_leaders_lease_is_all_that_the_next_waits_for() {
    let server = Server::start();
    let _: u32 = server.ask(&["HINCRBY", "x", "dead:1", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "x", "500"]);
    let one = plain(&server).await;
    let leader = one.leader("x");
    let ((), took) =
        within("the next leader", ms(5_000), async { leader.run(async |_| ()).await.expect("done") }).await;
    assert!(took < ms(2_500), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_runs_the_job_in_each_period() {
    const PERIOD: Duration = ms(300);
    let server = Server::start();
    let runs = Arc::new(std::sync::Mutex::new(Vec::new()));
    let clients = [plain(&server).await, plain(&server).await, plain(&server).await];
    let end = Instant::now() + 6 * PERIOD;
    let workers = clients.map(|client| {
        let runs = Arc::clone(&runs);
        tokio::spawn(async move {
            while Instant::now() < end {
                let job = async || runs.lock().expect("no panic").push(Instant::now());
                match client.mutex("job").run_once_per(PERIOD, job).await.expect("answered") {
                    Once::AlreadyRan { next_in } => {
                        assert!(next_in <= PERIOD + ms(5), "{next_in:?}");
                        tokio::time::sleep(next_in).await;
                    }
                    Once::Ran(()) => {}
                    _ => unreachable!("no other outcome yet"),
                }
            }
        })
    });
    for worker in workers {
        worker.await.expect("no panic");
    }
    let runs = runs.lock().expect("no panic");
    assert!(runs.len() >= 3, "{}", runs.len());
    for pair in runs.windows(2) {
        assert!(pair[1] - pair[0] > PERIOD - ms(100), "twice in one period: {:?}", pair[1] - pair[0]);
    }
}

#[tokio::test]
async fn a_period_shorter_than_the_work_is_as_long_as_the_work() {
    let server = Server::start();
    let client = plain(&server).await;
    let job = client.mutex("job");
    let ran = job.run_once_per(ms(50), async || tokio::time::sleep(ms(150)).await).await.expect("answered");
    assert_eq!(ran, Once::Ran(()));
    let again = within("the next period", ms(3_000), job.run_once_per(ms(50), async || 7)).await.0;
    assert_eq!(again.expect("answered"), Once::Ran(7));
}

#[tokio::test]
async fn one_task_does_not_run_the_job_twice_in_a_period() {
    let server = Server::start();
    let client = plain(&server).await;
    let job = client.lock("job"); // reentrant for all else
    let work = async || tokio::time::sleep(ms(50)).await;
    let (one, two) = tokio::join!(job.run_once_per(ms(5_000), work), job.run_once_per(ms(5_000), work));
    let ran = [one, two].map(|done| matches!(done.expect("answered"), Once::Ran(())));
    assert!(ran[0] != ran[1], "{ran:?}");
}

/// The client believes that one of its tasks holds the lock. Its key is gone.
#[tokio::test]
async fn a_job_whose_lock_was_deleted_runs_again_soon() {
    let server = Server::start();
    let client = plain(&server).await;
    let job = client.mutex("job");
    let first = tokio::spawn({
        let job = job.clone();
        async move { job.run_once_per(ms(60_000), async || tokio::time::sleep(ms(60_000)).await).await }
    });
    until("the job to run", ms(5_000), || server.exists("job")).await;
    until("the job to be held", ms(5_000), || client.stats().now.holds == 1).await;
    let _: u32 = server.ask(&["DEL", "job"]);
    let before = server.calls("evalsha");
    let (again, _) = within("the next run", ms(2_000), job.run_once_per(ms(60_000), async || 7)).await;
    assert_eq!(again.expect("answered"), Once::Ran(7));
    let calls = server.calls("evalsha") - before;
    assert!(calls < 30, "{calls}");
    assert!(matches!(first.await.expect("no panic"), Err(Error::Lost { .. })));
}
