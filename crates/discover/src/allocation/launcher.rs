//! Which rank this process is, by whoever started it.

use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist::short;
use regatta_model::{AllocatedNode, Allocation, Distribution, Launcher, RankId, Scheduler};

use super::AllocationError;
use super::read::Reader;

/// What a launcher tells of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Started {
    pub launcher: Launcher,
    rank: u32,
    size: u32,
    local_rank: u32,
    /// Not every launcher tells.
    local_size: Option<u32>,
    node: Option<u32>,
    /// The variables of rank and size, for messages.
    names: String,
}

/// Where one launcher writes what.
struct Variables {
    launcher: Launcher,
    /// Set by nobody else.
    mark: &'static str,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    node: &'static [&'static str],
}

/// Innermost first: `mpirun` inside a Slurm job starts its helpers by `srun`, so a rank of it has
/// Slurm's variables too, but they describe the helper.
const LAUNCHERS: [Variables; 6] = [
    Variables {
        launcher: Launcher::Torch,
        mark: "TORCHELASTIC_RUN_ID",
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        node: &["GROUP_RANK"],
    },
    Variables {
        launcher: Launcher::OpenMpi,
        mark: "OMPI_COMM_WORLD_RANK",
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        // OMPI_COMM_WORLD_NODE_RANK is not a node's index.
        node: &[],
    },
    Variables {
        launcher: Launcher::Pals,
        mark: "PALS_RANKID",
        rank: &["PALS_RANKID"],
        size: &["PMI_SIZE"],
        local_rank: &["PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"],
        local_size: &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"],
        node: &["PALS_NODEID"],
    },
    Variables {
        launcher: Launcher::Flux,
        mark: "FLUX_TASK_RANK",
        rank: &["FLUX_TASK_RANK"],
        size: &["FLUX_JOB_SIZE"],
        local_rank: &["FLUX_TASK_LOCAL_ID"],
        local_size: &[],
        node: &[],
    },
    Variables {
        launcher: Launcher::Hydra,
        mark: "MPI_LOCALRANKID",
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
        node: &[],
    },
    Variables {
        launcher: Launcher::Srun,
        mark: "SLURM_STEP_ID",
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        node: &["SLURM_NODEID"],
    },
];

/// Launchers that tell too little to be recognised by a mark of their own.
const PLAIN: [Variables; 3] = [
    Variables {
        launcher: Launcher::Hydra,
        mark: "PMI_RANK",
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        local_size: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        node: &[],
    },
    Variables {
        launcher: Launcher::Pmix,
        mark: "PMIX_RANK",
        rank: &["PMIX_RANK"],
        size: &["PMIX_SIZE"],
        local_rank: &["PMIX_LOCAL_RANK"],
        local_size: &["PMIX_LOCAL_SIZE"],
        node: &[],
    },
    // DeepSpeed's launcher. Last, because `eval "$(regatta env --framework deepspeed)"` leaves the
    // same in a shell that starts other launchers.
    Variables {
        launcher: Launcher::Torch,
        mark: "CROSS_RANK",
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_SIZE"],
        node: &["CROSS_RANK"],
    },
];

/// Slurm gives numbers from here on to steps that hold no ranks, but a job's script or the shell
/// that `salloc` opens on the first node.
const FIRST_STEP_WITHOUT_RANKS: u32 = 0xffff_fff0;

/// Which rank this process was started as, if it was.
pub(crate) fn started(reader: &Reader<'_>) -> Result<Option<Started>, AllocationError> {
    let step = reader.get("SLURM_STEP_ID");
    let shell =
        step.and_then(|s| s.parse().ok()).is_some_and(|s: u32| s >= FIRST_STEP_WITHOUT_RANKS);
    // On HPE machines Slurm speaks to its tasks as PALS would, in some versions in part only.
    let slurm_as_pals = step.is_some_and(|step| {
        let job = reader.first(&["SLURM_JOB_ID", "SLURM_JOBID"]);
        job.is_some_and(|(_, job)| reader.get("PALS_APID") == Some(&format!("{job}.{step}")))
    });
    let counts = |v: &&Variables| match v.launcher {
        Launcher::Pals => !slurm_as_pals,
        Launcher::Srun => !shell,
        _ => true,
    };
    // What is left of such a shell are variables for the one task that it is to Slurm.
    let plain = if shell { &[] } else { PLAIN.as_slice() };
    let known = LAUNCHERS.iter().filter(counts).chain(plain);
    let known = known.into_iter().find(|v| reader.get(v.mark).is_some());
    known.map(|variables| read(reader, variables)).transpose()
}

fn read(reader: &Reader<'_>, v: &Variables) -> Result<Started, AllocationError> {
    let need = |names: &'static [&'static str]| {
        reader.first_number(names)?.ok_or_else(|| AllocationError::Missing {
            present: v.mark.to_owned(),
            missing: names.join(" or "),
            hint: "start the ranks with srun, mpiexec or flux run, and pass their \
                   variables on into the container"
                .to_owned(),
        })
    };
    let (rank_name, rank) = need(v.rank)?;
    let (size_name, size) = need(v.size)?;
    let (local_name, local_rank) = need(v.local_rank)?;
    let local_size = reader.first_number(v.local_size)?;
    let started = Started {
        launcher: v.launcher,
        rank,
        size,
        local_rank,
        local_size: local_size.map(|(_, n)| n),
        node: reader.first_number(v.node)?.map(|(_, n)| n),
        names: format!("{rank_name}={rank} and {size_name}={size}"),
    };
    if rank >= size {
        return Err(contradiction(&started.names, "the rank is not below the size"));
    }
    if let Some((name, n)) = local_size
        && (local_rank >= n || n > size)
    {
        let names = format!("{local_name}={local_rank}, {name}={n} and {size_name}={size}");
        return Err(contradiction(&names, "the local rank and size do not fit"));
    }
    Ok(started)
}

