//! Discovers the machine's topology and the job allocation.
//!
//! Every source reads through a [`Sysroot`]: `/` on the running node, a directory for a recorded one.

pub mod allocation;
mod cpu;
mod env;
#[cfg(test)]
mod fake_sysfs;
mod gpu;
pub mod gpu_health;
pub mod hostfile;
pub mod hwloc;
pub mod job_state;
pub mod loader;
mod locality;
mod machine;
mod nic;
mod os;
mod pci;
mod pcie;
pub mod procfs;
mod software;
mod sysroot;
pub mod systems;

pub use cpu::live_affinity;
pub use env::Env;
pub use machine::{MachineFileError, discover, load};
pub use pcie::{PcieLink, pcie_link};
pub use sysroot::Sysroot;
