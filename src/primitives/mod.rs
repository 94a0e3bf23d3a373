//! Layer 3: what users hold. Each primitive is one file, its scripts, and a static table of them.

/// A script: the frame, what scripts of its primitive have in common, its own step, and the keys it needs beside the lock.
macro_rules! script {
    ($($file:literal),+ $(; $($key:expr),+)?) => {
        crate::engine::KindScript::new(
            concat!(include_str!("../redis/frame.lua"), $(include_str!($file)),+),
            &[$($($key),+)?],
        )
    };
}

mod fair;
mod fenced;
mod handle;
mod lock;
mod methods;
mod rw;

pub use fair::FairLock;
pub use fenced::{FencedGuard, FencedLock};
pub use handle::Holder;
pub use lock::Lock;
pub use rw::{ReadGuard, RwLock, RwState, WriteGuard};
