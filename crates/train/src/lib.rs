//! Training: a GPT engine with explicit forward and backward passes, readable from top to bottom.
//!
//! Read [`shape`] for what a model is, [`model`] for its passes block by block, [`device`] for the
//! operations that they are made of, [`step`] for one training step, and [`parallel`] for how ranks
//! share the work.

pub mod checkpoint;
pub mod config;
pub mod cpu;
pub mod data;
pub mod device;
pub mod explain;
pub mod footprint;
pub mod generate;
pub mod job;
pub mod load;
pub mod memory;
pub mod metrics;
pub mod model;
pub mod offload;
pub mod optimizer;
pub mod parallel;
pub mod random;
pub mod reference;
pub mod run;
pub mod schedule;
pub mod shape;
pub mod state;
pub mod step;
