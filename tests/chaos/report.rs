//! The report at the end: the troubles, how the clients used the locks, and how much the checker compared.

use std::collections::{BTreeMap, HashMap};

use crate::{
    FENCED, LINES, PERMITS, SHARED,
    history::{Event, History, Kind, Losses, Violation, What},
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

pub(crate) fn requests<'a>(proxies: impl IntoIterator<Item = &'a Proxy>) -> Vec<(&'static str, u64)> {
    let mut hit = BTreeMap::new();
    for proxy in proxies {
        let tally = proxy.tally();
        for (name, count) in [
            ("requests cut off before they reached the server", tally.cut_there),
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

/// How the clients used the locks, and how much the checker compared.
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
    let told = told(history);
    let part = |of: f64| told.get((told.len() as f64 * of) as usize).map_or(0.0, |time| *time as f64 / 1e6);
    println!("| told of a deletion, times | {} |\n|---|---|", told.len());
    println!("| after, ms: median, 90 %, 99 % | {:.1}, {:.1}, {:.1} |", part(0.5), part(0.9), part(0.99));
    println!("| keys left at the end | number |\n|---|---|");
    let mut left = BTreeMap::new();
    history.keys.iter().for_each(|key| *left.entry(key.kind).or_insert(0) += 1);
    rows(left);
    println!("| checked | times |\n|---|---|");
    let turns = history.turns();
    let of = |name: &str| turns.get(name).copied().unwrap_or(0);
    rows([
        ("turns (outermost holds)", turns.values().sum()),
        ("of these, fenced", of(FENCED)),
        ("of these, read-write", SHARED.map(of).iter().sum()),
        ("of these, fair", LINES.map(of).iter().sum()),
        ("of these, permits", PERMITS.map(|(name, _)| of(name)).iter().sum()),
        ("calm periods", history.calm.len() as u64),
        ("calls with a time limit", count(|what| matches!(what, What::Begun { limit: 1.., .. }))),
        (
            "states of guards checked",
            count(|what| matches!(what, What::Granted { .. } | What::Sure { .. } | What::Releasing { .. })),
        ),
        ("releases confirmed in one request", count(|what| matches!(what, What::Confirmed { .. }))),
        (
            "fencing tokens read from the server",
            history.seen.values().flatten().filter(|seen| seen.token.is_some()).count() as u64,
        ),
        ("hold counts compared", count(|what| matches!(what, What::Counted { .. }))),
        (
            "permits of a semaphore counted at a look",
            history.seen.values().flatten().filter(|seen| seen.permits.is_some()).count() as u64,
        ),
        ("looks at the server, each at all locks", history.seen.values().map(Vec::len).max().unwrap_or(0) as u64),
        ("pauses of client processes", count(|what| matches!(what, What::Paused { .. }))),
    ]);
}

/// The times from the end of a deletion, or of a call that forced the lock open, until its holder was told. Of locks with one holder.
fn told(history: &History) -> Vec<u64> {
    let events = || history.clients.values().flatten();
    let mut granted = HashMap::new();
    for event in events() {
        if let What::Granted { id, .. } = &event.what {
            let first = granted.entry((&*event.name, &**id)).or_insert(event.at);
            *first = event.at.min(*first);
        }
    }
    let mut removed: HashMap<&str, Vec<u64>> = HashMap::new();
    let wipes =
        history.wipes.iter().filter(|wipe| !wipe.beside).filter_map(|wipe| Some((wipe.name.as_deref()?, wipe.at)));
    let forced = events().filter(|event| event.what == What::Forced).map(|event| (&*event.name, event.at));
    wipes.chain(forced).for_each(|(name, at)| removed.entry(name).or_default().push(at));
    let shared = |name: &str| SHARED.contains(&name) || PERMITS.iter().any(|(permits, _)| *permits == name);
    let time = |event: &Event| {
        let What::Lost { id, removed: true } = &event.what else { return None };
        let since = *granted.get(&(&*event.name, &**id))?;
        let causes = removed.get(&*event.name)?.iter().filter(|at| (since..=event.at).contains(*at));
        Some(event.at - causes.max()?)
    };
    let mut times: Vec<_> = events().filter(|event| !shared(&event.name)).filter_map(time).collect();
    times.sort_unstable();
    times
}

/// The losses that the checker excuses, because a failover can cause them.
pub(crate) fn losses(failovers: usize, losses: &Losses) {
    println!("| failovers | {failovers} |\n|---|---|");
    rows([
        ("lost by failover", losses.gone.len() as u64),
        ("held again by failover", losses.back.len() as u64),
        ("hold counts lowered by failover", losses.counts.len() as u64),
    ]);
}

/// What the checker excuses, because a server that comes back empty can cause it; and what it compared without a majority.
pub(crate) fn voters(history: &History, losses: &Losses) {
    let excused = |kind| losses.emptied.iter().filter(|found| found.kind == kind).count() as u64;
    let silent: u64 = history.silent.iter().map(|silent| silent.until - silent.since).sum();
    println!("| servers that came back empty | {} |\n|---|---|", history.emptied.len());
    rows([
        ("two certain holders after that (excused)", excused(Kind::Overlap)),
        ("certain without a majority of the servers after that (excused)", excused(Kind::Hollow)),
        ("lost before the lease ended after that (excused)", excused(Kind::Taken)),
        ("times without a majority, for one client or for all", history.silent.len() as u64),
        ("seconds of these", silent / 1_000_000_000),
    ]);
    losses.emptied.iter().filter(|found| found.kind == Kind::Overlap).for_each(|found| println!("excused: {found}"));
}

/// The ids that had each lock on the server, its queue, and its mark: one line for each change.
pub(crate) fn changes(history: &History) -> String {
    let mut lines = Vec::new();
    for (name, all) in &history.seen {
        let mut last = None;
        for seen in all {
            if last != Some((&seen.ids, &seen.line, &seen.mark, &seen.voters)) {
                let (ids, line, voters) = (seen.ids.join(" "), seen.line.join(" "), &seen.voters);
                let mark = seen.mark.as_deref().unwrap_or("");
                lines.push(format!("{} {} {name} [{ids}] [{line}] [{mark}] {voters:?}", seen.since, seen.at));
                last = Some((&seen.ids, &seen.line, &seen.mark, voters));
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

pub(crate) fn verdict(found: &[Violation], seed: u64) -> bool {
    let mut kinds = BTreeMap::new();
    found.iter().for_each(|violation| *kinds.entry(violation.kind).or_insert(0) += 1);
    // Some of each kind, so that a frequent kind does not hide a rare one.
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
