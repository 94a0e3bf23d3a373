//! What the scripts of the read-write lock do, as pure rules.

use std::collections::BTreeMap;

use super::hash::{Answer, Hash, How, later};
use crate::units::{FieldId as Id, FieldRef, MARKED, SOON, is_of_one_client, is_rest, ours, rest_of, writes};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ReadWrite {
    pub(crate) lock: Option<Hash>,
    /// The expiry keys of readers, by id and number.
    pub(crate) lives: BTreeMap<(Id, u64), Life>,
    pub(crate) mark: Option<(Id, i64)>,
}

/// How long it has left.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Life(pub(crate) i64);

impl Life {
    pub(crate) fn of(left: i64) -> Life {
        Life(left)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Free,
    Read,
    Write,
    Conflict,
}

pub(crate) fn life(id: &FieldRef) -> (Id, u64) {
    (id.to_owned(), 1)
}

impl ReadWrite {
    pub(crate) fn mode(&self) -> Mode {
        match self.lock.as_ref().map(|lock| lock.mode) {
            None => Mode::Free,
            Some(Some("read")) => Mode::Read,
            Some(Some("write")) => Mode::Write,
            Some(_) => Mode::Conflict,
        }
    }

    pub(crate) fn count(&self, id: &FieldRef) -> Option<u64> {
        self.lock.as_ref()?.count(id)
    }

    /// The field of the writer.
    pub(crate) fn writer(&self) -> Option<&Id> {
        self.lock.as_ref()?.fields.iter().map(|(id, _)| id).find(|id| writes(id))
    }

    /// A writer that rests beside readers has an expiry key of its own; one that rests alone has the lease of the hash.
    fn is_over(&self, writer: &Id) -> bool {
        let fields = self.lock.as_ref().map_or(0, |lock| lock.fields.len() + usize::from(lock.mode.is_some()));
        is_rest(writer) && fields > 2 && !self.lives.contains_key(&life(writer))
    }

    pub(crate) fn left_of_writer(&self, writer: &Id) -> i64 {
        let rests = self.lives.get(&life(writer)).filter(|_| is_rest(writer)).map(|life| life.0);
        rests.filter(|left| *left >= 0).or(self.lock.as_ref().map(|lock| lock.left)).expect("it is held")
    }

    /// A writer that rests and is over leaves a read lock.
    fn settle(&mut self) {
        let over = self.writer().filter(|writer| self.is_over(writer)).cloned();
        if let Some(over) = over {
            let lock = self.held();
            lock.remove(&over);
            lock.mode = Some("read");
        }
    }

    /// As the scripts that change something see it.
    fn mode_now(&mut self) -> Mode {
        if self.mode() == Mode::Write {
            self.settle();
        }
        self.mode()
    }

    /// What is there while somebody has it.
    pub(crate) fn held(&mut self) -> &mut Hash {
        self.lock.as_mut().expect("it is held")
    }

    /// The writer, else a reader, one of this client before others.
    fn someone(&self, asking: &FieldRef) -> &Id {
        let fields = &self.lock.as_ref().expect("somebody has it").fields;
        let is_own = |id: &&Id| is_of_one_client(id, asking) && !is_rest(id);
        let own = || fields.iter().map(|(id, _)| id).find(is_own);
        let last = || fields.last().map(|(id, _)| id);
        self.writer().or_else(own).or_else(last).expect("somebody has it")
    }

    /// The next request makes sense after that time, if it is sooner than the end of the lease.
    fn busy_for(&self, time: Option<i64>, asking: &FieldRef) -> Answer {
        let left = self.lock.as_ref().expect("somebody has it").left;
        Answer::Busy(time.unwrap_or(left), self.someone(asking).clone())
    }

    /// How long a reader has left, not above 0 if its lease is over.
    pub(crate) fn left_of(&self, id: &Id, count: u64) -> i64 {
        let levels = 1..=if ours(id) { 1 } else { count };
        levels.filter_map(|level| self.lives.get(&(id.clone(), level))).map(|life| life.0).max().unwrap_or(-2)
    }

