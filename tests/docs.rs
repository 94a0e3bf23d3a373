//! docs/guarantees.md names the test of every promise, and each of these exists. A promise without one has to say why.

use std::{fs, path::Path};

/// Words by which a row says that nothing tries it out.
const UNTESTED: &str = "not tested: ";

/// The mark of a test that only scripts/nightly runs.
const NIGHTLY: &str = "#[ignore = \"nightly\"]";

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a page below that heading, up to the next.
fn below<'a>(page: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let below = page.lines().skip_while(move |line| *line != heading).skip(1);
    below.take_while(|line| !line.starts_with("## "))
}

/// What each promise says of its tests: the brackets that end a bullet, the last cell of a row; empty where there is none.
fn entries(page: &str) -> Vec<String> {
    let mut bullets: Vec<String> = Vec::new();
    for line in below(page, "## In every case") {
        match (line.strip_prefix("* "), bullets.last_mut()) {
            (Some(first), _) => bullets.push(first.to_owned()),
            (None, Some(bullet)) if line.starts_with("  ") => *bullet += line,
            _ => {}
        }
    }
    let rows = below(page, "## By failure").filter(|line| line.starts_with('|'));
    let mut rows: Vec<Vec<_>> = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert_eq!(rows[0].last(), Some(&"test"), "the last column");
    let columns = rows[0].len();
    let rows = rows.split_off(2).into_iter();
    let of_row = |row: Vec<&str>| if row.len() == columns { row[columns - 1].to_owned() } else { String::new() };
    bullets.iter().map(|bullet| in_brackets(bullet)).chain(rows.map(of_row)).collect()
}

/// The last brackets that begin with a name, if the text ends with them.
fn in_brackets(text: &str) -> String {
    let ending = text.strip_suffix(')').and_then(|text| text.rsplit_once("(`"));
    ending.map_or(String::new(), |(_, names)| format!("`{names}"))
}

/// What stands between backticks and says where a test is.
fn named(entry: &str) -> Vec<&str> {
    let is_place = |name: &&str| name.contains("::") || name.contains('/');
    entry.split('`').skip(1).step_by(2).filter(is_place).collect()
}

