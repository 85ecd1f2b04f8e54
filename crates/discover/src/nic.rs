//! Network interfaces from sysfs: network devices, and fabric devices without one.

mod addresses;

use regatta_model::{LinkState, Nic, NicKind, PciDevice};

use crate::{Sysroot, pci};

const NET: &str = "/sys/class/net";
const CXI: &str = "/sys/class/cxi";
const RDMA: &str = "/sys/class/infiniband";

/// ARP hardware types (`ARPHRD_*`).
const TYPE_INFINIBAND: u32 = 32;
const TYPE_LOOPBACK: u32 = 772;
/// Cray's PCI vendor ID (Slingshot).
const VENDOR_CRAY: u16 = 0x17db;

/// All interfaces except loopback, the best kind first. Within a kind those with a network device
/// come first, by name.
pub(crate) fn scan(root: &Sysroot, devices: &[PciDevice]) -> Vec<Nic> {
    let fabric = FabricDevices { cxi: fabric_devices(root, CXI), rdma: rdma_devices(root) };
    let addresses = addresses::read(root);
    let of = |nic: &Nic| addresses.get(&nic.name).cloned().unwrap_or_default();
    let netdevs = root.list_dir(NET);
    let netdevs = netdevs.iter().filter_map(|name| netdev(root, devices, &fabric, name));
    let mut nics: Vec<Nic> = netdevs.map(|nic| Nic { addresses: of(&nic), ..nic }).collect();
    nics.extend(fabric.without_netdev(&nics, devices));
    nics.sort_by_key(|n| n.kind);
    nics
}

/// The fabric devices of the node.
struct FabricDevices {
    cxi: Vec<FabricDevice>,
    rdma: Vec<RdmaDevice>,
}

/// A kernel-bypass device.
struct FabricDevice {
    name: String,
    pci: String,
}

/// An RDMA device and its ports, from port 1.
struct RdmaDevice {
    device: FabricDevice,
    ports: Vec<RdmaPort>,
}

#[derive(Debug, Clone, PartialEq)]
struct RdmaPort {
    active: bool,
    kind: NicKind,
    speed_mbit: Option<u64>,
}

/// The devices of a class on the PCI bus. Emulated devices are not on it.
fn fabric_devices(root: &Sysroot, class: &str) -> Vec<FabricDevice> {
    let device = |name: String| {
        let pci = pci::address_of(root, &format!("{class}/{name}/device"))?;
        Some(FabricDevice { name, pci })
    };
    root.list_dir(class).into_iter().filter_map(device).collect()
}

fn rdma_devices(root: &Sysroot) -> Vec<RdmaDevice> {
    let with_ports = |device: FabricDevice| {
        let ports = format!("{RDMA}/{}/ports", device.name);
        let ports =
            root.list_dir(&ports).iter().map(|n| port(root, &format!("{ports}/{n}"))).collect();
        RdmaDevice { device, ports }
    };
    fabric_devices(root, RDMA).into_iter().map(with_ports).collect()
}

fn port(root: &Sysroot, dir: &str) -> RdmaPort {
    let text = |file: &str| root.read_text(&format!("{dir}/{file}")).unwrap_or_default();
    RdmaPort {
        // `4: ACTIVE`
        active: text("state").ends_with("ACTIVE"),
        kind: match text("link_layer").as_str() {
            "InfiniBand" => NicKind::InfiniBand,
            "Unspecified" => NicKind::Efa,
            _ => NicKind::Roce,
        },
        speed_mbit: rate_mbit(&text("rate")),
    }
}

/// Mbit/s of `400 Gb/sec (4X NDR)`.
fn rate_mbit(text: &str) -> Option<u64> {
    let gigabits: f64 = text.split_once(" Gb/sec")?.0.trim().parse().ok()?;
    (gigabits > 0.0 && gigabits < 1e6).then_some((gigabits * 1000.0).round() as u64)
}

impl FabricDevices {
    fn cxi_at(&self, pci: Option<&str>) -> Option<&FabricDevice> {
        self.cxi.iter().find(|d| Some(d.pci.as_str()) == pci)
    }

    fn rdma_at(&self, pci: Option<&str>) -> Option<&RdmaDevice> {
        self.rdma.iter().find(|d| Some(d.device.pci.as_str()) == pci)
    }

    /// The fabric devices without a network device, as interfaces of their own.
    fn without_netdev(&self, nics: &[Nic], devices: &[PciDevice]) -> Vec<Nic> {
        let is_bare = |d: &&FabricDevice| !nics.iter().any(|n| n.pci.as_ref() == Some(&d.pci));
        let nic = |d: &FabricDevice, kind, speed_mbit, state| Nic {
            fabric_device: Some(d.name.clone()),
            numa: pci::find(devices, &d.pci).and_then(|p| p.numa),
            pci: Some(d.pci.clone()),
            speed_mbit,
            state,
            ..Nic::new(&d.name, kind)
        };
        let cxi = self.cxi.iter().filter(is_bare);
        let cxi = cxi.map(|d| nic(d, NicKind::Slingshot, None, LinkState::Unknown));
        let rdma = self.rdma.iter().filter(|d| is_bare(&&d.device)).filter_map(|d| {
            let best = d.ports.iter().find(|p| p.active).or(d.ports.first())?;
            Some(nic(&d.device, best.kind, best.speed_mbit, best.state()))
        });
        cxi.chain(rdma).collect()
    }
}

