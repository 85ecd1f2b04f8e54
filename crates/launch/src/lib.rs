//! Launches, supervises and terminates the ranks of a job.
//!
//! Decisions are made without I/O in [`supervisor`], [`node_pool`] and [`lines`]. [`job`] runs one
//! attempt with a [`worker_group`]: [`local`] runs ranks on this node, [`agents`] on many nodes.

pub mod agent_launcher;
pub mod agents;
pub mod cache_dir;
pub mod channel;
pub mod config;
pub mod cpu_binding;
pub mod event_queue;
mod failure_attribution;
pub mod forked;
pub mod job;
pub mod lines;
pub mod local;
pub mod node_pool;
pub mod port;
mod proc_stat;
pub mod process;
pub mod rank_files;
pub mod reaper;
pub mod restart_backoff;
pub mod run_folder;
pub mod secret_file;
mod signal_dedup;
pub mod signals;
mod stdio;
pub mod supervisor;
pub mod worker_group;
pub mod wrap;
