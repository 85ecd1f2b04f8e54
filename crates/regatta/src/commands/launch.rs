//! `regatta launch`: starts ranks, each bound and with its environment, and sees to their end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use regatta_launch::bind::Binding;
use regatta_launch::folder::{RunFolder, run_id};
use regatta_launch::job::{self, LocalJob};
use regatta_launch::port::{self, Reserved};
use regatta_launch::process::RankSpec;
use regatta_launch::signals::Caught;
use regatta_launch::supervise::Limits;
use regatta_launch::warden;
use regatta_launch::wrap::Wrap;
use regatta_model::result::RunResult;
use regatta_model::{CpuSet, document};
use regatta_place::environment::EnvLine;
use regatta_place::rendezvous;

use super::screen::Screen;
use crate::cli::{ERROR, FAINT, HEADING, LaunchArgs, WARNING};
use crate::plan::Plan;
use crate::shell::quote;
use crate::{output, surroundings};

/// Runs the command.
pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    let plan = Plan::gather(&args.source, &args.job)?;
    let live = plan.machines[0].is_live();
    if !live && !args.dry_run {
        bail!("--system and --machine describe another machine: use them with --dry-run");
    }
    match plan.allocation.me {
        Some(me) if !args.dry_run => adopt(args, &plan, me.rank),
        _ => start(args, &plan),
    }
}

/// Started once a rank by somebody else: becomes that rank.
fn adopt(args: &LaunchArgs, plan: &Plan, rank: u32) -> Result<ExitCode> {
    let meet = surroundings::meet(&args.choices, plan, rank)?;
    let env = surroundings::of_rank(plan, &args.choices, &meet, rank)?;
    Err(spec(args, plan, rank, env)?.become_it().into())
}

fn start(args: &LaunchArgs, plan: &Plan) -> Result<ExitCode> {
    let nodes = plan.placement.nodes.len();
    if nodes > 1 && !args.dry_run {
        bail!(
            "the job has {nodes} nodes, and launch starts ranks on one so far: start it once a rank, \
             as in `srun $(regatta map --format srun) regatta launch -- COMMAND`, or pass -N 1"
        );
    }
    let id = run_id(SystemTime::now(), std::process::id());
    if args.dry_run {
        output::print(&described(plan, &specs(args, plan, &id, 0)?.0))?;
        return Ok(ExitCode::SUCCESS);
    }
    warden::guard()?;
    let path = args.run_dir.clone().unwrap_or_else(|| PathBuf::from("runs").join(&id));
    let mut folder = RunFolder::create(&path)?;
    let mut screen =
        Screen::new(&plan.machines[0].host, plan.placement.ranks, &args.show, args.tee.as_deref())?;
    let mut signals = Caught::new()?;
    let mut attempt = 0;
    loop {
        // The port is kept until all ranks are over.
        let (ranks, _port) = specs(args, plan, &id, attempt)?;
        record(&folder, plan, &ranks)?;
        let host = plan.machines[0].host.clone();
        let job = LocalJob { host, ranks, limits: limits(args), attempt };
        let result = job::run(&job, &mut folder, &mut signals, &mut |line| screen.show(line))?;
        screen.settle();
        conclude(&result, &folder);
        // A full disk may be what ended the job: it must not hide how.
        if let Err(error) = folder.write("result.json", &document::to_json(&result)?) {
            output::complain(&format!("{WARNING}note:{WARNING:#} {error}\n"));
        }
        let failed = result.failure.is_some() || result.hang.is_some();
        if !failed || attempt == args.max_restarts || signals.asked_to_end() {
            return Ok(ExitCode::from(result.code));
        }
        attempt += 1;
        output::complain(&format!("starting all ranks anew, {attempt} of {}\n", args.max_restarts));
    }
}

fn limits(args: &LaunchArgs) -> Limits {
    Limits {
        grace: Duration::from_secs(args.grace),
        hang_after: args.hang_after.map(Duration::from_secs),
    }
}

/// All ranks with one meeting point. Nobody else has to find the port, so a taken one is passed
/// over, and the one found is kept.
fn specs(
    args: &LaunchArgs,
    plan: &Plan,
    id: &str,
    attempt: u32,
) -> Result<(Vec<RankSpec>, Option<Reserved>)> {
    // As a rank other than 0 would: whether the port is free is looked at here.
    let mut meet = surroundings::meet(&args.choices, plan, 1)?;
    let mut kept = None;
    if args.choices.master_port.is_none() {
        let free = port::reserve(rendezvous::ports_from(meet.port))
            .context("no port is free on this node: pass --master-port")?;
        meet.port = free.port();
        meet.port_why = "free on this node when the job started".to_owned();
        kept = Some(free);
    }
    let one = |rank| {
        let mut env = surroundings::of_rank(plan, &args.choices, &meet, rank)?;
        env.extend(restart_lines(id, attempt, args.max_restarts));
        env.extend(slurm_lines(plan, rank));
        spec(args, plan, rank, env)
    };
    let ranks: Result<Vec<RankSpec>> = (0..plan.placement.ranks).map(one).collect();
    Ok((ranks?, kept))
}

