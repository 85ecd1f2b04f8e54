//! Slurm: node list and task counts of the job or step.

use std::collections::HashSet;

use regatta_model::{AllocatedNode, Allocation, Distribution, Launcher, Scheduler};
use regatta_model::{hostlist, units};

use super::env_reader::EnvReader;
use super::launcher::LaunchedRank;
use super::{AllocationError, Result};

const STALE_HINT: &str =
    "unset the SLURM_ variables if they are left over from another job, or pass --hostfile";

/// The nodes of the step if `srun` started this process as a rank, else of the job: a step that only
/// runs another launcher's daemons says nothing about ranks.
pub(crate) fn allocation(
    env: &EnvReader<'_>,
    rank: Option<&LaunchedRank>,
) -> Result<Option<Allocation>> {
    let Some((_, job_id)) = env.first(&["SLURM_JOB_ID", "SLURM_JOBID"]) else { return Ok(None) };
    if env.u32("SLURM_HET_SIZE")?.is_some_and(|n| n > 1) {
        return Err(AllocationError::Unsupported(
            "SLURM_HET_SIZE is set: heterogeneous jobs have one node list per component; \
             pass --hostfile with the hosts of all components"
                .to_owned(),
        ));
    }
    let in_step = rank.is_some_and(|s| s.launcher == Launcher::Srun);
    // Another launcher inside the job starts its daemons by srun, one per node: Slurm's task counts
    // are those of the daemons.
    let by_slurm = in_step || rank.is_none();
    let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
    let lists = if in_step { &lists[..] } else { &lists[1..] };
    let counts: &[_] = match (in_step, by_slurm) {
        (true, _) => &["SLURM_STEP_NUM_NODES"],
        (false, true) => &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"],
        (false, false) => &["SLURM_JOB_NUM_NODES"],
    };
    let hosts = hosts(env, lists)?;
    check_count(env, &hosts, counts)?;
    check_step(env, &hosts)?;
    let ranks = match by_slurm {
        true => tasks_per_node(env, &hosts, in_step)?,
        false => vec![None; hosts.list.len()],
    };
    let node = |(host, ranks)| AllocatedNode { host, ranks };
    let nodes = hosts.list.into_iter().zip(ranks).map(node).collect();
    Ok(Some(Allocation {
        job_id: Some(job_id.to_owned()),
        cluster: env.get("SLURM_CLUSTER_NAME").map(str::to_owned),
        distribution: if by_slurm { distribution(env) } else { Distribution::Block },
        ..Allocation::new(Scheduler::Slurm, nodes)
    }))
}

fn contradiction(names: String, detail: String) -> AllocationError {
    AllocationError::Contradiction { names, detail, hint: STALE_HINT }
}

struct Hosts {
    variable: &'static str,
    value: String,
    list: Vec<String>,
}

fn hosts(env: &EnvReader<'_>, names: &[&'static str]) -> Result<Hosts> {
    let Some((variable, value)) = env.first(names) else {
        return Err(AllocationError::Missing {
            present: "SLURM_JOB_ID".to_owned(),
            missing: names[0].to_owned(),
            hint: "pass all SLURM_ variables of the job (for example into the container), or pass --hostfile",
        });
    };
    let list = hostlist::expand(value)
        .map_err(|source| AllocationError::Hostlist { name: variable.to_owned(), source })?;
    if list.is_empty() {
        let list = format!("{variable}={value:?}");
        return Err(AllocationError::NoHosts { list, hint: STALE_HINT });
    }
    Ok(Hosts { variable, value: value.to_owned(), list })
}

fn check_count(env: &EnvReader<'_>, hosts: &Hosts, names: &[&'static str]) -> Result<()> {
    for name in names {
        let Some(count) = env.u32(name)? else { continue };
        if count as usize != hosts.list.len() {
            return Err(contradiction(
                format!("{}={} and {name}={count}", hosts.variable, hosts.value),
                format!("the list has {}", units::pluralize(hosts.list.len(), "host")),
            ));
        }
    }
    Ok(())
}

/// A job that was submitted from inside another job's step inherits that step's variables.
fn check_step(env: &EnvReader<'_>, hosts: &Hosts) -> Result<()> {
    if hosts.variable != "SLURM_STEP_NODELIST" || env.get("SLURM_JOB_NODELIST").is_none() {
        return Ok(());
    }
    let job = self::hosts(env, &["SLURM_JOB_NODELIST"])?;
    let known: HashSet<&String> = job.list.iter().collect();
    match hosts.list.iter().find(|host| !known.contains(host)) {
        None => Ok(()),
        Some(host) => Err(contradiction(
            format!("{}={} and {}={}", hosts.variable, hosts.value, job.variable, job.value),
            format!("{host} is in the step but not in the job"),
        )),
    }
}

