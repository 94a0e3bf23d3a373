//! Where flock(1) has the same option, the exit codes are the same.

use std::process::{Command, Stdio};

use crate::{
    command::{Running, code},
    support::Server,
};

#[test]
fn codes_agree_with_flock() {
    let server = Server::start();
    let file = server.folder().join("flock");
    let path = file.to_str().expect("it is text");
    let (mut ours, _) = Running::begun(&server, &["held", "-c", "echo held; read line"]);
    let mut theirs = Command::new("flock");
    theirs.args([path, "-c", "echo held; read line"]).stdin(Stdio::piped());
    let mut theirs = Running::start(theirs);
    assert_eq!(theirs.line(), "held");
    let free = server.folder().join("free");
    let table: &[(&[&str], &str, &[&str])] = &[
        (&["-n"], "held", &["true"]),
        (&["-n", "-E", "42"], "held", &["true"]),
        (&["-w", "0.5"], "held", &["true"]),
        (&["-w", "0.5", "-E", "0"], "held", &["true"]),
        (&[], "free", &["true"]),
        (&["-n"], "free", &["sh", "-c", "exit 9"]),
        (&["-x"], "free", &["sh", "-c", "kill -TERM $$"]),
        (&["-s"], "free", &["sh", "-c", "kill -KILL $$"]),
    ];
    for (options, name, command) in table {
        let lock = if *name == "held" { path } else { free.to_str().expect("it is text") };
        let flock = Command::new("flock").args(*options).arg(lock).args(*command).status().expect("it is installed");
        let ours = code(&server, &[options, &[*name][..], command].concat());
        assert_eq!(Some(ours), flock.code(), "{options:?} {name} {command:?}");
    }
    ours.write("\n");
    theirs.write("\n");
    assert_eq!((ours.end().0, theirs.end().0), (0, 0));
}
