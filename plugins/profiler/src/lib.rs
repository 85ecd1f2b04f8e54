//! The profiler plug-in of NCCL and RCCL: records every collective and point-to-point operation of an
//! unmodified program.
//!
//! NCCL loads the library that `NCCL_PROFILER_PLUGIN` names, chooses the newest table that it knows, and
//! calls its functions: [`abi::v3`] to [`abi::v6`]. Each version converts NCCL's structures to one
//! [`model`]; [`callbacks`] turn these into raw events of the process's [`session`], whose thread writes
//! them. The plug-in is inert unless `REGATTA_PROFILE` names a folder.
//!
//! Version 7 of NCCL 2.31 is not exported: its definitions differ between releases, and NCCL 2.31 takes
//! version 6 as well.
//!
//! No function waits for a file, a lock or another thread, except the first initialisation, which creates
//! the event file. Every function returns success, also after a panic: a profiler must not fail the job.

pub mod abi;
pub mod callbacks;
pub mod handle;
pub mod model;
mod names;
pub mod pause;
pub mod session;

pub use regatta_plugin_abi::log;
