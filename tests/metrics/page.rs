//! docs/observing.md, its dashboard and its alerts name the metrics that there are.

use std::{collections::BTreeSet, fs, path::Path};

use leasehold::{Client, MemoryServer};

use crate::recorder::Seen;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the page's tables that begin with a metric: name, type, labels, meaning.
fn rows(page: &str) -> BTreeSet<[String; 4]> {
    let rows = page.lines().filter(|line| line.starts_with("| `leasehold_"));
    rows.map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect();
        cells.try_into().unwrap_or_else(|cells| panic!("four cells: {cells:?}"))
    })
    .collect()
}

async fn all() -> Seen {
    let (server, seen) = (MemoryServer::new(), Seen::default());
    let _recorder = seen.here();
    let client = Client::in_memory(&server).expect("valid settings");
    client.mutex("x").lock().await.expect("free").unlock().await.expect("held");
    seen.clone()
}

#[tokio::test(start_paused = true)]
async fn the_table_is_what_the_code_describes() {
    let seen = all().await;
    let (described, registered) = (seen.described(), seen.registered());
    assert_eq!(described.keys().collect::<Vec<_>>(), registered.keys().collect::<Vec<_>>(), "each is described");
    let described = described.into_iter().map(|(name, metric)| {
        let labels = registered[&name].join(", ");
        [name, metric.sort.to_owned(), labels, metric.text]
    });
    assert_eq!(rows(&read("docs/observing.md")), described.collect());
}

#[tokio::test(start_paused = true)]
async fn units_are_in_the_names() {
    for (name, metric) in all().await.described() {
        let unit = metric.unit.expect("each has one").as_str();
        assert_eq!(name.ends_with("_seconds"), unit == "seconds", "{name}: {unit}");
        assert_eq!(name.ends_with("_total"), metric.sort == "counter", "{name} is a {}", metric.sort);
    }
}

/// The words that begin with `leasehold_`, without what Prometheus adds for histograms.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    let words = words.filter(|word| word.starts_with("leasehold_"));
    let endings = ["_bucket", "_sum", "_count"];
    words.map(|word| endings.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_dashboard_and_the_alerts_name_metrics_that_there_are() {
    let described = all().await.described();
    for file in ["docs/observing/dashboard.json", "docs/observing/alerts.yml"] {
        let named = named(&read(file));
        assert!(named.len() >= 4, "{file}: {named:?}");
        let unknown: Vec<_> = named.iter().filter(|name| !described.contains_key(*name)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

#[test]
fn the_page_explains_each_alert() {
    let (page, rules) = (read("docs/observing.md"), read("docs/observing/alerts.yml"));
    let explained: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("* **")?.split_once("**")).map(|(name, _)| name).collect();
    let alerts: BTreeSet<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert_eq!(explained, alerts);
}
