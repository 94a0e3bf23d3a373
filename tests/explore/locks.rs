//! In the place of `std::sync::Mutex`: the scheduler decides who locks it next, and the order in which mutexes are locked is checked. So a
//! pair of mutexes that two functions lock in different orders is found in any execution that runs both, not only in one that deadlocks.

use std::{
    any::type_name,
    cell::RefCell,
    collections::BTreeSet,
    fmt::{self, Debug, Formatter},
    ops::{Deref, DerefMut},
    sync::{LockResult, PoisonError},
};

use super::world;

/// All mutexes of one type of content. There is one rule for them.
type Class = &'static str;

thread_local! {
    /// Which class was locked while which other one was, in all executions so far.
    static ORDER: RefCell<BTreeSet<(Class, Class)>> = RefCell::default();
}

#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T> {
    guard: shuttle::sync::MutexGuard<'a, T>,
    _locked: Locked,
}

impl<T> Mutex<T> {
    pub(crate) fn new(content: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(content))
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let _locked = Locked::new(type_name::<T>());
        match self.0.lock() {
            Ok(guard) => Ok(MutexGuard { guard, _locked }),
            Err(poisoned) => Err(PoisonError::new(MutexGuard { guard: poisoned.into_inner(), _locked })),
        }
    }
}

impl<T: Debug> Debug for Mutex<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// A mutex of this class is locked, or about to be, by the task that made this.
struct Locked(Class);

impl Locked {
    fn new(class: Class) -> Locked {
        let task = shuttle::current::get_current_task();
        let before = world::with(|world| {
            let locked = world.locked.entry(task).or_default();
            locked.push(class);
            locked[..locked.len() - 1].to_vec()
        });
        before.into_iter().for_each(|before| check(before, class));
        Locked(class)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let task = shuttle::current::get_current_task();
        world::with(|world| {
            let locked = world.locked.entry(task).or_default();
            if let Some(at) = locked.iter().rposition(|class| *class == self.0) {
                locked.remove(at);
            }
        });
    }
}

fn check(before: Class, after: Class) {
    let is_new = ORDER.with_borrow_mut(|order| order.insert((before, after)));
    if is_new && ORDER.with_borrow(|order| leads_to(order, after, before)) {
        world::violated(&format!("lock order: {after} while {before} is locked, and elsewhere the other way round"));
    }
}

/// True if `last` was locked while `first` was, perhaps with others in between; also if they are the same class.
fn leads_to(order: &BTreeSet<(Class, Class)>, first: Class, last: Class) -> bool {
    let (mut reached, mut next) = (BTreeSet::new(), vec![first]);
    while let Some(class) = next.pop() {
        if class == last {
            return true;
        }
        if reached.insert(class) {
            next.extend(order.iter().filter(|(before, _)| *before == class).map(|(_, after)| after));
        }
    }
    false
}
