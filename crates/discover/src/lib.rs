//! Finds out what a machine is and what the scheduler gave.
//!
//! Every source takes a [`Root`]: `/` on the live machine, a folder for a recorded one.

pub mod hwloc;
mod root;

pub use root::Root;
