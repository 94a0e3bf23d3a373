//! The hash that a lock is in Redis, put there and looked at.

use redis::Pipeline;

pub(super) use super::rules::hash::Hash;
use super::{Real, TICK};

impl Hash {
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
        let mode = all.iter().find(|(field, _)| field == "mode").map(|(_, mode)| mode_of(mode));
        let counts = all.into_iter().filter(|(field, _)| field != "mode");
        let fields = counts.map(|(id, count)| (id, count.parse().expect("a count"))).collect();
        Some(Hash { mode, fields, left })
    }
}

fn mode_of(mode: &str) -> &'static str {
    ["read", "write"].into_iter().find(|known| *known == mode).expect("a mode")
}
