//! What a job does and did, read from what it writes.
//!
//! [`read`] opens and follows run folders, and does I/O below the path that it is given. All other modules
//! do none: text or records in, report out.

pub mod comms;
pub mod comms_status;
pub mod net_log;
pub mod read;
