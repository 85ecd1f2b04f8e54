//! NVIDIA GPUs in PCI bus order, which is CUDA's order for equal GPUs. Asked of NVML on a live
//! machine, else of the driver's files.

use std::collections::BTreeMap;

use regatta_model::{Gpu, GpuVendor, PciDevice};

use super::nvml::{self, NvmlGpu};
use super::{Found, gpu_at, may_open};
use crate::{Root, pci};

pub(super) const VENDOR: u16 = 0x10de;

const PROC: &str = "/proc/driver/nvidia";

/// The GPUs and the driver's versions.
pub(super) struct Nvidia {
    pub(super) found: Found,
    pub(super) driver: Option<String>,
    pub(super) cuda: Option<String>,
}

/// Whether a PCI device is a GPU: a display (`0300`) or 3D controller (`0302`).
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == VENDOR && matches!(device.class >> 8, 0x0300 | 0x0302)
}

/// Whether it is worth to open NVML. A sandbox may hide the PCI bus, and Windows' Linux has none.
fn may_have_gpus(root: &Root, devices: &[PciDevice]) -> bool {
    let signs = [PROC, "/dev/nvidiactl", "/dev/dxg"];
    devices.iter().any(is_gpu) || signs.iter().any(|file| root.exists(file))
}

pub(super) fn scan(root: &Root, devices: &[PciDevice]) -> Nvidia {
    let known = known_to_driver(root, devices);
    let driver = driver_version(root);
    if !root.is_live() || !may_have_gpus(root, devices) {
        return Nvidia { found: from_driver(root, devices, &known), driver, cuda: None };
    }
    match nvml::read(devices) {
        Ok(report) => {
            let mut found = from_nvml(root, devices, &report.gpus);
            found.notes.extend(report.notes);
            found.notes.extend(hidden(&known, &report.gpus));
            Nvidia { found, driver: report.driver.or(driver), cuda: report.cuda }
        }
        Err(error) => {
            let mut found = from_driver(root, devices, &known);
            if !found.gpus.is_empty() {
                found.notes.push(format!(
                    "NVML is not usable ({error}): the memory, MIG mode and NVLinks of the GPUs \
                     are unknown; libnvidia-ml.so.1 comes with the driver"
                ));
            }
            Nvidia { found, driver, cuda: None }
        }
    }
}

fn from_nvml(root: &Root, devices: &[PciDevice], gpus: &[NvmlGpu]) -> Found {
    let listed = gpus.iter().enumerate().map(|(i, gpu)| {
        let file = gpu.minor.map(|minor| format!("/dev/nvidia{minor}"));
        Gpu {
            name: gpu.name.clone(),
            uuid: gpu.uuid.clone(),
            memory_bytes: gpu.memory_bytes,
            mig: gpu.mig,
            accessible: file.as_deref().and_then(|f| may_open(root, f)),
            device_file: file,
            ..gpu_at(root, devices, GpuVendor::Nvidia, i, Some(&gpu.address))
        }
    });
    let notes = split(gpus).into_iter().collect();
    Found { gpus: listed.collect(), links: nvml::links(gpus), notes }
}

/// Says which GPUs are split by MIG: CUDA shows a program one part of one of them, so the numbers
/// of GPUs mean nothing to it.
fn split(gpus: &[NvmlGpu]) -> Option<String> {
    let split = gpus.iter().enumerate().filter(|(_, gpu)| gpu.mig);
    let numbers: Vec<String> = split.map(|(i, _)| i.to_string()).collect();
    (!numbers.is_empty()).then(|| {
        format!(
            "MIG splits GPU {}: a program sees one part only, which CUDA_VISIBLE_DEVICES must name \
             by its UUID (nvidia-smi -L); the ranks here are placed on whole GPUs",
            numbers.join(",")
        )
    })
}

/// Says which GPUs the driver has and NVML does not show, as a device cgroup brings about.
fn hidden(known: &[Known], shown: &[NvmlGpu]) -> Option<String> {
    let is_hidden = |k: &&Known| !k.excluded && !shown.iter().any(|g| g.address == k.address);
    let hidden: Vec<&str> = known.iter().filter(is_hidden).map(|k| k.address.as_str()).collect();
    (!hidden.is_empty()).then(|| {
        format!(
            "this process sees {} of the node's {} NVIDIA GPUs; those at {} are hidden from it, \
             as by a device cgroup",
            shown.len(),
            shown.len() + hidden.len(),
            hidden.join(", ")
        )
    })
}

/// What the driver's files tell of a GPU.
#[derive(Debug, Default, PartialEq)]
struct Known {
    address: String,
    name: Option<String>,
    uuid: Option<String>,
    minor: Option<u32>,
    /// Taken out of use by the administrator.
    excluded: bool,
}

/// The GPUs in the driver's procfs folder; where that is missing, those bound to the driver.
fn known_to_driver(root: &Root, devices: &[PciDevice]) -> Vec<Known> {
    let folder = format!("{PROC}/gpus");
    let mut known: Vec<Known> = root
        .names(&folder)
        .into_iter()
        .filter(|address| pci::key(address).is_some())
        .map(|address| {
            let text = root.text(&format!("{folder}/{address}/information"));
            information(address, &text.unwrap_or_default())
        })
        .collect();
    if known.is_empty() {
        let bound = |d: &&PciDevice| {
            is_gpu(d) && pci::driver(root, &d.address).as_deref() == Some("nvidia")
        };
        let bare = |d: &PciDevice| Known { address: d.address.clone(), ..Known::default() };
        known = devices.iter().filter(bound).map(bare).collect();
    }
    known.sort_by_key(|k| pci::key(&k.address));
    known
}

