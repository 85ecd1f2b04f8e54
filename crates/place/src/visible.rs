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
    for names in variables(machine) {
        let set = names.iter().find_map(|&name| Some((name, variable(name)?)));
        let Some((name, value)) = set else { continue };
        let chosen = choose(machine, &seen, &value);
        if chosen.len() < seen.len() {
            cause = Some((name.to_owned(), value));
        }
        seen = chosen;
    }
    (seen, cause)
}

/// Each group narrows what the one before left; in a group the first that is set counts.
fn variables(machine: &Machine) -> &'static [&'static [&'static str]] {
    match machine.gpus.first().map(|g| g.vendor) {
        Some(GpuVendor::Nvidia) => &[&["CUDA_VISIBLE_DEVICES"]],
        // HIP hears CUDA's variable too.
        Some(GpuVendor::Amd) => {
            &[&["ROCR_VISIBLE_DEVICES"], &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]]
        }
        Some(GpuVendor::Intel) => &[&["ZE_AFFINITY_MASK"]],
        None => &[],
    }
}

/// The runtimes' rule: numbers, unique names or tiles (`2.1`), up to the first that does not exist.
fn choose(machine: &Machine, seen: &[u32], value: &str) -> Vec<u32> {
    let pick = |item: &str| {
        let item = item.trim();
        if let Ok(position) = item.parse::<usize>() {
            return seen.get(position).copied();
        }
        let tile = item.split_once('.').map(|(card, part)| (card.parse().ok(), part.parse().ok()));
        let named = |g: &&regatta_model::Gpu| match tile {
            Some((card, part)) => card == Some(g.card) && part == Some(g.part.unwrap_or(0)),
            None => !item.is_empty() && g.uuid.as_deref().is_some_and(|u| u.starts_with(item)),
        };
        machine.gpus.iter().find(named).map(|g| g.index)
    };
    value.split(',').map_while(pick).collect()
}

/// Whether a GPU cgroup of its own hides GPUs from a rank. Two things tell: GPUs on the bus that
/// the rank cannot open, and Slurm's word that it bound GPUs to tasks. The second alone is not
/// enough: `closest` leaves all of them visible.
pub fn gpu_cgroup_warning(
    machine: &Machine,
    allocation: &Allocation,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Option<Warning> {
    let me = allocation.me.filter(|me| me.local_size > 1)?;
    let on_node = gpus_on_node(machine)?;
    let open = machine.gpus.iter().filter(|g| g.accessible != Some(false)).count();
    let (seen, _) = visible_gpus(machine, variable);
    let (count, cause) = match bound_by_slurm(variable) {
        Some(bound) if seen.len() < on_node => (seen.len(), format!(", for Slurm says {bound}")),
        _ if open < on_node && open < me.local_size as usize => (open, String::new()),
        _ => return None,
    };
    Some(Warning {
        code: "gpu-cgroup".to_owned(),
        what: format!(
            "rank {} on {} can use {count} of {on_node} GPUs while {} ranks run there{cause}",
            me.rank, machine.host, me.local_size
        ),
        hint: CGROUP.to_owned(),
    })
}

/// The GPUs that a job was left of a live node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Their numbers, in the order in which programs see them.
    pub gpus: Vec<u32>,
    /// What to tell the user.
    pub warning: Warning,
}

