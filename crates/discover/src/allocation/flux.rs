//! Flux: counts from the environment, names from `flux hostlist local`.

use regatta_model::allocation::UNKNOWN_HOST;
use regatta_model::hostlist;
use regatta_model::{AllocatedNode, Distribution, Scheduler};

use super::read::Reader;
use super::{AllocationError, Given};

pub(crate) fn given(
    reader: &Reader<'_>,
    ask: &dyn Fn() -> Option<String>,
) -> Result<Option<Given>, AllocationError> {
    let Some(job_id) = reader.get("FLUX_JOB_ID") else { return Ok(None) };
    let count = reader.number("FLUX_JOB_NNODES")?;
    let hosts = match ask() {
        Some(text) => hostlist::expand(text.trim()).map_err(|source| {
            AllocationError::Hostlist { name: "flux hostlist local".to_owned(), source }
        })?,
        None => vec![UNKNOWN_HOST.to_owned(); count.unwrap_or(1) as usize],
    };
    if let Some(count) = count.filter(|&n| n as usize != hosts.len()) {
        return Err(AllocationError::Contradiction {
            names: format!("FLUX_JOB_NNODES={count} and the output of `flux hostlist local`"),
            what: format!("it names {} hosts", hosts.len()),
            hint: "pass --hostfile".to_owned(),
        });
    }
    let size = reader.number("FLUX_JOB_SIZE")?;
    // As even as it goes, the first nodes taking one more.
    let nodes = hosts.len() as u32;
    let ranks = |i: u32| size.map(|s| s / nodes + u32::from(i < s % nodes));
    Ok(Some(Given {
        scheduler: Scheduler::Flux,
        job_id: Some(job_id.to_owned()),
        cluster: None,
        nodes: hosts
            .into_iter()
            .zip(0..)
            .map(|(host, i)| AllocatedNode { host, ranks: ranks(i) })
            .collect(),
        distribution: Distribution::Block,
    }))
}
