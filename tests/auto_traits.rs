//! Every public type is `Send + Sync + 'static`, every public future `Send`. Compiling this file is the test.

use std::{fmt::Debug, time::Duration};

use leasehold::{Builder, Client, Error, Guard, Holder, Lock, Lost, Owner, Stats, Times};

fn shared<T: Send + Sync + 'static>() {}
fn sendable<T: Send>(_: &T) {}
fn cloneable<T: Clone>() {}
fn printable<T: Debug>() {}

#[test]
fn types() {
    shared::<Builder>();
    shared::<Client>();
    shared::<Error>();
    shared::<Guard>();
    shared::<Holder>();
    shared::<Lock>();
    shared::<Lost>();
    shared::<Owner>();
    shared::<Stats>();
    shared::<Times>();
    cloneable::<Client>();
    cloneable::<Lock>();
    cloneable::<Owner>();
    printable::<Builder>();
    printable::<Client>();
    printable::<Guard>();
    printable::<Lock>();
    printable::<Owner>();
}

#[allow(dead_code)] // never run: the types of the futures are what is checked
async fn futures(client: Client, lock: Lock, guard: Guard, another: Guard, third: Guard, owner: Owner) {
    sendable(&Client::connect("redis://h"));
    sendable(&Client::builder().connect());
    sendable(&client.clone().close());
    sendable(&lock.lock());
    sendable(&lock.try_lock());
    sendable(&lock.try_lock_for(Duration::ZERO));
    sendable(&lock.is_locked());
    sendable(&lock.inspect());
    sendable(&lock.force_unlock());
    sendable(&guard.lost());
    sendable(&guard.check());
    sendable(&guard.extend(Duration::ZERO));
    sendable(&another.protect(async {}));
    sendable(&third.unlock());
    sendable(&owner.scope(async {}));
}
