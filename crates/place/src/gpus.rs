//! GPU assignment.

use regatta_model::units::pluralize;
use regatta_model::{CpuSet, GpuVisibility, JobSpec, Machine, NodeLayout, Warning};

use crate::{PlaceError, Result};

/// The GPUs of a rank, with the reason.
#[derive(Clone)]
pub(crate) struct GpuAssignment {
    pub gpus: Vec<u32>,
    /// Processes that the rank starts, which share its cores.
    pub workers: u32,
    pub reason: String,
}

/// Local rank *i* gets device *i*, as programs assume. More ranks than GPUs share them round robin,
/// which matches `LOCAL_RANK % device_count` in programs.
pub(crate) fn assign(machine: &Machine, ranks: u32, job: &JobSpec) -> Result<Vec<GpuAssignment>> {
    let visible = machine.visible_gpus();
    let gpus = visible.len() as u32;
    let per_rank = job.gpus_per_rank.unwrap_or(1).max(1);
    let none = |reason: &str| {
        let reason = reason.to_owned();
        vec![GpuAssignment { gpus: Vec::new(), workers: 1, reason }; ranks as usize]
    };
    if !job.use_gpus {
        return Ok(none("no GPU requested"));
    }
    if gpus == 0 && per_rank == 1 {
        return Ok(none("the node has no GPU"));
    }
    if ranks.saturating_mul(per_rank) <= gpus {
        return Ok((0..ranks).map(|i| exclusive(&visible, i, per_rank)).collect());
    }
    if per_rank > 1 {
        let host = machine.host.clone();
        return Err(PlaceError::TooFewGpus { host, ranks, per_rank, gpus });
    }
    let shared = |i: u32| GpuAssignment {
        gpus: vec![visible[(i % gpus) as usize]],
        workers: 1,
        reason: format!(
            "{ranks} ranks share {} round robin: local rank {i} uses device {i} mod {gpus} = {}",
            pluralize(gpus as usize, "GPU"),
            i % gpus
        ),
    };
    Ok((0..ranks).map(shared).collect())
}

fn exclusive(visible: &[u32], i: u32, per_rank: u32) -> GpuAssignment {
    let gpus = visible[(i * per_rank) as usize..((i + 1) * per_rank) as usize].to_vec();
    let reason = match per_rank {
        1 => format!("local rank {i} uses device {i}, because programs select cuda:LOCAL_RANK"),
        _ => format!("{per_rank} devices per rank, in runtime order"),
    };
    GpuAssignment { gpus, workers: 1, reason }
}

/// All GPUs of the node, for its only rank.
pub(crate) fn assign_all(machine: &Machine) -> GpuAssignment {
    let gpus = machine.visible_gpus();
    let workers = gpus.len().max(1) as u32;
    let reason = format!("the only rank of the node has its {workers} GPUs, for a worker each");
    GpuAssignment { gpus, workers, reason }
}

/// GPUs without a rank: usually a wrong number of ranks.
pub(crate) fn idle_warning(
    machine: &Machine,
    layout: &NodeLayout,
    job: &JobSpec,
) -> Option<Warning> {
    let is_used = |gpu: &u32| layout.ranks.iter().any(|rank| rank.gpus.contains(gpu));
    let visible = machine.visible_gpus();
    let idle: CpuSet =
        visible.iter().filter(|gpu| !is_used(gpu)).map(|gpu| *gpu as usize).collect();
    (job.use_gpus && !idle.is_empty()).then(|| {
        Warning::new(
            "idle-gpus",
            format!(
                "{}: {} of {} GPUs are unused: {idle}",
                machine.host,
                idle.len(),
                visible.len()
            ),
            "use one rank per GPU, or several GPUs per rank with --gpus-per-rank",
        )
    })
}

/// Several ranks per GPU work, but not well without further setup.
pub(crate) fn sharing_warning(machine: &Machine, ranks: u32, job: &JobSpec) -> Option<Warning> {
    let gpus = machine.visible_gpus().len() as u32;
    let shared = job.use_gpus && gpus > 0 && ranks > gpus;
    shared.then(|| {
        Warning::new(
            "shared-gpus",
            format!("{ranks} ranks share {} on {}", pluralize(gpus as usize, "GPU"), machine.host),
            "NCCL rejects two ranks on one GPU, and without MPS they are time-sliced; use at most \
             one rank per GPU for training",
        )
    })
}

/// The drawback of the selected GPU visibility.
pub(crate) fn visibility_warning(machine: &Machine, job: &JobSpec) -> Option<Warning> {
    if !job.use_gpus || machine.visible_gpus().len() < 2 {
        return None;
    }
    let (message, hint) = match job.visibility {
        GpuVisibility::All => (
            "every rank sees all GPUs of its node, which preserves peer-to-peer copies",
            "a program that does not select device LOCAL_RANK runs all its ranks on GPU 0; \
             --visibility own shows such a program one GPU per rank",
        ),
        GpuVisibility::Own => (
            "every rank sees only its own GPU, as device 0",
            "a program that selects device LOCAL_RANK fails on all local ranks but 0, and some \
             libraries lose peer-to-peer copies; --visibility all shows all GPUs to every rank",
        ),
    };
    Some(Warning::new("visibility", message, hint))
}
