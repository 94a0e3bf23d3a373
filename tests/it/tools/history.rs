//! The checker of histories finds what must not happen, and nothing else.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::support::history::{Emptied, Event, Failover, Far, History, Kind, Left, Room, Seen, Silent, What, Wipe};

const SECOND: u64 = 1_000_000_000;

/// A history of two clients with leases of a second, from their logs.
fn history(one: &str, other: &str) -> History {
    let read = |log: &str| log.lines().map(|line| line.trim().parse().expect(line)).collect::<Vec<Event>>();
    let clients = [("one", read(one)), ("other", read(other))];
    History {
        clients: clients.into_iter().map(|(name, events)| (name.to_owned(), events)).collect(),
        longest_lease: Duration::from_secs(1),
        ..History::default()
    }
}

fn kinds(history: &History) -> Vec<Kind> {
    history.check().iter().map(|violation| violation.kind).collect()
}

fn wiped(name: Option<&str>, since: u64, at: u64) -> Wipe {
    Wipe { name: name.map(str::to_owned), beside: false, all_from: 0, since, at }
}

const FIRST: &str = "10 0 a asked\n20 0 a granted one:1 100\n60 0 a releasing one:1\n70 0 a released one:1";

#[test]
fn events_survive_their_log() {
    for what in [
        What::Asked,
        What::Granted { id: "u:1".into(), until: 7 },
        What::Token { id: "u:1".into(), token: 7 },
        What::Permits { id: "u:1".into(), permits: 7 },
        What::Rests { id: "u:1".into(), least: 7 },
        What::Sure { id: "u:1".into(), until: 7 },
        What::Counted { id: "u:1".into(), since: 1, believed: 2, counted: 3 },
        What::Releasing { id: "u:1".into() },
        What::Released { id: "u:1".into() },
        What::Confirmed { id: "u:1".into() },
        What::Unconfirmed { id: "u:1".into(), since: 1, until: 2 },
        What::Lost { id: "u:1".into(), removed: true },
        What::Lost { id: "u:1".into(), removed: false },
        What::Kept,
        What::Left,
        What::Failed { error: "not today".into() },
        What::Begun { call: "lock".into(), limit: 7 },
        What::Ended { call: "lock".into(), how: "ok".into() },
        What::Forcing,
        What::Forced,
        What::Spared,
        What::Paused { since: 3 },
        What::Way { way: "on foot".into() },
        What::Voter { id: "u".into() },
        What::Wrong { kind: Kind::Hollow, details: "it has nothing".into() },
    ] {
        let event = Event { at: 5, task: 3, name: "a".into(), what };
        assert_eq!(event.to_string().parse(), Ok(event));
    }
    assert!("5 3 a gran".parse::<Event>().is_err());
}

#[test]
fn one_after_the_other_is_fine() {
    let history = history(FIRST, "11 0 a asked\n60 0 a granted other:1 160\n90 0 a lost other:1");
    assert_eq!(history.check(), []);
    assert_eq!(history.turns().into_values().sum::<u64>(), 2);
}

#[test]
fn two_certain_holders() {
    let history = history(FIRST, "11 0 a asked\n59 0 a granted other:1 160\n90 0 a releasing other:1");
    assert_eq!(kinds(&history), [Kind::Overlap]);
}

#[test]
fn a_long_hold_overlaps_with_more_than_its_neighbour() {
    let history = history(
        "10 0 a granted one:1 100",
        "20 0 a granted other:1 30\n25 0 a releasing other:1\n40 0 a granted other:2 50",
    );
    assert_eq!(kinds(&history), [Kind::Overlap, Kind::Overlap]);
}

#[test]
fn certainty_ends_by_itself_with_loss_and_with_death() {
    let (late, mut killed) = ("90 0 a granted other:1 160", history("20 0 a granted one:1 100", ""));
    assert_eq!(kinds(&history("20 0 a granted one:1 90", late)), []);
    assert_eq!(kinds(&history("20 0 a granted one:1 100", late)), [Kind::Overlap]);
    assert_eq!(kinds(&history("20 0 a granted one:1 100\n80 0 a lost one:1", late)), []);
    assert_eq!(kinds(&history("20 0 a granted one:1 50\n40 0 a sure one:1 100", late)), [Kind::Overlap]);
    assert_eq!(
        kinds(&history("20 0 a granted one:1 50\n99 0 a sure one:1 98", late)),
        [],
        "it was over when it looked"
    );
    killed.clients.insert("other".into(), vec![late.parse().expect("an event")]);
    killed.killed = HashMap::from([("one".to_owned(), 80)]);
    assert_eq!(kinds(&killed), []);
}

#[test]
fn a_nested_level_does_not_end_the_hold() {
    let nested = "20 0 a granted one:1 100\n30 0 a granted one:1 100\n40 0 a releasing one:1";
    assert_eq!(kinds(&history(nested, "50 0 a granted other:1 160")), [Kind::Overlap]);
}

/// A lock that passes on in memory keeps its id: the owners are told apart.
#[test]
fn holders_of_one_id() {
    let row =
        "10 0 a granted one:1~a 100\n40 0 a releasing one:1~a\n50 1 a granted one:1~b 100\n60 1 a releasing one:1~b";
    assert_eq!(kinds(&history(row, "")), []);
    let both = "10 0 a granted one:1~a 100\n40 1 a granted one:1~b 100\n50 0 a releasing one:1~a";
    assert_eq!(kinds(&history(both, "")), [Kind::Overlap]);
    let mut seen = history(row, "");
    seen.seen = HashMap::from([("a".to_owned(), vec![self::seen(52, 55, Some("one:1"))])]);
    assert_eq!(kinds(&seen), []);
}

#[test]
fn what_was_deleted_may_be_taken_but_not_believed_in_for_ever() {
    let taken = format!("40 0 a asked\n50 0 a granted other:1 {SECOND}");
    let mut broken = history(&format!("10 0 a asked\n20 0 a granted one:1 {SECOND}"), &taken);
    broken.wipes = vec![wiped(Some("b"), 30, 35)];
    assert_eq!(kinds(&broken), [Kind::Overlap]);
    broken.wipes.push(wiped(Some("a"), 30, 35));
    assert_eq!(kinds(&broken), []);

    let too_long = SECOND + 36;
    let mut believed = history(&format!("10 0 a asked\n20 0 a granted one:1 {too_long}"), "");
    believed.wipes = vec![wiped(None, 30, 35)];
    assert_eq!(kinds(&believed), [Kind::Belief]);
    believed.wipes = vec![Wipe { all_from: 25, ..wiped(None, 30, 35) }];
    assert_eq!(kinds(&believed), [], "it was granted before, and may have been spared");
    believed.wipes = vec![Wipe { all_from: 15, ..wiped(None, 30, 35) }];
    assert_eq!(kinds(&believed), [Kind::Belief]);
}

/// Passed on by one who did not know yet, and asked for later than it was deleted.
#[test]
fn what_was_deleted_may_be_passed_on() {
    let row = "10 0 a asked\n20 0 a granted one:1~a 900\n60 0 a releasing one:1~a\n50 1 a asked\n\
        61 1 a granted one:1~b 900\n70 1 a removed one:1~b";
    let mut passed = history(row, "");
    assert_eq!(kinds(&passed), [Kind::Taken]);
    passed.wipes = vec![wiped(Some("a"), 30, 35)];
    assert_eq!(kinds(&passed), []);
}

#[test]
fn the_server_counts_other_levels() {
    let counted = |counted| format!("10 0 a granted one:1 100\n50 0 a counted one:1 40 2 {counted}");
    assert_eq!(kinds(&history(&counted(2), "")), []);
    assert_eq!(kinds(&history(&counted(3), "")), [Kind::Level]);
    let mut broken = history(&counted(0), "");
    broken.wipes = vec![wiped(None, 30, 35)];
    assert_eq!(kinds(&broken), []);
}

#[test]
fn waiting_while_it_is_free() {
    let waits = format!("{} 0 a asked\n{} 0 a granted other:1 {}", 50, 3 * SECOND, 4 * SECOND);
    let mut idle = history(FIRST, &waits);
    assert_eq!(kinds(&idle), [], "nobody said that these were calm times");
    idle.calm = vec![(SECOND, 2 * SECOND)];
    assert_eq!(kinds(&idle), [Kind::Idle]);
    idle.calm = vec![(SECOND, SECOND + SECOND / 4)];
    assert_eq!(kinds(&idle), []);

    let mut stood_still = history(FIRST, &format!("{waits}\n{} 9 - paused {}", 3 * SECOND, SECOND + SECOND / 4));
    stood_still.calm = vec![(SECOND, 2 * SECOND)];
    assert_eq!(kinds(&stood_still), []);

    // Whoever had to wake it may have stood still.
    let first = |since: u64, until: u64| format!("{FIRST}\n{until} 9 - paused {since}");
    let mut other_stood_still = history(&first(SECOND + SECOND / 4, SECOND + SECOND / 2), &waits);
    other_stood_still.calm = vec![(SECOND, 2 * SECOND)];
    assert_eq!(kinds(&other_stood_still), []);
    let mut long_after = history(&first(SECOND / 4, SECOND / 2), &waits);
    long_after.calm = vec![(SECOND, 2 * SECOND)];
    assert_eq!(kinds(&long_after), [Kind::Idle]);

    let mut for_ever = history(FIRST, "50 0 a asked");
    for_ever.calm = vec![(SECOND, 2 * SECOND)];
    assert_eq!(kinds(&for_ever), [Kind::Idle]);

    let mut held = history(&format!("10 0 a granted one:1 {}", 3 * SECOND), "50 0 a asked");
    held.calm = vec![(SECOND, 2 * SECOND)];
    assert_eq!(kinds(&held), []);
}

