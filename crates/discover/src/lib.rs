//! Discovers the machine's topology and the job allocation.
//!
//! Every source reads through a [`Root`]: `/` on the running node, a directory for a recorded one.

pub mod allocation;
mod cpu;
mod env;
#[cfg(test)]
mod fake_sysfs;
mod gpu;
pub mod hwloc;
mod locality;
mod machine;
mod nic;
pub mod nodefile;
mod os;
mod pci;
mod root;
mod software;
pub mod systems;

pub use cpu::live_affinity;
pub use env::Env;
pub use machine::{MachineFileError, discover, load};
pub use root::Root;
