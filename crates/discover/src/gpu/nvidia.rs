//! NVIDIA GPUs in PCI bus order, which is CUDA's order for identical GPUs: from NVML on the running
//! node, else from the driver's files.

use std::collections::BTreeMap;

use regatta_model::{Gpu, GpuVendor, PciDevice};

use super::nvml::{self, NvLinkRemote};
use super::{GpuScan, gpu_from_pci, is_accessible};
use crate::{Sysroot, pci};

pub(super) const VENDOR: u16 = 0x10de;

const PROC: &str = "/proc/driver/nvidia";

/// A GPU as NVML or the driver's files describe it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct NvidiaGpu {
    pub(super) address: String,
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) minor: Option<u32>,
    pub(super) memory_bytes: Option<u64>,
    pub(super) mig: bool,
    /// The remote ends of its active NVLinks, one entry per link.
    pub(super) remotes: Vec<NvLinkRemote>,
    /// Excluded by the administrator. NVML does not list it.
    pub(super) excluded: bool,
}

/// Whether a PCI device is a GPU: a display (`0300`) or 3D controller (`0302`).
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == VENDOR && matches!(device.class >> 8, 0x0300 | 0x0302)
}

/// Whether to load NVML. A sandbox may hide the PCI bus, and WSL has none.
fn may_have_gpus(root: &Sysroot, devices: &[PciDevice]) -> bool {
    let signs = [PROC, "/dev/nvidiactl", "/dev/dxg"];
    devices.iter().any(is_gpu) || signs.iter().any(|file| root.exists(file))
}

pub(super) fn scan(root: &Sysroot, devices: &[PciDevice]) -> GpuScan {
    let known = driver_gpus(root, devices);
    let nvidia_driver = driver_version(root);
    if !root.is_live() || !may_have_gpus(root, devices) {
        return GpuScan { nvidia_driver, ..from_driver(root, devices, &known) };
    }
    match nvml::read(devices) {
        Ok(report) => {
            let mut scan = from_nvml(root, devices, &report.gpus);
            scan.notes.extend(report.notes);
            scan.notes.extend(hidden_gpus_note(&known, &report.gpus));
            GpuScan {
                nvidia_driver: report.driver.or(nvidia_driver),
                cuda_driver: report.cuda,
                ..scan
            }
        }
        Err(error) => {
            let mut scan = from_driver(root, devices, &known);
            if !scan.gpus.is_empty() {
                scan.notes.push(format!(
                    "NVML is unavailable ({error}): memory, MIG mode and NVLinks of the GPUs are \
                     unknown; libnvidia-ml.so.1 is part of the driver"
                ));
            }
            GpuScan { nvidia_driver, ..scan }
        }
    }
}

fn from_nvml(root: &Sysroot, devices: &[PciDevice], gpus: &[NvidiaGpu]) -> GpuScan {
    let listed = gpus.iter().enumerate().map(|(i, found)| gpu(root, devices, i, found));
    let notes = mig_note(gpus).into_iter().collect();
    let links = nvml::links(gpus);
    GpuScan { gpus: listed.collect(), links, notes, ..GpuScan::default() }
}

fn gpu(root: &Sysroot, devices: &[PciDevice], index: usize, found: &NvidiaGpu) -> Gpu {
    let model = pci::find(devices, &found.address).map(|d| d.device);
    let name = found.name.clone().or_else(|| model.map(|m| format!("NVIDIA GPU {m:04x}")));
    let file = found.minor.map(|minor| format!("/dev/nvidia{minor}"));
    Gpu {
        name: name.unwrap_or_else(|| "NVIDIA GPU".to_owned()),
        uuid: found.uuid.clone(),
        memory_bytes: found.memory_bytes,
        mig: found.mig,
        accessible: file.as_deref().and_then(|f| is_accessible(root, f)),
        device_file: file,
        ..gpu_from_pci(root, devices, GpuVendor::Nvidia, index, Some(&found.address))
    }
}

/// A note about GPUs in MIG mode: CUDA shows a program one MIG instance only, so GPU indices do not
/// apply.
fn mig_note(gpus: &[NvidiaGpu]) -> Option<String> {
    let mig = gpus.iter().enumerate().filter(|(_, gpu)| gpu.mig);
    let indices: Vec<String> = mig.map(|(i, _)| i.to_string()).collect();
    (!indices.is_empty()).then(|| {
        format!(
            "MIG mode is enabled on GPU {}: a program sees one MIG instance, selected by UUID in \
             CUDA_VISIBLE_DEVICES (nvidia-smi -L), but ranks are placed on whole GPUs",
            indices.join(",")
        )
    })
}

/// A note about GPUs that the driver has and NVML does not list, as under a device cgroup.
fn hidden_gpus_note(known: &[NvidiaGpu], shown: &[NvidiaGpu]) -> Option<String> {
    let is_hidden = |k: &&NvidiaGpu| !k.excluded && !shown.iter().any(|g| g.address == k.address);
    let hidden: Vec<&str> = known.iter().filter(is_hidden).map(|k| k.address.as_str()).collect();
    (!hidden.is_empty()).then(|| {
        format!(
            "this process sees {} of the node's {} NVIDIA GPUs; those at {} are hidden (device \
             cgroup?)",
            shown.len(),
            shown.len() + hidden.len(),
            hidden.join(", ")
        )
    })
}

impl NvidiaGpu {
    fn at(address: &str) -> Self {
        Self { address: address.to_owned(), ..Self::default() }
    }
}

