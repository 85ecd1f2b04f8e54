//! Starts, watches and ends the ranks of a job.
//!
//! Decisions are in [`supervise`] and [`lines`], without I/O; [`job`] carries them out.

pub mod bind;
pub mod folder;
pub mod job;
pub mod lines;
pub mod port;
pub mod process;
pub mod signals;
pub mod supervise;
pub mod warden;
mod watch;
pub mod wrap;
