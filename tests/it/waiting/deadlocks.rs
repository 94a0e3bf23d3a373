//! Owners that wait for each other in a circle.

use std::{sync::Arc, time::Duration};

use leasehold::{Builder, Client, Error, Guard, Lock, OnDeadlock, Owner};
use tokio::{sync::Barrier, task::JoinHandle};
use tracing::Level;

use crate::support::{Server, deployment::cluster::Cluster, log::Sink, ms, process::Process, until, within};

const SLOW: Duration = ms(200);
/// Until a circle is found, on a machine that does other things, too.
const FOUND: Duration = ms(20_000);
/// So many processes of this binary may need that long to start.
const START: Duration = ms(60_000);

async fn at(url: &str, settings: impl FnOnce(Builder) -> Builder) -> Client {
    let builder = Client::builder().url(url).slow_wait(SLOW).connect_timeout(START);
    settings(builder).connect().await.expect("the server is there")
}

async fn reporting(server: &Server) -> Client {
    at(&server.url(), |builder| builder).await
}

async fn failing(server: &Server) -> Client {
    at(&server.url(), |builder| builder.on_deadlock(OnDeadlock::Fail)).await
}

/// Runs a test that looks at the log of its process.
async fn alone(test: &str) {
    let server = Server::start();
    let mut process = Process::start(&format!("waiting::deadlocks::{test}"), &server.url());
    until("its end", START, || process.is_done()).await;
}

/// A task that holds one lock, and waits for the other once all have theirs.
fn crossing(held: Lock, wanted: Lock, all: &Arc<Barrier>) -> JoinHandle<leasehold::Result<Guard>> {
    let all = Arc::clone(all);
    tokio::spawn(async move {
        let _held = held.lock().await?;
        all.wait().await;
        wanted.lock().await
    })
}

/// Tasks in a ring: each holds the lock of its client, and waits for that of the next one.
fn ring(clients: &[&Client]) -> Vec<JoinHandle<leasehold::Result<Guard>>> {
    let all = Arc::new(Barrier::new(clients.len()));
    let name = |n: usize| format!("lock-{}", n % clients.len());
    let task = |(n, client): (usize, &&Client)| crossing(client.lock(&name(n)), client.lock(&name(n + 1)), &all);
    clients.iter().enumerate().map(task).collect()
}

fn found(clients: &[&Client]) -> u64 {
    clients.iter().map(|client| client.stats().total.deadlocks).sum()
}

/// The results of all, of which one is a deadlock.
async fn one_fails(tasks: Vec<JoinHandle<leasehold::Result<Guard>>>) -> Error {
    let mut errors = Vec::new();
    for task in tasks {
        let ended = within("the end of each", FOUND, task).await.0.expect("no panic");
        errors.extend(ended.err());
    }
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors.remove(0)
}

fn is_circle_of(error: &Error, count: usize) {
    let Error::Deadlock { name, circle, .. } = error else { panic!("{error:?}") };
    assert_eq!((circle.len(), &circle[0].name), (count, name), "{error}");
    let here = std::process::id().to_string();
    assert!(circle.iter().all(|one| one.process.contains(&here)), "{error}");
    for n in 0..count {
        assert!(error.to_string().contains(&format!("waits for \"lock-{n}\"")), "{error}");
    }
}

#[tokio::test]
async fn two_tasks_of_one_client_are_reported_once_and_go_on_waiting() {
    alone("are_reported_once").await;
}

#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn are_reported_once() {
    let log = Sink::install(Level::WARN);
    let client = at(&Process::url(), |builder| builder).await;
    let tasks = ring(&[&client, &client]);
    until("it is found", FOUND, || found(&[&client]) == 1).await;
    let record = async || client.lock("lock-0").inspect().await.expect("answered").and_then(|holder| holder.client);
    let mut shown = Vec::new();
    while shown.is_empty() {
        let waits = record().await.map(|record| record.waits).unwrap_or_default();
        assert!(waits.len() <= 2 && waits.iter().all(|wait| wait.holds.len() == 1), "{waits:?}");
        shown = waits
            .into_iter()
            .find_map(|wait| Some(wait.deadlock).filter(|circle| !circle.is_empty()))
            .unwrap_or_default();
        tokio::time::sleep(SLOW / 4).await;
    }
    assert_eq!(shown.len(), 2);
    tokio::time::sleep(SLOW * 8).await;
    assert_eq!((found(&[&client]), client.stats().now.waiting), (1, 2));
    let errors = log.lines(&["ERROR"]);
    assert_eq!(errors.len(), 1, "{errors:?}");
    let (names, pid) = (["\\\"lock-0\\\"", "\\\"lock-1\\\""], std::process::id().to_string());
    assert!(names.iter().all(|name| errors[0].contains(name)) && errors[0].contains(&pid), "{errors:?}");
    tasks.iter().for_each(|task| task.abort());
    let mut waits = 1;
    while waits > 0 {
        let _held = client.lock("lock-0").lock().await.expect("free");
        waits = record().await.map_or(0, |record| record.waits.len());
        tokio::time::sleep(SLOW / 4).await;
    }
}