impl RdmaPort {
    fn state(&self) -> LinkState {
        if self.active { LinkState::Up } else { LinkState::Down }
    }
}

fn netdev(
    root: &Sysroot,
    devices: &[PciDevice],
    fabric: &FabricDevices,
    name: &str,
) -> Option<Nic> {
    let dir = format!("{NET}/{name}");
    // The bonding driver adds a plain file to the directory.
    let hardware: u32 = root.read_value(&format!("{dir}/type"))?;
    if hardware == TYPE_LOOPBACK || name == "lo" {
        return None;
    }
    let has_device = root.exists(&format!("{dir}/device"));
    let device = if has_device { pci::address_of(root, &format!("{dir}/device")) } else { None };
    let device = device.and_then(|address| pci::find(devices, &address));
    let address = device.map(|d| d.address.as_str());
    let cxi = fabric.cxi_at(address);
    let rdma = fabric.rdma_at(address);
    let port = rdma.and_then(|r| port_of(root, &dir, r));
    let kind = if !has_device {
        NicKind::Virtual
    } else if cxi.is_some() || device.is_some_and(|d| is_slingshot(root, d)) {
        NicKind::Slingshot
    } else if hardware == TYPE_INFINIBAND {
        NicKind::InfiniBand
    } else if port.is_some_and(|p| p.active && p.kind == NicKind::Roce) {
        NicKind::Roce
    } else {
        NicKind::Ethernet
    };
    // IP over InfiniBand may be down on a link that carries RDMA.
    let port = port.filter(|_| kind == NicKind::InfiniBand);
    let own_speed = root.read_value(&format!("{dir}/speed")).filter(|speed| *speed > 0);
    Some(Nic {
        fabric_device: cxi.or(rdma.map(|r| &r.device)).map(|d| d.name.clone()),
        pci: address.map(str::to_owned),
        numa: device.and_then(|d| d.numa),
        speed_mbit: port.and_then(|p| p.speed_mbit).or(own_speed),
        state: port.map_or_else(|| link_state(root, &dir), RdmaPort::state),
        ..Nic::new(name, kind)
    })
}

/// The RDMA port of a network device. RDMA ports count from 1, `dev_port` from 0.
fn port_of<'a>(root: &Sysroot, dir: &str, rdma: &'a RdmaDevice) -> Option<&'a RdmaPort> {
    let number: usize = root.read_value(&format!("{dir}/dev_port")).unwrap_or(0);
    rdma.ports.get(number).or(rdma.ports.first())
}

fn is_slingshot(root: &Sysroot, device: &PciDevice) -> bool {
    let driver = pci::driver(root, &device.address);
    device.vendor == VENDOR_CRAY || driver.is_some_and(|d| d == "cxi_ss1" || d == "cxi_core")
}

