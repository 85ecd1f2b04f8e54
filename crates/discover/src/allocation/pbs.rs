//! PBS: the node file.

use regatta_model::{Distribution, Scheduler};

use super::read::Reader;
use super::{AllocationError, Given, read_nodefile};
use crate::root::Root;

pub(crate) fn given(reader: &Reader<'_>, root: &Root) -> Result<Option<Given>, AllocationError> {
    let job_id = reader.get("PBS_JOBID");
    let Some(path) = reader.get("PBS_NODEFILE") else {
        let Some(job_id) = job_id else { return Ok(None) };
        return Err(AllocationError::Missing {
            present: format!("PBS_JOBID={job_id}"),
            missing: "PBS_NODEFILE".to_owned(),
            hint: "only the job's first node has it: export it to the others with the node file, \
                   or pass --hostfile"
                .to_owned(),
        });
    };
    Ok(Some(Given {
        scheduler: Scheduler::Pbs,
        job_id: job_id.map(str::to_owned),
        cluster: reader.get("PBS_SERVER").map(str::to_owned),
        nodes: read_nodefile("PBS_NODEFILE", path, &root.path(path))?,
        distribution: Distribution::Block,
    }))
}