#[test]
fn errors_in_calm_times() {
    let mut failed = history("10 0 a asked\n20 0 a failed the server did not answer", "");
    assert_eq!(kinds(&failed), []);
    failed.calm = vec![(15, 25)];
    assert_eq!(kinds(&failed), [Kind::Failure]);
}

/// A release between two moments, of a hold that was certain until a third when it began. Its `unlock` could not confirm it.
fn unconfirmed((since, until): (u64, u64), at: u64) -> History {
    history(
        &format!(
            "10 0 a granted one:1 {until}\n{since} 0 a releasing one:1\n{at} 0 a unconfirmed one:1 {since} {until}"
        ),
        "",
    )
}

#[test]
fn a_release_that_could_not_be_confirmed() {
    let after_an_outage = unconfirmed((SECOND, 4 * SECOND), 4 * SECOND);
    assert_eq!(kinds(&after_an_outage), [], "the lease is over, and nobody said that it was calm");
    let with_time_left = unconfirmed((SECOND, 4 * SECOND), 4 * SECOND - 1);
    assert_eq!(kinds(&with_time_left), [Kind::Failure], "never before the end of the lease");

    let mut with_time_to_confirm = unconfirmed((SECOND, 4 * SECOND), 5 * SECOND);
    with_time_to_confirm.calm = vec![(2 * SECOND, 9 * SECOND)];
    assert_eq!(kinds(&with_time_to_confirm), [Kind::Failure], "nothing was wrong for two seconds before the end");
    with_time_to_confirm.calm = vec![(0, 2 * SECOND), (4 * SECOND, 9 * SECOND)];
    assert_eq!(kinds(&with_time_to_confirm), [], "it was calm only for a moment, and after the end");

    let mut with_the_last_of_its_lease = unconfirmed((SECOND, SECOND + 1), 2 * SECOND);
    with_the_last_of_its_lease.calm = vec![(0, 9 * SECOND)];
    assert_eq!(kinds(&with_the_last_of_its_lease), [], "the request was on its way when the lease ended");

    let mut while_paused = unconfirmed((SECOND, 4 * SECOND), 5 * SECOND);
    while_paused.calm = vec![(0, 9 * SECOND)];
    let paused = format!("{} 9 - paused {SECOND}", 4 * SECOND);
    while_paused.clients.get_mut("one").expect("a client").push(paused.parse().expect("an event"));
    assert_eq!(kinds(&while_paused), [], "the client did not run");
}

#[test]
fn a_release_from_several_servers_may_be_in_doubt_after_trouble() {
    let with_calm = |calm: (u64, u64)| {
        let mut released = unconfirmed((3 * SECOND, 4 * SECOND), 4 * SECOND - 1);
        released.clients.get_mut("one").expect("a client").push("5 9 - voter one".parse().expect("an event"));
        released.calm = vec![calm];
        kinds(&released)
    };
    assert_eq!(with_calm((0, 3 * SECOND)), [], "a lease expired on a server");
    assert_eq!(with_calm((SECOND, 5 * SECOND)), []);
    assert_eq!(with_calm((0, 5 * SECOND)), [Kind::Failure], "there was no trouble");
    assert_eq!(with_calm((SECOND / 4, 5 * SECOND)), [Kind::Failure], "no lease can have expired in so short a time");
}

#[test]
fn a_release_that_was_confirmed_although_another_owner_had_the_lock() {
    let one = "10 0 a asked\n20 0 a granted one:1 100\n500 0 a releasing one:1\n510 0 a released one:1\n510 0 a confirmed one:1";
    let with = |other: &str| history(one, other);
    let mut taken = with("160 0 a granted other:1 300");
    assert_eq!(kinds(&taken), [Kind::Untrue]);
    assert_eq!(kinds(&with("505 0 a granted other:1 600")), [], "it had been released");
    let inner = one.replacen("granted one:1 100", "granted one:1 100\n30 1 a granted one:1 100", 1);
    assert_eq!(kinds(&history(&inner, "160 0 a granted other:1 300")), [], "only its inner level was released");
    assert_eq!(kinds(&with("160 0 a granted other:1 150")), [], "the other one never had it");
    taken.failovers = vec![failover("a", 120, 130)];
    assert_eq!(kinds(&taken), [], "by another master");
    taken.failovers.clear();
    taken.emptied = vec![Emptied { since: 110, down: 120 }];
    assert_eq!(kinds(&taken), [], "by a majority with the server that was emptied");
    taken.emptied.clear();
    taken.rooms.insert("a".into(), Room { all: 9, most: 1 });
    assert_eq!(kinds(&taken), [], "there are permits for both");
}

#[test]
fn a_release_that_was_confirmed_without_a_majority() {
    let released = "20 0 a granted one.1 900\n500 0 a releasing one.1\n510 0 a released one.1";
    let with = |client: Option<&str>, since: u64, until: u64| {
        let mut history = history(released, "");
        history.silent = vec![Silent { client: client.map(str::to_owned), since, until }];
        kinds(&history)
    };
    assert_eq!(with(None, 400, 600), [Kind::Untrue]);
    assert_eq!(with(Some("one"), 400, 600), [Kind::Untrue]);
    assert_eq!(with(Some("other"), 400, 600), []);
    assert_eq!(with(None, 501, 600), [], "the request may have arrived before");
    assert_eq!(with(None, 400, 509), [], "the reply may have come afterwards");
}

#[test]
fn what_one_task_gives_back_another_of_its_owner_may_still_have() {
    let two = "20 0 a granted one:1 100\n30 1 a granted one:1 100\n40 0 a releasing one:1";
    assert_eq!(kinds(&history(two, "50 0 a granted other:1 160")), [Kind::Overlap]);
    let both = format!("{two}\n45 1 a releasing one:1");
    assert_eq!(kinds(&history(&both, "50 0 a granted other:1 160")), []);
    // The last level was on its way back when another task went deeper.
    let again = format!("{both}\n60 1 a granted one:1 100");
    assert_eq!(kinds(&history(&again, "50 0 a granted other:1 55")), []);
    assert_eq!(kinds(&history(&again, "70 0 a granted other:1 160")), [Kind::Overlap]);
}

fn seen(since: u64, at: u64, id: Option<&str>) -> Seen {
    Seen { since, at, ids: id.map(str::to_owned).into_iter().collect(), ..Seen::default() }
}

#[test]
fn certain_while_the_server_has_nothing() {
    let mut hollow = history("10 0 a asked\n20 0 a granted one:1 100\n60 0 a releasing one:1", "");
    hollow.seen.insert("a".into(), vec![seen(15, 25, None), seen(30, 40, Some("one:1")), seen(50, 65, None)]);
    assert_eq!(kinds(&hollow), [], "it need not have it all the time between the two moments");
    hollow.seen.insert("a".into(), vec![seen(30, 40, None)]);
    assert_eq!(kinds(&hollow), [Kind::Hollow]);
    hollow.seen.insert("a".into(), vec![seen(30, 40, Some("other:1"))]);
    assert_eq!(kinds(&hollow), [Kind::Hollow]);
    hollow.wipes = vec![wiped(Some("a"), 21, 22)];
    assert_eq!(kinds(&hollow), []);
}

#[test]
fn a_forced_unlock_may_break_one_hold_and_no_other() {
    let broken = |id, from: u64, end: u64| {
        let until = from + 900;
        format!("{from} 0 a asked\n{from} 0 a granted {id} {until}\n{end} 0 a removed {id}")
    };
    let one = broken("one:1", 10, 200);
    assert_eq!(kinds(&history(&one, "")), [Kind::Taken]);
    assert_eq!(kinds(&history(&one, "50 0 a forcing\n60 0 a forced")), []);
    assert_eq!(kinds(&history(&one, "50 0 a forcing")), [], "it may come late");
    assert_eq!(kinds(&history(&one, "50 0 b forcing\n60 0 b forced")), [Kind::Taken]);
    assert_eq!(kinds(&history(&one, "201 0 a forcing\n210 0 a forced")), [Kind::Taken]);
    let next = broken("other:1", 55, 300);
    let both = format!("50 1 a forcing\n{next}\n310 1 a forced");
    let found = history(&one, &both).check();
    let taken = found.iter().filter(|violation| violation.kind == Kind::Taken).count();
    assert_eq!((taken, found.len()), (1, 1), "{found:?}");
    assert_eq!(kinds(&history(&one, &format!("{both}\n400 1 a forcing\n410 1 a forced"))), [Kind::Taken]);
    let twice = format!("50 1 a forcing\n51 2 a forcing\n{next}\n310 1 a forced\n310 2 a forced");
    assert_eq!(kinds(&history(&one, &twice)), []);
}

