//! A script, and the requests to it.

use std::{
    fmt::{self, Write},
    ops::Range,
    sync::{Arc, OnceLock},
};

use smallvec::SmallVec;

/// A Lua script that runs for one or many parts, see `frame.lua`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) source: &'static str,
    sha: OnceLock<String>,
    pub(super) looks_at: LooksAt,
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
        Script { source, sha: OnceLock::new(), looks_at: LooksAt::ItsKeys }
    }

    /// A script that also reads keys that it does not name.
    pub(crate) const fn of_other_keys(source: &'static str) -> Script {
        Script { source, sha: OnceLock::new(), looks_at: LooksAt::OtherKeys }
    }

    /// The digest by which a server knows it.
    pub(super) fn sha(&self) -> &str {
        self.sha.get_or_init(|| sha1_smol::Sha1::from(self.source).digest().to_string())
    }
}

/// One request: its keys, and its arguments after the nonce. The first key decides the connection. Cheap to clone, because it may be
/// sent again.
///
/// All words are in one string, one after the other. A request has many short words, and one allocation for each would cost more than
/// the rest of the request.
#[derive(Clone)]
pub(crate) struct Part(Arc<Words>);

struct Words {
    text: String,
    /// The end of each word; keys come first.
    ends: SmallVec<[u32; 8]>,
    keys: usize,
}

/// Collects the words of a [`Part`].
pub(crate) struct PartBuilder(Words);

impl Part {
    /// Starts with the first key.
    pub(crate) fn of(key: &str) -> PartBuilder {
        let mut words = Words { text: String::with_capacity(160), ends: SmallVec::new(), keys: 1 };
        words.text.push_str(key);
        words.end();
        PartBuilder(words)
    }

    pub(crate) fn key(&self) -> &str {
        &self.0.text[self.0.word(0)]
    }

    /// All words, one after the other.
    pub(super) fn text(&self) -> &str {
        &self.0.text
    }

    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        (0..self.0.keys).map(|n| self.0.word(n))
    }

    pub(super) fn args(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        (self.0.keys..self.0.ends.len()).map(|n| self.0.word(n))
    }
}

impl Words {
    fn word(&self, n: usize) -> Range<usize> {
        let start = if n == 0 { 0 } else { self.ends[n - 1] };
        start as usize..self.ends[n] as usize
    }

    fn push(&mut self, word: fmt::Arguments<'_>) {
        self.text.write_fmt(word).expect("a String takes everything");
        self.end();
    }

    fn end(&mut self) {
        self.ends.push(u32::try_from(self.text.len()).expect("names are shorter than 1 KiB"));
    }
}

impl PartBuilder {
    /// Adds a key. All keys come before the first argument.
    pub(crate) fn key(mut self, key: fmt::Arguments<'_>) -> PartBuilder {
        debug_assert_eq!(self.0.keys, self.0.ends.len(), "keys come first");
        self.0.push(key);
        self.0.keys += 1;
        self
    }

    pub(crate) fn arg(mut self, arg: impl fmt::Display) -> PartBuilder {
        self.0.push(format_args!("{arg}"));
        self
    }

    pub(crate) fn done(self) -> Part {
        Part(Arc::new(self.0))
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys().chain(self.args()).map(|word| &self.text()[word])).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_part() {
        let part = Part::of("a").key(format_args!("ch:{{a}}")).arg("id").arg(30_000).arg("").done();
        let words = |ranges: Vec<Range<usize>>| -> Vec<String> {
            ranges.into_iter().map(|range| part.text()[range].to_owned()).collect()
        };
        assert_eq!(words(part.keys().collect()), ["a", "ch:{a}"]);
        assert_eq!(words(part.args().collect()), ["id", "30000", ""]);
        assert_eq!(part.key(), "a");
    }
}
