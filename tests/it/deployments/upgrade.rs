//! A cluster whose servers are upgraded from Redis 6, one after the other: channels belong to shards when all of them have those.

use leasehold::Client;

use crate::support::{
    Server,
    fake::{Fake, Said, error, slots},
    ms,
    server::version,
    until, within,
};

/// Names in the lower and in the upper half of the slots: 866 and 12,182.
const LOW: &str = "hello";
const HIGH: &str = "foo";

fn becomes(server: &Fake, layout: &[u8], has_shards: bool) {
    let layout = layout.to_vec();
    server.becomes(move |words| match &*words[0].to_ascii_uppercase() {
        "CLUSTER" => Said::Reply(layout.clone()),
        "PUBSUB" if !has_shards => Said::Reply(error("ERR Unknown PUBSUB subcommand or wrong number of arguments")),
        _ => Said::Pass,
    });
}

/// How often a lock was given back with that command.
fn published(server: &Fake, command: &str) -> usize {
    server.asked_with(&["EVALSHA"], command)
}

async fn use_both(client: &Client) {
    for name in [LOW, HIGH] {
        client.lock(name).lock().await.expect("free").unlock().await.expect("ours");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_from_before_and_after_wake_each_other() {
    if version() < (7, 0) {
        return; // the server behind both has no channels of shards
    }
    let server = Server::start();
    let (low, high) = (Fake::before(&server, |_| Said::Pass), Fake::before(&server, |_| Said::Pass));
    let layout = slots(&[(0, 8_191, low.port(), "low"), (8_192, 16_383, high.port(), "high")]);
    [&low, &high].iter().for_each(|node| becomes(node, &layout, false));
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", low.port(), high.port());
    let before = Client::connect(&url).await.expect("both answer");
    use_both(&before).await;
    assert_eq!((published(&low, "SPUBLISH"), published(&high, "SPUBLISH")), (0, 0));

    becomes(&low, &layout, true); // the first is upgraded
    use_both(&before).await;
    assert_eq!((published(&low, "SPUBLISH"), published(&high, "SPUBLISH")), (0, 0), "the other one cannot do that yet");

    becomes(&high, &layout, true);
    use_both(&before).await;
    let after = Client::connect(&url).await.expect("both answer");
    use_both(&after).await;
    for (holder, waiter) in [(&before, &after), (&after, &before)] {
        let guard = holder.lock(LOW).lock().await.expect("free");
        let (lock, refused) = (waiter.lock(LOW), waiter.stats().total.refused);
        let waiting = tokio::spawn(async move { lock.lock().await });
        until("it to wait", ms(5_000), || waiter.stats().total.refused >= refused + 2).await;
        guard.unlock().await.expect("ours");
        let (taken, took) = within("its turn", ms(8_000), waiting).await;
        taken.expect("no panic").expect("free").unlock().await.expect("ours");
        assert!(took < ms(1_000), "by message, not after {took:?}");
    }
    assert!(published(&low, "SPUBLISH") > 0, "channels belong to shards now");
}
