//! The checker of histories finds what must not happen, and nothing else.

use std::{collections::HashMap, time::Duration};

use crate::support::history::{Event, History, Kind, Seen, What, Wipe};

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
    Wipe { name: name.map(str::to_owned), since, at }
}

const FIRST: &str = "10 0 a asked\n20 0 a granted one:1 100\n60 0 a releasing one:1\n70 0 a released one:1";

#[test]
fn events_survive_their_log() {
    for what in [
        What::Asked,
        What::Granted { id: "u:1".into(), until: 7 },
        What::Sure { id: "u:1".into(), until: 7 },
        What::Counted { id: "u:1".into(), since: 1, believed: 2, counted: 3 },
        What::Releasing { id: "u:1".into() },
        What::Released { id: "u:1".into() },
        What::Lost { id: "u:1".into(), removed: true },
        What::Lost { id: "u:1".into(), removed: false },
        What::Kept,
        What::Left,
        What::Failed { error: "not today".into() },
        What::Begun { call: "lock".into(), limit: 7 },
        What::Ended { call: "lock".into(), how: "ok".into() },
        What::Forcing,
        What::Forced,
        What::Paused { since: 3 },
        What::Way { way: "on foot".into() },
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
    assert_eq!(history.turns(), 2);
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
    killed.clients.insert("other".into(), vec![late.parse().expect("an event")]);
    killed.killed = HashMap::from([("one".to_owned(), 80)]);
    assert_eq!(kinds(&killed), []);
}

#[test]
fn a_nested_level_does_not_end_the_hold() {
    let nested = "20 0 a granted one:1 100\n30 0 a granted one:1 100\n40 0 a releasing one:1";
    assert_eq!(kinds(&history(nested, "50 0 a granted other:1 160")), [Kind::Overlap]);
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
    Seen { since, at, id: id.map(str::to_owned) }
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
fn waiting_for_ever_outside_of_calm_times() {
    let waits = |end: u64| format!("50 0 a asked\n{end} 0 a granted other:1 {}", end + SECOND);
    assert_eq!(kinds(&history(FIRST, &waits(12 * SECOND))), []);
    let mut idle = history(FIRST, &waits(14 * SECOND));
    assert_eq!(kinds(&idle), [Kind::Idle]);
    idle.slack.insert("a".into(), Duration::from_secs(5));
    assert_eq!(kinds(&idle), []);
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

#[test]
fn what_clients_found_by_themselves() {
    assert_eq!(kinds(&history("10 0 a wrong Hollow it has nothing", "")), [Kind::Hollow]);
}
