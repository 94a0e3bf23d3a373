//! `leasehold doctor`: whether the servers suit locks, and what to do if they do not.

use std::time::{Duration, Instant, SystemTime};

use leasehold::{Client, Error, Server};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{args::Servers, exit::Failure, look::write};

/// The oldest server that the library is tested with.
const OLDEST: (u32, u32) = (6, 0);
/// Clocks that differ by fewer seconds make no difference to any kind of lock.
const CLOCK: u64 = 1;
/// A replica that is this much behind would lose the locks of that time in a failover.
const LAG: i64 = 5;
/// Scripts of other programs that are loaded without end take the memory of the server.
const SCRIPTS: i64 = 5_000;
/// Those that wait for a lock listen after their first request.
const SHORT_WAIT: Duration = Duration::from_millis(30);
/// A lock that is held for this long is one whose loss the server tells.
const TOLD_AFTER: Duration = Duration::from_millis(500);
const LONG_FOR_A_LOSS: Duration = Duration::from_secs(1);

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Good,
    /// Locks work, and may be lost when something fails.
    Risky,
    Bad,
}

#[derive(Debug)]
struct Finding {
    verdict: Verdict,
    server: String,
    what: &'static str,
    text: String,
    remedy: &'static str,
}

/// What `INFO` says, one `name:value` in each line.
struct Info(String);

pub(crate) async fn doctor(servers: &Servers, is_json: bool) -> Result<u8, Failure> {
    let client = servers.connect().await?;
    let mut findings = Vec::new();
    for server in client.servers().await? {
        let all = examine(&server).await;
        findings.extend(all.into_iter().map(|finding| Finding { server: server.address(), ..finding }));
    }
    findings.extend(permissions(&client, servers.prefix()).await);
    findings.push(told(&client, servers).await);
    let _ = client.close().await; // a release that is not permitted is among the findings
    let worst = findings.iter().map(|finding| finding.verdict).max();
    match is_json {
        true => write(&serde_json::Value::from_iter(findings.iter().map(Finding::json)).to_string())?,
        false => findings.iter().try_for_each(|finding| write(&finding.text()))?,
    }
    Ok(u8::from(worst == Some(Verdict::Bad)))
}

impl Finding {
    fn new(verdict: Verdict, what: &'static str, text: impl Into<String>, remedy: &'static str) -> Finding {
        Finding { verdict, server: "all".to_owned(), what, text: text.into(), remedy }
    }

    fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Good => "ok",
            Verdict::Risky => "risky",
            Verdict::Bad => "BAD",
        }
    }

    fn text(&self) -> String {
        let remedy = if self.verdict == Verdict::Good { String::new() } else { format!(". {}", self.remedy) };
        format!("{:<6}{:<22}{:<12}{}{remedy}", self.word(), self.server, self.what, self.text)
    }

    fn json(&self) -> serde_json::Value {
        let Finding { server, what, text, remedy, .. } = self;
        json!({ "verdict": self.word().to_lowercase(), "server": server, "what": what, "text": text, "remedy": remedy })
    }
}

async fn examine(server: &Server) -> Vec<Finding> {
    let info = Info(server.command(&["INFO"]).await.ok().and_then(|info| info.text()).unwrap_or_default());
    let of_info = [version(&info), memory(&info), persistence(&info), replicas(&info), scripts(&info)];
    let cluster = if info.number("cluster_enabled") == Some(1) { cluster(server).await } else { None };
    of_info.into_iter().chain([cluster, clock(server).await]).flatten().collect()
}

impl Info {
    fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    }

    fn number(&self, name: &str) -> Option<i64> {
        self.field(name)?.parse().ok()
    }
}

fn version(info: &Info) -> Option<Finding> {
    let Some(version) = info.field("redis_version") else {
        let remedy = "Permit INFO for this user to see more";
        return Some(Finding::new(Verdict::Risky, "version", "the server does not say", remedy));
    };
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    let is_old = numbers.next().zip(numbers.next()).is_some_and(|numbers| numbers < OLDEST);
    let verdict = if is_old { Verdict::Bad } else { Verdict::Good };
    let valkey = info.field("valkey_version").map(|version| format!("Valkey {version}"));
    let text = valkey.unwrap_or_else(|| format!("Redis {version}"));
    Some(Finding::new(verdict, "version", text, "Use Redis 6.0 or later, or Valkey"))
}

