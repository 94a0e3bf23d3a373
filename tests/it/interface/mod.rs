//! The interface of the crate: errors, plain threads, records, runtimes and processes that end.

#[cfg(feature = "blocking")]
mod blocking;
mod errors;
mod records;
mod runtime_gone;
#[cfg(target_os = "linux")]
mod system;
