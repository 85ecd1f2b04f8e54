//! Command, binding and environment of each rank, with reasons.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use regatta_launch::config::JobConfig;
use regatta_launch::cpu_binding::Binding;
use regatta_launch::process::{EnvSetting, RankSpec};
use regatta_launch::rank_files::RankFile;
use regatta_launch::wrap::Wrap;
use regatta_model::run_folder::{self, EnvVar, JobEnvironment};
use regatta_model::units::pluralize;
use regatta_model::{CpuSet, hostlist};
use regatta_place::environment::Rendezvous;

use crate::discovery::PlacedJob;
use crate::env;

/// One attempt to run a job.
pub struct AttemptSpec {
    pub job: PlacedJob,
    /// Indexed by rank.
    pub ranks: Vec<AttemptRank>,
    /// Files that all ranks must find.
    pub files: Vec<RankFile>,
    /// Node-local directory of the ranks' code caches.
    pub cache_dir: String,
}

/// An attempt's run and number, counted from 0.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    pub run: &'a str,
    pub number: u32,
}

/// A rank, with the reasons for its environment.
pub struct AttemptRank {
    pub spec: RankSpec,
    pub variables: Vec<EnvVar>,
    pub host: String,
}

impl AttemptRank {
    /// Adds a variable to the rank's environment.
    pub fn add_variable(&mut self, variable: EnvVar) {
        self.spec.env.push(setting(&variable));
        self.variables.push(variable);
    }

    /// Removes a variable from the settings of the rank, which then inherits it.
    pub fn remove_variable(&mut self, name: &str) {
        self.spec.env.retain(|(variable, _)| variable != name);
        self.variables.retain(|variable| variable.variable != name);
    }
}

/// The setting of a variable, without the reason.
pub fn setting(EnvVar { variable, value, .. }: &EnvVar) -> EnvSetting {
    (variable.clone(), value.clone())
}

/// A variable with its reason.
pub fn env_var(variable: &str, value: impl ToString, why: &str) -> EnvVar {
    EnvVar { variable: variable.to_owned(), value: Some(value.to_string()), why: why.to_owned() }
}

impl AttemptSpec {
    /// Plans all ranks of an attempt.
    pub fn new(
        config: &JobConfig,
        job: PlacedJob,
        rendezvous: &Rendezvous,
        attempt: Attempt<'_>,
    ) -> Result<Self> {
        let mut ranks = Vec::with_capacity(job.placement.ranks as usize);
        // A restart may have fewer ranks than the options name.
        if attempt.number == 0 {
            check_ranks(config, job.placement.ranks)?;
            let world = env_var("WORLD_SIZE", job.placement.ranks, "world size");
            env::check_identity(&job, &[world])?;
            env::check_is_no_rank(&job)?;
        }
        env::note_unset_names(&job, &config.rank_env, rendezvous)?;
        let counts: Vec<usize> = job.placement.nodes.iter().map(|n| n.ranks.len()).collect();
        let tasks_per_node = tasks_per_node(&counts);
        for rank in 0..job.placement.ranks {
            let mut variables = env::rank_env(&job, &config.rank_env, rendezvous, rank)?;
            variables.extend(torchelastic_env(attempt, config.restarts()));
            variables.extend(slurm_env(&job, &tasks_per_node, rank));
            ranks.push(rank_plan(config, &job, rank, variables)?);
        }
        let cache_dir = env::cache_folder(&job).path;
        Ok(Self { job, ranks, files: Vec::new(), cache_dir })
    }

    /// The host of each rank.
    pub fn hosts(&self) -> Vec<String> {
        self.ranks.iter().map(|r| r.host.clone()).collect()
    }

    /// Sets the run folder in the environment of all ranks, if its path is valid UTF-8.
    pub fn set_run_dir(&mut self, path: &Path) {
        let path = std::path::absolute(path).ok();
        let Some(path) = path.as_deref().and_then(Path::to_str) else { return };
        let variable = env_var(run_folder::VARIABLE, path, "the run folder");
        for rank in &mut self.ranks {
            rank.add_variable(variable.clone());
        }
    }

    /// Sets the input of all ranks.
    pub fn set_input(&mut self, input: &Arc<[u8]>) {
        self.ranks.iter_mut().for_each(|rank| rank.spec.input = Some(Arc::clone(input)));
    }

    /// Splits the environment into common and per-rank variables.
    pub fn environment(&self) -> JobEnvironment<&EnvVar> {
        let mut counts: HashMap<(&String, &Option<String>), usize> = HashMap::new();
        for v in self.ranks.iter().flat_map(|r| &r.variables) {
            *counts.entry((&v.variable, &v.value)).or_default() += 1;
        }
        let is_common = |v: &&EnvVar| counts[&(&v.variable, &v.value)] == self.ranks.len();
        let ranks = self.ranks.iter();
        let own =
            ranks.map(|r| (r.spec.rank, r.variables.iter().filter(|v| !is_common(v)).collect()));
        let first = self.ranks.first().into_iter().flat_map(|r| &r.variables);
        JobEnvironment { common: first.filter(is_common).collect(), ranks: own.collect() }
    }
}

