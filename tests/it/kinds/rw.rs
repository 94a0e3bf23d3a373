//! The read-write lock: many readers or one writer.

use std::time::Duration;

use leasehold::{Builder, Client, Error, Lost, Owner, ReadGuard, RwLock, RwState};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    kinds::family::{clean, counted, idle},
    support::{
        Server, Stopwatch, before, behind, client, ms, plain,
        proxy::{Fault, Mode, Rule, Way, Which},
        until, within,
    },
};

const SOON: Duration = ms(2_000);
const MARK: &str = "leasehold_rwlock_waits:{x}";

/// For somebody else each time.
fn lock(client: &Client) -> RwLock {
    client.rw_lock("x").owner(&Owner::new())
}

fn reads(client: &Client) -> JoinHandle<ReadGuard> {
    let lock = lock(client);
    tokio::spawn(async move { lock.read().await.expect("in the end") })
}

async fn two_clients() -> (Server, Client, Client) {
    let server = Server::start();
    let (one, two) = (plain(&server).await, plain(&server).await);
    (server, one, two)
}

#[tokio::test]
async fn many_readers_or_one_writer() {
    let (server, one, two) = two_clients().await;
    let readers = [lock(&one).read().await, lock(&one).read().await, lock(&two).read().await];
    let readers = readers.map(|reader| reader.expect("they share it"));
    assert_eq!(server.ask::<String>(&["HGET", "x", "mode"]), "read");
    assert!(lock(&one).try_write().await.expect("answered").is_none());
    assert!(!server.exists(MARK), "one attempt leaves no mark");
    for reader in readers {
        assert!(lock(&two).try_write().await.expect("answered").is_none());
        reader.unlock().await.expect("ours");
    }
    let writer = lock(&two).try_write().await.expect("answered").expect("free");
    assert!(writer.id().ends_with(":write"), "{}", writer.id());
    assert!(lock(&two).try_read().await.expect("answered").is_none());
    assert!(lock(&one).try_write().await.expect("answered").is_none());
    writer.unlock().await.expect("ours");
    clean(&server, &two).await;
}

/// One that is granted lets all others in at once, whatever their number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_in_line_go_together() {
    let (server, one, two) = two_clients().await;
    for writer in [&one, &two] {
        let guard = lock(writer).write().await.expect("free");
        let waiting: Vec<_> = (0..100).map(|_| reads(&one)).collect();
        until("them to wait", SOON, || one.stats().now.waiting == 100).await;
        let asks = !std::ptr::eq(writer, &one); // behind a writer of their own client they send no request
        until("one to ask", SOON, || !asks || !server.channels().is_empty()).await;
        guard.unlock().await.expect("ours");
        let mut held = Vec::new();
        let started = Stopwatch::start();
        for waiting in waiting {
            held.push(within("its turn", SOON, waiting).await.0.expect("no panic"));
        }
        assert!(started.elapsed() < ms(1_000), "{:?}", started.elapsed());
        assert_eq!(held.iter().filter(|guard| guard.is_lost()).count(), 0);
        assert!(lock(&two).try_write().await.expect("answered").is_none());
        drop(held);
        clean(&server, &one).await;
    }
    clean(&server, &two).await;
}

/// Four readers that never leave a gap, and a writer in another client and in the same one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_writer_is_not_starved() {
    let (server, one, two) = two_clients().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let readers: Vec<_> = (0..4_u64)
        .map(|n| {
            let (client, stop) = (one.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    let guard = lock(&client).read().await.expect("in the end");
                    tokio::time::sleep(ms(20 + n * 3)).await; // the work: they overlap
                    guard.unlock().await.expect("ours");
                }
            })
        })
        .collect();
    until("them to read", SOON, || server.exists("x")).await;
    for writer in [&one, &two, &one, &two] {
        let (guard, took) = within("its turn", SOON, lock(writer).write()).await;
        assert!(took < ms(500), "{took:?}");
        guard.expect("granted").unlock().await.expect("ours");
    }
    stop.cancel();
    for reader in readers {
        within("its end", SOON, reader).await.0.expect("no panic");
    }
    idle(&one).await;
    clean(&server, &two).await;
}