#[test]
fn of_two_the_one_whose_answer_was_late_may_be_the_broken_one() {
    // Granted first on the server, told last, forced open in between.
    let late = "10 0 a asked\n90 0 a granted one:1 800\n200 0 a removed one:1";
    let other = "5 1 a forcing\n50 1 a forced\n60 0 a asked\n70 0 a granted other:1 900\n300 0 a releasing other:1";
    assert_eq!(kinds(&history(late, other)), []);
    // It overlaps with all that come until it is told, and goes before it notices.
    let late = "10 0 a asked\n90 0 a granted one:1 800\n300 0 a releasing one:1";
    let others = "5 1 a forcing\n50 1 a forced\n40 0 a asked\n85 0 a granted other:1 900\n120 0 a releasing other:1\n\
        45 2 a asked\n130 2 a granted other:2 900\n400 2 a releasing other:2";
    assert_eq!(kinds(&history(late, others)), []);
}

#[test]
fn who_of_two_was_broken_is_not_guessed_at_the_cost_of_others() {
    let pair = |from: u64, [one, other]: [&str; 2]| {
        let at = |later: u64| from + later;
        format!(
            "{} 0 a asked\n{} 0 a granted {one} 900\n{} 1 a asked\n{} 1 a granted {other} 900\n\
             {} 0 a releasing {one}\n{} 1 a releasing {other}",
            at(0),
            at(1),
            at(10),
            at(20),
            at(25),
            at(40)
        )
    };
    let log = format!("{}\n{}", pair(100, ["one:1", "one:2"]), pair(200, ["one:3", "one:4"]));
    // For the second pair there is only this one, which can also have broken each of the first.
    let long = "124 0 a forcing\n202 0 a forced";
    assert_eq!(kinds(&history(&log, long)), [Kind::Overlap]);
    let short = "126 1 a forcing\n150 1 a forced";
    assert_eq!(kinds(&history(&log, &format!("{short}\n{long}"))), [], "one:2 takes the short one");
}

#[test]
fn who_does_not_poll_does_not_wait_but_may_be_granted() {
    let kept = format!("10 0 a asked\n20 0 a kept\n{} 0 a asked\n{} 0 a granted one:1 {}", 40, 50, 2 * SECOND);
    let mut wiped_meanwhile = history(&kept, "35 0 a asked\n60 0 a granted other:1 90");
    wiped_meanwhile.wipes = vec![wiped(None, 30, 31)];
    assert_eq!(kinds(&wiped_meanwhile), [], "it was asked for before");
    wiped_meanwhile.wipes = vec![wiped(None, 5, 6)];
    assert_eq!(kinds(&wiped_meanwhile), [Kind::Overlap]);
    let mut idle = history("10 0 a asked\n20 0 a kept", "");
    idle.calm = vec![(15, 2 * SECOND)];
    assert_eq!(kinds(&idle), []);
}

#[test]
fn calls_that_end_too_late() {
    let call =
        |end: u64, more: &str| history(&format!("10 0 a begun unlock {SECOND}\n{more}{end} 0 a ended unlock ok"), "");
    assert_eq!(kinds(&call(2 * SECOND, "")), []);
    assert_eq!(kinds(&call(4 * SECOND, "")), [Kind::Late]);
    let (since, at) = (2 * SECOND, 3 * SECOND);
    assert_eq!(kinds(&call(4 * SECOND, &format!("{at} 9 - paused {since}\n"))), [], "it stood still");
    assert_eq!(kinds(&call(4 * SECOND, &format!("{} 9 - paused 20\n", SECOND / 2))), [Kind::Late], "that was before");
    let never = history(&format!("10 0 a begun unlock {SECOND}\n{} 1 a asked", 9 * SECOND), "");
    assert_eq!(kinds(&never), [Kind::Late]);
    let without_limit = history(&format!("10 0 a begun lock 0\n{} 0 a ended lock ok", 99 * SECOND), "");
    assert_eq!(kinds(&without_limit), []);
    let mut endless = history("10 0 a begun lock 0", "");
    assert_eq!(kinds(&endless), [Kind::Stuck]);
    endless.killed.insert("one".into(), 20);
    assert_eq!(kinds(&endless), []);
    // The other task noted its event later, and wrote it first.
    let mut killed = history("21 0 - begun lock 0\n20 1 - begun lock 0", "");
    killed.killed.insert("one".into(), 22);
    assert_eq!(kinds(&killed), []);
}

#[test]
fn calls_that_give_up_too_soon() {
    let ended = |call: &str, limit: u64, how: &str| {
        let mut soon = history(&format!("10 0 a begun {call} {limit}\n{SECOND} 0 a ended {call} {how}"), "");
        soon.outage = Duration::from_secs(3);
        kinds(&soon)
    };
    assert_eq!(ended("try_lock_for", 2 * SECOND, "none"), [Kind::Hasty]);
    assert_eq!(ended("try_lock_for", SECOND / 2, "none"), []);
    assert_eq!(ended("try_lock_for", 2 * SECOND, "ok"), []);
    assert_eq!(ended("lock", 0, "unavailable"), [Kind::Hasty]);
    assert_eq!(ended("lock", 0, "server"), [], "a refusal is an answer");
    assert_eq!(ended("lock", 0, "lost"), []);
}

#[test]
fn a_server_that_answers_is_not_called_silent() {
    let told = |silent: u32| {
        let calls = |how: &'static str, range| {
            std::ops::Range::map(range, move |n: u32| {
                format!("20 {n} a begun try_lock_for 1\n30 {n} a ended try_lock_for {how}\n")
            })
        };
        let log: String = calls("unavailable", 0..silent).chain(calls("none", silent..1_000)).collect();
        let mut told = history(&log, "");
        told.calm = vec![(10, 40)];
        kinds(&told)
    };
    assert_eq!(told(20), []);
    assert_eq!(told(21), [Kind::Untrue]);
}

#[test]
fn lost_from_the_start() {
    let once = "10 0 a asked\n20 0 a granted one:1 20\n";
    let twice = format!("{once}30 0 b asked\n40 0 b granted one:2 40\n");
    assert_eq!(kinds(&history(once, "")), [], "that can happen");
    assert_eq!(kinds(&history(&twice, "")), [Kind::Stillborn, Kind::Stillborn]);
    assert_eq!(kinds(&history(&format!("{twice}40 1 - paused 12"), "")), []);
    assert_eq!(kinds(&history(&twice, "35 0 b forcing\n38 0 b forced")), [], "one of them was forced open just then");
    assert_eq!(kinds(&history(&twice, "35 0 c forcing\n38 0 c forced")), [Kind::Stillborn, Kind::Stillborn]);
}

#[test]
fn given_back_and_still_there() {
    let mut left = history("10 0 a granted one:1 100\n60 0 a releasing one:1", "");
    left.seen.insert("a".into(), vec![seen(3 * SECOND, 3 * SECOND + 1, Some("one:1"))]);
    assert_eq!(kinds(&left), [], "who knows what was going on");
    left.calm = vec![(2 * SECOND, 4 * SECOND)];
    assert_eq!(kinds(&left), [Kind::Leftover]);
    left.killed.insert("one".into(), 61);
    assert_eq!(kinds(&left), []);
}

#[test]
fn an_id_is_unique_for_its_name_only() {
    let of_b = "20 0 b granted one:1 100\n70 0 b releasing one:1";
    let mut two = history("10 0 a granted one:1 100\n60 0 a releasing one:1", "");
    two.calm = vec![(2 * SECOND, 4 * SECOND)];
    two.seen.insert("b".into(), vec![seen(3 * SECOND, 3 * SECOND + 1, Some("one:1"))]);
    assert_eq!(kinds(&two), [], "this id was released for another name");
    let events = of_b.lines().map(|line| line.parse().expect("an event"));
    two.clients.get_mut("one").expect("it is there").extend(events);
    assert_eq!(kinds(&two), [Kind::Leftover]);
}

fn failover(name: &str, since: u64, until: u64) -> Failover {
    Failover { names: vec![name.to_owned()], since, until }
}

/// One that is lost at a failover, and another that is granted by the new master.
fn lost_and_granted(end: u64) -> History {
    let far = 9 * SECOND;
    history(
        &format!("10 0 a asked\n20 0 a granted one:1 {far}\n{end} 0 a removed one:1"),
        &format!("15 0 a asked\n90 0 a granted other:1 {far}\n{} 0 a releasing other:1", far / 2),
    )
}

