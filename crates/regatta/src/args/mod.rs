//! The options of the commands, one file per command, as they are typed.

pub mod bench;
pub mod checkpoint;
pub mod comms;
pub mod data;
pub mod doctor;
pub mod eval;
pub mod generate;
pub mod jobs;
pub mod model;
pub mod net_log;
pub mod plugin;
pub mod runs;
pub mod submit;
pub mod train;
