//! `regatta train --smoke`: a smoke test that checks and times each part of training on all ranks.
//!
//! It finds the ranks that differ as `regatta doctor` does, measures and verifies all-reduces as `regatta
//! bench` does, and runs the steps of a training run.

mod checks;
pub mod rank;
mod report;
mod reporter;
#[cfg(test)]
mod tests;
mod text;

pub use reporter::SmokeReporter;