#[test]
fn what_a_failover_lost_is_counted_and_nothing_else() {
    let mut lost = lost_and_granted(SECOND);
    assert_eq!(kinds(&lost), [Kind::Overlap, Kind::Taken]);
    lost.failovers = vec![failover("b", 30, 80)];
    assert_eq!(kinds(&lost), [Kind::Overlap, Kind::Taken], "another name's master");
    lost.failovers = vec![failover("a", 30, 80)];
    let (found, losses) = lost.judge();
    assert_eq!((found, losses.gone.len()), (vec![], 1));
    lost.seen.insert("a".into(), vec![seen(85, 86, Some("one:1"))]);
    assert_eq!(kinds(&lost), [Kind::Taken], "the new master had it; it is the other that nobody has seen");
    lost.seen.insert("a".into(), vec![seen(85, 86, Some("one:1")), seen(95, 96, Some("other:1"))]);
    assert!(kinds(&lost).contains(&Kind::Overlap), "the new master had both");
}

#[test]
fn a_failover_long_before_or_long_after_excuses_nothing() {
    let mut lost = lost_and_granted(SECOND);
    lost.failovers = vec![failover("a", 2 * SECOND, 3 * SECOND)];
    assert_eq!(kinds(&lost), [Kind::Overlap, Kind::Taken]);
    lost.failovers = vec![failover("a", 1, 5)];
    assert_eq!(kinds(&lost), [Kind::Overlap, Kind::Taken]);
}

#[test]
fn what_a_failover_lost_is_not_believed_in_for_long() {
    let mut believed = lost_and_granted(2 * SECOND);
    believed.failovers = vec![failover("a", 30, 80)];
    let looks = [SECOND / 2, SECOND + SECOND / 2].map(|at| seen(at, at + 1, Some("other:1")));
    believed.seen.insert("a".into(), looks.to_vec());
    assert_eq!(kinds(&believed), [Kind::Taken, Kind::Belief], "told after two seconds, with leases of one");
    believed.late_after_failover = Duration::from_secs(1);
    assert_eq!(kinds(&believed), [], "told within a lease and what a busy machine may take");
    believed.late_after_failover = Duration::ZERO;
    let stood_still = format!("{} 9 - paused {}", 2 * SECOND, SECOND / 2);
    believed.clients.entry("one".to_owned()).or_default().push(stood_still.parse().expect("an event"));
    assert_eq!(kinds(&believed), [Kind::Taken]);
    believed.seen.insert("a".into(), vec![seen(85, 86, Some("one:1")), seen(SECOND, SECOND + 1, Some("one:1"))]);
    assert!(!kinds(&believed).contains(&Kind::Belief), "it was there");
}

#[test]
fn what_a_failover_brings_back() {
    let mut back = history("10 0 a granted one:1 100\n60 0 a releasing one:1\n70 0 a released one:1", "");
    back.calm = vec![(3 * SECOND, 4 * SECOND)];
    back.seen.insert("a".into(), vec![seen(3 * SECOND, 3 * SECOND + 1, Some("one:1"))]);
    back.left = vec![("a".to_owned(), "one:1".to_owned(), 5 * SECOND)];
    assert_eq!(kinds(&back), [Kind::Leftover, Kind::Leftover]);
    back.failovers = vec![failover("a", 5, 50)];
    assert_eq!(kinds(&back), [Kind::Leftover, Kind::Leftover], "it was given back to the new master");
    back.failovers = vec![failover("a", 50, 80)];
    let (found, losses) = back.judge();
    assert_eq!((found, losses.back.len()), (vec![], 1));
    // For as long as its lease it keeps others waiting.
    let mut waits = history(FIRST, &format!("50 0 a asked\n{SECOND} 0 a granted other:1 {}", 2 * SECOND));
    waits.calm = vec![(100, 2 * SECOND)];
    assert_eq!(kinds(&waits), [Kind::Idle]);
    waits.failovers = vec![failover("a", 50, 80)];
    assert_eq!(kinds(&waits), []);
}

#[test]
fn what_is_left_in_the_end() {
    let mut left = history("10 0 a granted one:1 100", "");
    left.left = vec![("a".to_owned(), "one:9".to_owned(), SECOND / 2)];
    assert_eq!(kinds(&left), [Kind::Leftover]);
    left.killed.insert("one".into(), 20);
    assert_eq!(kinds(&left), [], "for a lease");
    left.left = vec![("a".to_owned(), "one:9".to_owned(), 2 * SECOND)];
    assert_eq!(kinds(&left), [Kind::Leftover]);
}

#[test]
fn a_count_from_before_a_failover() {
    let mut fallen = history("10 0 a granted one:1 100\n50 0 a counted one:1 40 2 1", "");
    fallen.failovers = vec![failover("a", 30, 35)];
    let (found, losses) = fallen.judge();
    assert_eq!((found, losses.counts.len()), (vec![], 1));
    fallen.failovers = vec![failover("a", 60, 65)];
    assert_eq!(kinds(&fallen), [Kind::Level]);
}

#[test]
fn waiting_for_ever_outside_of_calm_times() {
    let waits = |end: u64| format!("50 0 a asked\n{end} 0 a granted other:1 {}", end + SECOND);
    assert_eq!(kinds(&history(FIRST, &waits(12 * SECOND))), []);
    let mut idle = history(FIRST, &waits(14 * SECOND));
    assert_eq!(kinds(&idle), [Kind::Idle]);
    idle.slack.insert("a".into(), Duration::from_secs(5));
    assert_eq!(kinds(&idle), []);
}

/// Each that is next in a line and does not come costs the others a grace; for the first of them the slack is there.
#[test]
fn two_that_are_gone_from_a_line_cost_two_graces() {
    let granted = 11 * SECOND;
    let waits = format!("{SECOND} 0 a asked\n{granted} 0 a granted other:1~o {}", 12 * SECOND);
    let mut idle = history("", &waits);
    idle.calm = vec![(SECOND, 20 * SECOND)];
    idle.slack.insert("a".into(), Duration::from_millis(5_500));
    assert_eq!(kinds(&idle), [Kind::Idle], "no line");
    let look = |second: u64, head: &str| Seen {
        since: second * SECOND,
        at: second * SECOND + 1,
        ids: vec![],
        line: vec![head.to_owned()],
        ..Seen::default()
    };
    idle.seen.insert("a".into(), vec![look(2, "one:1"), look(7, "one:2"), look(10, "other:1")]);
    assert_eq!(kinds(&idle), []);
    idle.seen.insert("a".into(), vec![look(2, "one:1"), look(7, "one:1"), look(10, "other:1")]);
    assert_eq!(kinds(&idle), [Kind::Idle], "one of them only");
    idle.seen.insert("a".into(), vec![look(2, "one:1"), look(7, "other:1")]);
    assert_eq!(kinds(&idle), [Kind::Idle], "the other came, but late");
}

#[test]
fn who_was_killed_may_have_left_something_for_a_lease() {
    let calm = (SECOND, 2 * SECOND + SECOND / 4);
    let waits = format!("{} 0 a asked\n{} 0 a granted other:1 {}", SECOND / 2, 3 * SECOND, 4 * SECOND);
    let mut killed = history("10 0 a asked", &waits);
    killed.calm = vec![calm];
    killed.killed.insert("one".into(), SECOND);
    assert_eq!(kinds(&killed), []);
    killed.killed.insert("one".into(), SECOND / 2);
    assert_eq!(kinds(&killed), [Kind::Idle]);
    killed.leases.insert("a".into(), Duration::from_secs(20));
    assert_eq!(kinds(&killed), []);
}

/// The server granted it to a caller that did not look. Then it passed on to one that asked after the deletion.
#[test]
fn what_was_requested_for_a_future_that_is_not_polled_may_be_gone() {
    let unpolled = "10 0 a asked\n20 0 a kept\n60 1 a asked\n70 1 a granted one:1~o 200\n90 1 a removed one:1~o";
    let after = |log: &str| History { wipes: vec![wiped(Some("a"), 30, 40)], ..history(log, "") };
    assert_eq!(kinds(&after(unpolled)), []);
    assert_eq!(kinds(&after(&unpolled.replace("a kept", "b kept"))), [Kind::Taken], "of another lock");
    assert_eq!(kinds(&after(&unpolled.replace("10 0 a asked\n20 0 a kept\n", ""))), [Kind::Taken]);
    assert_eq!(kinds(&history(unpolled, "")), [Kind::Taken], "nothing was deleted");
}

/// The same of a caller that has left before the reply.
#[test]
fn what_was_requested_for_a_future_that_was_dropped_may_be_gone() {
    let dropped = "10 0 a asked\n11 0 a begun lock 0\n45 0 a ended lock cancelled\n45 0 a left\n\
        60 1 a asked\n70 1 a granted one:1~o 200\n90 1 a removed one:1~o";
    let forced = "30 1 a forcing\n40 1 a forced";
    assert_eq!(kinds(&history(dropped, forced)), []);
    assert_eq!(kinds(&history(&dropped.replace("cancelled", "none"), forced)), [Kind::Taken], "it had its answer");
    let late = dropped.replace("10 0 a asked\n11 0", "41 0 a asked\n42 0");
    assert_eq!(kinds(&history(&late, forced)), [Kind::Taken], "it asked when all was over");
    assert_eq!(kinds(&history(dropped, "")), [Kind::Taken], "nothing forced it open");
}

