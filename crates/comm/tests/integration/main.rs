//! Tests of the communicators, on threads, processes and hosts of the test cluster.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod call_mismatch;
mod chaos;
mod execute;
mod hierarchical;
mod in_process;
mod libfabric;
mod nccl;
mod net_plugin;
mod port_file;
mod rank_process;
mod schedule;
mod seeded_rng;
mod shm;
mod suite;
mod tcp;
