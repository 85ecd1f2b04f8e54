//! Command, binding and environment of each rank, with reasons.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use regatta_model::run_folder::{self, EnvVar, JobEnvironment, machine_name};
use regatta_model::{CpuSet, document, hostlist};
use regatta_place::environment::Rendezvous;
pub use regatta_place::environment::var as env_var;

use crate::config::JobConfig;
use crate::cpu_binding::Binding;
use crate::discovery::{Discovery, PlacedJob};
use crate::error::{LaunchError, Result};
use crate::process::{EnvSetting, RankSpec};
use crate::rank_files::RankFile;
use crate::run_folder::RunFolder;
use crate::wrap::Wrap;
use crate::{cpu_binding, rank_env};

/// One attempt to run a job.
#[derive(Debug)]
pub struct AttemptSpec {
    /// Number of restarts so far.
    pub number: u32,
    /// Its placement.
    pub job: PlacedJob,
    /// Its ranks, by number.
    pub ranks: Vec<AttemptRank>,
    /// Files that all ranks must find.
    pub files: Vec<RankFile>,
    /// Node-local directory of the ranks' code caches.
    pub cache_dir: String,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A rank, with the reasons for its environment.
#[derive(Debug)]
pub struct AttemptRank {
    /// How it is started.
    pub spec: RankSpec,
    /// Its environment with the reasons.
    pub variables: Vec<EnvVar>,
    /// Its host.
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

impl AttemptSpec {
    /// Plans all ranks of an attempt.
    pub fn new(
        config: &JobConfig,
        job: PlacedJob,
        rendezvous: &Rendezvous,
        run: &str,
        number: u32,
    ) -> Result<Self> {
        let mut ranks = Vec::with_capacity(job.placement.ranks as usize);
        // A restart may have fewer ranks than the options name.
        if number == 0 {
            check_ranks(config, job.placement.ranks)?;
            let world = env_var("WORLD_SIZE", job.placement.ranks, "world size");
            rank_env::check_identity(&job, &[world])?;
            rank_env::check_is_no_rank(&job)?;
        }
        let mut notes = rank_env::notes_of_unset_names(&job, &config.rank_env, rendezvous)?;
        let counts: Vec<usize> = job.placement.nodes.iter().map(|n| n.ranks.len()).collect();
        let tasks_per_node = tasks_per_node(&counts);
        for rank in 0..job.placement.ranks {
            let options = &config.rank_env;
            let mut variables = rank_env::rank_env(&job, options, rendezvous, rank, &mut notes)?;
            variables.extend(torchelastic_env(run, number, config.restarts()));
            variables.extend(slurm_env(&job, &tasks_per_node, rank));
            ranks.push(attempt_rank(config, &job, rank, variables)?);
        }
        let cache_dir = rank_env::cache_folder(&job).path;
        Ok(Self { number, job, ranks, files: Vec::new(), cache_dir, notes })
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

    /// Writes machines, placement and environment to the run folder.
    pub fn write_to(&self, folder: &RunFolder) -> Result<()> {
        for (i, machine) in self.job.machines.iter().enumerate() {
            folder.write(&machine_name(i), &document::to_json(machine)?)?;
        }
        folder.write(run_folder::PLACEMENT, &document::to_json(&self.job.placement)?)?;
        let environment = document::to_json(&self.environment())?;
        Ok(folder.write(run_folder::ENVIRONMENT, &environment)?)
    }

    /// Splits the environment into common and per-rank variables.
    pub fn environment(&self) -> JobEnvironment {
        let mut counts: HashMap<(&String, &Option<String>), usize> = HashMap::new();
        for v in self.ranks.iter().flat_map(|r| &r.variables) {
            *counts.entry((&v.variable, &v.value)).or_default() += 1;
        }
        let is_common = |v: &&EnvVar| counts[&(&v.variable, &v.value)] == self.ranks.len();
        let own = |r: &AttemptRank| r.variables.iter().filter(|v| !is_common(v)).cloned().collect();
        let first = self.ranks.first().into_iter().flat_map(|r| &r.variables);
        JobEnvironment {
            common: first.filter(is_common).cloned().collect(),
            ranks: self.ranks.iter().map(|r| (r.spec.rank, own(r))).collect(),
        }
    }
}

/// Checks that the ranks named by options exist.
fn check_ranks(config: &JobConfig, ranks: u32) -> Result<()> {
    let shown = config.shown_ranks.iter().map(|&rank| ("--rank", rank));
    let wrapped = config.wrap.iter().filter_map(Wrap::ranks).flat_map(CpuSet::iter);
    let mut named = shown.chain(wrapped.map(|rank| ("--wrap-ranks", rank as u32)));
    match named.find(|(_, rank)| *rank >= ranks) {
        Some((option, rank)) => Err(LaunchError::NoRank { option, rank, last: ranks - 1 }),
        None => Ok(()),
    }
}

/// The rank that another launcher started as this process, with notes for the user.
pub fn adopted_rank(
    config: &JobConfig,
    discovery: Discovery,
    rank: u32,
) -> Result<(RankSpec, Vec<String>)> {
    let job = discovery.plan(&config.source, &config.placement)?;
    let (ranks, mut notes) = (job.placement.ranks, Vec::new());
    if rank >= ranks {
        return Err(LaunchError::NotARank { rank, ranks });
    }
    let rendezvous = rank_env::rendezvous(&config.rank_env, &job, rank)?;
    let mut variables = rank_env::rank_env(&job, &config.rank_env, &rendezvous, rank, &mut notes)?;
    rank_env::check_identity(&job, &variables)?;
    notes.extend(rank_env::secure_cache_dir(&job, rank, &mut variables));
    let spec = attempt_rank(config, &job, rank, variables)?.spec;
    if rank == 0 {
        notes.extend(cpu_binding::unavailable([&spec.binding].into_iter()));
    }
    Ok((spec, notes))
}

fn attempt_rank(
    config: &JobConfig,
    placed: &PlacedJob,
    rank: u32,
    variables: Vec<EnvVar>,
) -> Result<AttemptRank> {
    let ranks = placed.placement.ranks;
    let found = placed.placement.find_rank(rank);
    let (_, node, own) = found.ok_or(LaunchError::NotARank { rank, ranks })?;
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
        binding: Binding::new(&own.cpus, &own.memory),
        input: config.workload.own_ranks().map(|ranks| Arc::clone(&ranks.request)),
    };
    Ok(AttemptRank { spec, variables, host: node.host.clone() })
}

/// Corrects Slurm's task variables, which ranks would otherwise inherit from the batch script or the
/// agent: each of these is a single task to Slurm.
fn slurm_env(placed: &PlacedJob, tasks_per_node: &str, rank: u32) -> Vec<EnvVar> {
    let Some((index, node, own)) = placed.placement.find_rank(rank) else { return Vec::new() };
    let ranks = placed.placement.ranks.to_string();
    let hosts: Vec<&str> = placed.placement.nodes.iter().map(|n| n.host.as_str()).collect();
    let nodes = hosts.len().to_string();
    let values = [
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", own.local_rank.to_string()),
        ("SLURM_NODEID", index.to_string()),
        ("SLURM_NTASKS", ranks.clone()),
        ("SLURM_NPROCS", ranks.clone()),
        ("SLURM_NTASKS_PER_NODE", node.ranks.len().to_string()),
        ("SLURM_TASKS_PER_NODE", tasks_per_node.to_owned()),
        ("SLURM_STEP_NUM_TASKS", ranks),
        // The agents' step also includes the spares.
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_STEP_NUM_NODES", nodes),
        ("SLURM_STEP_NODELIST", hostlist::compress(&hosts)),
        ("SLURM_STEP_TASKS_PER_NODE", tasks_per_node.to_owned()),
    ];
    // The agents' step sets variables that the launcher's environment lacks.
    let agents = placed.is_reported_by_agents() && placed.env.is_set("SLURM_JOB_ID");
    let inherited = values.into_iter().filter(|(name, _)| agents || placed.env.is_set(name));
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
fn torchelastic_env(run: &str, restarts: u32, max_restarts: u32) -> [EnvVar; 3] {
    [
        env_var("TORCHELASTIC_RUN_ID", run, "the run ID"),
        env_var("TORCHELASTIC_RESTART_COUNT", restarts, "restarts so far"),
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
