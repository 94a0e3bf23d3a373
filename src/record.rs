//! The process behind a client: a small text on the server, so that each hold id names a process.

use std::{
    env,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::{
    clock::Moment,
    contained::conn_event,
    error::Blocked,
    redis::{Code, Fault, Part, PartBuilder, Redis, Script},
    sync::tokio,
};

macro_rules! script {
    ($file:literal) => {
        Script::new(concat!(include_str!("redis/frame.lua"), include_str!($file)))
    };
}

static WRITE: Script = script!("record/write.lua");
static REMOVE: Script = script!("record/remove.lua");
static READ: Script = script!("record/read.lua");

/// From the first use of a lock to the record. Programs that end sooner leave none: it would cost them as much as the lock.
pub(crate) const FIRST: Duration = Duration::from_millis(200);
/// The end of a client waits for its record for no longer than this.
pub(crate) const REMOVAL: Duration = Duration::from_millis(200);

/// A record has no more waits, and no more holds of each of them.
const MOST: usize = 64;
/// The text of a record gets no more waits once it is so long.
const MOST_TEXT: usize = 32 * 1024;

/// The process behind a hold: what its client has written about itself, see [`Builder::announce`](crate::Builder::announce).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// if let Some(holder) = client.mutex("nightly-report").inspect().await?
///     && let Some(process) = holder.client
/// {
///     println!("held by {} (process {} on {})", process.program, process.pid, process.host);
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientRecord {
    /// The name of the machine, or of the container.
    pub host: String,
    /// The id of the process on that machine.
    pub pid: u32,
    /// The file name of the program.
    pub program: String,
    /// The [`client_name`](crate::Builder::client_name), if one was set.
    pub label: Option<String>,
    /// When the client was made, by the clock of its machine.
    pub since: SystemTime,
    /// Calls that have waited for longer than [`slow_wait`](crate::Builder::slow_wait), and whose owners hold other locks.
    pub waits: Vec<Wait>,
    /// Counts the records that the client has written with these waits.
    pub(crate) round: u64,
}

/// A call that waits for a lock while its owner holds others, see [`ClientRecord::waits`].
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// if let Some(holder) = client.lock("account:1").inspect().await?
///     && let Some(process) = holder.client
/// {
///     for wait in process.waits {
///         println!("the holder's process waits for {} since {:?}", wait.name, wait.since);
///     }
/// }
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// No other wait for this name by this client has it.
    pub(crate) id: String,
    /// The key in Redis of the lock that it waits for: the name of the lock, with the prefix of the client.
    pub name: String,
    /// When the wait began, by the clock of its machine.
    pub since: SystemTime,
    /// The ids of the holders of that lock, as far as the client knows them.
    pub holders: Vec<String>,
    /// What the owner of the call holds: keys in Redis, and the ids of the holds.
    pub holds: Vec<(String, String)>,
    /// The circle of which this is the youngest wait, itself first. Empty if the client has found none.
    pub deadlock: Vec<Blocked>,
}

/// The clock of the machine, as it was once read: each moment always has the same time.
#[derive(Debug)]
pub(crate) struct WallClock(Moment, SystemTime);

impl WallClock {
    pub(crate) fn read() -> WallClock {
        WallClock(Moment::now(), SystemTime::now())
    }

    /// In whole milliseconds, as in a record.
    pub(crate) fn at(&self, moment: Moment) -> SystemTime {
        let time = self.1 + moment.since(self.0);
        let time = time.checked_sub(self.0.since(moment)).unwrap_or(UNIX_EPOCH);
        UNIX_EPOCH + Duration::from_millis(millis(time))
    }
}

fn millis(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

fn time(millis: &str) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis.parse().ok()?))
}

/// As it is in a record: nothing in it separates fields.
fn encoded(word: &str) -> String {
    utf8_percent_encode(word, NON_ALPHANUMERIC).to_string()
}

fn decoded(word: &str) -> String {
    percent_decode_str(word).decode_utf8_lossy().into_owned()
}