/// The GPUs that a variable leaves to a job: a scheduler without device cgroups sets it, and the
/// others may be another job's. Fewer than the node has ranks are one rank's own view, which is
/// another matter.
pub fn left_to_job(
    machine: &Machine,
    allocation: &Allocation,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Option<Left> {
    let (gpus, cause) = visible_gpus(machine, variable);
    let ranks = allocation.me.map_or(1, |me| me.local_size as usize);
    let (name, value) = cause.filter(|_| machine.is_live() && gpus.len() >= ranks)?;
    if bound_by_slurm(variable).is_some() {
        return None;
    }
    let warning = Warning {
        code: HIDDEN_GPUS.to_owned(),
        what: format!(
            "{name}={value} leaves this job {} of {} GPUs of {}: the plan uses those",
            gpus.len(),
            machine.gpus.len(),
            machine.host
        ),
        hint: "the others may be another job's; if nobody else is here, unset the variable"
            .to_owned(),
    };
    Some(Left { gpus, warning })
}

/// The code of the warning of [`left_to_job`].
pub const HIDDEN_GPUS: &str = "hidden-gpus";

/// The GPUs of the node, hidden ones included: a device cgroup does not hide the PCI bus.
fn gpus_on_node(machine: &Machine) -> Option<usize> {
    let vendor = machine.gpus.first()?.vendor;
    let on_bus = machine.pci.iter().filter(|d| is_gpu(d.class, d.vendor, vendor)).count();
    let mut cards: Vec<_> = machine.gpus.iter().filter_map(|g| g.pci.as_ref()).collect();
    cards.sort_unstable();
    cards.dedup();
    // A card may show as several devices; hidden cards count as one each.
    Some(machine.gpus.len() + on_bus.saturating_sub(cards.len().max(1)))
}

/// What Slurm says of GPUs it bound to tasks: `gpu:per_task:1`, `gpu:verbose,mask_gpu:0x3,0xc`.
fn bound_by_slurm(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let name = "SLURMD_TRES_BIND";
    let value = variable(name)?;
    let kinds = ["per_task", "single", "map_gpu", "mask_gpu", "map:", "mask:"];
    kinds.iter().any(|kind| value.contains(kind)).then(|| format!("{name}={value}"))
}

fn is_gpu(class: u32, pci_vendor: u16, vendor: GpuVendor) -> bool {
    let id = match vendor {
        GpuVendor::Nvidia => 0x10de,
        GpuVendor::Amd => 0x1002,
        GpuVendor::Intel => 0x8086,
    };
    pci_vendor == id && matches!(class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::{Gpu, PciDevice, RankId};

    /// A node with four GPUs on the bus, of which `open` can be opened and the first `listed` are
    /// shown by the driver.
    fn node(listed: u32, open: &[u32]) -> Machine {
        let address = |i: u32| format!("0000:{i:02x}:00.0");
        let pci = |i: u32| PciDevice {
            address: address(i),
            path: Vec::new(),
            class: 0x030200,
            vendor: 0x10de,
            device: 0,
            numa: None,
        };
        let gpu = |i: u32| Gpu {
            pci: Some(address(i)),
            accessible: Some(open.contains(&i)),
            uuid: Some(format!("GPU-{i}")),
            ..Gpu::new(i, GpuVendor::Nvidia, "A100")
        };
        let gpus = (0..listed).map(gpu).collect();
        Machine {
            host: "n1".to_owned(),
            pci: (0..4).map(pci).collect(),
            gpus,
            ..Machine::default()
        }
    }

    fn rank(local_rank: u32) -> Allocation {
        let me = RankId { rank: local_rank, size: 4, local_rank, local_size: 4, node: Some(0) };
        Allocation { me: Some(me), ..Allocation::alone("n1") }
    }

    fn variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        let own: Vec<(String, String)> =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        move |name| own.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone())
    }

    #[test]
    fn hidden_hardware_tells() {
        let none = variables(&[]);
        let denied = gpu_cgroup_warning(&node(4, &[2]), &rank(2), &none).unwrap();
        assert!(denied.what.contains("rank 2 on n1 can use 1 of 4 GPUs"), "{}", denied.what);
        assert!(gpu_cgroup_warning(&node(1, &[0]), &rank(2), &none).is_some(), "not listed at all");
        assert_eq!(gpu_cgroup_warning(&node(4, &[0, 1, 2, 3]), &rank(2), &none), None);
        let alone = Allocation::alone("n1");
        assert_eq!(gpu_cgroup_warning(&node(4, &[2]), &alone, &none), None, "no rank of a job");
    }

    #[test]
    fn gpus_of_other_jobs_are_left_alone() {
        let live = Machine { source: "live".to_owned(), ..node(4, &[0, 1, 2, 3]) };
        let alone = Allocation::alone("n1");
        let two = variables(&[("CUDA_VISIBLE_DEVICES", "3,2")]);
        let left = left_to_job(&live, &alone, &two).unwrap();
        assert_eq!(left.gpus, [3, 2]);
        let wanted = "CUDA_VISIBLE_DEVICES=3,2 leaves this job 2 of 4 GPUs of n1";
        assert!(left.warning.what.starts_with(wanted), "{}", left.warning.what);
        assert_eq!(left_to_job(&live, &alone, &variables(&[])), None);
        assert_eq!(left_to_job(&live, &rank(1), &two), None, "a rank's own view");
        let bound =
            variables(&[("CUDA_VISIBLE_DEVICES", "0"), ("SLURMD_TRES_BIND", "gpu:single:1")]);
        assert_eq!(left_to_job(&live, &alone, &bound), None, "a cgroup's view");
        let elsewhere = node(4, &[0, 1, 2, 3]);
        assert_eq!(left_to_job(&elsewhere, &alone, &two), None, "another machine's");
    }

    #[test]
    fn slurm_tells() {
        let all = node(4, &[0, 1, 2, 3]);
        let told = |bind: &str, visible: &str| {
            let env = variables(&[("SLURMD_TRES_BIND", bind), ("CUDA_VISIBLE_DEVICES", visible)]);
            gpu_cgroup_warning(&all, &rank(1), &env)
        };
        let warning = told("gpu:per_task:1", "0").unwrap();
        assert!(warning.what.contains("SLURMD_TRES_BIND=gpu:per_task:1"), "{}", warning.what);
        assert!(told("gpu:verbose,mask_gpu:0x3,0xc", "0,1").is_some());
        assert_eq!(told("gpu:closest", "0,1,2,3"), None);
        assert_eq!(told("gpu:none", "0"), None, "restricted by the variable alone");
    }

    #[test]
    fn the_runtime_rule_of_visible_devices() {
        let seen = |value: &str| {
            let env = variables(&[("CUDA_VISIBLE_DEVICES", value)]);
            visible_gpus(&node(4, &[0, 1, 2, 3]), &env).0
        };
        assert_eq!(seen("2,0"), [2, 0]);
        assert_eq!(seen("1,7,2"), [1], "up to the first that does not exist");
        assert_eq!(seen("GPU-3"), [3]);
        assert!(seen("").is_empty() && seen("-1").is_empty());
        let second = variables(&[("CUDA_VISIBLE_DEVICES", "0")]);
        assert_eq!(visible_gpus(&node(4, &[2, 3]), &second).0, [2], "numbers count what is open");
    }

    fn seen_by(vendor: GpuVendor, pairs: &[(&str, &str)]) -> Vec<u32> {
        let mut machine = node(4, &[0, 1, 2, 3]);
        let gpu = |g: Gpu| Gpu { vendor, card: g.index / 2, part: Some(g.index % 2), ..g };
        machine.gpus = machine.gpus.into_iter().map(gpu).collect();
        visible_gpus(&machine, &variables(pairs)).0
    }

    #[test]
    fn other_vendors_have_rules_of_their_own() {
        let hip = |pairs: &[(&str, &str)]| seen_by(GpuVendor::Amd, pairs);
        assert_eq!(hip(&[("CUDA_VISIBLE_DEVICES", "1")]), [1]);
        assert_eq!(hip(&[("CUDA_VISIBLE_DEVICES", "1"), ("HIP_VISIBLE_DEVICES", "0,2")]), [0, 2]);
        let under = [("ROCR_VISIBLE_DEVICES", "2,3"), ("HIP_VISIBLE_DEVICES", "1")];
        assert_eq!(hip(&under), [3], "numbers count what is left");
        let tiles = |mask: &str| seen_by(GpuVendor::Intel, &[("ZE_AFFINITY_MASK", mask)]);
        assert_eq!((tiles("1.1"), tiles("0.1,1.0"), tiles("3")), (vec![3], vec![1, 2], vec![3]));
        assert!(tiles("7.0").is_empty() && tiles("1.").is_empty());
    }
}