/// Reads `/proc/driver/nvidia/gpus/ADDRESS/information`: lines such as `Device Minor: \t 0`.
fn information(address: String, text: &str) -> Known {
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let field = |name: &str| fields.get(name).filter(|v| !v.is_empty()).map(|v| (*v).to_owned());
    Known {
        address,
        name: field("Model"),
        // A GPU that nobody has opened yet shows question marks.
        uuid: field("GPU UUID").filter(|uuid| !uuid.contains('?')),
        minor: field("Device Minor").and_then(|v| v.parse().ok()),
        excluded: field("GPU Excluded").is_some_and(|v| v == "Yes"),
    }
}

fn from_driver(root: &Root, devices: &[PciDevice], known: &[Known]) -> Found {
    let mut found = Found::default();
    for gpu in known {
        if gpu.excluded {
            let address = &gpu.address;
            found.notes.push(format!("the NVIDIA GPU at {address} is excluded by its driver"));
            continue;
        }
        let model = pci::find(devices, &gpu.address).map(|d| d.device);
        let name = gpu.name.clone().or_else(|| model.map(|m| format!("NVIDIA GPU {m:04x}")));
        let file = gpu.minor.map(|minor| format!("/dev/nvidia{minor}"));
        found.gpus.push(Gpu {
            name: name.unwrap_or_else(|| "NVIDIA GPU".to_owned()),
            uuid: gpu.uuid.clone(),
            accessible: file.as_deref().and_then(|f| may_open(root, f)),
            device_file: file,
            ..gpu_at(root, devices, GpuVendor::Nvidia, found.gpus.len(), Some(&gpu.address))
        });
    }
    found
}

/// The kernel driver's version, from a line such as `NVRM version: NVIDIA UNIX Open Kernel Module
/// for x86_64  550.54.15  Release Build`.
fn driver_version(root: &Root) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let text = root.text(&format!("{PROC}/version")).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let version = line.split_whitespace().find(is_version).map(str::to_owned);
    version.or_else(|| root.text("/sys/module/nvidia/version"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Pci, Tree};

    #[test]
    fn the_information_file_is_read() {
        let text = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 337\nGPU UUID: \t \
                    GPU-????????-????-????-????-????????????\nVideo BIOS: \t \
                    ??.??.??.??.??\nBus Type: \t PCIe\nBus Location: \t 0000:03:00.0\nDevice \
                    Minor: \t 3\nGPU Excluded:\t No\n";
        let known = information("0000:03:00.0".to_owned(), text);
        assert_eq!(
            known,
            Known {
                address: "0000:03:00.0".to_owned(),
                name: Some("NVIDIA A100-SXM4-40GB".to_owned()),
                uuid: None,
                minor: Some(3),
                excluded: false,
            }
        );
    }

    #[test]
    fn both_drivers_tell_their_version() {
        for line in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
        ] {
            let tree = Tree::new();
            tree.file("/proc/driver/nvidia/version", &format!("{line}\nGCC version: gcc 12.2.0\n"));
            assert_eq!(driver_version(&tree.root()).as_deref(), Some("535.104.05"));
        }
    }

    #[test]
    fn what_nvml_does_not_show_is_named() {
        let known = |address: &str| Known { address: address.to_owned(), ..Known::default() };
        let gone = Known { excluded: true, ..known("0000:c1:00.0") };
        let all = [known("0000:03:00.0"), known("0000:41:00.0"), gone];
        let note = hidden(&all, &[]).unwrap();
        assert!(note.contains("0 of the node's 2") && note.contains("0000:03:00.0, 0000:41:00.0"));
        assert_eq!(hidden(&all[2..], &[]), None);
    }

    #[test]
    fn split_gpus_are_named() {
        let gpu = |bus: u32, mig| NvmlGpu {
            address: format!("0000:{bus:02x}:00.0"),
            name: "NVIDIA A100".to_owned(),
            uuid: None,
            memory_bytes: None,
            minor: None,
            mig,
            remotes: Vec::new(),
        };
        let found = from_nvml(&Tree::new().root(), &[], &[gpu(1, false), gpu(2, true)]);
        assert!(found.notes[0].starts_with("MIG splits GPU 1:"), "{:?}", found.notes);
        assert!(from_nvml(&Tree::new().root(), &[], &[gpu(1, false)]).notes.is_empty());
    }

    #[test]
    fn without_procfs_the_driver_link_decides() {
        let tree = Tree::new();
        let path = |bus: &str| format!("pci0000:00/0000:00:01.0/0000:{bus}:00.0");
        tree.pci(Pci::new(&path("02"), 0x030200, VENDOR, 0x20b0).driver("nvidia"));
        tree.pci(Pci::new(&path("03"), 0x030200, VENDOR, 0x20b0).driver("vfio-pci"));
        let devices = pci::devices(&tree.root());
        let found = scan(&tree.root(), &devices).found;
        let names: Vec<&str> = found.gpus.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["NVIDIA GPU 20b0"]);
    }
}
