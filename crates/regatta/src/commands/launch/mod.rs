//! `regatta launch`: launches and supervises ranks, each with its binding and environment.

mod agents;
mod console;
mod line_writer;
mod local;
pub mod nccl_plugins;
mod net_check;
mod options;
mod preflight;
pub mod profile;
mod rank_specs;
mod report;
mod start_agents;
mod status_watch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use regatta_launch::config::JobConfig;
use regatta_launch::cpu_binding;
use regatta_launch::job::{self, AttemptOutcome, JobAttempt};
use regatta_launch::local::LocalStartError;
use regatta_launch::node_pool::{NodePool, PoolUpdate};
use regatta_launch::process::StartError;
use regatta_launch::reaper::{self, Watchdog};
use regatta_launch::restart_backoff::RestartBackoff;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::signals::SignalCatcher;
use regatta_launch::worker_group::WorkerGroup;
use regatta_model::document;
use regatta_model::run_folder;
use regatta_model::units::pluralize;

use crate::cli::LaunchArgs;
use crate::discovery::{Discovery, NO_SYSFS};
use crate::output;
use console::Console;
pub use line_writer::{QueuedOutput, QueuedStreams};
use nccl_plugins::NcclPlugins;
use net_check::{CheckedWorkers, NetCheck};
pub use options::LaunchOptions;
pub use rank_specs::AttemptSpec;
pub use start_agents::Interrupted;

/// Interval of signal checks before a restart.
const RESTART_POLL: Duration = Duration::from_millis(50);

/// Where ranks run: on this node, or on nodes with agents.
trait LaunchTarget {
    /// Plans an attempt, counted from 0.
    fn plan(&mut self, attempt: u32) -> Result<AttemptSpec>;

    /// Starts the ranks.
    fn start(&mut self, plan: &AttemptSpec, attempt: u32) -> Result<&mut dyn WorkerGroup>;

    /// Decides on which nodes the job can be restarted.
    fn restart_decision(&mut self, outcome: &AttemptOutcome) -> PoolUpdate;

    /// Handles events of the agents for this time, between two attempts.
    fn poll(&mut self, timeout: Duration);

    /// Lost nodes on which ranks of an attempt may still run.
    fn possibly_running(&mut self, outcome: &AttemptOutcome) -> Vec<usize>;

    /// Host names of the nodes.
    fn hosts(&self) -> &[String];

    /// Host names of the nodes that were given up, with the reasons.
    fn excluded(&self) -> Vec<(String, String)>;

    /// Shuts down after the last attempt.
    fn shutdown(self: Box<Self>);
}

/// Receives the messages of the ranks, for the command that launches them.
pub trait RankObserver {
    /// Called before a line of output is shown.
    fn on_line(&mut self);

    /// Called for each frame of a rank's channel. Returns its text for the rank's log, possibly empty.
    fn on_frame(&mut self, rank: u32, bytes: &[u8]) -> String;

    /// Called when a signal is forwarded to the ranks.
    fn on_signal(&mut self, signal: i32);

    /// Called at least once after all ranks have exited and their last line was shown.
    fn on_exit(&mut self);

    /// Why the job failed although all ranks exited successfully.
    fn failure(&self) -> Option<String>;

    /// Whether the observer itself prints the path of the run folder at the end.
    fn prints_run_dir(&self) -> bool;

    /// The observer's own text for the standard streams; `None`: it has none.
    fn output(&self) -> Option<QueuedStreams>;

    /// The input of the ranks for this plan; `None`: that of the options.
    fn rank_input(&mut self, _: &AttemptSpec) -> Result<Option<Arc<[u8]>>> {
        Ok(None)
    }

    /// Called before each attempt and after the last with the nodes that were given up, and the
    /// reasons.
    fn on_excluded(&mut self, _: Vec<(String, String)>) {}
}

/// The observer of a command that launches its own ranks.
type Observer<'a> = Option<&'a mut dyn RankObserver>;

/// Runs the command.
pub fn run(args: LaunchArgs) -> Result<ExitCode> {
    let mut options = args.into_options()?;
    let mut discovery = discover(&options.job)?;
    if options.preflight && !options.dry_run {
        preflight::run(&mut options.job, &mut discovery)?;
    }
    launch(&options, discovery, None)
}

