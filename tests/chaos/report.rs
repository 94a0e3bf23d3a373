//! The table at the end: what was done, in which ways, and what was looked at.

use std::collections::BTreeMap;

use crate::{
    FENCED, LINES, SHARED,
    history::{History, Losses, Violation, What},
    proxy::Proxy,
    troubles::Tally,
};

pub(crate) fn rows<K: AsRef<str>>(counts: impl IntoIterator<Item = (K, u64)>) {
    counts.into_iter().for_each(|(name, count)| println!("| {} | {count} |", name.as_ref()));
}

pub(crate) fn troubles(tally: &Tally) {
    println!("| trouble | times |\n|---|---|");
    rows(tally.iter().map(|(name, times)| (*name, *times)));
}

pub(crate) fn requests(proxies: &[Proxy]) -> Vec<(&'static str, u64)> {
    let mut hit = BTreeMap::new();
    for proxy in proxies {
        let tally = proxy.tally();
        for (name, count) in [
            ("requests cut off before the server had them", tally.cut_there),
            ("replies cut off", tally.cut_back),
            ("requests or replies swallowed", tally.swallowed),
            ("delayed", tally.delayed),
            ("delivered in pieces", tally.in_pieces),
            ("connections opened", tally.connections),
            ("requests passed", tally.requests),
        ] {
            *hit.entry(name).or_insert(0) += count;
        }
    }
    hit.into_iter().collect()
}

/// What the clients did, and what the checker had to look at.
pub(crate) fn history(history: &History) {
    let sum = |counts: BTreeMap<String, u64>| counts.into_values().sum();
    let count = |is: fn(&What) -> bool| sum(history.count(|what| is(what).then(String::new)));
    println!("| way | times |\n|---|---|");
    rows(history.count(|what| match what {
        What::Way { way } => Some(way.clone()),
        _ => None,
    }));
    println!("| call and how it ended | times |\n|---|---|");
    rows(history.count(|what| match what {
        What::Ended { call, how } => Some(format!("{call}: {how}")),
        _ => None,
    }));
    println!("| left in the end | keys |\n|---|---|");
    let mut left = BTreeMap::new();
    history.keys.iter().for_each(|key| *left.entry(key.kind).or_insert(0) += 1);
    rows(left);
    println!("| looked at | times |\n|---|---|");
    let turns = history.turns();
    let of = |name: &str| turns.get(name).copied().unwrap_or(0);
    rows([
        ("turns", turns.values().sum()),
        ("of them fenced", of(FENCED)),
        ("reading or writing", SHARED.map(of).iter().sum()),
        ("fair", LINES.map(of).iter().sum()),
        ("calm times", history.calm.len() as u64),
        ("calls with a time limit", count(|what| matches!(what, What::Begun { limit: 1.., .. }))),
        (
            "guards, for what they say",
            count(|what| matches!(what, What::Granted { .. } | What::Sure { .. } | What::Releasing { .. })),
        ),
        ("given back for sure", count(|what| matches!(what, What::Confirmed { .. }))),
        ("tokens of the server", history.seen.values().flatten().filter(|seen| seen.token.is_some()).count() as u64),
        ("levels counted", count(|what| matches!(what, What::Counted { .. }))),
        ("looks at the server, each at all names", history.seen.values().map(Vec::len).max().unwrap_or(0) as u64),
        ("clients that stood still", count(|what| matches!(what, What::Paused { .. }))),
    ]);
}

/// What failovers lost, which nobody is blamed for.
pub(crate) fn losses(failovers: usize, losses: &Losses) {
    println!("| failovers | {failovers} |\n|---|---|");
    rows([
        ("lost by failover", losses.gone.len() as u64),
        ("held again by failover", losses.back.len() as u64),
        ("counts fallen back by failover", losses.counts.len() as u64),
    ]);
}

/// Who had which lock on the server, whenever that had changed.
pub(crate) fn changes(history: &History) -> String {
    let mut lines = Vec::new();
    for (name, all) in &history.seen {
        let mut last = None;
        for seen in all {
            if last != Some((&seen.ids, &seen.line)) {
                let (ids, line) = (seen.ids.join(" "), seen.line.join(" "));
                lines.push(format!("{} {} {name} [{ids}] [{line}]", seen.since, seen.at));
                last = Some((&seen.ids, &seen.line));
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

pub(crate) fn verdict(found: &[Violation], seed: u64) -> bool {
    let mut kinds = BTreeMap::new();
    found.iter().for_each(|violation| *kinds.entry(violation.kind).or_insert(0) += 1);
    // Some of each kind: a frequent one must not hide a rare one.
    for kind in kinds.keys() {
        let some = found.iter().filter(|violation| violation.kind == *kind).take(8);
        some.for_each(|violation| println!("VIOLATION {violation}"));
    }
    match found.len() {
        0 => println!("verdict: no violation (seed {seed})"),
        count => println!("verdict: {count} violations {kinds:?} (seed {seed})"),
    }
    found.is_empty()
}