fn memory(info: &Info) -> Option<Finding> {
    let (policy, limit) = (info.field("maxmemory_policy")?, info.number("maxmemory").unwrap_or_default());
    let verdict = match (policy, limit) {
        ("noeviction", _) => Verdict::Good,
        (_, 0) => Verdict::Risky,
        _ => Verdict::Bad,
    };
    let limit = if limit == 0 { "without a limit".to_owned() } else { format!("limit {} MB", limit >> 20) };
    let remedy = "Set maxmemory-policy to noeviction: else the server may delete locks that are held";
    Some(Finding::new(verdict, "memory", format!("{limit}, maxmemory-policy {policy}"), remedy))
}

fn persistence(info: &Info) -> Option<Finding> {
    let status = ["rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status"];
    if let Some(failed) = status.into_iter().find(|name| info.field(name) == Some("err")) {
        let remedy = "Look at the server's log: the disk may be full";
        return Some(Finding::new(Verdict::Bad, "persistence", format!("{failed} is err"), remedy));
    }
    let is_on = info.number("aof_enabled")? == 1;
    let (verdict, text) = if is_on { (Verdict::Good, "appendonly yes") } else { (Verdict::Risky, "appendonly no") };
    let remedy =
        "A restart loses the locks since the last snapshot. Set appendonly to yes, best with appendfsync always";
    Some(Finding::new(verdict, "persistence", text, remedy))
}

fn replicas(info: &Info) -> Option<Finding> {
    if info.field("role").is_some_and(|role| role != "master") {
        let remedy = "Connect to the master, or through sentinels";
        return Some(Finding::new(Verdict::Bad, "replicas", "this is a replica", remedy));
    }
    let all = info.number("connected_slaves")?;
    let lag = |replica: &str| replica.split(',').find_map(|field| field.strip_prefix("lag=")?.parse::<i64>().ok());
    let is_late = |replica: &&str| !replica.contains("state=online") || lag(replica).is_none_or(|lag| lag > LAG);
    let late = (0..all).filter_map(|n| info.field(&format!("slave{n}"))).filter(is_late).count();
    Some(match (all, late) {
        (0, _) => Finding::new(Verdict::Risky, "replicas", "none", "If this machine is lost, so are all locks"),
        (_, 0) => Finding::new(Verdict::Good, "replicas", format!("{all}, none is late"), ""),
        _ => {
            let text = format!("{late} of {all} are not connected, or more than {LAG} s late");
            let remedy = "A failover would lose the locks of that time. Look at the log of the replica";
            Finding::new(Verdict::Bad, "replicas", text, remedy)
        }
    })
}

fn scripts(info: &Info) -> Option<Finding> {
    let scripts = info.number("number_of_cached_scripts")?;
    let verdict = if scripts > SCRIPTS { Verdict::Risky } else { Verdict::Good };
    let remedy = "A program loads new scripts without end, which take memory. leasehold has about thirty";
    Some(Finding::new(verdict, "scripts", format!("{scripts} in the cache"), remedy))
}

async fn cluster(server: &Server) -> Option<Finding> {
    let info = Info(server.command(&["CLUSTER", "INFO"]).await.ok()?.text()?);
    let (state, slots) = (info.field("cluster_state")?, info.number("cluster_slots_ok")?);
    let verdict = if (state, slots) == ("ok", 16_384) { Verdict::Good } else { Verdict::Bad };
    let text = format!("state {state}, {slots} of 16384 slots are served");
    let remedy = "Locks in the other slots cannot be acquired. CLUSTER NODES names the masters that are down";
    Some(Finding::new(verdict, "cluster", text, remedy))
}

async fn clock(server: &Server) -> Option<Finding> {
    let time = server.command(&["TIME"]).await.ok()?;
    let seconds = u64::try_from(time.items().first()?.int()?).ok()?;
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let apart = ours.abs_diff(seconds);
    let verdict = if apart > CLOCK { Verdict::Risky } else { Verdict::Good };
    let remedy = "JVMs put times of their own clocks into fair locks and semaphores. Let NTP set both clocks";
    Some(Finding::new(verdict, "clock", format!("{apart} s from that of this machine"), remedy))
}