/// Discovers this machine and, unless `--standalone` is given, the allocation.
pub fn discover(config: &JobConfig) -> Result<Discovery> {
    let mut discovery = Discovery::run(&config.source, config.spares)?;
    // Options of the launcher, such as a container, are for the ranks of any node.
    discovery.always_agents = !config.agents.options.is_empty();
    Ok(discovery)
}

/// Launches the ranks on the nodes that [`discover`] found.
pub fn launch(
    options: &LaunchOptions,
    discovery: Discovery,
    observer: Observer<'_>,
) -> Result<ExitCode> {
    let config = &options.job;
    if !discovery.machines[0].is_live() && !options.dry_run {
        bail!("--system and --machine describe another machine: use them with --dry-run");
    }
    match discovery.allocation.this_rank {
        Some(me) if !options.dry_run => return become_rank(options, discovery, me.rank),
        _ => node_pool(config, &discovery).map(drop)?,
    }
    if config.agents.launcher.is_some() && !discovery.needs_agents() {
        output::note("--launcher has no effect on one node: its ranks are started directly");
    }
    if !config.agents.options.is_empty() && !discovery.needs_agents() {
        output::note("--launcher-option has no effect outside an allocation: there are no agents");
    }
    let plugins = NcclPlugins::load(&options.parts, discovery.machines[0].is_live())?;
    match options.dry_run {
        true => dry_run(options, discovery, plugins),
        false => start(options, discovery, plugins, observer),
    }
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
fn node_pool(config: &JobConfig, discovery: &Discovery) -> Result<NodePool> {
    let nodes = discovery.allocation.nodes.len();
    Ok(NodePool::new(nodes, config.spares as usize, config.min_nodes.map(|n| n as usize))?)
}

/// Executes the rank's command in this process, which another launcher started as that rank.
fn become_rank(options: &LaunchOptions, discovery: Discovery, rank: u32) -> Result<ExitCode> {
    let LaunchOptions { job: config, parts, .. } = options;
    if parts.checks_net() {
        bail!(
            "--check-net and --require-net need one `regatta launch` for the whole job, not one per rank: \
             start it without srun or mpiexec, or set NCCL_DEBUG=INFO and read the log with `regatta net-log`"
        );
    }
    if parts.profile.is_some() {
        bail!(
            "--profile needs one `regatta launch` for the whole job, not one per rank: start it without \
             srun or mpiexec, or install the plug-in with `regatta plugin install`"
        );
    }
    nccl_plugins::check_one_launch(parts)?;
    let plan = discovery.plan(&config.source, &config.placement)?;
    if rank >= plan.placement.ranks {
        let ranks = pluralize(plan.placement.ranks as usize, "rank");
        bail!(
            "rank {rank} of the environment is out of range: the job has {ranks}; to launch a job \
             from within a rank, unset the launcher's variables (such as RANK and WORLD_SIZE)"
        );
    }
    let spec = rank_specs::adopted_rank(config, &plan, rank)?;
    if rank == 0 {
        cpu_binding::unavailable([&spec.binding].into_iter())
            .iter()
            .for_each(|note| output::note(note));
    }
    Err(spec.exec().into())
}

fn dry_run(
    options: &LaunchOptions,
    mut discovery: Discovery,
    mut plugins: NcclPlugins,
) -> Result<ExitCode> {
    let id = new_run_id();
    let LaunchOptions { job: config, parts, .. } = options;
    let agents = match discovery.machines[0].is_live() {
        true if discovery.needs_agents() => start_agents::describe(config, &discovery)?,
        true => String::new(),
        false => start_agents::describe_elsewhere(config, &discovery)?,
    };
    // Agents run on all nodes, ranks on all but the spares, which are the last.
    let nodes = &mut discovery.allocation.nodes;
    nodes.truncate(nodes.len() - config.spares as usize);
    let mut plan = local::LocalTarget::new(config, discovery, &id, None).plan(0)?;
    net_check::set_variables(parts, &mut plan, "RUN-FOLDER/net", 0)?;
    let folder = Path::new("RUN-FOLDER");
    profile::set_variables(parts, &mut plan, folder.join(run_folder::COMMS))?;
    plugins.set_variables(&mut plan, &folder.join(run_folder::PLUGINS))?;
    plugins.note_missing_rows(&plan);
    plan.job.placement.warnings.iter().for_each(output::warn);
    output::print(&format!("{agents}{}", report::describe(&plan)))?;
    Ok(ExitCode::SUCCESS)
}

/// Launches the job in a new run folder.
fn start(
    options: &LaunchOptions,
    discovery: Discovery,
    plugins: NcclPlugins,
    observer: Observer<'_>,
) -> Result<ExitCode> {
    let (timeout, report) = (options.job.heartbeat_timeout, output::error);
    reaper::fork_worker(Watchdog { timeout, report, killed: None })?;
    let id = new_run_id();
    let mut folder = RunFolder::create(&run_dir_or_new(options.job.run_dir.as_ref(), &id))?;
    let console = Console::new(options, observer);
    let job = LaunchedJob { options, id: &id, plugins };
    let ended = console.and_then(|console| supervise(job, discovery, &mut folder, console));
    if ended.is_err() {
        nccl_plugins::discard(&folder);
        profile::discard(&folder);
        folder.discard();
    }
    // What the caller prints waits for the terminal.
    reaper::suspend_heartbeats();
    ended
}

/// What the user has asked for.
struct LaunchedJob<'a> {
    options: &'a LaunchOptions,
    /// ID of the run.
    id: &'a str,
    plugins: NcclPlugins,
}

