//! Fake sysfs trees in temporary directories, for tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::Sysroot;

/// The files of a fake machine, removed on drop.
pub(crate) struct FakeSysfs {
    base: PathBuf,
}

impl FakeSysfs {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::temp_dir().join(format!("regatta-tree-{}-{id}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        std::fs::create_dir_all(&base).unwrap();
        Self { base }
    }

    pub(crate) fn root(&self) -> Sysroot {
        Sysroot::at(&self.base)
    }

    /// Path on this host, through the links written so far.
    fn real(&self, path: &str) -> PathBuf {
        let (mut known, mut rest) = (path.trim_matches('/'), Vec::new());
        while !known.is_empty() {
            if let Some(found) = self.root().resolve(known) {
                return rest.iter().rev().fold(self.root().path(&found), |p, part| p.join(part));
            }
            let (front, last) = known.rsplit_once('/').unwrap_or(("", known));
            rest.push(last);
            known = front;
        }
        self.root().path(path)
    }

    /// Writes a file and its parent directories.
    pub(crate) fn file(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.real(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(crate) fn dir(&self, path: &str) {
        std::fs::create_dir_all(self.real(path)).unwrap();
    }

    /// Writes a symbolic link; the target starts at the machine's root.
    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.real(path);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    /// Writes a PCI device as the kernel presents it.
    pub(crate) fn pci(&self, device: FakePciDevice) {
        let dir = format!("/sys/devices/{}", device.path);
        let address = device.path.rsplit('/').next().unwrap();
        let file = |name: &str, text: String| self.file(&format!("{dir}/{name}"), &text);
        file("class", format!("{:#08x}\n", device.class));
        file("vendor", format!("{:#06x}\n", device.vendor));
        file("device", format!("{:#06x}\n", device.device));
        file("numa_node", format!("{}\n", device.numa));
        if let Some(driver) = device.driver {
            self.dir(&format!("/sys/bus/pci/drivers/{driver}"));
            self.link(&format!("{dir}/driver"), &format!("/sys/bus/pci/drivers/{driver}"));
        }
        self.link(&format!("/sys/bus/pci/devices/{address}"), &dir);
    }

    /// Writes a network device below a PCI device, or a virtual one.
    pub(crate) fn net(&self, name: &str, pci: Option<&str>, files: &[(&str, &str)]) {
        let dir = match pci {
            Some(address) => format!("/sys/bus/pci/devices/{address}/net/{name}"),
            None => format!("/sys/devices/virtual/net/{name}"),
        };
        self.dir(&dir);
        for (file, text) in files {
            self.file(&format!("{dir}/{file}"), text);
        }
        if let Some(address) = pci {
            self.link(&format!("{dir}/device"), &format!("/sys/bus/pci/devices/{address}"));
        }
        self.link(&format!("/sys/class/net/{name}"), &dir);
    }

    /// Writes an RDMA device with one port.
    pub(crate) fn rdma(&self, name: &str, pci: &str, layer: &str, state: &str, rate: &str) {
        let dir = format!("/sys/bus/pci/devices/{pci}/infiniband/{name}");
        self.file(&format!("{dir}/ports/1/link_layer"), layer);
        self.file(&format!("{dir}/ports/1/state"), state);
        self.file(&format!("{dir}/ports/1/rate"), rate);
        self.link(&format!("{dir}/device"), &format!("/sys/bus/pci/devices/{pci}"));
        self.link(&format!("/sys/class/infiniband/{name}"), &dir);
    }

    /// Writes a Slingshot (cxi) device.
    pub(crate) fn cxi(&self, name: &str, pci: &str) {
        let dir = format!("/sys/bus/pci/devices/{pci}/cxi/{name}");
        self.dir(&dir);
        self.link(&format!("{dir}/device"), &format!("/sys/bus/pci/devices/{pci}"));
        self.link(&format!("/sys/class/cxi/{name}"), &dir);
    }

    /// Writes a DRM card with its render node below a PCI device.
    pub(crate) fn drm(&self, number: u32, pci: &str) {
        let dir = format!("/sys/bus/pci/devices/{pci}/drm");
        self.dir(&format!("{dir}/card{number}"));
        self.dir(&format!("{dir}/renderD{}", 128 + number));
        self.link(&format!("{dir}/card{number}/device"), &format!("/sys/bus/pci/devices/{pci}"));
        self.link(&format!("/sys/class/drm/card{number}"), &format!("{dir}/card{number}"));
    }
}

impl Drop for FakeSysfs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

/// A PCI device to write.
pub(crate) struct FakePciDevice {
    path: String,
    class: u32,
    vendor: u16,
    device: u16,
    numa: i32,
    driver: Option<&'static str>,
}

/// A PCI device; `path` follows `/sys/devices/`: host bridge, bridges, the device.
pub(crate) fn pci_device(path: &str, class: u32, vendor: u16, device: u16) -> FakePciDevice {
    FakePciDevice { path: path.to_owned(), class, vendor, device, numa: -1, driver: None }
}

impl FakePciDevice {
    pub(crate) fn numa(self, numa: i32) -> Self {
        Self { numa, ..self }
    }

    pub(crate) fn driver(self, driver: &'static str) -> Self {
        Self { driver: Some(driver), ..self }
    }
}
