//! `leasehold run`: holds a lock while a command runs.

use std::{env, os::unix::process::ExitStatusExt, pin::pin, process::ExitStatus, time::Duration};

use leasehold::{Client, Lost, ReleaseRequest};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::{
    args::{OnLost, RENEWED, Run, Servers},
    child::{self, Child},
    exit::{self, Failure, TEMPORARY, USAGE},
    found,
    held::{self, Held},
    signals::Signals,
    terminal,
};

/// How long requests are tried while the server is away.
const OUTAGE: Duration = Duration::from_secs(30);
/// The command has ended, so the program waits no longer than this for a server that is away: the lock expires by itself.
const RELEASE: Duration = Duration::from_secs(3);
/// The processes of the command are killed this long before another may acquire the lock, or a tenth of a short lease.
const MARGIN: Duration = Duration::from_secs(1);
/// A process may start another at the moment of its end, so they are killed again.
const KILLED: Duration = Duration::from_millis(20);
/// What the processes before this one hold: an id and a kind in each line.
const OUTER: &str = "LEASEHOLD_OUTER";

pub(crate) async fn run(servers: &Servers, run: &Run) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let since = Instant::now();
    let program = run.program();
    let client = tokio::select! {
        client = servers.connect_as(&program, OUTAGE) => client?,
        signal = signals.next_end() => return Ok(ended_by(signal)),
    };
    if is_held_outside(&client, run).await? {
        return Ok(child::replace_this_process(&run.words()));
    }
    let held = tokio::select! {
        held = held::acquire(&client, run) => held,
        signal = signals.next_end() => {
            let _ = client.close().await; // it leaves the queue
            return Ok(ended_by(signal));
        }
        never = terminal::show_wait(&client, run) => match never {},
    };
    let code = match held {
        Ok(Some(held)) => {
            if run.verbose {
                exit::say(format_args!("acquired {} in {:?}", run.name, since.elapsed()));
            }
            hold(run, held, &mut signals).await
        }
        Ok(None) if run.verbose => Ok(exit::with(run.skipped(), found::who_has(&client, &run.name).await)),
        Ok(None) => Ok(run.skipped()),
        Err(error) => Err(error.into()),
    };
    let closed = client.close().await; // also after an error: what was granted in a reply that came too late is released
    let code = code?;
    Ok(closed.map_or_else(|error| exit::with(code, error), |()| code))
}

/// The exit code after a signal that ended the wait.
fn ended_by(signal: Signal) -> u8 {
    match signal {
        Signal::SIGINT if child::is_in_foreground() => child::die_of_ctrl_c(),
        other => exit::of_signal(other),
    }
}

/// A lock that a process before this one holds is not acquired again. That process ends this one if it loses the lock.
async fn is_held_outside(client: &Client, run: &Run) -> Result<bool, Failure> {
    let outer = env::var(OUTER).unwrap_or_default();
    if outer.is_empty() || run.permits.is_some() {
        return Ok(false);
    }
    let holders = found::status(client, &run.name).await?.map(|found| found.holders).unwrap_or_default();
    let is_holder = |id: &str| holders.iter().any(|holder| holder.id == id);
    let Some((_, kind)) = outer.lines().filter_map(|line| line.split_once(' ')).find(|(id, _)| is_holder(id)) else {
        return Ok(false);
    };
    let is_enough = kind == run.kind() || (kind, run.kind()) == ("-x", "-s");
    if !is_enough || run.once_per.or(run.max_hold).or(run.min_hold).or(run.lease).is_some() {
        let message =
            format_args!("{} is held already, by a command outside of this one, with other options", run.name);
        return Err(Failure::new(USAGE, message));
    }
    Ok(true)
}