/// How many turns of writers a reader may see. It claims the next turn when its fourth request is refused. While one of its requests is on
/// its way, at most two rows can end, each of sixteen hand-overs and a release for all.
const TURNS: u64 = (4 + 1) * 2 * (16 + 1);

/// Until that connection is open, the client polls five times a second, and does not see releases in between.
async fn opens_for_messages(server: &Server, client: &Client) {
    let subscribers = || server.ask::<(String, u32)>(&["PUBSUB", "NUMSUB", "redisson_rwlock:{x}"]).1;
    while subscribers() < 2 {
        lock(client).read().await.expect("in the end").unlock().await.expect("ours");
    }
}

/// Writers that hand it on to each other and ask again at once, and readers in the same client and in another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_readers_are_not_starved() {
    let (server, one, two) = two_clients().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop) = (one.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    lock(&client).write().await.expect("in the end").unlock().await.expect("ours");
                }
            })
        })
        .collect();
    until("hand-overs", SOON, || one.stats().total.handed_over > 10).await;
    within("its connection for messages", SOON, opens_for_messages(&server, &two)).await;
    let turns = || one.stats().total.acquired;
    for reader in [&one, &two, &one, &two] {
        let before = turns();
        let guard = within("its turn", SOON, lock(reader).read()).await.0.expect("granted");
        let others = turns() - before;
        assert!(others <= TURNS, "{others} turns of writers");
        guard.unlock().await.expect("ours");
    }
    stop.cancel();
    for writer in writers {
        within("its end", SOON, writer).await.0.expect("no panic");
    }
    idle(&one).await;
    clean(&server, &two).await;
}

#[tokio::test]
async fn a_writer_that_leaves_takes_its_mark_along() {
    let (server, one, two) = two_clients().await;
    let guard = lock(&one).lease(ms(20_000)).read().await.expect("free");
    let writing = tokio::spawn({
        let lock = lock(&two);
        async move { drop(lock.write().await) }
    });
    until("the mark", SOON, || server.exists(MARK)).await;
    assert!(lock(&one).try_read().await.expect("answered").is_none(), "the writer is next");
    let waiting = reads(&one);
    until("it to sleep", SOON, || one.stats().total.refused >= 2).await;
    writing.abort();
    let (reader, took) = within("its turn", SOON, waiting).await;
    assert!(took < ms(500), "told of it: {took:?}");
    assert!(!server.exists(MARK));
    assert!(!matches!(lock(&two).try_write_for(ms(100)).await, Ok(Some(_))));
    until("its mark to go", SOON, || !server.exists(MARK)).await;
    drop((guard, reader));
    idle(&one).await;
    clean(&server, &two).await;
}

#[tokio::test]
async fn who_reads_cannot_write_as_well() {
    let (server, one, _) = two_clients().await;
    let lock = one.rw_lock("x");
    let reader = lock.read().await.expect("free");
    for asked in [lock.write().await, lock.try_write().await.map(|taken| taken.expect("an error"))] {
        assert!(matches!(asked, Err(Error::Upgrade { .. })), "{asked:?}");
    }
    assert!(!reader.is_lost() && !server.exists(MARK));
    reader.unlock().await.expect("it has kept what it had");
    lock.write().await.expect("free now").unlock().await.expect("ours");
    clean(&server, &one).await;
}

#[tokio::test]
async fn who_writes_may_read_and_keeps_that() {
    let (server, one, two) = two_clients().await;
    let rw = one.rw_lock("x");
    let writer = rw.write().await.expect("free");
    let waiting = lock(&one);
    let waiting = tokio::spawn(async move { waiting.write().await.expect("in the end") });
    until("one to wait", SOON, || one.stats().now.waiting == 1).await;
    let reader = within("past those who wait", SOON, rw.read()).await.0.expect("its own lock");
    let again = rw.write().await.expect("it writes, and reads beside");
    again.unlock().await.expect("ours");
    assert!(lock(&two).try_read().await.expect("answered").is_none());
    writer.unlock().await.expect("ours");
    assert_eq!(server.ask::<String>(&["HGET", "x", "mode"]), "read");
    assert!(!waiting.is_finished());
    reader.unlock().await.expect("ours");
    within("its turn", SOON, waiting).await.0.expect("no panic").unlock().await.expect("ours");
    clean(&server, &one).await;
}

