//! What a job does and did, read from what it writes.
//!
//! [`read`] opens and follows run folders, and [`collect`] reads what the ranks of a running job write; both do
//! I/O below the paths that they are given. All other modules do none: text or records in, report out.

pub mod collect;
pub mod comms;
pub mod comms_status;
pub mod net_log;
pub mod read;
