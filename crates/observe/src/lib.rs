//! What a job did, read from what it wrote. Nothing in this crate does I/O: text or records in, report
//! out.

pub mod comms;
pub mod comms_status;
pub mod net_log;