#[tokio::test]
async fn a_downgrade_lets_readers_in_and_no_writer() {
    let (server, one, two) = two_clients().await;
    let writer = one.rw_lock("x").write().await.expect("free");
    let waiting = reads(&two);
    until("it to sleep", SOON, || two.stats().total.refused >= 2).await;
    let reader = writer.downgrade().await.expect("ours");
    let (other, took) = within("its turn", SOON, waiting).await;
    assert!(took < ms(500), "told of it: {took:?}");
    assert!(lock(&two).try_write().await.expect("answered").is_none());
    let state = one.rw_lock("x").inspect().await.expect("answered");
    assert!(matches!(&state, RwState::Read(readers) if readers.len() == 2), "{state:?}");
    reader.unlock().await.expect("ours");
    other.expect("no panic").unlock().await.expect("theirs");
    clean(&server, &one).await;
}

#[tokio::test]
async fn a_downgrade_of_what_was_lost_is_none() {
    let (server, one, two) = two_clients().await;
    let rw = one.rw_lock("x");
    let writer = rw.write().await.expect("free");
    let _: u32 = server.ask(&["DEL", "x"]);
    let refused = rw.read().await;
    assert!(matches!(refused, Err(Error::Lost { reason: Lost::Removed, .. })), "{refused:?}");
    assert!(writer.is_lost());
    let refused = writer.downgrade().await;
    assert!(matches!(refused, Err(Error::Lost { .. })), "{refused:?}");
    clean(&server, &one).await;
    lock(&two).write().await.expect("free").unlock().await.expect("ours");
}

/// The reply to the release of the write lock is lost, and no connection can be made until the lease of the read lock has ended.
#[tokio::test]
async fn a_downgrade_whose_read_lock_ends_meanwhile_is_none() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(900)).command_timeout(ms(300))).await;
    let rw = client.rw_lock("x");
    // The scripts are loaded.
    rw.write().await.expect("free").downgrade().await.expect("ours").unlock().await.expect("ours");
    let writer = rw.write().await.expect("free");
    proxy.refuse();
    proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Cut(Way::Back)).after(1).times(u64::MAX));
    let downgrading = tokio::spawn(writer.downgrade());
    until("the release to be executed", SOON, || proxy.tally().cut_back > 0).await;
    until("the lease to end", ms(5_000), || !server.exists("x")).await;
    proxy.calm();
    proxy.accept();
    let lost = within("its end", ms(10_000), downgrading).await.0.expect("no panic");
    assert!(matches!(lost, Err(Error::Lost { reason: Lost::Expired, .. })), "{lost:?}");
    clean(&server, &client).await;
}

/// An outage that is longer than the limit of a request, and shorter than the lease.
#[tokio::test]
async fn a_downgrade_waits_for_the_server_while_its_lease_lasts() {
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.watchdog(ms(9_000)).command_timeout(ms(300))).await;
    let other = plain(&server).await;
    let rw = client.rw_lock("x");
    rw.write().await.expect("free").downgrade().await.expect("ours").unlock().await.expect("ours");
    for refuses in [false, true] {
        let writer = rw.write().await.expect("free");
        if refuses {
            proxy.refuse();
            proxy.cut_all();
        } else {
            proxy.set(Mode::Stall);
        }
        let evals = server.calls("evalsha");
        let mut downgrading = tokio::spawn(writer.downgrade());
        let early = timeout(ms(1_500), &mut downgrading).await;
        assert!(early.is_err(), "after five limits of a request: {early:?}");
        proxy.set(Mode::Pass);
        proxy.accept();
        let (reader, _) = within("the server again", SOON, downgrading).await;
        let reader = reader.expect("no panic").expect("still held");
        assert!(server.calls("evalsha") < evals + 30, "no storm: {}", server.calls("evalsha") - evals);
        assert!(lock(&other).try_write().await.expect("answered").is_none());
        reader.unlock().await.expect("ours");
    }
    assert_eq!(client.stats().total.failed, 0, "each call has returned Ok");
    clean(&server, &client).await;
}