fn is_there(test: &str) -> bool {
    if test == "tests/simulation" {
        return read("tests/simulation/seeds.rs").contains("#[test]");
    }
    if let Some(trouble) = test.strip_prefix("scripts/chaos: ") {
        let files = ["troubles", "scene/cluster", "scene/sentinels", "scene/independent"]
            .map(|file| read(&format!("tests/chaos/{file}.rs")));
        return files.iter().any(|file| file.contains(&format!("(\"{trouble}\", ")));
    }
    let Some((file, name)) = test.split_once("::") else { return false };
    let alone = format!("tests/{file}.rs"); // a binary of its own
    if Path::new(env!("CARGO_MANIFEST_DIR")).join(&alone).is_file() {
        return runs(&read(&alone), name);
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/it/{file}.rs")).is_file()
        && read("tests/it/main.rs").contains(&format!("mod {file};\n"))
        && runs(&read(&format!("tests/it/{file}.rs")), name)
}

/// Whether a source has a test of that name that is not ignored.
fn runs(source: &str, name: &str) -> bool {
    let mut marks = Vec::new();
    for line in source.lines() {
        if line.starts_with("#[") {
            marks.push(line);
            continue;
        }
        let word = line.strip_prefix("async ").unwrap_or(line);
        if word.strip_prefix("fn ").is_some_and(|rest| rest.starts_with(&format!("{name}("))) {
            let is_test = |mark: &&str| mark.starts_with("#[test]") || mark.starts_with("#[tokio::test");
            let is_left_out = |mark: &&str| mark.starts_with("#[ignore") && *mark != NIGHTLY;
            return marks.iter().any(is_test) && !marks.iter().any(is_left_out);
        }
        marks.clear();
    }
    false
}

/// What is wrong with an entry, if anything.
fn fault(entry: &str) -> Option<String> {
    let tests = named(entry);
    let says_why = entry.split_once(UNTESTED).is_some_and(|(_, why)| !why.is_empty());
    if tests.is_empty() && !says_why {
        return Some(format!("no test, and not a word why: {entry:?}"));
    }
    tests.into_iter().find(|test| !is_there(test)).map(|test| format!("there is no test {test}"))
}

#[test]
fn every_promise_names_its_tests() {
    let page = read("docs/guarantees.md");
    let entries = entries(&page);
    assert!(entries.len() >= 25, "five bullets and twenty rows were found: {entries:#?}");
    let faults: Vec<_> = entries.iter().filter_map(|entry| fault(entry)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

/// docs/dev/machine.md says where each rule is: these files have these functions and constants.
#[test]
fn the_rules_of_the_machine_are_where_the_page_says() {
    let page = read("docs/dev/machine.md");
    let mut looked = 0;
    for place in below(&page, "## Where a rule is").filter(|line| line.starts_with("| ")).flat_map(|row| row.split(';'))
    {
        let words: Vec<_> = place.split('`').skip(1).step_by(2).collect();
        for group in
            words.chunk_by(|name, _| !name.contains('.')).filter(|group| group.iter().any(|name| name.ends_with(".rs")))
        {
            let (file, names) = group.split_last().expect("not empty");
            let source = read(&format!("src/lock/{file}"));
            for name in names {
                let is_there = source.contains(&format!("fn {name}(")) || source.contains(&format!("const {name}:"));
                assert!(is_there, "{name} is not in {file}");
                looked += 1;
            }
        }
    }
    assert!(looked > 20, "{looked}");
}

#[test]
fn a_promise_without_a_test_is_found() {
    let page = "## In every case\n\n* one\n  (`lost::after_del`)\n* two (really)\n\n## By failure\n\n\
        | what | test |\n|---|---|\n| a | `lost::after_del`, `lost::nothing` |\n| b | |\n| c |\n\
        | d | not tested: no time |\n| e | `scripts/chaos: rain` |\n| f | `guarantees::holder` |\n## Next\n* three\n";
    let found: Vec<_> = entries(page).iter().map(|entry| fault(entry).is_some()).collect();
    assert_eq!(found, [false, true, true, true, true, false, true, true]);
}

/// The packages that a lock file names as dependencies of this crate.
fn locked_dependencies(lock_file: &str) -> Vec<&str> {
    let own = lock_file.split("[[package]]").find(|package| package.contains("\nname = \"leasehold\"\n"));
    own.expect("it names this crate")
        .lines()
        .filter_map(|line| line.trim().strip_prefix('"')?.split(['"', ' ']).next())
        .collect()
}

/// Benchmarks beside rivals are built from a lock file of their own, with `--locked`.
#[test]
fn all_lock_files_know_the_dependencies() {
    let manifest = read("Cargo.toml");
    let dependencies = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let needed =
        dependencies.take_while(|line| !line.starts_with('[')).filter(|line| !line.contains("optional = true"));
    let needed: Vec<_> = needed.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
    assert!(needed.contains(&"fred") && needed.len() > 8, "{needed:?}");
    for path in ["Cargo.lock", "benches/peers/rust/Cargo.lock"] {
        let lock_file = read(path);
        let locked = locked_dependencies(&lock_file);
        let lacks: Vec<_> = needed.iter().filter(|name| !locked.contains(name)).collect();
        assert!(lacks.is_empty(), "{path} lacks {lacks:?}");
    }
}

#[test]
fn scripts_nightly_runs_each_test_that_is_left_to_it() {
    let (script, mut found) = (read("scripts/nightly"), 0);
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it")).expect("a folder") {
        let path = file.expect("it can be read").path();
        let Ok(source) = fs::read_to_string(&path) else { continue }; // a folder
        let module = path.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_owned();
        for (_, after) in source.match_indices(NIGHTLY).map(|(at, mark)| source[at..].split_at(mark.len())) {
            let name = after.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a test").0;
            assert!(script.contains(&format!("  {module}::{name}\n")), "scripts/nightly lacks {module}::{name}");
            found += 1;
        }
    }
    let listed = script.lines().skip_while(|line| *line != "slow=(").skip(1).take_while(|line| *line != ")").count();
    assert_eq!(found, listed, "scripts/nightly names a test that is not marked");
}
