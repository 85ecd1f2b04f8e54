//! The identity of this process as a rank, from the launcher's environment variables.

use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::short_hostname;
use regatta_model::units::pluralize;
use regatta_model::{AllocatedNode, Allocation, Distribution, Launcher, RankId, Scheduler};

use super::env_reader::EnvReader;
use super::{AllocationError, Result};

/// A rank as described by its launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaunchedRank {
    pub launcher: Launcher,
    rank: u32,
    size: u32,
    local_rank: u32,
    /// Not set by every launcher.
    local_size: Option<u32>,
    node: Option<u32>,
    /// The variables of rank and size, for error messages.
    names: String,
}

/// The environment variables of a launcher.
struct LauncherVariables {
    launcher: Launcher,
    /// Set only by this launcher.
    marker: &'static str,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    node: &'static [&'static str],
}

/// Innermost first: `mpirun` inside a Slurm job starts its daemons by `srun`, so its ranks also have
/// Slurm's variables, which describe the daemon.
const LAUNCHERS: [LauncherVariables; 6] = [
    LauncherVariables {
        launcher: Launcher::Torch,
        marker: "TORCHELASTIC_RUN_ID",
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        node: &["GROUP_RANK"],
    },
    LauncherVariables {
        launcher: Launcher::OpenMpi,
        marker: "OMPI_COMM_WORLD_RANK",
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        // OMPI_COMM_WORLD_NODE_RANK is not a node index.
        node: &[],
    },
    LauncherVariables {
        launcher: Launcher::Pals,
        marker: "PALS_RANKID",
        rank: &["PALS_RANKID"],
        size: &["PMI_SIZE"],
        local_rank: &["PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"],
        local_size: &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"],
        node: &["PALS_NODEID"],
    },
    LauncherVariables {
        launcher: Launcher::Flux,
        marker: "FLUX_TASK_RANK",
        rank: &["FLUX_TASK_RANK"],
        size: &["FLUX_JOB_SIZE"],
        local_rank: &["FLUX_TASK_LOCAL_ID"],
        local_size: &[],
        node: &[],
    },
    LauncherVariables {
        launcher: Launcher::Hydra,
        marker: "MPI_LOCALRANKID",
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
        node: &[],
    },
    LauncherVariables {
        launcher: Launcher::Srun,
        marker: "SLURM_STEP_ID",
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        node: &["SLURM_NODEID"],
    },
];

/// Launchers without a variable of their own: plain PMI and PMIx, and DeepSpeed.
const GENERIC_LAUNCHERS: [LauncherVariables; 3] = [
    LauncherVariables {
        launcher: Launcher::Hydra,
        marker: "PMI_RANK",
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        node: &[],
    },
    LauncherVariables {
        launcher: Launcher::Pmix,
        marker: "PMIX_RANK",
        rank: &["PMIX_RANK"],
        size: &["PMIX_SIZE"],
        local_rank: &["PMIX_LOCAL_RANK"],
        local_size: &["PMIX_LOCAL_SIZE"],
        node: &[],
    },
    // DeepSpeed's launcher. Last, because `eval "$(regatta env --framework deepspeed)"` sets the
    // same variables in a shell that may start other launchers.
    LauncherVariables {
        launcher: Launcher::Torch,
        marker: "CROSS_RANK",
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_SIZE"],
        node: &["CROSS_RANK"],
    },
];

/// Slurm uses step IDs from here on for steps without ranks, such as the batch script and the shell
/// that `salloc` opens on the first node.
const FIRST_SPECIAL_STEP: u32 = 0xffff_fff0;

/// The rank that this process was launched as, if any.
pub(crate) fn detect_rank(env: &EnvReader<'_>) -> Result<Option<LaunchedRank>> {
    let step = env.get("SLURM_STEP_ID");
    let step_id = step.and_then(|step| step.parse::<u32>().ok());
    let special_step = step_id.is_some_and(|id| id >= FIRST_SPECIAL_STEP);
    // On HPE machines Slurm sets PALS variables for its tasks, some versions only a part of them.
    let slurm_as_pals = step.is_some_and(|step| {
        let job = env.first(&["SLURM_JOB_ID", "SLURM_JOBID"]);
        job.is_some_and(|(_, job)| env.get("PALS_APID") == Some(&format!("{job}.{step}")))
    });
    let applies = |v: &&LauncherVariables| match v.launcher {
        Launcher::Pals => !slurm_as_pals,
        Launcher::Srun => !special_step,
        _ => true,
    };
    // PMI variables in a special step describe its single task.
    let generic = if special_step { &[] } else { GENERIC_LAUNCHERS.as_slice() };
    let mut candidates = LAUNCHERS.iter().filter(applies).chain(generic);
    let launcher = candidates.find(|v| env.get(v.marker).is_some());
    launcher.map(|variables| read(env, variables)).transpose()
}

fn read(env: &EnvReader<'_>, v: &LauncherVariables) -> Result<LaunchedRank> {
    let required = |names: &'static [&'static str]| {
        env.first_u32(names)?.ok_or_else(|| AllocationError::Missing {
            present: v.marker.to_owned(),
            missing: names.join(" or "),
            hint: "start the ranks with srun, mpiexec or flux run, and pass their variables \
                   into the container",
        })
    };
    let (rank_name, rank) = required(v.rank)?;
    let (size_name, size) = required(v.size)?;
    let (local_name, local_rank) = required(v.local_rank)?;
    let local_size = env.first_u32(v.local_size)?;
    let launched = LaunchedRank {
        launcher: v.launcher,
        rank,
        size,
        local_rank,
        local_size: local_size.map(|(_, n)| n),
        node: env.first_u32(v.node)?.map(|(_, n)| n),
        names: format!("{rank_name}={rank} and {size_name}={size}"),
    };
    if rank >= size {
        return Err(contradiction(&launched.names, "the rank must be less than the world size"));
    }
    if let Some((name, n)) = local_size
        && (local_rank >= n || n > size)
    {
        let names = format!("{local_name}={local_rank}, {name}={n} and {size_name}={size}");
        let detail =
            "the local rank must be less than the local size, which must not exceed the world size";
        return Err(contradiction(&names, detail));
    }
    Ok(launched)
}

