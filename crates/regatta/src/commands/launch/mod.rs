//! `regatta launch`: starts ranks, each bound and with its environment, and sees to their end.

mod here;
mod raise;
mod ranks;
mod report;
mod screen;
mod there;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use regatta_launch::crew::Crew;
use regatta_launch::folder::{RunFolder, run_id};
use regatta_launch::job::{self, Job, Outcome};
use regatta_launch::local::CrewError;
use regatta_launch::process::StartError;
use regatta_launch::roster::{Roster, Verdict};
use regatta_launch::signals::Caught;
use regatta_launch::supervise::Limits;
use regatta_launch::warden;
use regatta_model::document;

use crate::cli::{LaunchArgs, WARNING};
use crate::output;
use crate::plan::Survey;
use ranks::Planned;
use screen::Screen;

/// Where ranks run: on this machine, or on nodes with agents.
trait Ground {
    /// Plans a start of the job. The first is number 0.
    fn plan(&mut self, attempt: u32) -> Result<Planned>;

    /// Starts the ranks.
    fn start(&mut self, planned: &Planned, attempt: u32) -> Result<&mut dyn Crew>;

    /// Says on which nodes the job can be started anew.
    fn judge(&mut self, outcome: &Outcome) -> Verdict;

    /// The names of nodes.
    fn hosts(&self) -> &[String];

    /// The job is over.
    fn end(self: Box<Self>);
}

/// Hears every line that ranks write, before it is shown.
pub struct Listener {
    /// Whether a line is for the listener alone.
    pub takes: fn(&str) -> bool,
    /// Hears a line.
    pub hear: Box<dyn FnMut(&str)>,
    /// Whether it says itself, at the end, where the run is kept.
    pub names_folder: bool,
}

/// Runs the command.
pub fn run(args: &LaunchArgs) -> Result<ExitCode> {
    run_heard(args, None)
}

/// Runs the command for another one, which hears what ranks write before it is shown.
pub fn run_heard(args: &LaunchArgs, listener: Option<Listener>) -> Result<ExitCode> {
    let survey = Survey::take(&args.source, args.spares)?;
    if !survey.machines[0].is_live() && !args.dry_run {
        bail!("--system and --machine describe another machine: use them with --dry-run");
    }
    match survey.allocation.me {
        Some(me) if !args.dry_run => return adopt(args, survey, me.rank),
        _ => check_nodes(args, &survey)?,
    }
    if args.dry_run { dry_run(args, survey) } else { start(args, survey, listener) }
}

/// The exit code of an error: what a shell says where it is the user's command that cannot be run.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    let command = error.downcast_ref::<StartError>().is_some()
        || matches!(error.downcast_ref(), Some(CrewError::Start(_)));
    match error.downcast_ref::<raise::Interrupted>() {
        Some(raise::Interrupted(ending)) => ExitCode::from(ending.code()),
        None if command => ExitCode::from(127),
        None => ExitCode::FAILURE,
    }
}

/// The nodes suffice for what is asked of them.
fn check_nodes(args: &LaunchArgs, survey: &Survey) -> Result<()> {
    let nodes = survey.allocation.nodes.len();
    Roster::new(nodes, args.spares as usize, args.min_nodes.map(|n| n as usize))?;
    Ok(())
}

/// Started once a rank by somebody else: becomes that rank.
fn adopt(args: &LaunchArgs, survey: Survey, rank: u32) -> Result<ExitCode> {
    let plan = survey.plan(&args.source, &args.job)?;
    if rank >= plan.placement.ranks {
        bail!(
            "this process is rank {rank} by its environment, and the job has {}; in a rank that \
             starts a job of its own, unset RANK and WORLD_SIZE first",
            plan.placement.ranks
        );
    }
    Err(ranks::adopted(args, &plan, rank)?.become_it().into())
}

