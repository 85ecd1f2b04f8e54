//! One node's ranks on one machine.

use regatta_model::{
    CpuSet, Job, Layout, Machine, MemoryChoice, MemoryPolicy, PlacedRank, Reasons, Reserve, Warning,
};

use crate::cores::{self, Share};
use crate::devices::{self, Devices};
use crate::{PlaceError, nic};

/// Lays `ranks` ranks out on `machine`.
pub fn layout(
    machine: &Machine,
    ranks: u32,
    job: &Job,
) -> Result<(Layout, Vec<Warning>), PlaceError> {
    let (free, reserved) = cores::free_cores(machine, job);
    if free.is_empty() {
        return Err(no_cores(machine, &reserved));
    }
    // Said before anything is worked out for so many ranks.
    if ranks as usize > free.len() && !job.oversubscribe {
        return Err(PlaceError::TooFewCores {
            host: machine.host.clone(),
            ranks,
            needed: u64::from(ranks) * u64::from(job.cores_per_rank.unwrap_or(1)),
            cores: free.len() as u32,
        });
    }
    let every = free.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus));

    let devices = devices::devices(machine, ranks, job)?;
    let wishes: Vec<Option<Vec<u32>>> = devices.iter().map(|d| gpu_numa(machine, d)).collect();
    let homes = cores::homes(&free, &wishes);
    let first: Vec<Option<u32>> = devices.iter().map(|d| d.gpus.first().copied()).collect();
    let shares = cores::assign(machine, free, &homes, &first, job)?;

    let mut placed: Vec<PlacedRank> = devices
        .into_iter()
        .zip(shares)
        .zip(0..)
        .map(|((devices, share), i)| placed_rank(machine, i, devices, share, job))
        .collect();
    nic::assign(machine, &mut placed);

    let used = placed.iter().fold(CpuSet::new(), |all, r| all.union(&r.cpus));
    let name = machine.system.clone().unwrap_or_else(|| machine.host.clone());
    let layout = Layout { machine: name, ranks: placed, reserved, idle: every.difference(&used) };
    let warnings = warnings(machine, &layout, &wishes, job);
    Ok((layout, warnings))
}

fn no_cores(machine: &Machine, reserved: &CpuSet) -> PlaceError {
    let usable = machine.usable.by_process();
    let host = machine.host.clone();
    let (why, hint) = match (machine.cores.is_empty(), usable.is_empty()) {
        (true, _) => ("the description lists none".to_owned(), "describe its cores"),
        (_, true) => ("the cpuset or affinity leaves none".to_owned(), "widen the binding"),
        _ => (format!("reserved: {reserved}, usable: {usable}"), "reserve fewer cores"),
    };
    PlaceError::NoCores { host, why, hint: hint.to_owned() }
}

/// The NUMA nodes with cores that a rank's GPUs hang on. On a machine with one such node every
/// device is on it, whatever the firmware says.
fn gpu_numa(machine: &Machine, devices: &Devices) -> Option<Vec<u32>> {
    let with_cores: Vec<u32> =
        machine.numa.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.id).collect();
    if devices.gpus.is_empty() {
        return None;
    }
    if let [only] = with_cores[..] {
        return Some(vec![only]);
    }
    let numa = |g: &u32| machine.gpus.get(*g as usize)?.numa;
    let mut nodes: Vec<u32> = devices.gpus.iter().filter_map(numa).collect();
    nodes.retain(|n| with_cores.contains(n));
    nodes.sort_unstable();
    nodes.dedup();
    (!nodes.is_empty()).then_some(nodes)
}

fn placed_rank(
    machine: &Machine,
    local_rank: u32,
    devices: Devices,
    share: Share,
    job: &Job,
) -> PlacedRank {
    let cpus = share.cores.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus));
    let mut numa: Vec<u32> = share.cores.iter().filter_map(|c| c.numa).collect();
    numa.sort_unstable();
    numa.dedup();
    let (memory, memory_reason) = memory(machine, &numa, job);
    let threads = share.cores.len() as u32;
    PlacedRank {
        local_rank,
        gpus: devices.gpus,
        mask: cpus.to_mask(),
        cpus,
        numa,
        memory,
        nic: None,
        omp_num_threads: threads,
        visibility: job.visibility,
        reasons: Reasons {
            gpu: devices.reason,
            cpus: share.reason,
            memory: memory_reason,
            nic: String::new(),
            threads: "one thread a physical core of the rank".to_owned(),
        },
    }
}

