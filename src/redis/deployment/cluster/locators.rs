//! The servers of a cluster for new connections: one of them, or any.

use std::sync::{Arc, Weak};

use futures_util::{
    future::BoxFuture,
    stream::{BoxStream, StreamExt, iter},
};

use super::Cluster;
use crate::redis::{
    conn::{Asks, Locator, Target},
    deployment::standalone::Fixed,
    fault::Fault,
};

/// One server of the cluster.
#[derive(Debug)]
pub(super) struct OneMember {
    pub(super) fixed: Fixed,
    pub(super) cluster: Weak<Cluster>,
}

impl Locator for OneMember {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        self.fixed.find()
    }

    fn place(&self) -> String {
        self.fixed.place()
    }

    fn wants_master(&self) -> bool {
        self.fixed.wants_master()
    }

    fn recognise<'a>(&'a self, server: &'a dyn Asks) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async {
            let Some(cluster) = self.cluster.upgrade() else { return Err(Fault::Closed) };
            cluster.recognise(server).await
        })
    }
}

/// The known servers, and those in the URL.
#[derive(Debug)]
pub(super) struct AnyMember(pub(super) Arc<Cluster>);

impl Locator for AnyMember {
    fn find(&self) -> BoxStream<'_, Result<Target, Fault>> {
        let known: Vec<_> = self.0.map().members().map(|member| member.address.clone()).collect();
        let all = known.into_iter().chain(self.0.seeds.iter().cloned());
        iter(all).then(async |address| self.0.access.to(address).await).boxed()
    }

    fn place(&self) -> String {
        "any server of the cluster".to_owned()
    }

    fn wants_master(&self) -> bool {
        false
    }

    fn recognise<'a>(&'a self, server: &'a dyn Asks) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.0.recognise(server))
    }
}
