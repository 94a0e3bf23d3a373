//! A JVM with Redisson, told what to do line by line; `jvm/` has its side and describes the lines.

use std::{
    collections::HashMap,
    env,
    fmt::Debug,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use crate::support::{Server, ms, within};

/// Where the JVM's classes are, and which Redisson is among them.
const CLASSPATH: &str = "INTEROP_CLASSPATH";
const REDISSON: &str = "INTEROP_REDISSON";
/// The longest that any answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Below this the tests number the threads.
const FIRST_OF_ITS_OWN: u32 = 1_000;

/// Ended when dropped.
pub(crate) struct Jvm {
    child: Child,
    input: Mutex<Input>,
    open: Arc<Mutex<Questions>>,
    threads: AtomicU32,
}

struct Input {
    lines: ChildStdin,
    number: u64,
}

/// What was asked and not answered yet; gone when the JVM says nothing more.
type Questions = Option<HashMap<u64, oneshot::Sender<Answer>>>;

/// A command on its way.
#[must_use]
pub(crate) struct Asked {
    command: String,
    answer: oneshot::Receiver<Answer>,
}

/// What came of a command, and when it began and ended on the clock of [`clock`].
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) outcome: Result<String, String>,
}

impl Jvm {
    /// With Redisson's default settings.
    pub(crate) async fn start(server: &Server) -> Jvm {
        Jvm::with_watchdog(server, ms(30_000)).await
    }

    pub(crate) async fn with_watchdog(server: &Server, lease: Duration) -> Jvm {
        Jvm::at(&server.url(), lease).await
    }

    pub(crate) async fn at(url: &str, watchdog: Duration) -> Jvm {
        let mut child = spawn(url, watchdog);
        let open = Arc::new(Mutex::new(Some(HashMap::new())));
        listen(child.stdout.take().expect("piped"), Arc::clone(&open));
        let input = Mutex::new(Input { lines: child.stdin.take().expect("piped"), number: 0 });
        let jvm = Jvm { child, input, open, threads: AtomicU32::new(FIRST_OF_ITS_OWN) };
        jvm.introduce().await;
        jvm
    }

    /// Makes sure that it is the Redisson we were promised, and that its clock is ours.
    async fn introduce(&self) {
        let before = clock();
        let answer = self.ask(0, "version -").answer().await;
        assert!(before < answer.began && answer.ended < clock(), "the JVM has another clock: {answer:?}");
        assert_eq!(answer.outcome.expect("it knows"), needed(REDISSON));
    }

    /// The number of a thread that nobody has used.
    pub(crate) fn thread(&self) -> u32 {
        self.threads.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until that thread does nothing but wait for the end of a lease, or for a message.
    pub(crate) async fn sleeps(&self, thread: u32) {
        let sleeps = async {
            while !self.get::<bool>(0, &format!("sleeps - {thread}")).await {
                tokio::time::sleep(ms(2)).await;
            }
        };
        within("the JVM's thread to sleep", PATIENCE, sleeps).await;
    }

    /// Sends a command for one of its threads, at once.
    pub(crate) fn ask(&self, thread: u32, command: &str) -> Asked {
        let (sender, answer) = oneshot::channel();
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.number += 1;
        let number = input.number;
        questions(&self.open).as_mut().expect("the JVM is alive").insert(number, sender);
        input.lines.write_all(format!("{number} {thread} {command}\n").as_bytes()).expect("the JVM listens");
        Asked { command: command.to_owned(), answer }
    }

    /// Has a command done by one of its threads.
    pub(crate) async fn call(&self, thread: u32, command: &str) -> Answer {
        self.ask(thread, command).done().await
    }

    /// What that command says, as a value.
    pub(crate) async fn get<T: FromStr<Err: Debug>>(&self, thread: u32, command: &str) -> T {
        self.call(thread, command).await.value()
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }
}

impl Drop for Jvm {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Asked {
    pub(crate) async fn answer(self) -> Answer {
        let (answer, _) = within(&self.command, PATIENCE, self.answer).await;
        answer.unwrap_or_else(|_| panic!("the JVM has ended: {}", self.command))
    }

    /// What came of it if it went well; anything else fails the test.
    pub(crate) async fn done(self) -> Answer {
        let command = self.command.clone();
        let answer = self.answer().await;
        assert!(answer.outcome.is_ok(), "{command}: {answer:?}");
        answer
    }

    /// Whether [`Asked::answer`] has not to wait.
    pub(crate) fn is_answered(&self) -> bool {
        !self.answer.is_empty()
    }

    /// What it failed with.
    pub(crate) async fn refused(self) -> String {
        let command = self.command.clone();
        self.answer().await.outcome.expect_err(&command)
    }
}

impl Answer {
    pub(crate) fn value<T: FromStr<Err: Debug>>(&self) -> T {
        self.outcome.as_ref().expect("it went well").parse().expect("a value of that kind")
    }

    /// `NUMBER BEGAN ENDED ok VALUE` or `… error WHAT`.
    fn parse(line: &str) -> Option<(u64, Answer)> {
        let mut words = line.splitn(5, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (number, began, ended) = (number()?, number()?, number()?);
        let (outcome, text) = (words.next()?, words.next()?.to_owned());
        let outcome = if outcome == "ok" { Ok(text) } else { Err(text) };
        Some((number, Answer { began, ended, outcome }))
    }
}

/// Major and minor of its Redisson.
pub(crate) fn version() -> (u32, u32) {
    let version = needed(REDISSON);
    let mut numbers = version.split('.').map(|number| number.parse().expect("a number"));
    (numbers.next().expect("major"), numbers.next().expect("minor"))
}

/// Nanoseconds on a clock that all processes of the machine share, JVMs included.
pub(crate) fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn spawn(url: &str, watchdog: Duration) -> Child {
    Command::new("java")
        .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]) // it runs for seconds
        .args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"])
        .args(["-Dfile.encoding=UTF-8", "-cp", &needed(CLASSPATH), "leasehold.interop.Driver"])
        .args([url, &watchdog.as_millis().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("java is on the PATH: scripts/interop has built with it")
}

fn needed(variable: &str) -> String {
    env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: these tests are run by scripts/interop"))
}

/// Gives the answers to those who asked, until the JVM ends.
fn listen(output: ChildStdout, open: Arc<Mutex<Questions>>) {
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let (number, answer) = Answer::parse(&line).unwrap_or_else(|| panic!("not an answer: {line}"));
            let asker = questions(&open).as_mut().and_then(|open| open.remove(&number));
            let _ = asker.expect("every answer has a question").send(answer); // he may have left
        }
        questions(&open).take();
    });
}

fn questions(open: &Mutex<Questions>) -> MutexGuard<'_, Questions> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}
