//! Starts, watches and ends the ranks of a job.
//!
//! Decisions are in [`supervise`] and [`lines`], without I/O; [`job`] carries them out.

pub mod bind;
mod caretaker;
pub mod folder;
pub mod job;
pub mod lines;
pub mod process;
pub mod roster;
pub mod signals;
pub mod slurm;
pub mod started;
pub mod starter;
pub mod supervise;
mod watch;
pub mod wrap;
