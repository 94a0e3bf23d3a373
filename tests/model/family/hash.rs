//! The hash that a lock is in Redis, as the rules see it.

use redis::Pipeline;

use super::{Real, TICK, later};

/// Its fields stand in the order in which they came, as in a small hash of Redis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hash {
    /// Of a read-write lock.
    pub(super) mode: Option<String>,
    pub(super) fields: Vec<(String, u64)>,
    /// -1 without an end.
    pub(super) left: i64,
}

impl Hash {
    pub(super) fn of(mode: Option<&str>, id: &str, count: u64, left: i64) -> Hash {
        Hash { mode: mode.map(str::to_owned), fields: vec![(id.to_owned(), count)], left }
    }

    pub(super) fn count(&self, id: &str) -> Option<u64> {
        self.fields.iter().find(|(field, _)| field == id).map(|(_, count)| *count)
    }

    pub(super) fn set(&mut self, id: &str, count: u64) {
        match self.fields.iter_mut().find(|(field, _)| field == id) {
            Some(field) => field.1 = count,
            None => self.fields.push((id.to_owned(), count)),
        }
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.fields.retain(|(field, _)| field != id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.mode.is_none()
    }

    /// Moves the end, never nearer.
    pub(super) fn lasts(&mut self, lease: i64) {
        self.left = self.left.max(lease);
    }

    /// Of a lock that one has at a time; `None` where it is no such lock.
    pub(super) fn holder(&self) -> Option<&str> {
        match &*self.fields {
            [(id, _)] if self.mode.is_none() && id.contains(':') => Some(id),
            _ => None,
        }
    }

    pub(super) fn later(self, time: i64) -> Option<Hash> {
        Some(Hash { left: later(self.left, time)?, ..self })
    }

    pub(super) fn put(&self, commands: &mut Pipeline, key: &str) {
        if let Some(mode) = &self.mode {
            commands.cmd("HSET").arg(key).arg("mode").arg(mode);
        }
        for (id, count) in &self.fields {
            commands.cmd("HSET").arg(key).arg(id).arg(count);
        }
        if self.left > 0 {
            commands.cmd("PEXPIRE").arg(key).arg(self.left * TICK);
        }
    }

    pub(super) fn look(real: &mut Real, key: &str) -> Option<Hash> {
        let left = real.left(key)?;
        let all: Vec<(String, String)> = real.ask(&["HGETALL", key]);
        let mode = all.iter().find(|(field, _)| field == "mode").map(|(_, mode)| mode.clone());
        let counts = all.into_iter().filter(|(field, _)| field != "mode");
        let fields = counts.map(|(id, count)| (id, count.parse().expect("a count"))).collect();
        Some(Hash { mode, fields, left })
    }
}
