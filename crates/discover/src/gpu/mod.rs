//! GPUs of all vendors, in the order in which each vendor's runtime numbers them.

mod amd;
mod intel;
mod nvidia;
mod nvml;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::ErrorKind;

use regatta_model::{CpuSet, Gpu, GpuLink, GpuVendor, Nic, NumaNode, Package, PciDevice};

use crate::{Root, distance, pci};

/// What was found out about the node's GPUs.
#[derive(Debug, Default)]
pub(crate) struct GpuScan {
    /// The GPUs, numbered from 0.
    pub(crate) gpus: Vec<Gpu>,
    /// The links between them.
    pub(crate) links: Vec<GpuLink>,
    /// The NVIDIA kernel driver's version.
    pub(crate) nvidia_driver: Option<String>,
    /// The newest CUDA that driver supports.
    pub(crate) cuda_driver: Option<String>,
    /// The amdgpu kernel driver's version.
    pub(crate) amdgpu_driver: Option<String>,
    /// What could not be read or used, and why.
    pub(crate) notes: Vec<String>,
}

/// One vendor's GPUs, numbered from 0, and what to say about them.
#[derive(Debug, Default)]
struct Found {
    gpus: Vec<Gpu>,
    links: Vec<GpuLink>,
    notes: Vec<String>,
}

/// Finds the GPUs and how far each NIC is from each.
pub(crate) fn gpus(
    root: &Root,
    devices: &[PciDevice],
    nics: &[Nic],
    nodes: &[NumaNode],
    packages: &[Package],
) -> GpuScan {
    let mut scan = GpuScan::default();
    let nvidia = nvidia::scan(root, devices);
    scan.nvidia_driver = nvidia.driver;
    scan.cuda_driver = nvidia.cuda;
    scan.add(nvidia.found);
    let amd = amd::scan(root, devices);
    scan.amdgpu_driver = root.text("/sys/module/amdgpu/version");
    scan.add(amd);
    scan.add(intel::scan(root, devices));
    scan.notes.extend(unusable(root, devices, &scan.gpus));
    scan.hide_denied();
    for gpu in &mut scan.gpus {
        // Firmware can name a node that the kernel does not show, for example inside a guest.
        gpu.numa = gpu.numa.filter(|n| nodes.iter().any(|node| node.id == *n));
        gpu.nic_distance = distance::to_nics(gpu, devices, nics, nodes, packages);
    }
    scan
}

impl GpuScan {
    /// Takes out what this process may not open, as under a device cgroup: the runtime does not
    /// show it either, and numbers the rest from 0.
    fn hide_denied(&mut self) {
        let denied = |g: &&Gpu| g.accessible == Some(false);
        let names: Vec<String> = self.gpus.iter().filter(denied).map(denied_name).collect();
        if names.is_empty() {
            return;
        }
        let open = self.gpus.iter().filter(|g| !denied(g)).map(|g| g.index);
        let renumbered: BTreeMap<u32, u32> = open.zip(0..).collect();
        self.gpus.retain(|g| renumbered.contains_key(&g.index));
        self.gpus.iter_mut().for_each(|g| g.index = renumbered[&g.index]);
        let moved = |l: &GpuLink| {
            let (a, b) = (*renumbered.get(&l.a)?, *renumbered.get(&l.b)?);
            Some(GpuLink { a, b, ..l.clone() })
        };
        self.links = self.links.iter().filter_map(moved).collect();
        self.notes.push(format!(
            "this process may not open {}, as under a device cgroup; they are left out",
            names.join(", ")
        ));
    }

    /// Appends a vendor's GPUs. A node has one vendor's as a rule; with two, the second vendor's
    /// numbers move up, since a number must name one GPU of the node.
    fn add(&mut self, found: Found) {
        let first = self.gpus.len() as u32;
        let first_card = self.gpus.iter().map(|g| g.card + 1).max().unwrap_or(0);
        if let (Some(before), Some(gpu)) = (self.gpus.last(), found.gpus.first()) {
            self.notes.push(format!(
                "there are GPUs of two vendors: {} ({:?}) is GPU 0 for its own runtime and GPU \
                 {first} here, after those of {:?}",
                gpu.name, gpu.vendor, before.vendor
            ));
        }
        self.gpus.extend(found.gpus.into_iter().map(|g| Gpu {
            index: g.index + first,
            card: g.card + first_card,
            ..g
        }));
        let move_up = |l: GpuLink| GpuLink { a: l.a + first, b: l.b + first, ..l };
        self.links.extend(found.links.into_iter().map(move_up));
        self.notes.extend(found.notes);
    }
}

fn denied_name(gpu: &Gpu) -> String {
    let place = gpu.device_file.as_ref().or(gpu.pci.as_ref());
    format!("GPU {} ({})", gpu.index, place.map_or("unknown place", String::as_str))
}

/// A note for each GPU on the PCI bus that no driver of its vendor serves: it cannot be used, so
/// it is not listed, but somebody will look for it.
fn unusable(root: &Root, devices: &[PciDevice], gpus: &[Gpu]) -> Vec<String> {
    let listed = |d: &&PciDevice| gpus.iter().any(|g| g.pci.as_deref() == Some(&d.address));
    let mut notes = Vec::new();
    for device in devices.iter().filter(|d| !listed(d)) {
        let Some((vendor, drivers)) = vendor_of(device) else { continue };
        let driver = pci::driver(root, &device.address);
        if driver.as_deref().is_some_and(|d| drivers.contains(&d)) {
            continue;
        }
        let state = match driver {
            Some(other) => format!("bound to the driver {other}"),
            None => "bound to no driver".to_owned(),
        };
        notes.push(format!(
            "the {vendor} GPU at {} is {state}, so it cannot be used; it needs {}",
            device.address,
            drivers.join(" or ")
        ));
    }
    notes
}

/// The vendor of a GPU and the drivers that make it usable.
fn vendor_of(device: &PciDevice) -> Option<(&'static str, &'static [&'static str])> {
    match device.vendor {
        nvidia::VENDOR if nvidia::is_gpu(device) => Some(("NVIDIA", &["nvidia"])),
        amd::VENDOR if amd::is_gpu(device) => Some(("AMD", &["amdgpu"])),
        intel::VENDOR if intel::is_gpu(device) => Some(("Intel", &["i915", "xe"])),
        _ => None,
    }
}

/// A GPU with what its PCI device says.
fn gpu_at(
    root: &Root,
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
fn render_node(root: &Root, address: &str) -> Option<String> {
    let names = root.names(&format!("{}/drm", pci::folder(address)));
    names.iter().find(|n| n.starts_with("renderD")).map(|n| format!("/dev/dri/{n}"))
}

/// Whether this process may use a device file; `None` on a recorded machine and where there is no
/// such file. Opening is the only sure test: a device cgroup refuses what the mode bits allow.
fn may_open(root: &Root, file: &str) -> Option<bool> {
    if !root.is_live() {
        return None;
    }
    match std::fs::OpenOptions::new().read(true).write(true).open(root.path(file)) {
        Ok(_) => Some(true),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(_) => Some(false),
    }
}
