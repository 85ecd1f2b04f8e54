//! Device files and kernel modules of GPUs and NICs.

use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;

use regatta_discover::Sysroot;
use regatta_model::{GpuVendor, Machine, Nic, NicKind};

use crate::facts::{DeviceFile, DeviceNeed, DeviceState};

pub(super) fn collect(root: &Sysroot, machine: &Machine) -> Vec<DeviceFile> {
    let mut list = List { root, files: Vec::new() };
    for vendor in [GpuVendor::Nvidia, GpuVendor::Amd, GpuVendor::Intel] {
        if machine.gpus.iter().any(|gpu| gpu.vendor == vendor) {
            list.gpus(machine, vendor);
        }
    }
    machine.nics.iter().for_each(|nic| list.nic(nic));
    list.present();
    list.files
}

/// Faster communication, if they exist: GDRCopy and XPMEM.
const OPTIONAL: [(&str, &str); 2] = [("/dev/gdrdrv", "GDRCopy"), ("/dev/xpmem", "XPMEM")];

/// Modules for GPUDirect RDMA; newer drivers use dma-buf in their place.
const MODULES: [(&str, &str); 1] = [("nvidia_peermem", "GPUDirect RDMA")];

/// Files that are listed wherever they exist.
const COMPARED: [(&str, &str); 3] =
    [("/dev/nvidiactl", "NVIDIA GPUs"), ("/dev/nvidia-uvm", "CUDA"), ("/dev/kfd", "ROCm")];

struct List<'a> {
    root: &'a Sysroot,
    files: Vec<DeviceFile>,
}

