//! The pages say what is there: tests/promises.txt names the tests of every promise and failure of docs/guarantees.md, rules and settings are where
//! the pages say, and links lead somewhere, in the repository and in rustdoc. The documentation of the interface says of each call which errors
//! it returns, and shows each type in an example. docs/benchmarks.md hides no figure that misses its aim.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Words by which a line says that nothing tries it out.
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

/// The promises and failures of a page: the first cells of its tables whose head is `promise` or `what happens`.
fn promises(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        let first = line.strip_prefix("| ").and_then(|row| row.split(" |").next());
        match first {
            Some("promise" | "what happens") => is_inside = true,
            Some(name) if is_inside => found.push(name.trim_matches('*').to_owned()),
            None if !line.starts_with("|---") => is_inside = false,
            _ => {}
        }
    }
    found
}

/// The tests of each promise: its name after `# `, then a line for each.
fn tests_of(list: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in list.lines().skip_while(|line| !line.starts_with("# ")).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("# "), found.last_mut()) {
            (Some(name), _) => found.push((name, Vec::new())),
            (None, Some((_, tests))) => tests.push(line),
            (None, None) => unreachable!("the first line is a name"),
        }
    }
    found
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
    files_of_it().iter().any(|one| one.name == file && runs(&one.source, name))
}

/// A file of tests/it, which stands in a folder.
struct File {
    folder: String,
    name: String,
    source: String,
}

/// The files of tests/it that its modules name.
fn files_of_it() -> Vec<File> {
    let (main, mut files) = (read("tests/it/main.rs"), Vec::new());
    for folder in modules(&main).into_iter().filter(|folder| *folder != "support") {
        let list = read(&format!("tests/it/{folder}/mod.rs"));
        for name in modules(&list) {
            let path = format!("tests/it/{folder}/{name}.rs");
            let is_file = Path::new(env!("CARGO_MANIFEST_DIR")).join(&path).is_file();
            let source = if is_file { read(&path) } else { String::new() }; // a folder of its own, whose tests a macro makes
            files.push(File { folder: folder.to_owned(), name: name.to_owned(), source });
        }
    }
    files
}

fn modules(source: &str) -> Vec<&str> {
    let lines = source.lines().map(|line| line.strip_prefix("pub(crate) ").unwrap_or(line));
    lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';')).collect()
}

