//! Compares the actual binding of a rank with its placement and diagnoses mismatches.

use regatta_model::units::pluralize;
use regatta_model::{
    CpuSet, GpuVisibility, LinkState, Machine, MemoryPolicy, NicKind, NodeLayout, PlacedRank,
};
use serde::Serialize;

/// The memory policy reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActualMemoryPolicy {
    /// `MPOL_DEFAULT`: first touch.
    Default,
    /// `MPOL_PREFERRED`: these NUMA nodes first.
    Prefer(CpuSet),
    /// `MPOL_BIND`: these NUMA nodes only.
    Bind(CpuSet),
    /// `MPOL_INTERLEAVE` over these NUMA nodes.
    Interleave(CpuSet),
    /// Not reported.
    Unknown,
}

/// The actual binding of a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActualBinding {
    /// The CPUs it is bound to.
    pub cpus: CpuSet,
    /// Its memory policy.
    pub memory: ActualMemoryPolicy,
    /// The GPUs visible to it by machine index, in its order; `None` if unknown.
    pub gpus: Option<Vec<u32>>,
    /// The variable that restricts the visible GPUs, with its value.
    pub gpu_variable: Option<(String, String)>,
    /// `NCCL_SOCKET_IFNAME`, if it is set.
    pub socket_ifname: Option<String>,
    /// `OMP_NUM_THREADS`, if it is set.
    pub omp_num_threads: Option<String>,
}

/// A mismatch between placement and actual binding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The resource: `cpus`, `memory`, `gpus`, `nic`, `threads`.
    pub resource: String,
    /// The planned value.
    pub planned: String,
    /// The actual value.
    pub actual: String,
    /// The likely cause and the fix.
    pub why: String,
}

fn mismatch(resource: &str, planned: impl ToString, actual: impl ToString, why: &str) -> Mismatch {
    let (planned, actual) = (planned.to_string(), actual.to_string());
    Mismatch { resource: resource.to_owned(), planned, actual, why: why.to_owned() }
}

/// The mismatches of the rank `local_rank` of a layout.
pub fn compare(
    machine: &Machine,
    layout: &NodeLayout,
    local_rank: u32,
    actual: &ActualBinding,
) -> Vec<Mismatch> {
    let Some(plan) = layout.ranks.get(local_rank as usize) else {
        let planned = format!("{} on the node", pluralize(layout.ranks.len(), "rank"));
        let why = "the launcher started a different number of ranks per node: pass the same --ranks-per-node";
        return vec![mismatch("rank", planned, format!("local rank {local_rank}"), why)];
    };
    let mismatches = [
        cpus(machine, layout, plan, actual),
        memory(machine, plan, actual),
        gpus(machine, plan, actual),
        socket_interface(machine, plan, actual),
        threads(plan, actual),
    ];
    mismatches.into_iter().flatten().collect()
}

type Check = Option<Mismatch>;

fn cpus(machine: &Machine, node: &NodeLayout, plan: &PlacedRank, actual: &ActualBinding) -> Check {
    if actual.cpus == plan.cpus {
        return None;
    }
    let is_other = |r: &&PlacedRank| r.local_rank != plan.local_rank && r.cpus == actual.cpus;
    let cause = if let Some(other) = node.ranks.iter().find(is_other) {
        &format!(
            "these are the cores of local rank {}: the launcher assigns cores in core order, not in GPU order;",
            other.local_rank
        )
    } else if machine.usable.job_cpus().is_subset(&actual.cpus) {
        "the launcher does not bind:"
    } else if actual.cpus.is_subset(&plan.cpus) {
        let why = "the launcher binds to fewer CPUs: with Slurm, export SRUN_CPUS_PER_TASK or pass --cpus-per-task to srun, which does not inherit it from sbatch since 22.05";
        return Some(mismatch("cpus", &plan.cpus, &actual.cpus, why));
    } else if plan.cpus.is_subset(&actual.cpus) {
        "the launcher binds to more CPUs than the rank's share:"
    } else if !actual.cpus.intersects(&plan.cpus) {
        "none of these CPUs is local to the rank's GPU:"
    } else {
        "the launcher uses a different binding:"
    };
    let why = format!("{cause} use the binding options of `regatta map --format`");
    Some(mismatch("cpus", &plan.cpus, &actual.cpus, &why))
}

