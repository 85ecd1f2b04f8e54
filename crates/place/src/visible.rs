//! Which GPUs a rank sees, and whether a device cgroup hides some.

use regatta_model::{Allocation, GpuVendor, Machine, Warning};

use crate::check::CGROUP;

/// The GPUs a process sees, by the machine's numbers in the order of the runtime, and the variable
/// that restricts them. `variable` looks a variable up.
pub fn visible_gpus(
    machine: &Machine,
    variable: &dyn Fn(&str) -> Option<String>,
) -> (Vec<u32>, Option<(String, String)>) {
    let open = machine.gpus.iter().filter(|g| g.accessible != Some(false));
    let mut seen: Vec<u32> = open.map(|g| g.index).collect();
    let mut cause = None;
    for &name in variables(machine) {
        let Some(value) = variable(name) else { continue };
        let chosen = choose(machine, &seen, &value);
        if chosen.len() < seen.len() {
            cause = Some((name.to_owned(), value));
        }
        seen = chosen;
    }
    (seen, cause)
}

/// Each narrows what the one before left.
fn variables(machine: &Machine) -> &'static [&'static str] {
    match machine.gpus.first().map(|g| g.vendor) {
        Some(GpuVendor::Nvidia) => &["CUDA_VISIBLE_DEVICES"],
        Some(GpuVendor::Amd) => &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"],
        Some(GpuVendor::Intel) => &["ZE_AFFINITY_MASK"],
        None => &[],
    }
}

/// The runtimes' rule: numbers or unique names, up to the first that does not exist.
fn choose(machine: &Machine, seen: &[u32], value: &str) -> Vec<u32> {
    let pick = |item: &str| match item.trim().parse::<usize>() {
        Ok(position) => seen.get(position).copied(),
        Err(_) => {
            let named = |g: &&regatta_model::Gpu| {
                g.uuid.as_deref().is_some_and(|u| u.starts_with(item.trim()))
            };
            machine.gpus.iter().find(named).map(|g| g.index).filter(|_| !item.trim().is_empty())
        }
    };
    value.split(',').map_while(pick).collect()
}

/// A rank that can open fewer GPUs than its node has ranks sits in a GPU cgroup of its own.
pub fn gpu_cgroup_warning(machine: &Machine, allocation: &Allocation) -> Option<Warning> {
    let me = allocation.me.filter(|me| me.local_size > 1)?;
    let open: Vec<_> = machine.gpus.iter().filter(|g| g.accessible != Some(false)).collect();
    let vendor = machine.gpus.first()?.vendor;
    let on_bus = machine.pci.iter().filter(|d| is_gpu(d.class, d.vendor, vendor)).count();
    let mut cards: Vec<_> = open.iter().filter_map(|g| g.pci.as_ref()).collect();
    cards.dedup();
    let there = on_bus.max(machine.gpus.len());
    let hidden = there.saturating_sub(if cards.is_empty() { open.len() } else { cards.len() });
    (hidden > 0 && open.len() < me.local_size as usize).then(|| Warning {
        code: "gpu-cgroup".to_owned(),
        what: format!(
            "rank {} on {} can open {} of {there} GPUs while {} ranks run there",
            me.rank,
            machine.host,
            open.len(),
            me.local_size
        ),
        hint: CGROUP.to_owned(),
    })
}

fn is_gpu(class: u32, pci_vendor: u16, vendor: GpuVendor) -> bool {
    let id = match vendor {
        GpuVendor::Nvidia => 0x10de,
        GpuVendor::Amd => 0x1002,
        GpuVendor::Intel => 0x8086,
    };
    pci_vendor == id && matches!(class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
}
