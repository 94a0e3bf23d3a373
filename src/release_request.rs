//! Asking a holder to release its lock: what it is told, and what became of the request.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::record::ClientRecord;

/// Somebody asks the holder to release its lock, see [`Guard::asked`](crate::Guard::asked).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// let guard = client.mutex("reindex").lock().await?;
/// # let lock = client.mutex("reindex");
/// # let asking = async move { while lock.ask("a deploy").await.is_ok_and(|outcome| outcome != leasehold::AskOutcome::Heard) {} };
/// # tokio::spawn(asking);
/// let request = guard.asked().await;
/// let process = request.by.map_or("a process".to_owned(), |by| by.program);
/// println!("{process} asks for the lock: {}", request.reason);
/// # assert_eq!(request.reason, "a deploy");
/// guard.unlock().await?;
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// Why.
    pub reason: String,
    /// The process that asks. `None` if it [writes no record](crate::Builder::announce).
    pub by: Option<ClientRecord>,
}

/// What became of a request to release a lock, see [`Lock::ask`](crate::Lock::ask).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doc.rs"));
/// # fn main() { run(async |client| {
/// use leasehold::AskOutcome;
///
/// let reindex = client.mutex("reindex");
/// assert_eq!(reindex.ask("a deploy needs the index").await?, AskOutcome::Free);
/// let _guard = reindex.lock().await?; // and does not wait for `Guard::asked`
/// assert_eq!(reindex.ask("a deploy needs the index").await?, AskOutcome::NotHeard);
/// # Ok(()) }) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "most holders do not listen"]
pub enum AskOutcome {
    /// Nobody holds the lock. Perhaps a [`min_hold`](crate::Lock::min_hold) keeps it after the work.
    Free,
    /// A holder listens, and the request was sent to it. Whether it releases the lock is its decision. A process that froze, or whose network
    /// failed just now, counts as well.
    Heard,
    /// The lock is held, and nobody listens: the holder does not call [`Guard::asked`](crate::Guard::asked), is a JVM, or has died.
    NotHeard,
}

const REASON: &str = "reason=";

impl ReleaseRequest {
    /// As it is sent.
    pub(crate) fn text(reason: &str, by: Option<&ClientRecord>) -> String {
        let by = by.map(|by| format!("&{}", by.text())).unwrap_or_default();
        format!("{REASON}{}{by}", utf8_percent_encode(reason, NON_ALPHANUMERIC))
    }

    /// Any other text, for example of `redis-cli PUBLISH`, is the reason.
    pub(crate) fn read(text: &str) -> ReleaseRequest {
        let Some(rest) = text.strip_prefix(REASON) else { return ReleaseRequest { reason: text.to_owned(), by: None } };
        let (reason, by) = rest.split_once('&').unwrap_or((rest, ""));
        let reason = percent_decode_str(reason).decode_utf8_lossy().into_owned();
        ReleaseRequest { reason, by: ClientRecord::read(by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests() {
        let by = ClientRecord::here(Some("deploy & more"));
        for by in [None, Some(&by)] {
            let read = ReleaseRequest::read(&ReleaseRequest::text("a=1&b 100% é", by));
            assert_eq!((&*read.reason, read.by.map(|by| by.label)), ("a=1&b 100% é", by.map(|by| by.label.clone())));
        }
        assert_eq!(ReleaseRequest::read("please"), ReleaseRequest { reason: "please".to_owned(), by: None });
    }
}
