//! The interface of the crate: errors, plain threads, records, runtimes and processes that end.

#[cfg(feature = "blocking")]
mod blocking;
mod errors;
mod records;
mod runtime_gone;
#[cfg(all(target_os = "linux", feature = "blocking"))]
mod system;
