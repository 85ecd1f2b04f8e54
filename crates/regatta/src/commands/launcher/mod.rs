//! Launches and supervises ranks, each with its binding and environment: the user's, or those of a command
//! that launches its own.

mod console;
mod dry_run;
mod line_writer;
pub mod nccl_plugins;
mod net_check;
mod options;
pub mod profile;
mod report;
mod status_watch;

use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_launch::attempt::adopted_rank;
use regatta_launch::discovery::Discovery;
use regatta_launch::driver::{self, Job};
use regatta_launch::error::LaunchError;
use regatta_launch::parts::JobParts;
use regatta_launch::process::StartError;
use regatta_launch::reaper::{self, Watchdog};
use regatta_launch::status::{JobObserver, Observers};

use crate::output;
use console::Console;
pub use line_writer::{QueuedOutput, QueuedStreams};
pub use options::LaunchOptions;
pub use regatta_launch::driver::{new_run_id, run_dir_or_new};
pub use regatta_launch::error::Interrupted;
pub use report::nodes_changed;

/// What reports the progress of a command's own ranks to the user.
pub struct RankReporter<'a> {
    pub observer: &'a mut dyn JobObserver,
    /// Whether it prints the path of the run folder at the end.
    pub names_run_dir: bool,
}

/// Launches the ranks on the nodes that were discovered. `parts` are those of the command that launches its
/// own ranks, and `reporter` reports what they do. Returns the exit code.
pub fn launch<'a>(
    options: &'a LaunchOptions,
    discovery: Discovery,
    reporter: Option<RankReporter<'_>>,
    mut parts: JobParts<'a>,
) -> Result<u8> {
    let config = &options.job;
    let is_live = discovery.machines[0].is_live();
    if !is_live && !options.dry_run {
        bail!("--system and --machine describe another machine: use them with --dry-run");
    }
    match discovery.allocation.this_rank {
        Some(me) if !options.dry_run => return become_rank(options, discovery, me.rank),
        _ => driver::node_pool(config, &discovery).map(drop)?,
    }
    if config.agents.launcher.is_some() && !discovery.needs_agents() {
        output::note("--launcher has no effect on one node: its ranks are started directly");
    }
    if !config.agents.options.is_empty() && !discovery.needs_agents() {
        output::note("--launcher-option has no effect outside an allocation: there are no agents");
    }
    parts.extend(options.parts.load(config, is_live)?);
    let job = Job { config, parts };
    match options.dry_run {
        true => dry_run::print(job, discovery).map(|()| 0),
        false => start(options, job, discovery, reporter),
    }
}

/// Exit code of an error: 127 if the user's command cannot be executed, like a shell.
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let code = match error.downcast_ref::<Interrupted>() {
        Some(Interrupted(ending)) => ending.exit_code(),
        None if error.is::<StartError>() => StartError::EXIT_CODE,
        None => error.downcast_ref().map_or(1, LaunchError::exit_code),
    };
    ExitCode::from(code)
}

/// Executes the rank's command in this process, which another launcher started as that rank.
fn become_rank(options: &LaunchOptions, discovery: Discovery, rank: u32) -> Result<u8> {
    options.parts.check_one_launch()?;
    let (spec, notes) = adopted_rank(&options.job, discovery, rank)?;
    notes.iter().for_each(|note| output::note(note));
    Err(spec.exec().into())
}

/// Launches the job in a new run folder.
fn start(
    options: &LaunchOptions,
    job: Job<'_>,
    discovery: Discovery,
    reporter: Option<RankReporter<'_>>,
) -> Result<u8> {
    let (timeout, report) = (options.job.heartbeat_timeout, output::error);
    reaper::fork_worker(Watchdog { timeout, report, agent: None })?;
    let names_run_dir = reporter.as_ref().is_some_and(|reporter| reporter.names_run_dir);
    let mut console = Console::new(options, names_run_dir)?;
    let mut observers: Vec<&mut dyn JobObserver> = Vec::new();
    if let Some(reporter) = reporter {
        observers.push(reporter.observer);
    }
    observers.push(&mut console);
    let result = driver::run(job, discovery, &mut Observers::new(observers))?;
    Ok(result.exit_code.max(console.is_incomplete().into()))
}
