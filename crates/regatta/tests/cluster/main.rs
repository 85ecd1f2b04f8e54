//! The binary on several hosts under real launchers: allocation, binding, rendezvous, agents.
//!
//! One test per kind of cluster, because starting one takes seconds.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod agent_launchers;
mod bench;
mod bind_address;
mod gpus;
mod lumi;
#[path = "../support/metrics.rs"]
mod metrics;
mod mpi_launchers;
mod multi_node;
mod scancel;
mod slurm;
#[path = "../support/splits.rs"]
mod split_words;
mod splits;
mod support;
mod train;
