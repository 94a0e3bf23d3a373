//! Looks at the servers all the time, also during troubles, and notes the holders and the queue of each lock.

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

use crate::{
    clock,
    history::Seen,
    locks::{line_of, look_at, mark_of, seen, tokens_of},
};

const PAUSE: Duration = Duration::from_millis(20);

type Sights = HashMap<String, Vec<Seen>>;

/// Knows where the locks are.
pub(crate) trait Eye: Send {
    /// The holders of these locks. Leaves out a lock whose state is not known now.
    fn look(&mut self, names: &[&'static str]) -> Vec<(&'static str, Seen)>;
}

#[derive(Debug)]
pub(crate) struct Observer {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Sights>,
}

impl Observer {
    pub(crate) fn start(mut eye: Box<dyn Eye>, names: &'static [&'static str]) -> Observer {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let watch = move || {
            let mut sights = Sights::new();
            while !until.load(Ordering::Relaxed) {
                for (name, seen) in eye.look(names) {
                    sights.entry(name.to_owned()).or_default().push(seen);
                }
                thread::sleep(PAUSE);
            }
            sights
        };
        Observer { over, thread: thread::spawn(watch) }
    }

    pub(crate) fn end(self) -> Sights {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// To one server, kept as long as it answers.
pub(crate) struct Sight {
    client: redis::Client,
    raw: Option<Connection>,
    /// If a server takes longer, the observer connects again.
    patience: Duration,
}

impl Sight {
    pub(crate) fn of(url: &str, patience: Duration) -> Sight {
        Sight { client: redis::Client::open(url).expect("a good URL"), raw: None, patience }
    }

    /// Asks over the connection there is, or a new one. One on which something fails that is not the server's own word is
    /// not used again.
    pub(crate) fn ask<T>(&mut self, ask: impl FnOnce(&mut Connection) -> RedisResult<T>) -> RedisResult<T> {
        let mut raw = match self.raw.take() {
            Some(raw) => raw,
            None => connection(&self.client, self.patience)?,
        };
        let answer = ask(&mut raw);
        let is_fine = answer.as_ref().err().is_none_or(|error| error.code().is_some());
        self.raw = Some(raw).filter(|_| is_fine);
        answer
    }

    /// All locks at one moment.
    pub(crate) fn look(&mut self, names: &[&'static str]) -> Vec<(&'static str, Seen)> {
        let since = clock();
        let mut all = redis::pipe();
        names.iter().for_each(|name| _ = all.add_command(command(&look_at(name))));
        let lines: Vec<_> = names.iter().filter_map(|name| Some((*name, line_of(name)?))).collect();
        lines.iter().for_each(|(_, line)| _ = all.cmd("LRANGE").arg(line).arg(0).arg(-1));
        let counts: Vec<_> = names.iter().filter_map(|name| Some((*name, tokens_of(name)?))).collect();
        counts.iter().for_each(|(_, count)| _ = all.cmd("MGET").arg(count));
        let marks: Vec<_> = names.iter().filter_map(|name| Some((*name, mark_of(name)?))).collect();
        marks.iter().for_each(|(_, mark)| _ = all.cmd("MGET").arg(mark));
        let Ok(mut ids) = self.ask(|raw| all.query::<Vec<Vec<Option<String>>>>(raw)) else { return Vec::new() };
        let marked = ids.split_off(names.len() + lines.len() + counts.len());
        let tokens = ids.split_off(names.len() + lines.len());
        let waiting = ids.split_off(names.len());
        let [ids, waiting, tokens, marked] =
            [ids, waiting, tokens, marked].map(|all| all.into_iter().map(there).collect::<Vec<_>>());
        let at = clock();
        let look = |(name, said): (&&'static str, Vec<String>)| (*name, seen(name, (since, at), said));
        let mut looks: Vec<_> = names.iter().zip(ids).map(look).collect();
        for ((name, _), line) in lines.into_iter().zip(waiting) {
            looks.iter_mut().filter(|(of, _)| *of == name).for_each(|(_, seen)| seen.line.clone_from(&line));
        }
        for ((name, _), token) in counts.into_iter().zip(tokens) {
            let token = token.first().and_then(|token| token.parse().ok());
            looks.iter_mut().filter(|(of, _)| *of == name).for_each(|(_, seen)| seen.token = token);
        }
        for ((name, _), mark) in marks.into_iter().zip(marked) {
            looks.iter_mut().filter(|(of, _)| *of == name).for_each(|(_, seen)| seen.mark = mark.first().cloned());
        }
        looks
    }
}

fn there(all: Vec<Option<String>>) -> Vec<String> {
    all.into_iter().flatten().collect()
}

impl Eye for Sight {
    fn look(&mut self, names: &[&'static str]) -> Vec<(&'static str, Seen)> {
        Sight::look(self, names)
    }
}

pub(crate) fn command(words: &[String]) -> redis::Cmd {
    words.iter().fold(redis::Cmd::new(), |mut command, word| {
        command.arg(word);
        command
    })
}

fn connection(client: &redis::Client, patience: Duration) -> RedisResult<Connection> {
    let raw = client.get_connection_with_timeout(patience)?;
    raw.set_read_timeout(Some(patience))?;
    Ok(raw)
}