/// The default policy is equivalent to preferring the NUMA nodes of the rank's cores.
fn memory(machine: &Machine, plan: &PlacedRank, actual: &ActualBinding) -> Check {
    use ActualMemoryPolicy::{Bind, Default, Interleave, Prefer, Unknown};
    let (nodes, prefers) = match &plan.memory {
        MemoryPolicy::Default => return None,
        MemoryPolicy::Prefer(nodes) => (nodes, true),
        MemoryPolicy::Bind(nodes) => (nodes, false),
    };
    let planned: CpuSet = nodes.iter().map(|&n| n as usize).collect();
    let fits = match &actual.memory {
        Unknown => true,
        Bind(nodes) => nodes.is_subset(&planned),
        Prefer(nodes) => prefers && nodes.is_subset(&planned),
        Default => prefers && numa_of(machine, &actual.cpus).is_subset(&planned),
        Interleave(_) => false,
    };
    if fits {
        return None;
    }
    let why = match &actual.memory {
        Default => {
            "memory is allocated on the NUMA node of the CPU (first touch), and the CPUs are unbound or on other NUMA nodes"
        }
        _ => "numactl or the launcher's --mem-bind selects other NUMA nodes",
    };
    let planned = describe_policy(&if prefers { Prefer(planned) } else { Bind(planned) });
    Some(mismatch("memory", planned, describe_policy(&actual.memory), why))
}

/// The NUMA nodes of CPUs.
fn numa_of(machine: &Machine, cpus: &CpuSet) -> CpuSet {
    let nodes = machine.numa.iter().filter(|n| n.cpus.intersects(cpus));
    nodes.map(|n| n.id as usize).collect()
}

fn describe_policy(memory: &ActualMemoryPolicy) -> String {
    match memory {
        ActualMemoryPolicy::Default => "kernel default (first touch)".to_owned(),
        ActualMemoryPolicy::Prefer(n) => format!("prefer NUMA {n}"),
        ActualMemoryPolicy::Bind(n) => format!("bind to NUMA {n}"),
        ActualMemoryPolicy::Interleave(n) => format!("interleave over NUMA {n}"),
        ActualMemoryPolicy::Unknown => "unknown".to_owned(),
    }
}

