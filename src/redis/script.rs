//! A script, what goes into a call of it and what comes back.

use std::sync::OnceLock;

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

/// One request: its keys, the first of which decides the connection, and its arguments after the nonce.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<String>,
}

impl Part {
    pub(crate) fn new(keys: Vec<String>, args: Vec<String>) -> Part {
        assert!(!keys.is_empty(), "a script works on a key");
        Part { keys, args }
    }

    pub(super) fn key(&self) -> &str {
        &self.keys[0]
    }
}

/// The answer to one request.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The word that the script's head lists.
    pub(crate) code: String,
    pub(crate) value: Word,
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
}
