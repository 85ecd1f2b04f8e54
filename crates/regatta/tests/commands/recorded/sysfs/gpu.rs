//! GPU files of the vendors' drivers.

use regatta_model::{Gpu, GpuVendor, Machine};

use super::pci::PciTree;
use super::{IntelDriver, SysfsOptions, SysfsTree};

const KFD: &str = "/sys/devices/virtual/kfd/kfd/topology";

/// Bandwidth of one Infinity Fabric link, in MB/s.
const XGMI_LINK: u32 = 50_000;

pub fn write(tree: &SysfsTree, machine: &Machine, pci: &PciTree, options: &SysfsOptions) {
    cards(tree, machine, pci);
    match machine.gpus.first().map(|g| g.vendor) {
        Some(GpuVendor::Nvidia) => nvidia(tree, machine, pci),
        Some(GpuVendor::Amd) => amd(tree, machine, pci),
        Some(GpuVendor::Intel) => intel(tree, machine, pci, options),
        None => {}
    }
}

/// DRM cards; card 0 is the display of the management controller.
fn cards(tree: &SysfsTree, machine: &Machine, pci: &PciTree) {
    for (number, gpu) in pci_devices(machine, pci) {
        let folder = pci.gpu(gpu.index as usize).folder();
        let card = format!("{folder}/drm/card{}", number + 1);
        tree.file(&format!("{card}/dev"), format!("226:{}", number + 1));
        tree.link(&format!("{card}/device"), &folder);
        tree.link(&format!("/sys/class/drm/card{}", number + 1), &card);
        let render = format!("{folder}/drm/renderD{}", 128 + number);
        tree.file(&format!("{render}/dev"), format!("226:{}", 128 + number));
        tree.link(&format!("/sys/class/drm/renderD{}", 128 + number), &render);
    }
    tree.file("/sys/class/drm/version", "drm 1.1.0 20060810");
}

/// The first GPU of each PCI device.
fn pci_devices<'a>(machine: &'a Machine, pci: &PciTree) -> Vec<(usize, &'a Gpu)> {
    let mut seen: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for gpu in &machine.gpus {
        let address = pci.gpu(gpu.index as usize).address.as_str();
        if !seen.contains(&address) {
            found.push((seen.len(), gpu));
            seen.push(address);
        }
    }
    found
}

fn nvidia(tree: &SysfsTree, machine: &Machine, pci: &PciTree) {
    let proc = "/proc/driver/nvidia";
    for gpu in &machine.gpus {
        let address = &pci.gpu(gpu.index as usize).address;
        let Gpu { index, name, .. } = gpu;
        let (irq, uuid) = (300 + index, index + 1);
        let text = format!(
            "Model: \t\t {name}\nIRQ:   \t\t {irq}\nGPU UUID: \t GPU-00000000-0000-0000-0000-{uuid:012x}\n\
             Video BIOS: \t ??.??.??.??.??\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n\
             DMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\nDevice Minor: \t {index}\n\
             GPU Firmware: \t 550.54.15\nGPU Excluded:\t No"
        );
        tree.file(&format!("{proc}/gpus/{address}/information"), text);
    }
    let version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release \
                   Build  (dvs-builder@U16)  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc \
                   version 12.3.0";
    tree.file(&format!("{proc}/version"), version);
    tree.file("/sys/module/nvidia/version", "550.54.15");
}

/// kfd topology: one node per NUMA node, then one per GPU.
fn amd(tree: &SysfsTree, machine: &Machine, pci: &PciTree) {
    tree.link("/sys/class/kfd/kfd", "/sys/devices/virtual/kfd/kfd");
    tree.file("/sys/module/amdgpu/version", "6.3.6");
    tree.file(&format!("{KFD}/generation_id"), 2);
    let processors = machine.numa.len();
    for (node, numa) in machine.numa.iter().enumerate() {
        let folder = format!("{KFD}/nodes/{node}");
        tree.file(&format!("{folder}/gpu_id"), 0);
        let (cores, first) = (numa.cpus.len(), numa.cpus.first().unwrap_or(0));
        let properties = format!(
            "cpu_cores_count {cores}\nsimd_count 0\nmem_banks_count 1\ncaches_count 0\n\
             io_links_count 0\ncpu_core_id_base {first}\nsimd_id_base 0\nvendor_id 0\ndevice_id 0\n\
             location_id 0\ndomain 0\ndrm_render_minor 0\nunique_id 0"
        );
        tree.file(&format!("{folder}/properties"), properties);
        memory_bank(tree, &folder, "0", numa.memory_bytes, "width 64\nmem_clk_max 3200");
    }
    for gpu in &machine.gpus {
        kfd_gpu(tree, machine, pci, gpu, processors);
    }
}

