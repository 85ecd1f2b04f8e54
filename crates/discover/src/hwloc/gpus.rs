//! GPUs, in the order of the vendor's runtime if hwloc was built with it.

use std::collections::{BTreeMap, HashMap, HashSet};

use regatta_model::{Gpu, GpuVendor, PciDevice};

use super::error::{HwlocError, Result};
use super::os_devices::{ByPci, OsDevice};
use super::pci::{HwlocPciDevice, LocalityCache};
use super::topology::Topology;

/// Maximum GPUs per node.
const MAX_GPUS: usize = 1024;
/// PCI classes: 3D and other display controllers, and processing accelerators.
const GPU_CLASSES: [u32; 3] = [0x0302, 0x0380, 0x1200];
/// PCI class of VGA controllers: GPUs with display outputs, and the display chips of servers.
const VGA_CLASS: u32 = 0x0300;
/// Display chips on server boards, whose vendor also builds GPUs: Rage XL, RV100 and ES1000.
const SERVER_VGA: [u16; 4] = [0x4752, 0x5159, 0x515e, 0x5969];

/// PCI vendor ID and hwloc's runtime backends, in order of preference.
const VENDORS: [(GpuVendor, u16, &[&str]); 3] = [
    (GpuVendor::Nvidia, 0x10de, &["cuda", "nvml"]),
    (GpuVendor::Amd, 0x1002, &["rsmi"]),
    (GpuVendor::Intel, VENDOR_INTEL, &["ze"]),
];
const VENDOR_INTEL: u16 = 0x8086;

/// A GPU and its indices in distance matrices.
pub(super) struct FoundGpu {
    pub(super) gpu: Gpu,
    pub(super) indices: Vec<u64>,
}

#[derive(Default)]
struct RuntimeDevice<'t> {
    /// Index of its PCI device.
    pci: Option<usize>,
    /// Its OS device.
    os_device: Option<OsDevice<'t>>,
    /// Runtime index of the device and of the subdevice.
    index: Option<(u32, Option<u32>)>,
    /// Whether other devices share the PCI device, whose attributes then describe the whole card.
    shares_card: bool,
}

/// Inputs of the GPU pass.
pub(super) struct GpuInputs<'s, 't> {
    pub(super) topology: &'t Topology<'t>,
    pub(super) pci_devices: &'s BTreeMap<usize, HwlocPciDevice>,
    pub(super) by_pci: &'s ByPci<'t>,
}