    /// The longest that a reader but `skip` has left, and whether one of them does not rest; dead ones of ours are swept away.
    fn longest_reader(&mut self, skip: Option<&Id>) -> (i64, bool) {
        let (mut longest, mut is_read) = (-2, false);
        for (id, count) in self.held().fields.clone() {
            if Some(&id) == skip || writes(&id) {
                continue;
            }
            let left = self.left_of(&id, count);
            if left < 0 && ours(&id) {
                self.held().remove(&id);
            }
            longest = longest.max(left);
            is_read |= left > 0 && !is_rest(&id);
        }
        (longest, is_read)
    }

    /// Puts the end of a reader's lease off.
    fn lives_for(&mut self, id: &Id, lease: i64) -> i64 {
        let life = self.lives.entry(life(id)).or_insert(Life::of(-2));
        life.0 = life.0.max(lease);
        life.0
    }

    /// `writer`: the write hold of the same owner, beside which it reads.
    pub(crate) fn read_acquire(
        &mut self,
        id: &Id,
        (lease, level): (i64, u64),
        how: How,
        writer: Option<&Id>,
    ) -> Answer {
        let mode = self.mode_now();
        let is_held = mode != Mode::Conflict && self.count(id).is_some() && self.lives.contains_key(&life(id));
        if !is_held {
            if how != How::Again && writer.is_none() && mode == Mode::Write {
                self.mark_turn(id, how);
            }
            if let Some(refused) = self.keeps_out(id, mode, how == How::Again, writer) {
                return refused;
            }
            self.mark.take_if(|(waits, _)| waits == id && writer.is_none());
        }
        let left = self.lives_for(id, lease);
        match &mut self.lock {
            Some(lock) => lock.set(id, level),
            None => self.lock = Some(Hash::of(Some("read"), id, level, -1)),
        }
        self.held().lasts(left);
        Answer::Granted(level)
    }

    /// Why somebody cannot begin to read.
    fn keeps_out(&self, id: &FieldRef, mode: Mode, again: bool, writer: Option<&Id>) -> Option<Answer> {
        match (mode, writer, &self.mark) {
            _ if again => Some(Answer::Lost),
            (Mode::Conflict, ..) => Some(Answer::Conflict),
            (_, Some(writer), _) => self.count(writer).is_none().then_some(Answer::Lost),
            (Mode::Write, ..) => {
                let writer = self.someone(id);
                Some(Answer::Busy(self.left_of_writer(writer), writer.clone()))
            }
            (_, _, Some((waits, left))) if writes(waits) => Some(Answer::Busy(*left, waits.clone())),
            _ => None,
        }
    }

    /// A refused waiter claims the next turn, unless another has done so: returns that one.
    fn mark_turn(&mut self, id: &Id, how: How) -> Option<&Id> {
        let foreign = || self.lock.as_ref().is_some_and(|lock| lock.fields.iter().any(|(id, _)| !ours(id)));
        if !(how == How::Turn || how == How::Late && !foreign()) {
            return None;
        }
        if self.mark.as_ref().is_none_or(|(waits, _)| waits == id) {
            self.mark = Some((id.clone(), MARKED));
        }
        self.mark.as_ref().map(|(waits, _)| waits).filter(|waits| *waits != id)
    }

