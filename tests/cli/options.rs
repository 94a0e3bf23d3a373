//! Each option of `run`, and the exit codes.

use std::{fs, time::Instant};

use crate::{
    command::{Running, at, code, leasehold, output, wait_until},
    support::{
        Server, before, ms,
        proxy::{Fault, Rule, Way, Which},
    },
};

/// The exit codes of a command, and of what is wrong with the arguments or the server.
#[test]
fn exit_codes() {
    let server = Server::start();
    let table: &[(&[&str], i32)] = &[
        (&["name", "true"], 0),
        (&["name", "--", "sh", "-c", "exit 7"], 7),
        (&["name", "-c", "exit 8"], 8),
        (&["name", "--", "sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["name", "--", "sh", "-c", "kill -TERM $$"], 128 + 15),
        (&["name", "no-such-command"], 127),
        (&["name", "/etc/passwd"], 126),
        (&[], 64),
        (&["name"], 64),
        (&["-w", "soon", "name", "true"], 64),
        (&["--label", "a b", "name", "true"], 64),
        (&["--permits", "1", "name", "true"], 64), // of how many?
        (&["--permits", "4", "--of", "3", "name", "true"], 64),
        (&["--fair", "--fenced", "name", "true"], 64),
        (&["--on-lost", "nothing", "name", "true"], 64),
        (&["", "true"], 64), // no name
        (&["--lease", "0", "name", "true"], 78),
    ];
    for (arguments, expected) in table {
        assert_eq!(code(&server, arguments), *expected, "{arguments:?}");
    }
    assert_eq!(server.ask::<u64>(&["DBSIZE"]), 0, "nothing is left");
}

#[test]
fn exit_codes_for_servers() {
    let server = Server::with(&["--requirepass", "secret"]);
    let port = server.port();
    let run = |url: String| output(at(&url, &["run", "name", "true"])).status.code();
    assert_eq!(run("redis://127.0.0.1:1".to_owned()), Some(69), "nobody is there");
    assert_eq!(run("redis://127.0.0.1:x".to_owned()), Some(78));
    assert_eq!(run(format!("redis://127.0.0.1:{port}")), Some(77), "no password");
    let visible = format!("redis://user:secret@127.0.0.1:{port}");
    assert_eq!(output(at("", &["run", "--url", &visible, "name", "true"])).status.code(), Some(64));
    let file = server.folder().join("password");
    fs::write(&file, "secret\n").expect("the folder is there");
    let mut with_file = at(&format!("redis://127.0.0.1:{port}"), &["run", "name", "true"]);
    with_file.env("LEASEHOLD_PASSWORD_FILE", &file);
    assert_eq!(output(with_file).status.code(), Some(0));
    let mut with_variable = at(&format!("redis://127.0.0.1:{port}"), &["run", "name", "true"]);
    with_variable.env("LEASEHOLD_PASSWORD", "hush-4711");
    let refused = output(with_variable);
    assert_eq!(refused.status.code(), Some(77));
    let message = String::from_utf8(refused.stderr).expect("it is text");
    assert!(!message.contains("hush-4711"), "{message}");
}

#[test]
fn a_lock_that_others_hold() {
    let server = Server::start();
    let (holder, _) = Running::begun(&server, &["name", "-c", "echo held; read line"]);
    let table: &[(&[&str], i32)] = &[
        (&["-n", "name", "true"], 1),
        (&["--nb", "name", "true"], 1),
        (&["-w", "0", "name", "true"], 1),
        (&["-w", "0.5", "-E", "9", "name", "true"], 9),
        (&["--timeout", "500ms", "--conflict-exit-code", "10", "name", "true"], 10),
        (&["-n", "--skip-ok", "name", "true"], 0),
        (&["-n", "other", "true"], 0),
    ];
    for (arguments, expected) in table {
        assert_eq!(code(&server, arguments), *expected, "{arguments:?}");
    }
    let mut patient = Running::start(leasehold(&server, &["run", "name", "-c", "echo mine"]));
    wait_until("it listens", || !server.channels().is_empty());
    let mut holder = holder;
    holder.write("\n");
    assert_eq!(patient.line(), "mine");
    assert_eq!((holder.end().0, patient.end().0), (0, 0));
}

/// A reply that takes longer than a round trip is none of another holder, and none of a server that is away.
#[test]
fn a_server_that_is_slow() {
    let server = Server::start();
    let proxy = before(&server);
    let slow = |delay| proxy.rule(Rule::new(Which::Command("EVALSHA"), Fault::Delay(Way::Back, ms(delay))));
    let kinds: [&[&str]; 6] = [&[], &["--fair"], &["--fenced"], &["-s"], &["-x"], &["--permits", "1", "--of", "1"]];
    for (n, kind) in kinds.into_iter().enumerate() {
        slow(300);
        let name = n.to_string();
        let run = [&["run", "-n"], kind, &[name.as_str(), "true"]].concat();
        assert_eq!(output(at(&proxy.url(), &run)).status.code(), Some(0), "{kind:?}");
    }
    assert!(proxy.is_spent());
    slow(3_300);
    assert_eq!(output(at(&proxy.url(), &["run", "-n", "late", "true"])).status.code(), Some(69));
    assert!(proxy.is_spent() && !server.exists("late"), "it was granted, and is released");
}

#[test]
fn kinds_of_locks() {
    let server = Server::start();
    let (mut reader, _) = Running::begun(&server, &["-s", "rw", "-c", "echo held; read line"]);
    assert_eq!((code(&server, &["-n", "-s", "rw", "true"]), code(&server, &["-n", "-x", "rw", "true"])), (0, 1));
    reader.write("\n");
    assert_eq!(reader.end().0, 0);
    assert_eq!(code(&server, &["-n", "-x", "rw", "true"]), 0);

    let (mut two, _) = Running::begun(&server, &["--permits", "2", "--of", "3", "sem", "-c", "echo held; read line"]);
    let permits = |n| code(&server, &["-n", "--permits", n, "--of", "3", "sem", "true"]);
    assert_eq!((permits("1"), permits("2")), (0, 1));
    two.write("\n");
    assert_eq!(two.end().0, 0);

    let (mut fair, _) = Running::begun(&server, &["--fair", "fair", "-c", "echo held; read line"]);
    assert_eq!(code(&server, &["-n", "--fair", "fair", "true"]), 1);
    fair.write("\n");
    assert_eq!(fair.end().0, 0);

    let token = || {
        let printed = output(leasehold(&server, &["run", "--fenced", "fenced", "-c", "echo $LEASEHOLD_TOKEN"])).stdout;
        String::from_utf8(printed).expect("it is text").trim().parse::<u64>().expect("a number")
    };
    let first = token();
    assert!(token() > first);
}

#[test]
fn min_hold_and_once_per_keep_the_lock() {
    let server = Server::start();
    assert_eq!(code(&server, &["--min-hold", "20", "short", "true"]), 0);
    assert_eq!(code(&server, &["-n", "short", "true"]), 1);
    assert!((15_000..=20_000).contains(&server.pttl("short")), "{}", server.pttl("short"));

    let once = |command| code(&server, &["--once-per", "20", "job", command]);
    assert_eq!((once("false"), once("false"), once("true"), once("true")), (1, 1, 0, 1));
    assert_eq!(code(&server, &["--once-per", "20", "--skip-ok", "job", "true"]), 0);
    assert!((15_000..=20_000).contains(&server.pttl("job")), "{}", server.pttl("job"));
}

/// A machine that waits runs the command if it fails elsewhere, and ends at once if it succeeds there.
#[test]
fn once_per_waits_for_the_end_elsewhere() {
    let server = Server::start();
    let once = ["run", "--once-per", "60", "job", "-c"];
    let begin = |command| Running::start(leasehold(&server, &[&once[..], &[command]].concat()));
    let (mut fails, _) = Running::begun(&server, &["--once-per", "60", "job", "-c", "echo held; read line; exit 3"]);
    let mut next = begin("echo mine; read line");
    let mut others = [begin("echo no"), begin("echo no")];
    wait_until("they listen", || server.channels().len() == 1);
    assert_eq!(code(&server, &["-n", "--once-per", "60", "job", "true"]), 1);
    fails.write("\n");
    assert_eq!(fails.end().0, 3);
    // One of the three that wait runs its command.
    wait_until("the next one runs", || server.exists("job"));
    others.iter_mut().for_each(|other| drop(other.child.stdin.take()));
    next.write("\n");
    let began = Instant::now();
    let codes: Vec<_> = others.into_iter().chain([next]).map(|one| one.end().0).collect();
    assert_eq!(
        (codes.iter().filter(|code| **code == 0).count(), codes.iter().filter(|code| **code == 1).count()),
        (1, 2)
    );
    assert!(began.elapsed() < ms(20_000), "not at the end of the period");
    let (_, json) = crate::look::text(leasehold(&server, &["status", "--json", "job"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(json["holders"][0]["rests"].as_bool(), Some(true));
}

/// The code of a command is not kept back because the server is away.
#[test]
fn a_server_that_is_away_at_the_end() {
    let server = Server::start();
    let (mut running, _) = Running::begun(&server, &["name", "-c", "echo held; read line; exit 4"]);
    server.freeze();
    running.write("\n");
    let began = Instant::now();
    assert_eq!(running.end().0, 4);
    assert!(began.elapsed() < ms(15_000), "{:?}", began.elapsed());
    server.thaw();
}

#[test]
fn what_is_wrong_with_a_server_is_said() {
    let server = Server::start();
    let replica = Server::with(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let refused = output(leasehold(&replica, &["run", "name", "true"]));
    let message = String::from_utf8(refused.stderr).expect("it is text");
    assert!(refused.status.code() == Some(69) && message.contains("replica"), "{message}");
}

#[test]
fn pages_and_completions() {
    let server = Server::start();
    let pages = server.folder().join("pages");
    fs::create_dir(&pages).expect("our own folder");
    let pages_in = pages.to_str().expect("it is text");
    assert_eq!(output(leasehold(&server, &["man", pages_in])).status.code(), Some(0));
    let page = fs::read_to_string(pages.join("leasehold-run.1")).expect("it is there");
    assert!(page.contains("73 (\\-\\-lost\\-exit\\-code)"), "{page}");
    assert!(pages.join("leasehold.1").exists());
    let script = output(leasehold(&server, &["completions", "bash"])).stdout;
    assert!(String::from_utf8(script).expect("it is text").contains("--once-per"));
}

#[test]
fn the_command_has_its_environment_and_standard_input() {
    let server = Server::start();
    let words = "echo $LEASEHOLD_HELD $LEASEHOLD_NAME $LEASEHOLD_OWNER; cat";
    let mut running = Running::start(leasehold(&server, &["run", "--verbose", "name", "-c", words]));
    let line = running.line();
    let holder: Vec<(String, u32)> = server.lock("name");
    assert_eq!(line, format!("1 name {}", holder[0].0));
    running.write("some\nlines");
    assert_eq!(running.end(), (0, "some\nlines".to_owned()));
}

/// Without the lock, several of them would read the same number.
#[test]
fn sixteen_processes_add_to_an_unprotected_counter() {
    let server = Server::start();
    let file = server.folder().join("counter");
    fs::write(&file, "0").expect("the folder is there");
    let add = format!("n=$(cat {0}); sleep 0.01; echo $((n + 1)) > {0}", file.display());
    let turns: Vec<_> = (0..16).map(|_| Running::start(leasehold(&server, &["run", "counter", "-c", &add]))).collect();
    assert!(turns.into_iter().all(|turn| turn.end().0 == 0));
    assert_eq!(fs::read_to_string(&file).expect("it is there").trim(), "16");
}

/// A command that was told to end has not done the work of the period, whatever it says.
#[test]
fn a_command_that_was_cut_off_does_not_count() {
    let server = Server::start();
    let cut = "trap 'exit 0' TERM; while :; do sleep 0.02; done";
    assert_eq!(code(&server, &["--once-per", "60", "--max-hold", "200ms", "job", "-c", cut]), 73);
    assert!(!server.exists("job"));
    assert_eq!(code(&server, &["--once-per", "400d", "job", "true"]), 64);
}

#[test]
fn nobody_reads_the_messages() {
    let server = Server::start();
    let table: [(&[&str], i32); 3] = [
        (&["--max-hold", "200ms", "name", "sleep", "60"], 73),
        (&["name", "no-such-command"], 127),
        (&["--verbose", "name", "-c", "exit 3"], 3),
    ];
    for (arguments, expected) in table {
        let mut command = leasehold(&server, &[&["run"], arguments].concat());
        command.stderr(fs::File::options().write(true).open("/dev/full").expect("it is there"));
        assert_eq!(output(command).status.code(), Some(expected), "{arguments:?}");
    }
}

#[test]
fn max_hold_ends_the_command() {
    let server = Server::start();
    let began = Instant::now();
    assert_eq!(code(&server, &["--max-hold", "300ms", "--lost-exit-code", "44", "name", "sleep", "60"]), 44);
    assert!(began.elapsed() < ms(10_000));
    assert!(!server.exists("name"));
}
