//! The first map of a cluster. A new client knows no node ids, so one reply proves nothing: a server of another cluster may have an address
//! of the URL now. The client asks all servers in the URL, and believes the cluster to which the majority belongs.

use std::{collections::BTreeSet, pin::pin, time::Duration};

use futures_util::stream::{Stream, StreamExt};
use tokio::{sync::Notify, time::sleep};

use super::reading::Reading;
use crate::redis::{
    fault::{Fault, source},
    url::Address,
};

/// The time for which the client waits for the other servers in the URL after the first reply.
const GRACE: Duration = Duration::from_millis(500);
/// The parts in which it waits. If this process is paused, only one part passes, and the replies that have arrived meanwhile are read.
const PARTS: u32 = 10;

/// The reply of a server in the URL.
#[derive(Debug)]
pub(super) struct SeedReply {
    /// The node id of the server, if it says so.
    pub(super) server: Option<String>,
    pub(super) reading: Reading,
}

/// The first map to believe.
#[derive(Debug)]
pub(super) struct Agreed {
    pub(super) reading: Reading,
    /// The servers in the URL that belong to other clusters.
    pub(super) strangers: Vec<Address>,
}

/// Collects the replies of so many servers until there is a first map to believe.
pub(super) async fn agree(
    seeds: usize,
    mut asked: impl Stream<Item = Result<SeedReply, Fault>> + Unpin,
) -> Result<Agreed, Fault> {
    let (mut replies, mut wait, heard) = (Replies::of(seeds), Grace::Begun, Notify::new());
    let mut grace = pin!(grace(&heard));
    loop {
        tokio::select! {
            biased;
            said = asked.next() => match said {
                Some(Ok(reply)) => {
                    replies.given.push(reply);
                    heard.notify_one();
                }
                Some(Err(fault)) => replies.last = fault,
                None => wait = Grace::Over,
            },
            () = &mut grace, if wait == Grace::Begun => wait = Grace::Long,
        }
        match replies.decided(wait) {
            Some(cluster) => return Ok(replies.believed(&cluster)),
            None if wait == Grace::Over => return Err(replies.why_not()),
            None => {}
        }
    }
}

async fn grace(heard: &Notify) {
    heard.notified().await;
    for _ in 0..PARTS {
        sleep(GRACE / PARTS).await;
    }
}

/// The replies for which the client still waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grace {
    /// Those of all servers.
    Begun,
    /// Those without which there is no majority: [`GRACE`] has passed since the first reply.
    Long,
    /// None: all servers have replied or failed.
    Over,
}

/// The replies so far.
#[derive(Debug)]
struct Replies {
    /// The number of servers in the URL.
    seeds: usize,
    given: Vec<SeedReply>,
    /// The last failure.
    last: Fault,
}

/// The replies that come from one cluster, by their places.
type Cluster = BTreeSet<usize>;

impl Replies {
    fn of(seeds: usize) -> Replies {
        let last = Fault::said("CLUSTERDOWN no server of the cluster is known");
        Replies { seeds, given: Vec::new(), last }
    }

    /// The cluster to believe. At first it needs more than half of all servers in the URL, later more than half of those that replied.
    fn decided(&self, wait: Grace) -> Option<Cluster> {
        let replied = self.servers(0..self.given.len());
        let twice = self.given.len() - replied;
        let all = if wait == Grace::Begun { self.seeds - twice } else { replied };
        self.clusters().into_iter().find(|cluster| self.servers(cluster.iter().copied()) * 2 > all)
    }

    /// Replies are of one cluster if they name the same node, or if a third one links them.
    fn clusters(&self) -> Vec<Cluster> {
        let mut clusters: Vec<Cluster> = Vec::new();
        for (at, reply) in self.given.iter().enumerate() {
            let is_same = |cluster: &Cluster| cluster.iter().any(|&other| reply.shares(&self.given[other]));
            let (same, others): (Vec<_>, _) = clusters.into_iter().partition(is_same);
            clusters = others;
            clusters.push(same.into_iter().flatten().chain([at]).collect());
        }
        clusters
    }

    /// The number of servers behind these replies. The URL may name one server twice, for example by its host name and by its address.
    fn servers(&self, replies: impl Iterator<Item = usize>) -> usize {
        replies.map(|at| self.given[at].server()).collect::<BTreeSet<_>>().len()
    }

