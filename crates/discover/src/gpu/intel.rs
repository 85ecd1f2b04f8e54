//! Intel GPUs from the DRM cards of the i915 and xe drivers. A card with several tiles is one
//! device per tile, as in Level Zero's default flat hierarchy, in PCI bus order.

use regatta_model::{Gpu, GpuLink, GpuVendor, LinkKind, PciDevice};

use super::{GpuScan, gpu_from_pci, is_accessible, render_node};
use crate::{Sysroot, pci};

pub(super) const VENDOR: u16 = 0x8086;

/// Whether a PCI device is a GPU: a display controller (`0300`), or one without a display (`0380`),
/// the class of data-centre cards.
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == VENDOR && matches!(device.class >> 8, 0x0300 | 0x0380)
}

pub(super) fn scan(root: &Sysroot, devices: &[PciDevice]) -> GpuScan {
    // Other entries are connectors such as card0-HDMI-A-1, and render nodes.
    let names = numbered(root, "/sys/class/drm", "card");
    let mut cards: Vec<Card> =
        names.iter().filter_map(|name| Card::read(root, devices, name)).collect();
    cards.sort_by_key(|c| pci::parse_address(&c.address));
    let mut scan = GpuScan::default();
    let (discrete, integrated): (Vec<_>, Vec<_>) = cards.into_iter().partition(|c| c.discrete);
    for Card { address, .. } in integrated {
        scan.notes.push(format!(
            "the Intel GPU at {address} is integrated in the CPU and not listed: it has no \
             dedicated memory"
        ));
    }
    for (index, card) in discrete.iter().enumerate() {
        card.append_to(root, devices, index as u32, &mut scan);
    }
    scan
}

/// An Intel DRM card.
struct Card {
    address: String,
    device: u16,
    /// Memory of each tile.
    tiles: Vec<Option<u64>>,
    discrete: bool,
}

impl Card {
    fn read(root: &Sysroot, devices: &[PciDevice], name: &str) -> Option<Self> {
        let dir = format!("/sys/class/drm/{name}");
        let address = pci::address_of(root, &format!("{dir}/device"))?;
        let device = pci::find(devices, &address).filter(|d| is_gpu(d))?;
        let xe = xe_tiles(root, &dir);
        let tiles = if xe.is_empty() { i915_tiles(root, &dir) } else { xe };
        // Integrated GPUs are on the root bus and have no dedicated memory. Mainline drivers do not
        // report the memory, so a bridge above the device identifies a discrete card.
        let discrete = device.path.len() > 1 || tiles.iter().any(Option::is_some);
        Some(Self { address, device: device.device, tiles, discrete })
    }

    fn append_to(&self, root: &Sysroot, devices: &[PciDevice], index: u32, scan: &mut GpuScan) {
        let first = scan.gpus.len();
        let file = render_node(root, &self.address);
        let accessible = file.as_deref().and_then(|f| is_accessible(root, f));
        let several = self.tiles.len() > 1;
        for (tile, memory) in self.tiles.iter().enumerate() {
            scan.gpus.push(Gpu {
                name: model_name(self.device),
                memory_bytes: *memory,
                card: index,
                subdevice: several.then_some(tile as u32),
                device_file: file.clone(),
                accessible,
                ..gpu_from_pci(root, devices, GpuVendor::Intel, first + tile, Some(&self.address))
            });
        }
        for a in 0..self.tiles.len() {
            for b in a + 1..self.tiles.len() {
                let (a, b) = ((first + a) as u32, (first + b) as u32);
                let kind = LinkKind::OnCard;
                scan.links.push(GpuLink { a, b, kind, count: None, megabytes_per_second: None });
            }
        }
    }
}

/// The tiles of xe, below the PCI device.
fn xe_tiles(root: &Sysroot, card: &str) -> Vec<Option<u64>> {
    let device = format!("{card}/device");
    let size = |tile: &String| memory(root, &format!("{device}/{tile}/physical_vram_size_bytes"));
    numbered(root, &device, "tile").iter().map(size).collect()
}

/// The entries of a directory that are a prefix and a number.
fn numbered(root: &Sysroot, dir: &str, prefix: &str) -> Vec<String> {
    let mut names = root.list_dir(dir);
    names.retain(|n| n.strip_prefix(prefix).is_some_and(|n| n.parse::<u32>().is_ok()));
    names
}

/// The tiles of i915, one `gt` each. An integrated GPU may have a second `gt` for media on its only
/// tile, but is not listed anyway. Only Intel's own driver builds report the memory, of the whole
/// card.
fn i915_tiles(root: &Sysroot, card: &str) -> Vec<Option<u64>> {
    let count = numbered(root, &format!("{card}/gt"), "gt").len().max(1);
    let total = memory(root, &format!("{card}/lmem_total_bytes"));
    vec![total.map(|bytes| bytes / count as u64); count]
}

fn memory(root: &Sysroot, path: &str) -> Option<u64> {
    root.read_value(path).filter(|bytes| *bytes > 0)
}

/// Model names, which sysfs lacks.
fn model_name(device: u16) -> String {
    match device {
        0x0bd4..=0x0bd6 => "Intel Data Center GPU Max 1550".to_owned(),
        0x0bd9..=0x0bdb => "Intel Data Center GPU Max 1100".to_owned(),
        0x56c0 => "Intel Data Center GPU Flex 170".to_owned(),
        0x56c1 => "Intel Data Center GPU Flex 140".to_owned(),
        other => format!("Intel GPU {other:04x}"),
    }
}