fn memory_bank(tree: &SysfsTree, folder: &str, heap: &str, bytes: u64, rest: &str) {
    let text = format!("heap_type {heap}\nsize_in_bytes {bytes}\nflags 0\n{rest}");
    tree.file(&format!("{folder}/mem_banks/0/properties"), text);
}

fn kfd_gpu(tree: &SysfsTree, machine: &Machine, pci: &PciTree, gpu: &Gpu, processors: usize) {
    let device = pci.gpu(gpu.index as usize);
    let folder = format!("{KFD}/nodes/{}", processors + gpu.index as usize);
    // 0000:c1:00.0: bus in the upper byte, device and function in the lower.
    let hex =
        |range: std::ops::Range<usize>| u32::from_str_radix(&device.address[range], 16).unwrap();
    let location = hex(5..7) << 8 | hex(8..10) << 3;
    let apu = gpu.name.contains("MI300A");
    let (model, gfx) = if apu { (0x74a0, 90402) } else { (0x7408, 90010) };
    tree.file(&format!("{folder}/gpu_id"), 40_000 + gpu.index);
    tree.file(&format!("{folder}/name"), if apu { "gfx942" } else { "aldebaran" });
    let (minor, unique_id) = (128 + gpu.index, 0x1000_0000_0000_u64 + u64::from(gpu.index));
    let properties = format!(
        "cpu_cores_count 0\nsimd_count 440\nmem_banks_count 1\ncaches_count 130\n\
         io_links_count 4\nmax_waves_per_simd 8\ngfx_target_version {gfx}\nvendor_id 4098\n\
         device_id {model}\nlocation_id {location}\ndomain 0\ndrm_render_minor {minor}\n\
         hive_id 8421504\nunique_id {unique_id}"
    );
    tree.file(&format!("{folder}/properties"), properties);
    let bytes = gpu.memory_bytes.unwrap();
    memory_bank(tree, &folder, "1", bytes, "width 4096\nmem_clk_max 1600");
    tree.file(&format!("{}/product_name", device.folder()), &gpu.name);
    tree.file(&format!("{}/mem_info_vram_total", device.folder()), bytes);
    kfd_links(tree, machine, gpu, processors, &folder);
}

/// The link to the CPU, then those to all other GPUs of the hive; without a direct link it takes two
/// hops.
fn kfd_links(tree: &SysfsTree, machine: &Machine, gpu: &Gpu, processors: usize, folder: &str) {
    let own = processors as u32 + gpu.index;
    let write = |number: usize, to: u32, weight: u32, links: u32| {
        let (min, max) = (links.min(1) * XGMI_LINK, links * XGMI_LINK);
        let properties = format!(
            "type 11\nversion_major 0\nversion_minor 0\nnode_from {own}\nnode_to {to}\n\
             weight {weight}\nmin_latency 0\nmax_latency 0\nmin_bandwidth {min}\n\
             max_bandwidth {max}\nrecommended_transfer_size 0\nflags 1"
        );
        tree.file(&format!("{folder}/io_links/{number}/properties"), properties);
    };
    write(0, gpu.numa.unwrap(), 15, 1);
    for (number, other) in machine.gpus.iter().filter(|o| o.index != gpu.index).enumerate() {
        let pair = (gpu.index.min(other.index), gpu.index.max(other.index));
        let link = machine.gpu_links.iter().find(|l| (l.a, l.b) == pair);
        let count = link.map_or(0, |l| l.count.unwrap());
        let weight = if count > 0 { 15 } else { 30 };
        write(number + 1, processors as u32 + other.index, weight, count);
    }
}

/// Tiles of each card.
fn intel(tree: &SysfsTree, machine: &Machine, pci: &PciTree, options: &SysfsOptions) {
    for (number, gpu) in pci_devices(machine, pci) {
        let folder = pci.gpu(gpu.index as usize).folder();
        let card = format!("{folder}/drm/card{}", number + 1);
        let tiles = machine.gpus.iter().filter(|g| g.card == gpu.card).count() as u64;
        let bytes = gpu.memory_bytes.unwrap();
        match options.intel {
            IntelDriver::I915 => tree.file(&format!("{card}/lmem_total_bytes"), bytes * tiles),
            IntelDriver::Xe => {}
        }
        for tile in 0..tiles {
            match options.intel {
                IntelDriver::I915 => tree.file(&format!("{card}/gt/gt{tile}/id"), tile),
                IntelDriver::Xe => {
                    let tile = format!("{folder}/tile{tile}");
                    tree.file(&format!("{tile}/physical_vram_size_bytes"), bytes);
                }
            }
        }
    }
}