fn supervise(
    mut job: LaunchedJob<'_>,
    discovery: Discovery,
    folder: &mut RunFolder,
    mut console: Console<'_>,
) -> Result<ExitCode> {
    let LaunchedJob { options, id, .. } = job;
    let config = &options.job;
    let mut signals = SignalCatcher::new()?;
    let mut target: Box<dyn LaunchTarget> = match discovery.needs_agents() {
        true => {
            Box::new(agents::AgentTarget::connect(config, discovery, id, folder, &mut signals)?)
        }
        false => Box::new(local::LocalTarget::new(config, discovery, id, Some(folder.logs()))),
    };
    let code = run_attempts(&mut job, target.as_mut(), folder, &mut signals, &mut console);
    console.on_excluded(target.excluded());
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
    LaunchedJob { options, plugins, .. }: &mut LaunchedJob<'_>,
    target: &mut dyn LaunchTarget,
    folder: &mut RunFolder,
    signals: &mut SignalCatcher,
    console: &mut Console<'_>,
) -> Result<ExitCode> {
    let LaunchOptions { job: config, parts, .. } = options;
    let mut attempt = 0;
    let mut is_incomplete = false;
    let mut backoff = RestartBackoff::default();
    loop {
        let mut plan = target.plan(attempt)?;
        if attempt == 0 {
            let warnings = plan.job.placement.warnings.iter();
            warnings.filter(|warning| warning.code == NO_SYSFS).for_each(output::warn);
        }
        plan.set_run_dir(folder.path());
        console.prepare(&mut plan, target.excluded())?;
        let mut net_check = NetCheck::prepare(parts, &mut plan, folder, attempt)?;
        let mut profile = profile::prepare(parts, &mut plan, folder, config.hang_timeout)?;
        plugins.prepare(&mut plan, folder)?;
        report::write_plan(folder, &plan)?;
        console.set_hosts(&plan.hosts());
        let job = JobAttempt {
            command: config.workload.user_command(),
            hosts: plan.hosts(),
            limits: config.limits(),
            attempt,
        };
        let workers = target.start(&plan, attempt)?;
        if attempt == 0 && !console.has_observer() {
            report::print_start(&plan, folder);
        }
        let check = net_check.as_mut();
        let mut workers = CheckedWorkers { workers, check, watch: profile.as_mut() };
        let mut outcome = job::run(&job, &mut workers, folder, signals, console);
        is_incomplete |= console.report_losses(folder.path());
        if let Some(watch) = profile {
            profile::finish(watch, folder, &mut outcome.result);
        }
        let withheld = console.take_withheld();
        report::print_result(&outcome.result, folder, console.prints_run_dir(), &withheld);
        profile::print_hint(parts, folder);
        console.apply_failure(&mut outcome.result);
        if let Some(check) = net_check {
            check.finish(folder, &mut outcome.result);
        }
        let result = &outcome.result;
        // A full disk may be the cause of the failure and must not hide it.
        if let Err(error) = folder.write_durable(run_folder::RESULT, &document::to_json(result)?) {
            output::note(&error.to_string());
        }
        let failed = result.failure.is_some() || result.hang.is_some();
        let code = match result.exit_code {
            0 if is_incomplete => ExitCode::FAILURE,
            code => ExitCode::from(code),
        };
        let interrupted = outcome.terminated || signals.termination().is_some();
        if !failed || attempt == config.restarts() || interrupted {
            return Ok(code);
        }
        let decision = target.restart_decision(&outcome);
        report::print_restart_decision(&decision, target.hosts());
        if matches!(decision, PoolUpdate::GiveUp(_)) {
            return Ok(code);
        }
        attempt += 1;
        let delay = backoff.delay_after(Duration::from_secs_f64(outcome.result.seconds));
        let fence = outcome.node_lost_at.map(|at| at + fence_time(config));
        report::print_restart(attempt, config.restarts(), delay);
        let until = RestartTime { earliest: Instant::now() + delay, fence };
        if !wait_for_restart(target, &outcome, until, signals) {
            return Ok(code);
        }
    }
}

