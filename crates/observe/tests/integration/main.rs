//! The tests of this crate that read files.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod follow_run;
mod net_log;
mod read;
