//! The ranks of a start: what each runs, bound to what, with which environment and why.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Result, bail};
use regatta_launch::bind::Binding;
use regatta_launch::folder;
use regatta_launch::process::{RankSpec, Setting};
use regatta_launch::wrap::Wrap;
use regatta_model::hostlist;
use regatta_place::environment::{EnvLine, Rendezvous};
use serde::Serialize;

use crate::cli::LaunchArgs;
use crate::plan::Plan;
use crate::surroundings;

/// A start of a job.
pub struct Planned {
    pub plan: Plan,
    /// By rank.
    pub ranks: Vec<PlannedRank>,
}

/// A rank, with the reasons for its environment.
pub struct PlannedRank {
    pub spec: RankSpec,
    pub lines: Vec<EnvLine>,
    pub host: String,
}

impl Planned {
    /// The node of each rank.
    pub fn hosts(&self) -> Vec<String> {
        self.ranks.iter().map(|r| r.host.clone()).collect()
    }

    /// Tells all ranks where the run folder is: there they may leave what belongs to the run. One
    /// whose name is no text is not told.
    pub fn tell_folder(&mut self, path: &Path) {
        let path = std::path::absolute(path).ok();
        let Some(path) = path.as_deref().and_then(Path::to_str) else { return };
        let line = EnvLine {
            variable: folder::VARIABLE.to_owned(),
            value: Some(path.to_owned()),
            why: "the run folder".to_owned(),
        };
        for rank in &mut self.ranks {
            rank.spec.env.push((line.variable.clone(), line.value.clone()));
            rank.lines.push(line.clone());
        }
    }

    /// What all ranks have set to the same, and what each has to itself.
    pub fn environment(&self) -> Environment<'_> {
        let mut counts: HashMap<(&str, Option<&str>), usize> = HashMap::new();
        for line in self.ranks.iter().flat_map(|r| &r.lines) {
            *counts.entry((&line.variable, line.value.as_deref())).or_default() += 1;
        }
        let every = |line: &&EnvLine| {
            counts[&(line.variable.as_str(), line.value.as_deref())] == self.ranks.len()
        };
        let ranks = self.ranks.iter();
        let own = ranks.map(|r| (r.spec.rank, r.lines.iter().filter(|l| !every(l)).collect()));
        Environment {
            common: self.ranks.first().into_iter().flat_map(|r| &r.lines).filter(every).collect(),
            ranks: own.collect(),
        }
    }
}

/// The environment of all ranks: `environment.json` of the run folder.
#[derive(Serialize)]
pub struct Environment<'a> {
    /// What all have.
    pub common: Vec<&'a EnvLine>,
    /// What each has besides.
    pub ranks: BTreeMap<u32, Vec<&'a EnvLine>>,
}

/// All ranks of a start, with one meeting point.
pub fn planned(
    args: &LaunchArgs,
    plan: Plan,
    meet: Rendezvous,
    (run, attempt): (&str, u32),
) -> Result<Planned> {
    let mut ranks = Vec::with_capacity(plan.placement.ranks as usize);
    let wrap = wrap(args)?;
    if attempt == 0 {
        check_ranks(args, plan.placement.ranks)?;
    }
    surroundings::note_unknown(&plan, &args.choices, &meet)?;
    let counts: Vec<usize> = plan.placement.nodes.iter().map(|n| n.ranks.len()).collect();
    let each = per_node(&counts);
    for rank in 0..plan.placement.ranks {
        let mut lines = surroundings::of_rank(&plan, &args.choices, &meet, rank)?;
        lines.extend(restart_lines(run, attempt, args.restarts()));
        lines.extend(slurm_lines(&plan, &each, rank));
        ranks.push(one(args, &plan, wrap.as_ref(), rank, lines)?);
    }
    Ok(Planned { plan, ranks })
}

/// Who names a rank that is not there has another job in mind, and would see nothing. A job that
/// went on smaller has lost some that were.
fn check_ranks(args: &LaunchArgs, ranks: u32) -> Result<()> {
    let shown = args.show.iter().map(|&rank| ("--rank", rank));
    let wrapped = args.wrap_ranks.iter().flat_map(|set| set.iter());
    let mut named = shown.chain(wrapped.map(|rank| ("--wrap-ranks", rank as u32)));
    match named.find(|(_, rank)| *rank >= ranks) {
        Some((option, rank)) => bail!("{option} {rank}, but the job has ranks 0 to {}", ranks - 1),
        None => Ok(()),
    }
}

