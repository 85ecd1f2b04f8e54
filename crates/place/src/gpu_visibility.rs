//! GPUs visible to a process, and detection of device cgroups.

use regatta_model::{Allocation, Gpu, GpuVendor, Machine, Warning};

use crate::check::GPU_CGROUP_HINT;

/// Looks up an environment variable.
type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The GPUs visible to a process, by machine index in runtime order, and the variable that
/// restricts them.
pub fn visible_gpus(machine: &Machine, variable: Env<'_>) -> (Vec<u32>, Option<(String, String)>) {
    let open = machine.gpus.iter().filter(|g| g.accessible != Some(false));
    let mut visible: Vec<u32> = open.map(|g| g.index).collect();
    let mut cause = None;
    for names in variables(machine) {
        let set = names.iter().find_map(|&name| Some((name, variable(name)?)));
        let Some((name, value)) = set else { continue };
        let selected = apply_list(machine, &visible, &value);
        if selected.len() < visible.len() {
            cause = Some((name.to_owned(), value));
        }
        visible = selected;
    }
    (visible, cause)
}

/// Each group restricts the result of the previous one; in a group the first variable that is set
/// applies.
fn variables(machine: &Machine) -> &'static [&'static [&'static str]] {
    match machine.gpus.first().map(|g| g.vendor) {
        Some(GpuVendor::Nvidia) => &[&["CUDA_VISIBLE_DEVICES"]],
        // HIP also honours CUDA's variable.
        Some(GpuVendor::Amd) => {
            &[&["ROCR_VISIBLE_DEVICES"], &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]]
        }
        Some(GpuVendor::Intel) => &[&["ZE_AFFINITY_MASK"]],
        None => &[],
    }
}

/// The runtimes' syntax: indices, UUIDs or tiles (`2.1`), up to the first that does not exist.
fn apply_list(machine: &Machine, visible: &[u32], value: &str) -> Vec<u32> {
    let pick = |item: &str| {
        let item = item.trim();
        if let Ok(position) = item.parse::<usize>() {
            return visible.get(position).copied();
        }
        let tile = item.split_once('.').map(|(card, sub)| (card.parse().ok(), sub.parse().ok()));
        let named = |g: &&Gpu| match tile {
            Some((card, sub)) => card == Some(g.card) && sub == Some(g.subdevice.unwrap_or(0)),
            None => !item.is_empty() && g.uuid.as_deref().is_some_and(|u| u.starts_with(item)),
        };
        machine.gpus.iter().find(named).map(|g| g.index)
    };
    value.split(',').map_while(pick).collect()
}

/// Whether a per-task GPU cgroup hides GPUs from a rank. Evidence is GPUs on the PCI bus that the
/// rank cannot open, or Slurm's GPU binding together with fewer visible GPUs: with `closest` alone
/// all stay visible.
pub fn gpu_cgroup_warning(
    machine: &Machine,
    allocation: &Allocation,
    variable: Env<'_>,
) -> Option<Warning> {
    let this_rank = allocation.this_rank.filter(|r| r.local_size > 1)?;
    let on_node = machine.gpus_with_hidden()?;
    let open = machine.gpus.iter().filter(|g| g.accessible != Some(false)).count();
    let (visible, _) = visible_gpus(machine, variable);
    let (count, cause) = match slurm_gpu_binding(variable) {
        Some(bound) if visible.len() < on_node => (visible.len(), format!(" ({bound})")),
        _ if open < on_node && open < this_rank.local_size as usize => (open, String::new()),
        _ => return None,
    };
    Some(Warning::new(
        "gpu-cgroup",
        format!(
            "rank {} on {} can use {count} of {on_node} GPUs, but {} ranks run there{cause}",
            this_rank.rank, machine.host, this_rank.local_size
        ),
        GPU_CGROUP_HINT,
    ))
}

/// The GPUs available to a job on the running node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobGpus {
    /// Their machine indices, in program order.
    pub gpus: Vec<u32>,
    /// Warning for the user.
    pub warning: Warning,
}

