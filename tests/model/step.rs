//! What each action does to the world.

use crate::{
    hold::{Answer, Ask, Errand, FOR_EVER, Hold, Offer, Phase, Seen, Word},
    protocol::{Action, Fate, Protocol, Slip, Slot, World},
    rules::{After, Id, Lock, Reply, Request, Ticks, What},
};

pub(crate) struct Step<'a> {
    protocol: &'a Protocol,
    world: World,
}

impl<'a> Step<'a> {
    pub(crate) fn of(protocol: &'a Protocol, world: &World) -> Step<'a> {
        Step { protocol, world: world.clone() }
    }

    pub(crate) fn take(mut self, action: Action) -> World {
        match action {
            Action::Begin(id) => self.begin(id),
            Action::TryLock(id) => self.try_lock(id),
            Action::Nest(id) if self.protocol.looks => self.hold(id).seen = Seen::Held,
            Action::Nest(id) => self.nest(id),
            Action::Claim(id) => self.claim(id),
            Action::Unlock(id) => self.unlock(id),
            Action::Leave(id, fate) => self.leave(id, fate),
            Action::Try(id) => self.try_now(id),
            Action::TakeOffer(id) if self.protocol.looks => self.hold(id).seen = Seen::Yours,
            Action::TakeOffer(id) => self.take_offer(id),
            Action::TakeBack(id) => self.not_taken(id),
            Action::Renew(id) => self.renew(id),
            Action::Lose(id) => self.lose(id, Phase::Expired),
            Action::Cap(id) => self.cap(id),
            Action::Release(id) => self.release(id),
            Action::HandOver(id, heir) => self.hand_over(id, heir),
            Action::Pass(id, heir) => self.pass(id, heir),
            Action::Confirm(id) => self.confirm(id),
            Action::Run(id, Slot::Turn) => self.run_turn(id),
            Action::Run(id, Slot::Renewal) => self.run_renewal(id),
            Action::Run(id, Slot::Confirmation) => self.run_confirmation(id),
            Action::Hear(id, Slot::Turn) => self.hear(id),
            Action::Hear(id, Slot::Renewal) => self.hear_renewal(id),
            Action::Hear(id, Slot::Confirmation) => self.hear_confirmation(id),
            Action::Retry(id, fate) => self.retry(id, fate),
            Action::NoRenewal(id, fate) => self.no_renewal(id, fate),
            Action::NoConfirmation(id, fate) => self.no_confirmation(id, fate),
            Action::RunLate(n) => self.run_late(n),
            Action::Tick => self.tick(),
            Action::Expire => self.world.lock = None,
            Action::Vanish(id, fate) => self.vanish(id, fate),
            Action::Force => self.force(),
        }
        self.settle();
        self.world
    }

    /// Does what there is no choice about, and forgets what makes no difference any more, so that worlds that are the
    /// same look the same.
    fn settle(&mut self) {
        for id in self.world.ids() {
            let hold = self.world.hold(id);
            if hold.errand.is_some() && hold.is_free_to_ask() && self.protocol.heir(&self.world, id).is_none() {
                self.release(id);
            }
        }
        let late = std::mem::take(&mut self.world.late);
        self.world.late = late.iter().copied().filter(|request| self.can_matter(&late, request)).collect();
        for id in self.world.ids() {
            let is_gone = self.world.hold(id).phase == Phase::Over && self.protocol.count(&self.world, id) == 0;
            let is_done = is_gone && self.protocol.is_settled(&self.world, id);
            self.hold(id).ghost.adrift &= !is_done;
            let never = self.protocol.passes == 0;
            let hold = self.hold(id);
            hold.clean |= never || is_done;
            if never {
                hold.ended = None;
            }
        }
    }

    /// Not, if nothing is left that a late request could find when it runs.
    fn can_matter(&self, late: &[Request], request: &Request) -> bool {
        let (protocol, world) = (self.protocol, &self.world);
        let can_come = |id: Id| world.hold(id).phase != Phase::Over || world.is_being_handed(id);
        let can_be_there = |wire: Id| {
            world.lock.is_some_and(|lock| lock.id == wire)
                || late.iter().any(|other| other != request && other.names(wire))
                || world.ids().any(|id| protocol.wire(world, id) == wire && can_come(id))
        };
        match request.what {
            What::Acquire { again: false, .. } => true,
            What::HandOver { heir, .. } => can_be_there(request.id) || can_be_there(heir),
            _ => can_be_there(request.id),
        }
    }

    fn hold(&mut self, id: Id) -> &mut Hold {
        &mut self.world.holds[usize::from(id)]
    }

    fn ask(&mut self, id: Id, what: What) {
        self.hold(id).turn = Some(Ask::new(what));
    }

    // Users.

    /// Who is first in line asks at once; the others sleep until they are called.
    fn begin(&mut self, id: Id) {
        let place = self.mates(id, |mate| mate.place.is_some()).len();
        let hold = self.hold(id);
        (hold.phase, hold.levels, hold.nap) = (Phase::Asked, 1, FOR_EVER);
        hold.place = Some(u8::try_from(place).expect("a handful"));
        if place == 0 {
            self.try_now(id);
        }
    }

    fn try_lock(&mut self, id: Id) {
        (self.hold(id).phase, self.hold(id).levels) = (Phase::Asked, 1);
        self.try_now(id);
    }

    fn nest(&mut self, id: Id) {
        let (level, lease) = (self.world.hold(id).levels + 1, self.protocol.nested);
        (self.hold(id).levels, self.hold(id).clean) = (level, false);
        self.ask(id, What::Acquire { level, lease, again: true });
    }

    /// What was seen may be over by now: then the claim is refused, and the caller starts afresh with a new hold.
    fn claim(&mut self, id: Id) {
        let seen = std::mem::replace(&mut self.hold(id).seen, Seen::Nothing);
        let (hold, blindly) = (*self.world.hold(id), self.protocol.has(Slip::ClaimsWhatWasSeen));
        match (seen, hold.offer) {
            (Seen::Held, _) if hold.is_certain() || blindly => self.nest(id),
            (Seen::Yours, Offer::Taken(_)) => self.take_offer(id),
            (Seen::Yours, _) if blindly => self.hold(id).levels = 1,
            _ => {}
        }
    }

    /// What was found gone is given back too: it may be handed to this hold even so.
    fn unlock(&mut self, id: Id) {
        let is_left = self.protocol.has(Slip::LeavesWhatWasRemoved) && self.world.hold(id).phase == Phase::Removed;
        self.hold(id).let_go((!is_left).then_some(Errand::PassOn));
    }

    /// In memory: the lock on the server stays as it is.
    fn pass(&mut self, id: Id, heir: Id) {
        let (left, wire) = (self.world.hold(id).left, self.wire(id));
        let ghost = self.world.hold(id).ghost;
        let kept = self.protocol.count(&self.world, id) == 1 && !ghost.broken && !ghost.forced;
        self.world.row += 1;
        let hold = self.hold(id);
        hold.let_go(None);
        (hold.passed, hold.word, hold.ghost.kept) = (true, Word::Waits(wire), kept);
        let heir = self.hold(heir);
        (heir.adopted, heir.offer, heir.ghost.forced) = (Some(wire), Offer::Taken(left), ghost.forced);
    }

    fn leave(&mut self, id: Id, fate: Fate) {
        let turn = self.hold(id).turn.take();
        self.give_up(id, turn, fate);
        let before = *self.world.hold(id);
        let is_in_doubt = turn.is_some() && !self.protocol.has(Slip::ForgetsNothing);
        let errand = match before.offer {
            Offer::Taken(_) => Some(Errand::PassOn),
            _ => is_in_doubt.then_some(Errand::Release),
        };
        self.hold(id).let_go(errand);
        self.left_line(id, before, true);
    }

    // Their clients.

    fn try_now(&mut self, id: Id) {
        (self.hold(id).nap, self.hold(id).rung) = (0, false);
        self.ask(id, What::Acquire { level: 1, lease: self.protocol.lease, again: false });
    }

    fn take_offer(&mut self, id: Id) {
        if let Offer::Taken(left) = self.world.hold(id).offer {
            self.granted_first(id, left);
        }
    }

    /// What is lost when it arrives is given up, and the caller starts afresh with a new hold. Who hands over to this
    /// one meanwhile passes on.
    fn granted_first(&mut self, id: Id, left: Ticks) {
        if left == 0 && !self.protocol.has(Slip::TakesLateGrants) {
            return self.not_taken(id);
        }
        let hold = self.hold(id);
        hold.offer = if hold.offer == Offer::Made { Offer::Granted } else { Offer::None };
        self.granted(id, left);
    }

    fn not_taken(&mut self, id: Id) {
        let before = *self.world.hold(id);
        self.hold(id).let_go(Some(Errand::PassOn));
        self.left_line(id, before, true);
    }

    fn granted(&mut self, id: Id, left: Ticks) {
        let (before, revives) = (*self.world.hold(id), self.protocol.revives);
        self.hold(id).confirmed(left, revives);
        self.left_line(id, before, before.rung);
    }

    /// Those behind move up. The next is called if a wake-up was not used, or if nobody got the lock.
    fn left_line(&mut self, id: Id, before: Hold, calls: bool) {
        let Some(place) = before.place.filter(|_| self.world.hold(id).place.is_none()) else { return };
        for mate in self.mates(id, |mate| mate.place > Some(place)) {
            self.hold(mate).place = self.hold(mate).place.map(|place| place - 1);
            if calls && place == 0 && !self.protocol.has(Slip::CallsNobody) {
                self.hold(mate).ring();
            }
        }
    }

    fn renew(&mut self, id: Id) {
        self.hold(id).renewal = Some(Ask::new(What::Renew { lease: self.protocol.lease }));
    }

    fn lose(&mut self, id: Id, reason: Phase) {
        self.hold(id).lose(reason);
        self.ring(id);
    }

    fn cap(&mut self, id: Id) {
        self.hold(id).cap();
        self.ring(id);
    }

    /// For all who passed it on before: those who let go later wait for the next.
    fn confirm(&mut self, id: Id) {
        self.hold(id).confirmation = Some(Ask::new(What::Renew { lease: self.protocol.lease }));
        self.tell(Word::Waits(id), Word::Asked(id));
    }

    fn tell(&mut self, who: Word, what: Word) {
        self.world.holds.iter_mut().filter(|hold| hold.word == who).for_each(|hold| hold.word = what);
    }

    /// What gives an id back tells all who passed it on before.
    fn ends(&mut self, id: Id) {
        self.world.row = 0;
        let wire = self.wire(id);
        self.tell(Word::Waits(wire), Word::Ends(wire));
    }

    /// `None`: nobody can tell.
    fn ended(&mut self, id: Id, was_ours: Option<bool>) {
        let wire = self.wire(id);
        self.tell(Word::Ends(wire), was_ours.map_or(Word::None, Word::of));
        if usize::from(wire) < self.world.holds.len() {
            self.hold(wire).ended = was_ours;
        }
    }

    fn release(&mut self, id: Id) {
        self.hold(id).errand = None;
        let level = self.protocol.wanted(self.world.hold(id));
        if level == 0 {
            self.ends(id);
        }
        self.ask(id, What::Release { level });
    }

    fn hand_over(&mut self, id: Id, heir: Id) {
        self.hold(id).errand = None;
        self.hold(heir).offer = Offer::Made;
        self.ends(id);
        self.ask(id, What::HandOver { heir, lease: self.protocol.lease });
    }

    fn retry(&mut self, id: Id, fate: Fate) {
        let Some(ask) = self.world.hold(id).turn else { return };
        self.hold(id).clean = false;
        self.give_up(id, Some(ask), fate);
        let answer = ask.answer.filter(|_| self.protocol.has(Slip::TakesAnyReply));
        self.hold(id).turn = Some(Ask { answer, ..Ask::new(ask.what) });
    }

    fn no_renewal(&mut self, id: Id, fate: Fate) {
        let renewal = self.hold(id).renewal.take();
        self.give_up(id, renewal, fate);
    }

    fn no_confirmation(&mut self, id: Id, fate: Fate) {
        if let (Some(ask), Fate::Late) = (self.hold(id).confirmation.take(), fate) {
            self.world.late.push(Request { id, what: ask.what });
            self.world.late.sort_unstable();
        }
        self.tell(Word::Asked(id), Word::Waits(id));
    }

    fn give_up(&mut self, id: Id, ask: Option<Ask>, fate: Fate) {
        if let (Some(ask), Fate::Late) = (ask, fate) {
            self.world.late.push(self.request(id, ask.what));
            self.world.late.sort_unstable();
        }
    }

    // What they hear.

    fn worth(&self, ask: &Ask) -> Ticks {
        if self.protocol.has(Slip::CountsFromReply) { Ask::new(ask.what).left() } else { ask.left() }
    }

    fn hear(&mut self, id: Id) {
        let ask = self.hold(id).turn.take().expect("hearing is possible where something was asked");
        let (left, answer) = (self.worth(&ask), ask.answer.expect("and answered"));
        match ask.what {
            What::Acquire { again: false, .. } => self.hear_first(id, left, answer),
            What::Acquire { again: true, .. } => self.hear_nested(id, left, answer),
            What::HandOver { heir, .. } => self.hear_handed(id, heir, left, answer),
            _ => unreachable!("releases are heard when they run"),
        }
    }

    fn hear_first(&mut self, id: Id, left: Ticks, answer: Answer) {
        let sets_alarm = !self.protocol.has(Slip::SetsNoAlarm);
        let hold = self.hold(id);
        match answer {
            Answer::Yes => self.granted_first(id, left),
            Answer::Busy(_) if hold.place.is_none() => hold.let_go(None),
            Answer::Busy(Some(left)) if sets_alarm => hold.nap = left + 1,
            _ => hold.nap = FOR_EVER,
        }
    }

    /// What was granted too late, or found lost, is given up at once.
    fn hear_nested(&mut self, id: Id, left: Ticks, answer: Answer) {
        if answer == Answer::Gone {
            self.lose(id, Phase::Removed);
            return self.hold(id).let_go(Some(Errand::Release));
        }
        self.granted(id, left);
        if self.world.hold(id).is_lost() {
            self.hold(id).let_go(Some(Errand::PassOn));
        }
    }

    fn hear_renewal(&mut self, id: Id) {
        let ask = self.hold(id).renewal.take().expect("hearing is possible where something was asked");
        match ask.answer {
            Some(Answer::Gone) => self.lose(id, Phase::Removed),
            _ => self.granted(id, self.worth(&ask)),
        }
    }

    fn hear_confirmation(&mut self, id: Id) {
        let ask = self.hold(id).confirmation.take().expect("hearing is possible where something was asked");
        let is_there = ask.answer != Some(Answer::Gone);
        let has_it = |hold: &Hold| hold.is_in_use() || matches!(hold.offer, Offer::Taken(_));
        let holder = self.world.ids().find(|holder| self.wire(*holder) == id && has_it(self.world.hold(*holder)));
        let is_being_ended = self.world.any(|hold| hold.word == Word::Ends(id)) || self.gives_back(id);
        let by_its_end = match self.world.hold(id).ended {
            _ if self.protocol.has(Slip::TakesGivenBackForLost) => Word::Lost,
            Some(was_ours) => Word::of(was_ours),
            None if is_being_ended => Word::Ends(id),
            None if holder.is_none() => Word::None,
            None => Word::Lost,
        };
        self.tell(Word::Asked(id), if is_there { Word::Ours } else { by_its_end });
        if is_there && self.protocol.has(Slip::BelievesEarlierWord) {
            self.tell(Word::Waits(id), Word::Ours);
        }
        match holder {
            Some(holder) if is_there => self.confirmed(holder, self.worth(&ask)),
            Some(holder) => self.found_gone(holder),
            None => {}
        }
    }

    fn confirmed(&mut self, id: Id, left: Ticks) {
        match &mut self.hold(id).offer {
            Offer::Taken(certain) => *certain = left.max(*certain),
            _ => self.granted(id, left),
        }
    }

    /// One who has not looked yet finds it lost when it looks.
    fn found_gone(&mut self, id: Id) {
        match &mut self.hold(id).offer {
            Offer::Taken(certain) => *certain = 0,
            _ => self.lose(id, Phase::Removed),
        }
    }

    /// The request that gives this id back is under way, or about to be.
    fn gives_back(&self, wire: Id) -> bool {
        self.world.ids().any(|id| {
            let hold = self.world.hold(id);
            let is_end = |ask: Ask| matches!(ask.what, What::Release { level: 0 } | What::HandOver { .. });
            self.wire(id) == wire && (hold.errand.is_some() && hold.wanted() == 0 || hold.turn.is_some_and(is_end))
        })
    }

    fn hear_handed(&mut self, id: Id, heir: Id, left: Ticks, answer: Answer) {
        let is_certain = self.world.hold(id).clean;
        match answer {
            Answer::Yes => self.ended(id, Some(true)),
            Answer::Before | Answer::Gone => self.ended(id, is_certain.then_some(false)),
            _ => {}
        }
        self.hold(heir).clean &= is_certain && answer == Answer::Yes;
        if !matches!(answer, Answer::Yes | Answer::Before) {
            self.withdraw(heir);
            let errand = (answer == Answer::Deeper).then_some(Errand::Release);
            self.hold(id).errand = self.world.hold(id).errand.max(errand); // what is to be done since stays
            return;
        }
        let leaves_it = self.protocol.has(Slip::LeavesItToTheDead);
        let heir = self.hold(heir);
        match heir.offer {
            Offer::Made => heir.offer = Offer::Taken(left),
            Offer::Granted if heir.phase == Phase::Over && !leaves_it => {
                (heir.offer, heir.errand) = (Offer::None, Some(Errand::PassOn));
            }
            Offer::Gone => (heir.offer, heir.errand) = (Offer::None, Some(Errand::PassOn)),
            _ => heir.offer = Offer::None,
        }
    }

    /// The hand-over came to nothing: he looks for himself.
    fn withdraw(&mut self, heir: Id) {
        self.hold(heir).offer = Offer::None;
        self.hold(heir).ring();
    }

    /// The head of the line in this process looks.
    fn ring(&mut self, id: Id) {
        for mate in self.mates(id, |_| true) {
            self.hold(mate).ring();
        }
    }

    fn mates(&self, id: Id, are: impl Fn(&Hold) -> bool) -> Vec<Id> {
        let (protocol, world) = (self.protocol, &self.world);
        let is_mate = |mate: &Id| protocol.process(*mate) == protocol.process(id) && are(world.hold(*mate));
        world.ids().filter(is_mate).collect()
    }

    // The server.

    fn wire(&self, id: Id) -> Id {
        self.protocol.wire(&self.world, id)
    }

    fn request(&self, id: Id, what: What) -> Request {
        let what = match what {
            What::HandOver { heir, lease } => What::HandOver { heir: self.wire(heir), lease },
            other => other,
        };
        Request { id: self.wire(id), what }
    }

    fn run_turn(&mut self, id: Id) {
        let what = self.world.hold(id).turn.expect("it was asked").what;
        let (before, request) = (self.world.lock, self.request(id, what));
        let answer = Answer::of(self.serve(request));
        let is_there = self.protocol.count(&self.world, id) > 0;
        let hold = self.hold(id);
        hold.turn = Some(Ask { answer: Some(answer), ..hold.turn.expect("it was asked") });
        hold.ghost.adrift &= hold.phase == Phase::Over && is_there;
        if let (What::HandOver { heir, .. }, Answer::Yes) = (what, answer)
            && before.is_some_and(|before| before.id == request.id)
        {
            self.hold(heir).ghost.adrift = false;
        }
        if matches!(what, What::Release { level: 0 } | What::HandOver { .. }) && answer == Answer::Yes {
            self.given_back(self.wire(id));
        }
        if let What::Release { level: 0 } = what {
            let is_certain = self.world.hold(id).clean;
            match answer {
                Answer::Yes => self.ended(id, Some(true)),
                _ => self.ended(id, is_certain.then_some(false)),
            }
        }
        if let What::Release { level } = what {
            self.released(id, level == 0 || answer == Answer::Gone);
        }
        if !self.protocol.overtaking {
            self.world.late.retain(|late| late.is_by_force() || !comes_before(*late, request));
        }
    }

    /// The answer to a release changes nothing but who looks next, so it is heard at once.
    fn released(&mut self, id: Id, is_free: bool) {
        self.hold(id).turn = None;
        if is_free {
            self.ring(id);
        }
    }

    fn given_back(&mut self, wire: Id) {
        let waits = [Word::Waits(wire), Word::Asked(wire), Word::Ends(wire)];
        let who = self.world.holds.iter_mut().filter(|hold| waits.contains(&hold.word));
        who.for_each(|hold| hold.ghost.given_back = true);
    }

    fn run_renewal(&mut self, id: Id) {
        let ask = self.world.hold(id).renewal.expect("it was asked");
        let reply = self.serve(self.request(id, ask.what));
        self.hold(id).renewal = Some(Ask { answer: Some(Answer::of(reply)), ..ask });
    }

    /// To the server it is a renewal by whoever has that id.
    fn run_confirmation(&mut self, id: Id) {
        let ask = self.world.hold(id).confirmation.expect("it was asked");
        let reply = self.serve(Request { id, what: ask.what });
        self.hold(id).confirmation = Some(Ask { answer: Some(Answer::of(reply)), ..ask });
    }

    fn run_late(&mut self, n: usize) {
        let request = self.world.late.remove(n);
        let counts =
            |step: &Self| -> Vec<u8> { step.world.ids().map(|id| step.protocol.count(&step.world, id)).collect() };
        let before = counts(self);
        self.serve(request);
        let after = counts(self);
        for (id, changed) in self.world.ids().zip(before.into_iter().zip(after).map(|(before, after)| before != after))
        {
            let is_named = self.wire(id) == request.id;
            let is_excused = (self.protocol.excuses() || self.protocol.vanishing) && !request.is_by_force();
            let ghost = &mut self.hold(id).ghost;
            ghost.forced |= changed && request.is_by_force() && is_named;
            ghost.adrift |= changed && is_excused;
        }
    }

    fn serve(&mut self, request: Request) -> Reply {
        let owner = |lock: Option<Lock>| lock.map(|lock| lock.id);
        let After { lock, reply, published } = (self.protocol.rules)(self.world.lock, request);
        if owner(lock) != owner(self.world.lock) {
            self.owned_by(owner(lock));
        }
        self.world.lock = lock;
        if published && self.protocol.told {
            self.world.holds.iter_mut().for_each(Hold::ring);
        }
        reply
    }

    fn owned_by(&mut self, owner: Option<Id>) {
        for id in self.world.ids() {
            let is_other = owner.is_some_and(|owner| owner != self.wire(id));
            let hold = self.hold(id);
            hold.ghost.broken |= is_other && hold.phase == Phase::Held;
        }
    }

    // Time and misfortune.

    /// A lock whose time is over may still be found in the moment in which it ends, not later.
    fn tick(&mut self) {
        self.world.holds.iter_mut().for_each(Hold::tick);
        self.world.lock = self.world.lock.and_then(|lock| match lock.left {
            Some(0) => None,
            left => Some(Lock { left: left.map(|left| left - 1), ..lock }),
        });
    }

    fn vanish(&mut self, id: Id, fate: Fate) {
        let before = *self.world.hold(id);
        self.give_up(id, before.turn, fate);
        if let Some(Ask { what: What::HandOver { heir, .. }, .. }) = before.turn {
            self.withdraw(heir);
            self.hold(heir).ghost.adrift = true;
        }
        let wire = self.wire(id);
        [Word::Waits(wire), Word::Asked(wire), Word::Ends(wire)]
            .into_iter()
            .for_each(|word| self.tell(word, Word::None));
        if let Some(root) = self.world.holds.get_mut(usize::from(wire)) {
            root.confirmation = None;
        }
        let hold = self.hold(id);
        (hold.turn, hold.errand, hold.seen) = (None, None, Seen::Nothing);
        hold.end();
        hold.ghost.adrift = true;
        self.left_line(id, before, true);
        self.ring(id);
    }

    fn force(&mut self) {
        let Some(Lock { id, .. }) = self.world.lock else { return };
        self.world.force = false;
        self.world.late.extend([Request { id, what: What::ForceUnlock }; 2]);
        self.world.late.sort_unstable();
    }
}

/// On one connection. A hold is asked about one thing after the other, and is not given back while it can be handed the
/// lock: that was asked for before, or will be for its next one.
fn comes_before(late: Request, request: Request) -> bool {
    let gives_back = matches!(request.what, What::Release { .. });
    late.id == request.id || gives_back && late.names(request.id)
}
