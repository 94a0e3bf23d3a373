//! The exit codes of the command itself, after sysexits.h. A command that was run has its own.

use std::{
    error::Error as _,
    fmt,
    io::{self, ErrorKind, Write},
    iter,
};

use leasehold::Error;
use nix::sys::signal::Signal;

pub(crate) const USAGE: u8 = 64;
/// The server cannot be reached, or does not reply.
pub(crate) const UNAVAILABLE: u8 = 69;
/// Another error of the server, which may not come back.
pub(crate) const TEMPORARY: u8 = 75;
pub(crate) const DENIED: u8 = 77;
pub(crate) const CONFIG: u8 = 78;
/// The command cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit code after this signal.
pub(crate) fn of_signal(signal: Signal) -> u8 {
    128 + signal as u8
}

/// Why the command did not do what it was called for.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl fmt::Display) -> Failure {
        Failure { code, message: message.to_string() }
    }

    /// Writes the message to standard error. Returns the exit code.
    pub(crate) fn report(self) -> u8 {
        if self.message.is_empty() { self.code } else { with(self.code, self.message) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match &error {
            Error::InvalidName { .. } | Error::Upgrade { .. } => USAGE,
            Error::InvalidConfig { .. } | Error::Conflict { .. } => CONFIG,
            Error::Unavailable { .. } => UNAVAILABLE,
            Error::Denied { .. } => DENIED,
            _ => TEMPORARY,
        };
        let causes = iter::successors(error.source(), |&cause| cause.source()).map(|cause| format!(": {cause}"));
        Failure::new(code, format_args!("{error}{}", causes.collect::<String>()))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::new(of_signal(Signal::SIGPIPE), ""),
            _ => Failure::new(TEMPORARY, error),
        }
    }
}

/// Writes a message to standard error.
pub(crate) fn say(message: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "leasehold: {message}"); // its reader may have gone
}

/// Writes a message to standard error. Returns the exit code.
pub(crate) fn with(code: u8, message: impl fmt::Display) -> u8 {
    say(message);
    code
}
