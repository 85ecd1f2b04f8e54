//! Launches, supervises and terminates the ranks of a job.
//!
//! What is asked of a job is a [`config::JobConfig`] and a list of [`parts`]. [`driver`] runs attempts on a
//! [`launch_target`] until the job is finished, and tells the caller what happens through [`status`]. [`job`] runs
//! one attempt with a [`worker_group`]: [`local`] runs ranks on this node, [`agents`] on many nodes.
//! Decisions are made without I/O in [`supervisor`], [`restart_policy`], [`node_pool`], [`preflight`] and
//! [`lines`].

pub mod agent_launcher;
pub mod agents;
pub mod attempt;
pub mod cache_dir;
pub mod channel;
pub mod config;
pub mod cpu_binding;
pub mod discovery;
pub mod driver;
pub mod error;
pub mod event_queue;
mod failure_attribution;
pub mod forked;
pub mod host;
pub mod job;
pub mod job_host;
pub mod killed_agent;
pub mod launch_target;
pub mod lines;
pub mod local;
pub mod node_pool;
pub mod parts;
pub mod port;
pub mod preflight;
mod proc_stat;
pub mod process;
pub mod rank_env;
pub mod rank_files;
pub mod reaper;
mod restart_backoff;
pub mod restart_policy;
pub mod run_folder;
pub mod secret_file;
pub mod signal_catcher;
mod signal_dedup;
pub mod signals;
pub mod status;
mod stdio;
pub mod subprocess;
pub mod supervisor;
pub mod worker_group;
pub mod wrap;
