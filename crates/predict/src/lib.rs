//! Cost model of a parallel training run: the blocks of a model and how ranks shard them, the memory
//! and communication of every rank, and pipeline schedules with their simulation. No I/O, no clock.

pub mod axis;
pub mod cost;
pub mod explain;
pub mod layout;
pub mod logit_chunks;
pub mod memory_check;
pub mod mesh;
pub mod pipeline;
pub mod shape;
#[doc(hidden)]
pub mod testing;
