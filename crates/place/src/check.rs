//! Compares what a rank really has with what was planned, and says why they differ.

use regatta_model::{CpuSet, Layout, Machine, MemoryPolicy, PlacedRank};
use serde::Serialize;

/// The memory policy the kernel reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActualMemory {
    /// The default: the node of the CPU that touches a page first.
    Default,
    /// Prefers these nodes.
    Prefer(CpuSet),
    /// These nodes only.
    Bind(CpuSet),
    /// Spread over these nodes.
    Interleave(CpuSet),
    /// The kernel did not tell.
    Unknown,
}

/// What a rank really has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Actual {
    /// The CPUs it is bound to.
    pub cpus: CpuSet,
    /// Its memory policy.
    pub memory: ActualMemory,
    /// The GPUs it sees, by the machine's numbers, in its own order; `None` if that cannot be
    /// told.
    pub gpus: Option<Vec<u32>>,
    /// The variable and value that restrict the GPUs it sees.
    pub gpu_variable: Option<(String, String)>,
    /// `NCCL_SOCKET_IFNAME`, if it is set.
    pub socket_ifname: Option<String>,
    /// `OMP_NUM_THREADS`, if it is set.
    pub omp_num_threads: Option<String>,
}

/// One thing that differs from the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// What: `cpus`, `memory`, `gpus`, `nic`, `threads`.
    pub what: String,
    /// What was planned.
    pub planned: String,
    /// What is.
    pub actual: String,
    /// Why, as far as that can be told, and what to do.
    pub why: String,
}

fn difference(
    what: &str,
    planned: impl ToString,
    actual: impl ToString,
    why: impl Into<String>,
) -> Difference {
    let (planned, actual) = (planned.to_string(), actual.to_string());
    Difference { what: what.to_owned(), planned, actual, why: why.into() }
}

/// What differs for the rank `local_rank` of a layout; empty if all is as planned.
pub fn compare(
    machine: &Machine,
    layout: &Layout,
    local_rank: u32,
    actual: &Actual,
) -> Vec<Difference> {
    let Some(plan) = layout.ranks.get(local_rank as usize) else {
        let planned = format!("{} ranks on the node", layout.ranks.len());
        return vec![difference(
            "rank",
            planned,
            format!("local rank {local_rank}"),
            "the launcher started another number of ranks: pass the same --ranks-per-node",
        )];
    };
    let mut found = Vec::new();
    found.extend(cpus(machine, layout, plan, actual));
    found.extend(memory(machine, plan, actual));
    found.extend(gpus(machine, plan, actual));
    found.extend(interface(machine, plan, actual));
    found.extend(threads(plan, actual));
    found
}

fn cpus(
    machine: &Machine,
    layout: &Layout,
    plan: &PlacedRank,
    actual: &Actual,
) -> Option<Difference> {
    if actual.cpus == plan.cpus {
        return None;
    }
    let other =
        layout.ranks.iter().find(|r| r.local_rank != plan.local_rank && r.cpus == actual.cpus);
    let why = if let Some(other) = other {
        format!(
            "these are local rank {}'s cores: the launcher dealt them in core order, not in the order of the GPUs; bind as `regatta map --format` prints",
            other.local_rank
        )
    } else if machine.usable.by_job().is_subset(&actual.cpus) {
        "the launcher bound nothing: bind as `regatta map --format` prints".to_owned()
    } else if actual.cpus.is_subset(&plan.cpus) {
        "the launcher gave fewer CPUs: with Slurm, export SRUN_CPUS_PER_TASK or pass --cpus-per-task to srun; since 22.05 it does not take over sbatch's".to_owned()
    } else if plan.cpus.is_subset(&actual.cpus) {
        "the launcher gave more CPUs than the rank's share: bind as `regatta map --format` prints"
            .to_owned()
    } else if !actual.cpus.intersects(&plan.cpus) {
        "none of them is near the rank's GPU: bind as `regatta map --format` prints".to_owned()
    } else {
        "the launcher bound by another rule: bind as `regatta map --format` prints".to_owned()
    };
    Some(difference("cpus", &plan.cpus, &actual.cpus, why))
}

/// The kernel's default policy is as good as preferring the node of one's own cores.
fn memory(machine: &Machine, plan: &PlacedRank, actual: &Actual) -> Option<Difference> {
    let set = |nodes: &[u32]| nodes.iter().map(|&n| n as usize).collect::<CpuSet>();
    let (planned, fits) = match &plan.memory {
        MemoryPolicy::System => return None,
        MemoryPolicy::Prefer(nodes) => {
            let planned = set(nodes);
            let fits = match &actual.memory {
                ActualMemory::Default => numa_of(machine, &actual.cpus).is_subset(&planned),
                ActualMemory::Prefer(n) | ActualMemory::Bind(n) => n.is_subset(&planned),
                ActualMemory::Interleave(_) => false,
                ActualMemory::Unknown => true,
            };
            (format!("NUMA {planned} first"), fits)
        }
        MemoryPolicy::Bind(nodes) => {
            let planned = set(nodes);
            let fits = match &actual.memory {
                ActualMemory::Bind(n) => n.is_subset(&planned),
                ActualMemory::Unknown => true,
                _ => false,
            };
            (format!("NUMA {planned} only"), fits)
        }
    };
    if fits {
        return None;
    }
    let why = match &actual.memory {
        ActualMemory::Default => "memory follows the CPUs, which are elsewhere or not bound",
        _ => "numactl or the launcher's --mem-bind chose other nodes",
    };
    Some(difference("memory", planned, spell(&actual.memory), why))
}

