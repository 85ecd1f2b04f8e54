//! Training: a GPT engine with explicit forward and backward passes, readable from top to bottom.
//!
//! Read [`shape`] for what a model is, [`model`] for its passes block by block, [`device`] for the
//! operations that they are made of, [`step`] for one training step, and [`parallel`] for how ranks
//! share the work.

pub mod checkpoint;
pub mod config;
pub mod data;
pub mod generate;
pub mod job;
pub mod load;
pub mod metrics;
pub mod model;
pub mod offload;
pub mod parallel;
pub mod run;
pub mod schedule;
pub mod state;
pub mod step;
