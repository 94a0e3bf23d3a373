//! The command as a process: in our group, so that the shell and the terminal treat both as one job, and dead if we are.
//!
//! Some settings of a process can only be made by itself. So this program starts itself once more, makes them, and becomes the command.

use std::{
    collections::{HashMap, HashSet},
    env,
    ffi::OsString,
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{self, Command, ExitStatus},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, getpgrp, getpid, getppid, getsid, tcgetpgrp},
};
use tokio::{
    signal::unix::{Signal as Signals, SignalKind, signal},
    time::timeout,
};

use crate::exit::{self, NOT_EXECUTABLE, NOT_FOUND};

/// The first argument of the process that becomes the command. The id of its parent follows.
const BECOME: &str = "__become";
/// The time in which the command may end after one of its orphans.
const SHORTLY: Duration = Duration::from_millis(50);
/// The time between two looks at the processes of this machine, for those that end without a signal to us.
const LOOK: Duration = Duration::from_millis(500);
const LONGEST_LOOK: Duration = Duration::from_secs(5);
const MOST_LOOKS: usize = 20;

#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    id: Pid,
    /// Children that this process had before: the program that became `leasehold` has started them.
    strangers: HashSet<Pid>,
    /// Processes of other users, which were named in a message.
    refused: HashSet<Pid>,
    changes: Signals,
}

/// A process, as `/proc` shows it.
struct Seen {
    id: Pid,
    parent: Pid,
    group: Pid,
    session: Pid,
    is_dead: bool,
}

/// If this process was started to become the command: does that, or returns the exit code if it cannot.
pub(crate) fn become_the_command() -> Option<u8> {
    let mut words = env::args_os().skip(1);
    words.next().filter(|first| first == BECOME)?;
    let parent = words.next()?.to_str()?.parse().ok()?;
    match die_with_parent(Pid::from_raw(parent)) {
        Ok(()) => Some(replace_this_process(&words.collect::<Vec<_>>())),
        Err(_) => Some(exit::TEMPORARY),
    }
}

/// Returns an exit code if that cannot be done.
pub(crate) fn replace_this_process(words: &[OsString]) -> u8 {
    let error = Command::new(&words[0]).args(&words[1..]).exec();
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    exit::with(code, format_args!("cannot execute {}: {error}", words[0].to_string_lossy()))
}

/// A shell ends its script after Ctrl-C only if the signal ended its child. A new program has the handlers that a process begins with.
pub(crate) fn die_of_ctrl_c() -> u8 {
    replace_this_process(&["/bin/sh", "-c", "kill -INT $$"].map(OsString::from))
}

/// An error if the parent is dead already.
fn die_with_parent(parent: Pid) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() == parent { Ok(()) } else { Err(Errno::ESRCH) }
}

/// The terminal sends what is typed there to all processes of our group.
pub(crate) fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|terminal| tcgetpgrp(&terminal) == Ok(getpgrp()))
}

impl Child {
    /// Starts the command. `words` are its program and arguments.
    pub(crate) fn start(words: &[OsString], environment: &[(&str, String)]) -> io::Result<Child> {
        let changes = signal(SignalKind::child())?;
        #[cfg(target_os = "linux")]
        let _ = nix::sys::prctl::set_child_subreaper(true); // orphans of the command become our children, so we find them
        let before = if reap() { Vec::new() } else { processes() };
        let strangers = before.into_iter().filter(|one| one.parent == getpid()).map(|one| one.id).collect();
        // The file may be replaced while this process waits.
        let this = if cfg!(target_os = "linux") { "/proc/self/exe".into() } else { env::current_exe()? };
        let mut command = Command::new(this);
        command.arg(BECOME).arg(getpid().to_string()).args(words).env_remove("LEASEHOLD_TOKEN");
        let process = command.envs(environment.iter().map(|(name, value)| (name, value))).spawn()?;
        let id = Pid::from_raw(process.id() as i32);
        Ok(Child { process, id, strangers, refused: HashSet::new(), changes })
    }