/// Pages name a test by its file, so the folder can change.
#[test]
fn no_two_files_of_tests_have_one_name() {
    let files = files_of_it();
    let mut names: Vec<_> = files.iter().map(|file| &file.name).collect();
    assert!(names.len() > 90, "the files were found: {names:?}");
    names.sort();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

/// A process of a test that is started for a test that does not exist would end well, without having run anything.
#[test]
fn tests_that_run_in_a_process_of_their_own_exist() {
    let (files, mut found) = (files_of_it(), 0);
    for File { folder, name: file, source } in &files {
        let start = format!("\"{folder}::{file}::");
        for name in files.iter().flat_map(|other| other.source.split(&start).skip(1)) {
            let name = name.split('"').next().expect("its end");
            if !name.starts_with('{') {
                let is_there = |mark| source.contains(&format!("\n{mark}fn {name}("));
                assert!(is_there("") || is_there("async "), "{folder}::{file}::{name}");
                found += 1;
            }
        }
    }
    assert!(found > 15, "{found}");
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

/// What is wrong with the tests of a promise.
fn faults((name, tests): &(&str, Vec<&str>)) -> Vec<String> {
    let is_good = |line: &&&str| line.strip_prefix(UNTESTED).is_some_and(|why| !why.is_empty()) || is_there(line);
    let none = tests.is_empty().then(|| format!("{name}: no test, and not a word why"));
    let missing = tests.iter().filter(|line| !is_good(line)).map(|line| format!("{name}: there is no test {line}"));
    none.into_iter().chain(missing).collect()
}

#[test]
fn every_promise_and_failure_names_its_tests() {
    let (page, list) = (read("docs/guarantees.md"), read("tests/promises.txt"));
    let (promises, tests) = (promises(&page), tests_of(&list));
    assert!(promises.len() > 60, "{promises:#?}");
    let listed: Vec<_> = tests.iter().map(|(name, _)| *name).collect();
    let differ: BTreeSet<_> = promises.iter().map(String::as_str).collect();
    let differ: Vec<_> = differ.symmetric_difference(&listed.iter().copied().collect()).copied().collect();
    assert!(differ.is_empty(), "only on the page or only in the list: {differ:#?}");
    let faults: Vec<_> = tests.iter().flat_map(faults).collect();
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
    let page = "| promise | details |\n|---|---|\n| **one** | |\n| two | |\n\n| key | |\n|---|---|\n| no | |\n\n| what happens | x |\n|---|---|\n| a | |\n";
    assert_eq!(promises(page), ["one", "two", "a"]);
    let list = "text\n\n# one\nlost::after_del\nscripts/chaos: client killed\n\n# two\n\n# a\nlost::nothing\nnot tested: no time\nguarantees::holder\n";
    let found: Vec<_> = tests_of(list).iter().map(|promise| faults(promise).len()).collect();
    assert_eq!(found, [0, 1, 2]);
}

/// Also of the method, and in each page that has one behind the name of its setting.
#[test]
fn the_defaults_in_seconds_are_those_in_the_documentation() {
    let (page, used) = (read("docs/operations.md"), format!("{:?}", leasehold::Client::builder()));
    let (builder, mut pages) = (read("src/client.rs"), pages("docs"));
    pages.push("README.md".into());
    let mut compared = Vec::new();
    for row in below(&page, "## Settings of the client") {
        let mut cells = row.split(" | ");
        let (Some(name), Some(default)) = (cells.next(), cells.next()) else { continue };
        let name = name.trim_start_matches("| ").trim_matches('`');
        if let [seconds, "s" | "s,", ..] = default.split(' ').collect::<Vec<_>>()[..] {
            assert!(used.contains(&format!(" {name}: {seconds}s,")), "{name} is not {seconds} s: {used}");
            let (before, _) = builder.split_once(&format!("    pub fn {name}(")).expect("a method of Builder");
            let docs = before.rsplit("\n\n").next().expect("a text has a last part");
            assert!(docs.contains(&format!("Defaults to {seconds} s")), "src/client.rs: {name}");
            for page in &pages {
                let text = fs::read_to_string(page).expect("it can be read");
                let named = between(&text, &format!("{name}` ("), ')');
                let wrong: Vec<_> = named.into_iter().filter(|said| is_another(said, seconds)).collect();
                assert!(wrong.is_empty(), "{}: {name} {wrong:?}", page.display());
            }
            compared.push(name);
        }
    }
    assert_eq!(compared, ["watchdog", "command_timeout", "outage_timeout", "slow_wait"]);
}

/// Seconds, and not so many.
fn is_another(said: &str, seconds: &str) -> bool {
    said.strip_suffix(" s").is_some_and(|said| said.parse::<u64>().is_ok() && said != seconds)
}

fn pages(folder: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).expect("a folder");
    let files = files.map(|file| file.expect("it can be read").path());
    files.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The text of a page without its code.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).flat_map(|part| part.split('`').step_by(2)).collect::<Vec<_>>().join(" ")
}

/// What follows each mark, up to the end.
fn between<'a>(text: &'a str, mark: &str, end: char) -> Vec<&'a str> {
    text.split(mark).skip(1).filter_map(|rest| rest.split_once(end)).map(|(inside, _)| inside).collect()
}

/// The anchors of the headings, as GitHub and rustdoc make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    let anchor = |heading: &str| -> String {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter)).collect()
    };
    headings.map(anchor).collect()
}