/// Whether a holder learns of the loss of its lock before its next renewal.
async fn told(client: &Client, servers: &Servers) -> Finding {
    const REMEDY: &str = "Holders learn of a lost lock at their next renewal, within a third of the lease: a proxy is in between, or \
                          this user needs +client|tracking and +client|caching";
    match loss(client, servers).await {
        Ok(Some(after)) => Finding::new(Verdict::Good, "losses", format!("told after {} ms", after.as_millis()), ""),
        Ok(None) => Finding::new(Verdict::Risky, "losses", "not told by the server", REMEDY),
        Err(failure) => Finding::new(Verdict::Risky, "losses", failure.message, REMEDY),
    }
}

/// The time from a `DEL` by another client until the holder knows. `None` if it is too long for a server that tells.
async fn loss(client: &Client, servers: &Servers) -> Result<Option<Duration>, Failure> {
    let other = servers.connect().await?;
    let name = format!("leasehold:doctor:loss:{}", client.id()); // no other doctor has it
    let guard = client.mutex(&name).lock().await?;
    sleep(TOLD_AFTER).await;
    let start = Instant::now();
    command(&other, &["DEL", &format!("{}{name}", servers.prefix())]).await?;
    Ok(timeout(LONG_FOR_A_LOSS, guard.lost()).await.is_ok().then(|| start.elapsed()))
}

/// Acquires a lock, waits for it as another owner, and releases it.
macro_rules! contended {
    ($lock:expr, $acquire:ident) => {
        async {
            let lock = $lock;
            let first = lock.$acquire(SHORT_WAIT).await?;
            lock.$acquire(SHORT_WAIT).await?;
            if let Some(guard) = first { guard.unlock().await } else { Ok(()) }
        }
        .await
    };
}

/// Uses each kind of lock once. The names are always the same, so nothing is left that the next doctor does not remove.
async fn permissions(client: &Client, prefix: &str) -> Vec<Finding> {
    const RULES: &str = "The operations guide lists the commands and keys of each kind of lock";
    const RECORD: &str = "Locks work, but no record says which process holds one: permit the keys leasehold:client:*";
    let tries = [
        ("lock", contended!(client.mutex("leasehold:doctor:lock"), try_lock_for)),
        ("fair", contended!(client.fair_lock("leasehold:doctor:fair").non_reentrant(), try_lock_for)),
        ("fenced", contended!(client.fenced_lock("leasehold:doctor:fenced").non_reentrant(), try_lock_for)),
        ("reading", contended!(client.rw_lock("leasehold:doctor:rw").non_reentrant(), try_read_for)),
        ("writing", contended!(client.rw_lock("leasehold:doctor:rw").non_reentrant(), try_write_for)),
        ("semaphore", permits(client).await),
        ("records", command(client, &["SET", "leasehold:client:doctor", "", "PX", "1"]).await),
    ];
    for key in [
        format!("{prefix}leasehold:doctor:permits"),
        format!("redisson_lock_token:{{{prefix}leasehold:doctor:fenced}}"),
    ] {
        let _ = command(client, &["DEL", &key]).await; // else they would stay forever
    }
    let found = |(what, tried): (&'static str, Result<(), Error>)| match tried {
        Ok(()) => Finding::new(Verdict::Good, what, "permitted", ""),
        Err(error) => {
            let (verdict, remedy) = match &error {
                _ if what == "records" => (Verdict::Risky, RECORD),
                Error::Denied { .. } => (Verdict::Bad, RULES),
                _ => (Verdict::Bad, "The server does not accept this now"),
            };
            Finding::new(verdict, what, Failure::from(error).message, remedy)
        }
    };
    tries.into_iter().map(found).collect()
}

async fn permits(client: &Client) -> Result<(), Error> {
    let semaphore = client.semaphore("leasehold:doctor:permits");
    semaphore.set_permits(1).await?;
    let permits = semaphore.try_acquire_for(1, SHORT_WAIT).await?;
    semaphore.try_acquire_for(1, SHORT_WAIT).await?;
    if let Some(permits) = permits { permits.release().await } else { Ok(()) }
}

/// On the server that has the key. The others of a cluster refuse it.
async fn command(client: &Client, words: &[&str]) -> Result<(), Error> {
    for server in client.servers().await? {
        if let Err(error @ Error::Denied { .. }) = server.command(words).await {
            return Err(error);
        }
    }
    Ok(())
}