/// The NUMA nodes that CPUs are on.
fn numa_of(machine: &Machine, cpus: &CpuSet) -> CpuSet {
    let nodes = machine.numa.iter().filter(|n| n.cpus.intersects(cpus));
    nodes.map(|n| n.id as usize).collect()
}

fn spell(memory: &ActualMemory) -> String {
    match memory {
        ActualMemory::Default => "the kernel's default".to_owned(),
        ActualMemory::Prefer(n) => format!("NUMA {n} first"),
        ActualMemory::Bind(n) => format!("NUMA {n} only"),
        ActualMemory::Interleave(n) => format!("interleaved over NUMA {n}"),
        ActualMemory::Unknown => "unknown".to_owned(),
    }
}

fn list(gpus: &[u32]) -> String {
    match gpus.is_empty() {
        true => "none".to_owned(),
        false => gpus.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
    }
}

fn gpus(machine: &Machine, plan: &PlacedRank, actual: &Actual) -> Option<Difference> {
    let seen = actual.gpus.as_ref()?;
    let planned = match plan.visibility {
        regatta_model::Visibility::All if plan.gpus.is_empty() => return None,
        regatta_model::Visibility::All => machine.visible_gpus(),
        regatta_model::Visibility::Own => plan.gpus.clone(),
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
        format!("{CGROUP}; it cannot open GPU {}", list(&denied))
    } else if let Some(missing) = plan.gpus.iter().find(|g| !seen.contains(g)) {
        format!("the rank does not see its GPU {missing}{}", blame(actual))
    } else {
        format!("the visible GPUs are restricted{}", blame(actual))
    };
    Some(difference("gpus", list(&planned), list(seen), why))
}

/// What a per-task GPU cgroup does.
pub(crate) const CGROUP: &str = "a per-task GPU cgroup (--gpus-per-task or --gpu-bind) hides the other GPUs, which stops peer-to-peer copies and IPC between ranks: use --gpus-per-node with --gpu-bind=none";

fn blame(actual: &Actual) -> String {
    match &actual.gpu_variable {
        Some((name, value)) => format!(": {name}={value}; set it as `regatta env` prints"),
        None => String::new(),
    }
}

/// Whether NCCL's bootstrap would use the fabric. Not being set is a difference only if there is a
/// worse interface that NCCL could take.
fn interface(machine: &Machine, plan: &PlacedRank, actual: &Actual) -> Option<Difference> {
    let nic = plan.nic.as_deref()?;
    let found = machine.nics.iter().find(|n| n.name == nic);
    if found.is_none_or(|n| n.state == regatta_model::LinkState::Down) {
        return Some(difference(
            "nic",
            nic,
            "missing or down",
            "the link is down, or the container does not show it",
        ));
    }
    let sockets = crate::nic::sockets(machine);
    let Some(value) = &actual.socket_ifname else {
        let others: Vec<&str> = machine
            .nics
            .iter()
            .filter(|n| !sockets.contains(n) && !n.addresses.is_empty())
            .map(|n| n.name.as_str())
            .collect();
        let risky =
            sockets.iter().any(|n| n.kind != regatta_model::NicKind::Virtual) && !others.is_empty();
        return risky.then(|| {
            let why =
                format!("NCCL may choose {}: set it as `regatta env` prints", others.join(", "));
            difference("nic", nic, "NCCL_SOCKET_IFNAME is not set", why)
        });
    };
    // Without an IP address the nearest interface cannot be meant.
    let by_ip = || sockets.iter().any(|n| selects(value, &n.name));
    if selects(value, nic) || (!sockets.iter().any(|n| n.name == nic) && by_ip()) {
        return None;
    }
    let why =
        "NCCL's bootstrap and fall-back would use another network: set it as `regatta env` prints";
    Some(difference("nic", nic, format!("NCCL_SOCKET_IFNAME={value}"), why))
}

/// NCCL's rule: a list of prefixes, exact with `=`, all but with `^`.
fn selects(value: &str, nic: &str) -> bool {
    let (negated, rest) = match value.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let (exact, rest) = match rest.strip_prefix('=') {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let hit = rest.split(',').any(|item| if exact { nic == item } else { nic.starts_with(item) });
    hit != negated
}

fn threads(plan: &PlacedRank, actual: &Actual) -> Option<Difference> {
    let value = actual.omp_num_threads.as_ref()?;
    let why = match value.parse::<u32>() {
        Ok(n) if n == plan.omp_num_threads => return None,
        Ok(n) if n < plan.omp_num_threads => "OMP_NUM_THREADS leaves cores of the rank unused",
        _ => "OMP_NUM_THREADS asks for more threads than cores: they slow each other down",
    };
    Some(difference("threads", plan.omp_num_threads, value, why))
}

#[cfg(test)]
mod tests {
    use super::selects;

    #[test]
    fn nccl_interface_rule() {
        assert!(selects("hsn", "hsn0"));
        assert!(selects("hsn0,hsn1", "hsn1"));
        assert!(selects("=hsn0,hsn1", "hsn1"));
        assert!(!selects("=hsn", "hsn0"));
        assert!(!selects("^hsn", "hsn0"));
        assert!(selects("^nmn,lo", "hsn0"));
    }
}
