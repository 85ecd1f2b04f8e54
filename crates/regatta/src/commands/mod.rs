//! One module per command.

pub mod agent;
pub mod bench;
pub mod checkpoint;
pub mod comms;
pub mod completions;
mod compute_device;
pub mod data;
pub mod doctor;
pub mod env;
pub mod eval;
pub mod generate;
mod gpu_detection;
pub mod jobs;
pub mod launch;
pub mod launch_command;
pub mod man;
pub mod map;
pub mod model_args;
pub mod net_log;
pub mod plugin;
pub mod rank_events;
pub mod rank_worker;
pub mod reporter_output;
pub mod runs;
pub mod self_launch;
pub mod submit;
pub mod train;
