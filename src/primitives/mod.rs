//! Layer 3: what users hold. Each primitive is one file, its scripts, and a static table of them.

mod lock;

pub use lock::{Holder, Lock};
