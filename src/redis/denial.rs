//! The permission that a user lacks, as an ACL rule: `+hget`, `~orders:7`, `&redisson_lock__channel:{orders:7}`. The error messages
//! differ between server versions, and some do not name the command, key or channel.

use std::fmt;

use super::script::{Part, Script};
use crate::error::Source;

/// A refusal because of a missing permission.
#[derive(Debug, Clone)]
pub(crate) struct Denial {
    pub(crate) right: Right,
    /// The error message of the server.
    pub(crate) source: Source,
}

/// The missing permission. The lists are empty if the server does not say which command, key or channel it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Right {
    /// The password is missing, or the server did not accept it.
    Login(&'static str),
    Commands(Vec<String>),
    Keys(Vec<String>),
    Channels(Vec<String>),
}

const NO_PASSWORD: &str = "it requires a user and a password";
const NOT_KNOWN: &str = "it does not accept this user and password";
/// The messages inside a script, where a server says NOPERM outside: of Redis up to 7.0, and of Redis from 7.2 and Valkey.
const INSIDE: [&str; 2] = ["The user executing the script can't", "ACL failure in script: "];
/// The index of the argument that is the channel, in all scripts that publish.
const CHANNEL: usize = 4;

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, names, what) = match self {
            Right::Login(why) => return f.write_str(why),
            Right::Commands(names) => ('+', names, "command"),
            Right::Keys(names) => ('~', names, "key"),
            Right::Channels(names) => ('&', names, "channel"),
        };
        if names.is_empty() {
            return write!(f, "this user lacks the permission for a {what}");
        }
        f.write_str("this user lacks")?;
        names.iter().try_for_each(|name| write!(f, " {sign}{name}"))
    }
}

impl Right {
    /// Reads the error message of the server; `None` if it is about something else.
    pub(super) fn read(words: &str) -> Option<Right> {
        if words.starts_with("NOAUTH") {
            return Some(Right::Login(NO_PASSWORD));
        }
        if words.starts_with("WRONGPASS") {
            return Some(Right::Login(NOT_KNOWN));
        }
        let is_denied = words.starts_with("NOPERM") || INSIDE.iter().any(|inside| words.contains(inside));
        is_denied.then(|| Right::of_which(words))
    }

    pub(super) fn is_command(&self, command: &str) -> bool {
        matches!(self, Right::Commands(names) if names.len() == 1 && names[0] == command)
    }

    fn of_which(words: &str) -> Right {
        match quoted(words) {
            Some(command) => Right::Commands(vec![command.to_owned()]),
            None if words.contains(" channel") => Right::Channels(Vec::new()),
            None if words.contains(" key") => Right::Keys(Vec::new()),
            None => Right::Commands(Vec::new()),
        }
    }
}

impl Denial {
    /// Adds the names that the server has left out, from the request.
    pub(super) fn of(self, script: &Script, part: &Part) -> Denial {
        let said = self.source.to_string();
        let right = match self.right {
            Right::Commands(names) if names.is_empty() => Right::Commands(commands(script, part, &said)),
            // The server checks the keys of a call before the script runs. Inside the script it is a key that the script has made.
            Right::Keys(names) if names.is_empty() && INSIDE.iter().any(|inside| said.contains(inside)) => {
                Right::Keys(vec![format!("*{}*", part.key())])
            }
            Right::Keys(names) if names.is_empty() => Right::Keys(part.keys().map(str::to_owned).collect()),
            Right::Channels(names) if names.is_empty() => {
                Right::Channels(part.args().nth(CHANNEL).map(str::to_owned).into_iter().collect())
            }
            said => said,
        };
        Denial { right, ..self }
    }
}

/// The command in a message such as `no permissions to run the 'hget' command`.
fn quoted(words: &str) -> Option<&str> {
    let (_, after) = words.split_once(" run the '")?;
    Some(after.split_once('\'')?.0)
}

