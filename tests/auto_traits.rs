//! Every public type is `Send + Sync + 'static`, every public future `Send`. Compiling this file is the test.

use std::{fmt::Debug, time::Duration};

use leasehold::{
    Builder, Client, Error, Gauges, Guard, Held, Holder, Lock, Lost, Outcome, Owner, Stats, Times, Totals,
};

fn shared<T: Send + Sync + 'static>() {}
fn sendable<T: Send>(_: &T) {}
fn cloneable<T: Clone>() {}
fn printable<T: Debug>() {}

#[test]
fn types() {
    shared::<Builder>();
    shared::<Client>();
    shared::<Error>();
    shared::<Gauges>();
    shared::<Guard>();
    shared::<Held>();
    shared::<Holder>();
    shared::<Lock>();
    shared::<Lost>();
    shared::<Outcome<u32>>();
    shared::<Owner>();
    shared::<Stats>();
    shared::<Times>();
    shared::<Totals>();
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
async fn futures(client: Client, lock: Lock, guard: Guard, [a, b, c, d]: [Guard; 4], owner: Owner) {
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
    sendable(&a.protect(async {}));
    sendable(&b.protect_outcome(async {}));
    sendable(&c.try_protect(async { Ok::<_, Error>(()) }));
    sendable(&d.unlock());
    sendable(&lock.with(async || ()));
    sendable(&lock.try_with(async || Ok::<_, Error>(())));
    sendable(&lock.try_lock_until(std::time::Instant::now()));
    sendable(&client.ping());
    sendable(&client.clone().shutdown(Duration::ZERO));
    sendable(&owner.scope(async {}));
}