/// A token of such a hold may be from before the force, and from before it was asked for. Without a force it may not.
#[test]
fn what_was_requested_for_a_future_that_was_dropped_has_its_token_from_then() {
    let dropped = "10 0 a asked\n11 0 a begun lock 0\n45 0 a ended lock cancelled\n45 0 a left";
    let heir = format!("{dropped}\n{}", token("one:1", 60, 70, 7));
    let (first, forced) = (token("other:1", 46, 50, 8), "30 1 a forcing\n40 1 a forced");
    assert_eq!(kinds(&history(&heir, &format!("{forced}\n{first}"))), []);
    assert_eq!(kinds(&history(&heir, &first)), [Kind::Token], "nothing forced it open");
    assert_eq!(kinds(&history(&heir.replace("cancelled", "none"), &format!("{forced}\n{first}"))), [Kind::Token]);
}

/// Its `min_hold` begins when its own caller asks.
#[test]
fn what_was_requested_for_a_future_that_was_dropped_rests_as_long_as_others() {
    let dropped = "10 0 a asked\n11 0 a begun lock 0\n45 0 a ended lock cancelled\n45 0 a left";
    let rests = "60 1 a asked\n70 1 a granted one:1 200\n70 1 a rests one:1 80\n75 1 a releasing one:1";
    let next = |granted: u64| {
        history(&format!("{dropped}\n{rests}"), &format!("80 0 a asked\n{granted} 0 a granted other:1 300"))
    };
    assert_eq!(kinds(&next(139)), [Kind::Early]);
    assert_eq!(kinds(&next(140)), []);
}

#[test]
fn what_clients_found_by_themselves() {
    assert_eq!(kinds(&history("10 0 a wrong Hollow it has nothing", "")), [Kind::Hollow]);
}

/// What a downgrade leaves was asked for when that began, so a force that returned before its answer may have broken it.
#[test]
fn a_downgrade_brings_what_it_asked_for() {
    let downgrades =
        "10 0 a begun downgrade 0\n50 0 a ended downgrade ok\n52 0 a granted one:2~o 200\n150 0 a removed one:2~o";
    let mut broken = rw(downgrades, "30 1 a forcing\n45 1 a forced");
    assert_eq!(kinds(&broken), []);
    broken.clients.get_mut("one").expect("it is there").remove(0);
    assert_eq!(kinds(&broken), [Kind::Taken]);
}

/// Readers and writers, with their owners: `~r`, `~w`.
fn rw(one: &str, other: &str) -> History {
    History { shared: HashSet::from(["a".to_owned()]), ..history(one, other) }
}

#[test]
fn the_hold_count_of_an_id_that_readers_share_is_one() {
    let reads = "10 0 a asked\n20 0 a granted one:1~r 100\n50 0 a counted one:1~r 40 1 2";
    let joins = "\n25 1 a asked\n30 1 a granted one:1~other 100\n80 1 a releasing one:1~other";
    assert_eq!(kinds(&rw(reads, "")), [Kind::Level]);
    assert_eq!(kinds(&rw(&format!("{reads}{joins}"), "")), [Kind::Level]);
    assert_eq!(kinds(&rw(&format!("{}{joins}", reads.replace("1 2", "1 1")), "")), []);
    assert_eq!(kinds(&rw(&reads.replace("1 2", "1 0"), "")), [Kind::Hollow], "and never none");
}

#[test]
fn readers_share_and_writers_do_not() {
    let reads = "10 0 a asked\n20 0 a granted one:1~r 100\n60 0 a releasing one:1~r";
    let also = "30 0 a asked\n40 0 a granted other:1~r 100\n70 0 a releasing other:1~r";
    assert_eq!(kinds(&rw(reads, also)), []);
    assert_eq!(kinds(&history(reads, also)), [Kind::Overlap], "of a name that is not shared");
    let writes = "30 0 a asked\n40 0 a granted other:1:write~r 100\n70 0 a releasing other:1:write~r";
    assert_eq!(kinds(&rw(reads, writes)), [Kind::Overlap], "one reads, another writes");
    assert_eq!(kinds(&rw(writes, &also.replace("40", "50"))), [Kind::Overlap], "and the other way round");
    assert_eq!(kinds(&rw(writes, &writes.replace("other:1", "one:1"))), [Kind::Overlap], "two who write");
    assert_eq!(kinds(&rw(reads, &writes.replace("40", "60"))), [], "one after the other");
}

#[test]
fn who_writes_may_read_and_not_the_other_way_round() {
    let write = "20 0 a granted one:1:write~x 100\n";
    let read = "30 0 a granted one:2~x 100\n";
    let downgraded = format!("{write}{read}40 0 a releasing one:1:write~x\n60 0 a releasing one:2~x");
    assert_eq!(kinds(&rw(&downgraded, "")), []);
    assert_eq!(kinds(&rw(&downgraded.replace("2~x", "2~y"), "")), [Kind::Overlap], "another owner");
    assert_eq!(kinds(&rw(&downgraded, "50 0 a granted other:1~x 90")), [], "others read beside it");
    assert_eq!(kinds(&rw(&downgraded, "50 0 a granted other:1:write~x 90")), [Kind::Overlap]);
    assert_eq!(kinds(&rw(write, "30 0 a granted other:2~x 100")), [Kind::Overlap], "an owner of another process");
    let upgraded = "20 0 a granted one:2~x 100\n30 0 a granted one:1:write~x 100\n";
    assert_eq!(kinds(&rw(upgraded, "")), [Kind::Overlap]);
}

#[test]
fn all_who_read_are_seen_on_the_server() {
    let mut both = rw("20 0 a granted one:1 100", "20 0 a granted other:1 100");
    let ids = |all: &[&str]| all.iter().map(|id| (*id).to_owned()).collect();
    both.seen.insert("a".into(), vec![Seen { since: 30, at: 40, ids: ids(&["one:1", "other:1"]), ..Seen::default() }]);
    assert_eq!(kinds(&both), []);
    both.seen.insert("a".into(), vec![Seen { since: 30, at: 40, ids: ids(&["other:1"]), ..Seen::default() }]);
    assert_eq!(kinds(&both), [Kind::Hollow]);
}

#[test]
fn forcing_open_what_is_shared_breaks_all_who_share_it() {
    let broken = |id| format!("10 0 a asked\n20 0 a granted {id} 900\n200 0 a removed {id}");
    let forced = format!("{}\n150 1 a forcing\n160 1 a forced", broken("other:1"));
    assert_eq!(kinds(&rw(&broken("one:1"), &broken("other:1"))), [Kind::Taken, Kind::Taken]);
    assert_eq!(kinds(&rw(&broken("one:1"), &forced)), []);
    assert_eq!(kinds(&rw(&broken("one:1"), &forced.replace("150 1", "201 1"))), [Kind::Taken, Kind::Taken]);
}

fn token(id: &str, asked: u64, granted: u64, token: u64) -> String {
    let (end, until) = (granted + 10, granted + 900);
    format!(
        "{asked} 0 a asked\n{granted} 0 a granted {id} {until}\n{granted} 0 a token {id} {token}\n{end} 0 a releasing {id}"
    )
}

#[test]
fn tokens_grow() {
    let tokens = |first, second| history(&token("one:1", 10, 20, first), &token("other:1", 11, 40, second));
    assert_eq!(kinds(&tokens(7, 8)), []);
    assert_eq!(kinds(&tokens(7, 90)), [], "others may have been granted one and not known it");
    assert_eq!(kinds(&tokens(7, 7)), [Kind::Token]);
    assert_eq!(kinds(&tokens(7, 6)), [Kind::Token]);
    let mut wiped = tokens(7, 1);
    wiped.wipes =
        vec![wiped_beside(Some("b"), 30, 35), wiped_beside(Some("a"), 50, 55), self::wiped(Some("b"), 30, 35)];
    assert_eq!(kinds(&wiped), [Kind::Token], "others' tokens, or later, or another lock");
    wiped.wipes = vec![wiped_beside(Some("a"), 30, 35)];
    assert_eq!(kinds(&wiped), []);
    wiped.wipes = vec![self::wiped(None, 30, 35)];
    assert_eq!(kinds(&wiped), []);
    wiped.wipes.clear();
    wiped.failovers = vec![failover("a", 30, 35)];
    assert_eq!(kinds(&wiped), []);
}