async fn hold(run: &Run, held: Held, signals: &mut Signals) -> Result<u8, Failure> {
    let mut child = match Child::start(&run.words(), &environment(run, &held)) {
        Ok(child) => child,
        Err(error) => {
            let _ = held.release().await;
            return Err(Failure::new(TEMPORARY, format_args!("cannot start a process: {error}")));
        }
    };
    let End { status, is_cut } = supervise(run, &held, &mut child, signals).await;
    let code = if is_cut { run.lost_exit_code } else { child::code_of(status) };
    if let (true, false, Some(period)) = (status.success(), is_cut, run.once_per) {
        held.stays(period.saturating_sub(held.since.elapsed()));
    }
    let time = if is_cut { Duration::from_secs(1) } else { RELEASE };
    let released = tokio::select! {
        released = timeout(time, held.release()) => released.ok(),
        _ = signals.next_end() => None,
    };
    let code = match released {
        _ if is_cut => code, // that was said
        Some(Ok(())) => code,
        Some(Err(error)) if error.is_lost() => exit::with(run.lost_exit_code, error),
        Some(Err(error)) => exit::with(code, error), // it was held until the command had ended
        None => {
            exit::with(code, format_args!("the server does not reply; {} is free when its lease expires", run.name))
        }
    };
    let is_ctrl_c = status.signal() == Some(Signal::SIGINT as i32) && child::is_in_foreground();
    Ok(if is_ctrl_c && !is_cut { child::die_of_ctrl_c() } else { code })
}

/// How the command ended.
struct End {
    status: ExitStatus,
    /// It was told to, because of the lock.
    is_cut: bool,
}

async fn supervise(run: &Run, held: &Held, child: &mut Child, signals: &mut Signals) -> End {
    let lease = run.lease.unwrap_or(RENEWED);
    let (time_to_end, margin) = (run.kill_after.min(lease / 3), MARGIN.min(lease / 10));
    let mut limit = pin!(sleep(run.max_hold.unwrap_or(Duration::MAX)));
    let (mut is_over, mut is_lost, mut kill_at) = (false, false, None::<Instant>);
    loop {
        let kill = sleep_until(kill_at.unwrap_or_else(Instant::now));
        let (why, signal, time) = tokio::select! {
            biased;
            lost = held.ends_in(time_to_end + margin), if !is_lost => {
                is_lost = true;
                match lost {
                    Some(lost) if lost != Lost::Expired => (format!("the lock is lost: {lost}"), run.on_lost, run.kill_after),
                    _ => {
                        let time = held.remaining().saturating_sub(margin).min(run.kill_after);
                        ("no renewal arrives, the lease ends".to_owned(), run.on_lost, time)
                    }
                }
            }
            () = kill, if kill_at.is_some() => {
                child.kill();
                kill_at = Some(Instant::now() + KILLED);
                continue;
            }
            () = &mut limit, if !is_over => {
                is_over = true;
                ("the time of --max-hold is over".to_owned(), OnLost::Send(Signal::SIGTERM), run.kill_after)
            }
            signal = signals.next() => {
                child.forward(signal);
                continue;
            }
            request = held.asked(), if run.on_asked.is_some() => {
                tell(run, child, &request);
                continue;
            }
            status = child.ended() => return End { status, is_cut: is_over || is_lost },
        };
        match signal {
            OnLost::Ignore => exit::say(format_args!("{}: {why}", run.name)),
            OnLost::Send(signal) => {
                let at = Instant::now() + time;
                kill_at = Some(kill_at.map_or(at, |before| before.min(at)));
                if time.is_zero() {
                    exit::say(format_args!("{}: {why}; the command is killed", run.name))
                } else {
                    child.send(signal);
                    child.send(Signal::SIGCONT); // a process that is stopped does not end
                    exit::say(format_args!("{}: {why}; the command gets {signal}, and KILL in {time:.1?}", run.name))
                }
            }
        };
    }
}

/// Somebody asks for the lock. The command decides.
fn tell(run: &Run, child: &Child, request: &ReleaseRequest) {
    let by = request.by.as_ref().map_or_else(|| "somebody".to_owned(), found::shown);
    exit::say(format_args!("{}: {by} asks for the lock: {}", run.name, request.reason));
    if let Some(OnLost::Send(signal)) = run.on_asked {
        child.ask(signal);
    }
}

fn environment(run: &Run, held: &Held) -> Vec<(&'static str, String)> {
    let outer = env::var(OUTER).map(|outer| outer + "\n").unwrap_or_default();
    let mut all = vec![
        ("LEASEHOLD_HELD", "1".to_owned()),
        ("LEASEHOLD_NAME", run.name.clone()),
        ("LEASEHOLD_OWNER", held.id().to_owned()),
    ];
    if run.permits.is_none() {
        all.push((OUTER, format!("{outer}{} {}", held.id(), run.kind())));
    }
    all.extend(held.token.map(|token| ("LEASEHOLD_TOKEN", token.to_string())));
    all
}