/// When a job may be restarted.
struct RestartTime {
    /// The end of the back-off.
    earliest: Instant,
    /// When the agents of lost nodes have killed their ranks in any case.
    fence: Option<Instant>,
}

/// Time after which no rank runs on a node that was declared lost: its agent notices the lost
/// connection, and kills its ranks after the grace period. The time that the node had to reconnect
/// before it was declared lost is the margin.
fn fence_time(config: &JobConfig) -> Duration {
    config.heartbeat_timeout + config.grace()
}

/// Waits until the job may be restarted: a rank must not run next to its replacement. Returns false if
/// a termination signal arrives.
fn wait_for_restart(
    target: &mut dyn LaunchTarget,
    outcome: &AttemptOutcome,
    until: RestartTime,
    signals: &mut SignalCatcher,
) -> bool {
    let mut is_reported = false;
    while signals.termination().is_none() {
        let now = Instant::now();
        let remaining = until.fence.map_or(Duration::ZERO, |at| at.saturating_duration_since(now));
        let unfenced = match remaining.is_zero() {
            true => Vec::new(),
            false => target.possibly_running(outcome),
        };
        if now >= until.earliest && unfenced.is_empty() {
            return true;
        }
        if !unfenced.is_empty() && !std::mem::replace(&mut is_reported, true) {
            report::print_fence(&unfenced, target.hosts(), remaining);
        }
        target.poll(RESTART_POLL);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::result::RunResult;

    /// A target with these nodes on which ranks may still run.
    struct FakeTarget(Vec<usize>);

    impl LaunchTarget for FakeTarget {
        fn plan(&mut self, _: u32) -> Result<AttemptSpec> {
            bail!("not planned")
        }

        fn start(&mut self, _: &AttemptSpec, _: u32) -> Result<&mut dyn WorkerGroup> {
            bail!("not started")
        }

        fn restart_decision(&mut self, _: &AttemptOutcome) -> PoolUpdate {
            PoolUpdate::Unchanged
        }

        fn poll(&mut self, timeout: Duration) {
            std::thread::sleep(timeout);
        }

        fn possibly_running(&mut self, _: &AttemptOutcome) -> Vec<usize> {
            self.0.clone()
        }

        fn hosts(&self) -> &[String] {
            &[]
        }

        fn excluded(&self) -> Vec<(String, String)> {
            Vec::new()
        }

        fn shutdown(self: Box<Self>) {}
    }

    #[test]
    fn restart_waits_for_the_backoff_and_until_lost_ranks_are_gone() {
        let result = RunResult {
            command: Vec::new(),
            ranks: 1,
            exit_code: 137,
            restarts: 0,
            reason: String::new(),
            failure: None,
            hang: None,
            collectives: Vec::new(),
            notes: Vec::new(),
            rank_exits: Default::default(),
            seconds: 1.0,
        };
        let outcome =
            AttemptOutcome { result, lost_nodes: vec![0], node_lost_at: None, terminated: false };
        let mut signals = SignalCatcher::new().unwrap();
        let mut waits = |running: &[usize], delay, fence| {
            let start = Instant::now();
            let [earliest, fence] =
                [delay, fence].map(|millis| start + Duration::from_millis(millis));
            let until = RestartTime { earliest, fence: Some(fence) };
            let mut target = FakeTarget(running.to_vec());
            assert!(wait_for_restart(&mut target, &outcome, until, &mut signals));
            start.elapsed() >= Duration::from_millis(300)
        };
        assert!(waits(&[0], 0, 300), "for the fence");
        assert!(waits(&[], 300, 60_000), "for the back-off only: the agent has exited");
        assert!(waits(&[0], 300, 0), "for the back-off after the fence");
    }
}
