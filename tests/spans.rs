//! The spans around acquiring, holding and releasing, and docs/observing.md, which lists them.

#![cfg(feature = "test-util")]

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    fs,
    future::Future,
    path::Path,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, Once, mpsc},
    task::{Context as Polled, Waker},
    thread,
    time::Duration,
};

use leasehold::{Client, Lock, MemoryServer};
use tracing::{
    Event, Id, Instrument, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Record},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

/// The spans of the present thread, and a lock to ask for at each release.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Seized>>>, Arc<Mutex<Option<Lock>>>);

thread_local! {
    static HERE: RefCell<Option<Seen>> = const { RefCell::new(None) };
}

/// While it lives, the spans of the present thread are seen.
struct Here;

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

/// One for the process. With one for each thread, a thread without one could decide for all that nobody wants a span: tracing keeps that
/// for each place in the source.
struct OfEachThread;

impl OfEachThread {
    fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| tracing_subscriber::registry().with(OfEachThread).init());
    }
}

#[derive(Debug, Clone)]
struct Seized {
    id: Id,
    name: &'static str,
    parent: Option<&'static str>,
    /// All that it can have.
    fields: Vec<&'static str>,
    values: BTreeMap<&'static str, String>,
    is_closed: bool,
}

struct Values<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Values<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Seen {
    fn here(&self) -> Here {
        OfEachThread::install();
        HERE.set(Some(self.clone()));
        Here
    }

    /// Those of the present thread, if it looks.
    fn now(look: impl FnOnce(Seen)) {
        HERE.with_borrow(Option::clone).map(look);
    }

    fn spans(&self) -> MutexGuard<'_, Vec<Seized>> {
        self.0.lock().expect("no test panics in between")
    }

    fn asks(&self) -> MutexGuard<'_, Option<Lock>> {
        self.1.lock().expect("no test panics in between")
    }

    /// Makes the first step of a call for the lock. Not again for the events of that.
    fn ask(&self) {
        let Some(lock) = self.asks().take() else { return };
        let _ = pin!(lock.try_lock()).poll(&mut Polled::from_waker(Waker::noop()));
        *self.asks() = Some(lock);
    }

    /// The spans of the crate by name, in the order of their beginnings.
    fn of(&self, name: &str) -> Vec<Seized> {
        self.spans().iter().filter(|span| span.name == name).cloned().collect()
    }

    fn change(&self, id: &Id, change: impl FnOnce(&mut Seized)) {
        // Ids are used again after the end of a span.
        let mut spans = self.spans();
        spans.iter_mut().rev().find(|span| span.id == *id).map(change);
    }
}