/// The rank that somebody else started as this process.
pub fn adopted(args: &LaunchArgs, plan: &Plan, rank: u32) -> Result<RankSpec> {
    let meet = surroundings::meet(&args.choices, plan, rank)?;
    let lines = surroundings::of_rank(plan, &args.choices, &meet, rank)?;
    Ok(one(args, plan, wrap(args)?.as_ref(), rank, lines)?.spec)
}

fn one(
    args: &LaunchArgs,
    plan: &Plan,
    wrap: Option<&Wrap>,
    rank: u32,
    lines: Vec<EnvLine>,
) -> Result<PlannedRank> {
    let Some((_, node, placed)) = plan.placement.find(rank) else {
        bail!("this is rank {rank}, and the plan has {} ranks", plan.placement.ranks);
    };
    let command: Vec<OsString> = match wrap {
        Some(wrap) => wrap.around(rank, &node.host, &args.command),
        None => args.command.clone(),
    };
    let setting = |line: &EnvLine| -> Setting { (line.variable.clone(), line.value.clone()) };
    let spec = RankSpec {
        rank,
        command,
        folder: None,
        base: Vec::new(),
        without: Vec::new(),
        env: lines.iter().map(setting).collect(),
        binding: Binding::new(&placed.cpus, &placed.memory),
    };
    Ok(PlannedRank { spec, lines, host: node.host.clone() })
}

fn wrap(args: &LaunchArgs) -> Result<Option<Wrap>> {
    let Some(text) = &args.wrap else { return Ok(None) };
    Ok(Some(Wrap::new(text, args.wrap_ranks.clone())?))
}

/// A batch script is task 0 to Slurm, and an agent is a task of its own: their ranks would be the
/// same, to programs that ask Slurm's variables.
fn slurm_lines(plan: &Plan, each: &str, rank: u32) -> Vec<EnvLine> {
    let Some((node, placed, own)) = plan.placement.find(rank) else { return Vec::new() };
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
        ("SLURM_TASKS_PER_NODE", each.to_owned()),
        ("SLURM_STEP_NUM_TASKS", ranks),
        // The step of the agents has the spares, too.
        ("SLURM_NNODES", nodes.clone()),
        ("SLURM_STEP_NUM_NODES", nodes),
        ("SLURM_STEP_NODELIST", hostlist::compress(&hosts)),
        ("SLURM_STEP_TASKS_PER_NODE", each.to_owned()),
    ];
    // An agent's step has variables that the one who launches has not.
    let agents = plan.is_of_nodes() && plan.env.has("SLURM_JOB_ID");
    let line = |(variable, value): (&str, String)| EnvLine {
        variable: variable.to_owned(),
        value: Some(value),
        why: "what Slurm set is not of this rank".to_owned(),
    };
    let known = |name: &str| agents || plan.env.has(name);
    values.into_iter().filter(|(name, _)| known(name)).map(line).collect()
}

/// Ranks on each node as Slurm writes it: `8(x3),4`.
fn per_node(counts: &[usize]) -> String {
    let runs = counts.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].to_string(),
        n => format!("{}(x{n})", run[0]),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// What tells a program that it was started anew, as torchrun does.
fn restart_lines(id: &str, attempt: u32, most: u32) -> [EnvLine; 3] {
    let line = |variable: &str, value: &str, why: &str| EnvLine {
        variable: variable.to_owned(),
        value: Some(value.to_owned()),
        why: why.to_owned(),
    };
    let count = "how often all ranks were started anew";
    [
        line("TORCHELASTIC_RUN_ID", id, "this run"),
        line("TORCHELASTIC_RESTART_COUNT", &attempt.to_string(), count),
        line("TORCHELASTIC_MAX_RESTARTS", &most.to_string(), "how often they may be"),
    ]
}

#[cfg(test)]
mod tests {
    use super::per_node;

    #[test]
    fn counts_as_slurm_writes_them() {
        assert_eq!(per_node(&[8, 8, 8, 4]), "8(x3),4");
        assert_eq!(per_node(&[2]), "2");
    }
}
