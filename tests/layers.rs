//! Layers import downwards only: `blocking` over `combined` over `primitives` over `client` over `engine` over `redis` over what all
//! stand on; and only `redis/conn.rs` and what lies beneath it name fred. No file reads the wall clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// From the bottom up. A file may name its own layer and those before it.
const LAYERS: [&[&str]; 15] = [
    &[
        "sync",
        "contained",
        "decimal",
        "spawner",
        "error",
        "events",
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
    &["kind", "request", "failed", "task_runtime", "record"],
    &["release_request"],
    &["ask"],
    &["driver"],
    &["deadlock"],
    &["engine"],
    &["guard"],
    &["client"],
    &["servers", "primitives"],
    &["combined"],
    &["blocking"],
    // A program that uses the public interface.
    &["cli"],
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

/// A module, from the root of the crate: `redis`, `conn`, `link`.
type ModulePath = Vec<String>;

/// The module of a file below `src`.
fn module_of(inside: &Path) -> ModulePath {
    let mut module: ModulePath =
        inside.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    module.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
    module
}

/// What the code of a module names after `crate::` and `super::`.
fn imports(module: &[String], code: &str) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for (at, start) in code.match_indices("crate::").chain(code.match_indices("super::")) {
        if code[..at].ends_with("super::") {
            continue; // a part of a path that was found before
        }
        let mut rest = &code[at + start.len()..];
        let mut from = if start == "crate::" { Vec::new() } else { module[..module.len().saturating_sub(1)].to_vec() };
        while let Some(outer) = rest.strip_prefix("super::") {
            (rest, _) = (outer, from.pop());
        }
        paths(&from, rest, &mut found);
    }
    found
}

/// The paths of a `use`, whose beginning has been read.
fn paths(from: &[String], text: &str, found: &mut Vec<ModulePath>) {
    if let Some(group) = text.strip_prefix('{') {
        starts(group).into_iter().for_each(|member| paths(from, &group[member..], found));
        return;
    }
    let name = word(text);
    let path = [from, std::slice::from_ref(&name)].concat();
    match text[name.len()..].strip_prefix("::") {
        Some(rest) if !name.is_empty() => paths(&path, rest, found),
        _ => found.push(path),
    }
}

/// Where each member of a group starts, whose opening brace has been read.
fn starts(group: &str) -> Vec<usize> {
    let (mut depth, mut start, mut found) = (0, true, Vec::new());
    for (at, char) in group.char_indices() {
        match char {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = true,
            _ if start && !char.is_whitespace() => {
                found.push(at);
                start = false;
            }
            _ => {}
        }
    }
    found
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
    let named = imports(&[module.to_owned()], code).into_iter().filter_map(|path| path.into_iter().next());
    named.filter(|name| layer_of(name).is_some_and(|other| other > own)).collect()
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

/// Each event comes from a task that must go on if the program's subscriber panics.
#[test]
fn connections_report_by_one_macro() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (reports, silent): (Vec<_>, Vec<_>) =
        sources(&root.join("redis")).into_iter().partition(|file| code_of(file).contains("conn_event!("));
    assert!(!reports.is_empty());
    for file in reports.iter().chain(&silent) {
        assert!(!code_of(file).contains("tracing::"), "{} does not use conn_event", file.display());
    }
}

/// A record says since when its client runs, and the command shows that, and compares clocks: no lock depends on it.
fn is_shown_only(file: &Path) -> bool {
    file.ends_with("src/record.rs") || file.iter().any(|folder| folder == "cli")
}

/// Leases and periods are counted by the server and by clocks that nobody sets, so wrong wall clocks change nothing.
#[test]
fn no_code_reads_the_wall_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root) {
        let code = code_of(&file);
        if is_shown_only(&file) {
            continue;
        }
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
const MACHINE: [&str; 23] = [
    "types",
    "rare",
    "few",
    "index",
    "listening",
    "requests",
    "queue",
    "others",
    "lease",
    "confirmations",
    "server_hold",
    "hold",
    "lost",
    "release",
    "on_server",
    "places",
    "calm",
    "state",
    "grants",
    "callers",
    "fair",
    "replies",
    "machine",
];

/// The same of the driver.
const DRIVER: [&str; 15] = [
    "asked",
    "translate",
    "wire",
    "notes",
    "calls",
    "timers",
    "reports",
    "channels",
    "watchers",
    "shared",
    "named",
    "call",
    "held",
    "acquire",
    "waits",
];

/// Imports of a file in this folder from a file that is not before it in this order.
fn out_of_order(folder: &str, order: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for file in sources(&root.join(folder)) {
        let module = module_of(file.strip_prefix(&root).expect("below it"));
        let [_, own] = &module[..] else {
            assert_eq!(module, [folder], "a file in a folder of its own");
            continue;
        };
        let at = order.iter().position(|name| name == own).expect("each file has a place in the order");
        let code = code_of(&file);
        let code = code.split("\nmod tests {").next().unwrap_or_default(); // unit tests name what they test
        let named = imports(&module, code).into_iter().filter(|path| path[0] == folder);
        let names: Vec<_> = named.map(|path| path[1..].join("::")).collect();
        let is_before = |name: &String| order[..at].contains(&name.split("::").next().unwrap_or_default());
        wrong.extend(names.iter().filter(|name| !is_before(name)).map(|name| format!("{own} imports {name}")));
    }
    wrong
}

#[test]
fn the_machine_and_the_driver_keep_their_order() {
    assert_eq!(out_of_order("lock", &MACHINE), Vec::<String>::new());
    assert_eq!(out_of_order("driver", &DRIVER), Vec::<String>::new());
}

/// A file below `src`, with the paths that its code names.
#[derive(Clone)]
struct Source {
    module: ModulePath,
    named: Vec<ModulePath>,
    /// Names of its submodules that it hands on, as `pub use gather::Company` does.
    hands_on: Vec<ModulePath>,
}

impl Source {
    fn of(module: ModulePath, code: &str) -> Source {
        let (named, mut hands_on) = (imports(&module, code), Vec::new());
        code.match_indices("use ").for_each(|(at, word)| paths(&module, &code[at + word.len()..], &mut hands_on));
        Source { module, named, hands_on }
    }
}

/// The files and folders of one folder that import each other in a circle. A folder's own file (`mod.rs`, or the one with its name) is above
/// the folder's files. A name that it hands on belongs to the file from which it comes.
fn circle_in(folder: &[String], files: &[Source]) -> Option<Vec<String>> {
    let first = |path: &ModulePath| path.strip_prefix(folder)?.first().cloned();
    let units: BTreeSet<String> = files.iter().filter_map(|file| first(&file.module)).collect();
    let handed_on = files.iter().filter(|file| file.module == folder).flat_map(|file| &file.hands_on);
    let origins: BTreeMap<_, _> = handed_on.filter_map(|path| Some((path.last()?, first(path)?))).collect();
    let unit = |path: &ModulePath| {
        let name = first(path)?;
        let origin = if units.contains(&name) { Some(name) } else { origins.get(&name).cloned() };
        origin.filter(|unit| units.contains(unit))
    };
    let mut open: BTreeMap<&String, BTreeSet<String>> = units.iter().map(|unit| (unit, BTreeSet::new())).collect();
    for file in files {
        if let Some(own) = first(&file.module) {
            let others = file.named.iter().filter_map(unit).filter(|other| *other != own);
            open.get_mut(&own).expect("one of them").extend(others);
        }
    }
    while let Some(done) = open.iter().find(|(_, needs)| needs.is_empty()).map(|(unit, _)| *unit) {
        open.remove(done);
        open.values_mut().for_each(|needs| _ = needs.remove(done));
    }
    while let Some(above) = open.keys().find(|unit| !open.values().any(|needs| needs.contains(**unit))) {
        open.remove(*above);
    }
    (!open.is_empty()).then(|| open.into_iter().map(|(unit, needs)| format!("{unit} needs {needs:?}")).collect())
}

#[test]
fn no_folder_has_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |file: PathBuf| Source::of(module_of(file.strip_prefix(&root).expect("below it")), &code_of(&file));
    let files: Vec<_> = sources(&root).into_iter().map(read).collect();
    let folders: BTreeSet<_> = files.iter().filter_map(|file| Some(file.module.split_last()?.1.to_vec())).collect();
    assert!(folders.len() > 5, "the folders were found");
    let circles: Vec<_> = folders.iter().filter_map(|folder| Some((folder, circle_in(folder, &files)?))).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

/// An import behind which these checks cannot see: a module by another name, or all names of a module.
fn hides_names(code: &str) -> Option<&str> {
    let is_word = |at: &usize| !code[..*at].ends_with(char::is_alphanumeric);
    let starts = code.match_indices("use ").map(|(at, _)| at).filter(is_word);
    let imports = starts.filter_map(|at| code[at..].split(';').next());
    let renames_a_module = |import: &str| {
        let before = import.split(" as ").map(|text| text.rsplit([':', '{', ',', ' ', '\n']).next().unwrap_or(""));
        let renamed = before.take(import.matches(" as ").count());
        renamed.into_iter().any(|name| name.starts_with(|char: char| char.is_lowercase()))
    };
    let mut hidden = imports.filter(|import| import.contains("::*") || renames_a_module(import));
    hidden.find(|import| !["use super::*", "use types::*"].contains(import)) // in unit tests, and for the simulation
}

#[test]
fn no_import_hides_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&root) {
        assert_eq!(hides_names(&code_of(&file)), None, "{}", file.display());
    }
    assert_eq!(hides_names("use crate::redis as r;"), Some("use crate::redis as r"));
    assert_eq!(hides_names("use crate::{kind::Kind, redis as r};"), Some("use crate::{kind::Kind, redis as r}"));
    assert_eq!(hides_names("use crate::redis::*;"), Some("use crate::redis::*"));
    assert_eq!(hides_names("use std::fmt::Write as _;\nuse crate::lock::{Mode as LockMode, Owner};"), None);
}

