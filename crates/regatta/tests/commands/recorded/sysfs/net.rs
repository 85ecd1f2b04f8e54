//! Network interfaces and fabric devices.

use regatta_model::{Machine, NicKind};

use super::SysfsTree;
use super::pci::{Device, PciTree};

/// ARPHRD hardware types.
const ETHERNET: u32 = 1;
const INFINIBAND: u32 = 32;
const LOOPBACK: u32 = 772;

pub fn write(tree: &SysfsTree, machine: &Machine, pci: &PciTree) {
    interface(tree, "/sys/devices/virtual/net/lo", LOOPBACK, 0, "unknown");
    tree.link("/sys/class/net/lo", "/sys/devices/virtual/net/lo");
    on_pci(tree, pci.management(), "eno1", ETHERNET, 1000);
    for (i, nic) in machine.nics.iter().enumerate() {
        let device = pci.nic(i);
        let mbit = nic.speed_mbit.unwrap();
        let fabric = nic.fabric_device.as_deref().unwrap();
        if nic.kind == NicKind::Slingshot {
            on_pci(tree, device, &nic.name, ETHERNET, mbit);
            let folder = format!("{}/cxi/{fabric}", device.folder());
            tree.link(&format!("{folder}/device"), &device.folder());
            tree.link(&format!("/sys/class/cxi/{fabric}"), &folder);
        } else {
            on_pci(tree, device, &nic.name, INFINIBAND, mbit);
            infiniband(tree, device, fabric, mbit);
        }
    }
}

fn on_pci(tree: &SysfsTree, device: &Device, name: &str, hardware: u32, mbit: u64) {
    let folder = format!("{}/net/{name}", device.folder());
    interface(tree, &folder, hardware, mbit, "up");
    tree.link(&format!("{folder}/device"), &device.folder());
    tree.link(&format!("/sys/class/net/{name}"), &folder);
}

fn interface(tree: &SysfsTree, folder: &str, hardware: u32, mbit: u64, state: &str) {
    let file = |name: &str, text: String| tree.file(&format!("{folder}/{name}"), text);
    file("type", hardware.to_string());
    file("operstate", state.to_owned());
    file("carrier", "1".to_owned());
    file("mtu", "9000".to_owned());
    file("dev_port", "0".to_owned());
    file("flags", "0x1003".to_owned());
    // Without a link speed, reading the file fails.
    if mbit > 0 {
        file("speed", mbit.to_string());
    }
}

fn infiniband(tree: &SysfsTree, device: &Device, name: &str, mbit: u64) {
    let folder = format!("{}/infiniband/{name}", device.folder());
    let port = format!("{folder}/ports/1");
    tree.file(&format!("{folder}/node_type"), "1: CA");
    tree.file(&format!("{port}/state"), "4: ACTIVE");
    tree.file(&format!("{port}/phys_state"), "5: LinkUp");
    tree.file(&format!("{port}/link_layer"), "InfiniBand");
    let lanes = mbit / 100_000;
    tree.file(&format!("{port}/rate"), format!("{} Gb/sec ({lanes}X NDR)", mbit / 1000));
    tree.link(&format!("{folder}/device"), &device.folder());
    tree.link(&format!("/sys/class/infiniband/{name}"), &folder);
}