fn link_state(root: &Sysroot, dir: &str) -> LinkState {
    let text = |file: &str| root.read_text(&format!("{dir}/{file}")).unwrap_or_default();
    match (text("operstate").as_str(), text("carrier").as_str()) {
        ("up", _) => LinkState::Up,
        ("down" | "lowerlayerdown" | "notpresent" | "dormant" | "testing", _) => LinkState::Down,
        // Drivers without operational state report `unknown`, but know the carrier.
        (_, "1") => LinkState::Up,
        (_, "0") => LinkState::Down,
        _ => LinkState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regatta_model::machine::NicAddress;

    use super::*;
    use crate::fake_sysfs::{FakeSysfs, pci_device};

    const UP: [(&str, &str); 3] = [("type", "1\n"), ("operstate", "up\n"), ("speed", "25000\n")];

    fn mellanox(tree: &FakeSysfs, address: &str, numa: i32) {
        let path = format!("pci0000:00/0000:00:01.0/{address}");
        tree.pci(pci_device(&path, 0x020700, 0x15b3, 0x1021).numa(numa).driver("mlx5_core"));
    }

    fn nics(tree: &FakeSysfs) -> Vec<Nic> {
        scan(&tree.root(), &pci::scan(&tree.root()))
    }

    fn kinds(nics: &[Nic]) -> Vec<(&str, NicKind, LinkState)> {
        nics.iter().map(|n| (n.name.as_str(), n.kind, n.state)).collect()
    }

    #[test]
    fn interfaces_are_sorted_by_kind() {
        let tree = FakeSysfs::new();
        for i in 0..4 {
            mellanox(&tree, &format!("0000:{:02x}:00.0", i + 1), i);
        }
        tree.net("lo", None, &[("type", "772\n")]);
        tree.file("/sys/class/net/bonding_masters", "bond0\n");
        tree.net("docker0", None, &[("type", "1\n"), ("operstate", "down\n"), ("speed", "-1\n")]);
        tree.net("eth10", Some("0000:01:00.0"), &UP);
        tree.net("eth9", Some("0000:02:00.0"), &UP);
        tree.rdma("mlx5_1", "0000:02:00.0", "Ethernet\n", "4: ACTIVE\n", "25 Gb/sec (1X EDR)\n");
        tree.net("ib0", Some("0000:03:00.0"), &[("type", "32\n"), ("operstate", "down\n")]);
        tree.rdma("mlx5_2", "0000:03:00.0", "InfiniBand\n", "4: ACTIVE\n", "400 Gb/sec (4X NDR)\n");
        tree.rdma("mlx5_3", "0000:04:00.0", "InfiniBand\n", "1: DOWN\n", "40 Gb/sec (4X QDR)\n");
        tree.dir("/sys/devices/virtual/infiniband/rxe0/ports/1");
        tree.link("/sys/class/infiniband/rxe0", "/sys/devices/virtual/infiniband/rxe0");

        let expected = [
            ("ib0", NicKind::InfiniBand, LinkState::Up),
            ("mlx5_3", NicKind::InfiniBand, LinkState::Down),
            ("eth9", NicKind::Roce, LinkState::Up),
            ("eth10", NicKind::Ethernet, LinkState::Up),
            ("docker0", NicKind::Virtual, LinkState::Down),
        ];
        let nics = nics(&tree);
        assert_eq!(kinds(&nics), expected);
        assert_eq!(nics[0].speed_mbit, Some(400_000));
        assert_eq!(nics[0].fabric_device.as_deref(), Some("mlx5_2"));
        assert_eq!((nics[1].pci.as_deref(), nics[1].numa), (Some("0000:04:00.0"), Some(3)));
        assert_eq!(nics[2].speed_mbit, Some(25_000));
        assert_eq!(nics[4].speed_mbit, None, "-1 means unknown speed");
    }

    #[test]
    fn inactive_rdma_port_is_plain_ethernet() {
        let tree = FakeSysfs::new();
        mellanox(&tree, "0000:01:00.0", 0);
        tree.net("eth0", Some("0000:01:00.0"), &UP);
        tree.rdma("irdma0", "0000:01:00.0", "Ethernet\n", "1: DOWN\n", "25 Gb/sec (1X EDR)\n");
        assert_eq!(kinds(&nics(&tree)), [("eth0", NicKind::Ethernet, LinkState::Up)]);
    }

    #[test]
    fn slingshot_is_detected_by_class_driver_or_vendor() {
        let tree = FakeSysfs::new();
        let path = |n: u32| format!("pci0000:c4/0000:c4:01.{n}/0000:c{n}:00.0");
        tree.pci(pci_device(&path(5), 0x020000, 0x1590, 0x0371));
        tree.cxi("cxi0", "0000:c5:00.0");
        tree.pci(pci_device(&path(6), 0x020000, 0x1590, 0x0371).driver("cxi_ss1"));
        tree.pci(pci_device(&path(7), 0x020000, VENDOR_CRAY, 0x0501));
        tree.pci(pci_device(&path(8), 0x020000, 0x15b3, 0x1017));
        for (name, address) in [("hsn0", 5), ("hsn1", 6), ("hsn2", 7), ("hsn3", 8)] {
            tree.net(name, Some(&format!("0000:c{address}:00.0")), &UP);
        }
        let json = r#"[{"ifname":"hsn0","addr_info":[{"local":"10.253.6.67","prefixlen":16}]}]"#;
        tree.file("/ip-addr.json", json);
        let nics = nics(&tree);
        let kinds: Vec<NicKind> = nics.iter().map(|n| n.kind).collect();
        use NicKind::{Ethernet, Slingshot};
        assert_eq!(kinds, [Slingshot, Slingshot, Slingshot, Ethernet], "hsn3 is Slingshot 10");
        assert_eq!(nics[0].fabric_device.as_deref(), Some("cxi0"));
        let address = NicAddress { address: "10.253.6.67".parse().unwrap(), prefix: 16 };
        assert_eq!(nics[0].addresses, [address]);
    }

    #[test]
    fn rates_are_parsed() {
        assert_eq!(rate_mbit("400 Gb/sec (4X NDR)"), Some(400_000));
        assert_eq!(rate_mbit("2.5 Gb/sec (1X SDR)"), Some(2500));
        assert_eq!(rate_mbit("0 Gb/sec"), None);
        assert_eq!(rate_mbit("NaN Gb/sec"), None);
    }

    proptest! {
        #[test]
        fn rate_parsing_never_panics(text in ".*") {
            let _ = rate_mbit(&text);
        }
    }
}
