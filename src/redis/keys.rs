//! Names of channels and of keys beside the lock's own, byte for byte Redisson's.

use std::fmt;

/// What goes before the name of a plain lock's channel.
pub(crate) const LOCK_CHANNEL: &str = "redisson_lock__channel";

/// A name made from a prefix and a key. Redisson wraps keys without a brace, so that a cluster keeps both together,
/// and leaves the others as they are.
pub(crate) fn prefixed<'a>(prefix: &'a str, key: &'a str) -> impl fmt::Display + 'a {
    Prefixed { prefix, key }
}

struct Prefixed<'a> {
    prefix: &'a str,
    key: &'a str,
}

impl fmt::Display for Prefixed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prefixed { prefix, key } = self;
        if key.contains('{') { write!(f, "{prefix}:{key}") } else { write!(f, "{prefix}:{{{key}}}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_redisson_names_them() {
        assert_eq!(prefixed(LOCK_CHANNEL, "a").to_string(), "redisson_lock__channel:{a}");
        assert_eq!(prefixed(LOCK_CHANNEL, "{a}b").to_string(), "redisson_lock__channel:{a}b");
    }
}