/// What is between commas; nothing in an empty text.
fn listed(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|word| !word.is_empty())
}

fn pair(text: &str) -> Option<(String, String)> {
    text.split_once(':').map(|(one, other)| (decoded(one), decoded(other)))
}

impl Wait {
    /// The youngest of several waits has the greatest one. No other wait of its client has it.
    pub(crate) fn age(&self) -> (SystemTime, &str, &str) {
        (self.since, &self.name, &self.id)
    }

    fn text(&self) -> String {
        let pair = |one: &str, other: &str| format!("{}:{}", encoded(one), encoded(other));
        let holders: Vec<_> = self.holders.iter().take(MOST).map(|id| encoded(id)).collect();
        let holds: Vec<_> = self.holds.iter().take(MOST).map(|(name, id)| pair(name, id)).collect();
        let circle: Vec<_> = self.deadlock.iter().take(MOST).map(|one| pair(&one.name, &one.process)).collect();
        let (id, name, since) = (encoded(&self.id), encoded(&self.name), millis(self.since));
        format!("{id};{name};{since};{};{};{}", holders.join(","), holds.join(","), circle.join(","))
    }

    fn read(text: &str) -> Option<Wait> {
        let fields: Vec<_> = text.split(';').collect();
        let [id, name, since, holders, holds, circle, ..] = fields[..] else { return None };
        Some(Wait {
            id: decoded(id),
            name: decoded(name),
            since: time(since)?,
            holders: listed(holders).map(decoded).collect(),
            holds: listed(holds).filter_map(pair).collect(),
            deadlock: listed(circle).filter_map(pair).map(|(name, process)| Blocked { name, process }).collect(),
        })
    }
}

impl ClientRecord {
    /// Of this process.
    pub(crate) fn here(label: Option<&str>) -> ClientRecord {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let program = env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let (pid, label) = (std::process::id(), label.map(str::to_owned));
        let (program, since) = (program.unwrap_or_default(), SystemTime::now());
        ClientRecord { host, pid, program, label, since, waits: Vec::new(), round: 0 }
    }

    /// The process, for messages.
    pub(crate) fn process(&self) -> String {
        let label = self.label.as_ref().map(|label| format!(" [{label}]")).unwrap_or_default();
        format!("{} {} on {}{label}", self.program, self.pid, self.host)
    }

    /// As it is on the server: one word.
    pub(crate) fn text(&self) -> String {
        let label = self.label.as_deref().map(|label| format!("&label={}", encoded(label))).unwrap_or_default();
        let (host, program, since) = (encoded(&self.host), encoded(&self.program), millis(self.since));
        let mut text = format!("host={host}&pid={}&program={program}&since={since}{label}", self.pid);
        if !self.waits.is_empty() {
            text += &format!("&round={}", self.round);
        }
        for wait in self.waits.iter().take(MOST) {
            if text.len() < MOST_TEXT {
                text += &format!("&wait={}", wait.text());
            }
        }
        text
    }

    /// `None` if another program has written it.
    pub(crate) fn read(text: &str) -> Option<ClientRecord> {
        let fields =
            |name: &'static str| text.split('&').filter_map(move |field| field.strip_prefix(name)?.strip_prefix('='));
        let field = |name| fields(name).next().map(decoded);
        let since = time(&field("since")?)?;
        let (host, pid, program) = (field("host")?, field("pid")?.parse().ok()?, field("program")?);
        let waits = fields("wait").filter_map(Wait::read).collect();
        let round = field("round").and_then(|round| round.parse().ok()).unwrap_or(0);
        Some(ClientRecord { host, pid, program, label: field("label"), since, waits, round })
    }
}

/// The client whose holds have this id. `None` for a JVM, and for permits, whose ids do not have all of it.
pub(crate) fn client_of(id: &str) -> Option<Uuid> {
    let client = Uuid::try_parse(id.get(..36)?).ok()?;
    (client.get_version_num() == 8).then_some(client)
}

fn part(client: Uuid) -> PartBuilder {
    Part::of(&format!("leasehold:client:{}", client.as_hyphenated()))
}

