//! One outermost hold as its client sees it, with the phases and words of `src/engine/hold.rs`.

use crate::rules::{Id, Reply, Ticks, What};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hold {
    pub(crate) phase: Phase,
    /// Guards alive, and the nested request under way.
    pub(crate) levels: u8,
    /// Certainly ours for so long, once it is held.
    pub(crate) left: Ticks,
    /// The question under way that is about its level: one after the other.
    pub(crate) turn: Option<Ask>,
    pub(crate) renewal: Option<Ask>,
    /// What its owner has seen of it and not acted upon yet.
    pub(crate) seen: Seen,
    /// Its count on the server has to come down, and the turn is not free yet or the heir not chosen.
    pub(crate) errand: Option<Errand>,
    pub(crate) offer: Offer,
    /// How many wait before it in the line of its process. `try_lock` does not line up.
    pub(crate) place: Option<u8>,
    /// A waiter looks when this is over, or when he is rung.
    pub(crate) nap: Ticks,
    pub(crate) rung: bool,
    /// The id it has on the server, where that is not its own.
    pub(crate) adopted: Option<Id>,
    /// Its id went on to another hold.
    pub(crate) passed: bool,
    /// Each of its requests was answered at the first try, and it has had one level only: nothing of it is in doubt.
    pub(crate) clean: bool,
    /// What the `unlock()` of one that was passed on waits for, or has said.
    pub(crate) word: Word,
    /// Asked about its own id, whoever has that now: for all who let go before.
    pub(crate) confirmation: Option<Ask>,
    /// Whether its own id was there when it was given back to all.
    pub(crate) ended: Option<bool>,
    pub(crate) ghost: Ghost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Unborn,
    Asked,
    Held,
    /// Lost, by its own clock.
    Expired,
    /// Lost, says the server.
    Removed,
    /// Lost, since it has been held for as long as it may. The server has it until its lease ends.
    Capped,
    Over,
}

/// What somebody has looked at before the step that acts upon it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seen {
    Nothing,
    /// It is held: one more level can be claimed. Who has seen that has its turn.
    Held,
    /// The lock was handed to it.
    Yours,
}

/// A question to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) what: What,
    /// Since the try that can still be answered was sent.
    pub(crate) age: Ticks,
    /// The answer on its way back.
    pub(crate) answer: Option<Answer>,
}

/// A reply, without what its client does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Yes,
    /// The heir had it already.
    Before,
    /// Somebody else's, for so long; `None` without an end.
    Busy(Option<Ticks>),
    /// There is no such hold.
    Gone,
    Deeper,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Errand {
    Release,
    /// To a waiter of this process, if there is one.
    PassOn,
}

/// Whether the lock is being handed to this waiter, see `Offer` in `src/engine/queue.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Offer {
    None,
    Made,
    /// It is his, certainly for so long, and he has not looked yet.
    Taken(Ticks),
    /// An attempt of his own was answered first.
    Granted,
    /// He left: whoever hands over passes on.
    Gone,
}

/// What the `unlock()` of a hold that was passed on in memory knows, of that id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    None,
    /// No request that was sent since will tell.
    Waits(Id),
    /// A confirmation will, sent after it let go.
    Asked(Id),
    /// The request that gives the lock back will.
    Ends(Id),
    Ours,
    Lost,
}

/// What only the checker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    /// The server may have another count of it than its client thinks, and nothing under way would change that: a
    /// request that was given up has run or can still, or whoever had to bring it back has vanished.
    pub(crate) adrift: bool,
    /// Somebody else has had the lock while it was held.
    pub(crate) broken: bool,
    /// It was taken away by force: nothing is promised.
    pub(crate) forced: bool,
    /// It was lost when its owner got it.
    pub(crate) stillborn: bool,
    /// The server had it when it was passed on.
    pub(crate) kept: bool,
    /// Whoever had its id after it gave that back.
    pub(crate) given_back: bool,
}

/// A nap without end.
pub(crate) const FOR_EVER: Ticks = Ticks::MAX;

impl Hold {
    pub(crate) const UNBORN: Hold = Hold {
        phase: Phase::Unborn,
        levels: 0,
        left: 0,
        turn: None,
        renewal: None,
        seen: Seen::Nothing,
        errand: None,
        offer: Offer::None,
        place: None,
        nap: 0,
        rung: false,
        adopted: None,
        passed: false,
        clean: true,
        word: Word::None,
        confirmation: None,
        ended: None,
        ghost: Ghost { adrift: false, broken: false, forced: false, stillborn: false, kept: false, given_back: false },
    };

    /// Its client says that it has the lock.
    pub(crate) fn is_certain(&self) -> bool {
        self.phase == Phase::Held && self.left > 0
    }

    /// It says so, or has reached its cap and uses the rest of its lease to stop.
    pub(crate) fn is_relied_on(&self) -> bool {
        self.is_certain() || self.is_hollow() || self.phase == Phase::Capped && self.left > 0
    }

    /// There is a guard of it that does not say that it is lost, and never will, for there is nothing to lose.
    pub(crate) fn is_hollow(&self) -> bool {
        self.phase == Phase::Over && self.has_guards()
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self.phase {
            Phase::Expired | Phase::Removed | Phase::Capped => true,
            Phase::Held => self.left == 0,
            Phase::Unborn | Phase::Asked | Phase::Over => false,
        }
    }

    /// Nobody asks about its level, or is about to.
    pub(crate) fn is_free_to_ask(&self) -> bool {
        self.turn.is_none() && self.seen != Seen::Held
    }

    pub(crate) fn is_head(&self) -> bool {
        self.place == Some(0)
    }

