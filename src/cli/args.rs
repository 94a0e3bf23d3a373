//! The arguments, from which clap also makes the help, the completions and the man page.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{
    Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint, error::ErrorKind, parser::ValueSource,
};
use clap_complete::Shell;
use leasehold::{Client, Credentials};
use nix::sys::signal::Signal;
use percent_encoding::percent_decode_str;

use crate::{
    exit::{self, CONFIG, Failure, USAGE},
    watch,
};

/// The lease of a lock that the client renews.
pub(crate) const RENEWED: Duration = Duration::from_secs(30);
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);
/// How long a command that only looks tries a request.
const SHORT_OUTAGE: Duration = Duration::from_secs(5);

/// Locks that programs on many machines share, on Redis or Valkey.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Write JSON, with `list` one object in each line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs a command while it holds a lock
    Run(Box<Run>),
    /// Shows the holders of a lock, and the waiters of a fair lock. The exit code is 1 if the lock is free
    Status {
        /// The name of the lock
        name: String,
    },
    /// Lists all locks that are held, one line for each holder
    List {
        /// Only names like this: * stands for any text, ? for a character
        #[arg(default_value = "*")]
        pattern: String,
    },
    /// Shows what `list` or `status` shows, again and again until Ctrl-C
    Watch(Watch),
    /// Asks the holder of a lock to release it. The exit code is 0 if a holder listens, 75 if none does, and 1 if the lock is free
    Ask {
        /// The name of the lock
        name: String,
        /// Why, for the holder
        #[arg(default_value = "")]
        reason: String,
    },
    /// Releases a lock without its holder, which learns of it afterwards
    Unlock(Unlock),
    /// Checks whether the servers suit locks. The exit code is 1 if something is bad
    Doctor,
    /// Writes a script that completes arguments in this shell
    Completions {
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Writes the man pages
    Man {
        /// The folder, for example /usr/local/share/man/man1
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The name of a lock; without it, all locks
    pub(crate) name: Option<String>,
    /// The time between two looks
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = pause)]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Unlock {
    /// Required, because the holder may still work
    #[arg(long, required = true)]
    force: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// The name of the lock
    pub(crate) name: String,
}

/// The servers, and the login.
#[derive(Debug, Args)]
#[command(next_help_heading = "Servers")]
pub(crate) struct Servers {
    /// The servers: redis://[user@]host[:port][/db], rediss:// with encryption, redis-sentinel://host,host/service,
    /// redis-cluster://host,host or redis+unix:///path. A password here is refused
    #[arg(long, env = "REDIS_URL", hide_env_values = true, global = true, default_value = "redis://127.0.0.1:6379")]
    url: String,
    /// The first line of this file is the password. The environment variable LEASEHOLD_PASSWORD can have it, too
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_PASSWORD_FILE", global = true)]
    password_file: Option<PathBuf>,
    /// What the application writes before each lock name
    #[arg(long, env = "LEASEHOLD_PREFIX", global = true, default_value = "")]
    prefix: String,
    /// The name of this client in `status` and in `CLIENT LIST`, ASCII without spaces; by default that of the command
    #[arg(long, value_name = "TEXT", global = true, value_parser = label)]
    label: Option<String>,
}

const EXIT_CODES: &str = "\
Exit codes: that of the command, 128 and the number of its signal, or one of leasehold:
  1 (-E)                  others hold the lock, or have done the work of this period
  64, 78                  the arguments or the settings are wrong
  69                      the server cannot be reached
  73 (--lost-exit-code)   the lock was lost while the command ran, or --max-hold was over
  75                      another error of the server
  77                      the server refuses the login, or a command
  126, 127                the command cannot be executed, or does not exist

The command has LEASEHOLD_HELD=1, LEASEHOLD_NAME, LEASEHOLD_OWNER, and with --fenced LEASEHOLD_TOKEN.";
const USAGE_OF_RUN: &str =
    "leasehold run [OPTIONS] NAME [--] COMMAND [ARGUMENT]...\n       leasehold run [OPTIONS] NAME -c STRING";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES, override_usage = USAGE_OF_RUN)]
