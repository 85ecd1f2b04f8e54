//! PCI devices from sysfs.

use regatta_model::{CpuSet, PciDevice};

use crate::Sysroot;

const DEVICES: &str = "/sys/bus/pci/devices";

/// Domain, bus, device and function of `0000:c1:00.0`. Addresses are compared by these, because a
/// five-digit domain sorts wrongly as text.
pub(crate) type PciAddress = (u32, u8, u8, u8);

/// Every PCI device and bridge, in bus order.
pub(crate) fn scan(root: &Sysroot) -> Vec<PciDevice> {
    let mut found: Vec<PciDevice> =
        root.list_dir(DEVICES).iter().filter_map(|address| device(root, address)).collect();
    found.sort_by_key(|d| parse_address(&d.address));
    found
}

fn device(root: &Sysroot, address: &str) -> Option<PciDevice> {
    parse_address(address)?;
    let dir = sysfs_dir(address);
    Some(PciDevice {
        address: address.to_owned(),
        path: bridges(&root.resolve(&dir)?),
        class: root.read_hex(&format!("{dir}/class"))?,
        vendor: u16::try_from(root.read_hex(&format!("{dir}/vendor"))?).ok()?,
        device: u16::try_from(root.read_hex(&format!("{dir}/device"))?).ok()?,
        // -1 means none.
        numa: root.read_value(&format!("{dir}/numa_node")),
    })
}

/// The sysfs directory of a device.
pub(crate) fn sysfs_dir(address: &str) -> String {
    format!("{DEVICES}/{address}")
}

pub(crate) fn find<'a>(devices: &'a [PciDevice], address: &str) -> Option<&'a PciDevice> {
    devices.iter().find(|d| d.address == address)
}

/// The local CPUs of a device; empty if unknown.
pub(crate) fn local_cpulist(root: &Sysroot, address: &str) -> CpuSet {
    let dir = sysfs_dir(address);
    let cpus = root.read_cpus(&format!("{dir}/local_cpulist"), &format!("{dir}/local_cpus"));
    cpus.unwrap_or_default()
}

/// The driver bound to a device.
pub(crate) fn driver(root: &Sysroot, address: &str) -> Option<String> {
    basename(&root.resolve(&format!("{}/driver", sysfs_dir(address)))?)
}

/// The PCI device that a sysfs directory belongs to: the innermost address in its real path,
/// because a virtio or USB device is a directory below its PCI device.
pub(crate) fn address_of(root: &Sysroot, dir: &str) -> Option<String> {
    let path = root.resolve(dir)?;
    path.rsplit('/').find(|part| parse_address(part).is_some()).map(str::to_owned)
}

/// Parses `0000:c1:00.0`.
pub(crate) fn parse_address(address: &str) -> Option<PciAddress> {
    let (rest, function) = address.split_once('.')?;
    let mut parts = rest.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    let widths = domain.len() >= 4 && bus.len() == 2 && device.len() == 2 && function.len() == 1;
    if parts.next().is_some() || !widths {
        return None;
    }
    let byte = |text: &str| u8::from_str_radix(text, 16).ok();
    Some((u32::from_str_radix(domain, 16).ok()?, byte(bus)?, byte(device)?, byte(function)?))
}

pub(crate) fn format_address(domain: u32, bus: u32, device: u32, function: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
}

/// The host bridge and the bridges above a device, from its real path. On Arm servers and in
/// Hyper-V guests the host bridge is not directly below `/sys/devices`.
fn bridges(path: &str) -> Vec<String> {
    let parts: Vec<&str> = path.split('/').collect();
    let above = &parts[..parts.len().saturating_sub(1)];
    let is_bridge = |part: &&str| is_host_bridge(part) || parse_address(part).is_some();
    let below_root = above.iter().copied().skip_while(|part| !is_host_bridge(part));
    below_root.filter(is_bridge).map(str::to_owned).collect()
}

fn is_host_bridge(part: &str) -> bool {
    let hex = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
    let parts = part.strip_prefix("pci").and_then(|p| p.split_once(':'));
    parts.is_some_and(|(domain, bus)| hex(domain) && hex(bus))
}

/// The last component of a path.
pub(crate) fn basename(path: &str) -> Option<String> {
    path.rsplit('/').next().filter(|part| !part.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fake_sysfs::{FakeSysfs, pci_device};

    #[test]
    fn devices_are_listed_in_bus_order() {
        let tree = FakeSysfs::new();
        tree.pci(pci_device("pci10000:e0/10000:e0:06.0/10000:e1:00.0", 0x010802, 0x8086, 1));
        let path = "pci0000:c0/0000:c0:01.1/0000:c1:00.0";
        tree.pci(pci_device(path, 0x038000, 0x1002, 0x7408).numa(3));
        tree.pci(pci_device("pci0000:00/0000:00:02.0", 0x030000, 0x8086, 0x46a6));
        tree.file("/sys/bus/pci/devices/0000:c1:00.0/local_cpulist", "48-63,112-127\n");
        tree.file("/sys/bus/pci/devices/nonsense/class", "0x030000");

        let found = scan(&tree.root());
        let addresses: Vec<&str> = found.iter().map(|d| d.address.as_str()).collect();
        assert_eq!(addresses, ["0000:00:02.0", "0000:c1:00.0", "10000:e1:00.0"]);
        assert_eq!(
            found[1],
            PciDevice {
                address: "0000:c1:00.0".to_owned(),
                path: vec!["pci0000:c0".to_owned(), "0000:c0:01.1".to_owned()],
                class: 0x038000,
                vendor: 0x1002,
                device: 0x7408,
                numa: Some(3),
            }
        );
        assert_eq!(found[0].numa, None, "-1 means no NUMA node");
        assert_eq!(local_cpulist(&tree.root(), "0000:c1:00.0").to_string(), "48-63,112-127");
        assert!(local_cpulist(&tree.root(), "0000:00:02.0").is_empty());
    }

    #[test]
    fn host_bridges_are_found_below_platform_devices() {
        let path = "/sys/devices/LNXSYSTM:00/VMBUS:00/47505500/pci0001:00/0001:00:00.0";
        assert_eq!(bridges(path), ["pci0001:00"]);
        let path = "/sys/devices/pci0009:00/0009:00:00.0/0009:01:00.0";
        assert_eq!(bridges(path), ["pci0009:00", "0009:00:00.0"]);
        assert!(bridges("/sys/bus/pci/devices/0000:01:00.0").is_empty());
    }

    proptest! {
        #[test]
        fn addresses_round_trip(domain in 0u32..0x20000, bus in 0u8.., device in 0u8..32, f in 0u8..8) {
            let text = format_address(domain, bus.into(), device.into(), f.into());
            prop_assert_eq!(parse_address(&text), Some((domain, bus, device, f)));
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            let _ = parse_address(&text);
            let _ = bridges(&text);
        }
    }
}
