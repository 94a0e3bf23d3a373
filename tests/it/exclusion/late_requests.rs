//! Requests of a connection that was thrown away, which the server reads later: they must not undo what came after.

use crate::support::{
    Server, before, behind, ms,
    proxy::{Fault, Rule, Way},
    script,
    server::version,
    until,
};

/// A nested acquire is held back until long after the second try of it was answered and its level given back.
#[tokio::test]
async fn a_new_connection_first_closes_the_one_before() {
    if version() < (6, 2) {
        return; // nobody says which connection it is, see docs/dev/connection.md
    }
    let server = Server::start();
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder.command_timeout(ms(400))).await;
    let lock = client.lock("x");
    let outer = lock.lock().await.expect("free");

    proxy.rule(Rule::new(script(&server, "acquire"), Fault::Delay(Way::There, ms(1_500))));
    let inner = lock.lock().await.expect("by the second try");
    inner.unlock().await.expect("ours");
    assert!(client.stats().total.reconnects > 0, "the first try had no answer");

    let late = until("the first try to be let go", ms(3_000), || proxy.tally().delayed == 1);
    late.await;
    tokio::time::sleep(ms(1_000)).await; // it must not do anything: there is no condition to wait for
    assert_eq!(server.lock("x"), [(outer.id().to_owned(), 1)]);
    assert!(server.calls("client|kill") > 0);
}