    pub(crate) fn read_release(&mut self, id: &Id, rest: i64, level: u64) -> (Answer, u64) {
        if self.count(id).is_none() {
            self.lives.remove(&life(id));
            let waited = level == 0 && self.mark.take_if(|(waits, _)| waits == id).is_some();
            let rests = level == 0 && self.count(&rest_of(id)).is_some();
            return (if rests { Answer::Released } else { Answer::Gone }, u64::from(waited));
        }
        let over = !self.lives.contains_key(&life(id));
        if level > 0 && !over {
            self.held().set(id, level);
            return (Answer::Released, 0);
        }
        let rest = if over { 0 } else { rest };
        let (last, published) = self.lasts_without(id, rest);
        if rest > 0 {
            self.lives.insert(life(&rest_of(id)), Life::of(rest));
            self.held().set(&rest_of(id), 1);
        }
        if self.mode() == Mode::Read && last.is_some_and(|last| last <= 0) {
            self.lock = None;
        } else {
            let lock = self.held();
            lock.remove(id);
            lock.left = last.unwrap_or(lock.left);
            self.lock.take_if(|lock| lock.is_empty());
        }
        self.lives.remove(&life(id));
        (if over { Answer::Gone } else { Answer::Released }, published)
    }

    /// How long the lock lasts without that reader, which may rest for a while: `None` if a writer decides that. And how often something
    /// is published: all look if only holds that rest are left, or none.
    fn lasts_without(&mut self, id: &Id, rest: i64) -> (Option<i64>, u64) {
        let mode = self.mode_now();
        let writer = self.writer().filter(|_| mode == Mode::Write).cloned();
        if mode != Mode::Read && !writer.as_ref().is_some_and(|writer| is_rest(writer)) {
            return (None, 0);
        }
        let (longest, is_read) = self.longest_reader(Some(id));
        let writes = writer.map_or(0, |writer| self.left_of_writer(&writer));
        (Some(rest.max(longest).max(writes)), u64::from(!is_read))
    }

    pub(crate) fn read_renew(&mut self, id: &Id, lease: i64) -> Answer {
        if self.count(id).is_none() || !self.lives.contains_key(&life(id)) {
            return Answer::Gone;
        }
        let before = self.lives[&life(id)].0.min(self.held().left);
        self.mode_now();
        let lets_in = !self.mark.as_ref().is_some_and(|(id, _)| writes(id));
        let left = self.lives_for(id, lease);
        self.held().lasts(left);
        Answer::Kept(before, lets_in)
    }

    pub(crate) fn write_acquire(&mut self, id: &Id, (lease, level): (i64, u64), how: How) -> Answer {
        let mode = self.mode_now();
        if !matches!(mode, Mode::Free | Mode::Conflict) && self.count(id).is_some() {
            self.held().set(id, level);
            self.held().lasts(lease);
            return Answer::Granted(level);
        }
        match mode {
            _ if how == How::Again => Answer::Lost,
            Mode::Conflict => Answer::Conflict,
            Mode::Free => {
                if let Some((waits, left)) = self.mark.as_ref().filter(|(waits, _)| waits != id) {
                    return Answer::Busy(if writes(waits) { *left } else { SOON }, waits.clone());
                }
                self.lock = Some(Hash::of(Some("write"), id, level, lease));
                self.mark = None;
                Answer::Granted(level)
            }
            Mode::Read | Mode::Write => {
                let beside_readers = mode == Mode::Read && how == How::Wait;
                let waits = self.mark_turn(id, if beside_readers { How::Turn } else { how });
                let is_soon = mode == Mode::Read && waits.is_some_and(|waits| !writes(waits));
                self.busy_for(is_soon.then_some(SOON), id)
            }
        }
    }

    /// The script of the plain lock: the lease is that of the hash.
    pub(crate) fn write_renew(&mut self, id: &Id, lease: i64) -> Answer {
        let Some(lock) = self.lock.as_mut().filter(|lock| lock.count(id).is_some()) else { return Answer::Gone };
        if lease != 0 {
            lock.lasts(lease);
        }
        Answer::KeptFor(lock.left)
    }

    pub(crate) fn write_hand_over(&mut self, id: &Id, lease: i64, heir: &Id) -> Answer {
        let Some(lock) = &mut self.lock else { return Answer::Gone };
        if lock.count(heir).is_some() {
            lock.lasts(lease);
            return Answer::HandedBefore;
        }
        let fields = lock.fields.len() + usize::from(lock.mode.is_some());
        match lock.count(id) {
            None => Answer::Gone,
            Some(1) if fields == 2 => {
                lock.set(heir, 1);
                lock.remove(id);
                lock.left = lease;
                self.mark.take_if(|(waits, _)| waits == heir);
                Answer::Handed
            }
            Some(count) => Answer::Deeper(count),
        }
    }

