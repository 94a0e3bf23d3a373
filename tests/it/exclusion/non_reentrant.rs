//! With `non_reentrant` every call is an owner of its own, for every kind of lock: two requests of one keep-alive connection,
//! which a server polls in one task, exclude each other.

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use leasehold::{Client, Error, Guard};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::support::{Server, ms, plain, within};

const KINDS: [&str; 5] = ["lock", "fenced", "fair", "read", "write"];

/// One attempt at a lock of that kind.
async fn attempt(client: &Client, kind: &str, reenters: bool) -> Result<Option<Guard>, Error> {
    macro_rules! handle {
        ($make:ident) => {{
            let lock = client.$make(&format!("{kind}:{reenters}"));
            if reenters { lock } else { lock.non_reentrant() }
        }};
    }
    Ok(match kind {
        "lock" => handle!(lock).try_lock().await?,
        "fenced" => handle!(fenced_lock).try_lock().await?.map(Guard::from),
        "fair" => handle!(fair_lock).try_lock().await?,
        "read" => handle!(rw_lock).try_read().await?.map(Guard::from),
        "write" => handle!(rw_lock).try_write().await?.map(Guard::from),
        other => unreachable!("no such kind: {other}"),
    })
}

/// The locks, and where guards go that outlive their request.
type App = (Client, mpsc::UnboundedSender<Guard>);

async fn begin(State((client, jobs)): State<App>, Path((kind, way)): Path<(String, String)>) -> StatusCode {
    match attempt(&client, &kind, way == "reentrant").await {
        Ok(Some(guard)) => {
            jobs.send(guard).expect("the test keeps the guards");
            StatusCode::ACCEPTED
        }
        Ok(None) => StatusCode::CONFLICT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The status that one request on a kept connection gets.
async fn status(connection: &mut TcpStream, path: &str) -> u16 {
    let request = format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n");
    connection.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(connection.read_u8().await.expect("an answer without a body"));
    }
    let text = String::from_utf8(answer).expect("text");
    text.split(' ').nth(1).expect("a status").parse().expect("a number")
}

#[tokio::test]
async fn two_requests_of_one_connection_exclude_each_other() {
    let server = Server::start();
    let (jobs, mut kept) = mpsc::unbounded_channel();
    let routes = Router::new().route("/{kind}/{way}", post(begin)).with_state((plain(&server).await, jobs));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
    let mut connection = TcpStream::connect(address).await.expect("accepted");
    for kind in KINDS {
        let path = format!("/{kind}/non_reentrant");
        let both = (status(&mut connection, &path).await, status(&mut connection, &path).await);
        let shares = kind == "read"; // readers do not exclude each other, but each has a hold count of its own
        assert_eq!(both, if shares { (202, 202) } else { (202, 409) }, "{kind}, non-reentrant");
        let path = format!("/{kind}/reentrant");
        let both = (status(&mut connection, &path).await, status(&mut connection, &path).await);
        assert_eq!(both, (202, 202), "{kind}: one task is one owner");
    }
    drop(connection);
    serving.abort();
    while let Ok(guard) = kept.try_recv() {
        guard.unlock().await.expect("held to the end");
    }
}

#[tokio::test]
async fn each_call_has_a_hold_of_its_own() {
    let server = Server::start();
    let client = plain(&server).await;
    for kind in KINDS {
        let first = attempt(&client, kind, false).await.expect("answered").expect("free");
        assert_eq!(first.holds(), 1, "{kind}");
        let second = attempt(&client, kind, false).await.expect("answered");
        assert!(second.is_none_or(|second| second.holds() == 1 && second.owner() != first.owner()), "{kind}");
        first.unlock().await.expect("held to the end");
    }
}

#[tokio::test]
async fn the_last_of_owner_and_non_reentrant_counts() {
    let server = Server::start();
    let (client, owner) = (plain(&server).await, leasehold::Owner::new());
    let own = client.mutex("x").owner(&owner);
    let (_outer, inner) = (own.lock().await.expect("free"), own.lock().await.expect("re-entered"));
    assert_eq!(inner.holds(), 2);
    assert!(own.non_reentrant().try_lock().await.expect("answered").is_none());
}

#[tokio::test]
async fn a_non_reentrant_writer_downgrades_for_its_own_owner() {
    let server = Server::start();
    let lock = plain(&server).await.rw_lock("x").non_reentrant();
    let reading = lock.write().await.expect("free").downgrade().await.expect("held to the end");
    assert!(lock.try_write().await.expect("answered").is_none(), "another owner reads");
    assert!(lock.try_read().await.expect("answered").is_some());
    reading.unlock().await.expect("held to the end");
}

/// Work that comes as a plain generic closure, boxed, or as an async closure.
#[tokio::test]
async fn with_takes_work_of_any_shape() {
    async fn forwarded<F, W>(client: &Client, work: F) -> Result<u32, Error>
    where
        F: FnOnce() -> W,
        W: Future<Output = u32>,
    {
        client.mutex("x").with(work).await
    }
    let server = Server::start();
    let client = plain(&server).await;
    assert_eq!(forwarded(&client, || async { 1 }).await.expect("done"), 1);
    assert_eq!(forwarded(&client, async || 2).await.expect("done"), 2);
    type Boxed = Box<dyn FnOnce() -> std::pin::Pin<Box<dyn Future<Output = u32> + Send>> + Send>;
    let boxed: Boxed = Box::new(|| Box::pin(async { 3 }));
    assert_eq!(client.fair_lock("y").with(boxed).await.expect("done"), 3);
    assert_eq!(client.fenced_lock("z").with(|token| async move { token }).await.expect("done"), 1);
    let rw = client.rw_lock("rw");
    assert_eq!(rw.with_write(async || 4).await.expect("done"), 4);
    assert_eq!(rw.with_read(|| async { 5 }).await.expect("done"), 5);
    assert!(!rw.is_locked().await.expect("answered"));
    let failed = rw.try_with_write(async || Err::<(), _>(Error::Closed)).await;
    assert!(matches!(failed, Err(Error::Closed)));
}

#[tokio::test]
async fn a_handle_can_be_awaited_and_spawned() {
    let server = Server::start();
    let client = plain(&server).await;
    let guard = client.mutex("x").await.expect("free");
    let next = tokio::spawn(client.mutex("x").into_future());
    let token = client.fenced_lock("y").await.expect("free").token();
    assert_eq!(token, 1);
    client.fair_lock("z").await.expect("free").unlock().await.expect("held to the end");
    guard.unlock().await.expect("held to the end");
    let next = within("the next holder", ms(5_000), next).await.0.expect("no panic").expect("acquired");
    next.unlock().await.expect("held to the end");
}
