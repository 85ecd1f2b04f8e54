//! Training in this process: losses, layouts, memory and checkpoints on CPUs and a fake GPU.

#![allow(clippy::unwrap_used, reason = "test helpers may panic like the tests")]

mod common;
mod cost_model_by_hand;
mod cost_model_measured;
mod golden;
mod gpu_arena;
mod gpu_engine;
mod gpu_graph;
mod gpu_micro_batch;
mod gpu_offload;
mod gradients;
mod huggingface;
mod parallel_layouts;
mod resharding;
mod staged_comm;
mod training;
mod zero;
