//! `regatta launch`: launches and supervises ranks, each with its binding and environment.

mod agents;
mod console;
mod local;
mod rank_specs;
mod report;
mod start_agents;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Result, bail};
use regatta_launch::job::{self, AttemptOutcome, JobAttempt};
use regatta_launch::local::LocalStartError;
use regatta_launch::node_pool::{NodePool, PoolUpdate};
use regatta_launch::process::StartError;
use regatta_launch::reaper;
use regatta_launch::run_folder::{self, RunFolder};
use regatta_launch::signals::SignalCatcher;
use regatta_launch::worker_group::WorkerGroup;
use regatta_model::document;

use crate::cli::LaunchArgs;
use crate::commands::rank_worker;
use crate::output;
use crate::plan::Discovery;
use console::Console;
use rank_specs::LaunchPlan;

/// Where ranks run: on this node, or on nodes with agents.
trait LaunchTarget {
    /// Plans an attempt, counted from 0.
    fn plan(&mut self, attempt: u32) -> Result<LaunchPlan>;

    /// Starts the ranks.
    fn start(&mut self, plan: &LaunchPlan, attempt: u32) -> Result<&mut dyn WorkerGroup>;

    /// Decides on which nodes the job can be restarted.
    fn restart_decision(&mut self, outcome: &AttemptOutcome) -> PoolUpdate;

    /// Host names of the nodes.
    fn hosts(&self) -> &[String];

    /// Shuts down after the last attempt.
    fn shutdown(self: Box<Self>);
}

/// Receives the messages of the ranks, for the command that launches them.
pub trait RankObserver {
    /// Called before a line of output is shown.
    fn on_line(&mut self);

    /// Called for each frame of a rank's channel.
    fn on_frame(&mut self, rank: u32, bytes: &[u8]);

    /// Called when a signal is forwarded to the ranks.
    fn on_signal(&mut self, signal: i32);

    /// Whether the observer itself prints the path of the run folder at the end.
    fn prints_run_dir(&self) -> bool;
}

/// The observer of a command that launches its own ranks.
type Observer<'a> = Option<&'a mut dyn RankObserver>;

/// Runs the command.
pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    launch(args, discover(args)?, None)
}

/// Discovers this machine and the allocation.
pub fn discover(args: &LaunchArgs) -> Result<Discovery> {
    Discovery::run(&args.source, args.spares)
}

/// Launches the ranks on the nodes that [`discover`] found.
pub fn launch(args: &LaunchArgs, discovery: Discovery, observer: Observer<'_>) -> Result<ExitCode> {
    if !discovery.machines[0].is_live() && !args.dry_run {
        bail!("--system and --machine describe another machine: use them with --dry-run");
    }
    match discovery.allocation.this_rank {
        Some(me) if !args.dry_run => return become_rank(args, discovery, me.rank),
        _ => node_pool(args, &discovery).map(drop)?,
    }
    if args.launcher.is_some() && !discovery.needs_agents() {
        output::note("--launcher has no effect on one node: its ranks are started directly");
    }
    if args.dry_run { dry_run(args, discovery) } else { start(args, discovery, observer) }
}

/// Exit code of an error: 127 if the user's command cannot be executed, like a shell.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let command = error.downcast_ref::<StartError>().is_some()
        || matches!(error.downcast_ref(), Some(LocalStartError::Start(_)));
    match error.downcast_ref::<start_agents::Interrupted>() {
        Some(start_agents::Interrupted(ending)) => ExitCode::from(ending.exit_code()),
        None if command => ExitCode::from(127),
        None => ExitCode::FAILURE,
    }
}

/// The nodes and spares of the job. Checks `--spares` and `--min-nodes`.
fn node_pool(args: &LaunchArgs, discovery: &Discovery) -> Result<NodePool> {
    let nodes = discovery.allocation.nodes.len();
    Ok(NodePool::new(nodes, args.spares as usize, args.min_nodes.map(|n| n as usize))?)
}

/// Executes the rank's command in this process, which another launcher started as that rank.
fn become_rank(args: &LaunchArgs, discovery: Discovery, rank: u32) -> Result<ExitCode> {
    let plan = discovery.plan(&args.source, &args.job)?;
    let ranks = plan.placement.ranks;
    if rank >= ranks {
        bail!(
            "rank {rank} of the environment is out of range: the job has {ranks} ranks; to launch a \
             job from within a rank, unset the launcher's variables (such as RANK and WORLD_SIZE)"
        );
    }
    Err(rank_specs::adopted_rank(args, &plan, rank)?.exec().into())
}

