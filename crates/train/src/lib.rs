//! Training: a GPT engine with explicit forward and backward passes.
//!
//! Read [`regatta_predict::shape`] for the shape of a model, [`model`] for its passes block by block,
//! [`regatta_device::ops`] for the device operations, [`step`] for one training step, [`state`] for
//! sharded and offloaded state, and [`parallel`] for the parallel axes.

pub mod buffer_pool;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod generate;
pub mod load;
pub mod lock_file;
pub mod lr_schedule;
pub mod metrics;
pub mod model;
pub mod offload;
pub mod parallel;
pub mod regular_file;
pub mod run_clock;
pub mod run_paths;
pub mod state;
pub mod step;
#[cfg(test)]
mod testing;
pub mod training;
