//! Replaces `export.rs` if the feature `metrics` is off: nothing is exported.

use std::time::Duration;

use crate::events::{LockEvent, LockGauge, LockTime, Subject};

/// In place of each type of `export.rs`.
#[derive(Debug)]
pub(crate) struct NotExported;

pub(crate) type Exporter = NotExported;
pub(crate) type CounterHandle = NotExported;
pub(crate) type GaugeHandle = NotExported;
pub(crate) type HistogramHandle = NotExported;

impl NotExported {
    pub(crate) fn new<T>(_what: T) -> NotExported {
        NotExported
    }

    pub(crate) fn add<T>(&self, _change: T) {}

    pub(crate) fn record(&self, _time: Duration) {}

    pub(crate) fn count(&self, _lock: Subject<'_>, _event: LockEvent) {}

    pub(crate) fn gauge(&self, _lock: Subject<'_>, _gauge: LockGauge, _change: f64) {}

    pub(crate) fn time(&self, _lock: Subject<'_>, _time: LockTime, _length: Duration) {}
}
