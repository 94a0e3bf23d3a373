//! A host name may have several addresses, and one of them may never reply.

use std::{future::Future, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::timeout;

use super::target::Target;
use crate::redis::fault::Fault;

/// The next address is tried when one has not replied for this part of the command timeout.
const HEAD_STARTS: u32 = 8;

/// Opens the first address of this server that works.
pub(super) async fn at_any_address<T, F>(
    target: Target,
    command_timeout: Duration,
    open: impl Fn(Target) -> F,
) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let places = target.each_address(command_timeout).await?;
    first_of(places, command_timeout / HEAD_STARTS, open).await
}

/// The first address that opens. The next one is tried as soon as one has failed, or has had its head start. If a server refuses the login,
/// no other address is tried.
async fn first_of<P, T, F>(places: Vec<P>, head_start: Duration, open: impl Fn(P) -> F) -> Result<T, Fault>
where
    F: Future<Output = Result<T, Fault>>,
{
    let mut places = places.into_iter();
    let (mut trying, mut last) = (FuturesUnordered::new(), None);
    loop {
        trying.extend(places.next().map(&open));
        let wait = if places.len() == 0 { Duration::MAX } else { head_start };
        match timeout(wait, trying.next()).await {
            Ok(Some(Ok(opened))) => return Ok(opened),
            Ok(Some(Err(fault @ Fault::Denied(_)))) => return Err(fault),
            Ok(Some(Err(fault))) => last = Some(fault),
            Ok(None) => return Err(last.unwrap_or_else(|| Fault::not_sent("the host has no address"))),
            Err(_slow) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// The behavior of each address: never replies, fails, or replies.
    async fn at(place: &'static str) -> Result<&'static str, Fault> {
        match place {
            "swallows" => pending().await,
            "fails" => Err(Fault::not_sent("refused")),
            "denies" => Err(Fault::said("NOAUTH")),
            place => Ok(place),
        }
    }

    #[tokio::test]
    async fn one_address_that_swallows_everything_does_not_use_up_the_time() {
        let first = async |places: &[&'static str], head_start| {
            let found = first_of(places.to_vec(), head_start, at);
            timeout(Duration::from_secs(5), found).await.expect("in time")
        };
        let (soon, late) = (Duration::from_millis(20), Duration::from_secs(60));
        assert_eq!(first(&["swallows", "swallows", "fails", "well"], soon).await.expect("the last"), "well");
        assert_eq!(first(&["fails", "well"], late).await.expect("at once"), "well");
        assert!(matches!(first(&["denies", "well"], late).await, Err(Fault::Denied(_))));
        assert!(matches!(first(&["fails", "fails"], late).await, Err(Fault::NotSent(_))));
        assert!(first(&[], late).await.is_err());
    }
}
