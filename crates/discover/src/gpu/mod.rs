//! GPUs of all vendors, in the index order of each vendor's runtime.

mod amd;
mod intel;
mod nvidia;
mod nvml;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::ErrorKind;

use regatta_model::{CpuSet, Gpu, GpuLink, GpuVendor, Nic, NumaNode, Package, PciDevice};

use crate::{Sysroot, locality, pci};

/// The GPUs of the node.
#[derive(Debug, Default)]
pub(crate) struct GpuScan {
    /// The GPUs, by index.
    pub(crate) gpus: Vec<Gpu>,
    /// The links between them.
    pub(crate) links: Vec<GpuLink>,
    /// Version of the NVIDIA kernel driver.
    pub(crate) nvidia_driver: Option<String>,
    /// Newest CUDA version that the driver supports.
    pub(crate) cuda_driver: Option<String>,
    /// Version of the amdgpu kernel driver.
    pub(crate) amdgpu_driver: Option<String>,
    /// What could not be read or used, with the reason.
    pub(crate) notes: Vec<String>,
}

/// Discovers the GPUs and their distances to the NICs.
pub(crate) fn scan(
    root: &Sysroot,
    devices: &[PciDevice],
    nics: &[Nic],
    nodes: &[NumaNode],
    packages: &[Package],
) -> GpuScan {
    let mut scan = nvidia::scan(root, devices);
    scan.amdgpu_driver = root.read_text("/sys/module/amdgpu/version");
    scan.append(amd::scan(root, devices));
    scan.append(intel::scan(root, devices));
    scan.notes.extend(unbound_gpu_notes(root, devices, &scan.gpus));
    scan.drop_inaccessible();
    for gpu in &mut scan.gpus {
        // Firmware can report a NUMA node that the kernel does not have, for example in a guest.
        gpu.numa = gpu.numa.filter(|n| nodes.iter().any(|node| node.id == *n));
        gpu.nic_distance = locality::nic_distances(gpu, devices, nics, nodes, packages);
    }
    scan
}

impl GpuScan {
    /// Removes GPUs that this process cannot open, as under a device cgroup: the runtime does not
    /// list them either and assigns the indices from 0.
    fn drop_inaccessible(&mut self) {
        let denied = |g: &&Gpu| g.accessible == Some(false);
        let names: Vec<String> = self.gpus.iter().filter(denied).map(describe).collect();
        if names.is_empty() {
            return;
        }
        let open = self.gpus.iter().filter(|g| !denied(g)).map(|g| g.index);
        let renumbered: BTreeMap<u32, u32> = open.zip(0..).collect();
        self.gpus.retain(|g| renumbered.contains_key(&g.index));
        self.gpus.iter_mut().for_each(|g| g.index = renumbered[&g.index]);
        let renumber_link = |l: &GpuLink| {
            let (a, b) = (*renumbered.get(&l.a)?, *renumbered.get(&l.b)?);
            Some(GpuLink { a, b, ..l.clone() })
        };
        self.links = self.links.iter().filter_map(renumber_link).collect();
        self.notes.push(format!(
            "this process cannot open {} (device cgroup?); they are ignored",
            names.join(", ")
        ));
    }

    /// Appends the GPUs of a vendor. A node normally has one vendor; with two, the indices of the
    /// second are offset, because an index must be unique on the node.
    fn append(&mut self, vendor: GpuScan) {
        let first = self.gpus.len() as u32;
        let first_card = self.gpus.iter().map(|g| g.card + 1).max().unwrap_or(0);
        if let (Some(before), Some(gpu)) = (self.gpus.last(), vendor.gpus.first()) {
            self.notes.push(format!(
                "the node has GPUs of two vendors: {} ({:?}) is GPU 0 in its own runtime and GPU \
                 {first} here, after those of {:?}",
                gpu.name, gpu.vendor, before.vendor
            ));
        }
        let offset = |g: Gpu| Gpu { index: g.index + first, card: g.card + first_card, ..g };
        self.gpus.extend(vendor.gpus.into_iter().map(offset));
        let offset_link = |l: GpuLink| GpuLink { a: l.a + first, b: l.b + first, ..l };
        self.links.extend(vendor.links.into_iter().map(offset_link));
        self.notes.extend(vendor.notes);
    }
}

fn describe(gpu: &Gpu) -> String {
    let device = gpu.device_file.as_ref().or(gpu.pci.as_ref());
    format!("GPU {} ({})", gpu.index, device.map_or("unknown device", String::as_str))
}

/// A note for each GPU on the PCI bus that is not bound to its vendor's driver: it is unusable and
/// not listed, but users will look for it.
fn unbound_gpu_notes(root: &Sysroot, devices: &[PciDevice], gpus: &[Gpu]) -> Vec<String> {
    let listed = |d: &&PciDevice| gpus.iter().any(|g| g.pci.as_deref() == Some(&d.address));
    let mut notes = Vec::new();
    for device in devices.iter().filter(|d| !listed(d)) {
        let Some((vendor, drivers)) = vendor_of(device) else { continue };
        let driver = pci::driver(root, &device.address);
        if driver.as_deref().is_some_and(|d| drivers.contains(&d)) {
            continue;
        }
        let bound = |other| format!("bound to driver {other}");
        let state = driver.map_or("not bound to a driver".to_owned(), bound);
        let (address, drivers) = (&device.address, drivers.join(" or "));
        notes.push(format!(
            "the {vendor} GPU at {address} is {state} and cannot be used; it needs {drivers}"
        ));
    }
    notes
}

/// The vendor of a GPU and its drivers.
fn vendor_of(device: &PciDevice) -> Option<(&'static str, &'static [&'static str])> {
    match device.vendor {
        nvidia::VENDOR if nvidia::is_gpu(device) => Some(("NVIDIA", &["nvidia"])),
        amd::VENDOR if amd::is_gpu(device) => Some(("AMD", &["amdgpu"])),
        intel::VENDOR if intel::is_gpu(device) => Some(("Intel", &["i915", "xe"])),
        _ => None,
    }
}

/// A GPU with the attributes of its PCI device.
fn gpu_from_pci(
    root: &Sysroot,
    devices: &[PciDevice],
    vendor: GpuVendor,
    index: usize,
    address: Option<&str>,
) -> Gpu {
    let device = address.and_then(|a| pci::find(devices, a));
    Gpu {
        pci: address.map(str::to_owned),
        numa: device.and_then(|d| d.numa),
        cpus: address.map_or_else(CpuSet::new, |a| pci::local_cpulist(root, a)),
        ..Gpu::new(index as u32, vendor, "")
    }
}

/// The render node of a PCI device: `/dev/dri/renderD128`.
fn render_node(root: &Sysroot, address: &str) -> Option<String> {
    let names = root.list_dir(&format!("{}/drm", pci::sysfs_dir(address)));
    names.iter().find(|n| n.starts_with("renderD")).map(|n| format!("/dev/dri/{n}"))
}

/// Whether this process can open a device file; `None` on a recorded machine and for missing files.
/// Opening is the only reliable test: a device cgroup overrides the mode bits.
fn is_accessible(root: &Sysroot, file: &str) -> Option<bool> {
    if !root.is_live() {
        return None;
    }
    match std::fs::OpenOptions::new().read(true).write(true).open(root.path(file)) {
        Ok(_) => Some(true),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(_) => Some(false),
    }
}
