//! What the process logs.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
pub(crate) struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    /// Of the whole process, from now on, down to that level.
    pub(crate) fn install(level: Level) -> Sink {
        let sink = Sink::default();
        let all = tracing_subscriber::fmt().with_max_level(level).with_ansi(false);
        all.with_writer(sink.clone()).init();
        sink
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("nobody panicked").clone()).expect("text")
    }

    /// The lines of these levels.
    pub(crate) fn lines(&self, levels: &[&str]) -> Vec<String> {
        let is_one = |line: &&str| levels.iter().any(|level| line.contains(&format!(" {level} ")));
        self.text().lines().filter(is_one).map(str::to_owned).collect()
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panicked").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Sink {
    type Writer = Sink;

    fn make_writer(&self) -> Sink {
        self.clone()
    }
}
