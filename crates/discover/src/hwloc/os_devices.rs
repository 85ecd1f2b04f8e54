//! The devices that drivers and runtimes show, by the PCI device they belong to.

use std::collections::BTreeMap;

use super::error::HwlocError;
use super::tree::{Kind, Object, Tree};

/// More devices than any node has, disks and virtual functions included.
const MAX_OS_DEVICES: usize = 16_384;

/// What a driver's device is, as far as Regatta cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A network interface: `eth0`.
    Network,
    /// An RDMA device: `mlx5_0`.
    Fabric,
    /// A disk, a display, a GPU, a DMA engine; GPUs are told by name.
    Other,
}

/// One device of a driver or runtime.
#[derive(Clone, Copy)]
pub(super) struct OsDevice<'t> {
    pub(super) position: usize,
    pub(super) name: &'t str,
    pub(super) role: Role,
    pub(super) object: &'t Object<'t>,
}

/// The OS devices below each PCI device, by its position; `None` for those below no PCI device.
pub(super) type ByPci<'t> = BTreeMap<Option<usize>, Vec<OsDevice<'t>>>;

pub(super) fn read<'t>(tree: &'t Tree<'t>) -> Result<ByPci<'t>, HwlocError> {
    let mut by_pci = ByPci::new();
    for (count, (position, object)) in tree.of_kind(Kind::Os).enumerate() {
        if count == MAX_OS_DEVICES {
            let (at, what) = (object.place(), "OS devices");
            return Err(HwlocError::TooMany { at, what, limit: MAX_OS_DEVICES });
        }
        let Some(name) = object.text("name") else { continue };
        let kind = object.number("osdev_type")?.unwrap_or(0);
        let role = role(tree.major, kind, name);
        let pci = tree.around(position).find(|(_, o)| o.kind == Kind::Pci).map(|(p, _)| p);
        by_pci.entry(pci).or_default().push(OsDevice { position, name, role, object });
    }
    Ok(by_pci)
}

/// Version 2 numbers the types; version 3 makes them bits, as a device may be several things.
fn role(major: u32, kind: u64, name: &str) -> Role {
    const NETWORK_BIT: u64 = 1 << 4;
    const FABRIC_BIT: u64 = 1 << 5;
    let (network, fabric) = match major {
        2 => (kind == 2, kind == 3),
        _ => (kind & NETWORK_BIT != 0, kind & FABRIC_BIT != 0),
    };
    match (fabric || (network && name.starts_with("cxi")), network) {
        (true, _) => Role::Fabric,
        (false, true) => Role::Network,
        (false, false) => Role::Other,
    }
}

impl OsDevice<'_> {
    /// The number behind a prefix: 3 and 1 of `ze3.1`, the second for a part of a device.
    pub(super) fn number_after(&self, prefix: &str) -> Option<(u32, Option<u32>)> {
        let rest = self.name.strip_prefix(prefix)?;
        match rest.split_once('.') {
            Some((number, part)) => Some((number.parse().ok()?, Some(part.parse().ok()?))),
            None => Some((rest.parse().ok()?, None)),
        }
    }
}

/// A name as people sort it: its text and the number at its end.
pub(super) fn sort_key(name: &str) -> (&str, u64, &str) {
    let text = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (text, name[text.len()..].parse().unwrap_or(0), name)
}
