//! Before Redis 7.2, PEXPIRE reads the clock twice: with 1 ms it deletes the key if the clock ticks in between. A script that writes the key
//! after that makes it again, without an expiry.

use crate::{
    kinds::family_scripts::{HEIR, ME},
    support::Server,
};

macro_rules! source {
    ($($file:literal),+) => {
        concat!(include_str!("../../../src/redis/frame.lua"), $(include_str!(concat!("../../../src/primitives/", $file))),+)
    };
}

const RUNS: u32 = 100_000;
/// In one call, so that the server can reply to others in between.
const AT_ONCE: u32 = 10_000;
const CHANNEL: &str = "redisson_lock__channel:{x}";
const WRITER: &str = "6b1c7d3e-0000-8000-8000-000000000001:3:write";
const LIVES: &str = "{x}:6b1c7d3e-0000-8000-8000-000000000001:1:rwlock_timeout:1";
const MARK: &str = "leasehold_rwlock_waits:{x}";
const PERMIT: &str = "41414141414141414141414141410001";

const HELD: &str = "redis.call('HSET', KEYS[1], ARGV[3], '1') redis.call('PEXPIRE', KEYS[1], '60000')";
const WRITES: &str =
    "redis.call('HSET', KEYS[1], 'mode', 'write', ARGV[3], '1') redis.call('PEXPIRE', KEYS[1], '60000')";
const READS: &str = "redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[3], '1') redis.call('PEXPIRE', KEYS[1], '60000')
    redis.call('SET', KEYS[2], '1', 'PX', '60000')";

/// Runs that script again and again, each time after `before`; true if a key is left that never expires.
fn leaves_a_key(before: &str, source: &str, keys: &[&str], args: &[&str]) -> bool {
    let looped = format!(
        "local function run() {source} end
        for _ = 1, {AT_ONCE} do
          {before}
          run()
          for _, key in ipairs(KEYS) do
            if redis.call('PTTL', key) == -1 then
              return 1
            end
            redis.call('DEL', key)
          end
        end
        return 0"
    );
    let (script, server) = (redis::Script::new(&looped), Server::start());
    let mut call = script.prepare_invoke();
    keys.iter().for_each(|key| _ = call.key(*key));
    call.arg(1).arg("nonce");
    args.iter().for_each(|arg| _ = call.arg(*arg));
    let mut raw = server.raw();
    (0..RUNS / AT_ONCE).any(|_| call.invoke::<bool>(&mut raw).expect("it runs"))
}

#[test]
fn leave_no_lock_that_never_expires() {
    const ACQUIRE: &str = source!("lock/holder.lua", "lock/acquire.lua");
    const HAND_OVER: &str = source!("lock/move.lua", "lock/hand_over.lua");
    const RELEASE: &str = source!("lock/rest.lua", "lock/release.lua");
    const FAIR: &str = source!("lock/rest.lua", "fair/queue.lua", "fair/release.lua");
    let line = ["x", "redisson_lock_queue:{x}", "redisson_lock_timeout:{x}"];
    assert!(!leaves_a_key("", ACQUIRE, &["x"], &[ME, "1", "1", "first"]), "an acquisition");
    assert!(!leaves_a_key(HELD, HAND_OVER, &["x"], &[ME, "1", "0", HEIR]), "a hand-over");
    assert!(!leaves_a_key(HELD, RELEASE, &["x"], &[ME, "1", "0", "", CHANNEL]), "a release");
    assert!(!leaves_a_key(HELD, FAIR, &line, &[ME, "1", "0", "", CHANNEL]), "a release of a fair lock");
}

#[test]
#[ignore = "nightly"]
fn leave_no_read_write_lock_that_never_expires() {
    const WRITE: &str = source!("rw/rwlock.lua", "rw/write_acquire.lua");
    const RELEASE: &str = source!("rw/rwlock.lua", "rw/write_release.lua");
    const READ: &str = source!("rw/rwlock.lua", "rw/read_acquire.lua");
    const RENEW: &str = source!("rw/rwlock.lua", "rw/read_renew.lua");
    const STOP_READING: &str = source!("rw/rwlock.lua", "rw/read_release.lua");
    let beside = |lease: &str| {
        format!("{WRITES} redis.call('HSET', KEYS[1], '{ME}', '1') redis.call('SET', KEYS[3], '1', 'PX', '{lease}')")
    };
    let (writes, both, reads) = (["x", MARK], ["x", MARK, LIVES], ["x", LIVES]);
    let released = |before: &str, rest| leaves_a_key(before, RELEASE, &both, &[WRITER, rest, "0", "", CHANNEL]);
    assert!(!leaves_a_key("", WRITE, &writes, &[WRITER, "1", "1", "first", CHANNEL]), "writing");
    assert!(!released(WRITES, "1"), "the release of a writer");
    assert!(!released(&beside("1"), "1"), "the release of a writer that reads");
    assert!(!released(&beside("1"), "0"), "a downgrade");
    let first = [ME, "1", "1", "first", CHANNEL, ""];
    assert!(!leaves_a_key("", READ, &[reads[0], reads[1], MARK], &first), "reading");
    assert!(!leaves_a_key(READS, RENEW, &reads, &[ME, "1", "1", "1", CHANNEL, "0"]), "a renewal");
    assert!(!leaves_a_key(READS, STOP_READING, &reads, &[ME, "1", "0", "", CHANNEL]), "the release of a reader");
}

#[test]
fn leave_no_permits_that_never_expire() {
    const ACQUIRE: &str = source!("semaphore/permits.lua", "semaphore/acquire.lua");
    let before = "redis.call('SET', KEYS[1], '5', 'PX', '1')";
    let keys = ["x", "{x}:timeout", "leasehold_semaphore_waits:{x}"];
    assert!(!leaves_a_key(before, ACQUIRE, &keys, &[PERMIT, "30000", "0", "first", CHANNEL, ""]));
}