    pub(crate) fn write_release(&mut self, id: &Id, rest: i64, level: u64) -> (Answer, u64) {
        let waited = level == 0 && self.mark.take_if(|(waits, _)| waits == id).is_some();
        let told = u64::from(waited);
        if self.count(id).is_none() {
            let rests = level == 0 && self.count(&rest_of(id)).is_some();
            return if rests { (Answer::Released, told + 1) } else { (Answer::Gone, told) };
        }
        if level > 0 {
            self.held().set(id, level);
            return (Answer::Released, told);
        }
        let (longest, _) = self.longest_reader(None);
        if rest > 0 {
            if self.held().fields.len() > 1 {
                self.lives.insert(life(&rest_of(id)), Life::of(rest));
            }
            let lock = self.held();
            lock.set(&rest_of(id), 1);
            lock.remove(id);
            lock.left = longest.max(rest);
        } else if longest > 0 {
            let lock = self.held();
            lock.mode = Some("read");
            lock.remove(id);
            lock.left = longest;
        } else {
            self.lock = None;
        }
        (Answer::Released, told + 1)
    }

    pub(crate) fn force_unlock(&mut self, meant: &[Id]) -> (Answer, u64) {
        let is_meant = |id: &Id| meant.iter().any(|other| other == id || rest_of(other) == *id);
        self.settle();
        let Some(lock) = &mut self.lock else { return (Answer::Gone, 0) };
        let (gone, others): (Vec<_>, Vec<_>) = lock.fields.drain(..).partition(|(id, _)| is_meant(id));
        lock.fields = others;
        if gone.is_empty() {
            return (Answer::Gone, 0);
        }
        let is_gone = |id: &Id, level| gone.iter().any(|(known, count)| known == id && level <= *count);
        self.lives.retain(|(id, level), _| !is_gone(id, *level));
        match self.writer().cloned() {
            _ if self.held().fields.is_empty() => self.lock = None,
            None => {
                self.held().mode = Some("read");
                if self.held().fields.iter().all(|(id, _)| ours(id)) {
                    match self.longest_reader(None).0 {
                        longest @ 1.. => self.held().left = longest,
                        _ => self.lock = None,
                    }
                }
            }
            Some(writer) if is_rest(&writer) => {
                let left = self.left_of_writer(&writer).max(self.longest_reader(None).0);
                self.held().left = left;
            }
            Some(_) => {}
        }
        (Answer::Forced, 1)
    }

    pub(crate) fn inspect(&self) -> Answer {
        let lock = match (self.mode(), &self.lock) {
            (Mode::Read | Mode::Write, Some(lock)) => lock,
            (Mode::Free, _) => return Answer::Free,
            _ => return Answer::Conflict,
        };
        let holder = |(id, count): &(Id, u64)| match self.left_of(id, *count) {
            _ if self.is_over(id) => None,
            _ if writes(id) => Some((*count, self.left_of_writer(id), id.clone())),
            -2 if ours(id) => None,
            -2 => Some((*count, lock.left, id.clone())),
            left => Some((*count, left, id.clone())),
        };
        let holders: Vec<_> = lock.fields.iter().filter_map(holder).collect();
        if holders.is_empty() { Answer::Free } else { Answer::Held(holders) }
    }

    pub(crate) fn pass(&mut self, time: i64) {
        self.lock = self.lock.take().and_then(|lock| lock.later(time));
        self.mark = self.mark.take().and_then(|(id, left)| Some((id, later(left, time)?)));
        self.lives = std::mem::take(&mut self.lives)
            .into_iter()
            .filter_map(|(level, life)| Some((level, Life(later(life.0, time)?))))
            .collect();
    }
}
