//! The process behind a client: a small text on the server, so that each hold id names a process.

use std::{
    env,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::{
    contained::conn_event,
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
const FIRST: Duration = Duration::from_millis(200);
/// The end of a client waits for its record for no longer than this.
pub(crate) const REMOVAL: Duration = Duration::from_millis(200);

/// The process behind a hold: what its client has written about itself, see [`Builder::announce`](crate::Builder::announce).
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
}

impl ClientRecord {
    /// Of this process.
    pub(crate) fn here(label: Option<&str>) -> ClientRecord {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let program = env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let (pid, label) = (std::process::id(), label.map(str::to_owned));
        ClientRecord { host, pid, program: program.unwrap_or_default(), label, since: SystemTime::now() }
    }

    /// As it is on the server: one word.
    pub(crate) fn text(&self) -> String {
        let word = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let label = self.label.as_deref().map(|label| format!("&label={}", word(label))).unwrap_or_default();
        let (host, program) = (word(&self.host), word(&self.program));
        format!("host={host}&pid={}&program={program}&since={since}{label}", self.pid)
    }

    /// `None` if another program has written it.
    pub(crate) fn read(text: &str) -> Option<ClientRecord> {
        let field = |name: &str| {
            let value = text.split('&').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))?;
            Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
        };
        let since = UNIX_EPOCH.checked_add(Duration::from_millis(field("since")?.parse().ok()?))?;
        let (host, pid, program) = (field("host")?, field("pid")?.parse().ok()?, field("program")?);
        Some(ClientRecord { host, pid, program, label: field("label"), since })
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
    text: String,
    lasts: Duration,
    is_written: bool,
}

impl Announcement {
    /// It lasts for so long if it is not renewed.
    pub(crate) fn new(redis: Arc<Redis>, client: Uuid, label: Option<&str>, lasts: Duration) -> Announcement {
        Announcement { redis, client, text: ClientRecord::here(label).text(), lasts, is_written: false }
    }

    /// Writes it soon, and renews it. Ends if the server does not permit that.
    pub(crate) async fn keep(&mut self) {
        sleep(FIRST).await;
        loop {
            self.is_written = true; // it may arrive late
            let write = part(self.client).arg(&self.text).arg(self.lasts.as_millis()).done();
            if let Err(Fault::Denied(denial)) = self.redis.request(&WRITE, write).await {
                let lacks = denial.right.to_string();
                conn_event!(info, lacks, "no record says which process this is; locks need none");
                self.is_written = false;
                return;
            }
            sleep(self.lasts / 3).await;
        }
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
        let record = ClientRecord { label: Some("eu west&=%".to_owned()), ..ClientRecord::here(None) };
        let read = ClientRecord::read(&record.text()).expect("it was just written");
        assert_eq!((&read.host, read.pid, &read.label), (&record.host, record.pid, &record.label));
        assert!(!record.text().contains(' '));
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
