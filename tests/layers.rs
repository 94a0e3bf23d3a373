//! Layers import downwards only: `blocking` over `combined` over `primitives` over `client` over `engine` over `redis` over what all
//! stand on; and only `redis/conn.rs` and what lies beneath it name fred. No file reads the wall clock.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// From the bottom up. A file may name its own layer and those before it.
const LAYERS: [&[&str]; 12] = [
    &[
        "sync",
        "error",
        "clock",
        "owner",
        "credentials",
        "tls",
        "no_tls",
        "config",
        "stats",
        "export",
        "no_export",
        "spans",
    ],
    // Without I/O, so it needs nothing of the crate.
    &["lock"],
    &["redis"],
    &["kind", "request", "failed", "spawner", "task_runtime"],
    &["ask"],
    &["driver"],
    &["engine"],
    &["guard"],
    &["client"],
    &["primitives"],
    &["combined"],
    &["blocking"],
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&module))
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the sources are there").map(|entry| entry.expect("readable").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let rust = files.into_iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    rust.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// The modules named after `crate::` in code: also in groups like `use crate::{a::X, b::{Y, Z}};`.
fn named(code: &str) -> Vec<String> {
    let mut modules = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => modules.extend(members(group)),
            None => modules.push(word(rest)),
        }
    }
    modules
}

/// The first word of each member of a group, whose opening brace has been read.
fn members(group: &str) -> Vec<String> {
    let (mut depth, mut start, mut modules) = (0, true, Vec::new());
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            _ if start && !char.is_whitespace() => {
                modules.push(word(&group[at..]));
                start = false;
            }
            _ => {}
        }
    }
    modules
}

fn word(text: &str) -> String {
    text.chars().take_while(|char| char.is_alphanumeric() || *char == '_').collect()
}

/// The code without its comments.
fn code_of(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("readable");
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    code.collect::<Vec<_>>().join("\n")
}

fn upward(module: &str, code: &str) -> Vec<String> {
    let Some(own) = layer_of(module) else { return Vec::new() };
    named(code).into_iter().filter(|name| layer_of(name).is_some_and(|other| other > own)).collect()
}

#[test]
fn imports_go_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources(&root);
    assert!(files.len() > 20, "the sources were found");
    for file in files {
        let inside = file.strip_prefix(&root).expect("below it");
        let first = inside.iter().next().expect("a name").to_string_lossy();
        let module = first.trim_end_matches(".rs");
        assert!(module == "lib" || layer_of(module).is_some(), "{module} has no layer: put it into LAYERS");
        let up = upward(module, &code_of(&file));
        assert!(up.is_empty(), "{} reaches up to {up:?}", inside.display());
    }
}

#[test]
fn only_the_connection_names_fred() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let naming: Vec<_> = sources(&root).into_iter().filter(|file| code_of(file).contains("fred::")).collect();
    assert!(!naming.is_empty());
    for file in naming {
        assert!(file.starts_with(root.join("redis/conn")), "{}", file.display());
    }
}

/// Leases and periods are counted by the server and by clocks that nobody sets, so wrong wall clocks change nothing.
#[test]
fn no_code_reads_the_wall_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root) {
        let code = code_of(&file);
        let read = ["SystemTime", "UNIX_EPOCH", "Realtime"].into_iter().find(|name| code.contains(name));
        assert!(read.is_none(), "{} names {read:?}", file.display());
    }
}

#[test]
fn an_import_that_goes_up_is_found() {
    assert_eq!(upward("redis", "use crate::{\n    error::{Error, Result},\n    engine::Guard,\n};"), ["engine"]);
    assert_eq!(upward("engine", "let x = crate::client::Client::builder();"), ["client"]);
    assert_eq!(upward("primitives", "use crate::{client::Client, engine::{Guard, Kind}};"), [] as [&str; 0]);
}

/// The files of the state machine, from the bottom up. A file may import from those before it, so there are no circles.
const MACHINE: [&str; 18] = [
    "types",
    "rare",
    "requests",
    "queue",
    "others",
    "server_hold",
    "hold",
    "release",
    "on_server",
    "places",
    "calm",
    "kept",
    "state",
    "grants",
    "callers",
    "fair",
    "replies",
    "machine",
];

/// The same of the driver.
const DRIVER: [&str; 16] = [
    "translate",
    "wire",
    "slot",
    "notes",
    "calls",
    "lanes",
    "timers",
    "reports",
    "channels",
    "watchers",
    "shared",
    "named",
    "renewals",
    "call",
    "held",
    "acquire",
];

/// The modules named after `super::` in code.
fn neighbours(code: &str) -> Vec<String> {
    named(&code.replace("use super::", "use crate::").replace("super::", "crate::"))
}

/// Imports from a file of this folder that does not come before the one that imports.
fn circles(folder: &str, order: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut wrong = Vec::new();
    for file in sources(&root) {
        let own = file.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let Some(at) = order.iter().position(|name| *name == own) else {
            assert_eq!(own, "mod", "{own} has no place among the files of {folder}");
            continue;
        };
        let outside = code_of(&file).replace("crate::", "outside::");
        let names = neighbours(&outside);
        let from_above = names.into_iter().filter(|name| !order[..at].contains(&name.as_str()));
        wrong.extend(from_above.map(|name| format!("{own} imports {name}")));
    }
    wrong
}

#[test]
fn the_machine_and_the_driver_have_no_circles() {
    assert_eq!(circles("src/lock", &MACHINE), Vec::<String>::new());
    assert_eq!(circles("src/driver", &DRIVER), Vec::<String>::new());
}
