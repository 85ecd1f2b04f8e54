//! Slurm: the job's or step's node list and task counts.

use std::collections::HashSet;

use regatta_model::{AllocatedNode, Distribution, Launcher, Scheduler};
use regatta_model::{hostlist, units};

use super::launcher::Started;
use super::read::Reader;
use super::{AllocationError, Given};

const STALE: &str =
    "unset the SLURM_ variables if they are left over from another job, or pass --hostfile";

/// The nodes of the step if `srun` started this process as one of its ranks, else of the job: a
/// step that only carries another launcher's helpers says nothing about ranks.
pub(crate) fn given(
    reader: &Reader<'_>,
    started: Option<&Started>,
) -> Result<Option<Given>, AllocationError> {
    let Some((_, job_id)) = reader.first(&["SLURM_JOB_ID", "SLURM_JOBID"]) else { return Ok(None) };
    if reader.number("SLURM_HET_SIZE")?.is_some_and(|n| n > 1) {
        return Err(AllocationError::Unsupported(
            "SLURM_HET_SIZE is set: heterogeneous jobs have a node list for each component; \
             pass --hostfile with all their hosts"
                .to_owned(),
        ));
    }
    let in_step = started.is_some_and(|s| s.launcher == Launcher::Srun);
    // Another launcher inside the job has its daemons started by srun, one a node: what Slurm says
    // of tasks is theirs.
    let by_slurm = in_step || started.is_none();
    let (lists, counts, tasks, totals): (&[_], &[_], &[_], &[_]) = if in_step {
        (
            &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"],
            &["SLURM_STEP_NUM_NODES"],
            &["SLURM_STEP_TASKS_PER_NODE"],
            &["SLURM_STEP_NUM_TASKS"],
        )
    } else {
        (
            &["SLURM_JOB_NODELIST", "SLURM_NODELIST"],
            if by_slurm {
                &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"]
            } else {
                &["SLURM_JOB_NUM_NODES"]
            },
            &["SLURM_TASKS_PER_NODE"],
            &["SLURM_NTASKS", "SLURM_NPROCS"],
        )
    };
    let hosts = hosts(reader, lists)?;
    check_count(reader, &hosts, counts)?;
    check_step(reader, &hosts)?;
    let ranks = match by_slurm {
        true => tasks_per_node(reader, &hosts, tasks, totals, in_step)?,
        false => vec![None; hosts.list.len()],
    };
    let node = |(host, ranks)| AllocatedNode { host, ranks };
    Ok(Some(Given {
        scheduler: Scheduler::Slurm,
        job_id: Some(job_id.to_owned()),
        cluster: reader.get("SLURM_CLUSTER_NAME").map(str::to_owned),
        nodes: hosts.list.into_iter().zip(ranks).map(node).collect(),
        distribution: if by_slurm { distribution(reader) } else { Distribution::Block },
    }))
}

struct Hosts {
    variable: &'static str,
    value: String,
    list: Vec<String>,
}

fn hosts(reader: &Reader<'_>, names: &[&'static str]) -> Result<Hosts, AllocationError> {
    let Some((variable, value)) = reader.first(names) else {
        return Err(AllocationError::Missing {
            present: "SLURM_JOB_ID".to_owned(),
            missing: names[0].to_owned(),
            hint: "pass the job's environment on into the container, or pass --hostfile".to_owned(),
        });
    };
    let list = hostlist::expand(value)
        .map_err(|source| AllocationError::Hostlist { name: variable.to_owned(), source })?;
    if list.is_empty() {
        return Err(AllocationError::Missing {
            present: format!("{variable}={value:?}"),
            missing: "any host in it".to_owned(),
            hint: STALE.to_owned(),
        });
    }
    Ok(Hosts { variable, value: value.to_owned(), list })
}

