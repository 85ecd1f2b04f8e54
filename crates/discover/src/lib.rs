//! Finds out what a machine is and what the scheduler gave.
//!
//! Every source takes a [`Root`]: `/` on the live machine, a folder for a recorded one.

#[cfg_attr(not(test), expect(dead_code, reason = "the machine scan calls it"))]
mod gpu;
#[cfg_attr(not(test), expect(dead_code, reason = "the machine scan calls it"))]
mod nic;
#[cfg_attr(not(test), expect(dead_code, reason = "the machine scan calls it"))]
mod pci;
mod root;
#[cfg(test)]
mod testing;

pub use root::Root;
