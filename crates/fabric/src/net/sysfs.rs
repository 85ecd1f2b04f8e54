//! What sysfs says about NICs. The root of the file system is a parameter.

use std::path::{Path, PathBuf};

/// The path of a PCI device below `/sys/devices`, by its address.
pub fn pci_device(root: &Path, address: &str) -> Option<PathBuf> {
    resolve(root, &format!("sys/bus/pci/devices/{address}"))
}

/// The path of the PCI device of a network interface. Virtual interfaces have none.
pub fn interface_device(root: &Path, interface: &str) -> Option<PathBuf> {
    resolve(root, &format!("sys/class/net/{interface}/device"))
}

/// Mbit/s of a network interface, if the driver knows it.
pub fn interface_speed(root: &Path, interface: &str) -> Option<u32> {
    let path = root.join(format!("sys/class/net/{interface}/speed"));
    let text = std::fs::read_to_string(path).ok()?;
    text.trim().parse().ok().filter(|speed| *speed > 0)
}

/// Follows links. Names of libfabric must not lead elsewhere.
fn resolve(root: &Path, path: &str) -> Option<PathBuf> {
    if path.contains("..") { None } else { std::fs::canonicalize(root.join(path)).ok() }
}
