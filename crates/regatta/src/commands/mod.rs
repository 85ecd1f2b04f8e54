//! One module per command.

pub mod agent;
pub mod bench;
pub mod check;
pub mod checkpoint;
pub mod data;
pub mod docs;
pub mod env;
pub mod generate;
pub mod launch;
pub mod map;
pub mod rank_events;
pub mod rank_worker;
pub mod self_launch;
pub mod train;