fn contradiction(names: &str, detail: &str) -> AllocationError {
    let (names, detail) = (names.to_owned(), detail.to_owned());
    let hint = "unset variables left over from another launcher";
    AllocationError::Contradiction { names, detail, hint }
}

/// The nodes of a job whose launcher names none: this host, and unnamed nodes for the other ranks.
pub(crate) fn infer_nodes(rank: &LaunchedRank, host: &str) -> Result<Allocation> {
    let local_size = rank.local_size.unwrap_or(rank.size).max(1);
    if let Some(nodes) = infer_uneven_nodes(rank, host) {
        return Ok(Allocation::new(Scheduler::None, nodes));
    }
    if !rank.size.is_multiple_of(local_size) {
        return Err(AllocationError::Missing {
            present: format!("{} with {local_size} ranks on this node", rank.names),
            missing: "a node list".to_owned(),
            hint: "the launcher does not provide the other nodes and their ranks: pass --hostfile",
        });
    }
    let count = rank.size / local_size;
    // If both distributions fit, they agree on the local rank and on whether this is node 0, so the
    // rank never takes itself for one on rank 0's node.
    let (distribution, inferred) = if rank.rank % local_size == rank.local_rank {
        (Distribution::Block, rank.rank / local_size)
    } else {
        (Distribution::Cyclic, rank.rank % count)
    };
    let this_node = rank.node.unwrap_or(inferred);
    let node = |i| AllocatedNode {
        host: if i == this_node { host.to_owned() } else { UNKNOWN_HOST.to_owned() },
        ranks: Some(local_size),
    };
    let nodes = (0..count).map(node).collect();
    Ok(Allocation { distribution, ..Allocation::new(Scheduler::None, nodes) })
}

/// The nodes of a job with different numbers of ranks per node, in block distribution, whose launcher
/// reports the index of this node: ranks before it are on as many nodes, those after it on nodes
/// like this one. `None` for even numbers, and if the rank does not fit.
fn infer_uneven_nodes(rank: &LaunchedRank, host: &str) -> Option<Vec<AllocatedNode>> {
    let (local_size, this_node) = (rank.local_size.filter(|&n| n > 0)?, rank.node?);
    let before = rank.rank.checked_sub(rank.local_rank)?;
    let after = rank.size.checked_sub(before)?.checked_sub(local_size)?;
    let even =
        rank.size.is_multiple_of(local_size) && before == this_node.checked_mul(local_size)?;
    if even || before < this_node || (before > 0 && this_node == 0) {
        return None;
    }
    let unnamed = |ranks: u32, nodes: u32| {
        let share = move |i| ranks / nodes + u32::from(i < ranks % nodes);
        (0..nodes).map(move |i| AllocatedNode { host: UNKNOWN_HOST.into(), ranks: Some(share(i)) })
    };
    let this = AllocatedNode { host: host.to_owned(), ranks: Some(local_size) };
    let nodes_after = after.div_ceil(local_size);
    Some(unnamed(before, this_node).chain([this]).chain(unnamed(after, nodes_after)).collect())
}

