//! What a job does and did, read from what it writes.
//!
//! [`read`] opens and follows run folders, and [`collect`] reads what the ranks of a running job write; both do
//! I/O below the paths that they are given. [`analyse`] does none: text or records in, report out.

pub mod analyse;
pub mod collect;
mod line_splitter;
pub mod read;
pub mod view;

pub use analyse::{comms, comms_status, net_log};
