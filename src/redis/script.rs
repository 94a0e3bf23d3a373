//! A script, what goes into a call of it and what comes back.

use std::{
    fmt::{self, Write},
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// A Lua script that serves one or many parts, see `frame.lua`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(super) source: &'static str,
    pub(super) sha: OnceLock<String>,
}

impl Script {
    pub(crate) const fn new(source: &'static str) -> Script {
        Script { source, sha: OnceLock::new() }
    }
}

/// One request: its keys, the first of which decides the connection, and its arguments after the nonce. Cheap to
/// clone, for it may be sent again.
///
/// All words stand in one string, one after the other: a request is many short words, and an allocation for each
/// would cost more than the rest of the request.
#[derive(Clone)]
pub(crate) struct Part(Arc<Words>);

#[derive(Default)]
struct Words {
    text: String,
    /// Where each word ends; keys come first.
    ends: Vec<u32>,
    keys: usize,
    recall: Option<Recall>,
}

/// Takes back what was not sent yet: once it is called, no request that carries it goes out any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recall(Arc<AtomicBool>);

impl Recall {
    pub(crate) fn call(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_called(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Collects the words of a [`Part`].
pub(crate) struct PartBuilder(Words);

impl Part {
    /// Begins with the first key.
    pub(crate) fn of(key: &str) -> PartBuilder {
        let words = Words { text: String::with_capacity(160), ends: Vec::with_capacity(8), keys: 0, recall: None };
        PartBuilder(words).key(format_args!("{key}"))
    }

    pub(super) fn key(&self) -> &str {
        &self.0.text[self.0.word(0)]
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.0.recall.as_ref().is_some_and(Recall::is_called)
    }

    /// All words, and where each is.
    pub(super) fn text(&self) -> &str {
        &self.0.text
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.0.keys).map(|n| self.0.word(n))
    }

    pub(super) fn args(&self) -> impl Iterator<Item = Range<usize>> + '_ {
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
        self.ends.push(u32::try_from(self.text.len()).expect("names are shorter than 1 KiB"));
    }
}

impl PartBuilder {
    /// One more key. All keys come before the first argument.
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

    pub(crate) fn recalled_by(mut self, recall: &Recall) -> PartBuilder {
        self.0.recall = Some(recall.clone());
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

/// The answer to one request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) code: Code,
    pub(crate) value: Word,
}

macro_rules! codes {
    ($($code:ident $word:literal,)*) => {
        /// The first word of an answer; each script's head lists its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Code {
            $($code,)*
        }

        impl Code {
            pub(super) fn of(word: &str) -> Option<Code> {
                match word {
                    $($word => Some(Code::$code),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    Busy "busy",
    Conflict "conflict",
    Deeper "deeper",
    Error "error",
    Free "free",
    Gone "gone",
    Granted "granted",
    Handed "handed",
    Held "held",
    Kept "kept",
    Lost "lost",
    Released "released",
}

/// A value inside a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    Int(i64),
    Text(String),
    List(Vec<Word>),
    Nothing,
}

impl Word {
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Word::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Word::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> &[Word] {
        match self {
            Word::List(words) => words,
            _ => &[],
        }
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