    /// Somebody could hand the lock to it.
    pub(crate) fn is_heir(&self) -> bool {
        self.is_head() && self.offer == Offer::None
    }

    pub(crate) fn is_nesting(&self) -> bool {
        matches!(self.turn, Some(Ask { what: What::Acquire { again: true, .. }, .. }))
    }

    /// It can be passed on in memory: nothing of it is in doubt, under way or about to be.
    pub(crate) fn is_quiet(&self) -> bool {
        self.clean && self.is_free_to_ask() && self.errand.is_none()
    }

    /// It waits at the head of its line, and does nothing else.
    pub(crate) fn only_waits(&self) -> bool {
        self.is_heir() && self.turn.is_none() && self.seen == Seen::Nothing
    }

    /// Its `unlock()` has yet to answer.
    pub(crate) fn owes_a_word(&self) -> bool {
        matches!(self.word, Word::Waits(_) | Word::Asked(_) | Word::Ends(_))
    }

    /// It was granted, and is not over.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self.phase, Phase::Held | Phase::Expired | Phase::Removed | Phase::Capped)
    }

    /// There are some besides the nested request under way.
    pub(crate) fn has_guards(&self) -> bool {
        self.levels > u8::from(self.is_nesting())
    }

    /// The level the server should have.
    pub(crate) fn wanted(&self) -> u8 {
        if self.is_in_use() { self.levels } else { 0 }
    }

    /// Somebody acts for it.
    pub(crate) fn is_under_way(&self) -> bool {
        self.turn.is_some() || self.renewal.is_some() || self.errand.is_some() || self.offer != Offer::None
    }

    /// Ours for at least so long. One whose own end has passed is not, unless it `revives`.
    pub(crate) fn confirmed(&mut self, left: Ticks, revives: bool) {
        if self.phase == Phase::Asked {
            (self.phase, self.left) = (Phase::Held, left);
            self.ghost.stillborn = left == 0;
            (self.place, self.nap, self.rung) = (None, 0, false);
        } else if self.is_certain() || self.phase == Phase::Held && revives {
            self.left = self.left.max(left);
        }
    }

    /// Marks it lost; the first reason stays.
    pub(crate) fn lose(&mut self, reason: Phase) {
        if self.phase == Phase::Held {
            (self.phase, self.left, self.renewal) = (reason, 0, None);
        }
    }

    /// It has been held for as long as it may, and is renewed no more.
    pub(crate) fn cap(&mut self) {
        (self.phase, self.renewal) = (Phase::Capped, None);
    }

    /// Gives up one level on the client's side; the server's is the errand's.
    pub(crate) fn let_go(&mut self, errand: Option<Errand>) {
        self.errand = self.errand.max(errand);
        self.levels -= 1;
        if self.levels == 0 {
            self.end();
        }
    }

    pub(crate) fn end(&mut self) {
        let gone = if self.offer == Offer::Made { Offer::Gone } else { self.offer };
        let offer = if let Offer::Taken(_) = gone { Offer::None } else { gone };
        let Hold { turn, seen, errand, adopted, clean, confirmation, ended, .. } = *self;
        let ghost = Ghost { adrift: self.ghost.adrift, ..Hold::UNBORN.ghost };
        let kept = Hold { adopted, clean, confirmation, ended, ..Hold::UNBORN };
        *self = Hold { phase: Phase::Over, turn, seen, errand, offer, ghost, ..kept };
    }

    /// Only the head of a line is called.
    pub(crate) fn ring(&mut self) {
        self.rung |= self.is_head();
    }

    pub(crate) fn tick(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.turn.iter_mut().chain(&mut self.renewal).chain(&mut self.confirmation).for_each(Ask::tick);
        self.renewal = self.renewal.filter(|ask| ask.can_matter(self.left));
        if let Offer::Taken(left) = &mut self.offer {
            *left = left.saturating_sub(1);
        }
        if self.turn.is_none() && self.nap != FOR_EVER {
            self.nap = self.nap.saturating_sub(1);
        }
    }
}

impl Ask {
    pub(crate) fn new(what: What) -> Ask {
        Ask { what, age: 0, answer: None }
    }

    /// What a grant is still worth: its lease counts from before it was asked for.
    pub(crate) fn left(&self) -> Ticks {
        self.lease() - self.age
    }

    fn lease(&self) -> Ticks {
        match self.what {
            What::Acquire { lease, .. } | What::Renew { lease } | What::HandOver { lease, .. } => lease,
            What::Release { .. } | What::ReleaseEarly { .. } | What::ForceUnlock | What::Inspect => 0,
        }
    }

    /// A grant older than its lease is worth nothing, however old.
    fn tick(&mut self) {
        self.age = self.lease().min(self.age + 1);
    }

    /// Not, if it brings no more than is known, or if it is so old that its client has given it up.
    fn can_matter(&self, left: Ticks) -> bool {
        match self.answer {
            Some(Answer::Yes) => self.left() > left,
            None => self.left() > 0,
            Some(_) => true,
        }
    }
}

impl Word {
    pub(crate) fn of(was_ours: bool) -> Word {
        if was_ours { Word::Ours } else { Word::Lost }
    }
}

impl Answer {
    pub(crate) fn of(reply: Reply) -> Answer {
        match reply {
            Reply::Granted(_) | Reply::Kept(_) | Reply::Released | Reply::Handed | Reply::Held(..) => Answer::Yes,
            Reply::HandedBefore => Answer::Before,
            Reply::Busy(left, _) => Answer::Busy(left),
            Reply::Lost | Reply::Gone | Reply::Free => Answer::Gone,
            Reply::Deeper(_) => Answer::Deeper,
        }
    }
}
