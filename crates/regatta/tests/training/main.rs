//! Training by the binary on one machine: runs, checkpoints, restarts and faults.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod checkpoint;
mod data;
mod eval;
mod frameworks;
mod smoke;
#[path = "../support/mod.rs"]
mod support;
mod train;
mod train_chaos;
mod train_device;
mod train_faults;
mod train_memory;
mod train_offload;
mod train_parallel;
mod train_parallel_faults;
mod train_resume;
mod train_terminal;