/// Deleted was the lock, not its tokens.
#[test]
fn tokens_grow_beyond_a_lock_that_was_deleted() {
    let mut deleted = history(&token("one:1", 10, 20, 7), &token("other:1", 36, 40, 7));
    deleted.wipes = vec![wiped(Some("a"), 30, 35)];
    assert_eq!(kinds(&deleted), [Kind::Token]);
    // Granted first and told last: that was broken in between.
    let mut late = history(&token("one:1", 10, 60, 7), &token("other:1", 36, 40, 8));
    assert_eq!(kinds(&late), [Kind::Token]);
    late.wipes = vec![wiped(Some("a"), 30, 35)];
    assert_eq!(kinds(&late), []);
    late.wipes.clear();
    late.clients
        .entry("one".to_owned())
        .or_default()
        .extend(["30 1 a forcing", "35 1 a forced"].map(|line| line.parse().expect(line)));
    assert_eq!(kinds(&late), []);
}

#[test]
fn a_nested_level_has_the_token_of_its_hold() {
    let nested = |token: u64| {
        format!("20 0 a granted one:1 100\n20 0 a token one:1 7\n30 0 a granted one:1 100\n30 0 a token one:1 {token}")
    };
    assert_eq!(kinds(&history(&nested(7), "")), []);
    assert_eq!(kinds(&history(&nested(8), "")), [Kind::Token]);
}

fn wiped_beside(name: Option<&str>, since: u64, at: u64) -> Wipe {
    Wipe { beside: true, ..wiped(name, since, at) }
}

/// One stands in line, another asks later and has the lock first; somebody else had it before.
fn passed(line: &[&str]) -> History {
    let before = "1 2 a granted one:0 900\n55 2 a releasing one:0\n";
    let first = format!("{before}10 0 a asked\n90 0 a granted one:1 900\n95 0 a releasing one:1");
    let mut passed = history(&first, "50 0 a asked\n60 0 a granted other:1 900\n70 0 a releasing other:1");
    let line: Vec<_> = line.iter().map(|id| (*id).to_owned()).collect();
    let looks = [(45, 48), (57, 58), (75, 76)];
    passed.seen.insert(
        "a".into(),
        looks.map(|(since, at)| Seen { since, at, line: line.clone(), ..Seen::default() }).to_vec(),
    );
    passed.seen.get_mut("a").expect("it is there")[0].ids = vec!["one:0".to_owned()];
    passed
}

#[test]
fn nobody_is_passed_in_a_line() {
    assert_eq!(kinds(&passed(&["one:1"])), [Kind::Passed]);
    assert_eq!(kinds(&passed(&["one:2"])), [], "who was not in line was not passed");
    assert_eq!(kinds(&passed(&[])), []);
    let mut earlier = passed(&["one:1"]);
    earlier.clients.insert(
        "other".into(),
        vec!["40 0 a asked", "60 0 a granted other:1 900", "70 0 a releasing other:1"]
            .into_iter()
            .map(|line| line.parse().expect(line))
            .collect(),
    );
    assert_eq!(kinds(&earlier), [], "it may have come first");
}

#[test]
fn who_was_disturbed_may_be_passed() {
    let looks = |change: fn(&mut Vec<Seen>)| {
        let mut changed = passed(&["one:1"]);
        change(changed.seen.get_mut("a").expect("it is there"));
        kinds(&changed)
    };
    assert_eq!(looks(|looks| looks[1].line.clear()), [], "it had left the line");
    assert_eq!(looks(|looks| looks.truncate(1)), [Kind::Passed], "two looks near to each other");
    assert_eq!(looks(|looks| _ = looks.remove(0)), [], "nobody looked before the other asked");
    let mut broken = passed(&["one:1"]);
    broken.wipes = vec![wiped_beside(Some("b"), 52, 53), wiped_beside(Some("a"), 92, 93)];
    assert_eq!(kinds(&broken), [Kind::Passed]);
    for wipe in [wiped_beside(Some("a"), 52, 53), wiped(Some("a"), 52, 53), wiped(None, 52, 53)] {
        broken.wipes = vec![wipe];
        assert_eq!(kinds(&broken), []);
    }
    broken.wipes.clear();
    broken.failovers = vec![failover("a", 52, 53)];
    assert_eq!(kinds(&broken), []);
}

/// Five seconds, and less where somebody may have believed in it for longer.
#[test]
fn who_did_not_come_when_called_may_be_passed() {
    let came_at = |granted: u64| {
        let mut late = passed(&["one:1"]);
        let events = [
            "50 0 a asked".to_owned(),
            format!("{granted} 0 a granted other:1 {}", granted + 900),
            format!("{} 0 a releasing other:1", granted + 1),
        ];
        late.clients.insert("other".into(), events.iter().map(|line| line.parse().expect(line)).collect());
        let first = late.clients.get_mut("one").expect("it is there");
        let line = |line: String| line.parse::<Event>().expect("an event");
        first.retain(|event| event.at < 90);
        first.extend([
            line(format!("{} 0 a granted one:1 {}", granted + 9, granted + 900)),
            line(format!("{} 0 a releasing one:1", granted + 10)),
        ]);
        let looks = (1..granted / (SECOND / 10)).map(|tenth| tenth * SECOND / 10);
        let looks =
            looks.map(|at| Seen { since: at, at, ids: vec![], line: vec!["one:1".to_owned()], ..Seen::default() });
        let first = late.seen.get_mut("a").expect("it is there").remove(0);
        late.seen.insert("a".into(), std::iter::once(first).chain(looks).collect());
        kinds(&late)
    };
    assert_eq!(came_at(2 * SECOND), [Kind::Passed]);
    assert_eq!(came_at(4 * SECOND), []);
}

#[test]
fn a_line_that_was_deleted_is_not_blamed_until_all_have_looked() {
    let waits = format!("50 0 a asked\n{} 0 a granted other:1 {}", 4 * SECOND, 5 * SECOND);
    let mut idle = history(FIRST, &waits);
    idle.calm = vec![(100, 3 * SECOND)];
    idle.wipes = vec![wiped_beside(Some("a"), 90, 95)];
    assert_eq!(kinds(&idle), [Kind::Idle]);
    idle.seen.insert(
        "a".into(),
        vec![Seen {
            since: 30,
            at: 40,
            ids: vec!["one:1".to_owned()],
            line: vec!["other:1".to_owned()],
            ..Seen::default()
        }],
    );
    assert_eq!(kinds(&idle), []);
    idle.wipes.clear();
    assert_eq!(kinds(&idle), [Kind::Idle]);
}

#[test]
fn a_lock_that_rests_is_nobody_elses() {
    let first = "10 0 a asked\n20 0 a granted one:1 100\n20 0 a rests one:1 80\n40 0 a releasing one:1";
    let next = |at: u64| {
        history(first, &format!("11 0 a asked\n{at} 0 a granted other:1 160\n{} 0 a releasing other:1", at + 1))
    };
    assert_eq!(kinds(&next(89)), [Kind::Early]);
    assert_eq!(kinds(&next(90)), []);
    let mut broken = next(89);
    broken.wipes = vec![wiped(Some("a"), 50, 55)];
    assert_eq!(kinds(&broken), [], "what was deleted rests no more");
    let again = format!("{first}\n50 0 a asked\n60 0 a granted one:1 100\n70 0 a releasing one:1");
    assert_eq!(kinds(&history(&again, "")), [], "it may come back to it");
}

#[test]
fn a_lock_that_rests_lies_not_idle_and_may_stay_as_long() {
    let rest = SECOND;
    let first =
        format!("10 0 a asked\n20 0 a granted one:1 {SECOND}\n20 0 a rests one:1 {rest}\n40 0 a releasing one:1");
    let waits = format!("50 0 a asked\n{} 0 a granted other:1~o {}", SECOND + 30, 2 * SECOND);
    let mut idle = history(&first, &waits);
    idle.calm = vec![(30, 3 * SECOND)];
    assert_eq!(kinds(&idle), []);
    idle.clients.get_mut("one").expect("it is there").retain(|event| !matches!(event.what, What::Rests { .. }));
    assert_eq!(kinds(&idle), [Kind::Idle]);
    let mut left = history(FIRST, "");
    left.calm = vec![(0, 9 * SECOND)];
    left.seen.insert("a".into(), vec![seen(60 + 5 * SECOND / 2, 3 * SECOND, Some("one:1"))]);
    assert_eq!(kinds(&left), [Kind::Leftover]);
    left.rests.insert("a".into(), Duration::from_secs(1));
    assert_eq!(kinds(&left), []);
}

#[test]
fn a_token_is_the_last_one_that_the_server_gave_out() {
    let hold = "10 0 a asked\n20 0 a granted one:1 100\n20 0 a token one:1 7\n60 0 a releasing one:1";
    let with = |since: u64, token: u64| {
        let mut history = history(hold, "");
        let ids = vec!["one:1".to_owned()];
        let look = Seen { since, at: since + 5, ids, token: Some(token), ..Seen::default() };
        history.seen.insert("a".into(), vec![look]);
        history
    };
    assert_eq!(kinds(&with(30, 7)), []);
    assert_eq!(kinds(&with(30, 8)), [Kind::Token]);
    assert_eq!(kinds(&with(15, 6)), [], "not granted yet, for all one knows");
    assert_eq!(kinds(&with(58, 8)), [], "given back meanwhile");
    let mut forgotten = with(30, 1);
    forgotten.wipes = vec![wiped_beside(Some("a"), 25, 28)];
    assert_eq!(kinds(&forgotten), []);
}

