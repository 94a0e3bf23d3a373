//! What the scripts of the fenced lock do, as pure rules.

use super::hash::{Answer, Hash};
use crate::units::FieldId as Id;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Fenced {
    pub(crate) lock: Option<Hash>,
    pub(crate) token: Option<u64>,
    /// What is written while it is held.
    pub(crate) report: Option<String>,
}

impl Fenced {
    pub(crate) fn acquire(&mut self, id: &Id, lease: i64, level: u64, again: bool) -> Answer {
        if let Some(lock) = self.lock.as_mut().filter(|lock| lock.count(id).is_some()) {
            lock.set(id, level);
            lock.lasts(lease);
            return Answer::Granted(self.token_of());
        }
        match &self.lock {
            _ if again => Answer::Lost,
            Some(lock) => lock.holder().map_or(Answer::Conflict, |theirs| Answer::Busy(lock.left, theirs.clone())),
            None => {
                self.token = Some(self.token.unwrap_or(0) + 1);
                self.lock = Some(Hash::of(None, id, level, lease));
                Answer::Granted(self.token_of())
            }
        }
    }

    pub(crate) fn hand_over(&mut self, id: &Id, lease: i64, heir: &Id) -> Answer {
        let Some(lock) = &mut self.lock else { return Answer::Gone };
        if lock.count(heir).is_some() {
            lock.lasts(lease);
            return Answer::HandedBeforeWith(self.token_of());
        }
        match lock.count(id) {
            None => Answer::Gone,
            Some(1) => {
                lock.set(heir, 1);
                lock.remove(id);
                lock.left = lease;
                self.token = Some(self.token.unwrap_or(0) + 1);
                Answer::HandedWith(self.token_of())
            }
            Some(count) => Answer::Deeper(count),
        }
    }

    pub(crate) fn write(&mut self, id: &Id, value: &str) -> Answer {
        if self.lock.as_ref().and_then(|lock| lock.count(id)).is_none() {
            return Answer::Gone;
        }
        self.report = Some(value.to_owned());
        Answer::Written
    }

    /// One that was deleted begins anew.
    fn token_of(&mut self) -> u64 {
        *self.token.get_or_insert(1)
    }
}
