//! Whether the nodes of a job are fit to run it.
//!
//! [`collect`] gathers the [`NodeFacts`] of the node it runs on, [`peers`] tests the network between
//! the nodes, and [`judge()`] decides over the facts of all nodes. Judgements do no I/O: recorded
//! facts give the same diagnosis anywhere.

pub mod collect;
pub mod diagnosis;
mod fabric;
pub mod facts;
pub mod judge;
pub mod peers;
pub mod plugin;
pub mod repetition;
pub mod request;
#[cfg(test)]
#[path = "../tests/simulated/mod.rs"]
mod simulated;
#[cfg(test)]
mod testing;

// The module `simulated` names this crate as benchmarks and other crates' tests do.
#[cfg(test)]
extern crate self as regatta_doctor;

pub use diagnosis::{Check, CheckResult, Diagnosis, Finding, Verdict};
pub use facts::{JobFacts, NodeFacts};
pub use judge::judge;
