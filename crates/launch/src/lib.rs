//! Starts, watches and ends the ranks of a job.
//!
//! Decisions are in [`supervise`] and [`lines`], without I/O; [`job`] carries them out, with a
//! [`crew`] that runs the ranks: [`local`], on this node.
//! Decisions are in [`supervise`] and [`lines`], without I/O; [`job`] carries them out.
//! The nodes of a job speak over [`net`], which drives a [`link`] for each connection.

pub mod bind;
mod carry;
pub mod crew;
mod caretaker;
pub mod folder;
pub mod job;
pub mod lines;
pub mod local;
pub mod process;
pub mod queue;
pub mod link;
pub mod net;
pub mod secret;
pub mod roster;
pub mod signals;
pub mod slurm;
pub mod started;
pub mod starter;
pub mod supervise;
mod watch;
pub mod wrap;