#[test]
fn ok_of_a_lock_that_was_deleted() {
    let log = |how: &str| {
        let mut history =
            history(&format!("10 0 a asked\n20 0 a granted one:1 100\n60 0 a releasing one:1\n70 0 a {how} one:1"), "");
        history.wipes = vec![wiped(Some("a"), 30, 35)];
        history
    };
    assert_eq!(kinds(&log("confirmed")), [Kind::Untrue]);
    assert_eq!(kinds(&log("released")), [], "an answer was lost, so nobody can tell");
    assert_eq!(kinds(&log("lost")), []);
    let mut late = log("confirmed");
    late.wipes = vec![wiped(Some("a"), 30, 65)];
    assert_eq!(kinds(&late), [], "it may have been deleted after it was given back");
    let mut back = log("confirmed");
    back.failovers = vec![Failover { names: vec!["a".to_owned()], since: 40, until: 45 }];
    assert_eq!(kinds(&back), [], "the new master may not have heard of the deletion");
}

#[test]
fn a_time_that_is_not_over() {
    let told = |at: u64, how: &str| {
        kinds(&history(&format!("10 0 a asked\n20 0 a granted one:1 {SECOND}\n{at} 0 a {how} one:1"), ""))
    };
    assert_eq!(told(SECOND / 2, "lost"), [Kind::Untrue]);
    assert_eq!(told(SECOND - 1_000_000, "lost"), [], "timers have milliseconds");
    assert_eq!(told(SECOND / 2, "removed"), [Kind::Taken]);
    let failed_over = |log: &str, from: u64| {
        let failovers = vec![failover("a", from, from + 10)];
        kinds(&History { failovers, ..rw(log, "") })
    };
    let log = |id: &str| format!("10 0 a asked\n20 0 a granted {id} {SECOND}\n{} 0 a lost {id}", SECOND / 2);
    assert_eq!(failed_over(&log("one:1~r"), 30), [], "the new master may have only a shorter lease of a reader");
    assert_eq!(failed_over(&log("one:1~r"), SECOND / 2 + 1), [Kind::Untrue]);
    assert_eq!(failed_over(&log("one:1:write~w"), 30), [Kind::Untrue]);
}

#[test]
fn a_client_that_is_far_away_has_its_turns() {
    let turn = |n: u64| {
        format!(
            "{} 0 a asked\n{} 0 a granted other:{n} {}\n{} 0 a releasing other:{n}",
            n * 10,
            n * 10 + 1,
            n * 10 + 9,
            n * 10 + 5
        )
    };
    let turns: Vec<_> = (10..=120).map(turn).collect();
    let with = |one: &str, turns: &[String]| {
        let mut history = history(one, &turns.join("\n"));
        history.far = vec![Far { client: "one".to_owned(), since: 95, until: 1_205 }];
        kinds(&history)
    };
    assert_eq!(with("50 0 a asked\n1300 0 a left", &turns), [Kind::Starved]);
    assert_eq!(with("50 0 a asked\n1200 0 a left", &turns), [], "it did not wait for all this time");
    assert_eq!(with("50 0 a asked\n1300 0 a left", &turns[..50]), [], "the others had it for long");
    let other_task = "50 0 a asked\n50 1 a asked\n107 1 a granted one:1 109\n108 1 a releasing one:1\n1300 0 a left";
    assert_eq!(with(other_task, &turns), [], "it had a turn");
}

#[test]
fn what_stays_for_ever() {
    let left = |key: &str, time| {
        let mut history = history("", "");
        history.keys = vec![Left::new(key.to_owned(), time)];
        kinds(&history)
    };
    assert_eq!(left("redisson_lock_queue:{a}", None), [Kind::Leftover]);
    assert_eq!(left("redisson_lock_queue:{a}", Some(5)), []);
    assert_eq!(left("redisson_lock_token:{a}", None), [], "it counts on");
}

#[test]
fn a_forced_unlock_that_found_nobody_is_no_excuse() {
    let gone = format!("10 0 a asked\n20 0 a granted one:1 {SECOND}\n60 0 a removed one:1");
    assert_eq!(kinds(&history(&gone, "30 0 a forcing\n40 0 a forced")), []);
    assert_eq!(kinds(&history(&gone, "30 0 a forcing\n40 0 a spared")), [Kind::Taken]);
}

/// Two holders of a lock with five servers, whose leases are of a second. The first is certain from 20 to 500 ms, the second from 300 ms.
fn twice() -> History {
    let ms = |ms: u64| ms * 1_000_000;
    let first = format!(
        "1 0 - voter u\n{} 0 a asked\n{} 0 a granted one.1 {SECOND}\n{} 0 a releasing one.1",
        ms(10),
        ms(20),
        ms(500)
    );
    let second = format!("1 0 - voter v\n{} 0 a asked\n{} 0 a granted other.1 {}", ms(30), ms(300), 2 * SECOND);
    history(&first, &second)
}

#[test]
fn a_server_that_comes_back_empty_may_be_granted_twice_within_a_lease() {
    let emptied = |since: u64, down: u64| {
        let mut twice = twice();
        twice.emptied = vec![Emptied { since: since * 1_000_000, down: down * 1_000_000 }];
        let (found, losses) = twice.judge();
        (found.iter().map(|violation| violation.kind).collect::<Vec<_>>(), losses.emptied.len())
    };
    assert_eq!(kinds(&twice()), [Kind::Overlap]);
    assert_eq!(emptied(100, 101), ([].into(), 1), "it is counted");
    assert_eq!(emptied(299, 350), ([].into(), 1), "the second was granted while it ended");
    assert_eq!(emptied(301, 302), ([Kind::Overlap].into(), 0), "both were granted before");
    assert_eq!(emptied(5, 9), ([Kind::Overlap].into(), 0), "the first was asked for later");
    let long_after = |down: u64| {
        let mut late = twice();
        late.longest_lease = Duration::from_millis(100);
        late.emptied = vec![Emptied { since: 100_000_000, down: down * 1_000_000 }];
        kinds(&late)
    };
    assert_eq!(long_after(400), [], "certain for a lease after its end");
    assert_eq!(long_after(399), [Kind::Overlap], "and no longer");
}

fn votes(since: u64, ids: [Option<&str>; 3]) -> Seen {
    let voters = ids.map(|ids| ids.map(|ids| ids.split_whitespace().map(str::to_owned).collect())).to_vec();
    Seen { since, at: since + 5, voters, ..Seen::default() }
}

#[test]
fn certain_while_a_majority_of_the_servers_has_nothing() {
    let looks = |ids| {
        let mut history = history("1 0 - voter u\n10 0 a asked\n20 0 a granted one.1 100", "1 0 - voter v");
        history.seen.insert("a".into(), vec![votes(50, ids)]);
        history
    };
    assert_eq!(kinds(&looks([Some("u:1"), Some("u:2"), Some("v:1")])), []);
    assert_eq!(kinds(&looks([Some("u:1"), None, Some("v:1")])), [], "one did not answer");
    assert_eq!(kinds(&looks([Some("u:1"), Some(""), Some("v:1")])), [Kind::Hollow]);
    let mut emptied = looks([Some("u:1"), Some(""), Some("v:1")]);
    emptied.emptied = vec![Emptied { since: 30, down: 31 }];
    assert_eq!(kinds(&emptied), []);
    emptied.longest_lease = Duration::from_nanos(5);
    assert_eq!(kinds(&emptied), [Kind::Hollow], "a lease later");
}

#[test]
fn lost_before_its_lease_ended_though_no_server_was_empty() {
    let mut lost = history("10 0 a asked\n20 0 a granted one.1 100\n50 0 a removed one.1", "");
    assert_eq!(kinds(&lost), [Kind::Taken]);
    lost.emptied = vec![Emptied { since: 51, down: 52 }];
    assert_eq!(kinds(&lost), [Kind::Taken]);
    lost.emptied = vec![Emptied { since: 40, down: 41 }];
    assert_eq!(kinds(&lost), []);
}

#[test]
fn without_a_majority_nothing_is_granted_and_nothing_is_taken() {
    let silent = |client: Option<&str>, log: &str| {
        let mut history = history(log, "");
        history.silent = vec![Silent { client: client.map(str::to_owned), since: 10, until: 5 * SECOND }];
        kinds(&history)
    };
    let granted = |asked: u64| format!("{asked} 0 a asked\n30 0 a granted one.1 50\n40 0 a releasing one.1");
    assert_eq!(silent(None, &granted(11)), [Kind::Untrue]);
    assert_eq!(silent(Some("one"), &granted(11)), [Kind::Untrue]);
    assert_eq!(silent(Some("other"), &granted(11)), []);
    assert_eq!(silent(None, &granted(9)), [], "the request can have been answered before");
    let tried = |how: &str| format!("20 0 a begun try_lock {SECOND}\n30 0 a ended try_lock {how}");
    assert_eq!(silent(None, &tried("none")), [Kind::Untrue]);
    assert_eq!(silent(None, &tried("unavailable")), []);
    let certain = |until: u64| format!("5 0 a asked\n6 0 a granted one.1 {until}");
    assert_eq!(silent(None, &certain(SECOND + 10)), []);
    assert_eq!(silent(None, &certain(SECOND + 11)), [Kind::Belief], "nobody can have confirmed it");
}

