//! What a server keeps, and the commands that the scripts use. They behave as those of Redis; tests/memory/commands.rs compares
//! them.

use std::collections::{HashMap, VecDeque};

use super::channels::Channels;
use crate::clock::Moment;

/// The result of a command.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    Nil,
    Number(i64),
    Text(String),
    List(Vec<String>),
    Done,
}

type Outcome = Result<Output, String>;

#[derive(Debug)]
enum Stored {
    Text(String),
    /// In the order in which fields were added, as in a small hash of Redis.
    Hash(Vec<(String, String)>),
    List(VecDeque<String>),
    /// Members and their scores.
    Ranks(HashMap<String, f64>),
}

#[derive(Debug)]
struct Entry {
    stored: Stored,
    /// In ms of the server's clock.
    ends: Option<i64>,
}

#[derive(Debug, Default)]
pub(super) struct Data {
    keys: HashMap<String, Entry>,
    pub(super) channels: Channels,
    /// The server's clock, in microseconds. It stands while a script runs, as that of Redis does: a key does not expire in its middle.
    clock: i64,
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";

fn number(word: &str) -> Result<i64, String> {
    word.parse().map_err(|_| NOT_A_NUMBER.to_owned())
}

fn sum(one: i64, other: i64) -> Result<i64, String> {
    one.checked_add(other).ok_or_else(|| "ERR increment or decrement would overflow".to_owned())
}

fn count(n: usize) -> Outcome {
    Ok(Output::Number(i64::try_from(n).unwrap_or(i64::MAX)))
}

fn text(found: Option<&str>) -> Outcome {
    Ok(found.map_or(Output::Nil, |text| Output::Text(text.to_owned())))
}

/// The part of a list from `first` to `last`, which count from its end if they are negative.
fn span(len: usize, first: i64, last: i64) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let at = |n: i64| if n < 0 { n + len } else { n };
    let (first, past) = (at(first).max(0), (at(last) + 1).clamp(0, len));
    let clipped = |n: i64| usize::try_from(n).unwrap_or(0);
    clipped(first.min(past))..clipped(past)
}

macro_rules! stored {
    ($get:ident, $get_mut:ident, $variant:ident, $type:ty) => {
        fn $get(&mut self, key: &str) -> Result<Option<&$type>, String> {
            self.$get_mut(key).map(|found| found.map(|found| &*found))
        }

        fn $get_mut(&mut self, key: &str) -> Result<Option<&mut $type>, String> {
            match self.alive(key) {
                None => Ok(None),
                Some(Entry { stored: Stored::$variant(found), .. }) => Ok(Some(found)),
                Some(_) => Err(WRONG_TYPE.to_owned()),
            }
        }
    };
}

impl Data {
    stored!(text, text_mut, Text, String);
    stored!(hash, hash_mut, Hash, Vec<(String, String)>);
    stored!(list, list_mut, List, VecDeque<String>);
    stored!(ranks, ranks_mut, Ranks, HashMap<String, f64>);

    /// Sets the server's clock, before a script or a command of its own. It counts from the start of the machine.
    pub(super) fn set_clock(&mut self) {
        let micros = Moment::now().since(Moment::PAST).as_micros();
        self.clock = i64::try_from(micros).unwrap_or(i64::MAX);
    }

    fn now(&self) -> i64 {
        self.clock / 1000
    }

    /// All keys are gone; the subscriptions stay.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }

    /// Keys that are there now.
    pub(super) fn names(&mut self) -> Vec<String> {
        let all: Vec<String> = self.keys.keys().cloned().collect();
        all.into_iter().filter(|key| self.alive(key).is_some()).collect()
    }

    pub(super) fn remove(&mut self, key: &str) -> bool {
        let was_there = self.alive(key).is_some();
        self.keys.remove(key);
        was_there
    }

    fn alive(&mut self, key: &str) -> Option<&mut Entry> {
        if self.keys.get(key)?.ends.is_some_and(|ends| ends < self.now()) {
            self.keys.remove(key);
        }
        self.keys.get_mut(key)
    }