/// Its error states the time of all tries.
#[tokio::test]
async fn a_downgrade_that_fails_says_for_how_long_it_tried() {
    let server = Server::start();
    let proxy = before(&server);
    let change = |builder: Builder| builder.command_timeout(ms(300)).outage_timeout(ms(2_000));
    let client = behind(&proxy, change).await;
    let writer = client.rw_lock("x").write().await.expect("free");
    proxy.set(Mode::Stall);
    let (told, _) = within("the end of its patience", ms(8_000), writer.downgrade()).await;
    proxy.set(Mode::Pass);
    let Err(Error::Unavailable { tried, .. }) = told else { panic!("it says {:?}", told.map(|_| ())) };
    let seconds = tried.rsplit_once(" after ").and_then(|(_, time)| time.strip_suffix('s')?.parse::<f64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 2.0), "{tried}");
    assert_eq!(client.stats().total.failed, 1);
    clean(&server, &client).await;
}

/// A failover brings a reader back that has left, beside what no longer counts: a hold that rested, or that of a dead client.
#[tokio::test]
async fn a_reader_that_a_failover_brings_back_is_released_although_another_was_named_after_it() {
    let server = Server::start();
    let client = plain(&server).await;
    let rw = client.rw_lock("x").non_reentrant();
    for after in ["6b1c7d3e-0000-8000-8000-000000000001:7".to_owned(), format!("{}:999:rest", client.id())] {
        let reader = rw.read().await.expect("free");
        let id = reader.id().to_owned();
        reader.unlock().await.expect("ours");
        let _: u32 = server.ask(&["HSET", "x", "mode", "read", &id, "1", &after, "1"]);
        let _: String = server.ask(&["SET", &format!("{{x}}:{id}:rwlock_timeout:1"), "1", "PX", "20000"]);
        let _: u32 = server.ask(&["PEXPIRE", "x", "20000"]);
        let (writer, _) = within("its release", SOON, rw.write()).await;
        writer.expect("free").unlock().await.expect("ours");
    }
    clean(&server, &client).await;
}

/// An owner that writes may go on during a shutdown: write again, read, and read only.
#[tokio::test]
async fn an_owner_that_writes_may_read_during_a_shutdown() {
    let (server, one, other) = two_clients().await;
    let rw = one.rw_lock("x").owner(&Owner::new());
    let writer = rw.write().await.expect("free");
    let stranger = reads(&one);
    until("it to wait", SOON, || one.stats().now.waiting == 1).await;
    let closing = tokio::spawn(one.clone().shutdown(ms(10_000)));
    assert!(within("its end", SOON, stranger).await.0.is_err(), "others acquire nothing more");
    rw.try_read().await.expect("answered").expect("beside its own").unlock().await.expect("ours");
    let reader = writer.downgrade().await.expect("ours");
    assert!(matches!(rw.owner(&Owner::new()).try_read().await, Err(Error::Closed)));
    assert!(lock(&other).try_write().await.expect("answered").is_none());
    reader.unlock().await.expect("ours");
    within("the end", SOON, closing).await.0.expect("no panic").expect("nothing is held");
    clean(&server, &other).await;
}

#[tokio::test]
async fn each_reader_has_a_lease_of_its_own() {
    let (server, one, two) = two_clients().await;
    let short = lock(&one).lease(ms(400)).read().await.expect("free");
    let long = lock(&two).lease(ms(20_000)).read().await.expect("shared");
    assert_eq!(within("its end", SOON, short.lost()).await.0, Lost::Expired);
    until("the server's end", SOON, || matches!(readers(&server), 1)).await;
    assert!(server.pttl("x") > 18_000 && long.check().await.is_ok());
    assert!(matches!(short.unlock().await, Err(Error::Lost { .. })));
    let short = lock(&one).lease(ms(5_000)).read().await.expect("shared");
    long.unlock().await.expect("ours");
    assert!(matches!(server.pttl("x"), 3_000..=5_000), "what is left lasts as long as the one who is left");
    short.unlock().await.expect("ours");
    idle(&one).await;
    clean(&server, &two).await;
}

