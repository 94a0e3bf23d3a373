//! Layer 3: the public lock types. Each type is one file, a folder of Lua scripts, and a static table of these scripts.

/// A script: the frame, the functions that the scripts of its lock type share, its own step, and the keys it needs beside the lock.
macro_rules! script {
    ($($file:literal),+ $(; $($key:expr),+)?) => { script!(new: $($file),+ $(; $($key),+)?) };
    ($made:ident: $($file:literal),+ $(; $($key:expr),+)?) => {
        crate::kind::KindScript::$made(
            concat!(include_str!("../redis/frame.lua"), $(include_str!($file)),+),
            &[$($($key),+)?],
        )
    };
}

mod fair;
mod fenced;
mod handle;
mod latch;
mod lock;
mod methods;
mod owed;
mod permit_count;
mod permits;
mod plain_semaphore;
mod rw;
mod semaphore;

pub use fair::FairLock;
#[cfg(feature = "blocking")]
pub(crate) use fenced::write_if_held;
pub use fenced::{FencedGuard, FencedLock};
#[cfg(not(leasehold_explore))] // only what is combined takes it
pub(crate) use handle::ActsFor;
pub use handle::Holder;
pub use latch::Latch;
pub use lock::Lock;
pub(crate) use methods::plain_inside;
#[cfg(feature = "blocking")]
pub(crate) use owed::OwedPermits;
pub use permits::Permits;
pub use plain_semaphore::PlainSemaphore;
#[cfg(feature = "blocking")]
pub(crate) use rw::Downgrade;
pub use rw::{ReadGuard, RwLock, RwState, WriteGuard};
pub use semaphore::Semaphore;
