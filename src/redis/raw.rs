//! Scripts on a bare connection. Benchmarks use them to measure the cost of everything else.

use std::{future::Future, sync::Arc};

use super::{Backend, Fault, Redis, conn::Link};

impl Redis {
    /// A script on the first connection, without everything else, for measurements.
    pub(crate) async fn raw(&self, source: &str) -> Result<Raw, Fault> {
        let deployment = match &self.servers {
            Backend::Deployed(deployment, _) => deployment,
            #[cfg(feature = "test-util")]
            Backend::InMemory(_) => return Err(Fault::said("ERR a server in memory has no connections to measure")),
        };
        let link = deployment.link().await?;
        let sha = link.load_source(source).await?;
        Ok(Raw { link, sha })
    }
}

/// See [`Redis::raw`].
#[derive(Debug)]
pub(crate) struct Raw {
    link: Arc<Link>,
    sha: String,
}

impl Raw {
    pub(crate) fn call(&self, keys: Vec<String>, args: Vec<String>) -> impl Future<Output = Result<(), Fault>> + Send {
        self.link.raw(&self.sha, keys, args)
    }
}
