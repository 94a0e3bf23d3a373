//! A web service on many machines. `POST /bill/{invoice}` starts a job and returns 202. While a job for the same invoice runs on any machine,
//! it returns 409. So two jobs never bill one invoice at the same time. When the first job has ended, another can begin: a real job first
//! checks whether the invoice is paid.
//!
//! The job runs in a task of its own. If the client disconnects, axum drops the future of the handler, and work in it would stop half-way.
//!
//! `scripts/with-redis cargo run --example axum` starts it, sends two requests to each of two routes over one connection, and shuts it down.
//!
//! It uses [`Client::mutex`], not [`Client::lock`]. The server runs all requests of one HTTP/1 connection in one task, and the owner
//! of a `lock` is the task. So the second request of a keep-alive connection would *re-enter* the lock that the job of the first
//! request still holds, and bill the invoice twice. `/reentrant/{invoice}` shows that with `lock`.

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

/// The state that the handlers share. Clients are cheap to clone.
#[derive(Clone)]
struct App {
    locks: Client,
    /// In place of a payment service: the jobs wait for it.
    paid: CancellationToken,
}

async fn bill(State(app): State<App>, Path(invoice): Path<u32>) -> StatusCode {
    let taken = app.locks.mutex(&format!("invoice:{invoice}")).try_lock().await;
    begin(taken, app.paid)
}

/// A mistake: do not do this.
async fn bill_reentrant(State(app): State<App>, Path(invoice): Path<u32>) -> StatusCode {
    let taken = app.locks.lock(&format!("invoice:{invoice}")).try_lock().await;
    begin(taken, app.paid)
}

/// The guard moves into the task of the job. The lock is released when the job completes, fails or panics. If the lock is lost, `protect`
/// drops the job and returns the error.
fn begin(taken: leasehold::Result<Option<Guard>>, paid: CancellationToken) -> StatusCode {
    match taken {
        Ok(Some(guard)) => {
            tokio::spawn(async move {
                if let Err(error) = guard.protect(async move { paid.cancelled().await }).await {
                    eprintln!("the job was stopped: {error}");
                }
            });
            StatusCode::ACCEPTED
        }
        Ok(None) => StatusCode::CONFLICT,
        // Unknown: not the same as held by another owner. The log shows what to mend, for example a missing permission.
        Err(error) => {
            eprintln!("no lock: {error}");
            StatusCode::SERVICE_UNAVAILABLE
        }
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
    run(builder.connect().await?).await
}

/// tests/examples.rs also runs this, with a server in memory.
pub(crate) async fn run(locks: Client) -> Result<(), Box<dyn std::error::Error>> {
    let app = App { locks, paid: CancellationToken::new() };
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

    // As on SIGTERM (examples/shutdown.rs): accept no more requests, then acquire no more locks, and let the jobs finish.
    drop(connection);
    stop.cancel();
    server.await??;
    paid.cancel();
    locks.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

/// Sends one request on a keep-alive connection. Returns the status of the response.
async fn status(connection: &mut TcpStream, request: &str) -> Result<u16, Box<dyn std::error::Error>> {
    connection.write_all(format!("{request} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(connection.read_u8().await?); // these responses have no body
    }
    let text = String::from_utf8(answer)?;
    Ok(text.split(' ').nth(1).ok_or("no status")?.parse()?)
}
