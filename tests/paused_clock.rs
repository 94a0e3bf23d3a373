//! A test that pauses the clock although it uses a server is told so. Alone in its binary: since the first server in memory, a whole process
//! counts on tokio's clock.
#![cfg(feature = "test-util")]

use std::{net::TcpListener, time::Duration};

use leasehold::Client;

#[tokio::test(start_paused = true)]
async fn a_paused_clock_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let builder = Client::builder().url(url).outage_timeout(Duration::from_millis(300));
    let client = builder.connect_lazy().expect("good settings");
    tokio::time::advance(Duration::from_secs(1)).await; // a pause alone shows only after some real time
    let error = client.lock("x").lock().await.expect_err("nobody replies");
    assert!(error.is_unavailable() && error.to_string().contains("tokio's clock, which is paused"), "{error}");
}