fn spec(args: &LaunchArgs, plan: &Plan, rank: u32, env: Vec<EnvLine>) -> Result<RankSpec> {
    let Some((_, _, placed)) = plan.placement.find(rank) else {
        bail!("this is rank {rank}, and the plan has {} ranks", plan.placement.ranks);
    };
    let binding = Binding::new(&placed.cpus, &placed.memory);
    let command = match wrap(args)? {
        Some(wrap) => wrap.around(rank, &plan.machines[0].host, &args.command),
        None => args.command.clone(),
    };
    Ok(RankSpec { rank, command, env, binding })
}

fn wrap(args: &LaunchArgs) -> Result<Option<Wrap>> {
    let Some(text) = &args.wrap else { return Ok(None) };
    Ok(Some(Wrap::new(text, args.wrap_ranks.clone())?))
}

/// A batch script is task 0 to Slurm, and so would be every rank it starts here, to programs that
/// ask Slurm's variables.
fn slurm_lines(plan: &Plan, rank: u32) -> Vec<EnvLine> {
    let local = plan.placement.find(rank).map_or(0, |(_, _, placed)| placed.local_rank);
    let own = [
        ("SLURM_PROCID", rank),
        ("SLURM_LOCALID", local),
        ("SLURM_NTASKS", plan.placement.ranks),
        ("SLURM_NPROCS", plan.placement.ranks),
    ];
    let line = |(variable, value): (&str, u32)| EnvLine {
        variable: variable.to_owned(),
        value: Some(value.to_string()),
        why: "the script's own would make every rank task 0".to_owned(),
    };
    own.into_iter().filter(|(name, _)| plan.env.has(name)).map(line).collect()
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

/// What the stages after this one read.
fn record(folder: &RunFolder, plan: &Plan, specs: &[RankSpec]) -> Result<()> {
    folder.write("machine.json", &document::to_json(&plan.machines[0])?)?;
    folder.write("placement.json", &document::to_json(&plan.placement)?)?;
    let environment: BTreeMap<u32, &[EnvLine]> =
        specs.iter().map(|s| (s.rank, s.env.as_slice())).collect();
    folder.write("environment.json", &serde_json::to_string_pretty(&environment)?)?;
    Ok(())
}

/// What would be started, rank by rank.
fn described(plan: &Plan, specs: &[RankSpec]) -> String {
    let mut text = String::new();
    for spec in specs {
        let Some((_, node, placed)) = plan.placement.find(spec.rank) else { continue };
        let words: Vec<String> = spec.command.iter().map(|w| quote(&w.to_string_lossy())).collect();
        text.push_str(&format!("{HEADING}rank {} on {}{HEADING:#}\n", spec.rank, node.host));
        text.push_str(&format!("  runs     {}\n", words.join(" ")));
        let line = |name: &str, what: &str, why: &str| {
            format!("  {name:<8} {what}  {FAINT}{why}{FAINT:#}\n")
        };
        text.push_str(&line("cpus", &placed.cpus.to_string(), &placed.reasons.cpus));
        text.push_str(&line("memory", &format!("{:?}", placed.memory), &placed.reasons.memory));
        for env in &spec.env {
            let value = env.value.as_deref().map_or("(unset)".to_owned(), quote);
            text.push_str(&line("sets", &format!("{}={value}", env.variable), &env.why));
        }
    }
    text
}

/// How it ended, for people: the first failure with its last lines, and what the others did.
fn conclude(result: &RunResult, folder: &RunFolder) {
    if result.code == 0 {
        output::complain(&format!("{FAINT}run folder: {}{FAINT:#}\n", folder.path().display()));
        return;
    }
    let mut text = format!("{ERROR}{}{ERROR:#}\n", result.reason);
    if let Some(failure) = &result.failure {
        failure.last_lines.iter().for_each(|line| text.push_str(&format!("  | {line}\n")));
        text.push_str(&states(&failure.others));
    }
    text.push_str(&result.hang.as_ref().map_or_else(String::new, states));
    text.push_str(&format!("  logs: {}\n", folder.path().join("log").display()));
    output::complain(&text);
}

/// What ranks were doing, those that did the same in one line.
fn states(ranks: &BTreeMap<u32, String>) -> String {
    let mut doing: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for (rank, what) in ranks {
        doing.entry(what).or_default().insert(*rank as usize);
    }
    doing.iter().map(|(what, ranks)| format!("  rank {ranks} was {what}\n")).collect()
}
