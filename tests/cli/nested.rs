//! `leasehold run` inside `leasehold run`.

use crate::{
    command::{Running, code, leasehold, output},
    support::Server,
};

const THIS: &str = env!("CARGO_BIN_EXE_leasehold");

#[test]
fn the_same_name_is_not_acquired_again() {
    let server = Server::start();
    let inner = format!("{THIS} run -n name -c 'exit 6'");
    assert_eq!(code(&server, &["name", "-c", &inner]), 6);
    let between = format!("{THIS} run -n other -c \"{THIS} run -n name -c 'exit 7'\"");
    assert_eq!(code(&server, &["name", "-c", &between]), 7, "another one is between them");
}

#[test]
fn another_name_or_prefix_is_acquired() {
    let server = Server::start();
    for options in ["-n other", "-n --prefix app: name"] {
        let inner = format!("{THIS} run {options} -c 'echo $LEASEHOLD_OWNER'");
        let both = format!("echo $LEASEHOLD_OWNER; {inner}");
        let printed = output(leasehold(&server, &["run", "name", "-c", &both])).stdout;
        let printed = String::from_utf8(printed).expect("it is text");
        let [outer, inner] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
        assert_ne!(outer, inner, "{options}");
    }
}

#[test]
fn a_kind_that_is_not_held_is_refused() {
    let server = Server::start();
    let inside = |outer: &[&str], inner: &str| {
        let inner = format!("{THIS} run {inner} name -c 'exit 6'");
        code(&server, &[outer, &["name", "-c", &inner]].concat())
    };
    assert_eq!(inside(&["-x"], "-s"), 6, "a writer may read");
    assert_eq!(inside(&["-x"], "-x"), 6);
    assert_eq!(inside(&["-s"], "-s"), 6);
    assert_eq!(inside(&["--fair"], "--fair"), 6);
    assert_eq!(inside(&["-s"], "-x"), 64);
    assert_eq!(inside(&[], "--fenced"), 64);
    assert_eq!(inside(&[], "--max-hold 1"), 64);
}

/// Whether the lock is held by a command outside, the server says.
#[test]
fn a_process_that_outlives_the_hold_acquires_the_lock() {
    let server = Server::start();
    let (mut holder, _) = Running::begun(&server, &["name", "-c", "echo held; read line"]);
    let mut late = leasehold(&server, &["run", "-n", "name", "true"]);
    late.env("LEASEHOLD_OUTER", "6b1c7d3e-0000-8000-8000-000000000001:1 ");
    assert_eq!(output(late).status.code(), Some(1));
    holder.write("\n");
    assert_eq!(holder.end().0, 0);
}
