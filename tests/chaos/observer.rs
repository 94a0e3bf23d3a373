//! Looks at the server all the time, through whatever happens to it, and notes who has which lock.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use redis::{Connection, RedisResult};

use crate::{NAMES, clock, history::Seen};

const PAUSE: Duration = Duration::from_millis(20);
/// A server that takes longer is asked anew.
const PATIENCE: Duration = Duration::from_secs(1);

type Sights = HashMap<String, Vec<Seen>>;

#[derive(Debug)]
pub(crate) struct Observer {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Sights>,
}

impl Observer {
    pub(crate) fn start(url: &str) -> Observer {
        let (over, client) = (Arc::new(AtomicBool::new(false)), redis::Client::open(url).expect("a good URL"));
        let until = Arc::clone(&over);
        Observer { over, thread: thread::spawn(move || watch(&client, &until)) }
    }

    pub(crate) fn end(self) -> Sights {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

fn watch(client: &redis::Client, over: &AtomicBool) -> Sights {
    let mut sights = Sights::new();
    while !over.load(Ordering::Relaxed) {
        // It ends when the server goes away, refuses, or is silent.
        let _ = connection(client).and_then(|mut raw| look(&mut raw, over, &mut sights));
        thread::sleep(PAUSE);
    }
    sights
}

fn connection(client: &redis::Client) -> RedisResult<Connection> {
    let raw = client.get_connection_with_timeout(PATIENCE)?;
    raw.set_read_timeout(Some(PATIENCE))?;
    Ok(raw)
}

fn look(raw: &mut Connection, over: &AtomicBool, sights: &mut Sights) -> RedisResult<()> {
    let mut all = redis::pipe();
    NAMES.iter().for_each(|name| _ = all.cmd("HKEYS").arg(name));
    while !over.load(Ordering::Relaxed) {
        let since = clock();
        let ids: Vec<Vec<String>> = all.query(raw)?;
        let at = clock();
        for (name, ids) in NAMES.iter().zip(ids) {
            let seen = Seen { since, at, id: ids.into_iter().next() };
            sights.entry((*name).to_owned()).or_default().push(seen);
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
