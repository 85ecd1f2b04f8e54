//! The tests of this crate that read files.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod net_log;
mod read;
