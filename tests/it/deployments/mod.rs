//! Clusters, sentinels, replicas, quorums: servers that fail over, move and change.

mod cluster;
mod conformance;
mod floating_address;
mod hidden_cluster;
mod identity;
mod moving;
mod quorum;
mod replicas;
mod sentinels;
mod upgrade;