#[test]
fn without_a_majority_each_call_ends() {
    let waits = |until: u64, paused: &str| {
        let mut history = history(&format!("5 0 a begun lock 0\n{paused}{until} 0 a ended lock unavailable"), "");
        history.outage = Duration::from_secs(3);
        history.silent = vec![Silent { client: None, since: SECOND, until: 9 * SECOND }];
        kinds(&history)
    };
    assert_eq!(waits(6 * SECOND, ""), [], "the outage that it rides out, and a margin");
    assert_eq!(waits(6 * SECOND + 1, ""), [Kind::Late]);
    assert_eq!(waits(6 * SECOND + 1, &format!("{} 9 - paused {SECOND}\n", SECOND + 1)), [], "it stood still");
    let own = format!("2 1 a asked\n3 1 a granted one.1 {SECOND}\n4 1 a sure one.1 {}\n", 2 * SECOND);
    assert_eq!(waits(7 * SECOND, &own), [], "its client had the lock until then");
    assert_eq!(waits(7 * SECOND + 1, &own), [Kind::Late]);
}

#[test]
fn left_on_one_of_the_servers() {
    let log = format!("1 0 - voter u\n5 0 a asked\n10 0 a granted one.1 {SECOND}\n20 0 a releasing one.1");
    let seen = |last: u64| {
        let mut history = history(&log, "");
        history.calm = vec![(0, 9 * SECOND)];
        let looks = [votes(15, [Some("u:1"), Some("u:2"), Some("")]), votes(last, [Some("u:1"), Some(""), Some("")])];
        history.seen.insert("a".into(), looks.to_vec());
        history
    };
    assert_eq!(kinds(&seen(2 * SECOND)), [], "on its way back");
    assert_eq!(kinds(&seen(3 * SECOND)), [Kind::Leftover]);
    let mut killed = seen(3 * SECOND);
    killed.killed.insert("one".into(), 30);
    assert_eq!(kinds(&killed), []);
    let mut at_the_end = history(&log, "");
    at_the_end.left = vec![("a".into(), "u:1".into(), 4 * SECOND)];
    at_the_end.killed.insert("other".into(), 4 * SECOND);
    at_the_end.clients.insert("other".into(), vec!["3 0 a asked".parse().expect("an event")]);
    assert_eq!(kinds(&at_the_end), [Kind::Leftover], "another was killed");
}

/// Two clients of a semaphore with five permits, of which a call wants three at most.
fn permits(one: &str, other: &str) -> History {
    let rooms = HashMap::from([("a".to_owned(), Room { all: 5, most: 3 })]);
    History { rooms, ..history(one, other) }
}

const THREE: &str = "10 0 a asked\n20 0 a granted p1 900\n20 0 a permits p1 3\n60 0 a releasing p1\n70 0 a released p1";

/// So many permits of another hold, from one moment to another.
fn so_many(permits: u64, from: u64, to: u64) -> String {
    format!("11 0 a asked\n{from} 0 a granted q1 900\n{from} 0 a permits q1 {permits}\n{to} 0 a releasing q1")
}

#[test]
fn more_permits_are_certain_than_there_are() {
    assert_eq!(kinds(&permits(THREE, &so_many(2, 30, 80))), []);
    assert_eq!(kinds(&permits(THREE, &so_many(3, 60, 80))), [], "the others were released before");
    assert_eq!(kinds(&permits(THREE, &so_many(3, 59, 80))), [Kind::Overlap]);
    assert_eq!(kinds(&permits(THREE, &so_many(6, 70, 80))), [Kind::Overlap], "one hold with more than all");
    let third = format!("{}\n12 1 a asked\n40 1 a granted q2 900\n40 1 a permits q2 1", so_many(2, 30, 80));
    assert_eq!(kinds(&permits(THREE, &third)), [Kind::Overlap], "three holds, of which any two had room");
    let mut broken = permits(THREE, &so_many(3, 59, 80));
    broken.wipes = vec![wiped(Some("a"), 21, 22)];
    assert_eq!(kinds(&broken), []);
}

/// Split, each part is a hold of its own with the same id.
#[test]
fn parts_of_a_hold_count_by_themselves() {
    let parts = "10 0 a asked\n20 0 a granted p1 900\n20 0 a permits p1 3\n30 0 a releasing p1\n\
        30 0 a granted p1~0 900\n30 0 a permits p1~0 2\n31 0 a granted p1~1 900\n31 0 a permits p1~1 1\n60 0 a releasing p1~1";
    assert_eq!(kinds(&permits(parts, &so_many(3, 60, 80))), []);
    assert_eq!(kinds(&permits(parts, &so_many(3, 59, 80))), [Kind::Overlap]);
    assert_eq!(kinds(&permits(parts, &so_many(4, 60, 80))), [Kind::Overlap]);
    let mut left = permits(parts, "");
    left.calm = vec![(0, 9 * SECOND)];
    left.seen.insert("a".into(), vec![look_at(3 * SECOND, &["p1", "p1"], 5)]);
    assert_eq!(kinds(&left), [], "one part was not released");
    let mut left = permits(&format!("{parts}\n70 0 a releasing p1~0"), "");
    left.calm = vec![(0, 9 * SECOND)];
    left.seen.insert("a".into(), vec![look_at(3 * SECOND, &["p1", "p1"], 5)]);
    assert_eq!(kinds(&left), [Kind::Leftover]);
}

/// The holders, once for each permit, and how many permits there are in all.
fn look_at(since: u64, ids: &[&str], permits: i64) -> Seen {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    Seen { since, at: since + 5, ids, permits: Some(permits), ..Seen::default() }
}

#[test]
fn certain_of_permits_that_the_server_has_not() {
    let with = |ids: &[&str]| {
        let mut history = permits(THREE, "");
        history.seen.insert("a".into(), vec![look_at(30, ids, 5)]);
        history
    };
    assert_eq!(kinds(&with(&["p1", "q1", "p1", "p1"])), []);
    assert_eq!(kinds(&with(&["p1", "p1"])), [Kind::Hollow], "two of three");
    assert_eq!(kinds(&with(&[])), [Kind::Hollow]);
    let mut broken = with(&[]);
    broken.wipes = vec![wiped(None, 21, 22)];
    assert_eq!(kinds(&broken), []);
}

#[test]
fn a_semaphore_keeps_its_permits() {
    let with = |permits: i64| {
        let mut history = self::permits(THREE, "");
        let nothing = Seen { since: 80, at: 85, ..Seen::default() };
        history.seen.insert("a".into(), vec![nothing, look_at(100, &[], permits)]);
        history
    };
    assert_eq!(kinds(&with(5)), []);
    for other in [4, 6, -1] {
        assert_eq!(kinds(&with(other)), [Kind::Level]);
    }
    let mut wiped = with(4);
    wiped.wipes = vec![self::wiped(None, 90, 95)];
    assert_eq!(kinds(&wiped), [Kind::Level], "what was deleted comes back as a whole");
}

#[test]
fn waiting_though_there_are_enough_permits() {
    let held = |permits: u64| format!("20 0 a granted p1 {}\n20 0 a permits p1 {permits}", 9 * SECOND);
    let waits = format!("50 0 a asked\n{} 0 a granted q1 {}\n{0} 0 a permits q1 1", 3 * SECOND, 4 * SECOND);
    let with = |permits: u64| History { calm: vec![(SECOND, 2 * SECOND)], ..self::permits(&held(permits), &waits) };
    assert_eq!(kinds(&with(2)), [Kind::Idle], "three are free");
    assert_eq!(kinds(&with(3)), [], "two are free, and it may wait for three");
    let mut killed = with(2);
    killed.killed = HashMap::from([("one".to_owned(), 9 * SECOND)]);
    assert_eq!(kinds(&killed), [Kind::Idle]);
    killed.killed = HashMap::from([("one".to_owned(), SECOND)]);
    assert_eq!(kinds(&killed), [], "what it had asked for may be there for a lease");
}

#[test]
fn a_semaphore_stays_and_other_keys_do_not() {
    let with = |key: &str| History { keys: vec![Left::new(key.to_owned(), None)], ..permits("", "") };
    assert_eq!(kinds(&with("a")), []);
    assert_eq!(kinds(&with("{a}:timeout")), []);
    for other in ["b", "{b}:timeout", "leasehold_semaphore_waits:{a}", "leasehold_receipt:{a}:1"] {
        assert_eq!(kinds(&with(other)), [Kind::Leftover]);
    }
}