    fn add(&mut self, key: &str, stored: Stored) -> &mut Stored {
        &mut self.keys.entry(key.to_owned()).or_insert(Entry { stored, ends: None }).stored
    }

    /// A key without elements does not exist.
    fn drop_empty(&mut self, key: &str) {
        let is_empty = match self.keys.get(key).map(|entry| &entry.stored) {
            Some(Stored::Hash(fields)) => fields.is_empty(),
            Some(Stored::List(items)) => items.is_empty(),
            Some(Stored::Ranks(members)) => members.is_empty(),
            Some(Stored::Text(_)) | None => false,
        };
        if is_empty {
            self.keys.remove(key);
        }
    }

    pub(super) fn run(&mut self, words: &[String]) -> Outcome {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["TIME"] => {
                let both = [self.clock / 1_000_000, self.clock % 1_000_000];
                Ok(Output::List(both.map(|number| number.to_string()).into()))
            }
            ["EXISTS", ref keys @ ..] => count(keys.iter().filter(|key| self.alive(key).is_some()).count()),
            ["DEL", ref keys @ ..] => count(keys.iter().filter(|key| self.remove(key)).count()),
            ["PTTL", key] => Ok(Output::Number(self.ends(key).map_or_else(|none| none, |ends| ends - self.now()))),
            ["PEXPIRETIME", key] => Ok(Output::Number(self.ends(key).unwrap_or_else(|none| none))),
            ["PEXPIRE", key, time] => self.expire(key, number(time)?),
            ["GET", key] => text(self.text(key)?.map(String::as_str)),
            ["SET", key, value] => self.set(key, value, None),
            ["SET", key, value, "PX", time] => self.set(key, value, Some(self.after(number(time)?))),
            ["INCR", key] => self.add_to(key, 1),
            ["INCRBY", key, by] => self.add_to(key, number(by)?),
            ["DECR", key] => self.add_to(key, -1),
            ["PUBLISH" | "SPUBLISH", channel, text] => count(self.channels.publish(channel, text)),
            [command, key, ref rest @ ..] if command.starts_with('H') => self.of_hash(command, key, rest),
            [command, key, ref rest @ ..] if command.starts_with('Z') => self.of_ranks(command, key, rest),
            [command, key, ref rest @ ..] => self.of_list(command, key, rest),
            _ => Err(format!("ERR unknown command {words:?}")),
        }
    }

    /// The time at which a key expires; as an error, the number that Redis returns instead.
    fn ends(&mut self, key: &str) -> Result<i64, i64> {
        self.alive(key).ok_or(-2)?.ends.ok_or(-1)
    }

    fn after(&self, time: i64) -> i64 {
        self.now().saturating_add(time)
    }

    fn expire(&mut self, key: &str, time: i64) -> Outcome {
        let ends = self.after(time);
        let Some(entry) = self.alive(key) else { return Ok(Output::Number(0)) };
        entry.ends = Some(ends);
        if time <= 0 {
            self.keys.remove(key);
        }
        Ok(Output::Number(1))
    }

    fn set(&mut self, key: &str, value: &str, ends: Option<i64>) -> Outcome {
        self.keys.insert(key.to_owned(), Entry { stored: Stored::Text(value.to_owned()), ends });
        Ok(Output::Done)
    }

    fn add_to(&mut self, key: &str, by: i64) -> Outcome {
        let next = sum(number(self.text(key)?.map_or("0", String::as_str))?, by)?;
        if let Some(text) = self.text_mut(key)? {
            *text = next.to_string();
        } else {
            self.add(key, Stored::Text(next.to_string()));
        }
        Ok(Output::Number(next))
    }

    fn of_hash(&mut self, command: &str, key: &str, rest: &[&str]) -> Outcome {
        let field = |fields: Option<&Vec<(String, String)>>, name: &str| {
            fields.into_iter().flatten().find(|(field, _)| field == name).map(|(_, value)| value.clone())
        };
        match (command, rest) {
            ("HGET", [name]) => text(field(self.hash(key)?, name).as_deref()),
            ("HEXISTS", [name]) => count(usize::from(field(self.hash(key)?, name).is_some())),
            ("HLEN", []) => count(self.hash(key)?.map_or(0, Vec::len)),
            ("HKEYS", []) => {
                Ok(Output::List(self.hash(key)?.into_iter().flatten().map(|(name, _)| name.clone()).collect()))
            }
            ("HGETALL", []) => {
                let both = |(name, value): &(String, String)| [name.clone(), value.clone()];
                Ok(Output::List(self.hash(key)?.into_iter().flatten().flat_map(both).collect()))
            }
            ("HSET", pairs) if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
                let mut new = 0;
                for pair in pairs.chunks(2) {
                    new += usize::from(field(self.hash(key)?, pair[0]).is_none());
                    self.put(key, pair[0], pair[1].to_owned())?;
                }
                count(new)
            }
            ("HINCRBY", [name, by]) => {
                let before = field(self.hash(key)?, name);
                let before = number(before.as_deref().unwrap_or("0"));
                let after = sum(before.map_err(|_| "ERR hash value is not an integer")?, number(by)?)?;
                self.put(key, name, after.to_string())?;
                Ok(Output::Number(after))
            }
            ("HDEL", names) => {
                let Some(fields) = self.hash_mut(key)? else { return count(0) };
                let before = fields.len();
                fields.retain(|(field, _)| !names.contains(&field.as_str()));
                let removed = before - fields.len();
                self.drop_empty(key);
                count(removed)
            }
            _ => Err(format!("ERR unknown command {command}")),
        }
    }

    fn put(&mut self, key: &str, name: &str, value: String) -> Result<(), String> {
        if self.hash(key)?.is_none() {
            self.add(key, Stored::Hash(Vec::new()));
        }
        let Some(fields) = self.hash_mut(key)? else { return Ok(()) };
        match fields.iter_mut().find(|(field, _)| field == name) {
            Some((_, known)) => *known = value,
            None => fields.push((name.to_owned(), value)),
        }
        Ok(())
    }

    fn of_list(&mut self, command: &str, key: &str, rest: &[&str]) -> Outcome {
        match (command, rest) {
            ("LINDEX", [at]) => {
                let at = number(at)?;
                let Some(items) = self.list(key)? else { return Ok(Output::Nil) };
                text(items.range(span(items.len(), at, at)).next().map(String::as_str))
            }
            ("LRANGE", [first, last]) => {
                let (first, last) = (number(first)?, number(last)?);
                let Some(items) = self.list(key)? else { return Ok(Output::List(Vec::new())) };
                Ok(Output::List(items.range(span(items.len(), first, last)).cloned().collect()))
            }
            ("LPOS", [item]) => {
                Ok(match self.list(key)?.and_then(|items| items.iter().position(|known| known == item)) {
                    Some(at) => count(at)?,
                    None => Output::Nil,
                })
            }
            ("RPUSH", items) => {
                if self.list(key)?.is_none() {
                    self.add(key, Stored::List(VecDeque::new()));
                }
                let Some(list) = self.list_mut(key)? else { return count(0) };
                list.extend(items.iter().map(|item| (*item).to_owned()));
                count(list.len())
            }
            ("LPOP", []) => {
                let item = self.list_mut(key)?.and_then(VecDeque::pop_front);
                self.drop_empty(key);
                text(item.as_deref())
            }
            ("LREM", [times, item]) => {
                let times = number(times)?;
                let Some(list) = self.list_mut(key)? else { return count(0) };
                let removed = remove(list, times, item);
                self.drop_empty(key);
                count(removed)
            }
            _ => Err(format!("ERR unknown command {command}")),
        }
    }

    fn of_ranks(&mut self, command: &str, key: &str, rest: &[&str]) -> Outcome {
        match (command, rest) {
            ("ZSCORE", [member]) => {
                let score = self.ranks(key)?.and_then(|members| members.get(*member));
                text(score.map(f64::to_string).as_deref())
            }
            ("ZCARD", []) => count(self.ranks(key)?.map_or(0, HashMap::len)),
            ("ZRANGE", [first, last, "WITHSCORES"]) => {
                let (ranks, first, last) = (self.ranked(key, f64::INFINITY)?, number(first)?, number(last)?);
                let both = |(member, score): &(String, f64)| [member.clone(), score.to_string()];
                Ok(Output::List(ranks[span(ranks.len(), first, last)].iter().flat_map(both).collect()))
            }
            ("ZRANGEBYSCORE", ["-inf", most]) => {
                let most: f64 = most.parse().map_err(|_| "ERR min or max is not a float")?;
                Ok(Output::List(self.ranked(key, most)?.into_iter().map(|(member, _)| member).collect()))
            }
            ("ZADD", [only @ ("XX" | "NX"), score, member]) => {
                let is_there = self.ranks(key)?.is_some_and(|members| members.contains_key(*member));
                if is_there == (*only == "XX") { self.of_ranks("ZADD", key, &[score, member]) } else { count(0) }
            }
            ("ZADD", [score, member]) => {
                let score = score.parse().map_err(|_| "ERR value is not a valid float")?;
                if self.ranks(key)?.is_none() {
                    self.add(key, Stored::Ranks(HashMap::new()));
                }
                let Some(members) = self.ranks_mut(key)? else { return count(0) };
                count(usize::from(members.insert((*member).to_owned(), score).is_none()))
            }
            ("ZREM", [member]) => {
                let Some(members) = self.ranks_mut(key)? else { return count(0) };
                let removed = members.remove(*member).is_some();
                self.drop_empty(key);
                count(usize::from(removed))
            }
            _ => Err(format!("ERR unknown command {command}")),
        }
    }
}

