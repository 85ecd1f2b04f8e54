//! The binary on several hosts, under real launchers: does each rank read its place right, is it
//! bound as planned, do all agree where to meet?
//!
//! One test for each kind of cluster, since bringing one up costs seconds.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod bench;
mod bound;
mod cancel;
mod gpus;
mod launchers;
mod lumi;
#[path = "../support/metrics.rs"]
mod metrics;
mod nodes;
mod slurm;
#[path = "../support/splits.rs"]
mod split_words;
mod splits;
mod starters;
mod support;
mod train;
