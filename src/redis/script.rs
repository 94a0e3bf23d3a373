//! A script, and the requests to it.

use std::{
    fmt::{self, Write},
    iter,
    ops::Range,
    sync::OnceLock,
};

use crate::decimal::digits;

/// A Lua script that runs for one or many parts, see `frame.lua`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) source: &'static str,
    evalsha: OnceLock<String>,
    pub(super) looks_at: LooksAt,
    is_tracked: bool,
}

/// The keys that a script reads. While a cluster moves a slot, the new server has some of the keys, but not yet the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LooksAt {
    /// Only keys that the request names. A server that lacks one of them does not run the script.
    ItsKeys,
    /// Also other keys of the slot. It would consider keys that have not arrived yet as deleted. So it waits until the slot has moved.
    OtherKeys,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Script {
        Script { source, evalsha: OnceLock::new(), looks_at: LooksAt::ItsKeys, is_tracked: false }
    }

    /// A script after which the server tells when others change its keys.
    pub(crate) const fn tracked(source: &'static str) -> Script {
        Script { source, evalsha: OnceLock::new(), looks_at: LooksAt::ItsKeys, is_tracked: true }
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// A script that also reads keys that it does not name.
    pub(crate) const fn of_other_keys(source: &'static str) -> Script {
        Script { source, evalsha: OnceLock::new(), looks_at: LooksAt::OtherKeys, is_tracked: false }
    }

    /// The first words of a call, as they are sent: the command, and the digest by which a server knows the script.
    pub(super) fn evalsha(&self) -> &[u8] {
        let evalsha = || format!("$7\r\nEVALSHA\r\n$40\r\n{}\r\n", sha1_smol::Sha1::from(self.source).digest());
        self.evalsha.get_or_init(evalsha).as_bytes()
    }
}

/// One request: its keys, and its arguments after the nonce. The first key decides the connection.
///
/// All words are in one place, as they are sent. A request has many short words, and one allocation for each would cost more than
/// the rest of the request.
#[derive(Clone)]
pub(crate) struct Part {
    words: Vec<u8>,
    /// The first key.
    key: Range<usize>,
    /// Where the arguments begin; keys come first.
    args_at: usize,
    keys: usize,
    args: usize,
}

/// Collects the words of a [`Part`].
pub(crate) struct PartBuilder(Part);

impl Part {
    /// Starts with the first key.
    pub(crate) fn of(key: &str) -> PartBuilder {
        let part = Part { words: Vec::with_capacity(224), key: 0..0, args_at: 0, keys: 0, args: 0 };
        let mut part = PartBuilder(part).key(format_args!("{key}"));
        let end = part.0.args_at - b"\r\n".len();
        part.0.key = end - key.len()..end;
        part
    }

    pub(crate) fn key(&self) -> &str {
        str::from_utf8(&self.words[self.key.clone()]).expect("it was written as text")
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        words(&self.words[..self.args_at])
    }

    pub(super) fn args(&self) -> impl Iterator<Item = &str> {
        words(&self.words[self.args_at..])
    }

    /// The number of keys, and these as they are sent.
    pub(super) fn sent_keys(&self) -> (usize, &[u8]) {
        (self.keys, &self.words[..self.args_at])
    }

    /// The number of arguments, and these as they are sent.
    pub(super) fn sent_args(&self) -> (usize, &[u8]) {
        (self.args, &self.words[self.args_at..])
    }
}

/// The words in `$4\r\nword\r\n..`.
/// The words that were sent.
pub(super) fn words(sent: &[u8]) -> impl Iterator<Item = &str> {
    let mut sent = str::from_utf8(sent).expect("it was written as text");
    iter::from_fn(move || {
        let (length, rest) = sent.strip_prefix('$')?.split_once("\r\n")?;
        let (word, rest) = rest.split_at(length.parse().ok()?);
        sent = rest.strip_prefix("\r\n")?;
        Some(word)
    })
}

impl PartBuilder {
    /// Adds a key. All keys come before the first argument.
    pub(crate) fn key(mut self, key: fmt::Arguments<'_>) -> PartBuilder {
        debug_assert_eq!(self.0.args, 0, "keys come first");
        self.push(key);
        self.0.keys += 1;
        self.0.args_at = self.0.words.len();
        self
    }

    pub(crate) fn arg(mut self, arg: impl fmt::Display) -> PartBuilder {
        self.push(arg);
        self.0.args += 1;
        self
    }

    fn push(&mut self, word: impl fmt::Display) {
        let words = &mut self.0.words;
        words.extend_from_slice(b"$00\r\n"); // most lengths have two digits at most
        let start = words.len();
        write!(Text(words), "{word}").expect("memory takes everything");
        let (at, mut room) = (start - 4, [0; 20]);
        match digits((words.len() - start) as u64, &mut room) {
            [one] => {
                words.remove(at);
                words[at] = *one;
            }
            [ten, one] => words[at..at + 2].copy_from_slice(&[*ten, *one]),
            more => _ = words.splice(at..at + 2, more.iter().copied()),
        }
        words.extend_from_slice(b"\r\n");
    }

    pub(crate) fn done(self) -> Part {
        self.0
    }
}

/// What is written ends up there.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys().chain(self.args())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_part() {
        let long = "x".repeat(1000);
        let part = Part::of("a").key(format_args!("ch:{{a}}")).arg("id").arg(30_000).arg("").arg(&long).done();
        assert_eq!(part.keys().collect::<Vec<_>>(), ["a", "ch:{a}"]);
        assert_eq!(part.args().collect::<Vec<_>>(), ["id", "30000", "", &long]);
        assert_eq!(part.sent_keys(), (2, &b"$1\r\na\r\n$6\r\nch:{a}\r\n"[..]));
        assert_eq!(part.sent_args().0, 4);
        assert_eq!(part.key(), "a");
    }
}
