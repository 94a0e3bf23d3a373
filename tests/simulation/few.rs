//! Maps of few entries.

use std::collections::BTreeMap;

use crate::lock::Few;

/// Beside a map of the standard library.
#[test]
fn as_any_sorted_map() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut few, mut plain) = (Few::default(), BTreeMap::new());
    for step in 0..10_000 {
        let key = rng.u8(..4);
        if rng.bool() {
            few.insert(key, step);
            plain.insert(key, step);
        } else {
            assert_eq!(few.remove(key), plain.remove(&key));
        }
        let (from, other) = (rng.u8(..4), rng.u8(..4));
        assert!(few.iter().eq(plain.iter().map(|(key, value)| (*key, value))));
        assert!(few.range(from..).eq(plain.range(from..).map(|(key, value)| (*key, value))));
        assert!(few.values_mut().map(|value| *value).eq(plain.values().copied()));
        assert_eq!((few.len(), few.is_empty()), (plain.len(), plain.is_empty()));
        assert_eq!(few.get(other), plain.get(&other));
        assert_eq!(few.get_mut(other), plain.get_mut(&other));
        assert_eq!(few.first(), plain.first_key_value().map(|(key, value)| (*key, value)));
        assert_eq!(matches!(few, Few::Many(_)), plain.len() > 1);
    }
}
