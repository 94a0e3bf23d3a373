//! The commands that the scripts call: the same replies as from a real server.

use fastrand::Rng;
use leasehold::MemoryServer;
use redis::Value;

use crate::support::Server;

const KEYS: [&str; 3] = ["one", "two", "three"];
const WORDS: [&str; 6] = ["a", "b", "c", "1", "7", "-2"];

/// A call with words that fit, on a key that may be of another type.
fn some_call(random: &mut Rng) -> Vec<String> {
    let mut pick = |from: &[&str]| from[random.usize(..from.len())].to_owned();
    let (key, other) = (pick(&KEYS), pick(&KEYS));
    let (word, value) = (pick(&WORDS), pick(&WORDS));
    let (first, last) = (pick(&["0", "1", "-1", "-3", "5"]), pick(&["0", "2", "-1", "-2", "9"]));
    let time = pick(&["90000", "50000", "0", "-5"]);
    let call: &[&str] = match random.u8(..35) {
        0 => &["EXISTS", &key, &other],
        1 => &["DEL", &key, &other],
        2 | 3 => &["PEXPIRE", &key, &time],
        4 => &["GET", &key],
        5 => &["SET", &key, &value],
        6 => &["SET", &key, &value, "PX", "80000"],
        7 => &["INCR", &key],
        8 => &["HGET", &key, &word],
        9 => &["HEXISTS", &key, &word],
        10 => &["HLEN", &key],
        11 => &["HKEYS", &key],
        12 => &["HGETALL", &key],
        13 | 14 => &["HSET", &key, &word, &value],
        15 | 16 => &["HINCRBY", &key, &word, &last],
        17 => &["HDEL", &key, &word, &value],
        18 => &["LINDEX", &key, &first],
        19 => &["LRANGE", &key, &first, &last],
        20 => &["LPOS", &key, &word],
        21 | 22 => &["RPUSH", &key, &word, &value],
        23 => &["LPOP", &key],
        24 => &["LREM", &key, &first, &word],
        25 => &["ZADD", &key, &last, &word],
        26 => &["ZSCORE", &key, &word],
        27 => &["DECR", &key],
        28 => &["INCRBY", &key, &last],
        29 => &["ZCARD", &key],
        30 => &["ZRANGE", &key, &first, &last, "WITHSCORES"],
        31 => &["ZRANGEBYSCORE", &key, "-inf", &last],
        32 => &["ZADD", &key, "XX", &first, &word],
        33 => &["ZADD", &key, "NX", &first, &word],
        _ => &["ZREM", &key, &word],
    };
    call.iter().map(|word| (*word).to_owned()).collect()
}

/// As [`MemoryServer::command`] returns it.
fn words(value: Value) -> Vec<String> {
    match value {
        Value::Nil => Vec::new(),
        Value::Int(number) => vec![number.to_string()],
        Value::BulkString(text) => vec![String::from_utf8(text).expect("text")],
        Value::SimpleString(text) => vec![text],
        Value::Okay => vec!["OK".to_owned()],
        Value::Array(items) => items.into_iter().flat_map(words).collect(),
        other => panic!("{other:?}"),
    }
}

/// A hash that has become large has another order on a real server. Ours stay small.
#[test]
fn random_commands_have_the_same_replies_on_a_real_server() {
    let (server, memory) = (Server::start(), MemoryServer::new());
    let client = redis::Client::open(server.url()).expect("a good URL");
    let mut real = client.get_connection().expect("the private server replies");
    let (mut random, mut errors) = (Rng::with_seed(11), 0);
    for _ in 0..20_000 {
        let call = some_call(&mut random);
        let there: redis::RedisResult<Value> = redis::cmd(&call[0]).arg(&call[1..]).query(&mut real);
        let here = memory.command(&call.iter().map(String::as_str).collect::<Vec<_>>());
        match (there, here) {
            (Ok(there), Ok(here)) => assert_eq!(words(there), here, "{call:?}"),
            (Err(there), Err(here)) => {
                let (code, _) = here.split_once(' ').expect("a code and a message");
                assert_eq!(there.code(), Some(code), "{call:?}: {there}, {here}");
                errors += 1;
            }
            (there, here) => panic!("{call:?}: {there:?} on the real server, {here:?} in memory"),
        }
        let left = |reply: Vec<String>| reply[0].parse::<i64>().expect("a number");
        let there = left(words(redis::cmd("PTTL").arg(&call[1]).query(&mut real).expect("it replies")));
        let here = left(memory.command(&["PTTL", &call[1]]).expect("it replies"));
        assert!(there.signum() == here.signum() && (there - here).abs() < 20_000, "{call:?} leaves {there}, {here} ms");
    }
    assert!(errors > 1_000, "{errors} calls were refused");
}