#[tokio::test]
async fn the_youngest_of_one_client_fails_and_the_other_goes_on() {
    let server = Server::start();
    let client = failing(&server).await;
    let (first, second, owners) = (client.lock("lock-0"), client.lock("lock-1"), [Owner::new(), Owner::new()]);
    let held = [first.clone().owner(&owners[0]).lock().await, second.clone().owner(&owners[1]).lock().await];
    let held = held.map(|guard| guard.expect("free"));
    let older = tokio::spawn(second.owner(&owners[0]).into_future());
    tokio::time::sleep(SLOW / 2).await;
    let error = within("the younger one", FOUND, first.owner(&owners[1]).lock()).await.0.expect_err("a deadlock");
    is_circle_of(&error, 2);
    assert!(!older.is_finished() && error.to_string().contains("\"lock-0\" was not acquired"), "{error}");
    let [_, held_by_younger] = held;
    held_by_younger.unlock().await.expect("still held");
    drop(within("the older one", FOUND, older).await.0.expect("no panic").expect("it goes on"));
    assert_eq!((found(&[&client]), client.stats().total.failed), (1, 1));
}

#[tokio::test]
async fn two_clients() {
    let server = Server::start();
    let (one, two) = (failing(&server).await, failing(&server).await);
    is_circle_of(&one_fails(ring(&[&one, &two])).await, 2);
    assert_eq!(found(&[&one, &two]), 1);
}

#[tokio::test]
async fn three_clients_of_which_one_has_two_owners() {
    let server = Server::start();
    let (one, two, three) = (failing(&server).await, failing(&server).await, failing(&server).await);
    is_circle_of(&one_fails(ring(&[&one, &two, &one, &three])).await, 4);
    assert_eq!(found(&[&one, &two, &three]), 1);
}

/// Not a test: a process that holds one lock and waits for another.
#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn crosses() {
    let client = at(&Process::url(), |builder| builder.on_deadlock(OnDeadlock::Fail)).await;
    let [held, wanted, end] = ["HELD", "WANTED", "END"].map(|name| std::env::var(name).expect("it is set"));
    let server = client.servers().await.expect("it is there").remove(0);
    let outer = client.lock(&held).lock().await.expect("free");
    server.command(&["INCR", "ready"]).await.expect("answered");
    while server.command(&["GET", "ready"]).await.ok().and_then(|count| count.int()) != Some(3) {
        tokio::time::sleep(ms(20)).await;
    }
    let inner = client.lock(&wanted).lock().await;
    let is_deadlock = matches!(inner, Err(Error::Deadlock { .. }));
    drop((inner, outer));
    server.command(&["INCR", if is_deadlock { &end } else { "acquired" }]).await.expect("answered");
    client.close().await.expect("all is released");
}

#[tokio::test]
async fn three_processes() {
    let server = Server::start();
    let names = ["a", "b", "c"];
    let start = |n: usize| {
        let variables = [("HELD", names[n]), ("WANTED", names[(n + 1) % 3]), ("END", "deadlocks")];
        Process::start_with("waiting::deadlocks::crosses", &server.url(), &variables)
    };
    let mut all: Vec<_> = (0..3).map(start).collect();
    until("their end", START, || all.iter_mut().all(Process::is_done)).await;
    let count = |key: &str| -> Option<u32> { server.ask(&["GET", key]) };
    assert_eq!((count("deadlocks"), count("acquired")), (Some(1), Some(2)));
}

#[tokio::test]
async fn a_reader_and_a_writer() {
    let server = Server::start();
    let (one, two) = (failing(&server).await, failing(&server).await);
    let reader = one.rw_lock("lock-0").read().await.expect("free");
    let (other, wants, all) = (two.lock("lock-1"), two.rw_lock("lock-0"), Arc::new(Barrier::new(2)));
    let ready = Arc::clone(&all);
    let writer = tokio::spawn(async move {
        let _held = other.lock().await?;
        ready.wait().await;
        wants.write().await
    });
    all.wait().await;
    let wanted = one.lock("lock-1");
    let read = wanted.lock();
    tokio::pin!(read);
    let error = tokio::select! {
        read = &mut read => read.expect_err("the writer holds it"),
        written = writer => written.expect("no panic").expect_err("the reader holds it"),
    };
    is_circle_of(&error, 2);
    drop(reader);
}