/// Whether `page.md`, `page.md#heading` or `#heading` is there, for a page of that folder.
fn leads_somewhere(from: &Path, link: &str) -> bool {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = if file.is_empty() { from.to_owned() } else { from.parent().expect("a folder").join(file) };
    if anchor.is_empty() {
        return path.exists();
    }
    fs::read_to_string(path).is_ok_and(|page| anchors(&page).contains(anchor))
}

/// Pages of docs/ are also in rustdoc. So they name the target of a link by its file, as in `[text][operations.md#cluster]`; the end of the page
/// says where that is in the repository, and src/guide_links.md where it is in rustdoc.
#[test]
fn links_of_the_guide_lead_somewhere_here_and_in_rustdoc() {
    let in_rustdoc = read("src/guide_links.md");
    let (mut faults, mut links) = (Vec::new(), 0);
    for path in pages("docs") {
        let page = fs::read_to_string(&path).expect("a page");
        let (prose, name) = (prose(&page), path.file_name().expect("a name").to_string_lossy().into_owned());
        let inline = between(&prose, "](", ')').into_iter();
        let inline = inline.filter(|link| !link.starts_with("http"));
        faults.extend(
            inline
                .clone()
                .filter(|link| !link.starts_with('#'))
                .map(|link| format!("{name}: ({link}) is dead in rustdoc")),
        );
        faults.extend(inline.filter(|link| !leads_somewhere(&path, link)).map(|link| format!("{name}: ({link})")));
        for label in between(&prose, "][", ']').into_iter().filter(|label| label.contains(".md")) {
            links += 1;
            let module = label.replacen(".md", "", 1);
            let (module, anchor) = module.split_once('#').unwrap_or((&module, ""));
            let hash = if anchor.is_empty() { "" } else { "#" };
            let there = format!("[{label}]: crate::guide::{}{hash}{anchor}\n", module.replace('-', "_"));
            let is_good = leads_somewhere(&path, label)
                && page.contains(&format!("\n[{label}]: {label}\n"))
                && in_rustdoc.contains(&there);
            faults.extend((!is_good).then(|| format!("{name}: [{label}]")));
        }
    }
    assert!(faults.is_empty() && links > 50, "{links} links: {faults:#?}");
}

#[test]
fn links_of_the_other_pages_lead_somewhere() {
    let (mut faults, mut links) = (Vec::new(), 0);
    for path in pages("").into_iter().chain(pages("docs/dev")) {
        let page = fs::read_to_string(&path).expect("a page");
        for link in between(&prose(&page), "](", ')').into_iter().filter(|link| !link.starts_with("http")) {
            links += 1;
            faults.extend((!leads_somewhere(&path, link)).then(|| format!("{}: {link}", path.display())));
        }
    }
    assert!(faults.is_empty() && links > 20, "{links} links: {faults:#?}");
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
    for File { folder, name: file, source } in files_of_it() {
        for (_, after) in source.match_indices(NIGHTLY).map(|(at, mark)| source[at..].split_at(mark.len())) {
            let name = after.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a test").0;
            let test = format!("{folder}::{file}::{name}");
            assert!(script.contains(&format!("  {test}\n")), "scripts/nightly lacks {test}");
            found += 1;
        }
    }
    let listed = script.lines().skip_while(|line| *line != "slow=(").skip(1).take_while(|line| *line != ")").count();
    assert_eq!(found, listed, "scripts/nightly names a test that is not marked");
}

/// A public item of a source, with the lines above it: its documentation and its attributes.
struct Item {
    signature: String,
    above: Vec<String>,
}

impl Item {
    fn says(&self, line: &str) -> bool {
        self.above.iter().any(|above| above == line)
    }

    fn has_example(&self) -> bool {
        self.above.iter().any(|line| line.starts_with("/// ```"))
    }

    fn is_async(&self) -> bool {
        self.signature.starts_with("pub async fn ") || self.returns().starts_with("impl Future")
    }

    fn can_fail(&self) -> bool {
        ["Result<", "Outcome<"].iter().any(|error| self.returns().contains(error))
    }

