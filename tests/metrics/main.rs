//! Every number of `Client::stats` reaches the recorder of the crate `metrics`, and docs/observing.md lists exactly these metrics.

#![cfg(all(feature = "metrics", feature = "test-util"))]

mod broken;
mod page;
mod recorder;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;
mod values;