#[tokio::test]
async fn a_writer_and_a_reader_of_two_clients() {
    let server = Server::start();
    let (one, two, both) = (failing(&server).await, failing(&server).await, Arc::new(Barrier::new(2)));
    let (writes, wants, ready) = (one.rw_lock("lock-0"), one.lock("lock-1"), Arc::clone(&both));
    let writer = tokio::spawn(async move {
        let _held = writes.write().await?;
        ready.wait().await;
        wants.lock().await.map(drop)
    });
    let (holds, reads) = (two.lock("lock-1"), two.rw_lock("lock-0"));
    let reader = tokio::spawn(async move {
        let _held = holds.lock().await?;
        both.wait().await;
        reads.read().await.map(drop)
    });
    let ended = within("their end", FOUND, async { [writer.await, reader.await] }).await.0;
    let errors: Vec<_> = ended.into_iter().filter_map(|ended| ended.expect("no panic").err()).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    is_circle_of(&errors[0], 2);
}

#[cfg(feature = "blocking")]
#[test]
fn two_threads() {
    use leasehold::blocking::Client;

    let server = Server::start();
    let builder = Builder::default().url(server.url()).slow_wait(SLOW).on_deadlock(OnDeadlock::Fail);
    let client: Client = builder.connect_blocking().expect("the server is there");
    let both = std::sync::Barrier::new(2);
    let cross = |held: &str, wanted: &str| {
        let _held = client.lock(held).lock()?;
        both.wait();
        client.lock(wanted).lock().map(drop)
    };
    let ended = std::thread::scope(|threads| {
        let one = threads.spawn(|| cross("lock-0", "lock-1"));
        [cross("lock-1", "lock-0"), one.join().expect("no panic")]
    });
    let errors: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    is_circle_of(&errors[0], 2);
}

#[tokio::test]
async fn a_fair_lock_and_a_thread() {
    let server = Server::start();
    let (url, client) = (server.url(), failing(&server).await);
    let held = client.fair_lock("lock-0").lock().await.expect("free");
    let (holds, is_held) = tokio::sync::oneshot::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let client = at(&url, |builder| builder.on_deadlock(OnDeadlock::Fail)).await;
            let held = client.lock("lock-1").lock().await.expect("free");
            holds.send(()).expect("the other waits");
            let ended = client.fair_lock("lock-0").lock().await.map(drop);
            drop(held);
            client.close().await.expect("all is released"); // its runtime ends
            ended
        })
    });
    is_held.await.expect("it holds it");
    let ours = within("one of them", FOUND, client.lock("lock-1").lock()).await.0;
    drop(held);
    let theirs = tokio::task::spawn_blocking(|| thread.join().expect("no panic")).await.expect("no panic");
    let errors: Vec<_> = ours.err().into_iter().chain(theirs.err()).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    is_circle_of(&errors[0], 2);
}

#[tokio::test]
async fn in_a_cluster() {
    let cluster = Cluster::start().await;
    let failing = async || at(&cluster.url(), |builder| builder.on_deadlock(OnDeadlock::Fail)).await;
    let (one, two, three) = (failing().await, failing().await, failing().await);
    is_circle_of(&one_fails(ring(&[&one, &two, &three])).await, 3);
    assert_eq!(found(&[&one, &two, &three]), 1);
}

/// Others cannot see it, so only circles inside of it are found.
#[tokio::test]
async fn a_client_that_is_told_not_to_announce_itself() {
    let server = Server::start();
    let silent = at(&server.url(), |builder| builder.announce(false).on_deadlock(OnDeadlock::Fail)).await;
    is_circle_of(&one_fails(ring(&[&silent, &silent])).await, 2);
    let other = failing(&server).await;
    let tasks = ring(&[&silent, &other]);
    until("both wait", FOUND, || silent.stats().now.waiting + other.stats().now.waiting == 2).await;
    tokio::time::sleep(SLOW * 12).await;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    assert_eq!((found(&[&silent]), found(&[&other])), (1, 0));
}

/// Its circles are found inside of it, and no call fails.
#[tokio::test]
async fn a_user_who_may_not_write_records() {
    let server = Server::start();
    server.set_user("limited", &["on", ">p", "~lock*", "&*", "+@all"]);
    let limited = at(&server.url_as("limited", "p"), |builder| builder.on_deadlock(OnDeadlock::Fail)).await;
    is_circle_of(&one_fails(ring(&[&limited, &limited])).await, 2);
}

