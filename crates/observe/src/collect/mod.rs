//! Reads what the ranks of a running job write, in threads: file systems may not respond.

mod net_logs;

pub use net_logs::{NetLogWatch, NetUpdate};