impl List<'_> {
    fn add(&mut self, name: &str, needed_by: &str, need: DeviceNeed) {
        if self.files.iter().any(|file| file.name == name) {
            return;
        }
        let state = state(self.root, name);
        if need == DeviceNeed::Required || state != DeviceState::Missing {
            let (name, needed_by) = (name.to_owned(), needed_by.to_owned());
            self.files.push(DeviceFile { name, needed_by, need, state });
        }
    }

    fn gpus(&mut self, machine: &Machine, vendor: GpuVendor) {
        match vendor {
            // Windows passes its GPUs into Linux by a device of its own.
            GpuVendor::Nvidia if self.root.exists("/dev/dxg") => return,
            GpuVendor::Nvidia => {
                self.add("/dev/nvidiactl", "NVIDIA GPUs", DeviceNeed::Required);
                // The first CUDA program creates the file with this command.
                if !self.root.exists("/usr/bin/nvidia-modprobe") {
                    self.add("/dev/nvidia-uvm", "CUDA", DeviceNeed::Required);
                }
            }
            GpuVendor::Amd => self.add("/dev/kfd", "ROCm", DeviceNeed::Required),
            GpuVendor::Intel => {}
        }
        for gpu in machine.gpus.iter().filter(|gpu| gpu.vendor == vendor) {
            if let Some(file) = &gpu.device_file {
                self.add(file, &format!("GPU {}", gpu.index), DeviceNeed::Required);
            }
        }
    }

    fn nic(&mut self, nic: &Nic) {
        let Some(device) = &nic.fabric_device else { return };
        match nic.kind {
            NicKind::Slingshot => {
                self.add(&format!("/dev/{device}"), &nic.name, DeviceNeed::Required);
            }
            NicKind::InfiniBand | NicKind::Roce | NicKind::Efa => {
                let dir = format!("/sys/class/infiniband/{device}/device/infiniband_verbs");
                for name in self.root.list_dir(&dir) {
                    let file = format!("/dev/infiniband/{name}");
                    self.add(&file, &nic.name, DeviceNeed::Required);
                }
            }
            NicKind::Ethernet | NicKind::Virtual => {}
        }
    }

    /// Files that exist, so that nodes can be compared.
    fn present(&mut self) {
        for (name, needed_by) in OPTIONAL.into_iter().chain(MODULES) {
            self.add(name, needed_by, DeviceNeed::Optional);
        }
        for (name, needed_by) in COMPARED {
            self.add(name, needed_by, DeviceNeed::Unused);
        }
        for name in self.root.list_dir("/dev/infiniband") {
            if name.starts_with("uverbs") || name == "rdma_cm" {
                self.add(&format!("/dev/infiniband/{name}"), "RDMA", DeviceNeed::Unused);
            }
        }
        let is_cxi = |name: &String| name.strip_prefix("cxi").is_some_and(is_number);
        for name in self.root.list_dir("/dev").into_iter().filter(is_cxi) {
            self.add(&format!("/dev/{name}"), "Slingshot", DeviceNeed::Unused);
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The state of a device file (an absolute path) or a module.
fn state(root: &Sysroot, name: &str) -> DeviceState {
    let exists = match name.starts_with('/') {
        true => root.exists(name),
        false => root.exists(&format!("/sys/module/{name}")),
    };
    match exists {
        false => DeviceState::Missing,
        true if root.is_live() && name.starts_with('/') => open(root, name),
        true => DeviceState::Usable,
    }
}

/// Opens the file: a device cgroup overrides the mode bits.
fn open(root: &Sysroot, name: &str) -> DeviceState {
    let mut options = std::fs::OpenOptions::new();
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    match options.read(true).write(true).custom_flags(flags).open(root.path(name)) {
        Ok(_) => DeviceState::Usable,
        Err(error) if error.kind() == ErrorKind::NotFound => DeviceState::Missing,
        // Some devices serve one process at a time.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => DeviceState::Usable,
        Err(error) => DeviceState::Denied(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use regatta_model::Gpu;

    use super::*;
    use crate::testing::TempTree;

    fn names(files: &[DeviceFile]) -> Vec<(&str, DeviceNeed, bool)> {
        let entry = |f: &DeviceFile| f.state == DeviceState::Usable;
        files.iter().map(|f| (f.name.as_str(), f.need, entry(f))).collect()
    }

    #[test]
    fn hardware_needs_its_device_files() {
        let tree = TempTree::new();
        tree.file("/dev/kfd", "");
        tree.file("/dev/cxi0", "");
        let file = Some("/dev/dri/renderD128".to_owned());
        let gpu = Gpu { device_file: file, ..Gpu::new(0, GpuVendor::Amd, "MI250X") };
        let nic = |n: u32| Nic {
            fabric_device: Some(format!("cxi{n}")),
            ..Nic::new(&format!("hsn{n}"), NicKind::Slingshot)
        };
        let machine = Machine { gpus: vec![gpu], nics: vec![nic(0), nic(1)], ..Machine::default() };
        let expected = [
            ("/dev/kfd", DeviceNeed::Required, true),
            ("/dev/dri/renderD128", DeviceNeed::Required, false),
            ("/dev/cxi0", DeviceNeed::Required, true),
            ("/dev/cxi1", DeviceNeed::Required, false),
        ];
        assert_eq!(names(&collect(&tree.root(), &machine)), expected);
    }

    #[test]
    fn files_without_hardware_are_listed_if_they_exist() {
        let tree = TempTree::new();
        for file in ["/dev/gdrdrv", "/dev/infiniband/uverbs0", "/dev/infiniband/umad0"] {
            tree.file(file, "");
        }
        tree.file("/dev/cxi_control", "");
        tree.file("/sys/module/nvidia_peermem/refcnt", "0\n");
        let expected = [
            ("/dev/gdrdrv", DeviceNeed::Optional, true),
            ("nvidia_peermem", DeviceNeed::Optional, true),
            ("/dev/infiniband/uverbs0", DeviceNeed::Unused, true),
        ];
        assert_eq!(names(&collect(&tree.root(), &Machine::default())), expected);
    }

    #[test]
    fn verbs_devices_belong_to_their_nic() {
        let tree = TempTree::new();
        tree.file("/sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs3/dev", "231:195\n");
        let fabric_device = Some("mlx5_0".to_owned());
        let nic = Nic { fabric_device, ..Nic::new("ib0", NicKind::InfiniBand) };
        let machine = Machine { nics: vec![nic], ..Machine::default() };
        let expected = [("/dev/infiniband/uverbs3", DeviceNeed::Required, false)];
        assert_eq!(names(&collect(&tree.root(), &machine)), expected);
    }
}
