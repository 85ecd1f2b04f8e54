//! What a job did, read from what it wrote. Nothing in this crate does I/O: text in, report out.

pub mod net_log;
