//! A recorder that remembers everything.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString, Unit,
};

/// The recorder of the clients that the present thread creates.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    described: BTreeMap<String, Described>,
    counters: BTreeMap<Key, Arc<AtomicU64>>,
    gauges: BTreeMap<Key, Arc<AtomicU64>>,
    histograms: BTreeMap<Key, Arc<Samples>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) sort: &'static str,
    pub(crate) unit: Option<Unit>,
    pub(crate) text: String,
}

#[derive(Default)]
struct Samples(Mutex<Vec<f64>>);

impl HistogramFn for Samples {
    fn record(&self, value: f64) {
        self.0.lock().expect("no test panics in between").push(value);
    }
}

impl Seen {
    pub(crate) fn here(&self) -> LocalRecorderGuard<'_> {
        metrics::set_default_local_recorder(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics in between")
    }

    pub(crate) fn described(&self) -> BTreeMap<String, Described> {
        self.state().described.clone()
    }

    /// The names of the registered metrics, and the keys of their labels.
    pub(crate) fn registered(&self) -> BTreeMap<String, Vec<String>> {
        let state = self.state();
        let keys = state.counters.keys().chain(state.gauges.keys()).chain(state.histograms.keys());
        keys.map(|key| (key.name().to_owned(), key.labels().map(|label| label.key().to_owned()).collect())).collect()
    }

    /// The sum over all series of that name which have these labels, as in `kind=lock,way=woken`.
    pub(crate) fn counter(&self, name: &str, labels: &str) -> u64 {
        let state = self.state();
        let fitting = state.counters.iter().filter(|(key, _)| fits(key, name, labels));
        fitting.map(|(_, count)| count.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn has_counter(&self, name: &str, labels: &str) -> bool {
        self.state().counters.keys().any(|key| fits(key, name, labels))
    }

    pub(crate) fn gauge(&self, name: &str, labels: &str) -> f64 {
        let state = self.state();
        let fitting = state.gauges.iter().filter(|(key, _)| fits(key, name, labels));
        fitting.map(|(_, bits)| f64::from_bits(bits.load(Ordering::Relaxed))).sum()
    }

    pub(crate) fn times(&self, name: &str, labels: &str) -> Vec<f64> {
        let state = self.state();
        let fitting = state.histograms.iter().filter(|(key, _)| fits(key, name, labels));
        fitting.flat_map(|(_, samples)| samples.0.lock().expect("no test panics in between").clone()).collect()
    }
}

fn fits(key: &Key, name: &str, labels: &str) -> bool {
    let has = |(wanted, value): (&str, &str)| key.labels().any(|label| label.key() == wanted && label.value() == value);
    key.name() == name && labels.split(',').filter_map(|label| label.split_once('=')).all(has)
}

impl Recorder for Seen {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let described = Described { sort: "counter", unit, text: text.into_owned() };
        self.state().described.insert(name.as_str().to_owned(), described);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let described = Described { sort: "gauge", unit, text: text.into_owned() };
        self.state().described.insert(name.as_str().to_owned(), described);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        let described = Described { sort: "histogram", unit, text: text.into_owned() };
        self.state().described.insert(name.as_str().to_owned(), described);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.state().counters.entry(key.clone()).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::clone(self.state().gauges.entry(key.clone()).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(self.state().histograms.entry(key.clone()).or_default()))
    }
}