/// Redis 6 names the line of the script. Redis 7.0 names nothing, so `frame.lua` adds all commands that this user may not call.
fn commands(script: &Script, part: &Part, words: &str) -> Vec<String> {
    let found = words.split(' ').filter_map(|word| word.strip_prefix('+'));
    let is_called = |command: &str| {
        let name = command.to_uppercase();
        script.source.contains(&format!("call('{name}'")) || part.args().any(|arg| arg == name)
    };
    let found = found.filter(|command| is_called(command)).map(str::to_owned);
    let line = line_in(words).and_then(|line| script.source.lines().nth(line - 1)).unwrap_or_default();
    found.chain(calls_in(line)).collect()
}

/// The line in a message such as `@user_script: 31: The user ..`.
fn line_in(words: &str) -> Option<usize> {
    let (_, after) = words.split_once("@user_script:")?;
    after.split_once(':')?.0.trim().parse().ok().filter(|line| *line > 0)
}

/// The commands that a line of a script calls. A call without a literal command is the one that publishes.
fn calls_in(line: &str) -> impl Iterator<Item = String> + '_ {
    line.split("call(").skip(1).map(|call| {
        let command = call.strip_prefix('\'').and_then(|call| call.split_once('\''));
        command.map_or("publish".to_owned(), |(command, _)| command.to_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The reason, with all names that can be found.
    fn said(words: &str) -> String {
        let script = Script::new(
            "first\n  redis.pcall('HGET', lock, id)\nredis.call(ARGV[a + 5], ARGV[a + 6])\nredis.call('DEL', k) or redis.call('SET', k)",
        );
        let part = Part::of("k").arg("id").arg(0).arg(0).arg("SPUBLISH").arg("ch").done();
        let right = Right::read(words).expect(words);
        let source: Source = Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(words));
        Denial { right, source }.of(&script, &part).right.to_string()
    }

    #[test]
    fn outside_of_scripts() {
        for words in [
            "NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", // 6.0, 6.2
            "NOPERM this user has no permissions to run the 'evalsha' command",                   // 7.0
            "NOPERM User u has no permissions to run the 'evalsha' command",
        ]
        // since
        {
            assert_eq!(said(words), "this user lacks +evalsha");
        }
        for words in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
        ] {
            assert_eq!(said(words), "this user lacks ~k");
        }
        for words in [
            "NOPERM this user has no permissions to access one of the channels used as arguments",
            "NOPERM No permissions to access a channel",
        ] {
            assert_eq!(said(words), "this user lacks &ch");
        }
        assert_eq!(
            said("NOPERM User u has no permissions to run the 'script|load' command"),
            "this user lacks +script|load"
        );
        assert_eq!(said("NOAUTH Authentication required."), NO_PASSWORD);
        assert_eq!(said("WRONGPASS invalid username-password pair or user is disabled."), NOT_KNOWN);
    }

    #[test]
    fn inside_of_scripts() {
        let old = "The user executing the script can't run this command or subcommand";
        assert_eq!(said(&format!("@user_script: 2: {old}")), "this user lacks +hget");
        assert_eq!(said(&format!("@user_script: 3: {old}")), "this user lacks +publish");
        assert_eq!(said(&format!("@user_script: 4: {old}")), "this user lacks +del +set");
        assert_eq!(said(&format!("@user_script: 40: {old}")), "this user lacks the permission for a command");
        assert_eq!(said(&format!("ERR {old} +hget +hlen +publish +spublish")), "this user lacks +hget +spublish");
        assert_eq!(said(&format!("ERR {old}")), "this user lacks the permission for a command");
        let new = "ERR ACL failure in script: User u has no permissions to run the 'spublish' command";
        assert_eq!(said(new), "this user lacks +spublish");
        for words in [
            "@user_script: 1: The user executing the script can't publish to the channel mentioned in the command",
            "ERR ACL failure in script: No permissions to access a channel",
        ] {
            assert_eq!(said(words), "this user lacks &ch");
        }
        let undeclared = "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments";
        assert_eq!(said(undeclared), "this user lacks ~*k*");
    }

    #[test]
    fn everything_else() {
        for words in ["OOM command not allowed", "ERR unknown command 'hget'", "READONLY You can't write"] {
            assert_eq!(Right::read(words), None, "{words}");
        }
    }
}
