//! The service of a user of this crate, with unit tests that need no server and no time. scripts/packed runs them in a project that depends
//! on the packed crate alone. Also an example for docs/testing.md.

use std::time::Duration;

use leasehold::{Client, Error};

/// What became of an invoice.
#[derive(Debug, PartialEq)]
pub enum Billed {
    Here,
    /// Another machine does it.
    Elsewhere,
}

/// Bills each invoice once, on however many machines it runs.
#[derive(Clone)]
pub struct Billing {
    locks: Client,
}

impl Billing {
    pub fn new(locks: Client) -> Billing {
        Billing { locks }
    }

    /// An error means that it is not known whether the invoice was billed: look before you bill it again.
    pub async fn bill(&self, invoice: u32) -> Result<Billed, Error> {
        let lock = self.locks.mutex(&format!("invoice:{invoice}"));
        let Some(guard) = lock.try_lock_for(Duration::from_secs(2)).await? else { return Ok(Billed::Elsewhere) };
        guard.protect(charge()).await?; // stops the work if the lock is lost
        Ok(Billed::Here)
    }
}

/// Stands for a slow payment service.
async fn charge() {
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use leasehold::MemoryServer;
    use tokio::time::sleep;

    use super::*;

    /// Prints how long a test has taken, by the machine's clock.
    struct Took(&'static str, Instant);

    impl Drop for Took {
        fn drop(&mut self) {
            println!("\nunit test of a service, {}: {:.1?}", self.0, self.1.elapsed());
        }
    }

    fn timed(what: &'static str) -> Took {
        Took(what, Instant::now())
    }

    fn machines<const N: usize>(server: &MemoryServer) -> [Billing; N] {
        [(); N].map(|()| Billing::new(Client::in_memory(server).expect("valid settings")))
    }

    #[tokio::test(start_paused = true)]
    async fn the_lock_is_lost_in_the_middle() {
        let _timed = timed("the lock is lost in the middle");
        let server = MemoryServer::new();
        let [billing] = machines(&server);
        let billed = tokio::spawn(async move { billing.bill(42).await });
        sleep(Duration::from_secs(30)).await;
        assert!(server.forget("invoice:42"));
        let outcome = billed.await.expect("no panic");
        assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn two_machines_bill_one_invoice() {
        let _timed = timed("contention");
        let server = MemoryServer::new();
        let [one, other] = machines(&server);
        let billed = tokio::join!(one.bill(42), other.bill(42));
        assert_eq!((billed.0.expect("no error"), billed.1.expect("no error")), (Billed::Here, Billed::Elsewhere));
        assert!(server.keys().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_does_not_reply() {
        let _timed = timed("an outage");
        let server = MemoryServer::new();
        let [billing] = machines(&server);
        server.freeze();
        assert!(billing.bill(42).await.is_err_and(|error| error.is_unavailable()));
        server.thaw();
        let [other] = machines(&server);
        let during = tokio::spawn(async move { other.bill(43).await });
        sleep(Duration::from_secs(10)).await;
        server.freeze();
        sleep(Duration::from_secs(5)).await; // shorter than the lease
        server.thaw();
        assert_eq!(during.await.expect("no panic").expect("it rode out the outage"), Billed::Here);
    }
}
