//! What the scheduler gave, from environment variables and files alone: containers have neither
//! `scontrol` nor `pbsnodes`. An environment that contradicts itself is an error that names the
//! variables, never a silent world of one.

mod flux;
mod launcher;
mod pbs;
mod read;
mod slurm;

use regatta_model::allocation::Evidence;
use regatta_model::hostlist::HostlistError;
use regatta_model::{AllocatedNode, Allocation, Distribution, Scheduler};

use crate::env::Env;
use crate::nodefile::{self, NodefileError};
use crate::root::Root;
use read::Reader;

/// Why an allocation cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// A variable that should be a number is not.
    #[error("{name}={value:?} is not a number; unset it if it is left over from another job")]
    NotANumber {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A host list that cannot be read.
    #[error("{name}: {source}")]
    Hostlist {
        /// The variable.
        name: String,
        /// What is wrong with it.
        source: HostlistError,
    },
    /// A task count list that cannot be read.
    #[error("{name}={value:?} is not a task list like 4(x2),3")]
    TaskList {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
    },
    /// A variable that its companions need is missing.
    #[error("{present} is set but {missing} is not: {hint}")]
    Missing {
        /// What is there.
        present: String,
        /// What is not.
        missing: String,
        /// What to do.
        hint: String,
    },
    /// Variables that contradict each other.
    #[error("{names} contradict each other: {what}; {hint}")]
    Contradiction {
        /// The variables with their values.
        names: String,
        /// In what.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A node file that cannot be opened.
    #[error("{name}={path}: {source}; {hint}")]
    Nodefile {
        /// The variable or option.
        name: String,
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// A node file that cannot be read.
    #[error("{name}={path}: {source}")]
    NodefileContent {
        /// The variable or option.
        name: String,
        /// The file.
        path: String,
        /// What is wrong with it.
        source: NodefileError,
    },
    /// Something this program cannot do yet.
    #[error("{0}")]
    Unsupported(String),
}

/// What [`detect`] looks at.
pub struct Sources<'a> {
    /// The environment.
    pub env: &'a Env,
    /// Where files are read.
    pub root: &'a Root,
    /// This node's name.
    pub host: &'a str,
    /// A host file the user names; it wins over the scheduler's list.
    pub hostfile: Option<&'a str>,
    /// Asks Flux for its host list; `None` if there is no answer.
    pub flux_hosts: &'a dyn Fn() -> Option<String>,
}

/// The nodes a scheduler handed out.
pub(crate) struct Given {
    scheduler: Scheduler,
    job_id: Option<String>,
    cluster: Option<String>,
    nodes: Vec<AllocatedNode>,
    distribution: Distribution,
}

/// Reads the allocation this process is in.
pub fn detect(sources: &Sources<'_>) -> Result<Allocation, AllocationError> {
    let reader = Reader::new(sources.env);
    let started = launcher::started(&reader)?;
    let given = match sources.hostfile {
        Some(path) => Some(from_hostfile(sources, path)?),
        None => scheduled(sources, &reader, started.as_ref())?,
    };
    let mut allocation = match (given, &started) {
        (Some(given), _) => assemble(given),
        (None, Some(started)) => launcher::without_nodes(started, sources.host)?,
        (None, None) => Allocation::alone(sources.host),
    };
    if let Some(started) = started {
        launcher::join(&mut allocation, started, sources.host)?;
    }
    allocation.evidence = reader.evidence();
    if let Some(path) = sources.hostfile {
        allocation
            .evidence
            .push(Evidence { name: "--hostfile".to_owned(), value: path.to_owned() });
    }
    Ok(allocation)
}

fn scheduled(
    sources: &Sources<'_>,
    reader: &Reader<'_>,
    started: Option<&launcher::Started>,
) -> Result<Option<Given>, AllocationError> {
    if let Some(given) = slurm::given(reader, started)? {
        return Ok(Some(given));
    }
    if let Some(given) = pbs::given(reader, sources.root)? {
        return Ok(Some(given));
    }
    flux::given(reader, sources.flux_hosts)
}

fn from_hostfile(sources: &Sources<'_>, path: &str) -> Result<Given, AllocationError> {
    let nodes = read_nodefile("--hostfile", path, std::path::Path::new(path))?;
    let job_id =
        ["SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID"].iter().find_map(|n| sources.env.get(n));
    Ok(Given {
        scheduler: Scheduler::Hostfile,
        job_id: job_id.map(str::to_owned),
        cluster: None,
        nodes,
        distribution: Distribution::Block,
    })
}

/// The hosts of a node file; `name` is the variable or option that named it.
fn read_nodefile(
    name: &str,
    path: &str,
    real: &std::path::Path,
) -> Result<Vec<AllocatedNode>, AllocationError> {
    let own = || (name.to_owned(), path.to_owned());
    let text = std::fs::read_to_string(real).map_err(|source| {
        let (name, path) = own();
        let hint = match name.starts_with("--") {
            true => "check the path",
            false => {
                "the scheduler wrote it on the job's first node only: run there, or bind the file \
                 into the container"
            }
        };
        AllocationError::Nodefile { name, path, source, hint }
    })?;
    let lines = nodefile::parse(&text).map_err(|source| {
        let (name, path) = own();
        AllocationError::NodefileContent { name, path, source }
    })?;
    if lines.is_empty() {
        return Err(AllocationError::Missing {
            present: format!("{name}={path}"),
            missing: "any host in it".to_owned(),
            hint: "write one host a line".to_owned(),
        });
    }
    let node = |n: nodefile::NodeLine| AllocatedNode { host: n.host, ranks: n.slots };
    Ok(nodefile::hosts(&lines).into_iter().map(node).collect())
}

fn assemble(given: Given) -> Allocation {
    Allocation {
        scheduler: given.scheduler,
        launcher: None,
        job_id: given.job_id,
        cluster: given.cluster,
        nodes: given.nodes,
        distribution: given.distribution,
        me: None,
        evidence: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
