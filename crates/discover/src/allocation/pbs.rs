//! PBS: the node file.

use regatta_model::{Allocation, Scheduler};

use super::env_reader::EnvReader;
use super::{AllocationError, Result, read_hostfile};
use crate::sysroot::Sysroot;

pub(crate) fn allocation(env: &EnvReader<'_>, root: &Sysroot) -> Result<Option<Allocation>> {
    let job_id = env.get("PBS_JOBID");
    let Some(path) = env.get("PBS_NODEFILE") else {
        let Some(job_id) = job_id else { return Ok(None) };
        return Err(AllocationError::Missing {
            present: format!("PBS_JOBID={job_id}"),
            missing: "PBS_NODEFILE".to_owned(),
            hint: "PBS sets PBS_NODEFILE only on the first node of the job; run there, or copy the \
                   file to this node and export PBS_NODEFILE, or pass --hostfile",
        });
    };
    let nodes = read_hostfile("PBS_NODEFILE", path, &root.path(path))?;
    Ok(Some(Allocation {
        job_id: job_id.map(str::to_owned),
        cluster: env.get("PBS_SERVER").map(str::to_owned),
        ..Allocation::new(Scheduler::Pbs, nodes)
    }))
}
