//! Names of channels, byte for byte Redisson's.

/// Where the release of a lock is published. Redisson wraps names without a brace, so that a cluster keeps lock and
/// channel together, and leaves the others as they are.
pub(crate) fn lock_channel(key: &str) -> String {
    prefixed("redisson_lock__channel", key)
}

fn prefixed(prefix: &str, key: &str) -> String {
    if key.contains('{') { format!("{prefix}:{key}") } else { format!("{prefix}:{{{key}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_redisson_names_them() {
        assert_eq!(lock_channel("a"), "redisson_lock__channel:{a}");
        assert_eq!(lock_channel("{a}b"), "redisson_lock__channel:{a}b");
    }
}
