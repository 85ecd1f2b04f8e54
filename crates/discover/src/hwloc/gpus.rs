//! GPUs, in the order of the vendor's runtime where hwloc was built to ask it.

use std::collections::{BTreeMap, HashMap, HashSet};

use regatta_model::{Gpu, GpuVendor};

use super::error::HwlocError;
use super::os_devices::{ByPci, OsDevice};
use super::pci::{Device, Nears};
use super::tree::Tree;

/// More GPUs than any node has.
const MAX_GPUS: usize = 1024;
/// PCI classes: VGA, 3D and other display controllers, and processing accelerators.
const GPU_CLASSES: [u32; 4] = [0x0300, 0x0302, 0x0380, 0x1200];

/// Each vendor's PCI number and the runtimes hwloc asks, the one that programs use first.
const VENDORS: [(GpuVendor, u16, &[&str]); 3] = [
    (GpuVendor::Nvidia, 0x10de, &["cuda", "nvml"]),
    (GpuVendor::Amd, 0x1002, &["rsmi"]),
    (GpuVendor::Intel, 0x8086, &["ze"]),
];

/// A GPU and hwloc's numbers for it in distance matrices.
pub(super) struct FoundGpu {
    pub(super) gpu: Gpu,
    pub(super) numbers: Vec<u64>,
}

/// A runtime's device on the way to a GPU.
struct Unit<'t> {
    /// The card's PCI device.
    pci: Option<usize>,
    /// What the runtime calls it.
    own: Option<OsDevice<'t>>,
    /// The runtime's number of the device and of the part of it.
    number: Option<(u32, Option<u32>)>,
    /// Whether other units have the same PCI device, so that what is said of that is not theirs.
    shares_card: bool,
}

/// What all readers of GPUs need.
pub(super) struct Sources<'s, 't> {
    pub(super) tree: &'t Tree<'t>,
    pub(super) devices: &'s BTreeMap<usize, Device>,
    pub(super) by_pci: &'s ByPci<'t>,
}