/// The GPUs in the driver's procfs directory, else those bound to the driver.
fn driver_gpus(root: &Sysroot, devices: &[PciDevice]) -> Vec<NvidiaGpu> {
    let dir = format!("{PROC}/gpus");
    let read = |address: String| {
        pci::parse_address(&address)?;
        let text = root.read_text(&format!("{dir}/{address}/information"));
        Some(parse_information(address, &text.unwrap_or_default()))
    };
    let mut known: Vec<NvidiaGpu> = root.list_dir(&dir).into_iter().filter_map(read).collect();
    if known.is_empty() {
        let driver = |d: &PciDevice| pci::driver(root, &d.address);
        let bound = devices.iter().filter(|d| is_gpu(d) && driver(d).as_deref() == Some("nvidia"));
        known = bound.map(|d| NvidiaGpu::at(&d.address)).collect();
    }
    known.sort_by_key(|k| pci::parse_address(&k.address));
    known
}

/// Parses `/proc/driver/nvidia/gpus/ADDRESS/information`: lines such as `Device Minor: \t 0`.
fn parse_information(address: String, text: &str) -> NvidiaGpu {
    let fields: BTreeMap<&str, &str> =
        text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let field = |name: &str| fields.get(name).filter(|v| !v.is_empty()).map(|v| (*v).to_owned());
    NvidiaGpu {
        address,
        name: field("Model"),
        // A GPU that has not been opened yet shows question marks.
        uuid: field("GPU UUID").filter(|uuid| !uuid.contains('?')),
        minor: field("Device Minor").and_then(|v| v.parse().ok()),
        excluded: field("GPU Excluded").is_some_and(|v| v == "Yes"),
        ..NvidiaGpu::default()
    }
}

fn from_driver(root: &Sysroot, devices: &[PciDevice], known: &[NvidiaGpu]) -> GpuScan {
    let (excluded, listed): (Vec<_>, Vec<_>) = known.iter().partition(|gpu| gpu.excluded);
    let note = |NvidiaGpu { address, .. }: &NvidiaGpu| {
        format!("the NVIDIA GPU at {address} is excluded by its driver")
    };
    let gpus = listed.into_iter().enumerate().map(|(i, found)| gpu(root, devices, i, found));
    let notes = excluded.into_iter().map(note).collect();
    GpuScan { gpus: gpus.collect(), notes, ..GpuScan::default() }
}

/// The kernel driver's version, from a line such as `NVRM version: NVIDIA UNIX Open Kernel Module
/// for x86_64  550.54.15  Release Build`.
fn driver_version(root: &Sysroot) -> Option<String> {
    let is_version = |word: &&str| {
        word.contains('.')
            && word.split('.').all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let text = root.read_text(&format!("{PROC}/version")).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let version = line.split_whitespace().find(is_version).map(str::to_owned);
    version.or_else(|| root.read_text("/sys/module/nvidia/version"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_sysfs::{FakeSysfs, pci_device};

    #[test]
    fn information_files_are_parsed() {
        let text = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 337\nGPU UUID: \t \
                    GPU-????????-????-????-????-????????????\nVideo BIOS: \t \
                    ??.??.??.??.??\nBus Type: \t PCIe\nBus Location: \t 0000:03:00.0\nDevice \
                    Minor: \t 3\nGPU Excluded:\t No\n";
        let name = Some("NVIDIA A100-SXM4-40GB".to_owned());
        let expected = NvidiaGpu { name, minor: Some(3), ..NvidiaGpu::at("0000:03:00.0") };
        assert_eq!(parse_information("0000:03:00.0".to_owned(), text), expected);
    }

    #[test]
    fn open_and_proprietary_driver_versions_are_parsed() {
        for line in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
        ] {
            let tree = FakeSysfs::new();
            tree.file("/proc/driver/nvidia/version", format!("{line}\nGCC version: gcc 12.2.0\n"));
            assert_eq!(driver_version(&tree.root()).as_deref(), Some("535.104.05"));
        }
    }

    #[test]
    fn gpus_hidden_from_nvml_are_noted() {
        let excluded = NvidiaGpu { excluded: true, ..NvidiaGpu::at("0000:c1:00.0") };
        let all = [NvidiaGpu::at("0000:03:00.0"), NvidiaGpu::at("0000:41:00.0"), excluded];
        let note = hidden_gpus_note(&all, &[]).unwrap();
        assert!(note.contains("0 of the node's 2") && note.contains("0000:03:00.0, 0000:41:00.0"));
        assert_eq!(hidden_gpus_note(&all[2..], &[]), None);
    }

    #[test]
    fn mig_mode_is_noted() {
        let gpu = |bus: u32, mig| {
            let address = format!("0000:{bus:02x}:00.0");
            NvidiaGpu { address, mig, ..NvidiaGpu::default() }
        };
        let scan = from_nvml(&FakeSysfs::new().root(), &[], &[gpu(1, false), gpu(2, true)]);
        assert!(scan.notes[0].starts_with("MIG mode is enabled on GPU 1:"), "{:?}", scan.notes);
        assert!(from_nvml(&FakeSysfs::new().root(), &[], &[gpu(1, false)]).notes.is_empty());
    }

    #[test]
    fn gpus_without_procfs_are_found_by_driver() {
        let tree = FakeSysfs::new();
        let path = |bus: &str| format!("pci0000:00/0000:00:01.0/0000:{bus}:00.0");
        tree.pci(pci_device(&path("02"), 0x030200, VENDOR, 0x20b0).driver("nvidia"));
        tree.pci(pci_device(&path("03"), 0x030200, VENDOR, 0x20b0).driver("vfio-pci"));
        let devices = pci::scan(&tree.root());
        let scan = scan(&tree.root(), &devices);
        let names: Vec<&str> = scan.gpus.iter().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["NVIDIA GPU 20b0"]);
    }
}
