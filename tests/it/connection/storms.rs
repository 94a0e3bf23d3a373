//! What a client asks of servers while something is wrong for long: less and less often.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use leasehold::{Client, Error};
use tokio::time::sleep;

use crate::support::{
    Server,
    fake::{Fake, Said, error, slots},
    ms,
    server::version,
    until,
};

/// Names in the lower and in the upper half of the slots: 866 and 12,182.
const LOW: &str = "hello";
const HIGH: &str = "foo";

/// Two masters of a cluster with a password.
struct Guarded {
    _server: Server,
    masters: [Fake; 2],
    /// Whether the password is the right one.
    is_right: Arc<AtomicBool>,
}

impl Guarded {
    fn start() -> Guarded {
        let (server, is_right) = (Server::start(), Arc::new(AtomicBool::new(true)));
        let masters = [0, 1].map(|_| Fake::before(&server, |_| Said::Pass));
        let layout = slots(&[(0, 8_191, masters[0].port(), "low"), (8_192, 16_383, masters[1].port(), "high")]);
        for master in &masters {
            let (layout, is_right) = (layout.clone(), Arc::clone(&is_right));
            master.becomes(move |words| match &*words[0].to_ascii_uppercase() {
                "CLUSTER" => Said::Reply(layout.clone()),
                "AUTH" if is_right.load(Ordering::Relaxed) => Said::Reply(b"+OK\r\n".to_vec()),
                "AUTH" => Said::Reply(error("WRONGPASS invalid username-password pair or user is disabled.")),
                _ => Said::Pass,
            });
        }
        Guarded { _server: server, masters, is_right }
    }

    fn change_password(&self) {
        self.is_right.store(false, Ordering::Relaxed);
        self.masters.iter().for_each(Fake::cut_all);
    }

    fn url(&self) -> String {
        let [low, high] = &self.masters;
        format!("redis-cluster://:secret@127.0.0.1:{},127.0.0.1:{}", low.port(), high.port())
    }

    fn asked(&self, words: &[&str]) -> usize {
        self.masters.iter().map(|master| master.asked(words)).sum()
    }
}

#[tokio::test]
async fn a_dead_master_costs_the_others_few_looks_at_the_map() {
    let all = Guarded::start();
    let client = Client::builder().url(all.url()).announce(false).connect().await.expect("both answer");
    for name in [LOW, HIGH] {
        client.lock(name).lock().await.expect("free").unlock().await.expect("ours");
    }
    let [dead, well] = &all.masters;
    dead.becomes(|_| Said::Cut);
    let lock = client.lock(LOW);
    let waiting = tokio::spawn(async move { lock.lock().await });
    let looks = || well.asked(&["CLUSTER", "SLOTS"]);
    let before = looks();
    until("a look", ms(3_000), || looks() > before).await;
    sleep(ms(2_000)).await; // pauses have grown by then
    let before = looks();
    sleep(ms(3_000)).await;
    let looks = looks() - before;
    println!("{looks} looks in three seconds");
    assert!((1..=7).contains(&looks), "{looks} in three seconds");
    waiting.abort();
}

/// A server that is gone for good is left alone as soon as its slots have another master: also by the connection for messages.
#[tokio::test]
async fn a_dead_server_without_slots_is_not_tried_again() {
    if version() < (7, 0) {
        return; // messages arrive from any server
    }
    let server = Server::start();
    let [old, new] = [0, 1].map(|_| Fake::before(&server, |_| Said::Pass));
    let leads_to = |master: &Fake| {
        let layout = slots(&[(0, 16_383, master.port(), "the same")]);
        [&old, &new].iter().for_each(|node| {
            let layout = layout.clone();
            node.becomes(move |words| if words[0] == "CLUSTER" { Said::Reply(layout.clone()) } else { Said::Pass });
        });
    };
    leads_to(&old);
    let url = format!("redis-cluster://127.0.0.1:{},127.0.0.1:{}", old.port(), new.port());
    let [holder, waiter] = [
        Client::builder().url(&url).announce(false).connect().await,
        Client::builder().url(&url).announce(false).connect().await,
    ]
    .map(|client| client.expect("one answers"));
    let (guard, lock) = (holder.lock(LOW).lock().await.expect("free"), waiter.lock(LOW));
    let waiting = tokio::spawn(async move { lock.lock().await });
    until("it to listen", ms(5_000), || old.asked(&["SSUBSCRIBE"]) > 0).await;
    leads_to(&new);
    old.becomes(|_| Said::Cut);
    until("it to listen there", ms(10_000), || new.asked(&["SSUBSCRIBE"]) > 0).await;
    guard.unlock().await.expect("ours");
    waiting.await.expect("no panic").expect("free").unlock().await.expect("ours");
    sleep(ms(2_000)).await; // attempts that were under way
    let before = old.asked(&[]);
    sleep(ms(3_000)).await;
    assert_eq!(old.asked(&[]), before, "it was tried again");
}

#[tokio::test]
async fn a_changed_password_costs_few_logins() {
    let all = Guarded::start();
    let client = Client::builder().url(all.url()).announce(false).connect().await.expect("let in");
    for name in [LOW, HIGH] {
        client.lock(name).lock().await.expect("free").unlock().await.expect("ours");
    }
    all.change_password();
    let before = all.asked(&["AUTH"]);
    until("logins to fail", ms(3_000), || all.asked(&["AUTH"]) > before).await;
    sleep(ms(3_000)).await; // pauses have grown by then
    let before = all.asked(&["AUTH"]);
    sleep(ms(3_000)).await;
    let logins = all.asked(&["AUTH"]) - before;
    println!("{logins} logins in three seconds");
    assert!(logins <= 12, "{logins} in three seconds");
    all.is_right.store(true, Ordering::Relaxed);
    client.lock(LOW).lock().await.expect("let in again").unlock().await.expect("ours");
}

/// A lazy client that was refused logs in again when somebody asks again, and is let in when it may.
#[tokio::test]
async fn a_refused_client_that_nobody_uses_does_not_log_in() {
    let all = Guarded::start();
    let [one, _] = &all.masters;
    all.is_right.store(false, Ordering::Relaxed);
    for url in [format!("redis://:secret@127.0.0.1:{}", one.port()), all.url()] {
        let client = Client::builder().announce(false).url(url).connect_lazy().expect("a good URL");
        let refused = client.ping().await;
        assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
        sleep(ms(1_000)).await; // another may be on its way
        let before = all.asked(&["AUTH"]);
        sleep(ms(2_000)).await;
        assert_eq!(all.asked(&["AUTH"]), before, "nobody asked");
        let refused = client.ping().await;
        assert!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
        assert!(all.asked(&["AUTH"]) > before, "it is tried again");
        all.is_right.store(true, Ordering::Relaxed);
        sleep(ms(1_000)).await;
        client.ping().await.expect("let in by now");
        all.is_right.store(false, Ordering::Relaxed);
    }
}
