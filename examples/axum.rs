//! A web service on many machines in which one invoice is billed once: `POST /bill/{invoice}` begins a job and answers 202,
//! or 409 while a job for the same invoice runs, on whatever machine.
//!
//! `scripts/with-redis cargo run --example axum` starts it, sends two requests over one connection, and shuts it down.
//!
//! It takes [`Client::mutex`], not [`Client::lock`]. A server runs all requests of one HTTP/1 connection in one task, and the
//! owner of a `lock` is the task: the second request on a connection that is kept alive would *re-enter* the lock which the
//! first one's job still holds, and bill the invoice twice. `/reentrant/{invoice}` is the same with `lock`, to see that.

use std::time::Duration;

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use leasehold::{Client, Guard};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

/// What the handlers share. Clients are cheap to clone.
#[derive(Clone)]
struct App {
    locks: Client,
    /// Stands for the payment service: the jobs wait for it.
    paid: CancellationToken,
}

async fn bill(State(app): State<App>, Path(invoice): Path<u32>) -> StatusCode {
    let taken = app.locks.mutex(&format!("invoice:{invoice}")).try_lock().await;
    begin(taken, app.paid)
}

/// What not to do.
async fn bill_reentrant(State(app): State<App>, Path(invoice): Path<u32>) -> StatusCode {
    let taken = app.locks.lock(&format!("invoice:{invoice}")).try_lock().await;
    begin(taken, app.paid)
}

/// The guard goes into the job's task, which gives it back when the job is done, fails or panics.
fn begin(taken: leasehold::Result<Option<Guard>>, paid: CancellationToken) -> StatusCode {
    match taken {
        Ok(Some(guard)) => {
            tokio::spawn(guard.protect(async move { paid.cancelled().await }));
            StatusCode::ACCEPTED
        }
        Ok(None) => StatusCode::CONFLICT,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE, // nobody knows: not the same as taken
    }
}

/// For the load balancer.
async fn ready(State(app): State<App>) -> StatusCode {
    if app.locks.ping().await.is_ok() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let builder = Client::builder().url(url).prefix("shop:").connect_timeout(Duration::from_secs(30));
    let app = App { locks: builder.connect().await?, paid: CancellationToken::new() };
    let routes = Router::new()
        .route("/bill/{invoice}", post(bill))
        .route("/reentrant/{invoice}", post(bill_reentrant))
        .route("/ready", get(ready));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut connection = TcpStream::connect(listener.local_addr()?).await?;
    let (stop, paid) = (CancellationToken::new(), app.paid.clone());
    let stopped = stop.clone();
    let locks = app.locks.clone();
    let server =
        axum::serve(listener, routes.with_state(app)).with_graceful_shutdown(async move { stopped.cancelled().await });
    let server = tokio::spawn(async move { server.await });

    assert_eq!(status(&mut connection, "GET /ready").await?, 200);
    let (first, second) =
        (status(&mut connection, "POST /bill/42").await?, status(&mut connection, "POST /bill/42").await?);
    println!("mutex: two requests for one invoice on one connection: {first}, {second}");
    assert_eq!((first, second), (202, 409));
    let both =
        (status(&mut connection, "POST /reentrant/43").await?, status(&mut connection, "POST /reentrant/43").await?);
    println!("lock:  two requests for one invoice on one connection: {}, {}", both.0, both.1);
    assert_eq!(both, (202, 202), "one task is one owner");

    // As on SIGTERM (examples/shutdown.rs): no more requests, then no more locks; the jobs may finish.
    drop(connection);
    stop.cancel();
    server.await??;
    paid.cancel();
    locks.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

/// One request on a connection that is kept alive, and the status it was answered with.
async fn status(connection: &mut TcpStream, request: &str) -> Result<u16, Box<dyn std::error::Error>> {
    connection.write_all(format!("{request} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(connection.read_u8().await?); // these answers have no body
    }
    let text = String::from_utf8(answer)?;
    Ok(text.split(' ').nth(1).ok_or("no status")?.parse()?)
}