/// The GPUs; and notes about devices that look like one but are none of the runtime's.
pub(super) fn read(
    sources: &Sources<'_, '_>,
    nears: &mut Nears<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<FoundGpu>, HwlocError> {
    let mut found: Vec<FoundGpu> = Vec::new();
    for (vendor, number, runtimes) in VENDORS {
        let units = sources.units(number, runtimes, notes);
        if found.len() + units.len() > MAX_GPUS {
            let at = sources.tree.place();
            return Err(HwlocError::TooMany { at, what: "GPUs", limit: MAX_GPUS });
        }
        let first_card = found.last().map_or(0, |last| last.gpu.card + 1);
        let cards = sources.cards(&units, first_card);
        for (unit, (card, part)) in units.iter().zip(cards) {
            let index = found.len() as u32;
            found.push(sources.gpu(
                unit,
                Gpu { card, part, ..Gpu::new(index, vendor, "") },
                nears,
            )?);
        }
    }
    Ok(found)
}

impl<'t> Sources<'_, 't> {
    /// The runtime's devices of one vendor, in its order; without a runtime, the PCI devices that
    /// are GPUs, by address.
    fn units(&self, vendor: u16, runtimes: &[&str], notes: &mut Vec<String>) -> Vec<Unit<'t>> {
        let mut cards: Vec<usize> = (self.devices.iter())
            .filter(|(_, d)| d.pci.vendor == vendor && GPU_CLASSES.contains(&(d.pci.class >> 8)))
            .map(|(&position, _)| position)
            .collect();
        cards.sort_by_key(|position| self.address(*position));
        let shown = |runtime: &str, pci: Option<usize>| numbered(self.os_devices(pci), runtime);
        let covered =
            |runtime: &str| cards.iter().filter(|c| !shown(runtime, Some(**c)).is_empty()).count();
        // Of two that cover the same cards, the first; `max_by_key` would take the last.
        let best = runtimes.iter().rev().max_by_key(|runtime| covered(runtime));
        let plain =
            |&card: &usize| Unit { pci: Some(card), own: None, number: None, shares_card: false };
        match best {
            Some(runtime) if covered(runtime) > 0 => {
                let mut units = Vec::new();
                for card in cards {
                    let of_card = shown(runtime, Some(card));
                    if of_card.is_empty() {
                        let address = self.address(card).unwrap_or_default();
                        notes.push(format!(
                            "{address} looks like a GPU, but {runtime} does not show it"
                        ));
                    }
                    let shares_card = of_card.len() > 1;
                    let unit = |u| Unit { pci: Some(card), shares_card, ..u };
                    units.extend(of_card.into_iter().map(unit));
                }
                units.sort_by_key(|unit| unit.number);
                units
            }
            _ if cards.is_empty() => {
                // hwloc without PCI: the runtime's devices hang on CPUs or memory nodes.
                let orphans = runtimes.iter().map(|runtime| shown(runtime, None));
                let mut units = orphans.into_iter().find(|u| !u.is_empty()).unwrap_or_default();
                units.sort_by_key(|unit| unit.number);
                units
            }
            _ => cards.iter().map(plain).collect(),
        }
    }

    fn address(&self, position: usize) -> Option<&str> {
        self.devices.get(&position).map(|d| d.pci.address.as_str())
    }

    fn os_devices(&self, pci: Option<usize>) -> &[OsDevice<'t>] {
        self.by_pci.get(&pci).map_or(&[], Vec::as_slice)
    }

    /// Each unit's card and which part of it. Units of one card share a PCI device or, on AMD, the
    /// board's serial number.
    fn cards(&self, units: &[Unit<'t>], first: u32) -> Vec<(u32, Option<u32>)> {
        let keys: Vec<(Option<&str>, Option<usize>, usize)> = (units.iter().enumerate())
            .map(|(i, unit)| match (self.info(unit, &["AMDSerial"]), unit.pci) {
                (Some(serial), _) => (Some(serial), None, 0),
                (None, Some(pci)) => (None, Some(pci), 0),
                (None, None) => (None, None, i),
            })
            .collect();
        let mut cards: HashMap<_, (u32, u32)> = HashMap::new();
        let mut places = Vec::with_capacity(keys.len());
        for key in &keys {
            let next = first + cards.len() as u32;
            let (card, parts) = cards.entry(key).or_insert((next, 0));
            places.push((*card, *parts));
            *parts += 1;
        }
        let several = |key| cards.get(key).is_some_and(|(_, parts)| *parts > 1);
        let with_key = keys.iter().zip(places);
        with_key.map(|(key, (card, part))| (card, several(key).then_some(part))).collect()
    }

    /// The first of these facts that hwloc tells about a unit itself, else about its card.
    fn info(&self, unit: &Unit<'t>, names: &[&str]) -> Option<&'t str> {
        let of_card = unit.pci.map_or(&[][..], |pci| self.os_devices(Some(pci)));
        let all = || unit.own.iter().chain(of_card);
        names.iter().find_map(|name| all().find_map(|d| d.object.info(name)))
    }

    fn gpu(
        &self,
        unit: &Unit<'t>,
        blank: Gpu,
        nears: &mut Nears<'_>,
    ) -> Result<FoundGpu, HwlocError> {
        let device = unit.pci.and_then(|pci| self.devices.get(&pci));
        let near = match (device, unit.own) {
            (Some(device), _) => device.near.clone(),
            (None, Some(own)) => nears.of(self.tree, own.position)?,
            (None, None) => Default::default(),
        };
        let unnamed = || device.map(|d| format!("{:04x}:{:04x}", d.pci.vendor, d.pci.device));
        let name = self.info(unit, &["GPUModel", "LevelZeroModel"]).map(str::to_owned);
        let render = unit.pci.map_or(&[][..], |pci| self.os_devices(Some(pci))).iter();
        let render = render.map(|d| d.name).find(|name| name.starts_with("renderD"));
        let gpu = Gpu {
            name: name.or_else(unnamed).unwrap_or_else(|| "GPU".to_owned()),
            pci: device.map(|d| d.pci.address.clone()),
            numa: near.numa,
            cpus: near.cpus,
            memory_bytes: self.memory_bytes(unit),
            uuid: self.uuid(unit).map(str::to_owned),
            device_file: render.map(|name| format!("/dev/dri/{name}")),
            ..blank
        };
        let numbers = self.numbers(unit)?;
        Ok(FoundGpu { gpu, numbers })
    }

    /// hwloc's numbers for a unit: each runtime that shows the card has one.
    fn numbers(&self, unit: &Unit<'t>) -> Result<Vec<u64>, HwlocError> {
        let card = unit
            .pci
            .filter(|_| !unit.shares_card)
            .map_or(&[][..], |pci| self.os_devices(Some(pci)));
        let all = unit.own.iter().chain(card).map(|d| d.object.number("gp_index"));
        all.filter_map(Result::transpose).collect()
    }

    /// A part must not claim its whole card's memory.
    fn memory_bytes(&self, unit: &Unit<'t>) -> Option<u64> {
        const NAMES: [&str; 3] = ["CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize"];
        let text = match unit.shares_card {
            true => NAMES.iter().find_map(|name| unit.own?.object.info(name)),
            false => self.info(unit, &NAMES),
        }?;
        let kib: u64 = text.strip_suffix("KiB").unwrap_or(text).parse().ok()?;
        kib.checked_mul(1024)
    }

    fn uuid(&self, unit: &Unit<'t>) -> Option<&'t str> {
        const NAMES: [&str; 3] = ["NVIDIAUUID", "AMDUUID", "LevelZeroUUID"];
        match unit.shares_card {
            true => NAMES.iter().find_map(|name| unit.own?.object.info(name)),
            false => self.info(unit, &NAMES),
        }
    }
}

/// The devices a runtime shows; a device that it also shows in parts counts as its parts.
fn numbered<'t>(os_devices: &[OsDevice<'t>], runtime: &str) -> Vec<Unit<'t>> {
    let all: Vec<(OsDevice<'t>, (u32, Option<u32>))> =
        os_devices.iter().filter_map(|d| Some((*d, d.number_after(runtime)?))).collect();
    let in_parts: HashSet<u32> = all
        .iter()
        .filter(|(_, (_, part))| part.is_some())
        .map(|(_, (number, _))| *number)
        .collect();
    let whole = |number: &(u32, Option<u32>)| number.1.is_none() && in_parts.contains(&number.0);
    (all.into_iter().filter(|(_, number)| !whole(number)))
        .map(|(own, number)| Unit {
            pci: None,
            own: Some(own),
            number: Some(number),
            shares_card: false,
        })
        .collect()
}