/// The ranks of each host. `SLURM_TASKS_PER_NODE` of a job that requests no number of tasks only
/// reflects the number of CPUs, so it is used only together with a total.
fn tasks_per_node(env: &EnvReader<'_>, hosts: &Hosts, in_step: bool) -> Result<Vec<Option<u32>>> {
    let (name, totals): (_, &[_]) = match in_step {
        true => ("SLURM_STEP_TASKS_PER_NODE", &["SLURM_STEP_NUM_TASKS"]),
        false => ("SLURM_TASKS_PER_NODE", &["SLURM_NTASKS", "SLURM_NPROCS"]),
    };
    let total = env.first_u32(totals)?;
    if in_step && env.get(name).is_none() {
        return step_tasks_of_job(env, hosts, total);
    }
    let (Some(value), Some((total_name, total))) = (env.get(name), total) else {
        // Older versions do not set the total with `--ntasks-per-node`.
        let each = if in_step { None } else { env.u32("SLURM_NTASKS_PER_NODE")? };
        return Ok(vec![each; hosts.list.len()]);
    };
    let owned = || (name.to_owned(), value.to_owned());
    let invalid = |(name, value)| AllocationError::TaskList { name, value };
    let tasks = expand_tasks(value).ok_or_else(|| invalid(owned()))?;
    if tasks.len() != hosts.list.len() {
        return Err(contradiction(
            format!("{}={} and {name}={value}", hosts.variable, hosts.value),
            format!("{} hosts, but task counts for {}", hosts.list.len(), tasks.len()),
        ));
    }
    let sum: u64 = tasks.iter().map(|&n| u64::from(n)).sum();
    let nodes = tasks.len() as u64;
    // A job's list holds the maximum per node (`--ntasks-per-node`), which may exceed `--ntasks`; a
    // step's list holds the actual counts.
    if !in_step && (nodes..sum).contains(&u64::from(total)) {
        return Ok(fill(&tasks, total).into_iter().map(Some).collect());
    }
    if sum != u64::from(total) {
        return Err(contradiction(
            format!("{name}={value} and {total_name}={total}"),
            format!("the task counts add up to {sum}"),
        ));
    }
    Ok(tasks.into_iter().map(Some).collect())
}

/// The ranks of each host of a step whose own list was not passed on, as into some containers: the
/// job's list, which `srun` adapts to the step, if it has the hosts and tasks of the step.
fn step_tasks_of_job(
    env: &EnvReader<'_>,
    hosts: &Hosts,
    total: Option<(&'static str, u32)>,
) -> Result<Vec<Option<u32>>> {
    let total = match total {
        Some((_, total)) => Some(total),
        None => env.u32("SLURM_NTASKS")?,
    };
    let tasks = env.get("SLURM_TASKS_PER_NODE").and_then(expand_tasks).filter(|tasks| {
        let sum = tasks.iter().map(|&n| u64::from(n)).sum::<u64>();
        tasks.len() == hosts.list.len() && Some(sum) == total.map(u64::from)
    });
    Ok(match tasks {
        Some(tasks) => tasks.into_iter().map(Some).collect(),
        None => vec![None; hosts.list.len()],
    })
}

/// Slurm's layout of fewer tasks than fit: one per node, the rest on the first nodes.
fn fill(max: &[u32], total: u32) -> Vec<u32> {
    let mut left = total.saturating_sub(max.len() as u32);
    let take = |&max: &u32| {
        let more = max.saturating_sub(1).min(left);
        left -= more;
        1 + more
    };
    max.iter().map(take).collect()
}

/// Maximum nodes in a task list.
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

fn distribution(env: &EnvReader<'_>) -> Distribution {
    match env.get("SLURM_DISTRIBUTION") {
        Some(text) if text.to_ascii_lowercase().starts_with("cyclic") => Distribution::Cyclic,
        _ => Distribution::Block,
    }
}

#[cfg(test)]
mod tests {
    use super::{expand_tasks, fill};

    #[test]
    fn fill_puts_the_remainder_on_the_first_nodes() {
        assert_eq!(fill(&[2, 2], 3), [2, 1]);
        assert_eq!(fill(&[4, 4, 4], 6), [4, 1, 1]);
        assert_eq!(fill(&[4, 4, 4], 3), [1, 1, 1]);
    }

    #[test]
    fn task_lists_are_expanded() {
        assert_eq!(expand_tasks("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(expand_tasks("16"), Some(vec![16]));
        for bad in ["", "2(x3", "2(3)", "a", "1,,2", "1(x99999999999)", "1(x-1)"] {
            assert_eq!(expand_tasks(bad), None, "{bad}");
        }
    }
}
