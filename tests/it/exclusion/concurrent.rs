//! Many calls under way on one connection, and it is cut: each of them ends with what is true in Redis.

use leasehold::{Client, Guard, Owner};

use crate::support::{
    Server, before, behind, ms,
    proxy::{Fault, Mode, Proxy, Rule, Way, Which},
    script, until, within,
};

const CALLS: u64 = 200;
/// Calls of scripts under way at least, while nothing is answered: eight by themselves, and one for each script with
/// all that was gathered.
const UNDER_WAY: u64 = 10;

/// What one owner has of one name.
struct Belief {
    name: String,
    owner: Owner,
    guards: Vec<Guard>,
}

impl Belief {
    /// One owner of a name of his own, with so many levels.
    async fn of(client: &Client, n: u64, levels: u64) -> Belief {
        let mut belief = Belief { name: format!("lock-{n}"), owner: Owner::new(), guards: Vec::new() };
        for _ in 0..levels {
            belief.deeper(client).await;
        }
        belief
    }

    async fn deeper(&mut self, client: &Client) {
        let lock = client.lock(&self.name).owner(&self.owner);
        self.guards.push(lock.lock().await.expect("nobody else asks for it"));
    }

    async fn shallower(&mut self) {
        self.guards.pop().expect("it has a level").unlock().await.expect("ours to the end");
    }

    fn expected(&self) -> Vec<(String, u32)> {
        let count = u32::try_from(self.guards.len()).expect("few");
        self.guards.first().map(|guard| (guard.id().to_owned(), count)).into_iter().collect()
    }
}

/// Cuts once, at the request or reply after so many, with 200 calls begun and as many as possible under way.
async fn one_cut(way: Way, after: u64) {
    let server = Server::start();
    for name in ["acquire", "release"] {
        script(&server, name);
    }
    let proxy = before(&server);
    let client = behind(&proxy, |builder| builder).await;
    let mut beliefs = Vec::new();
    for n in 0..CALLS {
        beliefs.push(Belief::of(&client, n, n % 4).await);
    }
    let beliefs =
        cut_during_a_call_of_each(&client, &proxy, beliefs, Rule::new(Which::Any, Fault::Cut(way)).after(after)).await;

    let tally = proxy.tally();
    assert_eq!(tally.cut_there + tally.cut_back, 1);
    for belief in &beliefs {
        assert_eq!(server.lock(&belief.name), belief.expected(), "{}", belief.name);
        assert!(belief.guards.iter().all(|guard| !guard.is_lost() && guard.holds() as usize == belief.guards.len()));
    }
    let held = beliefs.iter().filter(|belief| !belief.guards.is_empty()).count() as u64;
    let stats = client.stats();
    assert_eq!((stats.now.holds, stats.now.waiting, stats.total.lost, stats.total.reconnects), (held, 0, 0, 1));
    for mut belief in beliefs {
        while !belief.guards.is_empty() {
            belief.shallower().await;
        }
    }
    assert_eq!(server.ask::<u32>(&["DBSIZE"]), 0);
    until("the client to be idle", ms(1_000), || client.stats().now.releasing == 0).await;
    assert_eq!(client.stats().total.acquired, client.stats().total.released);
}

/// Nothing is read while they begin, so that they are under way together.
async fn cut_during_a_call_of_each(client: &Client, proxy: &Proxy, beliefs: Vec<Belief>, cut: Rule) -> Vec<Belief> {
    let calls = client.stats().total.calls;
    proxy.set(Mode::Stall);
    let tasks: Vec<_> = beliefs.into_iter().map(|belief| tokio::spawn(one_call(client.clone(), belief))).collect();
    until("the calls to be under way", ms(1_000), || client.stats().total.calls - calls >= UNDER_WAY).await;
    proxy.rule(cut);
    proxy.set(Mode::Pass);
    let mut beliefs = Vec::new();
    for task in tasks {
        let (belief, _) = within("a call to end", ms(5_000), task).await;
        beliefs.push(belief.expect("no panic"));
    }
    beliefs
}

/// Who has nothing takes it, who has one level gives it back, who has two takes a third, who has three gives one back.
async fn one_call(client: Client, mut belief: Belief) -> Belief {
    match belief.guards.len() {
        0 | 2 => belief.deeper(&client).await,
        _ => belief.shallower().await,
    }
    belief
}

#[tokio::test]
async fn cut_before_anything_arrived() {
    one_cut(Way::There, 0).await;
}

#[tokio::test]
async fn cut_when_half_of_it_had_arrived() {
    one_cut(Way::There, UNDER_WAY / 2).await;
}

#[tokio::test]
async fn cut_before_anything_was_answered() {
    one_cut(Way::Back, 0).await;
}

#[tokio::test]
async fn cut_when_half_of_it_was_answered() {
    one_cut(Way::Back, UNDER_WAY / 2).await;
}

#[tokio::test]
async fn cut_at_the_last_answer() {
    one_cut(Way::Back, UNDER_WAY - 1).await;
}
