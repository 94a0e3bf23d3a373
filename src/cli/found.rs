//! Finds locks and their holders on the servers.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use leasehold::{Blocked, Client, ClientRecord, Error, Holder, Result, RwState, Value};
use serde_json::{Value as Json, json};

use crate::exit::Failure;

/// Names in one `SCAN`, and locks that are asked about at once.
const PAGE: &str = "500";
/// The types of keys that show holders, and what is before and after the name. Permits that are taken are in a sorted set.
const KEYS: [(&str, &str, &str); 3] = [("hash", "", ""), ("zset", "{", "}:timeout"), ("zset", "", ":timeout")];

/// A lock that is held, or that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) holders: Vec<Holder>,
    /// The ids of those that wait for a fair lock, the next one first.
    pub(crate) waiting: Vec<String>,
}

/// What has this name; `None` if nobody holds it.
pub(crate) async fn status(client: &Client, name: &str) -> Result<Option<Found>> {
    let waiting = client.fair_lock(name).waiters().await.unwrap_or_default(); // an error: it is no fair lock
    let found = match of_hash(client, name).await {
        Err(error @ Error::Conflict { .. }) => {
            let holders = match client.semaphore(name).inspect().await {
                Err(Error::Conflict { .. }) => return Err(error),
                holders => holders?,
            };
            (!holders.is_empty()).then(|| found(name, "semaphore", holders))
        }
        found => found?,
    };
    Ok(match found {
        Some(found) => {
            Some(Found { kind: if waiting.is_empty() { found.kind } else { "fair lock" }, waiting, ..found })
        }
        None if waiting.is_empty() => None,
        None => Some(Found { name: name.to_owned(), kind: "fair lock", holders: Vec::new(), waiting }),
    })
}

/// The holder of the lock with this name, in one line.
pub(crate) async fn who_has(client: &Client, name: &str) -> String {
    let Ok(Some(found)) = status(client, name).await else { return format!("{name} was held") };
    let first = found.holders.first().map(who).unwrap_or_default();
    match found.holders.len() {
        1 if rests(&found.holders[0]) => format!("{name}: the work of this period is done"),
        0 => format!("{} wait for {name}", found.waiting.len()),
        1 => format!("{name} is held by {first}"),
        all => format!("{name} is held by {first} and {} others", all - 1),
    }
}

/// A lock or a read-write lock.
async fn of_hash(client: &Client, name: &str) -> Result<Option<Found>> {
    match client.lock(name).inspect().await {
        Ok(holder) => Ok(holder.map(|holder| found(name, "lock", vec![holder]))),
        Err(Error::Conflict { .. }) => Ok(match client.rw_lock(name).inspect().await? {
            RwState::Free => None,
            RwState::Read(readers) => Some(found(name, "read lock", readers)),
            RwState::Write { writer, readers } => {
                Some(found(name, "write lock", [writer].into_iter().chain(readers).collect()))
            }
        }),
        Err(error) => Err(error),
    }
}

async fn of_permits(client: &Client, name: &str) -> Result<Option<Found>> {
    let holders = match client.semaphore(name).inspect().await {
        Err(Error::Conflict { .. }) => Vec::new(),
        holders => holders?,
    };
    Ok((!holders.is_empty()).then(|| found(name, "semaphore", holders)))
}

fn found(name: &str, kind: &'static str, holders: Vec<Holder>) -> Found {
    Found { name: name.to_owned(), kind, holders, waiting: Vec::new() }
}

/// All locks whose names match, in the order in which the servers name them. No server is asked for all keys at once.
pub(crate) async fn each(
    client: &Client,
    (prefix, pattern): (&str, &str),
    mut then: impl FnMut(Found) -> std::result::Result<(), Failure>,
) -> std::result::Result<(), Failure> {
    let pattern = format!("{}{pattern}", escaped(prefix));
    let mut denied = None;
    for server in client.servers().await? {
        for (kind, begin, end) in KEYS {
            let pattern = format!("{begin}{pattern}{end}");
            let mut cursor = "0".to_owned();
            loop {
                let scan = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", PAGE, "TYPE", kind];
                let page = server.command(&scan).await?;
                let [next, keys] = page.items() else { break };
                let names = keys
                    .items()
                    .iter()
                    .filter_map(Value::text)
                    .filter_map(|key| name_of((kind, begin, end), prefix, &key));
                let found = join_all(names.map(|name| of_key(client, kind, name))).await;
                for found in found.into_iter().flatten() {
                    match found {
                        Err(error @ Error::Denied { .. }) => denied = Some(error), // it may be of another program
                        found => then(found?)?,
                    }
                }
                cursor = next.text().unwrap_or_default();
                if cursor == "0" {
                    break;
                }
            }
        }
    }
    denied.map_or(Ok(()), |error| Err(error.into()))
}