fn list(gpus: &[u32]) -> String {
    match gpus.is_empty() {
        true => "none".to_owned(),
        false => gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}

fn gpus(machine: &Machine, plan: &PlacedRank, actual: &ActualBinding) -> Check {
    let seen = actual.gpus.as_ref()?;
    let planned = match plan.visibility {
        GpuVisibility::All if plan.gpus.is_empty() => return None,
        GpuVisibility::All => machine.visible_gpus(),
        GpuVisibility::Own => plan.gpus.clone(),
    };
    if *seen == planned {
        return None;
    }
    let denied: Vec<u32> =
        machine.gpus.iter().filter(|g| g.accessible == Some(false)).map(|g| g.index).collect();
    let why = if !denied.is_empty()
        && plan.gpus.iter().all(|g| !denied.contains(g))
        && seen.len() <= plan.gpus.len()
    {
        format!("{GPU_CGROUP_HINT}; inaccessible: GPU {}", list(&denied))
    } else if let Some(missing) = plan.gpus.iter().find(|g| !seen.contains(g)) {
        format!("GPU {missing} of the rank is not visible to it{}", variable_hint(actual))
    } else {
        format!("the visible GPUs are restricted{}", variable_hint(actual))
    };
    Some(mismatch("gpus", list(&planned), list(seen), &why))
}

/// The effect of a per-task GPU cgroup, with the fix.
pub(crate) const GPU_CGROUP_HINT: &str = "a per-task GPU cgroup (--gpus-per-task or --gpu-bind) hides the other GPUs, which disables peer-to-peer copies and CUDA IPC between ranks: use --gpus-per-node with --gpu-bind=none";

fn variable_hint(actual: &ActualBinding) -> String {
    match &actual.gpu_variable {
        Some((name, value)) => format!(": {name}={value}; set it as in `regatta env`"),
        None => String::new(),
    }
}

/// Whether NCCL's bootstrap would use the fabric. An unset variable is a mismatch only if NCCL
/// could select a worse interface.
fn socket_interface(machine: &Machine, plan: &PlacedRank, actual: &ActualBinding) -> Check {
    let nic = plan.nic.as_deref()?;
    let found = machine.nics.iter().find(|n| n.name == nic);
    if found.is_none_or(|n| n.state == LinkState::Down) {
        let why = "the link is down, or the interface is not in the container";
        return Some(mismatch("nic", nic, "missing or down", why));
    }
    let usable = crate::nic::socket_interfaces(machine);
    let Some(value) = &actual.socket_ifname else {
        let others = machine.nics.iter().filter(|n| !usable.contains(n) && !n.addresses.is_empty());
        let others: Vec<&str> = others.map(|n| n.name.as_str()).collect();
        let risky = usable.iter().any(|n| n.kind != NicKind::Virtual) && !others.is_empty();
        return risky.then(|| {
            let why = format!("NCCL may select {}: set it as in `regatta env`", others.join(", "));
            mismatch("nic", nic, "NCCL_SOCKET_IFNAME is not set", &why)
        });
    };
    // The closest interface cannot be selected without an IP address.
    let by_ip = || usable.iter().any(|n| ifname_matches(value, &n.name));
    if ifname_matches(value, nic) || (!usable.iter().any(|n| n.name == nic) && by_ip()) {
        return None;
    }
    let why = "NCCL's bootstrap and socket fallback would use another network: set it as in `regatta env`";
    Some(mismatch("nic", nic, format!("NCCL_SOCKET_IFNAME={value}"), why))
}

/// NCCL's syntax: a list of prefixes, exact with `=`, negated with `^`.
fn ifname_matches(value: &str, nic: &str) -> bool {
    let (negated, rest) = (value.starts_with('^'), value.strip_prefix('^').unwrap_or(value));
    let (exact, rest) = (rest.starts_with('='), rest.strip_prefix('=').unwrap_or(rest));
    let hit = rest.split(',').any(|item| if exact { nic == item } else { nic.starts_with(item) });
    hit != negated
}

fn threads(plan: &PlacedRank, actual: &ActualBinding) -> Check {
    let value = actual.omp_num_threads.as_ref()?;
    let why = match value.parse::<u32>() {
        Ok(n) if n == plan.omp_num_threads => return None,
        Ok(n) if n < plan.omp_num_threads => {
            "OMP_NUM_THREADS is less than the cores of the rank, which leaves cores unused"
        }
        _ => "OMP_NUM_THREADS exceeds the cores of the rank: threads are oversubscribed",
    };
    Some(mismatch("threads", plan.omp_num_threads, value, why))
}

#[cfg(test)]
mod tests {
    use super::ifname_matches;

    #[test]
    fn nccl_socket_ifname_syntax_is_followed() {
        assert!(ifname_matches("hsn", "hsn0"));
        assert!(ifname_matches("hsn0,hsn1", "hsn1"));
        assert!(ifname_matches("=hsn0,hsn1", "hsn1"));
        assert!(!ifname_matches("=hsn", "hsn0"));
        assert!(!ifname_matches("^hsn", "hsn0"));
        assert!(ifname_matches("^nmn,lo", "hsn0"));
    }
}
