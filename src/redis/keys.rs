//! The names of channels and of additional keys, byte for byte those of Redisson.

use std::fmt;

use crate::config::hash_tag;

/// The channel of a plain lock.
pub(crate) const LOCK_CHANNEL: ChannelName = ChannelName::Prefixed("redisson_lock__channel");

/// Where the holders of a lock are asked to release it.
pub(crate) const ASK_CHANNEL: ChannelName = ChannelName::Prefixed("leasehold:ask");

/// How the name of a channel is made from a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ChannelName {
    /// As those of other keys, see [`prefixed`].
    Prefixed(&'static str),
    /// The key is always in braces after this prefix. So a cluster does not keep a key with a brace and its channel in one slot.
    Wrapped(&'static str),
}

impl ChannelName {
    pub(crate) fn of<'a>(self, key: &'a str) -> impl fmt::Display + 'a {
        ChannelOf { name: self, key }
    }

    /// True if a cluster may keep the key and its channel in two slots.
    pub(crate) fn is_apart_from(self, key: &str) -> bool {
        matches!(self, ChannelName::Wrapped(_)) && key.contains('{')
    }
}

struct ChannelOf<'a> {
    name: ChannelName,
    key: &'a str,
}

impl fmt::Display for ChannelOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            ChannelName::Prefixed(prefix) => prefixed(prefix, self.key).fmt(f),
            ChannelName::Wrapped(prefix) => {
                [prefix, "{", self.key, "}"].into_iter().try_for_each(|word| f.write_str(word))
            }
        }
    }
}

/// A name made from a prefix and a key. Redisson puts braces around a key without a brace, so that a cluster keeps both in one slot. It
/// leaves other keys as they are.
pub(crate) fn prefixed<'a>(prefix: &'a str, key: &'a str) -> impl fmt::Display + 'a {
    Prefixed { prefix, key }
}

struct Prefixed<'a> {
    prefix: &'a str,
    key: &'a str,
}

impl fmt::Display for Prefixed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (begins, ends) = if self.key.contains('{') { (":", "") } else { (":{", "}") };
        // Each request has such names, and nested formats cost more than all else of it.
        [self.prefix, begins, self.key, ends].into_iter().try_for_each(|word| f.write_str(word))
    }
}

/// The number of slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: CRC-16/XMODEM of its hashed part, by the cluster specification of Redis.
pub(super) fn slot_of(key: &str) -> u16 {
    let hashed = hash_tag(key).unwrap_or(key);
    hashed.bytes().fold(0, |crc, byte| (crc << 8) ^ CRC[usize::from((crc >> 8) ^ u16::from(byte))]) % SLOTS
}

/// The remainder of each byte for the polynomial 0x1021.
const CRC: [u16; 256] = {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots() {
        // The check value of this CRC, and what CLUSTER KEYSLOT says.
        assert_eq!(slot_of("123456789"), 0x31c3);
        assert_eq!((slot_of("foo"), slot_of("{foo}bar"), slot_of("x{foo}{bar}")), (12_182, 12_182, 12_182));
        assert_eq!((slot_of("foo{}{bar}"), slot_of("")), (8_363, 0));
        for key in ["a", "{a}b", "ein Schloß"] {
            assert_eq!(slot_of(key), slot_of(&LOCK_CHANNEL.of(key).to_string()), "{key}");
        }
    }

    #[test]
    fn as_redisson_names_them() {
        assert_eq!(LOCK_CHANNEL.of("a").to_string(), "redisson_lock__channel:{a}");
        assert_eq!(LOCK_CHANNEL.of("{a}b").to_string(), "redisson_lock__channel:{a}b");
        let latch = ChannelName::Wrapped("redisson_countdownlatch__channel__");
        assert_eq!(latch.of("a").to_string(), "redisson_countdownlatch__channel__{a}");
        assert_eq!(latch.of("{a}b").to_string(), "redisson_countdownlatch__channel__{{a}b}");
        assert_eq!((slot_of("a"), latch.is_apart_from("a")), (slot_of(&latch.of("a").to_string()), false));
        assert!(latch.is_apart_from("{a}b") && !LOCK_CHANNEL.is_apart_from("{a}b"));
    }
}
