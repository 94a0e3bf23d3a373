//! The checker of histories finds what must not happen, and nothing else.

use std::{collections::HashMap, time::Duration};

use crate::support::history::{Event, History, Kind, What, Wipe};

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

const FIRST: &str = "10 0 a asked\n20 0 a granted one:1 100\n60 0 a releasing one:1 0\n70 0 a released one:1";

#[test]
fn events_survive_their_log() {
    for what in [
        What::Asked,
        What::Granted { id: "u:1".into(), until: 7 },
        What::Sure { id: "u:1".into(), until: 7 },
        What::Counted { id: "u:1".into(), since: 1, believed: 2, counted: 3 },
        What::Releasing { id: "u:1".into() },
        What::Released { id: "u:1".into() },
        What::Lost { id: "u:1".into() },
        What::Left,
        What::Failed { error: "not today".into() },
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
    let history = history(FIRST, "11 0 a asked\n59 0 a granted other:1 160\n90 0 a releasing other:1 0");
    assert_eq!(kinds(&history), [Kind::Overlap]);
}

#[test]
fn a_long_hold_overlaps_with_more_than_its_neighbour() {
    let history = history(
        "10 0 a granted one:1 100",
        "20 0 a granted other:1 30\n25 0 a releasing other:1 0\n40 0 a granted other:2 50",
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
    let nested = "20 0 a granted one:1 100\n30 0 a granted one:1 100\n40 0 a releasing one:1 1";
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
