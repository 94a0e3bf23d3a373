//! The tools of the tests: the fault proxy, the checker of histories, the deployments.

mod history;
mod proxy;
mod stalls;
mod topologies;