#[test]
fn a_circle_is_found() {
    let module = |text: &str| -> ModulePath { text.split("::").map(str::to_owned).collect() };
    let file = |name: &str, code: &str| Source::of(module(name), code);
    let node = file("redis::node", "use super::{\n    conn::{Conn, Link},\n    gather::Company,\n};");
    let gather = file("redis::gather", "use crate::{error::Source, redis::{keys::slot_of, node::NodeSettings}};");
    let link = file("redis::conn::link", "use super::super::node::Node;");
    let (conn, keys) = (file("redis::conn", "mod link;"), file("redis::keys", ""));
    let own = file("redis", "pub(crate) use node::{Node, NodeSettings};");
    let by_own = file("redis::gather", "use super::{NodeSettings, keys::slot_of};");
    let of = |files: &[&Source]| {
        let files: Vec<_> = files.iter().map(|file| (*file).clone()).collect();
        circle_in(&module("redis"), &files).map(|circle| circle.len())
    };
    assert_eq!(of(&[&node, &gather, &keys]), Some(2));
    assert_eq!(of(&[&node, &conn, &link]), Some(2));
    assert_eq!(of(&[&own, &node, &by_own]), Some(2));
    assert_eq!(of(&[&own, &node, &conn]), None);
}

/// `src/lock` knows nothing of the crate, and has its own names for some of its things. `src/blocking` has the names of the async
/// interface. `src/cli` is a crate of its own.
const NAMESPACES: [&str; 3] = ["lock", "blocking", "cli"];

/// The name of the type or trait that a line declares, if it is not inside of anything.
fn type_in(line: &str) -> Option<&str> {
    let item = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1, // `pub ` or `pub(crate) `
        None => line,
    };
    let name = ["struct ", "enum ", "trait "].iter().find_map(|kind| item.strip_prefix(kind))?;
    name.split(|char: char| !char.is_alphanumeric() && char != '_').next()
}

#[test]
fn no_two_types_have_one_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for file in sources(&root) {
        let inside = file.strip_prefix(&root).expect("below it");
        let first = inside.iter().next().expect("a name").to_string_lossy().into_owned();
        let space = NAMESPACES.iter().find(|name| **name == first).copied().unwrap_or("the crate");
        for name in code_of(&file).lines().filter_map(type_in) {
            places.entry((space, name.to_owned())).or_default().push(inside.to_owned());
        }
    }
    assert!(places.len() > 200, "the types were found: {}", places.len());
    let twice: Vec<_> = places.into_iter().filter(|(_, files)| files.len() > 1).collect();
    assert!(twice.is_empty(), "two types of one name: {twice:#?}");
}
