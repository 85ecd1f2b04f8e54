//! PBS: the node file.

use regatta_model::{AllocatedNode, Allocation, Scheduler};

use super::env_reader::EnvReader;
use super::launcher::{self, LaunchedRank};
use super::{AllocationError, Result, read_hostfile};
use crate::sysroot::Sysroot;

/// The nodes of the job. On other nodes than the first there may be no node file: a rank there knows
/// itself from its launcher's variables, and the other nodes have no name.
pub(crate) fn allocation(
    env: &EnvReader<'_>,
    root: &Sysroot,
    rank: Option<&LaunchedRank>,
    host: &str,
) -> Result<Option<Allocation>> {
    let job_id = env.get("PBS_JOBID");
    let allocation = match (nodes(env, root), rank) {
        (Ok(Some(nodes)), _) => Allocation::new(Scheduler::Pbs, nodes),
        (Ok(None), _) => return Ok(None),
        (Err(error), Some(rank)) if is_absent(&error) => {
            let inferred = launcher::infer_nodes(rank, host)?;
            Allocation { scheduler: Scheduler::Pbs, ..inferred }
        }
        (Err(error), _) => return Err(error),
    };
    Ok(Some(Allocation {
        job_id: job_id.map(str::to_owned),
        cluster: env.get("PBS_SERVER").map(str::to_owned),
        ..allocation
    }))
}

/// Whether the node file is missing, as opposed to malformed or empty.
fn is_absent(error: &AllocationError) -> bool {
    matches!(error, AllocationError::Missing { .. } | AllocationError::Hostfile { .. })
}

fn nodes(env: &EnvReader<'_>, root: &Sysroot) -> Result<Option<Vec<AllocatedNode>>> {
    let Some(path) = env.get("PBS_NODEFILE") else {
        let Some(job_id) = env.get("PBS_JOBID") else { return Ok(None) };
        return Err(AllocationError::Missing {
            present: format!("PBS_JOBID={job_id}"),
            missing: "PBS_NODEFILE".to_owned(),
            hint: "PBS sets PBS_NODEFILE only on the first node of the job; run there, or copy the \
                   file to this node and export PBS_NODEFILE, or pass --hostfile",
        });
    };
    read_hostfile("PBS_NODEFILE", path, &root.path(path)).map(Some)
}