/// Memory from the nodes of the rank's cores, as far as the cgroup allows and they have any. A
/// GPU's own memory node (GH200) is never among them: it has no cores.
fn memory(machine: &Machine, numa: &[u32], job: &Job) -> (MemoryPolicy, String) {
    let allowed = |n: &u32| {
        machine.usable.memory_nodes.as_ref().is_none_or(|m| m.contains(*n as usize))
            && machine.numa_node(*n).is_some_and(|node| node.memory_bytes > 0)
    };
    let nodes: Vec<u32> = numa.iter().copied().filter(allowed).collect();
    if nodes.is_empty() {
        return (
            MemoryPolicy::System,
            "no memory node of its cores is known or allowed".to_owned(),
        );
    }
    match job.memory {
        MemoryChoice::Prefer => (
            MemoryPolicy::Prefer(nodes),
            "its cores' memory first, other memory when full".to_owned(),
        ),
        MemoryChoice::Bind => {
            (MemoryPolicy::Bind(nodes), "its cores' memory only, as asked for".to_owned())
        }
        MemoryChoice::System => {
            (MemoryPolicy::System, "the kernel's default, as asked for".to_owned())
        }
    }
}

fn warnings(
    machine: &Machine,
    layout: &Layout,
    wishes: &[Option<Vec<u32>>],
    job: &Job,
) -> Vec<Warning> {
    let ranks = layout.ranks.len();
    let mut warnings = Vec::new();
    warnings.extend(devices::sharing_warning(machine, ranks as u32, job));
    let idle_cores = machine.cores.iter().filter(|c| c.cpus.intersects(&layout.idle)).count();
    if idle_cores >= ranks {
        warnings.push(Warning {
            code: "idle-cores".to_owned(),
            what: format!("{}: {idle_cores} cores serve no rank: {}", machine.host, layout.idle),
            hint: "more ranks on the node, or --cores-per-rank, would use them; \
                   cores far from a rank's GPU are left out unless asked for"
                .to_owned(),
        });
    }
    warnings.extend(far_warning(machine, layout, wishes));
    warnings.extend(guess_warning(machine, layout, wishes));
    if let Reserve::Cpus(cpus) = &job.reserve
        && !cpus.is_subset(&layout.reserved)
    {
        let missing = cpus.difference(&layout.reserved);
        warnings.push(Warning {
            code: "no-such-cpu".to_owned(),
            what: format!("{}: CPU {missing} is to be reserved, but there is none", machine.host),
            hint: "check --reserve against the map".to_owned(),
        });
    }
    if job.reserve == Reserve::FirstOfL3 && machine.l3.is_empty() {
        warnings.push(Warning {
            code: "no-l3".to_owned(),
            what: format!("{}: no L3 group is known, so no core is reserved", machine.host),
            hint: "name the cores: --reserve 0,8".to_owned(),
        });
    }
    warnings
}

fn far_warning(machine: &Machine, layout: &Layout, wishes: &[Option<Vec<u32>>]) -> Option<Warning> {
    let far = ranks_where(layout, wishes, |rank, wish| {
        wish.is_some_and(|w| !rank.numa.iter().all(|n| w.contains(n)))
    })?;
    Some(Warning {
        code: "far-cores".to_owned(),
        what: format!(
            "{}: cores of local ranks {far} are not on their GPU's NUMA node",
            machine.host
        ),
        hint: "that NUMA node has too few free cores: widen the cpuset, reserve fewer cores, or \
               lower --cores-per-rank"
            .to_owned(),
    })
}

/// A virtual machine may keep to itself where its GPUs hang.
fn guess_warning(
    machine: &Machine,
    layout: &Layout,
    wishes: &[Option<Vec<u32>>],
) -> Option<Warning> {
    let guessed =
        ranks_where(layout, wishes, |rank, wish| !rank.gpus.is_empty() && wish.is_none())?;
    Some(Warning {
        code: "unknown-numa".to_owned(),
        what: format!(
            "{}: nothing tells the NUMA node of the GPUs of local ranks {guessed}: their cores are \
             a guess, in the order of the nodes",
            machine.host
        ),
        hint: "measure it, or describe the machine by --machine with the right nodes".to_owned(),
    })
}

/// The local ranks for which it holds, as a list; `None` if for none.
fn ranks_where(
    layout: &Layout,
    wishes: &[Option<Vec<u32>>],
    holds: impl Fn(&PlacedRank, Option<&Vec<u32>>) -> bool,
) -> Option<String> {
    let ranks = layout.ranks.iter().zip(wishes).filter(|(rank, wish)| holds(rank, wish.as_ref()));
    let found: Vec<String> = ranks.map(|(rank, _)| rank.local_rank.to_string()).collect();
    (!found.is_empty()).then(|| found.join(","))
}