fn contradiction(names: &str, what: &str) -> AllocationError {
    AllocationError::Contradiction {
        names: names.to_owned(),
        what: what.to_owned(),
        hint: "unset what is left over from another launcher".to_owned(),
    }
}

/// The nodes of a job whose launcher names none: this host and, if there must be others, nodes of
/// unknown name.
pub(crate) fn without_nodes(started: &Started, host: &str) -> Result<Allocation, AllocationError> {
    let local_size = started.local_size.unwrap_or(started.size).max(1);
    if !started.size.is_multiple_of(local_size) {
        return Err(AllocationError::Missing {
            present: format!("{} with {local_size} ranks on this node", started.names),
            missing: "a list of nodes".to_owned(),
            hint: "the launcher does not tell the other nodes and their ranks: pass --hostfile"
                .to_owned(),
        });
    }
    let count = started.size / local_size;
    // A rank that both orders could give has the same local rank in both, and node 0 in both or in
    // neither: it cannot take itself for a neighbour of rank 0.
    let (rank, local_rank) = (started.rank, started.local_rank);
    let (distribution, mine) = if rank % local_size == local_rank {
        (Distribution::Block, rank / local_size)
    } else {
        (Distribution::Cyclic, rank % count)
    };
    let mine = started.node.unwrap_or(mine);
    let node = |i| AllocatedNode {
        host: if i == mine { host.to_owned() } else { UNKNOWN_HOST.to_owned() },
        ranks: Some(local_size),
    };
    Ok(Allocation {
        scheduler: Scheduler::None,
        launcher: None,
        job_id: None,
        cluster: None,
        nodes: (0..count).map(node).collect(),
        distribution,
        me: None,
        evidence: Vec::new(),
    })
}

