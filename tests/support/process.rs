//! This test binary run again, for one of its tests that is ignored otherwise. Killed with its handle.

use std::{
    env,
    process::{Child, Command, Stdio},
};

/// Tells a child process where its server is.
const URL: &str = "LEASEHOLD_TEST_URL";

pub(crate) struct Process(Child);

impl Process {
    /// Begins that test, `file::name`, in a process of its own.
    pub(crate) fn start(test: &str, url: &str) -> Process {
        Process::start_with(test, url, &[])
    }

    /// The same, with more variables in its environment.
    pub(crate) fn start_with(test: &str, url: &str, more: &[(&str, &str)]) -> Process {
        let mut command = Command::new(env::current_exe().expect("this test binary"));
        command.args(["--exact", test, "--ignored", "--nocapture"]).env(URL, url).stdout(Stdio::null());
        command.envs(more.iter().copied());
        Process(command.spawn().expect("it runs already"))
    }

    /// In the child: where its server is.
    pub(crate) fn url() -> String {
        env::var(URL).expect("started by another test")
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("our own child");
        self.0.wait().expect("our own child");
    }

    /// Whether it has ended, and well.
    pub(crate) fn is_done(&mut self) -> bool {
        let ended = self.0.try_wait().expect("our own child");
        ended.is_some_and(|status| {
            assert!(status.success(), "a child has failed");
            true
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
