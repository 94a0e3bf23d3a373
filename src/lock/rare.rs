//! Facts that most locks do not have.

use std::{
    hash::{Hash, Hasher},
    ops::{Deref, DerefMut},
};

/// A value that needs no memory until it is first changed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rare<T>(Option<Box<T>>);

/// What such a value is until then.
pub(crate) trait Usual: Default + 'static {
    const USUAL: &'static Self;
}

impl<T> Rare<T> {
    /// The value, if it was changed. This does not take memory, as changing it by `DerefMut` does.
    pub(crate) fn changed(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    /// It is as it was at first.
    pub(crate) fn forget_if(&mut self, is_usual: impl FnOnce(&T) -> bool) {
        self.0.take_if(|value| is_usual(value));
    }
}

impl<T: Usual> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::USUAL)
    }
}

impl<T: Usual> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

/// Whether it was changed makes no difference.
impl<T: Usual + PartialEq> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Usual + Eq> Eq for Rare<T> {}

impl<T: Usual + Hash> Hash for Rare<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}
