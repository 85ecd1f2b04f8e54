//! Starts, watches and ends the ranks of a job.
//!
//! Decisions are in [`supervise`] and [`lines`], without I/O; [`job`] carries them out, with a
//! [`crew`] that runs the ranks: [`local`], on this node, or [`fleet`], on many.

pub mod bind;
mod caretaker;
mod carry;
mod chorus;
pub mod crew;
pub mod fleet;
pub mod folder;
pub mod job;
pub mod lines;
pub mod local;
pub mod net;
pub mod port;
pub mod process;
pub mod queue;
pub mod roster;
pub mod secret_file;
pub mod signals;
pub mod slurm;
pub mod started;
pub mod starter;
pub mod supervise;
pub mod warden;
mod watch;
pub mod wrap;