/// Checks that the ranks named by options exist.
fn check_ranks(config: &JobConfig, ranks: u32) -> Result<()> {
    let shown = config.shown_ranks.iter().map(|&rank| ("--rank", rank));
    let wrapped = config.wrap.iter().filter_map(Wrap::ranks).flat_map(CpuSet::iter);
    let mut named = shown.chain(wrapped.map(|rank| ("--wrap-ranks", rank as u32)));
    match named.find(|(_, rank)| *rank >= ranks) {
        Some((option, rank)) => {
            bail!("{option} {rank} is out of range: the job has ranks 0 to {}", ranks - 1)
        }
        None => Ok(()),
    }
}

/// The rank that another launcher started as this process.
pub fn adopted_rank(config: &JobConfig, plan: &PlacedJob, rank: u32) -> Result<RankSpec> {
    let rendezvous = env::rendezvous(&config.rank_env, plan, rank)?;
    let mut variables = env::rank_env(plan, &config.rank_env, &rendezvous, rank)?;
    env::check_identity(plan, &variables)?;
    env::secure_cache_dir(plan, rank, &mut variables);
    Ok(rank_plan(config, plan, rank, variables)?.spec)
}

fn rank_plan(
    config: &JobConfig,
    plan: &PlacedJob,
    rank: u32,
    variables: Vec<EnvVar>,
) -> Result<AttemptRank> {
    let Some((_, node, placed)) = plan.placement.find_rank(rank) else {
        let ranks = pluralize(plan.placement.ranks as usize, "rank");
        bail!("rank {rank} is out of range: the plan has {ranks}");
    };
    let command = config.workload.command();
    let command = match &config.wrap {
        Some(wrap) => wrap.apply(rank, &node.host, command),
        None => command.to_vec(),
    };
    let spec = RankSpec {
        rank,
        command,
        cwd: None,
        base_env: Vec::new(),
        env_remove_prefixes: Vec::new(),
        env: variables.iter().map(setting).collect(),
        binding: Binding::new(&placed.cpus, &placed.memory),
        input: config.workload.own_ranks().map(|ranks| Arc::clone(&ranks.request)),
    };
    Ok(AttemptRank { spec, variables, host: node.host.clone() })
}

/// Corrects Slurm's task variables, which ranks would otherwise inherit from the batch script or the
/// agent: each of these is a single task to Slurm.
fn slurm_env(plan: &PlacedJob, tasks_per_node: &str, rank: u32) -> Vec<EnvVar> {
    let Some((node, placed, own)) = plan.placement.find_rank(rank) else { return Vec::new() };
    let ranks = plan.placement.ranks.to_string();
    let hosts: Vec<&str> = plan.placement.nodes.iter().map(|n| n.host.as_str()).collect();
    let nodes = hosts.len().to_string();
    let values = [
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", own.local_rank.to_string()),
        ("SLURM_NODEID", node.to_string()),
        ("SLURM_NTASKS", ranks.clone()),
        ("SLURM_NPROCS", ranks.clone()),
        ("SLURM_NTASKS_PER_NODE", placed.ranks.len().to_string()),
        ("SLURM_TASKS_PER_NODE", tasks_per_node.to_owned()),
        ("SLURM_STEP_NUM_TASKS", ranks),
        // The agents' step also includes the spares.
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_STEP_NUM_NODES", nodes),
        ("SLURM_STEP_NODELIST", hostlist::compress(&hosts)),
        ("SLURM_STEP_TASKS_PER_NODE", tasks_per_node.to_owned()),
    ];
    // The agents' step sets variables that the launcher's environment lacks.
    let agents = plan.is_reported_by_agents() && plan.env.is_set("SLURM_JOB_ID");
    let inherited = values.into_iter().filter(|(name, _)| agents || plan.env.is_set(name));
    let why = "Slurm's value describes another task";
    inherited.map(|(name, value)| env_var(name, value, why)).collect()
}

/// Ranks per node in Slurm's notation: `8(x3),4`.
fn tasks_per_node(counts: &[usize]) -> String {
    let runs = counts.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].to_string(),
        n => format!("{}(x{n})", run[0]),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// torchrun's variables about restarts.
fn torchelastic_env(attempt: Attempt<'_>, max_restarts: u32) -> [EnvVar; 3] {
    [
        env_var("TORCHELASTIC_RUN_ID", attempt.run, "the run ID"),
        env_var("TORCHELASTIC_RESTART_COUNT", attempt.number, "restarts so far"),
        env_var("TORCHELASTIC_MAX_RESTARTS", max_restarts, "maximum number of restarts"),
    ]
}

#[cfg(test)]
mod tests {
    use super::tasks_per_node;

    #[test]
    fn equal_counts_are_folded_as_in_slurm() {
        assert_eq!(tasks_per_node(&[8, 8, 8, 4]), "8(x3),4");
        assert_eq!(tasks_per_node(&[2]), "2");
    }
}
