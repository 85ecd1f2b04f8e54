//! Network interfaces.

use std::collections::BTreeMap;

use regatta_model::{LinkState, Nic, NicKind};

use super::error::Result;
use super::os_devices::{ByPci, OsDevice, OsDeviceType, natural_sort_key};
use super::pci::{HwlocPciDevice, LocalityCache};
use super::topology::Topology;

/// Maximum network interfaces per node.
const MAX_NICS: usize = 1024;
/// PCI vendors of Slingshot and EFA.
const VENDOR_CRAY: u16 = 0x17db;
const VENDOR_AMAZON: u16 = 0x1d0f;
/// PCI classes of InfiniBand adapters, current and legacy.
const INFINIBAND_CLASSES: [u32; 2] = [0x0207, 0x0c06];
/// Lengths of link-layer addresses.
const INFINIBAND_ADDRESS_BYTES: usize = 20;
const ETHERNET_ADDRESS_BYTES: usize = 6;

/// The interfaces by name.
pub(super) fn read(
    topology: &Topology<'_>,
    devices: &BTreeMap<usize, HwlocPciDevice>,
    by_pci: &ByPci<'_>,
    localities: &mut LocalityCache<'_>,
) -> Result<Vec<Nic>> {
    let mut found = Vec::new();
    for (pci, os_devices) in by_pci {
        let device = pci.and_then(|position| devices.get(&position));
        for (network, fabric) in pairs(os_devices) {
            let Some(named) = network.or(fabric) else { continue };
            if found.len() == MAX_NICS {
                return Err(named.object.too_many("network interfaces", MAX_NICS));
            }
            let numa = match device {
                Some(device) => device.locality.numa,
                None => localities.of(topology, named.position)?.numa,
            };
            found.push(Nic {
                fabric_device: fabric.map(|f| f.name.to_owned()),
                pci: device.map(|d| d.pci.address.clone()),
                numa,
                state: state(network, fabric),
                ..Nic::new(named.name, kind(device, network, fabric))
            });
        }
    }
    found.sort_by(|a, b| natural_sort_key(&a.name).cmp(&natural_sort_key(&b.name)));
    Ok(found)
}

/// The network and RDMA device of an interface.
type DevicePair<'d, 't> = (Option<&'d OsDevice<'t>>, Option<&'d OsDevice<'t>>);

/// The network and RDMA devices of an adapter, paired. One RDMA device may have several ports, each
/// with an interface; otherwise they are paired in order.
fn pairs<'d, 't>(os_devices: &'d [OsDevice<'t>]) -> Vec<DevicePair<'d, 't>> {
    let with = |kind: OsDeviceType| {
        let mut all: Vec<_> = os_devices.iter().filter(|d| d.kind == kind).collect();
        all.sort_by_key(|d| natural_sort_key(d.name));
        all
    };
    let (networks, fabrics) = (with(OsDeviceType::Network), with(OsDeviceType::Fabric));
    if let [only] = fabrics.as_slice()
        && !networks.is_empty()
    {
        return networks.into_iter().map(|network| (Some(network), Some(*only))).collect();
    }
    let count = networks.len().max(fabrics.len());
    (0..count).map(|i| (networks.get(i).copied(), fabrics.get(i).copied())).collect()
}

fn kind(
    device: Option<&HwlocPciDevice>,
    network: Option<&OsDevice<'_>>,
    fabric: Option<&OsDevice<'_>>,
) -> NicKind {
    let class = device.map(|d| d.pci.class >> 8);
    let vendor = device.map(|d| d.pci.vendor);
    // Sites name the interfaces as they like: `hsn0`, `hsi0`.
    let slingshot = vendor == Some(VENDOR_CRAY)
        || network.into_iter().chain(fabric).any(|d| {
            let named = d.name.starts_with("hsn") || d.name.starts_with("cxi");
            named || d.object.text("subtype") == Some("Slingshot")
        });
    // A dual-mode adapter has InfiniBand's class, but the address length of each port tells its
    // type.
    let address = network.and_then(|n| n.object.info("Address"));
    let infiniband = match address.map(|address| address.split(':').count()) {
        Some(INFINIBAND_ADDRESS_BYTES) => true,
        Some(ETHERNET_ADDRESS_BYTES) => false,
        _ => class.is_some_and(|class| INFINIBAND_CLASSES.contains(&class)),
    };
    match (fabric, device) {
        _ if slingshot => NicKind::Slingshot,
        _ if infiniband => NicKind::InfiniBand,
        (Some(_), _) if vendor == Some(VENDOR_AMAZON) => NicKind::Efa,
        (Some(_), _) => NicKind::Roce,
        (None, Some(_)) => NicKind::Ethernet,
        (None, None) => NicKind::Virtual,
    }
}

/// The port state, which only RDMA devices report: 4 is active, 1 down, 2 and 3 initialising.
fn state(network: Option<&OsDevice<'_>>, fabric: Option<&OsDevice<'_>>) -> LinkState {
    let port = network.and_then(|n| n.object.info("Port")).unwrap_or("1");
    match fabric.and_then(|f| f.object.info(&format!("Port{port}State"))) {
        Some("4") => LinkState::Up,
        Some("1" | "2" | "3") => LinkState::Down,
        _ => LinkState::Unknown,
    }
}