/// Adds the rank to its allocation, and the launcher's counts if the scheduler has none.
pub(crate) fn attach(allocation: &mut Allocation, rank: LaunchedRank, host: &str) -> Result<()> {
    let is_this = |n: &AllocatedNode| short_hostname(&n.host) == short_hostname(host);
    let by_name = allocation.nodes.iter().position(is_this);
    let node = rank.node.or(by_name.map(|i| i as u32));
    let nodes = allocation.nodes.len() as u32;
    if let Some(node) = node.filter(|&n| n >= nodes) {
        let names = format!("{} on node {node}", rank.names);
        let has = pluralize(nodes as usize, "node");
        return Err(contradiction(&names, &format!("the allocation has {has}")));
    }
    if rank.launcher != Launcher::Srun {
        apply_counts(allocation, &rank, node)?;
    }
    let allocated = node.and_then(|n| allocation.nodes.get(n as usize)?.ranks);
    let local_size =
        rank.local_size.or(allocated).unwrap_or_else(|| rank.size.div_ceil(nodes.max(1)));
    if rank.local_rank >= local_size {
        let ranks = pluralize(local_size as usize, "rank");
        let detail = format!("local rank {} with {ranks} on the node", rank.local_rank);
        return Err(contradiction(&rank.names, &detail));
    }
    allocation.distribution = infer_distribution(allocation, &rank, node)?;
    allocation.launcher = Some(rank.launcher);
    let LaunchedRank { rank, size, local_rank, .. } = rank;
    allocation.this_rank = Some(RankId { rank, size, local_rank, local_size, node });
    Ok(())
}

/// The distribution that fits this rank. Most launchers do not report it.
fn infer_distribution(
    allocation: &Allocation,
    rank: &LaunchedRank,
    node: Option<u32>,
) -> Result<Distribution> {
    let counts: Option<Vec<u32>> = allocation.nodes.iter().map(|n| n.ranks).collect();
    let (Some(counts), Some(node)) = (counts, node) else { return Ok(allocation.distribution) };
    let (before, local_rank) = (&counts[..node as usize], rank.local_rank);
    let sum = |counts: &mut dyn Iterator<Item = u32>| counts.map(u64::from).sum::<u64>();
    let fits = |distribution: &Distribution| {
        let expected = match distribution {
            Distribution::Block => sum(&mut before.iter().copied()) + u64::from(local_rank),
            Distribution::Cyclic => {
                let full_rounds = sum(&mut counts.iter().map(|&c| c.min(local_rank)));
                full_rounds + before.iter().filter(|&&c| c > local_rank).count() as u64
            }
        };
        expected == u64::from(rank.rank)
    };
    let candidates = [allocation.distribution, Distribution::Block, Distribution::Cyclic];
    let nodes = counts.len();
    candidates.into_iter().find(fits).ok_or_else(|| AllocationError::Contradiction {
        names: rank.names.clone(),
        detail: format!(
            "local rank {local_rank} on node {node} of {nodes} fits neither block nor cyclic \
             distribution"
        ),
        hint: "start with srun --distribution=block, mpiexec -ppn or mpirun --map-by slot, and \
               list the nodes in --hostfile in the launcher's order",
    })
}

/// Replaces the scheduler's counts by those of a launcher inside the allocation: the scheduler's are
/// only the maximum the launcher could start. Assumes equal counts on all nodes if this node's count
/// allows it, else distributes the other ranks evenly.
fn apply_counts(allocation: &mut Allocation, rank: &LaunchedRank, node: Option<u32>) -> Result<()> {
    let Some(local_size) = rank.local_size else { return Ok(()) };
    let nodes = allocation.nodes.len() as u32;
    if nodes == 1 && local_size < rank.size {
        let ranks = pluralize(local_size as usize, "rank");
        let detail = format!("this node has only {ranks}, and the allocation has one node");
        return Err(contradiction(&rank.names, &detail));
    }
    let total: Option<u32> = allocation.nodes.iter().map(|n| n.ranks).sum();
    let on_this_node = node.and_then(|n| allocation.nodes[n as usize].ranks);
    if total == Some(rank.size) && on_this_node == Some(local_size) {
        return Ok(());
    }
    let used = rank.size / local_size;
    if rank.size.is_multiple_of(local_size) && used <= nodes && node.is_none_or(|n| n < used) {
        allocation.nodes.truncate(used as usize);
        allocation.nodes.iter_mut().for_each(|n| n.ranks = Some(local_size));
    } else if let Some(this_node) = node {
        let others = rank.size - local_size;
        let share = |i: u32| others / (nodes - 1) + u32::from(i < others % (nodes - 1));
        let rest = (0..nodes).filter(|&n| n != this_node);
        rest.zip(0..).for_each(|(n, i)| allocation.nodes[n as usize].ranks = Some(share(i)));
        allocation.nodes[this_node as usize].ranks = Some(local_size);
    }
    Ok(())
}
