//! placeholder
mod client;
mod clock;
mod config;
mod engine;
mod error;
mod owner;
mod primitives;
mod redis;
mod stats;

pub use client::{Builder, Client};
pub use engine::Guard;
pub use error::{Error, Lost, Result};
pub use owner::Owner;
pub use primitives::{Holder, Lock};
pub use stats::Stats;