    /// Waits until it and its family have ended. Cancel safe.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        loop {
            let ended = self.process.try_wait().ok().flatten();
            if let Some(status) = ended.filter(|_| reap() || self.family().is_empty()) {
                return status;
            }
            // Other processes end without a signal to us.
            let _ = timeout(if ended.is_some() { LOOK } else { LONGEST_LOOK }, self.changes.recv()).await;
            if ended.is_none() && timeout(SHORTLY, self.process_ends()).await.is_err() {
                self.family(); // its orphans that have ended go
            }
        }
    }

    async fn process_ends(&mut self) {
        while let Ok(None) = self.process.try_wait() {
            self.changes.recv().await;
        }
    }

    /// The command, its children and theirs get it.
    pub(crate) fn send(&mut self, signal: Signal) {
        self.send_to(signal, |_| true);
    }

    /// The command alone gets it, and decides.
    pub(crate) fn ask(&self, signal: Signal) {
        let _ = kill(self.id, signal); // it may have ended
    }

    fn send_to(&mut self, signal: Signal, mut is_meant: impl FnMut(&Seen) -> bool) {
        for one in self.family().iter().filter(|one| is_meant(one)) {
            if kill(one.id, signal) == Err(Errno::EPERM) && self.refused.insert(one.id) {
                exit::say(format_args!("process {} may not be signalled by this user", one.id));
            }
        }
    }

    /// Looks again until there is no new one: a process may have started another before it was killed. A look takes 20 ms for each thousand
    /// processes of the machine, so each process is killed at the first look that finds it.
    pub(crate) fn kill(&mut self) {
        let mut killed = HashSet::new();
        for _ in 0..MOST_LOOKS {
            let mut is_new = false;
            self.send_to(Signal::SIGKILL, |one| {
                let is_meant = killed.insert(one.id);
                is_new |= is_meant;
                is_meant
            });
            if !is_new {
                break;
            }
        }
    }

    /// Passes on a signal of this process. What is typed at a terminal has reached those of our group.
    pub(crate) fn forward(&mut self, signal: Signal) {
        match signal {
            Signal::SIGINT | Signal::SIGQUIT | Signal::SIGWINCH if is_in_foreground() => {
                self.send_to(signal, |one| one.group != getpgrp());
            }
            Signal::SIGTSTP if is_in_foreground() => self.stop_with_it(),
            Signal::SIGTSTP => self.send(Signal::SIGSTOP), // without a shell above, the system ignores the other
            // A process that does not know these ends.
            Signal::SIGUSR1 | Signal::SIGUSR2 | Signal::SIGWINCH => self.ask(signal),
            _ => self.send(signal),
        }
    }

    /// The shell that started us must learn of that. It continues all of us, or ends us.
    fn stop_with_it(&mut self) {
        self.send(Signal::SIGSTOP);
        let _ = kill(getpid(), Signal::SIGSTOP);
    }

    /// All processes that descend from the command, without those that made a session of their own: daemons. One of them that is dead and
    /// that nobody has waited for may have started another while this looked.
    fn family(&self) -> Vec<Seen> {
        let all = processes();
        for orphan in all.iter().filter(|one| one.is_dead && one.parent == getpid() && one.id != self.id) {
            let _ = waitpid(orphan.id, Some(WaitPidFlag::WNOHANG));
        }
        if all.is_empty() {
            return Seen::without_proc(self.id).into_iter().collect();
        }
        let sessions = [getsid(None), getsid(Some(self.id))];
        // There may be thousands, so each is looked at once.
        let mut children: HashMap<Pid, Vec<Seen>> = HashMap::new();
        all.into_iter().for_each(|one| children.entry(one.parent).or_default().push(one));
        let (mut family, mut parents) = (Vec::new(), vec![getpid()]);
        while let Some(parent) = parents.pop() {
            for one in children.remove(&parent).unwrap_or_default() {
                if self.strangers.contains(&one.id) {
                    continue;
                }
                parents.push(one.id);
                let is_new_orphan = one.is_dead && parent == getpid() && one.id != self.id;
                if is_new_orphan || !one.is_dead && sessions.contains(&Ok(one.session)) {
                    family.push(one);
                }
            }
        }
        family
    }
}

/// Lets all children go that have ended. True if there are none, and so no descendants.
fn reap() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Err(Errno::ECHILD) => return true,
            _ => {} // one has ended
        }
    }
}

/// Empty on a system that does not show them.
fn processes() -> Vec<Seen> {
    if !cfg!(target_os = "linux") {
        return Vec::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Seen::read(&fs::read_to_string(entry.path().join("stat")).ok()?)).collect()
}

impl Seen {
    /// Of a system that shows no processes: the command alone, if it lives.
    fn without_proc(id: Pid) -> Option<Seen> {
        let session = getsid(Some(id)).ok()?;
        kill(id, None).ok()?;
        Some(Seen { id, parent: getpid(), group: getpgrp(), session, is_dead: false })
    }

    /// `id (name) state parent group session …`. The name may have any characters.
    fn read(stat: &str) -> Option<Seen> {
        let (id, (_, rest)) = (stat.split(' ').next()?.parse().ok()?, stat.rsplit_once(") ")?);
        let mut fields = rest.split(' ');
        let is_dead = matches!(fields.next()?, "Z" | "X");
        let mut number = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
        let (parent, group, session) = (number()?, number()?, number()?);
        Some(Seen { id: Pid::from_raw(id), parent, group, session, is_dead })
    }
}

/// As a shell says it.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let of_signal = || 128 + status.signal().unwrap_or_default();
    u8::try_from(status.code().unwrap_or_else(of_signal)).unwrap_or(u8::MAX)
}
