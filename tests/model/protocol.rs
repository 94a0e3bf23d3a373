//! Clients, a server, the network between them and time: what can happen next. `step.rs` has what it does,
//! `properties.rs` what must be true.
//!
//! There is no end to ticks, tries and renewals. Bounded are the holds, their levels, and the requests that were given
//! up and have yet to run.

use stateright::{Model, Property};

use crate::{
    hold::{Ask, Errand, Hold, Offer, Phase, Seen, Word},
    properties,
    rules::{Id, Lock, Request, Rules, Ticks, What, run},
    step::Step,
};

/// How large the world is, and what is different in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    /// The process of each task.
    pub(crate) tasks: &'static [u8],
    /// Outermost holds of each task, one after the other.
    pub(crate) holds: u8,
    pub(crate) levels: u8,
    pub(crate) lease: Ticks,
    /// The lease of nested levels.
    pub(crate) nested: Ticks,
    /// Requests that were given up and have yet to run, at most.
    pub(crate) late: usize,
    /// Such a request may also run after later ones of its hold, as it can if they came over another connection.
    pub(crate) overtaking: bool,
    /// An answer can make a hold certain again whose own end has passed, until the watchdog has seen that.
    pub(crate) revives: bool,
    /// Who claims a level of a hold, or takes what was handed over, has looked at it in a step before.
    pub(crate) looks: bool,
    /// A hold may reach its cap at any time.
    pub(crate) caps: bool,
    /// Releases are heard of; else all messages are lost.
    pub(crate) told: bool,
    /// Clients may vanish without a word, and releasers give up.
    pub(crate) vanishing: bool,
    /// A lock may pass on in memory, so often in a row.
    pub(crate) passes: u8,
    /// Somebody may open the lock by force, once.
    pub(crate) force: bool,
    pub(crate) rules: Rules,
    pub(crate) slip: Option<Slip>,
    /// Without the excuses that docs/design.md names.
    pub(crate) strict: bool,
}

/// What a client can do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slip {
    /// Counts its lease from the answer.
    CountsFromReply,
    /// Takes the answer to an earlier try for that to the last.
    TakesAnyReply,
    /// Takes nothing back.
    ForgetsNothing,
    /// Hands over whatever its own level is.
    HandsOverAnyLevel,
    /// Has one id for all holds of a task.
    OneIdPerTask,
    /// Sleeps until it is called.
    SetsNoAlarm,
    /// Goes away from the head of the line without calling the next.
    CallsNobody,
    /// Claims what was seen, whatever has become of it.
    ClaimsWhatWasSeen,
    /// Takes a lock whose lease was over when it heard of it.
    TakesLateGrants,
    /// Leaves a lock with a hold that was over when it was handed to it.
    LeavesItToTheDead,
    /// Gives nothing back of what it knows to be gone.
    LeavesWhatWasRemoved,
    /// Gives back all of a lost hold with the first of its guards.
    FreesWhatIsLost,
    /// Passes on in memory what is in doubt.
    PassesOnInDoubt,
    /// Passes on in memory to a waiter of which something is in doubt.
    PassesOnToDoubt,
    /// Answers an `unlock()` by a confirmation that was sent before.
    BelievesEarlierWord,
    /// Takes what was given back meanwhile for lost.
    TakesGivenBackForLost,
    /// Passes on in memory for ever.
    PassesOnForEver,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) lock: Option<Lock>,
    /// Those of the first task, then those of the second, and so on.
    pub(crate) holds: Vec<Hold>,
    /// Given up, and yet to run: each will. In order, so that the same ones make the same world.
    pub(crate) late: Vec<Request>,
    /// How often in a row it was passed on in memory.
    pub(crate) row: u8,
    pub(crate) force: bool,
}

/// Which of a hold's questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Turn,
    Renewal,
    Confirmation,
}

/// What becomes of a request that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has run, or never will.
    Lost,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    // Users.
    Begin(Id),
    TryLock(Id),
    Nest(Id),
    /// Acts upon what it has seen.
    Claim(Id),
    Unlock(Id),
    /// Goes away from the line, or from a request under way.
    Leave(Id, Fate),
    // Their clients.
    Try(Id),
    TakeOffer(Id),
    Renew(Id),
    /// The watchdog sees that its time is over.
    Lose(Id),
    Cap(Id),
    /// From an heir that does not look.
    TakeBack(Id),
    Release(Id),
    HandOver(Id, Id),
    /// In memory.
    Pass(Id, Id),
    /// Asks whether that id is there, for all who passed it on before.
    Confirm(Id),
    // The network and the server.
    Run(Id, Slot),
    Hear(Id, Slot),
    /// No answer to the last try: it is asked again.
    Retry(Id, Fate),
    /// No answer to a renewal: there will be another.
    NoRenewal(Id, Fate),
    NoConfirmation(Id, Fate),
    RunLate(usize),
    // Time and misfortune.
    Tick,
    Expire,
    Vanish(Id, Fate),
    /// Somebody sees who has the lock, and asks twice to have it taken away.
    Force,
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let holds = vec![Hold::UNBORN; self.tasks.len() * usize::from(self.holds)];
        vec![World { lock: None, holds, late: Vec::new(), row: 0, force: self.force }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let mut choices = Choices(actions);
        for id in world.ids() {
            self.of_users(world, id, &mut choices);
            self.of_clients(world, id, &mut choices);
            self.of_network(world, id, &mut choices);
        }
        (0..world.late.len()).for_each(|n| choices.may(true, Action::RunLate(n)));
        choices.may(true, Action::Tick);
        choices.may(world.lock.is_some_and(|lock| lock.left == Some(0)), Action::Expire);
        choices.may(world.force && world.lock.is_some(), Action::Force);
    }

    /// `None` where nothing changes, so that a world in which nothing can happen any more is known as such.
    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let next = Step::of(self, world).take(action);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

