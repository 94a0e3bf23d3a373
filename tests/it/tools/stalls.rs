//! Which stalls of the machine explain that an attempt of a test failed.

use std::time::Instant;

use crate::support::{
    ms,
    stall::{Slack, Stall},
};

/// At so many milliseconds, and of so many.
fn stalls(ended: &[(u64, u64)]) -> Vec<Stall> {
    let began = Instant::now();
    ended.iter().map(|(at, late)| Stall { ended: began + ms(*at), late: ms(*late) }).collect()
}

#[test]
fn only_those_of_one_stretch_count() {
    let slack = Slack { left: ms(20), within: ms(100) };
    assert_eq!(slack.used_up(&stalls(&[])), None);
    assert_eq!(slack.used_up(&stalls(&[(50, 20)])), None, "no more than is left");
    assert_eq!(slack.used_up(&stalls(&[(50, 21)])), Some(ms(21)));
    assert_eq!(slack.used_up(&stalls(&[(950, 900)])), Some(ms(900)), "longer than the stretch");
    assert_eq!(slack.used_up(&stalls(&[(10, 15), (60, 15), (300, 4)])), Some(ms(30)));
    let a_little_all_the_time: Vec<_> = (0..100).map(|at| (at * 101, 10)).collect();
    assert_eq!(slack.used_up(&stalls(&a_little_all_the_time)), None);
}
