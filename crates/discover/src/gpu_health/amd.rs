//! Health of an AMD GPU from the files of amdgpu: RAS error counts, retired pages, hwmon.

use super::GpuHealth;
use crate::{Sysroot, pci};

pub(super) fn read(root: &Sysroot, address: &str, health: &mut GpuHealth) {
    let dir = pci::sysfs_dir(address);
    let text = |file: &str| root.read_text(&format!("{dir}/{file}"));
    health.uncorrectable_errors = text("ras/umc_err_count").and_then(|text| uncorrectable(&text));
    if let Some(pages) = text("ras/gpu_vram_bad_pages") {
        let retired = RetiredPages::parse(&pages);
        health.remapped_rows = Some(retired.pages);
        health.remap_pending = Some(retired.pending);
        health.remap_failed = Some(retired.failed);
    }
    health.memory_used = root.read_value(&format!("{dir}/mem_info_vram_used"));
    read_hwmon(root, &dir, health);
}

/// The count of `ue: 0`.
fn uncorrectable(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("ue:"))?.trim().parse().ok()
}

/// Memory pages retired after uncorrectable errors.
#[derive(Debug, Default, PartialEq, Eq)]
struct RetiredPages {
    pages: u32,
    pending: bool,
    failed: bool,
}

impl RetiredPages {
    /// Lines such as `0x00000001 : 0x00001000 : R`: page, size, and `R`eserved, `P`ending or
    /// `F`ailed to reserve.
    fn parse(text: &str) -> Self {
        let mut retired = Self::default();
        for state in text.lines().filter_map(|line| line.split(':').nth(2)) {
            retired.pages += 1;
            retired.pending |= state.trim() == "P";
            retired.failed |= state.trim() == "F";
        }
        retired
    }
}

/// Junction temperature in m°C and power limits in µW.
fn read_hwmon(root: &Sysroot, dir: &str, health: &mut GpuHealth) {
    let hwmon = format!("{dir}/hwmon");
    let Some(name) = root.list_dir(&hwmon).into_iter().next() else { return };
    let scaled = |file: &str, scale: u64| {
        let value: u64 = root.read_value(&format!("{hwmon}/{name}/{file}"))?;
        u32::try_from(value / scale).ok()
    };
    health.temperature = scaled("temp2_input", 1000).or_else(|| scaled("temp1_input", 1000));
    health.power_limit = scaled("power1_cap", 1_000_000);
    health.default_power_limit = scaled("power1_cap_default", 1_000_000);
}

#[cfg(test)]
mod tests {
    use regatta_model::{Gpu, GpuVendor};

    use super::super::gpu_health;
    use super::*;
    use crate::fake_sysfs::{FakeSysfs, pci_device};

    #[test]
    fn errors_and_retired_pages_are_read() {
        let tree = FakeSysfs::new();
        let device = pci_device("pci0000:00/0000:c1:00.0", 0x038000, 0x1002, 0x7408);
        tree.pci(device);
        let file = |name: &str, text: &str| {
            tree.file(&format!("/sys/bus/pci/devices/0000:c1:00.0/{name}"), text);
        };
        file("ras/umc_err_count", "ue: 2\nce: 7\n");
        file("ras/gpu_vram_bad_pages", "0x00000001 : 0x00001000 : R\n0x2 : 0x00001000 : P\n");
        file("mem_info_vram_used", "10485760\n");
        file("current_link_speed", "8.0 GT/s PCIe\n");
        file("max_link_speed", "16.0 GT/s PCIe\n");
        file("current_link_width", "8\n");
        file("max_link_width", "16\n");
        file("hwmon/hwmon3/temp2_input", "41000\n");
        file("hwmon/hwmon3/power1_cap", "560000000\n");
        let pci = Some("0000:c1:00.0".to_owned());
        let gpu = Gpu { pci, ..Gpu::new(0, GpuVendor::Amd, "MI250X") };
        let (health, notes) = gpu_health(&tree.root(), &[gpu]);
        let expected = GpuHealth {
            uncorrectable_errors: Some(2),
            remapped_rows: Some(2),
            remap_pending: Some(true),
            remap_failed: Some(false),
            memory_used: Some(10 << 20),
            pcie_generation: Some((3, 4)),
            pcie_width: Some((8, 16)),
            temperature: Some(41),
            power_limit: Some(560),
            ..GpuHealth::default()
        };
        assert_eq!((health, notes), (vec![expected], vec![]));
    }

    #[test]
    fn unknown_lines_are_ignored() {
        assert_eq!(uncorrectable("ce: 7\n"), None);
        assert_eq!(RetiredPages::parse(""), RetiredPages::default());
        assert_eq!(
            RetiredPages::parse("garbage\n0x1 : 0x2 : F"),
            RetiredPages { pages: 1, pending: false, failed: true }
        );
    }
}
