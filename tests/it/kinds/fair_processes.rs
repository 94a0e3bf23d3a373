//! The fair lock among processes, by what the server itself has recorded.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    thread::{self, JoinHandle},
    time::Duration,
};

use leasehold::{Client, Owner};

use crate::support::{Server, Stopwatch, ms, plain, process::Process, until, within};

const QUEUE: &str = "redisson_lock_queue:{x}";
const PROCESSES: usize = 8;
const TASKS: usize = 8;
const TURNS: usize = 5;
/// Eight processes of this binary may need that long to start.
const START: Duration = ms(60_000);
const GRACE: Duration = ms(5_000);

fn in_line(server: &Server) -> usize {
    server.ask(&["LLEN", QUEUE])
}

/// What the server does from now on until `SET done`, as `MONITOR` tells it.
pub(super) fn record(server: &Server) -> JoinHandle<Vec<String>> {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("our own server");
    stream.write_all(b"MONITOR\r\n").expect("it listens");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("it goes on"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    thread::spawn(move || lines.take_while(|line| !line.contains("\"SET\" \"done\"")).collect())
}

/// The hold ids in calls of a command that a script makes: `.. lua] "COMMAND" "key" "id" ..`.
fn ids(record: &[String], command: &str, key: &str) -> Vec<String> {
    let start = format!("lua] \"{command}\" \"{key}\" \"");
    let id = |line: &String| Some(line.split_once(&start)?.1.split('"').next()?.to_owned());
    record.iter().filter_map(id).collect()
}

/// Not a test: what each child process does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn takes_turns() {
    let client = Client::connect(&Process::url()).await.expect("the server is there");
    let tasks = (0..TASKS).map(|_| {
        let lock = client.fair_lock("x");
        tokio::spawn(async move {
            for _ in 0..TURNS {
                lock.lock().await.expect("in turn").unlock().await.expect("ours to the end");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    client.close().await.expect("nothing is left");
}

/// All stand in line before the first has it; then they come again and again. Whoever came into the line has the lock in that order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_of_eight_tasks_have_it_in_the_order_in_which_they_came() {
    let server = Server::start();
    let record = record(&server);
    let client = plain(&server).await;
    let first = client.fair_lock("x").lock().await.expect("free");
    let mut children: Vec<_> =
        (0..PROCESSES).map(|_| Process::start("kinds::fair_processes::takes_turns", &server.url())).collect();
    until("all to stand in line", START, || in_line(&server) == PROCESSES * TASKS).await;
    first.unlock().await.expect("ours");
    until("all to have had their turns", START, || children.iter_mut().all(Process::is_done)).await;
    let _: String = server.ask(&["SET", "done", "1"]);
    let record = record.join().expect("no panic");

    let came = ids(&record, "RPUSH", QUEUE);
    let mut granted = ids(&record, "HINCRBY", "x");
    assert_eq!(granted.len(), 1 + PROCESSES * TASKS * TURNS, "one grant for each turn");
    granted.retain(|id| came.contains(id));
    assert_eq!(granted, came);
    // Each asks again as soon as it has given it back, so but for the last of all they stood in line.
    assert!(came.len() > PROCESSES * TASKS * (TURNS - 1), "{} of them waited", came.len());
    assert!(!server.exists("x") && !server.exists(QUEUE));
}

/// Not a test: a child that stands in line until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by others, in a process of its own"]
async fn waits() {
    let client = Client::connect(&Process::url()).await.expect("the server is there");
    let _guard = client.fair_lock("x").lock().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_was_killed_costs_the_next_its_grace_and_no_more() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.fair_lock("x").lock().await.expect("free");
    let mut head = Process::start("kinds::fair_processes::waits", &server.url());
    until("it to stand in line", START, || in_line(&server) == 1).await;
    let next = client.fair_lock("x").owner(&Owner::new());
    let next = tokio::spawn(async move { next.lock().await.expect("in turn") });
    until("both to stand in line", START, || in_line(&server) == 2).await;
    head.kill();
    let called = Stopwatch::start();
    guard.unlock().await.expect("ours");
    let (next, _) = within("its turn", GRACE + ms(2_000), next).await;
    let took = called.elapsed();
    println!("{:?} after the end of its grace", took.elapsed.saturating_sub(GRACE));
    assert!(took > GRACE - ms(200) && took < GRACE + ms(500), "{took}");
    next.expect("no panic").unlock().await.expect("ours");
}