/// `None`: it is something else, or gone.
async fn of_key(client: &Client, kind: &str, name: String) -> Option<Result<Found>> {
    let found = match kind {
        "zset" => of_permits(client, &name).await,
        _ => of_hash(client, &name).await,
    };
    match found {
        Err(Error::Conflict { .. } | Error::InvalidName { .. }) => None,
        found => found.transpose(),
    }
}

/// The name of the lock that has this key. Names without braces are in braces among the keys of semaphores.
fn name_of((_, begin, end): (&str, &str, &str), prefix: &str, key: &str) -> Option<String> {
    let name = key.strip_prefix(begin)?.strip_suffix(end)?;
    let is_tagged = name.contains('{') && !(name.starts_with('{') && name.find('}') == Some(name.len() - 1));
    let is_right = end.is_empty() || is_tagged == begin.is_empty();
    name.strip_prefix(prefix).filter(|_| is_right).map(str::to_owned)
}

/// A text that stands for itself in a pattern.
fn escaped(text: &str) -> String {
    text.chars().flat_map(|char| ("*?[]\\".contains(char).then_some('\\').into_iter()).chain([char])).collect()
}

impl Found {
    pub(crate) fn json(&self) -> Json {
        let holders: Vec<_> = self.holders.iter().map(holder_json).collect();
        json!({ "name": self.name, "kind": self.kind, "holders": holders, "waiting": self.waiting })
    }

    /// The deadlocks that the holders have found.
    pub(crate) fn deadlocks(&self) -> impl Iterator<Item = &[Blocked]> {
        let waits = self.holders.iter().filter_map(|holder| holder.client.as_ref()).flat_map(|client| &client.waits);
        waits.map(|wait| &*wait.deadlock).filter(|circle| !circle.is_empty())
    }

    pub(crate) fn ids(&self) -> BTreeSet<&str> {
        self.holders.iter().map(|holder| &*holder.id).collect()
    }

    /// The name as a terminal may show it.
    pub(crate) fn shown(&self) -> String {
        self.name.chars().map(|char| if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }).collect()
    }

    /// One line for each holder.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.holders.iter().map(line).collect();
        lines.extend(self.waiting.iter().map(|id| format!("waiting: {id}")));
        lines
    }
}

/// Nobody works: a `min_hold`, or a period, keeps the lock.
pub(crate) fn rests(holder: &Holder) -> bool {
    holder.id.ends_with(":rest")
}

fn holder_json(holder: &Holder) -> Json {
    json!({
        "id": holder.id,
        "rests": rests(holder),
        "holds": holder.holds,
        "remaining_ms": holder.remaining.map(|time| time.as_millis() as u64),
        "client": holder.client.as_ref().map(client_json),
    })
}

/// A deadlock, as an object of its own.
pub(crate) fn deadlock_json(circle: &[Blocked]) -> Json {
    let waits = circle.iter().map(|one| json!({ "waits_for": one.name, "process": one.process }));
    json!({ "deadlock": waits.collect::<Vec<_>>() })
}

/// The same in one line.
pub(crate) fn deadlock_line(circle: &[Blocked]) -> String {
    let waits: Vec<_> = circle.iter().map(Blocked::to_string).collect();
    let first = circle.first().map_or("", |one| &one.process);
    format!("deadlock: {}; its holder is {first}", waits.join("; its holder ")).replace(char::is_control, "?")
}

fn client_json(client: &ClientRecord) -> Json {
    let since = client.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    json!({ "host": client.host, "pid": client.pid, "program": client.program, "label": client.label, "since_unix_ms": since })
}

/// The process of the holder, or its id.
fn who(holder: &Holder) -> String {
    holder.client.as_ref().map_or_else(|| holder.id.clone(), shown)
}

pub(crate) fn shown(client: &ClientRecord) -> String {
    let label = client.label.as_ref().map(|label| format!(" [{label}]")).unwrap_or_default();
    let since = humantime::format_rfc3339_seconds(client.since);
    format!("{} {} on {}{label} since {since}", client.program, client.pid, client.host).replace(char::is_control, "?")
}

fn line(holder: &Holder) -> String {
    let left = holder.remaining.map_or("without end".to_owned(), |left| format!("{} more", seconds(left)));
    if rests(holder) {
        return format!("done; --once-per or --min-hold keeps it for {left} ({})", holder.id);
    }
    let times = if holder.holds == 1 { String::new() } else { format!(", {} times", holder.holds) };
    let id = if holder.client.is_some() { format!(", id {}", holder.id) } else { String::new() };
    format!("{}{times}, lease {left}{id}", who(holder))
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