pub(crate) struct Run {
    /// Do not wait
    #[arg(short = 'n', long, visible_alias = "nb", conflicts_with = "wait")]
    nonblock: bool,
    /// Wait for at most this long: seconds, or 500ms, 2m, 1h
    #[arg(short, long, visible_alias = "timeout", value_name = "TIME", value_parser = time)]
    wait: Option<Duration>,
    /// The exit code if others hold the lock, or have done the work of this period
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    conflict_exit_code: u8,
    /// The exit code is 0 if others hold the lock, or have done the work of this period
    #[arg(long)]
    pub(crate) skip_ok: bool,
    /// Hold the lock together with other readers. All others must use -s or -x, too
    #[arg(short, long, group = "kind")]
    pub(crate) shared: bool,
    /// Exclude readers and writers of a read-write lock
    #[arg(short = 'x', long, group = "kind")]
    pub(crate) exclusive: bool,
    /// First come, first served among all machines
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,
    /// Give the command a token that grows with each turn: LEASEHOLD_TOKEN
    #[arg(long, group = "kind")]
    pub(crate) fenced: bool,
    /// Acquire so many of the permits of a semaphore
    #[arg(long, value_name = "N", group = "kind", requires = "of", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) permits: Option<u32>,
    /// The number of permits. It counts only if the semaphore is new
    #[arg(long, value_name = "N", requires = "permits")]
    pub(crate) of: Option<u32>,
    /// The lease of the lock. Without this option it is 30 s, and leasehold renews it while the command runs. A lease that you set is
    /// not renewed: when it expires, the lock is lost
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) lease: Option<Duration>,
    /// End the command after this time, and then release the lock
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) max_hold: Option<Duration>,
    /// Keep the lock for at least this long, so that a short job does not run twice
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["shared", "permits"])]
    pub(crate) min_hold: Option<Duration>,
    /// Run the command once in this time, on all machines together: less than the time between two starts, for example 50m for
    /// an hourly job. If it runs elsewhere, wait, and run it if it fails there
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["min_hold", "shared", "exclusive", "permits", "lease"])]
    pub(crate) once_per: Option<Duration>,
    /// The exit code if the lock was lost while the command ran
    #[arg(long, value_name = "CODE", default_value_t = 73)]
    pub(crate) lost_exit_code: u8,
    /// The signal that the command and its descendants get when the lock is about to be lost, or is lost; or `ignore`
    #[arg(long, value_name = "SIGNAL", default_value = "TERM", value_parser = on_lost)]
    pub(crate) on_lost: OnLost,
    /// The signal that the command, but not its children, gets when somebody asks for the lock (`leasehold ask`); or `ignore`, then a
    /// message says so. The command decides what it does. Without this option, leasehold does not listen
    #[arg(long, value_name = "SIGNAL", value_parser = on_lost, conflicts_with = "permits")]
    pub(crate) on_asked: Option<OnLost>,
    /// The time from the signal of --on-lost to KILL. If the lease is about to expire, KILL comes before that
    #[arg(short, long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(crate) kill_after: Duration,
    /// Say what holds the lock while this waits, and how long the lock took
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Run this string with $SHELL -c
    #[arg(short = 'c', long = "command", value_name = "STRING", conflicts_with = "command")]
    shell: Option<OsString>,
    /// The name of the lock, the same on all machines
    pub(crate) name: String,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present = "shell", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// What happens to the command when the lock is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OnLost {
    Ignore,
    Send(Signal),
}

impl Run {
    /// The option that says which lock it is; empty for the usual one.
    pub(crate) fn kind(&self) -> &'static str {
        let kinds = [(self.shared, "-s"), (self.exclusive, "-x"), (self.fair, "--fair"), (self.fenced, "--fenced")];
        kinds.into_iter().find_map(|(is_it, kind)| is_it.then_some(kind)).unwrap_or("")
    }

    /// How long to wait. `None`: not at all.
    pub(crate) fn limit(&self) -> Option<Duration> {
        let limit = self.wait.unwrap_or(if self.nonblock { Duration::ZERO } else { Duration::MAX });
        (!limit.is_zero()).then_some(limit)
    }

    /// The exit code if the command is not run because of others.
    pub(crate) fn skipped(&self) -> u8 {
        if self.skip_ok { 0 } else { self.conflict_exit_code }
    }

    /// The file name of the program, as far as a server accepts it as the name of a connection.
    pub(crate) fn program(&self) -> String {
        let words = self.words();
        let name = Path::new(&words[0]).file_name().unwrap_or_default().to_string_lossy();
        let shown: String = name.chars().filter(char::is_ascii_graphic).collect();
        if shown.is_empty() { "command".to_owned() } else { shown }
    }

    /// The program and its arguments.
    pub(crate) fn words(&self) -> Vec<OsString> {
        match &self.shell {
            Some(line) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line.clone()]
            }
            None => self.command.clone(),
        }
    }
}