/// Expiry keys of readers.
fn readers(server: &Server) -> usize {
    server.ask::<Vec<String>>(&["KEYS", "*rwlock_timeout*"]).len()
}

/// A JVM's watchdog sets the end of the whole lock to its own lease; and a reader of ours that died is in nobody's way.
#[tokio::test]
async fn what_others_do_to_the_end_is_mended_and_the_dead_are_swept_away() {
    let server = Server::start();
    let client = client(&server, |builder| builder.watchdog(ms(3_000))).await;
    let guard = lock(&client).lease(ms(60_000)).read().await.expect("free");
    assert!(guard.remaining() < ms(30_000), "no longer than a JVM would leave it, since the last look");
    let _: u32 = server.ask(&["PEXPIRE", "x", "2000"]);
    until("it to be mended", SOON, || server.pttl("x") > 50_000).await;
    let _: u32 = server.ask(&["HSET", "x", "6b1c7d3e-0000-8000-8000-000000000001:7", "1"]);
    guard.unlock().await.expect("ours");
    clean(&server, &client).await;
}

#[tokio::test]
async fn inspect_says_who_reads_and_who_writes() {
    let (server, one, two) = two_clients().await;
    let rw = one.rw_lock("x");
    assert!(matches!(rw.inspect().await.expect("answered"), RwState::Free));
    let writer = rw.write().await.expect("free");
    let reader = rw.read().await.expect("below it");
    match rw.inspect().await.expect("answered") {
        RwState::Write { writer: who, readers } => {
            assert_eq!((who.id.as_str(), who.holds, readers.len()), (writer.id(), 1, 1));
            assert_eq!(readers[0].id, reader.id());
            assert!(readers[0].remaining.is_some_and(|left| left > ms(25_000)));
        }
        state => panic!("{state:?}"),
    }
    writer.unlock().await.expect("ours");
    let other = lock(&two).read().await.expect("shared");
    let state = rw.inspect().await.expect("answered");
    assert!(matches!(&state, RwState::Read(readers) if readers.len() == 2), "{state:?}");
    assert!(rw.force_unlock().await.expect("answered"));
    assert!(!server.exists("x") && readers(&server) == 0);
    for guard in [reader, other] {
        assert!(matches!(guard.check().await, Err(Error::Lost { .. })));
    }
    assert!(!rw.force_unlock().await.expect("answered"));
    let _: String = server.ask(&["SET", "text", "x"]);
    assert!(matches!(one.rw_lock("text").inspect().await, Err(Error::Conflict { .. })));
}

