//! The programs of docs/fencing.md, word for word, on a real Redis and a real SQLite with the page's own SQL.

#[allow(dead_code)]
#[path = "support/server.rs"]
mod server;

use std::error::Error;

use leasehold::Client;
use rusqlite::Connection;
use server::Server;

const PAGE: &str = include_str!("../docs/fencing.md");
type Outcome = Result<(), Box<dyn Error>>;

/// The blocks of the page in that language.
fn blocks(language: &str) -> Vec<&'static str> {
    let begins = format!("```{language}\n");
    PAGE.split(&begins).skip(1).map(|block| block.split("```").next().expect("its end").trim_end()).collect()
}

/// A table with the invoice, and the two statements of the page.
fn database() -> Result<(Connection, [&'static str; 2]), Box<dyn Error>> {
    let database = Connection::open_in_memory()?;
    database
        .execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, fence BIGINT NOT NULL)", ())?;
    let statements = blocks("sql").try_into().map_err(|_| "two statements")?;
    Ok((database, statements))
}

fn total(database: &Connection) -> Result<u64, rusqlite::Error> {
    database.query_row("SELECT total FROM invoice WHERE id = 42", (), |row| row.get(0))
}

#[test]
fn each_program_of_the_page_is_below() {
    let ours: Vec<_> = include_str!("fencing.rs").lines().map(str::trim).collect();
    let programs = blocks("rust,ignore");
    assert_eq!(programs.len(), 3);
    for program in programs {
        let lines: Vec<_> = program.lines().map(str::trim).collect();
        assert!(
            ours.windows(lines.len()).any(|window| window == lines),
            "not run as it stands on the page:\n{program}"
        );
    }
    assert!(!PAGE.contains("\n# include"), "hidden lines are shown on other sites");
}

#[tokio::test]
async fn a_database_refuses_the_late_writer() -> Outcome {
    let server = Server::start();
    let client = Client::connect(&server.url()).await?;
    let (database, [update, _]) = database()?;
    database.execute("INSERT INTO invoice VALUES (42, 0, 0)", ())?;
    let lock = client.fenced_lock("invoice:42").non_reentrant();
    let late = lock.lock().await?.token(); // this holder is paused here, and its lease expires
    let guard = lock.lock().await?;
    assert_eq!(database.execute(update, (100, guard.token(), guard.token()))?, 1);
    assert_eq!(database.execute(update, (7, late, late))?, 0, "the late writer changes no row");
    guard.unlock().await?;
    assert_eq!(total(&database)?, 100);
    Ok(())
}

/// The same where the row may not be there yet.
#[test]
fn a_database_refuses_the_late_writer_of_a_new_row() -> Outcome {
    let (database, [_, insert]) = database()?;
    for (total, fence, changed) in [(100, 2, 1), (7, 1, 0), (101, 2, 1), (102, 3, 1), (8, 2, 0)] {
        assert_eq!(database.execute(insert, (total, fence))?, changed, "{total} with token {fence}");
    }
    assert_eq!(total(&database)?, 102);
    Ok(())
}

#[tokio::test]
async fn a_service_refuses_the_late_writer() -> Outcome {
    let server = Server::start();
    let client = Client::connect(&server.url()).await?;
    use std::sync::Mutex;

    /// The newest token that wrote to the resource, and the text that it wrote. One lock around both makes it one step.
    #[derive(Default)]
    struct Resource(Mutex<(u64, String)>);

    impl Resource {
        /// Handles a `PUT` with `X-Fencing-Token` and returns the status.
        fn put(&self, fence: u64, body: &str) -> u16 {
            let mut state = self.0.lock().expect("nobody panics here");
            if fence < state.0 {
                return 409;
            }
            *state = (fence, body.to_owned());
            204
        }
    }

    let (resource, lock) = (Resource::default(), client.fenced_lock("report").non_reentrant());
    let late = lock.lock().await?.token();
    let status = lock.with(async |fence| resource.put(fence, "new")).await?;
    assert_eq!(status, 204);
    assert_eq!(resource.put(late, "old"), 409);
    Ok(())
}

#[tokio::test]
async fn redis_itself_refuses_the_late_writer() -> Outcome {
    let server = Server::start();
    let client = Client::connect(&server.url()).await?;
    let lock = client.fenced_lock("{report}:lock").non_reentrant();
    let guard = lock.lock().await?;
    guard.write_if_held("{report}:last", "monday").await?;
    lock.force_unlock().await?; // or its lease expires while the process is paused
    let refused = guard.write_if_held("{report}:last", "too late").await;
    assert!(refused.is_err_and(|error| error.is_lost()));
    assert_eq!(server.ask::<String>(&["GET", "{report}:last"]), "monday");
    Ok(())
}

#[test]
fn another_redis_refuses_the_late_writer() -> Outcome {
    let server = Server::start();
    let script = redis::Script::new(blocks("lua").first().ok_or("a script")?);
    let mut raw = server.raw();
    for (token, value, written) in [(2, "new", 1), (1, "late", 0), (2, "newer", 1)] {
        let answer: i32 = script.key("value").key("fence").arg(token).arg(value).invoke(&mut raw)?;
        assert_eq!(answer, written, "{value}");
    }
    assert_eq!(server.ask::<String>(&["GET", "value"]), "newer");
    Ok(())
}
