//! Flux: counts from the environment, host names from `flux hostlist local`.

use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist;
use regatta_model::{AllocatedNode, Allocation, Scheduler};

use super::env_reader::EnvReader;
use super::{AllocationError, Result};

pub(crate) fn allocation(
    env: &EnvReader<'_>,
    hostlist: &dyn Fn() -> Option<String>,
) -> Result<Option<Allocation>> {
    // Flux sets only the second one in batch scripts and interactive allocations.
    let job_id = env.get("FLUX_JOB_ID").or_else(|| env.get("FLUX_ENCLOSING_ID"));
    let Some(job_id) = job_id else { return Ok(None) };
    let count = env.u32("FLUX_JOB_NNODES")?;
    let hosts = match hostlist() {
        Some(text) => hostlist::expand(text.trim()).map_err(|source| {
            AllocationError::Hostlist { name: "flux hostlist local".to_owned(), source }
        })?,
        None => vec![UNKNOWN_HOST.to_owned(); count.unwrap_or(1) as usize],
    };
    if let Some(count) = count.filter(|&n| n as usize != hosts.len()) {
        return Err(AllocationError::Contradiction {
            names: format!("FLUX_JOB_NNODES={count} and the output of `flux hostlist local`"),
            detail: format!("the output has {} hosts", hosts.len()),
            hint: "pass --hostfile",
        });
    }
    let size = env.u32("FLUX_JOB_SIZE")?;
    // Flux distributes ranks evenly; the first nodes take the remainder.
    let nodes = hosts.len() as u32;
    let ranks = |i: u32| size.map(|s| s / nodes + u32::from(i < s % nodes));
    let node = |(host, i)| AllocatedNode { host, ranks: ranks(i) };
    let nodes = hosts.into_iter().zip(0..).map(node).collect();
    let job_id = Some(job_id.to_owned());
    Ok(Some(Allocation { job_id, ..Allocation::new(Scheduler::Flux, nodes) }))
}