fn dry_run(args: &LaunchArgs, mut survey: Survey) -> Result<ExitCode> {
    let id = run_id(SystemTime::now(), std::process::id());
    let agents = match survey.is_elsewhere() && survey.machines[0].is_live() {
        true => raise::described(args, &survey)?,
        false => String::new(),
    };
    // Agents are on all nodes, ranks not on the spares, which are the last.
    let nodes = &mut survey.allocation.nodes;
    nodes.truncate(nodes.len() - args.spares as usize);
    let planned = here::Here::new(args, survey, &id, None).plan(0)?;
    planned.plan.placement.warnings.iter().for_each(output::note);
    output::print(&format!("{agents}{}", report::described(&planned)))?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the ranks, and anew after failures, as often as may be.
fn start(args: &LaunchArgs, survey: Survey, listener: Option<Listener>) -> Result<ExitCode> {
    warden::guard()?;
    let id = run_id(SystemTime::now(), std::process::id());
    let path = args.run_dir.clone().unwrap_or_else(|| PathBuf::from("runs").join(&id));
    let mut folder = RunFolder::create(&path)?;
    let screen = Screen::new(&args.show, args.tee.as_deref(), listener);
    let ended = screen.and_then(|screen| in_folder(args, survey, &id, &mut folder, screen));
    if ended.is_err() {
        folder.abandon();
    }
    ended
}

fn in_folder(
    args: &LaunchArgs,
    survey: Survey,
    id: &str,
    folder: &mut RunFolder,
    screen: Screen,
) -> Result<ExitCode> {
    let mut signals = Caught::new()?;
    let mut ground: Box<dyn Ground> = match survey.is_elsewhere() {
        true => Box::new(there::There::up(args, survey, id, folder, &mut signals)?),
        false => Box::new(here::Here::new(args, survey, id, Some(folder.logs()))),
    };
    let code = attempts(args, ground.as_mut(), folder, &mut signals, screen);
    ground.end();
    code
}

fn attempts(
    args: &LaunchArgs,
    ground: &mut dyn Ground,
    folder: &mut RunFolder,
    signals: &mut Caught,
    mut screen: Screen,
) -> Result<ExitCode> {
    let mut attempt = 0;
    loop {
        let mut planned = ground.plan(attempt)?;
        planned.tell_folder(folder.path());
        report::record(folder, &planned)?;
        screen.shows(&planned.hosts());
        let mut outcome = one(args, ground, &planned, folder, signals, &mut screen, attempt)?;
        if let Some(failure) = &mut outcome.result.failure {
            failure.last_lines.retain(|line| screen.is_shown(line));
        }
        screen.settle();
        report::conclude(&outcome.result, folder, screen.names_folder());
        // A full disk may be what ended the job: it must not hide how.
        if let Err(error) = folder.write_safely("result.json", &document::to_json(&outcome.result)?)
        {
            output::complain(&format!("{WARNING}note:{WARNING:#} {error}\n"));
        }
        let failed = outcome.result.failure.is_some() || outcome.result.hang.is_some();
        let code = ExitCode::from(outcome.result.code);
        let asked_to_end = outcome.asked_to_end || signals.end().is_some();
        if !failed || attempt == args.restarts() || asked_to_end {
            return Ok(code);
        }
        let verdict = ground.judge(&outcome);
        report::verdict(&verdict, ground.hosts());
        if matches!(verdict, Verdict::GiveUp(_)) {
            return Ok(code);
        }
        attempt += 1;
        output::complain(&format!("starting all ranks anew, {attempt} of {}\n", args.restarts()));
    }
}

/// One start of all ranks, to its end.
fn one(
    args: &LaunchArgs,
    ground: &mut dyn Ground,
    planned: &Planned,
    folder: &mut RunFolder,
    signals: &mut Caught,
    screen: &mut Screen,
    attempt: u32,
) -> Result<Outcome> {
    let job = Job {
        command: args.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
        hosts: planned.hosts(),
        limits: limits(args),
        attempt,
    };
    let crew = ground.start(planned, attempt)?;
    Ok(job::run(&job, crew, folder, signals, &mut |line| screen.show(line)))
}

fn limits(args: &LaunchArgs) -> Limits {
    Limits {
        grace: Duration::from_secs(args.grace),
        hang_after: args.hang_after.map(Duration::from_secs),
    }
}
