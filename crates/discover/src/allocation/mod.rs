//! The job allocation, from environment variables and files only, because containers have neither
//! `scontrol` nor `pbsnodes`. Contradicting variables are an error that names them; detection never
//! falls back to a world size of 1.

mod env_reader;
mod flux;
mod launcher;
mod pbs;
mod slurm;

use std::collections::BTreeSet;
use std::path::Path;

use regatta_model::allocation::Evidence;
use regatta_model::hostlist::{HostlistError, short_hostname};
use regatta_model::{AllocatedNode, Allocation, Scheduler};

use crate::env::Env;
use crate::hostfile::{self, HostfileError};
use crate::sysroot::Sysroot;
use env_reader::EnvReader;

/// Why an allocation cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum AllocationError {
    /// A variable that should be a number is not.
    #[error("{name}={value:?} is not a number; unset it if it is left over from another job")]
    NotANumber { name: String, value: String },
    /// A malformed hostlist expression.
    #[error("{name}: {source}")]
    Hostlist { name: String, source: HostlistError },
    /// A malformed list of task counts.
    #[error("{name}={value:?} is not a task list like 4(x2),3")]
    TaskList { name: String, value: String },
    /// A required variable is missing.
    #[error("{present} is set but {missing} is not: {hint}")]
    Missing { present: String, missing: String, hint: &'static str },
    /// Contradicting variables.
    #[error("{names} contradict each other: {detail}; {hint}")]
    Contradiction { names: String, detail: String, hint: &'static str },
    /// A host file that cannot be opened.
    #[error("{name}={path}: {source}; {hint}")]
    Hostfile { name: String, path: String, source: std::io::Error, hint: &'static str },
    /// A malformed host file.
    #[error("{name}={path}: {source}")]
    HostfileContent { name: String, path: String, source: HostfileError },
    /// An empty node list.
    #[error("{list} contains no host; {hint}")]
    NoHosts { list: String, hint: &'static str },
    /// An allocation type that is not supported.
    #[error("{0}")]
    Unsupported(String),
}

type Result<T, E = AllocationError> = std::result::Result<T, E>;

/// Inputs of [`detect`].
pub struct DetectionInputs<'a> {
    /// The environment.
    pub env: &'a Env,
    /// File-system root.
    pub root: &'a Sysroot,
    /// Host name of this node.
    pub host: &'a str,
    /// Host file given by the user; overrides the scheduler's list.
    pub hostfile: Option<&'a str>,
    /// Runs `flux hostlist local`; `None` if it fails.
    pub flux_hosts: &'a dyn Fn() -> Option<String>,
}

/// Detects the allocation of this process.
pub fn detect(inputs: &DetectionInputs<'_>) -> Result<Allocation> {
    let env = EnvReader::new(inputs.env);
    let rank = launcher::detect_rank(&env)?;
    let allocation = match inputs.hostfile {
        Some(path) => Some(from_hostfile(inputs, path)?),
        None => from_scheduler(inputs, &env, rank.as_ref())?,
    };
    let mut allocation = match (allocation, &rank) {
        (Some(allocation), _) => allocation,
        (None, Some(rank)) => launcher::infer_nodes(rank, inputs.host)?,
        (None, None) => Allocation::single_node(inputs.host),
    };
    if let Some(rank) = rank {
        launcher::attach(&mut allocation, rank, inputs.host)?;
    }
    allocation.evidence = env.into_evidence();
    if let Some(path) = inputs.hostfile {
        let (name, value) = ("--hostfile".to_owned(), path.to_owned());
        allocation.evidence.push(Evidence { name, value });
    }
    Ok(allocation)
}

fn from_scheduler(
    inputs: &DetectionInputs<'_>,
    env: &EnvReader<'_>,
    rank: Option<&launcher::LaunchedRank>,
) -> Result<Option<Allocation>> {
    if let Some(slurm) = slurm::allocation(env, rank)? {
        check_single_scheduler(inputs, env, &slurm)?;
        return Ok(Some(slurm));
    }
    if let Some(allocation) = pbs::allocation(env, inputs.root, rank, inputs.host)? {
        return Ok(Some(allocation));
    }
    flux::allocation(env, inputs.flux_hosts)
}

/// Fails if the variables of a Slurm job and of a PBS job are set and name different nodes: one of
/// them is left over, or exported into the other.
fn check_single_scheduler(
    inputs: &DetectionInputs<'_>,
    env: &EnvReader<'_>,
    slurm: &Allocation,
) -> Result<()> {
    let Some(pbs_job) = env.get("PBS_JOBID") else { return Ok(()) };
    let hosts = |nodes: &[AllocatedNode]| -> BTreeSet<String> {
        nodes.iter().map(|node| short_hostname(&node.host).to_owned()).collect()
    };
    let pbs = pbs::allocation(env, inputs.root, None, inputs.host);
    if pbs.is_ok_and(|pbs| pbs.is_some_and(|pbs| hosts(&pbs.nodes) == hosts(&slurm.nodes))) {
        return Ok(());
    }
    let job = slurm.job_id.as_deref().unwrap_or_default();
    Err(AllocationError::Contradiction {
        names: format!("SLURM_JOB_ID={job} and PBS_JOBID={pbs_job}"),
        detail: "a process is in a job of one scheduler only".to_owned(),
        hint: "unset the variables of the other job (PBS_JOBID and PBS_NODEFILE, or SLURM_JOB_ID \
               and SLURM_JOB_NODELIST), or pass --hostfile",
    })
}

fn from_hostfile(inputs: &DetectionInputs<'_>, path: &str) -> Result<Allocation> {
    let nodes = read_hostfile("--hostfile", path, Path::new(path))?;
    let names = ["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID"];
    let job_id = names.iter().find_map(|name| inputs.env.get(name)).map(str::to_owned);
    Ok(Allocation { job_id, ..Allocation::new(Scheduler::Hostfile, nodes) })
}

/// The hosts of a host file; `name` is the variable or option that refers to it.
fn read_hostfile(name: &str, path: &str, real: &Path) -> Result<Vec<AllocatedNode>> {
    let owned = || (name.to_owned(), path.to_owned());
    let text = std::fs::read_to_string(real).map_err(|source| {
        let (name, path) = owned();
        let hint = if name.starts_with("--") {
            "check the path"
        } else {
            "the scheduler writes it on the first node of the job only: run there, or \
             bind-mount the file into the container"
        };
        AllocationError::Hostfile { name, path, source, hint }
    })?;
    let entries = hostfile::parse(&text).map_err(|source| {
        let (name, path) = owned();
        AllocationError::HostfileContent { name, path, source }
    })?;
    if entries.is_empty() {
        let (list, hint) = (format!("{name}={path}"), "write one host per line");
        return Err(AllocationError::NoHosts { list, hint });
    }
    let node = |entry: hostfile::HostEntry| AllocatedNode { host: entry.host, ranks: entry.slots };
    Ok(hostfile::merge_hosts(&entries).into_iter().map(node).collect())
}

#[cfg(test)]
mod tests;
