//! Intel GPUs from the DRM cards of the i915 and xe drivers. A card of several tiles shows as one
//! device a tile, as Level Zero does by default (its flat hierarchy), in PCI bus order.

use regatta_model::{Gpu, GpuLink, GpuVendor, LinkKind, PciDevice};

use super::{Found, gpu_at, may_open, render_node};
use crate::{Root, pci};

pub(super) const VENDOR: u16 = 0x8086;

/// Whether a PCI device is a GPU: a display controller (`0300`), or one without a display
/// (`0380`), as the data-centre cards are.
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == VENDOR && matches!(device.class >> 8, 0x0300 | 0x0380)
}

pub(super) fn scan(root: &Root, devices: &[PciDevice]) -> Found {
    let mut cards: Vec<Card> = root
        .names("/sys/class/drm")
        .into_iter()
        // The others are connectors such as card0-HDMI-A-1, and render nodes.
        .filter(|n| n.strip_prefix("card").is_some_and(|n| n.parse::<u32>().is_ok()))
        .filter_map(|name| Card::read(root, devices, &name))
        .collect();
    cards.sort_by_key(|c| pci::key(&c.address));
    let mut found = Found::default();
    let mut number = 0;
    for card in cards {
        if !card.discrete {
            found.notes.push(format!(
                "the Intel GPU at {} is integrated in the processor and not listed: it has no \
                 memory of its own",
                card.address
            ));
            continue;
        }
        card.list(root, devices, number, &mut found);
        number += 1;
    }
    found
}

/// A DRM card of Intel.
struct Card {
    address: String,
    device: u16,
    /// The memory of each tile.
    tiles: Vec<Option<u64>>,
    discrete: bool,
}

impl Card {
    fn read(root: &Root, devices: &[PciDevice], name: &str) -> Option<Self> {
        let folder = format!("/sys/class/drm/{name}");
        let address = pci::address_of(root, &format!("{folder}/device"))?;
        let device = pci::find(devices, &address).filter(|d| is_gpu(d))?;
        let xe = tiles_of_xe(root, &folder);
        let tiles = if xe.is_empty() { tiles_of_i915(root, &folder) } else { xe };
        // Integrated GPUs sit on the root bus and have no memory of their own. The mainline
        // drivers do not tell the memory, so a bridge above it is proof enough of a card.
        let discrete = device.path.len() > 1 || tiles.iter().any(Option::is_some);
        Some(Self { address, device: device.device, tiles, discrete })
    }

    fn list(&self, root: &Root, devices: &[PciDevice], number: u32, found: &mut Found) {
        let first = found.gpus.len();
        let file = render_node(root, &self.address);
        let accessible = file.as_deref().and_then(|f| may_open(root, f));
        let several = self.tiles.len() > 1;
        for (tile, memory) in self.tiles.iter().enumerate() {
            found.gpus.push(Gpu {
                name: name_of(self.device),
                memory_bytes: *memory,
                card: number,
                part: several.then_some(tile as u32),
                device_file: file.clone(),
                accessible,
                ..gpu_at(root, devices, GpuVendor::Intel, first + tile, Some(&self.address))
            });
        }
        for a in 0..self.tiles.len() {
            for b in a + 1..self.tiles.len() {
                found.links.push(GpuLink {
                    a: (first + a) as u32,
                    b: (first + b) as u32,
                    kind: LinkKind::OnCard,
                    count: None,
                    megabytes_per_second: None,
                });
            }
        }
    }
}

/// The tiles that xe shows below the PCI device.
fn tiles_of_xe(root: &Root, card: &str) -> Vec<Option<u64>> {
    let device = format!("{card}/device");
    let is_tile = |n: &&String| n.strip_prefix("tile").is_some_and(|n| n.parse::<u32>().is_ok());
    let size = |tile: &String| memory(root, &format!("{device}/{tile}/physical_vram_size_bytes"));
    root.names(&device).iter().filter(is_tile).map(size).collect()
}

/// The tiles of i915, where each has one `gt`; an integrated GPU may have a second `gt` for video
/// on its only tile, but is not listed anyway. The memory of the whole card is told by Intel's
/// own builds of the driver only.
fn tiles_of_i915(root: &Root, card: &str) -> Vec<Option<u64>> {
    let is_gt = |n: &&String| n.strip_prefix("gt").is_some_and(|n| n.parse::<u32>().is_ok());
    let count = root.names(&format!("{card}/gt")).iter().filter(is_gt).count().max(1);
    let total = memory(root, &format!("{card}/lmem_total_bytes"));
    vec![total.map(|bytes| bytes / count as u64); count]
}

fn memory(root: &Root, path: &str) -> Option<u64> {
    root.value(path).filter(|bytes| *bytes > 0)
}

/// The name of a model; sysfs has none.
fn name_of(device: u16) -> String {
    match device {
        0x0bd4..=0x0bd6 => "Intel Data Center GPU Max 1550".to_owned(),
        0x0bd9..=0x0bdb => "Intel Data Center GPU Max 1100".to_owned(),
        0x56c0 => "Intel Data Center GPU Flex 170".to_owned(),
        0x56c1 => "Intel Data Center GPU Flex 140".to_owned(),
        other => format!("Intel GPU {other:04x}"),
    }
}