/// The GPUs, and notes about GPU-class PCI devices that the runtime does not list.
pub(super) fn read(
    inputs: &GpuInputs<'_, '_>,
    localities: &mut LocalityCache<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<FoundGpu>> {
    let mut found: Vec<FoundGpu> = Vec::new();
    for (vendor, vendor_id, runtimes) in VENDORS {
        let devices = inputs.runtime_devices(vendor_id, runtimes, notes);
        if found.len() + devices.len() > MAX_GPUS {
            let at = inputs.topology.position();
            return Err(HwlocError::TooMany { at, what: "GPUs", limit: MAX_GPUS });
        }
        let first_card = found.last().map_or(0, |last| last.gpu.card + 1);
        let cards = inputs.cards(&devices, first_card);
        for (device, (card, subdevice)) in devices.iter().zip(cards) {
            let index = found.len() as u32;
            let blank = Gpu { card, subdevice, ..Gpu::new(index, vendor, "") };
            found.push(inputs.gpu(device, blank, localities)?);
        }
    }
    Ok(found)
}

impl<'t> GpuInputs<'_, 't> {
    /// The runtime's devices of a vendor, in its order; without a runtime, the GPU-class PCI
    /// devices by address.
    fn runtime_devices(
        &self,
        vendor: u16,
        runtimes: &[&str],
        notes: &mut Vec<String>,
    ) -> Vec<RuntimeDevice<'t>> {
        let is_gpu = |position: &usize, d: &PciDevice| {
            let class = d.class >> 8;
            let is_vga_gpu = || class == VGA_CLASS && self.computes(*position, d);
            d.vendor == vendor && (GPU_CLASSES.contains(&class) || is_vga_gpu())
        };
        let gpus = self.pci_devices.iter().filter(|(position, d)| is_gpu(position, &d.pci));
        let mut cards: Vec<usize> = gpus.map(|(&position, _)| position).collect();
        cards.sort_by_key(|position| self.address(*position));
        let listed =
            |runtime: &str, pci: Option<usize>| devices_of_runtime(self.os_devices(pci), runtime);
        let covered =
            |runtime: &str| cards.iter().filter(|c| !listed(runtime, Some(**c)).is_empty()).count();
        // On a tie the first runtime wins, but `max_by_key` returns the last.
        let best = runtimes.iter().rev().max_by_key(|runtime| covered(runtime));
        match best {
            Some(runtime) if covered(runtime) > 0 => {
                let mut devices = Vec::new();
                for card in cards {
                    let of_card = listed(runtime, Some(card));
                    if of_card.is_empty() {
                        let what = "is a GPU-class PCI device that";
                        let address = self.address(card).unwrap_or_default();
                        notes.push(format!("{address} {what} {runtime} does not list"));
                    }
                    let shares_card = of_card.len() > 1;
                    let device = |u| RuntimeDevice { pci: Some(card), shares_card, ..u };
                    devices.extend(of_card.into_iter().map(device));
                }
                devices.sort_by_key(|device| device.index);
                devices
            }
            _ if cards.is_empty() => {
                // hwloc without PCI support attaches the runtime's devices to CPUs or NUMA nodes.
                let orphans = runtimes.iter().map(|runtime| listed(runtime, None));
                let mut devices = orphans.into_iter().find(|u| !u.is_empty()).unwrap_or_default();
                devices.sort_by_key(|device| device.index);
                devices
            }
            _ => {
                let device = |card| RuntimeDevice { pci: Some(card), ..Default::default() };
                cards.into_iter().map(device).collect()
            }
        }
    }

    /// Whether a VGA controller is a GPU: a runtime or a render node shows that it computes. Intel's
    /// are integrated graphics.
    fn computes(&self, position: usize, device: &PciDevice) -> bool {
        let runtimes = VENDORS.iter().flat_map(|(.., runtimes)| runtimes.iter());
        let prefixes: Vec<&str> = runtimes.copied().chain(["renderD", "opencl"]).collect();
        let shows = |d: &OsDevice<'_>| prefixes.iter().any(|prefix| d.name.starts_with(prefix));
        device.vendor != VENDOR_INTEL
            && !SERVER_VGA.contains(&device.device)
            && self.os_devices(Some(position)).iter().any(shows)
    }

    fn address(&self, position: usize) -> Option<&str> {
        self.pci_devices.get(&position).map(|d| d.pci.address.as_str())
    }

    fn os_devices(&self, pci: Option<usize>) -> &[OsDevice<'t>] {
        self.by_pci.get(&pci).map_or(&[], Vec::as_slice)
    }

    /// Card and subdevice index of each device. Devices of a card share a PCI device or, on AMD,
    /// the board's serial number.
    fn cards(&self, devices: &[RuntimeDevice<'t>], first: u32) -> Vec<(u32, Option<u32>)> {
        let keys: Vec<(Option<&str>, Option<usize>, usize)> = (devices.iter().enumerate())
            .map(|(i, device)| match (self.info(device, &["AMDSerial"]), device.pci) {
                (Some(serial), _) => (Some(serial), None, 0),
                (None, Some(pci)) => (None, Some(pci), 0),
                (None, None) => (None, None, i),
            })
            .collect();
        let mut cards: HashMap<_, (u32, u32)> = HashMap::new();
        let mut positions = Vec::with_capacity(keys.len());
        for key in &keys {
            let next = first + cards.len() as u32;
            let (card, parts) = cards.entry(key).or_insert((next, 0));
            positions.push((*card, *parts));
            *parts += 1;
        }
        let several = |key| cards.get(key).is_some_and(|(_, parts)| *parts > 1);
        let with_key = keys.iter().zip(positions);
        with_key.map(|(key, (card, part))| (card, several(key).then_some(part))).collect()
    }

    /// The OS devices of the card.
    fn of_card(&self, device: &RuntimeDevice<'t>) -> &[OsDevice<'t>] {
        device.pci.map_or(&[], |pci| self.os_devices(Some(pci)))
    }

    /// Like [`Self::info`], but a subdevice must not report an attribute of the whole card.
    fn own_info(&self, device: &RuntimeDevice<'t>, names: &[&str]) -> Option<&'t str> {
        match device.shares_card {
            true => names.iter().find_map(|name| device.os_device?.object.info(name)),
            false => self.info(device, names),
        }
    }

    /// The first of these info attributes on the device itself, else on its card.
    fn info(&self, device: &RuntimeDevice<'t>, names: &[&str]) -> Option<&'t str> {
        let all = || device.os_device.iter().chain(self.of_card(device));
        names.iter().find_map(|name| all().find_map(|d| d.object.info(name)))
    }

    fn gpu(
        &self,
        device: &RuntimeDevice<'t>,
        blank: Gpu,
        localities: &mut LocalityCache<'_>,
    ) -> Result<FoundGpu> {
        let pci_device = device.pci.and_then(|pci| self.pci_devices.get(&pci));
        let locality = match (pci_device, device.os_device) {
            (Some(pci_device), _) => pci_device.locality.clone(),
            (None, Some(os_device)) => localities.of(self.topology, os_device.position)?,
            (None, None) => Default::default(),
        };
        let pci_id = || pci_device.map(|d| format!("{:04x}:{:04x}", d.pci.vendor, d.pci.device));
        let name = self.info(device, &["GPUModel", "LevelZeroModel"]).map(str::to_owned);
        let render =
            self.of_card(device).iter().map(|d| d.name).find(|name| name.starts_with("renderD"));
        let uuid = self.own_info(device, &["NVIDIAUUID", "AMDUUID", "LevelZeroUUID"]);
        let gpu = Gpu {
            name: name.or_else(pci_id).unwrap_or_else(|| "GPU".to_owned()),
            pci: pci_device.map(|d| d.pci.address.clone()),
            numa: locality.numa,
            cpus: locality.cpus,
            memory_bytes: self.memory_bytes(device),
            uuid: uuid.map(str::to_owned),
            device_file: render.map(|name| format!("/dev/dri/{name}")),
            ..blank
        };
        let indices = self.indices(device)?;
        Ok(FoundGpu { gpu, indices })
    }

    /// The `gp_index` of every OS device of the GPU, one per runtime.
    fn indices(&self, device: &RuntimeDevice<'t>) -> Result<Vec<u64>> {
        let card = if device.shares_card { &[] } else { self.of_card(device) };
        let all = device.os_device.iter().chain(card).map(|d| d.object.integer("gp_index"));
        all.filter_map(Result::transpose).collect()
    }

    fn memory_bytes(&self, device: &RuntimeDevice<'t>) -> Option<u64> {
        let names = ["CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize"];
        let text = self.own_info(device, &names)?;
        let kib: u64 = text.strip_suffix("KiB").unwrap_or(text).parse().ok()?;
        kib.checked_mul(1024)
    }
}

/// The devices of a runtime. A device that is also listed by subdevice is represented by these.
fn devices_of_runtime<'t>(os_devices: &[OsDevice<'t>], runtime: &str) -> Vec<RuntimeDevice<'t>> {
    let all: Vec<(OsDevice<'t>, (u32, Option<u32>))> =
        os_devices.iter().filter_map(|d| Some((*d, d.index_after(runtime)?))).collect();
    let with_subdevices: HashSet<u32> =
        all.iter().filter_map(|(_, (index, subdevice))| subdevice.map(|_| *index)).collect();
    let is_represented = |(index, subdevice): &(u32, Option<u32>)| {
        subdevice.is_none() && with_subdevices.contains(index)
    };
    let device = |(os_device, index)| RuntimeDevice {
        os_device: Some(os_device),
        index: Some(index),
        ..Default::default()
    };
    all.into_iter().filter(|(_, index)| !is_represented(index)).map(device).collect()
}
