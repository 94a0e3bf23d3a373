//! Every primitive in a cluster: its keys stand together, its messages arrive, and a slot that moves costs no hold.

use std::time::Duration;

use leasehold::Client;

use crate::{
    kinds::family::{How, Way},
    support::{deployment::cluster::Cluster, ms, until, within},
};

const SOON: Duration = ms(10_000);
const WAYS: [Way; 5] = [Way::Plain, Way::Fenced, Way::Read, Way::Write, Way::Fair];

async fn connect(cluster: &Cluster) -> Client {
    Client::connect(&cluster.url()).await.expect("the cluster answers")
}

/// Also names with a tag, which are not wrapped; each way has its own, for a name is one kind of lock.
fn names(way: Way) -> [String; 3] {
    [format!("{way:?}"), format!("{{{way:?}}}tagged"), format!("x}}{{{way:?}-in}}side")]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_as_on_one_server_and_stays_while_its_slot_moves() {
    let cluster = Cluster::of_masters().await;
    let (one, two) = (connect(&cluster).await, connect(&cluster).await);
    for way in WAYS {
        for name in names(way) {
            let excluding = if way == Way::Read { Way::Write } else { way };
            let outer = within("the lock", SOON, excluding.lock(&one, &name)).await.0;
            let inner = within("the lock again", SOON, excluding.lock(&one, &name)).await.0;
            let (waiter, of, refused) = (two.clone(), name.clone(), two.stats().total.refused);
            let waiting = tokio::spawn(async move { way.take(&waiter, &of, How::default()).await });
            until("it to sleep", SOON, || two.stats().total.refused >= refused + 2).await;
            inner.unlock().await.expect("ours");
            outer.unlock().await.expect("ours");
            let (held, took) = within("its turn", SOON, waiting).await;
            assert!(took < ms(1_500), "{way:?} {name}: by message, not {took:?}");
            let held = held.expect("no panic").expect("answered").expect("its turn");

            let slot = cluster.slot_of(&name);
            let to = (cluster.owner_of(slot) + 1) % cluster.nodes().len();
            cluster.migrate(slot, to);
            within("a look after the move", SOON, held.check()).await.0.expect("still ours");
            within("the release", SOON, held.unlock()).await.0.expect("ours to the end");
            until("it to be free", SOON, || !cluster.master_of(&name).exists(&name)).await;
        }
    }
}
