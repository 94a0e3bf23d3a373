//! A recorder whose metrics panic is code of the program: the client goes on without it.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use crate::support::{Server, client, ms, until, within};

#[derive(Default)]
struct Broken {
    is_broken: AtomicBool,
    panics: AtomicU64,
}

impl Broken {
    fn used(&self) {
        if self.is_broken.load(Ordering::SeqCst) {
            self.panics.fetch_add(1, Ordering::SeqCst);
            panic!("the recorder is broken");
        }
    }
}

impl CounterFn for Broken {
    fn increment(&self, _: u64) {
        self.used();
    }

    fn absolute(&self, _: u64) {
        self.used();
    }
}

impl GaugeFn for Broken {
    fn increment(&self, _: f64) {
        self.used();
    }

    fn decrement(&self, _: f64) {
        self.used();
    }

    fn set(&self, _: f64) {
        self.used();
    }
}

impl HistogramFn for Broken {
    fn record(&self, _: f64) {
        self.used();
    }
}

struct BrokenRecorder(Arc<Broken>);

impl Recorder for BrokenRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(&self.0))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::clone(&self.0))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::clone(&self.0))
    }
}

#[tokio::test]
async fn a_recorder_that_panics_ends_nothing() {
    let server = Server::start();
    let broken = Arc::new(Broken::default());
    let recorder = BrokenRecorder(Arc::clone(&broken));
    let here = metrics::set_default_local_recorder(&recorder);
    let client = client(&server, |builder| builder.watchdog(ms(3_000))).await;
    crate::values::first_use(&client).await;
    drop(here);
    broken.is_broken.store(true, Ordering::SeqCst);
    let mut guards = Vec::new();
    for n in 0..40 {
        let (acquired, _) = within("a lock", ms(5_000), client.lock(&format!("x-{n}")).lock()).await;
        guards.push(acquired.expect("free"));
    }
    let renewed = client.stats().total.renewals;
    until("three renewals of each", ms(30_000), || client.stats().total.renewals >= renewed + 3 * 40).await;
    for guard in guards {
        within("a release", ms(5_000), guard.unlock()).await.0.expect("ours to the end");
    }
    assert!(broken.panics.load(Ordering::SeqCst) > 100);
}