    fn returns(&self) -> &str {
        let signature = self.signature.split_once(" where ").map_or(&*self.signature, |(signature, _)| signature);
        signature.rsplit_once(") -> ").map_or("", |(_, returns)| returns)
    }

    /// The sections that its documentation lacks.
    fn lacks(&self) -> Vec<&'static str> {
        let needs = [(self.can_fail(), "/// # Errors"), (self.is_async(), "/// # Cancel safety")];
        needs.into_iter().filter(|(needs, section)| *needs && !self.says(section)).map(|(_, section)| section).collect()
    }
}

/// The items of a source that begin with one of these words, also those that its macros make; without those that rustdoc hides.
fn items(source: &str, beginnings: &[&str]) -> Vec<Item> {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let begins = |at: &usize| beginnings.iter().any(|beginning| lines[*at].starts_with(beginning));
    let item = |at: usize| {
        let last = (at..lines.len()).find(|at| lines[*at].ends_with(['{', ';'])).expect("an item has an end");
        let is_above = |line: &&&str| {
            line.starts_with("///") || line.starts_with('#') || !line.is_empty() && !line.ends_with(['{', '}', ';'])
        };
        let mut above: Vec<_> = lines[..at].iter().rev().take_while(is_above).map(|line| (*line).to_owned()).collect();
        above.reverse();
        Item { signature: lines[at..=last].join(" "), above }
    };
    (0..lines.len()).filter(begins).map(item).filter(|item| !item.says("#[doc(hidden)]")).collect()
}

/// The items of the crate, without those of the command.
fn public_items(beginnings: &[&str]) -> Vec<(String, Item)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).expect("the sources are there").map(|entry| entry.expect("readable").path());
        let (inner, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
        folders.extend(inner.into_iter().filter(|path| !path.ends_with("cli")));
        for file in files.iter().filter(|path| path.extension().is_some_and(|ext| ext == "rs")) {
            let source = fs::read_to_string(file).expect("it can be read");
            found.extend(items(&source, beginnings).into_iter().map(|item| (file.display().to_string(), item)));
        }
    }
    found
}

const CALLS: [&str; 2] = ["pub async fn ", "pub fn "];
const TYPES: [&str; 2] = ["pub struct ", "pub enum "];

#[test]
fn calls_say_which_errors_they_return_and_what_happens_if_they_are_dropped() {
    let calls = public_items(&CALLS);
    let count = |is: fn(&Item) -> bool| calls.iter().filter(|(_, call)| is(call)).count();
    let (waiting, failing) = (count(Item::is_async), count(Item::can_fail));
    assert!(waiting > 80 && failing > 160, "{waiting} calls that wait, {failing} that can fail");
    let faults: Vec<_> = calls.iter().filter(|(_, call)| !call.lacks().is_empty()).collect();
    let faults: Vec<_> =
        faults.iter().map(|(file, call)| format!("{file}: {}: {:?}", call.signature, call.lacks())).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn types_have_an_example() {
    let types = public_items(&TYPES);
    assert!(types.len() > 50, "{}", types.len());
    let faults: Vec<_> = types.iter().filter(|(_, one)| !one.has_example()).collect();
    let faults: Vec<_> = faults.iter().map(|(file, one)| format!("{file}: {}", one.signature)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_call_or_a_type_that_says_too_little_is_found() {
    let source = "
        /// Of another item.
        ///
        /// # Errors
        ///
        /// # Cancel safety
        fn other() {}
        /// Has one.
        ///
        /// # Errors
        #[must_use]
        pub async fn first(&self) -> Result<()> {
        }

        #[doc = concat!(\"Waits; \", $doc)]
        /// # Cancel safety
        #[expect(
            clippy::all,
            reason = \"none\"
        )]
        pub fn second(
            work: impl FnOnce() -> Result<()>,
        ) -> impl Future<Output = u8> {
        }
        /// # Errors
        pub fn third(&self) -> crate::Result<()> where F: Fn() -> W {
        }
        pub fn fourth<F>(self, f: F) -> Self where F: Fn() -> Result<()> {
        }
        #[doc(hidden)]
        pub async fn fifth(&self) -> Result<()> {
        }
        /// ```
        /// let x = S;
        /// ```
        #[derive(Debug)]
        pub struct S;
        /// No example.
        pub struct T {
        }
    ";
    let lacks: Vec<_> = items(source, &CALLS).iter().map(Item::lacks).collect();
    assert_eq!(lacks, [vec!["/// # Cancel safety"], vec![], vec![], vec![]]);
    assert_eq!(items(source, &TYPES).iter().map(Item::has_example).collect::<Vec<_>>(), [true, false]);
}

/// The value of a field of a row in benches/locks.json, which has a line for each row.
fn field<'a>(row: &'a str, name: &str) -> &'a str {
    let value = row.split_once(&format!("\"{name}\": \"")).and_then(|(_, rest)| rest.split_once('"'));
    value.unwrap_or_else(|| panic!("{row} has no {name}")).0
}

