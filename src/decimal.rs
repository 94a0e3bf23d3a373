//! Decimal digits. `write!` takes five times as long, and a request has some twenty numbers.

use std::fmt;

/// Writes the digits at the end of `room`, and returns them.
pub(crate) fn digits(number: u64, room: &mut [u8; 20]) -> &[u8] {
    let (mut left, mut at) = (number, room.len());
    loop {
        at -= 1;
        room[at] = b'0' + u8::try_from(left % 10).expect("one digit");
        left /= 10;
        if left == 0 {
            return &room[at..];
        }
    }
}

/// A number that is written in this way.
pub(crate) struct Decimal(pub(crate) u64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(digits(self.0, &mut [0; 20])).expect("digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_write_does() {
        for number in [0, 1, 9, 10, 99, 100, 12_345, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            assert_eq!(Decimal(number).to_string(), number.to_string());
        }
    }
}