/// The GPUs available to a job as restricted by a variable: schedulers without device cgroups set
/// it, and the other GPUs may belong to another job. If there are fewer than ranks on the node, the
/// variable is a rank's own and `None` is returned.
pub fn job_gpus(machine: &Machine, allocation: &Allocation, variable: Env<'_>) -> Option<JobGpus> {
    let (gpus, cause) = visible_gpus(machine, variable);
    let ranks = allocation.this_rank.map_or(1, |r| r.local_size as usize);
    let (name, value) = cause.filter(|_| machine.is_live() && gpus.len() >= ranks)?;
    if slurm_gpu_binding(variable).is_some() {
        return None;
    }
    let (visible, all, host) = (gpus.len(), machine.gpus.len(), &machine.host);
    let warning = Warning::new(
        HIDDEN_GPUS,
        format!(
            "{name}={value} restricts this job to {visible} of {all} GPUs of {host}, which the placement uses"
        ),
        "the others may belong to another job; unset the variable if the node is exclusive",
    );
    Some(JobGpus { gpus, warning })
}

/// Warning code of [`job_gpus`].
pub const HIDDEN_GPUS: &str = "hidden-gpus";

/// Slurm's binding of GPUs to tasks: `gpu:per_task:1`, `gpu:verbose,mask_gpu:0x3,0xc`.
fn slurm_gpu_binding(variable: Env<'_>) -> Option<String> {
    let name = "SLURMD_TRES_BIND";
    let value = variable(name)?;
    let kinds = ["per_task", "single", "map_gpu", "mask_gpu", "map:", "mask:"];
    kinds.iter().any(|kind| value.contains(kind)).then(|| format!("{name}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::{PciDevice, RankId};

    /// A node with four GPUs on the bus, of which the driver lists the first `listed` and `open`
    /// are accessible.
    fn node(listed: u32, open: &[u32]) -> Machine {
        let address = |i: u32| format!("0000:{i:02x}:00.0");
        let (class, vendor) = (0x030200, 0x10de);
        let pci =
            |address| PciDevice { address, path: vec![], class, vendor, device: 0, numa: None };
        let gpu = |i: u32| Gpu {
            pci: Some(address(i)),
            accessible: Some(open.contains(&i)),
            uuid: Some(format!("GPU-{i}")),
            ..Gpu::new(i, GpuVendor::Nvidia, "A100")
        };
        let (pci, gpus) = ((0..4).map(address).map(pci).collect(), (0..listed).map(gpu).collect());
        Machine { host: "n1".to_owned(), pci, gpus, ..Machine::default() }
    }

    fn rank(local_rank: u32) -> Allocation {
        let me = RankId { rank: local_rank, size: 4, local_rank, local_size: 4, node: Some(0) };
        Allocation { this_rank: Some(me), ..Allocation::single_node("n1") }
    }

    fn variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        let own: Vec<_> = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        move |name| own.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone())
    }

    #[test]
    fn hidden_gpus_are_detected() {
        let none = variables(&[]);
        let denied = gpu_cgroup_warning(&node(4, &[2]), &rank(2), &none).unwrap();
        assert!(denied.message.contains("rank 2 on n1 can use 1 of 4 GPUs"), "{}", denied.message);
        assert!(gpu_cgroup_warning(&node(1, &[0]), &rank(2), &none).is_some(), "not listed at all");
        assert_eq!(gpu_cgroup_warning(&node(4, &[0, 1, 2, 3]), &rank(2), &none), None);
        let single_node = Allocation::single_node("n1");
        assert_eq!(gpu_cgroup_warning(&node(4, &[2]), &single_node, &none), None, "not a rank");
    }

    #[test]
    fn job_gpus_excludes_gpus_of_other_jobs() {
        let live = Machine { source: "live".to_owned(), ..node(4, &[0, 1, 2, 3]) };
        let single_node = Allocation::single_node("n1");
        let two = variables(&[("CUDA_VISIBLE_DEVICES", "3,2")]);
        let restricted = job_gpus(&live, &single_node, &two).unwrap();
        assert_eq!(restricted.gpus, [3, 2]);
        let expected = "CUDA_VISIBLE_DEVICES=3,2 restricts this job to 2 of 4 GPUs of n1";
        assert!(restricted.warning.message.starts_with(expected), "{}", restricted.warning.message);
        assert_eq!(job_gpus(&live, &single_node, &variables(&[])), None);
        assert_eq!(job_gpus(&live, &rank(1), &two), None, "a rank's own view");
        let bound =
            variables(&[("CUDA_VISIBLE_DEVICES", "0"), ("SLURMD_TRES_BIND", "gpu:single:1")]);
        assert_eq!(job_gpus(&live, &single_node, &bound), None, "a cgroup's view");
        let recorded = node(4, &[0, 1, 2, 3]);
        assert_eq!(job_gpus(&recorded, &single_node, &two), None, "not the running node");
    }

    #[test]
    fn slurm_gpu_binding_is_detected() {
        let all = node(4, &[0, 1, 2, 3]);
        let warning_for = |bind: &str, visible: &str| {
            let env = variables(&[("SLURMD_TRES_BIND", bind), ("CUDA_VISIBLE_DEVICES", visible)]);
            gpu_cgroup_warning(&all, &rank(1), &env)
        };
        let warning = warning_for("gpu:per_task:1", "0").unwrap();
        assert!(warning.message.contains("SLURMD_TRES_BIND=gpu:per_task:1"), "{}", warning.message);
        assert!(warning_for("gpu:verbose,mask_gpu:0x3,0xc", "0,1").is_some());
        assert_eq!(warning_for("gpu:closest", "0,1,2,3"), None);
        assert_eq!(warning_for("gpu:none", "0"), None, "restricted by the variable alone");
    }

    #[test]
    fn visible_devices_syntax_is_followed() {
        let visible_on = |node: Machine, value: &str| {
            visible_gpus(&node, &variables(&[("CUDA_VISIBLE_DEVICES", value)])).0
        };
        let visible = |value: &str| visible_on(node(4, &[0, 1, 2, 3]), value);
        assert_eq!(visible("2,0"), [2, 0]);
        assert_eq!(visible("1,7,2"), [1], "up to the first that does not exist");
        assert_eq!(visible("GPU-3"), [3]);
        assert!(visible("").is_empty() && visible("-1").is_empty());
        assert_eq!(visible_on(node(4, &[2, 3]), "0"), [2], "indices refer to accessible GPUs");
    }

    fn visible_to(vendor: GpuVendor, pairs: &[(&str, &str)]) -> Vec<u32> {
        let mut machine = node(4, &[0, 1, 2, 3]);
        let gpu = |g: Gpu| Gpu { vendor, card: g.index / 2, subdevice: Some(g.index % 2), ..g };
        machine.gpus = machine.gpus.into_iter().map(gpu).collect();
        visible_gpus(&machine, &variables(pairs)).0
    }

    #[test]
    fn amd_and_intel_variables_are_honoured() {
        let hip = |pairs: &[(&str, &str)]| visible_to(GpuVendor::Amd, pairs);
        assert_eq!(hip(&[("CUDA_VISIBLE_DEVICES", "1")]), [1]);
        assert_eq!(hip(&[("CUDA_VISIBLE_DEVICES", "1"), ("HIP_VISIBLE_DEVICES", "0,2")]), [0, 2]);
        let under = [("ROCR_VISIBLE_DEVICES", "2,3"), ("HIP_VISIBLE_DEVICES", "1")];
        assert_eq!(hip(&under), [3], "indices refer to the remaining GPUs");
        let tiles = |mask: &str| visible_to(GpuVendor::Intel, &[("ZE_AFFINITY_MASK", mask)]);
        assert_eq!((tiles("1.1"), tiles("0.1,1.0"), tiles("3")), (vec![3], vec![1, 2], vec![3]));
        assert!(tiles("7.0").is_empty() && tiles("1.").is_empty());
    }
}
