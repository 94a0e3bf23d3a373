//! `status`, `list`, `watch`, `unlock` and `doctor`.

use std::{collections::HashSet, process::Command};

use rustix::process::Signal;

use crate::{
    command::{Running, leasehold, output, wait_until},
    support::{Server, permissions},
};

pub(crate) fn text(command: Command) -> (i32, String) {
    let output = output(command);
    (output.status.code().expect("no signal ends it"), String::from_utf8(output.stdout).expect("it is text"))
}

fn look(server: &Server, arguments: &[&str]) -> (i32, String) {
    text(leasehold(server, arguments))
}

#[test]
fn status_says_who_holds_a_lock() {
    let server = Server::start();
    assert_eq!(look(&server, &["status", "name"]), (1, "name: free\n".to_owned()));
    let (mut holder, id) = Running::begun(&server, &["name", "-c", "echo $LEASEHOLD_OWNER; read line"]);
    let pid = holder.child.id().to_string();
    wait_until("its record is there", || look(&server, &["status", "name"]).1.contains(&pid));
    let (code, said) = look(&server, &["status", "name"]);
    assert_eq!(code, 0);
    assert!(said.starts_with("name: lock\n") && said.contains(&id) && said.contains("leasehold"), "{said}");
    let (_, json) = look(&server, &["status", "--json", "name"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!((json["holders"][0]["id"].as_str(), json["kind"].as_str()), (Some(&*id), Some("lock")));
    assert_eq!(json["holders"][0]["client"]["pid"].as_u64(), Some(holder.child.id().into()));
    holder.write("\n");
    assert_eq!(holder.end().0, 0);
    assert_eq!(server.ask::<Vec<String>>(&["KEYS", "leasehold:client:*"]), [] as [&str; 0]);
}

/// A string is a semaphore, and nothing is nothing: there is no need to ask for permits.
#[test]
fn status_needs_no_more_rights_than_the_lock() {
    let server = Server::start();
    server.set_user("billing", &[&["on", ">secret"], &permissions::of_a_lock()[..]].concat());
    let status = || {
        let mut command = leasehold(&server, &["status", "billing:x"]);
        command.env("REDIS_URL", server.url_as("billing", "secret"));
        text(command)
    };
    assert_eq!(status(), (1, "billing:x: free\n".to_owned()));
    let (mut holder, _) = Running::begun(&server, &["billing:x", "-c", "echo held; read line"]);
    assert_eq!(status().0, 0);
    holder.write("\n");
    assert_eq!(holder.end().0, 0);
}

#[test]
fn status_names_those_that_wait_for_a_fair_lock() {
    let server = Server::start();
    let (mut holder, _) = Running::begun(&server, &["--fair", "name", "-c", "echo held; read line"]);
    let waiter = Running::start(leasehold(&server, &["run", "--fair", "name", "true"]));
    wait_until("it waits", || look(&server, &["status", "name"]).1.contains("waiting: "));
    assert!(look(&server, &["status", "name"]).1.starts_with("name: fair lock\n"));
    holder.write("\n");
    assert_eq!((holder.end().0, waiter.end().0), (0, 0));
}

#[test]
fn ask_reaches_a_command_that_listens() {
    let server = Server::start();
    assert_eq!(look(&server, &["ask", "name"]), (1, "name: free\n".to_owned()));
    let (mut deaf, _) = Running::begun(&server, &["name", "-c", "echo held; read line"]);
    assert_eq!(look(&server, &["ask", "name", "why"]), (75, "name: its holder does not listen\n".to_owned()));
    deaf.write("\n");
    assert_eq!(deaf.end().0, 0);
    let words = "trap 'echo asked; exit 4' USR1; echo begun; while :; do sleep 0.02; done";
    let (mut holder, _) = Running::begun(&server, &["--on-asked", "USR1", "name", "-c", words]);
    wait_until("it listens", || look(&server, &["ask", "name", "a hotfix"]).0 == 0);
    assert_eq!(holder.line(), "asked");
    assert_eq!(holder.end().0, 4);
    assert_eq!(look(&server, &["ask", "--json", "name"]).1, "{\"name\":\"name\",\"outcome\":\"free\"}\n");
}

#[test]
fn list_has_each_kind_and_nothing_else() {
    let server = Server::start();
    let _: () = server.ask(&["HSET", "no-lock", "field", "x"]);
    let _: () = server.ask(&["ZADD", "other:timeout", "1", "x"]);
    let _: () = server.ask(&["HSET", "a:\x1b[2J\nbell", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"]);
    let shown = look(&server, &["list"]).1;
    assert!(shown.lines().count() == 1 && !shown.contains('\x1b'), "{shown:?}");
    let _: () = server.ask(&["DEL", "a:\x1b[2J\nbell"]);
    let kinds: [&[&str]; 4] =
        [&["a:lock"], &["-s", "a:read"], &["-x", "a:write"], &["--permits", "2", "--of", "3", "a:permits"]];
    let mut all: Vec<_> = kinds
        .iter()
        .map(|kind| Running::begun(&server, &[kind, &["-c", "echo held; read line"][..]].concat()).0)
        .collect();
    let names =
        |said: &str| said.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect::<HashSet<_>>();
    let (code, said) = look(&server, &["list"]);
    assert_eq!((code, names(&said).len(), said.lines().count()), (0, 4, 4), "{said}");
    assert_eq!(names(&look(&server, &["list", "a:r*"]).1), HashSet::from(["a:read".to_owned()]));
    assert_eq!(look(&server, &["list", "--prefix", "a:", "writ?"]).1.split('\t').next(), Some("write"));
    let json = look(&server, &["list", "--json"]).1;
    let kinds: HashSet<_> = json
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("it is JSON")["kind"].to_string())
        .collect();
    assert_eq!(kinds.len(), 4, "{json}");
    assert_eq!(server.calls("keys"), 0);
    all.iter_mut().for_each(|one| one.write("\n"));
    assert!(all.into_iter().all(|one| one.end().0 == 0));
    assert_eq!(look(&server, &["list"]), (0, String::new()));
}

/// A task that holds one lock, and waits for the other once both have theirs.
async fn cross(client: leasehold::Client, [held, wanted]: [&str; 2], both: &tokio::sync::Barrier) {
    let owner = leasehold::Owner::new();
    let _held = client.lock(held).owner(&owner).lock().await.expect("free");
    both.wait().await;
    let _never = client.lock(wanted).owner(&owner).lock().await;
}

#[test]
fn list_shows_a_deadlock() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = || {
        let builder = leasehold::Client::builder().url(server.url()).slow_wait(std::time::Duration::from_millis(100));
        runtime.block_on(builder.connect()).expect("the server is there")
    };
    let (one, two) = (client(), client());
    let tasks = runtime.spawn(async move {
        let both = tokio::sync::Barrier::new(2);
        tokio::join!(cross(one, ["a", "b"], &both), cross(two, ["b", "a"], &both));
    });
    let pid = std::process::id().to_string();
    let is_shown = |line: &str| line.starts_with("deadlock: ") && line.matches(&pid).count() == 3;
    wait_until("it is shown", || look(&server, &["list"]).1.lines().any(is_shown));
    let (code, said) = look(&server, &["list"]);
    assert!(code == 0 && said.lines().count() == 3 && said.contains("waits for \"a\"; its holder "), "{said}");
    let json = look(&server, &["list", "--json", "a"]).1 + &look(&server, &["list", "--json", "b"]).1;
    let json: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect();
    let circles: Vec<_> = json.iter().filter_map(|line| line["deadlock"].as_array()).collect();
    assert_eq!((json.len(), circles.len()), (3, 1), "the one with the youngest wait has found it: {json:?}");
    let names: HashSet<_> = circles[0].iter().map(|wait| wait["waits_for"].as_str().expect("a name")).collect();
    assert_eq!(names, HashSet::from(["a", "b"]));
    tasks.abort();
    wait_until("it is over", || look(&server, &["list"]).1.is_empty());
}

#[test]
fn list_finds_ten_thousand_locks() {
    let server = Server::start();
    let fill = "for n = 1, 10000 do redis.call('HSET', 'many:' .. n, ARGV[1], '1') redis.call('PEXPIRE', 'many:' .. n, 60000) end";
    let _: () = server.ask(&["EVAL", fill, "0", "285475da-9152-4c83-822a-67ee2f116a79:52"]);
    let (code, said) = look(&server, &["list", "many:*"]);
    let names: HashSet<_> = said.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!((code, names.len()), (0, 10_000));
}

#[test]
fn watch_writes_lines_when_something_changes() {
    let server = Server::start();
    let mut watch = Running::start(leasehold(&server, &["watch", "--every", "50ms", "name"]));
    assert_eq!(watch.line(), "nothing is held");
    let (mut holder, _) = Running::begun(&server, &["name", "-c", "echo held; read line"]);
    assert!(watch.line().starts_with("name "));
    holder.write("\n");
    assert_eq!(holder.end().0, 0);
    watch.signal(Signal::INT);
    assert_eq!(watch.end().0, 0);
}

#[test]
fn unlock_takes_a_lock_away() {
    let server = Server::start();
    assert_eq!(look(&server, &["unlock", "--force", "--yes", "name"]).0, 1, "free");
    for kind in [&["name"][..], &["--fair", "name"], &["-x", "name"]] {
        let (holder, id) =
            Running::begun(&server, &[kind, &["-c", "echo $LEASEHOLD_OWNER; exec sleep 60"][..]].concat());
        assert_eq!(look(&server, &["unlock", "name"]).0, 64, "--force is needed");
        assert_eq!(look(&server, &["unlock", "--force", "name"]).0, 64, "nobody can answer");
        let (code, said) = look(&server, &["unlock", "--force", "--yes", "name"]);
        assert!(code == 0 && said.contains(&id), "{said}");
        assert!(!server.exists("name"));
        holder.signal(Signal::TERM);
        assert_eq!(holder.end().0, 73);
    }
}

/// The verdicts of all checks.
fn doctor(server: &Server) -> (i32, Vec<(String, String)>) {
    let (code, said) = look(server, &["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
    let of = |finding: &serde_json::Value, field: &str| finding[field].as_str().expect("a text").to_owned();
    let findings = json.as_array().expect("a list").iter();
    (code, findings.map(|finding| (of(finding, "what"), of(finding, "verdict"))).collect())
}

fn verdict(findings: &[(String, String)], what: &str) -> String {
    let found = findings.iter().find(|(name, _)| name == what);
    found.unwrap_or_else(|| panic!("{what} is not in {findings:?}")).1.clone()
}

#[test]
fn doctor_finds_nothing_bad_and_leaves_nothing_behind() {
    let server = Server::with(&["--appendonly", "yes"]);
    let (code, findings) = doctor(&server);
    assert_eq!(code, 0, "{findings:?}");
    for what in [
        "version",
        "memory",
        "persistence",
        "scripts",
        "clock",
        "lock",
        "fair",
        "fenced",
        "reading",
        "writing",
        "semaphore",
        "records",
        "losses",
    ] {
        assert_eq!(verdict(&findings, what), "ok", "{what}");
    }
    assert_eq!(verdict(&findings, "replicas"), "risky");
    let left: Vec<String> = server.ask(&["KEYS", "*"]);
    assert!(left.iter().all(|key| key.starts_with("leasehold_receipt:")), "{left:?}");
}

#[test]
fn doctor_finds_faults() {
    let server = Server::start();
    let set = |name: &str, value: &str| server.ask::<()>(&["CONFIG", "SET", name, value]);
    assert_eq!(verdict(&doctor(&server).1, "persistence"), "risky");
    set("maxmemory-policy", "allkeys-lru");
    assert_eq!(verdict(&doctor(&server).1, "memory"), "risky", "there is no limit yet");
    set("maxmemory", "100mb");
    let (code, findings) = doctor(&server);
    assert_eq!((code, verdict(&findings, "memory")), (1, "bad".to_owned()));
    set("maxmemory-policy", "noeviction");

    for n in 0..5_100 {
        let _: String = server.ask(&["SCRIPT", "LOAD", &format!("return {n}")]);
    }
    assert_eq!(verdict(&doctor(&server).1, "scripts"), "risky");
    let _: () = server.ask(&["SCRIPT", "FLUSH"]);

    let _: () = server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let replica = output(leasehold(&server, &["doctor"]));
    assert_ne!(replica.status.code(), Some(0), "a replica");
}

#[test]
fn doctor_finds_what_a_user_may_not_do() {
    let server = Server::start();
    for (rules, what) in [
        (["~*", "&*", "+@all", "-evalsha"], "lock"),
        (["~*", "&*", "+@all", "-rpush"], "fair"),
        (["~*", "&*", "+@all", "-incr"], "fenced"),
        (["~*", "&*", "+@all", "-hset"], "writing"),
        (["~*", "&*", "+@all", "-zadd"], "semaphore"),
        (["~*", "resetchannels", "+@all", "-none"], "lock"),
        (["~*", "&*", "+@all", "-client|tracking"], "losses"),
    ] {
        let rules: Vec<_> = rules.into_iter().filter(|rule| *rule != "-none").collect();
        server.set_user("limited", &[&["on", ">secret"], &rules[..]].concat());
        let mut command = leasehold(&server, &["doctor", "--json"]);
        command.env("REDIS_URL", server.url_as("limited", "secret"));
        let (code, said) = text(command);
        let json: serde_json::Value = serde_json::from_str(&said).expect("it is JSON");
        let found =
            json.as_array().expect("a list").iter().find(|finding| finding["what"] == what).expect("it is checked");
        let expected = if what == "losses" { (0, Some("risky")) } else { (1, Some("bad")) };
        assert_eq!((code, found["verdict"].as_str()), expected, "{rules:?}: {said}");
    }
}