fn dry_run(args: &LaunchArgs, mut discovery: Discovery) -> Result<ExitCode> {
    let id = new_run_id();
    let agents = match discovery.needs_agents() && discovery.machines[0].is_live() {
        true => start_agents::describe(args, &discovery)?,
        false => String::new(),
    };
    // Agents run on all nodes, ranks on all but the spares, which are the last.
    let nodes = &mut discovery.allocation.nodes;
    nodes.truncate(nodes.len() - args.spares as usize);
    let plan = local::LocalTarget::new(args, discovery, &id, None).plan(0)?;
    plan.job.placement.warnings.iter().for_each(output::warn);
    output::print(&format!("{agents}{}", report::describe(&plan)))?;
    Ok(ExitCode::SUCCESS)
}

/// Launches the job in a new run folder.
fn start(args: &LaunchArgs, discovery: Discovery, observer: Observer<'_>) -> Result<ExitCode> {
    reaper::fork_worker()?;
    let id = new_run_id();
    let mut folder = RunFolder::create(&run_dir_or_new(args.run_dir.as_ref(), &id))?;
    let console = Console::new(&args.show, args.tee.as_deref(), observer);
    let ended = console.and_then(|console| supervise(args, discovery, &id, &mut folder, console));
    if ended.is_err() {
        folder.discard();
    }
    ended
}

fn supervise(
    args: &LaunchArgs,
    discovery: Discovery,
    id: &str,
    folder: &mut RunFolder,
    console: Console<'_>,
) -> Result<ExitCode> {
    let mut signals = SignalCatcher::new()?;
    let mut target: Box<dyn LaunchTarget> = match discovery.needs_agents() {
        true => Box::new(agents::AgentTarget::connect(args, discovery, id, folder, &mut signals)?),
        false => Box::new(local::LocalTarget::new(args, discovery, id, Some(folder.logs()))),
    };
    let code = run_attempts(args, target.as_mut(), folder, &mut signals, console);
    target.shutdown();
    code
}

/// The path of `--run-dir`, or a new folder in `runs`.
pub fn run_dir_or_new(run_dir: Option<&PathBuf>, id: &str) -> PathBuf {
    run_dir.cloned().unwrap_or_else(|| PathBuf::from("runs").join(id))
}

/// The ID of a run that starts now.
pub fn new_run_id() -> String {
    run_folder::run_id(SystemTime::now(), std::process::id())
}

/// Runs the job, and again after failures, up to the maximum number of restarts.
fn run_attempts(
    args: &LaunchArgs,
    target: &mut dyn LaunchTarget,
    folder: &mut RunFolder,
    signals: &mut SignalCatcher,
    mut console: Console<'_>,
) -> Result<ExitCode> {
    let mut attempt = 0;
    loop {
        let mut plan = target.plan(attempt)?;
        plan.set_run_dir(folder.path());
        report::write_plan(folder, &plan)?;
        console.set_hosts(&plan.hosts());
        let job = JobAttempt {
            command: match args.rank_input {
                // The ranks' own command says nothing to the user.
                Some(_) => rank_worker::command_line(),
                None => args.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            },
            hosts: plan.hosts(),
            limits: args.limits(),
            attempt,
        };
        let workers = target.start(&plan, attempt)?;
        let outcome = job::run(&job, workers, folder, signals, &mut console);
        let result = &outcome.result;
        console.flush();
        report::print_result(result, folder, console.prints_run_dir());
        // A full disk may be the cause of the failure and must not hide it.
        if let Err(error) = folder.write_durable("result.json", &document::to_json(result)?) {
            output::note(&error.to_string());
        }
        let failed = result.failure.is_some() || result.hang.is_some();
        let code = ExitCode::from(result.exit_code);
        let interrupted = outcome.terminated || signals.termination().is_some();
        if !failed || attempt == args.restarts() || interrupted {
            return Ok(code);
        }
        let decision = target.restart_decision(&outcome);
        report::print_restart_decision(&decision, target.hosts());
        if matches!(decision, PoolUpdate::GiveUp(_)) {
            return Ok(code);
        }
        attempt += 1;
        let max = args.restarts();
        output::eprint(&format!("restarting all ranks: restart {attempt} of {max}\n"));
    }
}