/// The id of a hold that has none any more.
const NOBODYS: Id = Id::MAX;

struct Choices<'a>(&'a mut Vec<Action>);

impl Choices<'_> {
    fn may(&mut self, is_possible: bool, action: Action) {
        if is_possible {
            self.0.push(action);
        }
    }
}

impl Protocol {
    /// As built; its size is for the caller to set.
    pub(crate) const BASE: Protocol = Protocol {
        tasks: &[0, 1],
        holds: 1,
        levels: 1,
        lease: 2,
        nested: 1,
        late: 0,
        overtaking: false,
        revives: false,
        looks: false,
        caps: false,
        told: false,
        vanishing: false,
        passes: 0,
        force: false,
        rules: run,
        slip: None,
        strict: false,
    };

    /// What given-up requests do when they run late is excused where they can overtake.
    pub(crate) fn excuses(&self) -> bool {
        self.overtaking && !self.strict
    }

    pub(crate) fn has(&self, slip: Slip) -> bool {
        self.slip == Some(slip)
    }

    pub(crate) fn process(&self, id: Id) -> u8 {
        self.tasks[usize::from(id / self.holds)]
    }

    /// Two tasks of one process: there can be an heir.
    pub(crate) fn has_heirs(&self) -> bool {
        (0..self.tasks.len()).any(|task| self.tasks[..task].contains(&self.tasks[task]))
    }

    /// The id of a hold as the server knows it.
    pub(crate) fn wire(&self, world: &World, id: Id) -> Id {
        let hold = world.hold(id);
        match hold.adopted {
            _ if hold.passed => NOBODYS,
            Some(adopted) => adopted,
            None if self.has(Slip::OneIdPerTask) => id - id % self.holds,
            None => id,
        }
    }

    /// The level that the server should have.
    pub(crate) fn wanted(&self, hold: &Hold) -> u8 {
        let is_lost = hold.phase != Phase::Held && self.has(Slip::FreesWhatIsLost);
        if is_lost { 0 } else { hold.wanted() }
    }

    /// Whom the lock could be handed to: the head of the line, where the errand allows that.
    pub(crate) fn heir(&self, world: &World, id: Id) -> Option<Id> {
        let hold = world.hold(id);
        let may = hold.errand == Some(Errand::PassOn) && (self.wanted(hold) == 0 || self.has(Slip::HandsOverAnyLevel));
        let is_heir = |heir: &Id| self.process(*heir) == self.process(id) && world.hold(*heir).is_heir();
        if may { world.ids().find(is_heir) } else { None }
    }

    /// To whom a hold that its user gives back goes in memory.
    fn successor(&self, world: &World, id: Id) -> Option<Id> {
        let hold = world.hold(id);
        let is_bounded = world.row < self.passes || self.passes > 0 && self.has(Slip::PassesOnForEver);
        let quiet = Hold { clean: hold.clean || self.has(Slip::PassesOnInDoubt), ..*hold };
        let is_clean = |heir: &Id| world.hold(*heir).clean || self.has(Slip::PassesOnToDoubt);
        let is_mate = |heir: &Id| self.process(*heir) == self.process(id);
        let is_ready = |heir: &Id| is_mate(heir) && world.hold(*heir).only_waits() && is_clean(heir);
        let may = is_bounded && hold.is_certain() && hold.has_guards() && hold.levels == 1 && quiet.is_quiet();
        if may { world.ids().find(is_ready) } else { None }
    }