/// `scripts/bench --redraw` draws the table from the figures.
#[test]
fn the_page_of_the_benchmarks_shows_the_figures_as_they_are_kept() {
    let (figures, page) = (read("benches/locks.json"), read("docs/benchmarks.md"));
    let rows: Vec<_> = figures.lines().filter(|line| line.contains("\"what\"")).collect();
    let table: Vec<_> =
        page.lines().skip_while(|line| *line != "<!-- table -->").take_while(|line| *line != "<!-- end -->").collect();
    let shown = table.iter().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).skip(1);
    let shown: Vec<_> = shown.collect();
    assert!(rows.len() > 60 && shown.len() >= 25, "{} rows, {} on the page", rows.len(), shown.len());
    for (what, rest) in &shown {
        let row = rows.iter().find(|row| field(row, "what") == *what).unwrap_or_else(|| panic!("no figure of {what}"));
        assert!(rest.starts_with(&format!("{} | ", field(row, "measured"))), "{what}");
        assert_eq!(rest.contains(": not reached"), row.contains("\"reached\": false"), "{what}");
    }
    let missed = rows.iter().filter(|row| row.contains("\"reached\": false"));
    let hidden: Vec<_> = missed.filter(|row| !shown.iter().any(|(what, _)| *what == field(row, "what"))).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
}

/// The first words of the cells of the row of a table that begins so.
fn cells<'a>(page: &'a str, start: &str) -> Vec<&'a str> {
    let row = page.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("no row {start:?}"));
    row.split(" | ").filter_map(|cell| cell.split_whitespace().next()).collect()
}

/// `scripts/bench-peers` writes the page; the README has some of its figures.
#[test]
fn the_readme_has_figures_of_the_page_of_the_benchmarks() {
    const LIBRARIES: [&str; 4] = ["leasehold", "Redisson", "rslock", "redsync"];
    const ROWS: [(&str, &str); 3] = [
        (
            "from a release to the next holder in another process, median",
            "release to next holder, two processes: p50, ms",
        ),
        ("16 tasks of a process share one lock: turns per second", "one name, 16 tasks, no work: turns per second"),
        (
            "the same: turns of the worst-served task, where 1.00 is an even share",
            "one name, 16 tasks, no work: task with the fewest turns, in fair shares",
        ),
    ];
    let (readme, page) = (read("README.md"), read("docs/benchmarks.md"));
    let columns = cells(&page, "| | place ");
    let figures = |what: &str| {
        let row = cells(&page, &format!("| {what} | "));
        LIBRARIES.map(|name| row[columns.iter().position(|column| *column == name).expect("a column of this library")])
    };
    for (here, there) in ROWS {
        assert_eq!(cells(&readme, &format!("| {here} | "))[..4], figures(there), "{here}");
    }
    let [own, _, rslock, redsync] = figures("uncontended: p50 of lock + unlock, µs");
    let pair = format!("takes {own} µs; rslock {rslock}, redsync {redsync} |");
    assert!(readme.contains(&pair), "the README does not say {pair:?}");
}
