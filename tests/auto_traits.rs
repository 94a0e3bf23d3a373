//! Every public type is `Send + Sync + 'static`, every public future `Send`. Compiling this file is the test; `scripts/lints`
//! compares the list of types with the one that rustdoc prints.

use std::{fmt::Debug, future::IntoFuture, time::Duration};

use leasehold::{
    About, AskOutcome, Blocked, Builder, CancellationToken, Client, ClientRecord, Credentials, Error, FairLock,
    FencedGuard, FencedLock, Gauges, Guard, Held, Holder, Latch, Leader, Lock, Lost, MultiGuard, MultiLock, OnDeadlock,
    Once, Outcome, Owner, Permits, PlainSemaphore, PubSub, Quorum, QuorumGuard, QuorumLock, ReadGuard, ReleaseRequest,
    Result, RwLock, RwState, Semaphore, Server, Stats, Times, Totals, Uuid, Value, Wait, WriteGuard,
};

fn shared<T: Send + Sync + 'static>() {}
fn sendable<T: Send>(_: &T) {}
fn spawnable<T: Send + 'static>(_: &T) {}
fn cloneable<T: Clone>() {}
fn printable<T: Debug>() {}

#[cfg(feature = "blocking")]
fn for_threads() {
    use leasehold::blocking;

    shared::<blocking::Client>();
    shared::<blocking::FairLock>();
    shared::<blocking::FencedGuard>();
    shared::<blocking::FencedLock>();
    shared::<blocking::Guard>();
    shared::<blocking::Latch>();
    shared::<blocking::Lock>();
    shared::<blocking::MultiGuard>();
    shared::<blocking::MultiLock>();
    shared::<blocking::Quorum>();
    shared::<blocking::QuorumGuard>();
    shared::<blocking::Permits>();
    shared::<blocking::QuorumLock>();
    shared::<blocking::ReadGuard>();
    shared::<blocking::RwLock>();
    shared::<blocking::PlainSemaphore>();
    shared::<blocking::Semaphore>();
    shared::<blocking::WriteGuard>();
    cloneable::<blocking::Client>();
    cloneable::<blocking::Lock>();
}

#[test]
fn types() {
    shared::<AskOutcome>();
    shared::<Blocked>();
    shared::<Builder>();
    shared::<CancellationToken>();
    shared::<Client>();
    shared::<Credentials>();
    shared::<About>();
    shared::<Error>();
    shared::<FairLock>();
    shared::<FencedGuard>();
    shared::<FencedLock>();
    shared::<Gauges>();
    shared::<Guard>();
    shared::<Held>();
    shared::<Holder>();
    shared::<Latch>();
    shared::<Leader>();
    shared::<Lock>();
    shared::<Lost>();
    #[cfg(feature = "test-util")]
    shared::<leasehold::MemoryServer>();
    shared::<MultiGuard>();
    shared::<MultiLock>();
    shared::<OnDeadlock>();
    shared::<Once<u32>>();
    shared::<Outcome<u32>>();
    shared::<Owner>();
    shared::<Permits>();
    shared::<PubSub>();
    shared::<Quorum>();
    shared::<QuorumGuard>();
    shared::<QuorumLock>();
    shared::<ReadGuard>();
    shared::<Result<u32>>();
    shared::<ReleaseRequest>();
    shared::<RwLock>();
    shared::<RwState>();
    shared::<ClientRecord>();
    shared::<Server>();
    shared::<Value>();
    shared::<PlainSemaphore>();
    shared::<Semaphore>();
    shared::<Stats>();
    shared::<Times>();
    #[cfg(feature = "tls")]
    shared::<leasehold::Tls>();
    shared::<Totals>();
    shared::<Uuid>();
    shared::<Wait>();
    shared::<WriteGuard>();
    #[cfg(feature = "blocking")]
    for_threads();
    cloneable::<Client>();
    cloneable::<FairLock>();
    cloneable::<FencedLock>();
    cloneable::<Latch>();
    cloneable::<Leader>();
    cloneable::<Lock>();
    cloneable::<MultiLock>();
    cloneable::<Quorum>();
    cloneable::<QuorumLock>();
    cloneable::<Owner>();
    cloneable::<RwLock>();
    cloneable::<PlainSemaphore>();
    cloneable::<Semaphore>();
    printable::<Builder>();
    printable::<Client>();
    printable::<FairLock>();
    printable::<FencedGuard>();
    printable::<FencedLock>();
    printable::<Guard>();
    printable::<Latch>();
    printable::<Lock>();
    printable::<Owner>();
    printable::<Permits>();
    printable::<ReadGuard>();
    printable::<RwLock>();
    printable::<PlainSemaphore>();
    printable::<Semaphore>();
    printable::<WriteGuard>();
}

/// What every lock that one owner holds at a time offers; `$with` is its work.
macro_rules! exclusive {
    ($lock:ident, $with:expr, $try_with:expr) => {
        sendable(&$lock.lock());
        sendable(&$lock.try_lock());
        sendable(&$lock.try_lock_for(Duration::ZERO));
        sendable(&$lock.try_lock_until(std::time::Instant::now()));
        sendable(&$lock.is_locked());
        sendable(&$lock.inspect());
        sendable(&$lock.force_unlock());
        sendable(&$lock.with($with));
        sendable(&$lock.try_with($try_with));
        spawnable(&$lock.clone().lease(Duration::ZERO).max_hold(Duration::ZERO).min_hold(Duration::ZERO).into_future());
        spawnable(&$lock.clone().owner(&Owner::new()).non_reentrant().into_future());
    };
}

