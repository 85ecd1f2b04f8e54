//! PCI devices, the bridges above them, and their locality.

use std::collections::{BTreeMap, HashMap};

use regatta_model::{CpuSet, NumaNode, PciDevice};

use super::cpus::{common_owner, owner_by_cpu};
use super::error::Result;
use super::topology::{Object, ObjectType, Topology};
use crate::pci;

/// Maximum PCI devices and bridges per node, including virtual functions.
const MAX_DEVICES: usize = 16_384;

/// A PCI device and its locality.
pub(super) struct HwlocPciDevice {
    pub(super) pci: PciDevice,
    pub(super) locality: Locality,
}

/// The CPUs and NUMA node that a device is local to.
#[derive(Clone, Default)]
pub(super) struct Locality {
    /// Empty if the device is attached to a machine object with several NUMA nodes, by which hwloc
    /// expresses that the firmware reports no locality.
    pub(super) cpus: CpuSet,
    pub(super) numa: Option<u32>,
}

/// The devices and bridges, by object index.
pub(super) fn read(
    topology: &Topology<'_>,
    localities: &mut LocalityCache<'_>,
) -> Result<BTreeMap<usize, HwlocPciDevice>> {
    let mut devices = BTreeMap::new();
    // A host bridge has no PCI address.
    let is_bridge = |o: &Object| o.kind == ObjectType::Bridge && o.text("pci_busid").is_some();
    let is_device = |o: &Object| o.kind == ObjectType::Pci || is_bridge(o);
    for (position, object) in topology.objects.iter().enumerate().filter(|(_, o)| is_device(o)) {
        if devices.len() == MAX_DEVICES {
            return Err(object.too_many("PCI devices", MAX_DEVICES));
        }
        let locality = localities.of(topology, position)?;
        let (class, vendor, device) = identity(object)?;
        let path = path(topology, position)?;
        let (address, numa) = (address(object)?, locality.numa);
        let pci = PciDevice { address, path, class, vendor, device, numa };
        devices.insert(position, HwlocPciDevice { pci, locality });
    }
    Ok(devices)
}

/// The address in the kernel's notation: `0000:c1:00.0`.
fn address(object: &Object<'_>) -> Result<String> {
    let text = object.need("pci_busid")?;
    let parsed = pci::parse_address(text);
    let parsed = parsed.filter(|(_, _, device, function)| *device <= 0x1f && *function <= 7);
    let (domain, bus, device, function) =
        parsed.ok_or_else(|| object.bad("pci_busid", "a PCI address like 0000:c1:00.0"))?;
    Ok(pci::format_address(domain, bus.into(), device.into(), function.into()))
}

/// Class, vendor and device from `0302 [10de:2330] [10de:16c1] a1`. Since hwloc 3 the programming
/// interface, the last byte of the class, follows.
fn identity(object: &Object<'_>) -> Result<(u32, u16, u16)> {
    let text = object.need("pci_type")?;
    let parts = || {
        let mut words = text.split_ascii_whitespace();
        let class = parse_hex(words.next()?, 0xffff)?;
        let (vendor, device) =
            words.next()?.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
        let interface = words.nth(2).and_then(|word| parse_hex(word, 0xff)).unwrap_or(0);
        let number = |text| parse_hex(text, 0xffff).and_then(|n| u16::try_from(n).ok());
        Some((class << 8 | interface, number(vendor)?, number(device)?))
    };
    parts().ok_or_else(|| object.bad("pci_type", "like 0302 [10de:2330] [10de:16c1] a1"))
}

fn parse_hex(text: &str, max: u32) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok()).flatten().filter(|&n| n <= max)
}

/// The bridges above a device, root first.
fn path(topology: &Topology<'_>, position: usize) -> Result<Vec<String>> {
    let mut path = Vec::new();
    for (_, object) in topology.ancestors(position).filter(|(_, o)| o.kind == ObjectType::Bridge) {
        if object.text("pci_busid").is_some() {
            path.push(address(object)?);
        } else if object.text("bridge_pci").is_some() {
            path.push(host_bridge(object)?);
        }
    }
    path.reverse();
    Ok(path)
}

/// The kernel's name of a host bridge, `pci0000:c0`, from its bus range `0000:[c0-c7]`.
fn host_bridge(object: &Object<'_>) -> Result<String> {
    let text = object.need("bridge_pci")?;
    let parts = || {
        let (domain, buses) = text.split_once(':')?;
        let (first, _) = buses.strip_prefix('[')?.strip_suffix(']')?.split_once('-')?;
        Some(format!("pci{:04x}:{:02x}", parse_hex(domain, u32::MAX)?, parse_hex(first, 0xff)?))
    };
    parts().ok_or_else(|| object.bad("bridge_pci", "a bus range like 0000:[c0-c7]"))
}

/// Computes and caches the locality of devices.
pub(super) struct LocalityCache<'m> {
    online: &'m CpuSet,
    numa_by_cpu: Vec<Option<u32>>,
    several_nodes: bool,
    cache: HashMap<usize, Locality>,
}

impl<'m> LocalityCache<'m> {
    pub(super) fn new(online: &'m CpuSet, numa: &[NumaNode]) -> Self {
        Self {
            online,
            numa_by_cpu: owner_by_cpu(numa.iter().map(|n| (n.id, &n.cpus))),
            several_nodes: numa.iter().filter(|n| !n.cpus.is_empty()).count() > 1,
            cache: HashMap::new(),
        }
    }

    /// The locality given by the innermost ancestor with a cpuset.
    pub(super) fn of(&mut self, topology: &Topology<'_>, position: usize) -> Result<Locality> {
        let ancestor = topology.ancestors(position).find(|(_, o)| o.kind.has_cpus());
        let is_known = |o: &Object| o.kind != ObjectType::Machine || !self.several_nodes;
        let Some((ancestor, object)) = ancestor.filter(|(_, o)| is_known(o)) else {
            return Ok(Locality::default());
        };
        if let Some(locality) = self.cache.get(&ancestor) {
            return Ok(locality.clone());
        }
        let cpus = object.set("cpuset")?.unwrap_or_default().intersection(self.online);
        let numa = common_owner(&self.numa_by_cpu, &cpus);
        let locality = Locality { cpus, numa };
        self.cache.insert(ancestor, locality.clone());
        Ok(locality)
    }
}