/// Enters a rank into its allocation, and the launcher's counts where the scheduler had none.
pub(crate) fn join(
    allocation: &mut Allocation,
    started: Started,
    host: &str,
) -> Result<(), AllocationError> {
    let by_name = allocation.nodes.iter().position(|n| short(&n.host) == short(host));
    let node = started.node.or(by_name.map(|i| i as u32));
    let nodes = allocation.nodes.len() as u32;
    if let Some(node) = node.filter(|&n| n >= nodes) {
        let names = format!("{} on node {node}", started.names);
        return Err(contradiction(&names, &format!("the allocation has {nodes} nodes")));
    }
    if started.launcher != Launcher::Srun {
        recount(allocation, &started, node)?;
    }
    let told = node.and_then(|n| allocation.nodes.get(n as usize)?.ranks);
    let local_size =
        started.local_size.or(told).unwrap_or_else(|| started.size.div_ceil(nodes.max(1)));
    if started.local_rank >= local_size {
        let what = format!("local rank {} with {local_size} ranks on the node", started.local_rank);
        return Err(contradiction(&started.names, &what));
    }
    allocation.distribution = dealt(allocation, &started, node)?;
    allocation.launcher = Some(started.launcher);
    allocation.me = Some(RankId {
        rank: started.rank,
        size: started.size,
        local_rank: started.local_rank,
        local_size,
        node,
    });
    Ok(())
}

/// In which order the launcher dealt the ranks to the nodes, as this one's place tells: most do not
/// say.
fn dealt(
    allocation: &Allocation,
    started: &Started,
    node: Option<u32>,
) -> Result<Distribution, AllocationError> {
    let counts: Option<Vec<u32>> = allocation.nodes.iter().map(|n| n.ranks).collect();
    let (Some(counts), Some(node)) = (counts, node) else { return Ok(allocation.distribution) };
    let (before, local) = (&counts[..node as usize], started.local_rank);
    let sum = |numbers: &mut dyn Iterator<Item = u32>| numbers.map(u64::from).sum::<u64>();
    let fits = |distribution: &Distribution| {
        let number = match distribution {
            Distribution::Block => sum(&mut before.iter().copied()) + u64::from(local),
            Distribution::Cyclic => {
                let rounds = sum(&mut counts.iter().map(|&c| c.min(local)));
                rounds + before.iter().filter(|&&c| c > local).count() as u64
            }
        };
        number == u64::from(started.rank)
    };
    let orders = [allocation.distribution, Distribution::Block, Distribution::Cyclic];
    orders.into_iter().find(fits).ok_or_else(|| AllocationError::Contradiction {
        names: started.names.clone(),
        what: format!(
            "as local rank {local} on node {node} of {}, this is neither the order of filling one \
             node after the other nor that of going round the nodes",
            counts.len()
        ),
        hint: "start with srun --distribution=block, mpiexec -ppn or mpirun --map-by slot, and \
               with the nodes in the order of --hostfile, if that is given"
            .to_owned(),
    })
}

/// A launcher inside an allocation has its own counts; the scheduler's only say how many ranks it
/// could have started. Equal nodes are assumed where this node's count allows it, the rest is
/// spread.
fn recount(
    allocation: &mut Allocation,
    started: &Started,
    node: Option<u32>,
) -> Result<(), AllocationError> {
    let Some(local_size) = started.local_size else { return Ok(()) };
    let nodes = allocation.nodes.len() as u32;
    if nodes == 1 && local_size < started.size {
        let what =
            format!("only {local_size} ranks are on this node, and the allocation has one node");
        return Err(contradiction(&started.names, &what));
    }
    let told: Option<u32> = allocation.nodes.iter().map(|n| n.ranks).sum();
    let mine = node.and_then(|n| allocation.nodes[n as usize].ranks);
    if told == Some(started.size) && mine == Some(local_size) {
        return Ok(());
    }
    let used = started.size / local_size;
    if started.size.is_multiple_of(local_size) && used <= nodes && node.is_none_or(|n| n < used) {
        allocation.nodes.truncate(used as usize);
        allocation.nodes.iter_mut().for_each(|n| n.ranks = Some(local_size));
    } else if let Some(mine) = node {
        let others = started.size - local_size;
        let share = |i: u32| others / (nodes - 1) + u32::from(i < others % (nodes - 1));
        let rest = (0..nodes).filter(|&n| n != mine);
        rest.zip(0..).for_each(|(n, i)| allocation.nodes[n as usize].ranks = Some(share(i)));
        allocation.nodes[mine as usize].ranks = Some(local_size);
    }
    Ok(())
}
