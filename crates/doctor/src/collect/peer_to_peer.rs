//! What allows or prevents peer-to-peer access between GPUs.

use regatta_discover::{Env, Sysroot};
use regatta_model::Machine;

use crate::facts::PeerToPeer;

pub(super) fn collect(root: &Sysroot, env: &Env, machine: &Machine) -> PeerToPeer {
    let first = machine.gpus.iter().find_map(|gpu| gpu.pci.as_ref());
    let group = |address: &String| format!("/sys/bus/pci/devices/{address}/iommu_group/type");
    PeerToPeer {
        gpus_on_node: machine.gpus_with_hidden().map(|gpus| gpus as u32),
        gpu_binding: gpu_binding(env),
        iommu: first.and_then(|address| root.read_text(&group(address))),
    }
}

/// Slurm's options by which each task gets a device cgroup with its own GPUs.
fn gpu_binding(env: &Env) -> Option<(String, String)> {
    let kinds = ["per_task", "single", "map_gpu", "mask_gpu", "map:", "mask:"];
    let restricts = |name: &str, value: &str| {
        name == "SLURM_GPUS_PER_TASK" || kinds.iter().any(|kind| value.contains(kind))
    };
    let names = ["SLURMD_TRES_BIND", "SLURM_GPU_BIND", "SLURM_GPUS_PER_TASK"];
    let set = names.iter().filter_map(|name| Some((*name, env.get(name)?)));
    // An explicit `none` overrides the binding that SLURM_GPUS_PER_TASK implies.
    let set: Vec<(&str, &str)> = set.collect();
    if set.iter().any(|(_, value)| value.ends_with("none")) {
        return None;
    }
    let binding = set.into_iter().find(|(name, value)| restricts(name, value));
    binding.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use regatta_model::{Gpu, GpuVendor, PciDevice};

    use super::*;
    use crate::testing::TempTree;

    #[test]
    fn per_task_gpus_are_found() {
        let binding = |pairs: &[(&str, &str)]| {
            gpu_binding(&pairs.iter().copied().collect()).map(|(name, _)| name)
        };
        let per_task = ("SLURM_GPUS_PER_TASK", "1");
        assert_eq!(binding(&[per_task]).as_deref(), Some("SLURM_GPUS_PER_TASK"));
        assert_eq!(binding(&[per_task, ("SLURM_GPU_BIND", "none")]), None);
        assert_eq!(binding(&[("SLURMD_TRES_BIND", "gpu:closest")]), None);
        assert!(binding(&[("SLURM_GPU_BIND", "verbose,map_gpu:0,1")]).is_some());
        assert_eq!(binding(&[]), None);
    }

    #[test]
    fn hidden_gpus_are_counted() {
        let tree = TempTree::new();
        tree.file("/sys/bus/pci/devices/0000:01:00.0/iommu_group/type", "DMA-FQ\n");
        let address = |i: u32| format!("0000:{i:02x}:00.0");
        let (class, vendor, path) = (0x030200, 0x10de, vec![]);
        let pci = |address| PciDevice {
            address,
            path: path.clone(),
            class,
            vendor,
            device: 0,
            numa: None,
        };
        let gpu = Gpu { pci: Some(address(1)), ..Gpu::new(0, GpuVendor::Nvidia, "A100") };
        let machine = Machine {
            gpus: vec![gpu],
            pci: (1..5).map(address).map(pci).collect(),
            ..Machine::default()
        };
        let facts = collect(&tree.root(), &Env::default(), &machine);
        assert_eq!((facts.gpus_on_node, facts.iommu.as_deref()), (Some(4), Some("DMA-FQ")));
    }
}
