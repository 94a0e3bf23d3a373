//! One load for every lock crate. `PROGRAM SECTION --url URL …` prints one line of JSON with numbers only; ../README.md
//! has the sections, which the programs in other languages share.

mod args;
mod hand_over;
mod held;
mod latch;
mod turns;

use std::{error::Error, future::Future, time::Duration};

pub use args::{Args, Kind, PERMITS};

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A lock crate, as its documentation says it should be used.
pub trait Client: Clone + Send + Sync + 'static {
    type Lock: Lock;
    /// What keeps a lock held and, where the crate can, renewed.
    type Held: Send;
    /// What [`Client::lock`] can make: that which the arguments name.
    const KINDS: &[Kind] = &[Kind::Lock];

    fn connect(args: &Args) -> impl Future<Output = Outcome<Self>> + Send;
    /// One for each task.
    fn lock(&self, name: &str) -> Self::Lock;
    fn hold(&self, name: String) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Makes what a name needs before it can be locked.
    fn prepare(&self, _name: &str) -> impl Future<Output = Outcome<()>> + Send {
        async { Ok(()) }
    }

    /// A latch: set, counted down, and waited for.
    fn set(&self, _name: &str) -> impl Future<Output = Outcome<()>> + Send {
        async { Err("no latch here".into()) }
    }

    fn count_down(&self, _name: &str) -> impl Future<Output = Outcome<()>> + Send {
        async { Err("no latch here".into()) }
    }

    fn wait(&self, _name: &str) -> impl Future<Output = Outcome<()>> + Send {
        async { Err("no latch here".into()) }
    }
}

pub trait Lock: Send + 'static {
    fn lock(&mut self) -> impl Future<Output = Outcome<()>> + Send;
    fn unlock(&mut self) -> impl Future<Output = Outcome<()>> + Send;
}

/// Runs the section that the arguments name; `packages` are those whose versions tell what was measured.
pub fn run<C: Client>(packages: &[&str]) -> Outcome<()> {
    let args = Args::parse()?;
    if args.section == "version" {
        println!("{}", packages.iter().map(|name| version(name)).collect::<Outcome<Vec<_>>>()?.join(", "));
        return Ok(());
    }
    // In a task, as most code is: the body of main has to be woken across threads for every answer.
    let section = async move { tokio::spawn(section::<C>(args)).await? };
    tokio::runtime::Runtime::new()?.block_on(section)
}

async fn section<C: Client>(args: Args) -> Outcome<()> {
    if !C::KINDS.contains(&args.kind) {
        return Err(format!("no such kind of lock here: {:?}", args.kind).into());
    }
    let client = C::connect(&args).await?;
    let json = match args.section.as_str() {
        "own-names" => turns::own_names(&client, &args).await?,
        "one-name" => turns::one_name(&client, &args).await?,
        "hand-over" => hand_over::inside(&client, &args).await?,
        "half" => hand_over::half(&client, &args).await?,
        "latch" => latch::latch(&client, &args).await?,
        "held" => held::held(&client, &args).await?,
        other => return Err(format!("no section {other}").into()),
    };
    println!("{{{json}}}");
    Ok(())
}

/// As locked, which is what was built.
fn version(package: &str) -> Outcome<String> {
    let (_, rest) = include_str!("../Cargo.lock")
        .split_once(&format!("name = \"{package}\"\nversion = \""))
        .ok_or_else(|| format!("{package} is not locked"))?;
    let (version, _) = rest.split_once('"').ok_or("no end of the version")?;
    Ok(format!("{package} {version}"))
}

/// Resident memory of this process in bytes.
fn resident() -> Outcome<f64> {
    let pages: f64 =
        std::fs::read_to_string("/proc/self/statm")?.split(' ').nth(1).ok_or("no second field")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}

/// Nanoseconds on a clock that all processes of the machine share.
fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