/// The record of a process that was killed stays for a while, as its locks do. It is no part of a circle.
#[tokio::test]
async fn a_process_that_has_died_waits_for_nothing() {
    let server = Server::start();
    let (lives, dies) = (failing(&server).await, reporting(&server).await);
    let outer = lives.lock("b").lock().await.expect("free");
    let (holds, waits, id) = (dies.lock("a"), dies.lock("b"), dies.id());
    let (says, field) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let held = holds.lock().await.expect("free");
        says.send(held.id().to_owned()).expect("the test waits");
        waits.lock().await.map(drop)
    });
    let (key, field) = (format!("leasehold:client:{id}"), field.await.expect("it holds it"));
    let text = || -> Option<String> { server.ask(&["GET", &key]) };
    until("its wait is in its record", FOUND, || text().is_some_and(|text| text.contains("&wait="))).await;
    let old = text().expect("it is there");
    task.abort();
    dies.close().await.expect("all is released");
    // As after a kill.
    let _: () = server.ask(&["SET", &key, &old]);
    let _: u32 = server.ask(&["HSET", "a", &field, "1"]);
    let wait = lives.lock("a").try_lock_for(SLOW * 15).await;
    assert!(wait.expect("no deadlock").is_none());
    assert_eq!(found(&[&lives]), 0);
    outer.unlock().await.expect("held");
}

#[tokio::test]
async fn waits_that_are_merely_long_are_none() {
    let server = Server::start();
    let (one, two) = (failing(&server).await, failing(&server).await);
    let held = one.lock("a").lock().await.expect("free");
    let waits = two.lock("a");
    let holder = two.lock("b");
    let (holds, is_held) = tokio::sync::oneshot::channel();
    let chain = tokio::spawn(async move {
        let _b = holder.lock().await.expect("free");
        holds.send(()).expect("the test waits");
        waits.lock().await.map(drop)
    });
    is_held.await.expect("it holds it");
    let last = one.lock("b").owner(&Owner::new()).into_future();
    let last = tokio::spawn(last);
    tokio::time::sleep(SLOW * 12).await;
    assert!(!chain.is_finished() && !last.is_finished());
    held.unlock().await.expect("held");
    chain.await.expect("no panic").expect("it is free");
    drop(last.await.expect("no panic").expect("it is free"));
    assert_eq!(found(&[&one, &two]), 0);
}

#[tokio::test]
async fn short_waits_and_waiters_that_hold_nothing_cost_no_command() {
    let server = Server::start();
    let (one, two) = (reporting(&server).await, reporting(&server).await);
    let held = one.lock("a").lock().await.expect("free");
    let other = two.lock("b").lock().await.expect("free");
    let key = |client: &Client| format!("leasehold:client:{}", client.id());
    until("the records", FOUND, || server.exists(&key(&one)) && server.exists(&key(&two))).await;
    let (sets, gets) = (server.calls("set"), server.calls("get"));
    let none = two.lock("a").owner(&Owner::new()).try_lock_for(SLOW * 6).await.expect("answered");
    assert!(none.is_none());
    assert!(
        two.lock("a").try_lock_for(SLOW / 2).await.expect("answered").is_none(),
        "it holds another, and waits too short"
    );
    assert_eq!((server.calls("set") - sets, server.calls("get") - gets), (0, 0));
    assert!(two.lock("a").try_lock_for(SLOW * 4).await.expect("answered").is_none());
    assert!(server.calls("set") > sets, "this one is told");
    drop((held, other));
}

/// Nothing shows that a task waits for another, so this is a hint in the log.
#[tokio::test]
async fn a_task_that_is_awaited_inside_the_lock() {
    alone("awaits_a_task").await;
}

#[tokio::test]
#[ignore = "run by others, in a process of its own"]
async fn awaits_a_task() {
    let log = Sink::install(Level::WARN);
    let client = at(&Process::url(), |builder| builder.on_deadlock(OnDeadlock::Fail)).await;
    let (outer, inner) = (client.lock("a"), client.lock("a"));
    let task = tokio::spawn(async move {
        let _held = outer.lock().await.expect("free");
        tokio::spawn(async move { inner.try_lock_for(SLOW * 8).await }).await
    });
    until("the hint", FOUND, || log.text().contains("Owner::scope")).await;
    let inner = task.await.expect("no panic").expect("no panic").expect("no error");
    assert!(inner.is_none() && found(&[&client]) == 0);
    assert!(log.lines(&["WARN"]).iter().any(|line| line.contains("still waiting") && line.contains("hint=")));
}
