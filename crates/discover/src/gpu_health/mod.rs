//! Health of the GPUs as their drivers report it: errors, throttling, power and PCIe links.

mod amd;
mod nvml;

use regatta_model::{Gpu, GpuVendor};
use serde::{Deserialize, Serialize};

use crate::pcie::pcie_link;
use crate::{Sysroot, procfs};

/// Health of a GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuHealth {
    /// Index in [`Machine::gpus`](regatta_model::Machine::gpus).
    pub index: u32,
    /// Whether ECC is enabled.
    pub ecc_enabled: Option<bool>,
    /// Uncorrectable memory errors since the driver was loaded.
    pub uncorrectable_errors: Option<u64>,
    /// Uncorrectable memory errors in the lifetime of the GPU.
    pub lifetime_uncorrectable_errors: Option<u64>,
    /// Memory rows remapped after uncorrectable errors.
    pub remapped_rows: Option<u32>,
    /// Whether a remapping waits for a reset of the GPU.
    pub remap_pending: Option<bool>,
    /// Whether a remapping failed: the spare rows are used up.
    pub remap_failed: Option<bool>,
    /// Reasons for reduced clocks that indicate a fault: `hw-slowdown`, `hw-thermal-slowdown`,
    /// `hw-power-brake`, `sw-thermal-slowdown`. A power cap under load or idle clocks are none.
    pub throttle_reasons: Vec<String>,
    /// Temperature in °C.
    pub temperature: Option<u32>,
    /// Enforced power limit in W.
    pub power_limit: Option<u32>,
    /// Default power limit in W.
    pub default_power_limit: Option<u32>,
    /// Locked or application clock of the cores in MHz, if set below the maximum.
    pub max_clock: Option<u32>,
    /// PCIe generation of the link now and at most. Idle GPUs may reduce it.
    pub pcie_generation: Option<(u32, u32)>,
    /// PCIe lanes now and at most.
    pub pcie_width: Option<(u32, u32)>,
    /// Active NVLink or Infinity Fabric links.
    pub active_links: Option<u32>,
    /// Used memory in bytes, before this process used the GPU.
    pub memory_used: Option<u64>,
    /// Compute mode: `default`, `exclusive-process`, `prohibited`.
    pub compute_mode: Option<String>,
    /// Processes on the GPU.
    pub processes: Vec<GpuProcess>,
    /// Why the driver does not report the GPU: `GPU is lost`.
    pub error: Option<String>,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process ID.
    pub pid: u32,
    /// Its command, if it is visible.
    pub command: Option<String>,
    /// Its user, if it is visible.
    pub uid: Option<u32>,
    /// Memory in bytes.
    pub memory: Option<u64>,
}

/// The health of all GPUs of a machine, in their order, and notes about what could not be read.
pub fn gpu_health(root: &Sysroot, gpus: &[Gpu]) -> (Vec<GpuHealth>, Vec<String>) {
    let mut health: Vec<GpuHealth> = gpus.iter().map(|gpu| from_sysfs(root, gpu)).collect();
    let mut notes = Vec::new();
    if root.is_live() && gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia) {
        notes.extend(nvml::read(gpus, &mut health).err());
    }
    for process in health.iter_mut().flat_map(|gpu| &mut gpu.processes) {
        describe_process(root, process);
    }
    (health, notes)
}

fn from_sysfs(root: &Sysroot, gpu: &Gpu) -> GpuHealth {
    let mut health = GpuHealth { index: gpu.index, ..GpuHealth::default() };
    let Some(address) = &gpu.pci else { return health };
    let link = pcie_link(root, address);
    health.pcie_generation = link.generations();
    health.pcie_width = link.width;
    if gpu.vendor == GpuVendor::Amd {
        amd::read(root, address, &mut health);
    }
    health
}

/// Adds command and user of a process; processes of another PID namespace are not visible.
fn describe_process(root: &Sysroot, process: &mut GpuProcess) {
    process.command = root.read_text(&format!("/proc/{}/comm", process.pid));
    process.uid = procfs::user(root, process.pid);
}
