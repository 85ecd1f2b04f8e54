//! Finds out what a machine is and what the scheduler gave.
//!
//! Every source takes a [`Root`]: `/` on the live machine, a folder for a recorded one.

pub mod allocation;
mod cpu;
mod distance;
mod env;
mod gpu;
pub mod hwloc;
mod machine;
mod nic;
pub mod nodefile;
mod os;
mod pci;
mod root;
mod software;
pub mod systems;
#[cfg(test)]
mod testing;

pub use cpu::live_affinity;
pub use env::Env;
pub use machine::{LoadError, discover, load};
pub use root::Root;