impl Servers {
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// For a command that only looks, and does not wait for a server that is away.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        self.connect_as("leasehold", SHORT_OUTAGE).await
    }

    /// `label`: the name of the connections if the user gives none. `outage`: how long requests are tried.
    pub(crate) async fn connect_as(&self, label: &str, outage: Duration) -> Result<Client, Failure> {
        let label = self.label.as_deref().unwrap_or(label);
        let mut builder = Client::builder().url(&self.url).prefix(&self.prefix).client_name(label).watchdog(RENEWED);
        if let Some(password) = self.password()? {
            let credentials = match user_in(&self.url) {
                Some(user) => Credentials::new(user, password),
                None => Credentials::password(password),
            };
            builder = builder.credentials(move || {
                let credentials = credentials.clone();
                async move { Ok::<_, Infallible>(credentials) }
            });
        }
        Ok(builder.outage_timeout(outage).connect().await?)
    }

    fn password(&self) -> Result<Option<String>, Failure> {
        let Some(file) = &self.password_file else {
            return Ok(std::env::var("LEASEHOLD_PASSWORD").ok().filter(|password| !password.is_empty()));
        };
        let text = fs::read_to_string(file)
            .map_err(|error| Failure::new(CONFIG, format_args!("cannot read {}: {error}", file.display())))?;
        let first = text.lines().next().filter(|line| !line.is_empty());
        let first = first.ok_or_else(|| Failure::new(CONFIG, format_args!("{} is empty", file.display())))?;
        Ok(Some(first.to_owned()))
    }
}

/// The arguments of this process, or the exit code after they were refused or help was asked for.
pub(crate) fn parse() -> Result<Arguments, u8> {
    let matches = Arguments::command().try_get_matches().map_err(|error| {
        let asked_for = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        error.print().map_or(exit::TEMPORARY, |()| if asked_for { 0 } else { USAGE })
    })?;
    let arguments = Arguments::from_arg_matches(&matches).map_err(|error| exit::with(USAGE, error))?;
    if matches.value_source("url") == Some(ValueSource::CommandLine) && has_password(&arguments.servers.url) {
        let where_to = "put the password into REDIS_URL, LEASEHOLD_PASSWORD or a file";
        return Err(exit::with(USAGE, format_args!("others on this machine can see arguments: {where_to}")));
    }
    if let Command::Run(run) = &arguments.command
        && run.permits > run.of
    {
        return Err(exit::with(USAGE, "--permits must not be more than --of: nobody could acquire them"));
    }
    Ok(arguments)
}

/// The user, perhaps with a password.
fn login(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest).split('?').next()?;
    rest.rsplit_once('@').map(|(login, _)| login)
}

fn user_in(url: &str) -> Option<String> {
    let user = login(url)?.split(':').next().filter(|user| !user.is_empty())?;
    Some(percent_decode_str(user).decode_utf8_lossy().into_owned())
}

fn has_password(url: &str) -> bool {
    login(url).is_some_and(|login| login.contains(':')) || url.contains("password=")
}

pub(crate) fn write_completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "leasehold", &mut script);
    Ok(io::stdout().write_all(&script).map(|()| 0)?)
}

/// One page for each command.
pub(crate) fn write_man_pages(folder: &Path) -> Result<u8, Failure> {
    let written = clap_mangen::generate_to(Arguments::command(), folder);
    written.map(|()| 0).map_err(|error| Failure::new(exit::TEMPORARY, format_args!("{}: {error}", folder.display())))
}

fn pause(text: &str) -> Result<Duration, String> {
    time(text).map(|time| time.max(watch::SHORTEST))
}

/// Seconds, with a fraction if you like, or a number with a unit.
fn time(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }?;
    if time > A_YEAR { Err("longer than a year".to_owned()) } else { Ok(time) }
}

fn label(text: &str) -> Result<String, String> {
    let is_good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_good { Ok(text.to_owned()) } else { Err("it must be ASCII, not empty, without spaces".to_owned()) }
}

fn on_lost(text: &str) -> Result<OnLost, String> {
    let name = text.to_ascii_uppercase();
    if name == "IGNORE" {
        return Ok(OnLost::Ignore);
    }
    let name = format!("SIG{}", name.trim_start_matches("SIG"));
    name.parse().map(OnLost::Send).map_err(|_| "no such signal".to_owned())
}
