//! OS devices, grouped by their PCI device.

use std::collections::BTreeMap;

use super::error::Result;
use super::topology::{Object, ObjectType, Topology};

/// Maximum OS devices per node, including disks and virtual functions.
const MAX_OS_DEVICES: usize = 16_384;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OsDeviceType {
    /// A network interface: `eth0`.
    Network,
    /// An RDMA device: `mlx5_0`.
    Fabric,
    /// Any other type. GPUs are identified by name.
    Other,
}

/// An OS device of a driver or runtime.
#[derive(Clone, Copy)]
pub(super) struct OsDevice<'t> {
    pub(super) position: usize,
    pub(super) name: &'t str,
    pub(super) kind: OsDeviceType,
    pub(super) object: &'t Object<'t>,
}

/// OS devices by the index of their PCI device; `None` for those without one.
pub(super) type ByPci<'t> = BTreeMap<Option<usize>, Vec<OsDevice<'t>>>;

pub(super) fn read<'t>(topology: &'t Topology<'t>) -> Result<ByPci<'t>> {
    let mut by_pci = ByPci::new();
    for (count, (position, object)) in topology.of_type(ObjectType::Os).enumerate() {
        if count == MAX_OS_DEVICES {
            return Err(object.too_many("OS devices", MAX_OS_DEVICES));
        }
        let Some(name) = object.text("name") else { continue };
        let flags = object.integer("osdev_type")?.unwrap_or(0);
        let kind = device_type(topology.major, flags, name);
        let mut ancestors = topology.ancestors(position);
        let pci = ancestors.find(|(_, o)| o.kind == ObjectType::Pci).map(|(p, _)| p);
        by_pci.entry(pci).or_default().push(OsDevice { position, name, kind, object });
    }
    Ok(by_pci)
}

/// Versions 1 and 2 enumerate the types; version 3 uses bit flags.
fn device_type(major: u32, flags: u64, name: &str) -> OsDeviceType {
    const NETWORK_BIT: u64 = 1 << 4;
    const FABRIC_BIT: u64 = 1 << 5;
    let (network, fabric) = match major {
        1 | 2 => (flags == 2, flags == 3),
        _ => (flags & NETWORK_BIT != 0, flags & FABRIC_BIT != 0),
    };
    match (fabric || (network && name.starts_with("cxi")), network) {
        (true, _) => OsDeviceType::Fabric,
        (false, true) => OsDeviceType::Network,
        (false, false) => OsDeviceType::Other,
    }
}

impl OsDevice<'_> {
    /// The indices after a prefix: 3 and 1 of `ze3.1`; the second one is the subdevice.
    pub(super) fn index_after(&self, prefix: &str) -> Option<(u32, Option<u32>)> {
        let rest = self.name.strip_prefix(prefix)?;
        match rest.split_once('.') {
            Some((index, sub)) => Some((index.parse().ok()?, Some(sub.parse().ok()?))),
            None => Some((rest.parse().ok()?, None)),
        }
    }
}

/// Natural sort key: the text and the trailing number.
pub(super) fn natural_sort_key(name: &str) -> (&str, u64, &str) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text, name[text.len()..].parse().unwrap_or(0), name)
}