/// What every guard offers.
macro_rules! guards {
    ($($guard:expr),*) => {$(
        sendable(&$guard.lost());
        sendable(&$guard.check());
        sendable(&$guard.extend(Duration::ZERO));
        sendable(&$guard.unlock());
    )*};
}

#[allow(dead_code)] // never run: the types of the futures are what is checked
async fn futures(client: Client, [a, b, c]: [Guard; 3], owner: Owner, lock: Lock, fair: FairLock, fenced: FencedLock) {
    sendable(&Client::connect("redis://h"));
    sendable(&Client::builder().connect());
    sendable(&client.clone().close());
    sendable(&client.clone().shutdown(Duration::ZERO));
    sendable(&client.ping());
    sendable(&owner.scope(async {}));
    exclusive!(lock, async || (), async || Ok::<_, Error>(()));
    exclusive!(fair, async || (), async || Ok::<_, Error>(()));
    exclusive!(fenced, async |_| (), async |_| Ok::<_, Error>(()));
    sendable(&fair.waiters());
    sendable(&a.protect(async {}));
    sendable(&b.protect_outcome(async {}));
    sendable(&c.try_protect(async { Ok::<_, Error>(()) }));
}

#[allow(dead_code)] // never run, as above
async fn latches(latch: Latch) {
    sendable(&latch.try_set_count(1));
    sendable(&latch.count_down());
    sendable(&latch.count());
    sendable(&latch.wait());
    sendable(&latch.wait_for(Duration::ZERO));
    sendable(&latch.delete());
}

#[allow(dead_code)] // never run, as above
async fn plain_semaphores(semaphore: PlainSemaphore) {
    sendable(&semaphore.try_set_permits(1));
    sendable(&semaphore.add_permits(1));
    sendable(&semaphore.available());
    sendable(&semaphore.drain());
    sendable(&semaphore.acquire(1));
    sendable(&semaphore.try_acquire(1));
    sendable(&semaphore.try_acquire_for(1, Duration::ZERO));
    sendable(&semaphore.release(1));
    sendable(&semaphore.with(1, async || ()));
}

#[allow(dead_code)] // never run, as above
async fn semaphores(semaphore: Semaphore, [one, two, three]: [Permits; 3]) {
    sendable(&semaphore.try_set_permits(1));
    sendable(&semaphore.set_permits(1));
    sendable(&semaphore.add_permits(1));
    sendable(&semaphore.available());
    sendable(&semaphore.inspect());
    sendable(&semaphore.acquire(1));
    sendable(&semaphore.try_acquire(1));
    sendable(&semaphore.try_acquire_for(1, Duration::ZERO));
    sendable(&semaphore.with(1, async || ()));
    sendable(&semaphore.clone().lease(Duration::ZERO).max_hold(Duration::ZERO).acquire(1));
    sendable(&one.lost());
    sendable(&one.check());
    sendable(&one.release());
    sendable(&two.protect(async {}));
    sendable(&three.protect_outcome(async {}));
}

#[allow(dead_code)] // never run, as above
async fn guards(guard: Guard, read: ReadGuard, [write, other]: [WriteGuard; 2], fenced: FencedGuard, rw: RwLock) {
    sendable(&fenced.write_if_held("key", "value"));
    guards!(guard, read, write, fenced);
    sendable(&other.downgrade());
    sendable(&rw.read());
    sendable(&rw.try_read());
    sendable(&rw.try_read_for(Duration::ZERO));
    sendable(&rw.try_read_until(std::time::Instant::now()));
    sendable(&rw.with_read(async || ()));
    sendable(&rw.try_with_read(async || Ok::<_, Error>(())));
    sendable(&rw.write());
    sendable(&rw.try_write());
    sendable(&rw.try_write_for(Duration::ZERO));
    sendable(&rw.try_write_until(std::time::Instant::now()));
    sendable(&rw.with_write(async || ()));
    sendable(&rw.try_with_write(async || Ok::<_, Error>(())));
    sendable(&rw.is_locked());
    sendable(&rw.inspect());
    sendable(&rw.force_unlock());
}

#[allow(dead_code)] // never run, as above
async fn combined(multi: MultiLock, [one, two]: [MultiGuard; 2], quorum: QuorumLock, [held, other]: [QuorumGuard; 2]) {
    macro_rules! several {
        ($lock:ident) => {
            sendable(&$lock.lock());
            sendable(&$lock.try_lock());
            sendable(&$lock.try_lock_for(Duration::ZERO));
            sendable(&$lock.try_lock_until(std::time::Instant::now()));
            sendable(&$lock.with(async || ()));
        };
    }
    several!(multi);
    several!(quorum);
    sendable(&quorum.force_unlock());
    sendable(&one.lost());
    sendable(&one.check());
    sendable(&one.unlock());
    sendable(&two.protect(async {}));
    sendable(&held.lost());
    sendable(&held.check());
    sendable(&held.unlock());
    sendable(&other.protect(async {}));
}

#[allow(dead_code)] // never run, as above
async fn leaders(leader: Leader, lock: Lock) {
    spawnable(&leader.run(async |_: &Guard| ()));
    sendable(&lock.run_once_per(Duration::ZERO, async || ()));
}