impl Seized {
    fn is(&self, field: &str, value: &str) -> bool {
        self.values.get(field).is_some_and(|known| known == value)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for OfEachThread {
    fn on_new_span(&self, span: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let fields = span.metadata().fields().iter().map(|field| field.name()).collect();
        let mut values = BTreeMap::new();
        span.record(&mut Values(&mut values));
        let parent = context.span(id).and_then(|span| span.parent()).map(|parent| parent.name());
        let name = span.metadata().name();
        let span = Seized { id: id.clone(), name, parent, fields, values, is_closed: false };
        Seen::now(|seen| seen.spans().push(span));
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        Seen::now(|seen| seen.change(id, |span| record.record(&mut Values(&mut span.values))));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut values = BTreeMap::new();
        event.record(&mut Values(&mut values));
        if values.get("message").is_some_and(|message| message == "released") {
            Seen::now(|seen| seen.ask());
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        Seen::now(|seen| seen.change(&id, |span| span.is_closed = true));
    }
}

fn memory() -> (MemoryServer, Client) {
    let server = MemoryServer::new();
    let client = Client::in_memory(&server).expect("valid settings");
    (server, client)
}

#[tokio::test(start_paused = true)]
async fn from_the_call_to_the_release() {
    let (seen, (_server, client)) = (Seen::default(), memory());
    let _here = seen.here();
    let id = async {
        let guard = client.fair_lock("x").lock().await.expect("free");
        let id = guard.id().to_owned();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!seen.of("hold")[0].is_closed && seen.of("acquire")[0].is_closed);
        guard.unlock().await.expect("held");
        id
    };
    let id = id.instrument(tracing::info_span!("request")).await;
    let [acquire, hold, release] = ["acquire", "hold", "release"].map(|name| seen.of(name).remove(0));
    let parents = [&acquire, &hold, &release].map(|span| span.parent);
    assert_eq!(parents, [Some("request"), Some("request"), Some("hold")]);
    for span in [&acquire, &hold, &release] {
        assert!(span.is("lock.name", "x") && span.is("lock.kind", "fair") && span.is("lock.id", &id), "{span:?}");
        assert!(span.is("db.system.name", "redis") && span.is("db.namespace", "0"), "{span:?}");
        assert!(span.values.contains_key("server.address") && !span.values.contains_key("error.type"), "{span:?}");
        assert!(span.is_closed, "{span:?}");
    }
    assert!(acquire.is("lock.outcome", "acquired") && acquire.is("lock.method", "lock"), "{acquire:?}");
    assert!(release.is("db.operation.name", "EVALSHA") && release.is("db.stored_procedure.name", "release"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_gives_up_one_that_fails_and_one_that_is_dropped() {
    let (seen, (server, client)) = (Seen::default(), memory());
    let _held = client.mutex("x").lock().await.expect("free");
    let _here = seen.here();
    assert!(client.mutex("x").try_lock().await.expect("it replies").is_none());
    tokio::time::timeout(Duration::from_secs(1), client.mutex("x").lock()).await.expect_err("held");
    server.deny();
    client.mutex("y").lock().await.expect_err("denied");
    client.mutex("y").lease(Duration::ZERO).lock().await.expect_err("no valid lease");
    client.mutex("y").inspect().await.expect_err("denied");
    let [gave_up, dropped, failed, invalid] = <[Seized; 4]>::try_from(seen.of("acquire")).expect("four calls");
    assert!(gave_up.is("lock.outcome", "gave_up") && gave_up.is("lock.method", "try_lock"), "{gave_up:?}");
    assert!(!dropped.values.contains_key("lock.outcome") && dropped.is_closed, "{dropped:?}");
    assert!(failed.is("lock.outcome", "failed") && failed.is("error.type", "denied"), "{failed:?}");
    assert!(invalid.is("lock.outcome", "failed") && invalid.is("error.type", "invalid"), "{invalid:?}");
    let tell = seen.of("tell").remove(0);
    assert!(tell.is("error.type", "denied") && tell.is("otel.status_code", "ERROR") && tell.is_closed, "{tell:?}");
    assert!(failed.is("otel.status_code", "ERROR") && seen.of("hold").is_empty(), "{failed:?}");
}

/// The caller gets an error, although the server has replied.
#[tokio::test(start_paused = true)]
async fn a_reply_that_is_an_error_is_noted() {
    let (seen, (server, client)) = (Seen::default(), memory());
    let _here = seen.here();
    server.set("text", "many");
    let (permits, plain, latch) = (client.semaphore("text"), client.plain_semaphore("text"), client.latch("text"));
    permits.available().await.expect_err("a text");
    permits.add_permits(1).await.expect_err("a text");
    plain.drain().await.expect_err("a text");
    plain.release(1).await.expect_err("a text");
    latch.count_down().await.expect_err("a text");
    client.mutex("text").inspect().await.expect_err("a text");
    client.plain_semaphore("none").release(1).await.expect_err("there is none");
    let kinds: Vec<_> = seen.of("tell").iter().map(|span| span.values.get("error.type").cloned()).collect();
    let mut wanted = vec![Some("conflict".to_owned()); 6];
    wanted.push(Some("lost".to_owned()));
    assert_eq!(kinds, wanted);
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_noted_in_the_hold() {
    let (seen, (server, client)) = (Seen::default(), memory());
    let _here = seen.here();
    let [released, dropped] = ["released", "dropped"].map(|name| client.mutex(name));
    let (released, dropped) = (released.lock().await.expect("free"), dropped.lock().await.expect("free"));
    let fixed = client.mutex("fixed").lease(Duration::from_secs(1)).lock().await.expect("free");
    assert!(server.forget("released") && server.forget("dropped"));
    released.lost().await;
    dropped.lost().await;
    fixed.lost().await;
    released.unlock().await.expect_err("lost");
    drop((dropped, fixed));
    let noted: Vec<_> = seen.of("hold").iter().map(|hold| hold.values.get("lock.lost").cloned()).collect();
    assert_eq!(noted, ["removed", "removed", "expired"].map(|reason| Some(reason.to_owned())));
    assert!(seen.of("hold").iter().all(|hold| hold.is("error.type", "lost") && hold.is_closed));
    let releases = seen.of("release");
    assert!(
        releases.len() == 1 && releases[0].is("error.type", "lost"),
        "a dropped guard has no such span: {releases:?}"
    );
}

/// The task that asks has no time limit of its own if the client and the subscriber wait for each other.
#[test]
fn a_subscriber_may_ask_for_the_lock_of_an_event() {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().start_paused(true).build().expect("a runtime").block_on(ask_at_each_release());
        tell.send(()).expect("the test waits");
    });
    told.recv_timeout(Duration::from_secs(10)).expect("no deadlock");
}

/// The lock passes in memory, and rests while the first holder is told that it was held.
async fn ask_at_each_release() {
    let (seen, (_server, client)) = (Seen::default(), memory());
    let lock = client.mutex("x").non_reentrant();
    *seen.asks() = Some(lock.clone());
    let _here = seen.here();
    for _ in 0..5 {
        let first = lock.lock().await.expect("free");
        let others = [lock.clone(), lock.clone()]
            .map(|lock| tokio::spawn(async move { lock.lock().await.expect("free at last").unlock().await }));
        tokio::time::sleep(Duration::from_millis(20)).await;
        first.unlock().await.expect("held");
        for other in others {
            other.await.expect("no panic").expect("held");
        }
    }
}

/// The first cells of the rows of the page whose second cell is a list of spans: the fields, and the spans that have them.
fn listed(page: &str) -> BTreeSet<(String, String)> {
    let all = "acquire, hold, release, tell";
    let rows = page.lines().skip_while(|line| !line.starts_with("| field |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|row| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        (cells[1].clone(), cells[2].replace("all", all))
    });
    rows.flat_map(|(field, spans)| {
        let spans: Vec<_> = spans.split(", ").map(str::to_owned).collect();
        spans.into_iter().map(move |span| (field.clone(), span))
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn the_page_lists_the_fields_of_each_span() {
    let (seen, (_server, client)) = (Seen::default(), memory());
    let _here = seen.here();
    let lock = client.mutex("x");
    lock.lock().await.expect("free").unlock().await.expect("held");
    lock.inspect().await.expect("it replies");
    let spans = seen.spans();
    let fields =
        spans.iter().flat_map(|span| span.fields.iter().map(|field| ((*field).to_owned(), span.name.to_owned())));
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/observing.md")).expect("the page");
    assert_eq!(listed(&page), fields.collect());
}