/// What this client has written, if it has; `None` as well if the server does not permit or know it.
pub(crate) async fn look_up(redis: &Redis, client: Uuid, time: Duration) -> Option<ClientRecord> {
    let answer = timeout(time, redis.request(&READ, part(client).done())).await.ok()?.ok()?;
    let [text] = answer.words()?;
    ClientRecord::read(text).filter(|_| answer.code == Code::Held)
}

/// The record of one client on the server.
#[derive(Debug)]
pub(crate) struct Announcement {
    redis: Arc<Redis>,
    client: Uuid,
    record: ClientRecord,
    lasts: Duration,
    is_written: bool,
    /// It is to be written again then.
    due: Instant,
}

impl Announcement {
    /// It lasts for so long if it is not renewed.
    pub(crate) fn new(redis: Arc<Redis>, client: Uuid, record: ClientRecord, lasts: Duration) -> Announcement {
        Announcement { redis, client, record, lasts, is_written: false, due: Instant::now() }
    }

    /// The time until it is to be renewed.
    pub(crate) fn rest(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Writes it with these waits, unless it is there without any and not to be renewed yet. False if the server does not permit it.
    pub(crate) async fn write(&mut self, waits: Vec<Wait>) -> bool {
        if waits.is_empty() && self.record.waits.is_empty() && !self.rest().is_zero() {
            return true;
        }
        self.record.waits = waits;
        self.record.round += 1;
        self.is_written = true; // it may arrive late
        let write = part(self.client).arg(self.record.text()).arg(self.lasts.as_millis()).done();
        let written = self.redis.request(&WRITE, write).await;
        self.due = Instant::now() + self.lasts / 3;
        if let Err(Fault::Denied(denial)) = written {
            let lacks = denial.right.to_string();
            conn_event!(info, lacks, "no record says which process this is; locks need none");
            self.is_written = false;
        }
        self.is_written
    }

    /// The client ends.
    pub(crate) async fn remove(self) {
        if self.is_written {
            let _ = timeout(REMOVAL, self.redis.request(&REMOVE, part(self.client).done())).await; // else it expires
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let clock = WallClock::read();
        let since = clock.at(Moment::now());
        assert_eq!(clock.at(clock.0 + Duration::from_secs(1)), clock.at(clock.0) + Duration::from_secs(1));
        let wait = |deadlock| Wait {
            id: "7-1".to_owned(),
            name: "a;b,c:d &".to_owned(),
            since,
            holders: vec!["one:1".to_owned(), "two:2:write".to_owned()],
            holds: vec![("e:".to_owned(), "three:3".to_owned()), (",".to_owned(), "three:4".to_owned())],
            deadlock,
        };
        let blocked = Blocked { name: "a:b".to_owned(), process: "it 12 on host".to_owned() };
        let waits = vec![wait(Vec::new()), wait(vec![blocked.clone(), blocked])];
        let label = Some("eu west&=%".to_owned());
        let record = ClientRecord { label, since, waits, round: 5, ..ClientRecord::here(None) };
        assert_eq!(ClientRecord::read(&record.text()), Some(record.clone()));
        assert!(!record.text().contains(' '));
        let many = ClientRecord { waits: vec![record.waits[0].clone(); 10_000], ..record };
        assert_eq!(ClientRecord::read(&many.text()).map(|read| read.waits.len()), Some(MOST));
        for other in
            ["", "host=a", "host=a&pid=x&program=b&since=1", "host=a&pid=1&program=b&since=99999999999999999999"]
        {
            assert_eq!(ClientRecord::read(other), None, "{other}");
        }
    }

    #[test]
    fn ids_of_clients() {
        assert!(client_of("6b1c7d3e-0000-8000-8000-000000000001:1:write").is_some());
        assert_eq!(client_of("285475da-9152-4c83-822a-67ee2f116a79:52"), None, "a JVM");
        assert_eq!(client_of("6b1c7d3e0000"), None);
    }
}
