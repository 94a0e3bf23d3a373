//! `leasehold status`, `list`, `ask` and `unlock`.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal, Write},
};

use leasehold::AskOutcome;
use serde_json::json;

use crate::{
    args::{Servers, Unlock},
    exit::{Failure, TEMPORARY, USAGE},
    found::{self, Found},
};

/// Nobody holds the lock.
const FREE: u8 = 1;

pub(crate) async fn status(servers: &Servers, name: &str, is_json: bool) -> Result<u8, Failure> {
    let client = servers.connect().await?;
    let found = found::status(&client, name).await?;
    match &found {
        Some(found) if is_json => write(&found.json().to_string())?,
        None if is_json => write(&json!({ "name": name, "holders": [], "waiting": [] }).to_string())?,
        Some(found) => {
            write(&format!("{}: {}", found.shown(), found.kind))?;
            found.lines().iter().try_for_each(|line| write(&format!("  {line}")))?;
        }
        None => write(&format!("{name}: free"))?,
    }
    let is_held = found.is_some_and(|found| !found.holders.is_empty());
    client.close().await?;
    Ok(if is_held { 0 } else { FREE })
}

/// Writes each lock as it is found: there may be many.
pub(crate) async fn list(servers: &Servers, pattern: &str, is_json: bool) -> Result<u8, Failure> {
    let client = servers.connect().await?;
    let mut deadlocks = BTreeSet::new();
    let show = |found: Found| {
        let told = found.deadlocks().map(|circle| match is_json {
            true => found::deadlock_json(circle).to_string(),
            false => found::deadlock_line(circle),
        });
        deadlocks.extend(told);
        match is_json {
            true => write(&found.json().to_string()),
            false => {
                found.lines().iter().try_for_each(|line| write(&format!("{}\t{}\t{line}", found.shown(), found.kind)))
            }
        }
    };
    found::each(&client, (servers.prefix(), pattern), show).await?;
    deadlocks.iter().try_for_each(|line| write(line))?;
    client.close().await?;
    Ok(0)
}

pub(crate) async fn ask(servers: &Servers, (name, reason): (&str, &str), is_json: bool) -> Result<u8, Failure> {
    let client = servers.connect().await?;
    let (code, words, outcome) = match client.lock(name).ask(reason).await? {
        AskOutcome::Heard => (0, "its holder was asked", "heard"),
        AskOutcome::Free => (FREE, "free", "free"),
        _ => (TEMPORARY, "its holder does not listen", "not-heard"),
    };
    match is_json {
        true => write(&json!({ "name": name, "outcome": outcome }).to_string())?,
        false => write(&format!("{name}: {words}"))?,
    }
    client.close().await?;
    Ok(code)
}

pub(crate) async fn unlock(servers: &Servers, options: &Unlock) -> Result<u8, Failure> {
    let client = servers.connect().await?;
    let name = &options.name;
    let Some(found) = found::status(&client, name).await?.filter(|found| !found.holders.is_empty()) else {
        write(&format!("{name}: free"))?;
        return Ok(FREE);
    };
    if found.kind == "semaphore" {
        return Err(Failure::new(USAGE, "permits cannot be released without their holder: end its process"));
    }
    for line in found.lines() {
        write(&format!("{name}: {line}"))?;
    }
    if !options.yes && !is_sure()? {
        return Ok(FREE);
    }
    let now = found::status(&client, name).await?.unwrap_or_default();
    if now.ids() != found.ids() {
        write(&format!("{name}: its holders are others now; look again"))?;
        return Ok(TEMPORARY);
    }
    let released = match found.kind {
        "read lock" | "write lock" => client.rw_lock(name).force_unlock().await?,
        "fair lock" => client.fair_lock(name).force_unlock().await?,
        _ => client.lock(name).force_unlock().await?,
    };
    client.close().await?;
    match released {
        true => write(&format!("{name}: released. Its holder goes on until it learns of that"))?,
        false => write(&format!("{name}: it was renewed or released meanwhile; look again"))?,
    }
    Ok(if released { 0 } else { TEMPORARY })
}

fn is_sure() -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "without a terminal, --yes must say that this is meant"));
    }
    eprint!("Release it? Its holder may still work. [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// To standard output. Its reader may have gone.
pub(crate) fn write(line: &str) -> Result<(), Failure> {
    Ok(writeln!(io::stdout(), "{line}")?)
}
