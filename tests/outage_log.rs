//! What an operator reads in the log of an outage, and what callers read in their errors. Alone in its binary: a subscriber is for the
//! whole process.

#[allow(dead_code)]
#[path = "support/mod.rs"]
mod support;

use futures_util::future::join_all;
use leasehold::{Client, Error};
use support::{Server, chain, log::Sink, ms, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_told_in_a_few_lines() {
    let sink = Sink::install(tracing::Level::DEBUG);
    let mut server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let address = format!("127.0.0.1:{}", server.port());
    let builder = Client::builder().url(server.url()).watchdog(ms(20_000)).command_timeout(ms(3_000));
    let client = builder.connect().await.expect("the server answers");
    let names: Vec<_> = (0..10).map(|number| format!("held:{number}")).collect();
    let held = join_all(names.iter().map(|name| async { client.mutex(name).lock().await.expect("free") })).await;
    let _: u32 = server.ask(&["HSET", "theirs", "somebody:1", "1"]);
    let _: u32 = server.ask(&["PEXPIRE", "theirs", "60000"]);
    let waiter = tokio::spawn({
        let client = client.clone();
        async move { client.mutex("theirs").lock().await }
    });
    until("it to listen", ms(10_000), || !server.channels().is_empty()).await;

    server.crash();
    let attempts = (0..100).map(|number| {
        let client = client.clone();
        async move { client.mutex(&format!("free:{number}")).try_lock().await.expect_err("the server is down") }
    });
    for error in join_all(attempts).await {
        let words = chain(&error);
        assert!(matches!(error, Error::Unavailable { .. }), "{words}");
        assert!(error.to_string().contains(&address), "it names no server: {error}");
        assert!(
            words.contains("refused") || words.contains("closed") || words.contains("lost"),
            "it names no cause: {words}"
        );
    }
    server.revive();
    until("the connection to be back", ms(10_000), || sink.text().contains("reconnected")).await;
    until("it to listen again", ms(10_000), || sink.text().contains("open again")).await;
    waiter.abort();
    assert!(held.iter().all(|guard| !guard.is_lost()));
    for guard in held {
        guard.unlock().await.expect("held to the end");
    }
    until("all to be released", ms(10_000), || client.stats().now.releasing == 0).await;

    let loud = sink.lines(&["INFO", "WARN", "ERROR"]);
    assert!(loud.len() <= 8, "{} lines:\n{}", loud.len(), loud.join("\n"));
    let one = |words: &str| {
        let found: Vec<_> = loud.iter().filter(|line| line.contains(words)).collect();
        assert_eq!(found.len(), 1, "{words}:\n{}", loud.join("\n"));
        found[0].clone()
    };
    let (lost, back) = (one("connection lost"), one("reconnected"));
    let (deaf, hears) =
        (one("cannot open the connection for messages"), one("the connection for messages is open again"));
    assert!(deaf.contains(&address) && deaf.contains("cause=") && hears.contains(&address), "{deaf}\n{hears}");
    assert!(lost.contains(&format!("server={address}")) && lost.contains("cause="), "{lost}");
    assert!(back.contains(&format!("server={address}")) && back.contains("after="), "{back}");
    assert!(!loud.iter().any(|line| line.contains("the release failed")), "nobody held these locks: {loud:?}");

    passed_on_in_memory(&client, &sink).await;
    settings_that_nobody_touched(&server, &sink).await;
    refused_connections(&mut server).await;
}

/// Each turn is told once when it begins and once when it ends.
async fn passed_on_in_memory(client: &Client, sink: &Sink) {
    let before = client.stats().total;
    let turns = (0..8).map(|_| {
        let lock = client.mutex("passed:on");
        tokio::spawn(async move {
            for _ in 0..20 {
                lock.lock().await.expect("sooner or later free").unlock().await.expect("held to the end");
            }
        })
    });
    for turn in turns.collect::<Vec<_>>() {
        turn.await.expect("no panic");
    }
    assert!(client.stats().total.handed_over > before.handed_over, "none was passed on");
    let text = sink.text();
    let told = |word: &str| text.matches(&format!("{word} name=\"passed:on\"")).count();
    assert_eq!((told("acquired"), told("released")), (160, 160));
}

/// A lease so short that it moves the default of `command_timeout`.
async fn settings_that_nobody_touched(server: &Server, sink: &Sink) {
    let before = sink.lines(&["WARN"]).len();
    let client = Client::builder().url(server.url()).watchdog(ms(6_000)).connect().await.expect("the server answers");
    client.close().await.expect("nothing is held");
    assert_eq!(sink.lines(&["WARN"]).len(), before);
    let touched = Client::builder().url(server.url()).watchdog(ms(6_000)).command_timeout(ms(4_000));
    touched.connect().await.expect("the server answers").close().await.expect("nothing is held");
    assert!(sink.lines(&["WARN"]).len() > before);
}

/// A call that waited says "connection refused", and not only for how long it tried.
async fn refused_connections(server: &mut Server) {
    let client = Client::connect(&server.url()).await.expect("the server answers");
    server.crash();
    let error = client.mutex("x").try_lock_for(ms(1_000)).await.expect_err("the server is down");
    let words = chain(&error);
    assert!(words.contains("onnection refused") && words.contains(&format!("127.0.0.1:{}", server.port())), "{words}");
    let nobody = format!("redis://127.0.0.1:{}", server.port());
    let words = chain(&Client::connect(&nobody).await.expect_err("nobody is there"));
    assert!(words.contains("onnection refused") && words.contains(&nobody["redis://".len()..]), "{words}");
}