    /// The map of that cluster's first reply.
    fn believed(mut self, cluster: &Cluster) -> Agreed {
        let others = self.given.iter().enumerate().filter(|(at, _)| !cluster.contains(at));
        let strangers = others.map(|(_, reply)| reply.reading.from.clone()).collect();
        let first = *cluster.first().expect("a cluster has a reply");
        Agreed { reading: self.given.swap_remove(first).reading, strangers }
    }

    fn why_not(self) -> Fault {
        if self.given.is_empty() { self.last } else { Fault::NotReady(source(&self.dissent())) }
    }

    fn dissent(&self) -> String {
        let names = |cluster: Cluster| {
            let names: Vec<_> = cluster.iter().map(|&at| self.given[at].reading.from.to_string()).collect();
            format!("[{}]", names.join(", "))
        };
        let clusters: Vec<_> = self.clusters().into_iter().map(names).collect();
        format!(
            "the servers in the URL belong to different clusters, and no cluster has the majority: {}; \
             remove the servers of other clusters from the URL, or name more servers of yours",
            clusters.join(" and ")
        )
    }
}

impl SeedReply {
    /// Without node ids, replies cannot be told apart.
    fn shares(&self, other: &SeedReply) -> bool {
        let (ours, theirs) = (&self.reading.layout.nodes, &other.reading.layout.nodes);
        !ours.is_disjoint(theirs) || ours.is_empty() && theirs.is_empty()
    }

