//! The command line.

use std::{str::FromStr, time::Duration};

use crate::Outcome;

/// Of locks, where a crate has several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Lock,
    Read,
    Write,
    Fair,
    /// Permits of a semaphore: where a crate has two, with leases and without.
    Permits,
    Counter,
    Latch,
}

/// So many a semaphore has.
pub const PERMITS: u32 = 4;

impl Kind {
    /// How many may hold one name at once.
    pub(crate) fn room(self) -> u32 {
        match self {
            Kind::Permits | Kind::Counter => PERMITS,
            Kind::Read => u32::MAX,
            _ => 1,
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        match text {
            "lock" => Ok(Kind::Lock),
            "read" => Ok(Kind::Read),
            "write" => Ok(Kind::Write),
            "fair" => Ok(Kind::Fair),
            "permits" => Ok(Kind::Permits),
            "counter" => Ok(Kind::Counter),
            "latch" => Ok(Kind::Latch),
            other => Err(format!("no kind {other}")),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Args {
    pub section: String,
    /// With three servers: all of them, with commas.
    pub url: String,
    pub tasks: usize,
    pub seconds: Duration,
    /// Before it counts.
    pub warm_up: Duration,
    /// What the holder does with the lock.
    pub work: Duration,
    pub name: String,
    pub kind: Kind,
    /// Which of two processes holds the lock first.
    pub first: bool,
}

impl Args {
    pub(crate) fn parse() -> Outcome<Args> {
        let mut words = std::env::args().skip(1);
        let mut args = Args {
            section: words.next().ok_or("PROGRAM SECTION [--OPTION VALUE]…")?,
            url: String::new(),
            tasks: 1,
            seconds: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            work: Duration::ZERO,
            name: "peers".to_owned(),
            kind: Kind::Lock,
            first: false,
        };
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value"))?;
            args.set(&option, value)?;
        }
        Ok(args)
    }

    fn set(&mut self, option: &str, value: String) -> Outcome<()> {
        match option {
            "--url" => self.url = value,
            "--tasks" => self.tasks = value.parse()?,
            "--seconds" => self.seconds = Duration::try_from_secs_f64(value.parse()?)?,
            "--warm-up" => self.warm_up = Duration::try_from_secs_f64(value.parse()?)?,
            "--work-ms" => self.work = Duration::from_millis(value.parse()?),
            "--name" => self.name = value,
            "--kind" => self.kind = value.parse()?,
            "--first" => self.first = value.parse()?,
            other => return Err(format!("no option {other}").into()),
        }
        Ok(())
    }
}
