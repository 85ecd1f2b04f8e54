//! The binary on several hosts under real launchers: allocation, binding, rendezvous, agents.
//!
//! One test per kind of cluster, because starting one takes seconds.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod agent_launchers;
mod bench;
mod bind_address;
mod chaos;
mod doctor;
mod frameworks;
mod gpus;
mod lumi;
mod many_nodes;
mod mpi_launchers;
mod multi_node;
mod net_check;
mod parallel_layouts;
mod plugins;
mod profile;
mod scancel;
mod slurm;
mod submit;
#[path = "../support/mod.rs"]
mod support;
mod test_cluster;
mod train;