impl Data {
    /// The members of a sorted set in their order, up to this score.
    fn ranked(&mut self, key: &str, most: f64) -> Result<Vec<(String, f64)>, String> {
        let found = self.ranks(key)?.into_iter().flatten().filter(|(_, score)| **score <= most);
        let mut ranks: Vec<_> = found.map(|(member, score)| (member.clone(), *score)).collect();
        ranks.sort_by(|(member, score), (other, others)| score.total_cmp(others).then_with(|| member.cmp(other)));
        Ok(ranks)
    }
}

/// Removes `times` items like this one: from the front, from the back if negative, all if zero. Returns how many it found.
fn remove(list: &mut VecDeque<String>, times: i64, item: &str) -> usize {
    let found: Vec<usize> = list.iter().enumerate().filter(|(_, known)| *known == item).map(|(at, _)| at).collect();
    let most = usize::try_from(times.unsigned_abs()).unwrap_or(usize::MAX);
    let chosen: Vec<usize> = match times {
        0 => found,
        1.. => found.into_iter().take(most).collect(),
        _ => found.into_iter().rev().take(most).rev().collect(),
    };
    chosen.iter().rev().for_each(|at| _ = list.remove(*at));
    chosen.len()
}

#[cfg(all(test, not(leasehold_explore)))] // the exploration has another clock
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_does_not_expire_in_the_middle_of_a_script() {
        crate::clock::count_on_tokio();
        let mut data = Data::default();
        let mut ask = |words: &[&str]| data.run(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert_eq!(ask(&["SET", "a", "x", "PX", "5"]), Ok(Output::Done));
        tokio::time::advance(Duration::from_millis(20)).await;
        assert_eq!(ask(&["EXISTS", "a"]), Ok(Output::Number(1)));
        assert_eq!(ask(&["PTTL", "a"]), Ok(Output::Number(5)));
        data.set_clock();
        assert!(data.names().is_empty());
    }
}
