//! A wall clock that a test sets, for a process that it starts.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use tempfile::TempDir;

const SOURCE: &str = "tests/support/shifted_clock.c";

/// The wall clock of processes that are started with its environment.
pub(crate) struct Clock {
    folder: TempDir,
    file: File,
}

impl Clock {
    /// Ahead by so many seconds.
    pub(crate) fn new(seconds: i64) -> Clock {
        let folder = TempDir::new().expect("a temporary folder");
        compile(&folder.path().join("clock.so"));
        let path = folder.path().join("seconds");
        fs::write(&path, seconds.to_ne_bytes()).expect("our own folder");
        let file = OpenOptions::new().write(true).open(path).expect("our own file");
        Clock { folder, file }
    }

    /// From now on.
    pub(crate) fn set(&self, seconds: i64) {
        // In place, and at once: the processes have the file in their memory.
        self.file.write_all_at(&seconds.to_ne_bytes(), 0).expect("our own file");
    }

    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let path = |name| self.folder.path().join(name).display().to_string();
        [("LD_PRELOAD".to_owned(), path("clock.so")), ("LEASEHOLD_TEST_CLOCK".to_owned(), path("seconds"))]
    }
}

/// The compiler is the one that links Rust programs.
fn compile(library: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(library).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(SOURCE));
    assert!(compiler.arg("-ldl").status().expect("cc is there").success(), "{SOURCE} does not compile");
}
