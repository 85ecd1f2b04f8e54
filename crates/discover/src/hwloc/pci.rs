//! The PCI tree: devices, the bridges above them, and the CPUs they are near to.

use std::collections::{BTreeMap, HashMap};

use regatta_model::{CpuSet, NumaNode, PciDevice};

use super::cpus::{owner, owners};
use super::error::HwlocError;
use super::tree::{Kind, Object, Tree};

/// More devices and bridges than any node has, virtual functions included.
const MAX_DEVICES: usize = 16_384;

/// A PCI device with what else the topology says about its place.
pub(super) struct Device {
    pub(super) pci: PciDevice,
    pub(super) near: Near,
}

/// The CPUs a device is near to.
#[derive(Clone, Default)]
pub(super) struct Near {
    /// None if the device hangs on a whole machine of several memory nodes: that is hwloc's way to
    /// say that the firmware does not tell.
    pub(super) cpus: CpuSet,
    pub(super) numa: Option<u32>,
}

/// The devices and bridges by their position in the tree.
pub(super) fn read(
    tree: &Tree<'_>,
    nears: &mut Nears<'_>,
) -> Result<BTreeMap<usize, Device>, HwlocError> {
    let mut devices = BTreeMap::new();
    for (position, object) in tree.objects.iter().enumerate() {
        let is_device = match object.kind {
            Kind::Pci => true,
            // A host bridge has no address of its own.
            Kind::Bridge => object.text("pci_busid").is_some(),
            _ => false,
        };
        if !is_device {
            continue;
        }
        if devices.len() == MAX_DEVICES {
            let (at, what) = (object.place(), "PCI devices");
            return Err(HwlocError::TooMany { at, what, limit: MAX_DEVICES });
        }
        let near = nears.of(tree, position)?;
        let (class, vendor, device) = identity(object)?;
        let path = path(tree, position)?;
        let (address, numa) = (address(object)?, near.numa);
        let pci = PciDevice { address, path, class, vendor, device, numa };
        devices.insert(position, Device { pci, near });
    }
    Ok(devices)
}

/// `0000:c1:00.0`, in the kernel's spelling.
fn address(object: &Object<'_>) -> Result<String, HwlocError> {
    let text = object.need("pci_busid")?;
    let parts = || {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        let (bus, slot) = (hex(bus, 0xff)?, hex(slot, 0x1f)?);
        let function = hex(function, 0x7)?;
        Some(format!("{:04x}:{bus:02x}:{slot:02x}.{function:x}", hex(domain, u32::MAX)?))
    };
    parts().ok_or_else(|| object.bad("pci_busid", "a PCI address like 0000:c1:00.0"))
}

/// Class, vendor and device from `0302 [10de:2330] [10de:16c1] a1`, which since hwloc 3 ends in the
/// programming interface, the last byte of the class.
fn identity(object: &Object<'_>) -> Result<(u32, u16, u16), HwlocError> {
    let text = object.need("pci_type")?;
    let parts = || {
        let mut words = text.split_ascii_whitespace();
        let class = hex(words.next()?, 0xffff)?;
        let (vendor, device) =
            words.next()?.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
        let interface = words.nth(2).and_then(|word| hex(word, 0xff)).unwrap_or(0);
        let number = |text| hex(text, 0xffff).and_then(|n| u16::try_from(n).ok());
        Some((class << 8 | interface, number(vendor)?, number(device)?))
    };
    parts().ok_or_else(|| object.bad("pci_type", "like 0302 [10de:2330] [10de:16c1] a1"))
}

fn hex(text: &str, most: u32) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok()).flatten().filter(|&n| n <= most)
}

/// The bridges above a device, outermost first.
fn path(tree: &Tree<'_>, position: usize) -> Result<Vec<String>, HwlocError> {
    let mut path = Vec::new();
    for (_, object) in tree.around(position).filter(|(_, o)| o.kind == Kind::Bridge) {
        if object.text("pci_busid").is_some() {
            path.push(address(object)?);
        } else if object.text("bridge_pci").is_some() {
            path.push(host_bridge(object)?);
        }
    }
    path.reverse();
    Ok(path)
}

/// The kernel's name for a host bridge, `pci0000:c0`, from its buses `0000:[c0-c7]`.
fn host_bridge(object: &Object<'_>) -> Result<String, HwlocError> {
    let text = object.need("bridge_pci")?;
    let parts = || {
        let (domain, buses) = text.split_once(':')?;
        let (first, _) = buses.strip_prefix('[')?.strip_suffix(']')?.split_once('-')?;
        Some(format!("pci{:04x}:{:02x}", hex(domain, u32::MAX)?, hex(first, 0xff)?))
    };
    parts().ok_or_else(|| object.bad("bridge_pci", "buses like 0000:[c0-c7]"))
}

/// Answers what CPUs a device is near to; remembers the answer for each object around devices.
pub(super) struct Nears<'m> {
    online: &'m CpuSet,
    numa_of: Vec<Option<u32>>,
    several_nodes: bool,
    known: HashMap<usize, Near>,
}

impl<'m> Nears<'m> {
    pub(super) fn new(online: &'m CpuSet, numa: &[NumaNode]) -> Self {
        Self {
            online,
            numa_of: owners(numa.iter().map(|n| (n.id, &n.cpus))),
            several_nodes: numa.iter().filter(|n| !n.cpus.is_empty()).count() > 1,
            known: HashMap::new(),
        }
    }

    /// What the innermost object with CPUs around a device says.
    pub(super) fn of(&mut self, tree: &Tree<'_>, position: usize) -> Result<Near, HwlocError> {
        let Some((around, object)) = tree.around(position).find(|(_, o)| o.kind.has_cpus()) else {
            return Ok(Near::default());
        };
        if object.kind == Kind::Machine && self.several_nodes {
            return Ok(Near::default());
        }
        if let Some(near) = self.known.get(&around) {
            return Ok(near.clone());
        }
        let cpus = object.set("cpuset")?.unwrap_or_default().intersection(self.online);
        let numa = owner(&self.numa_of, &cpus);
        let near = Near { cpus, numa };
        self.known.insert(around, near.clone());
        Ok(near)
    }
}
