//! A wall clock that a test sets, for a process that it starts.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicI64, Ordering},
};

use tempfile::TempDir;

const SOURCE: &str = "tests/support/shifted_clock.c";

/// The wall clock of processes that are started with its environment.
pub(crate) struct Clock {
    folder: TempDir,
    file: File,
    seconds: AtomicI64,
}

impl Clock {
    /// Ahead by so many seconds.
    pub(crate) fn new(seconds: i64) -> Clock {
        let folder = TempDir::new().expect("a temporary folder");
        preloaded(SOURCE, folder.path());
        let path = folder.path().join("seconds");
        fs::write(&path, seconds.to_ne_bytes()).expect("our own folder");
        let file = OpenOptions::new().write(true).open(path).expect("our own file");
        Clock { folder, file, seconds: AtomicI64::new(seconds) }
    }

    /// From now on it is further ahead by so many seconds.
    pub(crate) fn move_by(&self, seconds: i64) {
        let seconds = self.seconds.fetch_add(seconds, Ordering::Relaxed) + seconds;
        // In place, and at once: the processes have the file in their memory.
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).expect("our own file");
    }

    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let path = |name| self.folder.path().join(name).display().to_string();
        [("LD_PRELOAD".to_owned(), path("preloaded.so")), ("LEASEHOLD_TEST_CLOCK".to_owned(), path("seconds"))]
    }
}

/// A library for `LD_PRELOAD`. The compiler is the one that links Rust programs.
pub(crate) fn preloaded(source: &str, folder: &Path) -> PathBuf {
    let library = folder.join("preloaded.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source));
    assert!(compiler.arg("-ldl").status().expect("cc is there").success(), "{source} does not compile");
    library
}