/// Writers count on a number, readers look whether it stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_never_see_a_writer_at_work() {
    let (server, one, two) = two_clients().await;
    let tasks = (0..32).map(|n| {
        let (client, url) = (if n % 2 == 0 { one.clone() } else { two.clone() }, server.url());
        tokio::spawn(async move {
            let mut raw = redis::Client::open(url).expect("a good URL").get_connection().expect("it answers");
            let mut ask = |words: &[&str]| -> Option<u32> {
                let mut command = redis::cmd(words[0]);
                words[1..].iter().for_each(|word| _ = command.arg(*word));
                command.query(&mut raw).expect("it answers")
            };
            for _ in 0..8 {
                if n % 4 == 0 {
                    let guard = lock(&client).write().await.expect("in the end");
                    ask(&["INCR", "count"]);
                    tokio::task::yield_now().await;
                    ask(&["INCR", "count"]);
                    guard.unlock().await.expect("ours to the end");
                } else {
                    let guard = lock(&client).read().await.expect("in the end");
                    let before = ask(&["GET", "count"]).unwrap_or_default();
                    tokio::task::yield_now().await;
                    assert_eq!((before % 2, ask(&["GET", "count"]).unwrap_or_default()), (0, before));
                    guard.unlock().await.expect("ours to the end");
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        within("its turns", ms(20_000), task).await.0.expect("no panic");
    }
    assert_eq!(counted(&server), 128);
    idle(&one).await;
    clean(&server, &two).await;
}

/// One owner asks for both at once. Whichever the server runs first, neither waits for the other: it would wait for itself.
#[tokio::test]
async fn an_owner_that_asks_for_both_does_not_wait_for_itself() {
    let (server, one, two) = two_clients().await;
    for n in 0..20 {
        let rw = lock(&one);
        let others = if n % 2 == 0 { None } else { Some(lock(&two).write().await.expect("free")) };
        let both = async { tokio::join!(rw.read(), rw.write()) };
        let free = async {
            if let Some(others) = others {
                until("both to wait", SOON, || one.stats().now.waiting == 2).await;
                others.unlock().await.expect("ours");
            }
        };
        let ((reading, writing), ()) = within("both answers", SOON, async { tokio::join!(both, free) }).await.0;
        let reading = reading.expect("nobody else has it");
        match writing {
            Ok(writing) => writing.unlock().await.expect("ours to the end"), // the reading is below it
            refused => assert!(matches!(refused, Err(Error::Upgrade { .. })), "{refused:?}"),
        }
        reading.unlock().await.expect("ours to the end");
        idle(&one).await;
    }
    clean(&server, &one).await;
}

/// The outer write hold goes while a nested acquisition is under way; what its owner reads below it stays.
#[tokio::test]
async fn a_nested_write_whose_outer_one_goes_does_not_wait_for_its_own_reading() {
    let (server, one, _) = two_clients().await;
    for _ in 0..20 {
        let rw = lock(&one);
        let writing = rw.write().await.expect("free");
        let reading = rw.read().await.expect("below its own");
        let both = async { tokio::join!(writing.unlock(), rw.write()) };
        let (unlocked, nested) = within("both answers", SOON, both).await.0;
        unlocked.expect("ours to the end");
        match nested {
            Ok(nested) => nested.unlock().await.expect("ours to the end"),
            refused => assert!(matches!(refused, Err(Error::Upgrade { .. })), "{refused:?}"),
        }
        reading.unlock().await.expect("ours to the end");
        idle(&one).await;
    }
    clean(&server, &one).await;
}

/// As in Redisson, both locks use the same keys for the ends of their readers' leases.
#[tokio::test]
async fn readers_of_a_name_with_and_without_braces_have_leases_of_their_own() {
    let (server, one, _) = two_clients().await;
    let first = one.rw_lock("x").non_reentrant().read().await.expect("free");
    let second = one.rw_lock("{x}").non_reentrant().read().await.expect("free");
    first.unlock().await.expect("ours to the end");
    second.check().await.expect("the other has nothing to do with it");
    second.unlock().await.expect("ours to the end");
    idle(&one).await;
    clean(&server, &one).await;
}

/// The mark of a writer that has left is not yet gone, or a reader that was dropped is still on its way back.
#[tokio::test]
async fn what_an_owner_leaves_behind_is_not_somebody_elses() {
    let (server, one, two) = two_clients().await;
    let held = lock(&two).read().await.expect("free");
    let (mut answered, mut tries) = (0, 0);
    while answered < 30 && tries < 300 {
        tries += 1;
        let rw = lock(&one);
        match rw.try_write_for(ms(3)).await {
            Err(late) if late.is_unavailable() => continue,
            left => assert!(left.expect("answered").is_none()),
        }
        let reading = rw.try_read().await.expect("answered").expect("nobody writes, and nobody waits to");
        drop(reading);
        answered += 1;
    }
    assert!(answered > 9, "only {answered} of {tries} calls had a reply within their limit");
    held.unlock().await.expect("ours to the end");
    idle(&one).await;
    let mut answered = 0;
    for _ in 0..30 {
        let rw = lock(&one);
        drop(rw.read().await.expect("free"));
        let writing = match rw.try_write_for(Duration::ZERO).await {
            Err(late) if late.is_unavailable() => continue,
            taken => taken.expect("answered").expect("nobody reads"),
        };
        writing.unlock().await.expect("ours to the end");
        answered += 1;
    }
    assert!(answered > 0, "no call had a reply within its limit");
    idle(&one).await;
    clean(&server, &one).await;
}