fn check_count(
    reader: &Reader<'_>,
    hosts: &Hosts,
    names: &[&'static str],
) -> Result<(), AllocationError> {
    for name in names {
        let Some(count) = reader.number(name)? else { continue };
        if count as usize != hosts.list.len() {
            return Err(AllocationError::Contradiction {
                names: format!("{}={} and {name}={count}", hosts.variable, hosts.value),
                what: format!("the list names {}", units::count(hosts.list.len(), "host")),
                hint: STALE.to_owned(),
            });
        }
    }
    Ok(())
}

/// A job that was submitted from inside another job's step inherits that step's variables.
fn check_step(reader: &Reader<'_>, hosts: &Hosts) -> Result<(), AllocationError> {
    if hosts.variable != "SLURM_STEP_NODELIST" || reader.get("SLURM_JOB_NODELIST").is_none() {
        return Ok(());
    }
    let job = self::hosts(reader, &["SLURM_JOB_NODELIST"])?;
    let known: HashSet<&String> = job.list.iter().collect();
    match hosts.list.iter().find(|host| !known.contains(host)) {
        None => Ok(()),
        Some(stranger) => Err(AllocationError::Contradiction {
            names: format!("{}={} and {}={}", hosts.variable, hosts.value, job.variable, job.value),
            what: format!("{stranger} of the step is no node of the job"),
            hint: STALE.to_owned(),
        }),
    }
}

/// The ranks of each host. `SLURM_TASKS_PER_NODE` of a job that asked for no number of tasks only
/// says how many CPUs there are, so it counts only together with a total.
fn tasks_per_node(
    reader: &Reader<'_>,
    hosts: &Hosts,
    names: &[&'static str],
    totals: &[&'static str],
    in_step: bool,
) -> Result<Vec<Option<u32>>, AllocationError> {
    let total = reader.first_number(totals)?;
    let (Some((name, value)), Some((total_name, total))) = (reader.first(names), total) else {
        // Older versions leave the total out where a number a node was asked for.
        let each = if in_step { None } else { reader.number("SLURM_NTASKS_PER_NODE")? };
        return Ok(vec![each; hosts.list.len()]);
    };
    let tasks = expand_tasks(value).ok_or_else(|| AllocationError::TaskList {
        name: name.to_owned(),
        value: value.to_owned(),
    })?;
    if tasks.len() != hosts.list.len() {
        return Err(AllocationError::Contradiction {
            names: format!("{}={} and {name}={value}", hosts.variable, hosts.value),
            what: format!("{} hosts, but tasks for {}", hosts.list.len(), tasks.len()),
            hint: STALE.to_owned(),
        });
    }
    let sum: u64 = tasks.iter().map(|&n| u64::from(n)).sum();
    let nodes = tasks.len() as u64;
    // A job's list holds the most a node may take, as `--ntasks-per-node` says, beside `--ntasks`;
    // a step's holds what it has.
    if !in_step && (nodes..sum).contains(&u64::from(total)) {
        return Ok(fill(&tasks, total).into_iter().map(Some).collect());
    }
    if sum != u64::from(total) {
        return Err(AllocationError::Contradiction {
            names: format!("{name}={value} and {total_name}={total}"),
            what: format!("the tasks of the nodes add up to {sum}"),
            hint: STALE.to_owned(),
        });
    }
    Ok(tasks.into_iter().map(Some).collect())
}

/// How Slurm lays out tasks on nodes that could take more: one on each, the rest on the first ones.
fn fill(most: &[u32], total: u32) -> Vec<u32> {
    let mut left = total.saturating_sub(most.len() as u32);
    let take = |&most: &u32| {
        let more = most.saturating_sub(1).min(left);
        left -= more;
        1 + more
    };
    most.iter().map(take).collect()
}

/// Nodes that one task list may speak of.
const MAX_NODES: usize = 1 << 20;

/// `2(x3),1` is 2, 2, 2, 1.
pub(crate) fn expand_tasks(text: &str) -> Option<Vec<u32>> {
    let mut tasks = Vec::new();
    for item in text.split(',') {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (item, 1),
        };
        if tasks.len().checked_add(times)? > MAX_NODES {
            return None;
        }
        tasks.extend(std::iter::repeat_n(count.parse::<u32>().ok()?, times));
    }
    Some(tasks)
}

fn distribution(reader: &Reader<'_>) -> Distribution {
    match reader.get("SLURM_DISTRIBUTION") {
        Some(text) if text.to_ascii_lowercase().starts_with("cyclic") => Distribution::Cyclic,
        _ => Distribution::Block,
    }
}

#[cfg(test)]
mod tests {
    use super::{expand_tasks, fill};

    #[test]
    fn tasks_fill_the_first_nodes() {
        assert_eq!(fill(&[2, 2], 3), [2, 1]);
        assert_eq!(fill(&[4, 4, 4], 6), [4, 1, 1]);
        assert_eq!(fill(&[4, 4, 4], 3), [1, 1, 1]);
    }

    #[test]
    fn task_lists() {
        assert_eq!(expand_tasks("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(expand_tasks("16"), Some(vec![16]));
        for bad in ["", "2(x3", "2(3)", "a", "1,,2", "1(x99999999999)", "1(x-1)"] {
            assert_eq!(expand_tasks(bad), None, "{bad}");
        }
    }
}