    /// What distinguishes the server: its node id, else its address.
    fn server(&self) -> (Option<&str>, Option<&Address>) {
        match &self.server {
            Some(id) => (Some(id), None),
            None => (None, Some(&self.reading.from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::{BoxStream, FuturesUnordered, pending};
    use tokio::time::Instant;

    use super::*;
    use crate::redis::conn::Layout;

    fn address(port: u16) -> Address {
        Address::Tcp("h".into(), port)
    }

    /// The reply of the server at that port, which names these nodes.
    fn reply(port: u16, nodes: &[&str]) -> SeedReply {
        let layout = Layout { ranges: Vec::new(), nodes: nodes.iter().map(|&id| id.to_owned()).collect() };
        SeedReply { server: None, reading: Reading { from: address(port), layout, has_shards: true } }
    }

    /// The same by a server that says its own id.
    fn reply_of(id: &str, port: u16, nodes: &[&str]) -> SeedReply {
        SeedReply { server: Some(id.to_owned()), ..reply(port, nodes) }
    }

    fn replies(seeds: usize, given: Vec<SeedReply>) -> Replies {
        Replies { given, ..Replies::of(seeds) }
    }

    /// The ports of the servers whose cluster is believed, at each stage.
    fn decided(seeds: usize, given: Vec<SeedReply>) -> [Vec<usize>; 3] {
        let replies = replies(seeds, given);
        [Grace::Begun, Grace::Long, Grace::Over]
            .map(|wait| replies.decided(wait).map_or(Vec::new(), |cluster| cluster.into_iter().collect()))
    }

    fn always(places: &[usize]) -> [Vec<usize>; 3] {
        [places, places, places].map(<[usize]>::to_vec)
    }

    fn later(places: &[usize]) -> [Vec<usize>; 3] {
        [&[], places, places].map(<[usize]>::to_vec)
    }

    #[test]
    fn more_than_half_of_the_url_decides_at_once() {
        assert_eq!(decided(1, vec![reply(1, &["a"])]), always(&[0]));
        assert_eq!(decided(3, vec![reply(1, &["x"]), reply(2, &["a"]), reply(3, &["a"])]), always(&[1, 2]));
        assert_eq!(decided(3, vec![reply(2, &["a"]), reply(3, &["a"])]), always(&[0, 1]));
        let linked = vec![reply(1, &["a", "b"]), reply(2, &["c", "d"]), reply(3, &["b", "c"])];
        assert_eq!(decided(5, linked), always(&[0, 1, 2]));
    }

    #[test]
    fn fewer_decide_when_the_others_are_silent() {
        assert_eq!(decided(2, vec![reply(1, &["a"])]), later(&[0]));
        assert_eq!(decided(3, vec![reply(1, &["a"])]), later(&[0]));
        assert_eq!(decided(6, vec![reply(1, &["x"]), reply(2, &["a"]), reply(3, &["a"])]), later(&[1, 2]));
    }

    #[test]
    fn without_a_majority_nothing_is_believed() {
        assert_eq!(decided(3, Vec::new()), always(&[]));
        assert_eq!(decided(2, vec![reply(1, &["x"]), reply(2, &["a"])]), always(&[]));
        let most = vec![reply(1, &["a"]), reply(2, &["a"]), reply(3, &["x"]), reply(4, &["y"])];
        assert_eq!(decided(4, most), always(&[]), "half is not more than half");
    }

    #[test]
    fn a_server_that_is_named_twice_counts_once() {
        let twice = || vec![reply_of("1", 1, &["x"]), reply_of("1", 2, &["x"])];
        assert_eq!(decided(3, twice()), later(&[0, 1]));
        assert_eq!(decided(2, twice()), always(&[0, 1]));
        let third = [reply_of("3", 3, &["a"])];
        assert_eq!(decided(3, twice().into_iter().chain(third).collect()), always(&[]));
    }

    #[test]
    fn servers_without_node_ids_are_of_one_cluster() {
        assert_eq!(decided(2, vec![reply(1, &[]), reply(2, &[])]), always(&[0, 1]));
        assert_eq!(decided(2, vec![reply(1, &[]), reply(2, &["a"])]), always(&[]));
    }

    #[test]
    fn the_error_names_the_servers_of_each_cluster() {
        let fault = replies(3, vec![reply(1, &["x"]), reply(2, &["a"])]).why_not();
        assert!(matches!(fault, Fault::NotReady(_)), "{fault:?}");
        let words = fault.source().expect("a reason").to_string();
        assert!(words.contains("[h:1] and [h:2]"), "{words}");
    }

    /// The reply after so many milliseconds.
    type Given = (u64, Result<SeedReply, Fault>);

    /// The port of the reply that is believed, the ports of strangers, and the milliseconds that it took. The rest is silent.
    async fn agreed(seeds: usize, given: Vec<Given>) -> (Result<(Address, Vec<Address>), Fault>, u128) {
        let begun = Instant::now();
        let is_silent = given.len() < seeds;
        let late = async |(time, reply)| {
            sleep(Duration::from_millis(time)).await;
            reply
        };
        let asked: FuturesUnordered<_> = given.into_iter().map(late).collect();
        let asked: BoxStream<'_, _> = if is_silent { asked.chain(pending()).boxed() } else { asked.boxed() };
        let agreed = agree(seeds, asked).await.map(|agreed| (agreed.reading.from, agreed.strangers));
        (agreed, begun.elapsed().as_millis())
    }

    #[tokio::test]
    async fn the_first_reply_alone_does_not_decide() {
        let given = vec![(0, Ok(reply(1, &["x"]))), (100, Ok(reply(2, &["a"]))), (120, Ok(reply(3, &["a"])))];
        let (believed, took) = agreed(3, given).await;
        assert_eq!(believed.expect("a majority"), (address(2), vec![address(1)]));
        assert!(took >= 120, "{took}");
    }

    #[tokio::test]
    async fn silent_servers_cost_the_grace_and_failed_ones_nothing() {
        let (believed, took) = agreed(3, vec![(100, Ok(reply(1, &["a"])))]).await;
        assert_eq!(believed.expect("it is the only one"), (address(1), Vec::new()));
        assert!(took >= 600, "{took}");
        let failed = || Err(Fault::unknown("dead"));
        let (believed, took) = agreed(3, vec![(0, failed()), (100, Ok(reply(1, &["a"]))), (0, failed())]).await;
        assert_eq!(believed.expect("it is the only one"), (address(1), Vec::new()));
        assert!((100..600).contains(&took), "{took}");
    }

    #[tokio::test]
    async fn a_tie_waits_for_the_reply_that_decides() {
        let tie = || [(0, Ok(reply(1, &["x"]))), (0, Ok(reply(2, &["a"])))];
        let (believed, took) = agreed(3, tie().into_iter().chain([(800, Ok(reply(3, &["a"])))]).collect()).await;
        assert_eq!(believed.expect("a majority"), (address(2), vec![address(1)]));
        assert!(took >= 800, "{took}");
        let failed = Err(Fault::unknown("dead"));
        let (refused, took) = agreed(3, tie().into_iter().chain([(800, failed)]).collect()).await;
        assert!(matches!(refused, Err(Fault::NotReady(_))), "{refused:?}");
        assert!(took >= 800, "{took}");
    }
}