    fn of_users(&self, world: &World, id: Id, choices: &mut Choices<'_>) {
        let hold = world.hold(id);
        let is_next = id.is_multiple_of(self.holds) || world.hold(id - 1).phase == Phase::Over;
        choices.may(hold.phase == Phase::Unborn && is_next, Action::Begin(id));
        // Alone in its line it would be no different.
        choices.may(hold.phase == Phase::Unborn && is_next && self.has_heirs(), Action::TryLock(id));
        choices.may(hold.is_certain() && hold.is_free_to_ask() && hold.levels < self.levels, Action::Nest(id));
        choices.may(hold.is_in_use() && hold.has_guards(), Action::Unlock(id));
        if let Some(heir) = self.successor(world, id) {
            choices.may(true, Action::Pass(id, heir));
        }
        choices.may(hold.seen != Seen::Nothing, Action::Claim(id));
        let can_leave = hold.phase == Phase::Asked && hold.seen == Seen::Nothing || hold.is_nesting();
        let is_there = hold.phase != Phase::Unborn && (hold.phase != Phase::Over || hold.is_under_way());
        for &fate in self.fates(world, hold.turn) {
            choices.may(can_leave, Action::Leave(id, fate));
            choices.may(self.vanishing && is_there, Action::Vanish(id, fate));
        }
    }

    fn of_clients(&self, world: &World, id: Id, choices: &mut Choices<'_>) {
        let hold = world.hold(id);
        let is_due = (1..self.lease).contains(&hold.left) && hold.renewal.is_none();
        choices.may(hold.phase == Phase::Held && is_due, Action::Renew(id));
        choices.may(hold.phase == Phase::Held && hold.left == 0, Action::Lose(id));
        choices.may(self.caps && hold.is_certain(), Action::Cap(id));
        let is_asked_for = world.any(|hold| hold.word == Word::Waits(id)) && hold.confirmation.is_none();
        choices.may(is_asked_for, Action::Confirm(id));
        if !hold.is_free_to_ask() {
            return;
        }
        let is_theirs = matches!(hold.offer, Offer::Taken(_));
        choices.may(is_theirs && hold.seen == Seen::Nothing, Action::TakeOffer(id));
        // From one who has not looked it would be no different from its leaving.
        choices.may(is_theirs && hold.seen == Seen::Yours, Action::TakeBack(id));
        choices.may(hold.place.is_some() && !is_theirs && (hold.rung || hold.nap == 0), Action::Try(id));
        if let Some(heir) = self.heir(world, id) {
            choices.may(true, Action::HandOver(id, heir));
            choices.may(true, Action::Release(id));
        }
    }

    fn of_network(&self, world: &World, id: Id, choices: &mut Choices<'_>) {
        let hold = world.hold(id);
        let confirmation = (Slot::Confirmation, hold.confirmation);
        for (slot, ask) in [(Slot::Turn, hold.turn), (Slot::Renewal, hold.renewal), confirmation] {
            let Some(Ask { answer, .. }) = ask else { continue };
            choices.may(true, if answer.is_none() { Action::Run(id, slot) } else { Action::Hear(id, slot) });
            for &fate in self.fates(world, ask) {
                choices.may(
                    true,
                    match slot {
                        Slot::Turn => Action::Retry(id, fate),
                        Slot::Renewal => Action::NoRenewal(id, fate),
                        Slot::Confirmation => Action::NoConfirmation(id, fate),
                    },
                );
            }
        }
    }

    /// What can become of a request if it is given up. What is late will run some day: one that never does was lost.
    fn fates(&self, world: &World, ask: Option<Ask>) -> &'static [Fate] {
        let is_on_its_way = ask.is_some_and(|ask| ask.answer.is_none());
        let late = world.late.iter().filter(|late| !late.is_by_force()).count();
        if is_on_its_way && late < self.late { &[Fate::Lost, Fate::Late] } else { &[Fate::Lost] }
    }

    /// Nobody acts for it, and no request about it has yet to run.
    pub(crate) fn is_settled(&self, world: &World, id: Id) -> bool {
        let is_named = |late: &Request| late.names(self.wire(world, id));
        !world.hold(id).is_under_way() && !world.is_being_handed(id) && !world.late.iter().any(is_named)
    }

    /// The level the server has of it.
    pub(crate) fn count(&self, world: &World, id: Id) -> u8 {
        world.lock.filter(|lock| lock.id == self.wire(world, id)).map_or(0, |lock| lock.count)
    }
}

impl World {
    pub(crate) fn ids(&self) -> std::ops::Range<Id> {
        0..Id::try_from(self.holds.len()).expect("a handful")
    }

    pub(crate) fn hold(&self, id: Id) -> &Hold {
        &self.holds[usize::from(id)]
    }

    /// Somebody asks the server to move the lock to it.
    pub(crate) fn is_being_handed(&self, id: Id) -> bool {
        self.any(|hold| hold.turn.is_some_and(|ask| ask.what.heir() == Some(id)))
    }

    pub(crate) fn any(&self, is: impl Fn(&Hold) -> bool) -> bool {
        self.holds.iter().any(is)
    }
}

impl Request {
    pub(crate) fn names(&self, wire: Id) -> bool {
        self.id == wire || self.what.heir() == Some(wire)
    }

    /// It came from somebody else, over another connection.
    pub(crate) fn is_by_force(&self) -> bool {
        self.what == What::ForceUnlock
    }
}

impl What {
    fn heir(self) -> Option<Id> {
        match self {
            What::HandOver { heir, .. } => Some(heir),
            _ => None,
        }
    }
}
