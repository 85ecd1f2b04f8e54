//! Runs that are made of several: one for each setting, or for each number of nodes. Each is this
//! program again, whose result is in a file of its own. One that fails does not end the others.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use regatta_launch::folder::run_id;
use regatta_launch::signals::Caught;
use regatta_measure::sweep::Sweep;
use regatta_measure::{scan, sweep, write};
use regatta_model::BenchResult;

use super::args::RunArgs;
use super::part::Part;
use super::{files, plot};
use crate::cli::{HEADING, WARNING};
use crate::options::SourceArgs;
use crate::output;
use crate::plan::Survey;

/// How often it is looked whether a run is over.
const TICK: Duration = Duration::from_millis(20);

/// Measures several times, and shows what comes of it.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let id = run_id(SystemTime::now(), std::process::id());
    let folder = args.ranks.run_dir.clone().unwrap_or_else(|| PathBuf::from("runs").join(id));
    match args.more.scan {
        true => over_nodes(args, &folder),
        false => over_settings(args, &folder),
    }
}

fn over_settings(args: &RunArgs, folder: &Path) -> Result<ExitCode> {
    let settings = Sweep::parse(&args.more.sweep)?.settings();
    let part = |(number, setting): (usize, &sweep::Setting)| Part {
        folder: folder.join(number.to_string()),
        label: setting.to_string(),
        environment: setting.variables.clone(),
        nodes: None,
    };
    let parts: Vec<Part> = settings.iter().enumerate().map(part).collect();
    let ran = measure(args, &parts)?;
    // Settings are known by their place, so one that failed keeps its own.
    let good = ran.found.iter().map(|found| found.good().cloned().unwrap_or_default());
    let best = sweep::best(&good.collect::<Vec<_>>());
    let table = sweep::table(&best, &settings);
    conclude(args, &ran, &table, serde_json::to_string_pretty(&best)?)
}

fn over_nodes(args: &RunArgs, folder: &Path) -> Result<ExitCode> {
    let source = SourceArgs {
        hostfile: args.ranks.hostfile.clone(),
        nodes: args.ranks.nodes,
        ..SourceArgs::default()
    };
    let nodes = Survey::take(&source, 0)?.allocation.nodes.len() as u32;
    if nodes < 2 {
        bail!(
            "--scan doubles the number of nodes, and there is one: run it in an allocation of \
             several, or name them by --hostfile"
        );
    }
    let counts = scan::counts(nodes);
    let part = |count: &u32| Part {
        folder: folder.join(format!("{count}-nodes")),
        label: regatta_model::units::count(*count as usize, "node"),
        environment: Vec::new(),
        nodes: Some(*count),
    };
    let parts: Vec<Part> = counts.iter().map(part).collect();
    let ran = measure(args, &parts)?;
    let good = |(count, found): (u32, &Found)| Some((count, found.good()?.clone()));
    let runs: Vec<(u32, BenchResult)> =
        counts.into_iter().zip(&ran.found).filter_map(good).collect();
    let scaling = scan::scaling(&runs);
    conclude(args, &ran, &scan::table(&scaling), serde_json::to_string_pretty(&scaling)?)
}

/// What came of all runs.
#[derive(Default)]
struct Ran {
    /// Of each that was begun.
    found: Vec<Found>,
    /// The signal that ended it early.
    signal: Option<i32>,
    /// Why the file with all results misses some.
    unsaved: Option<anyhow::Error>,
}

/// What came of one run.
struct Found {
    /// What it saved, also if it failed later.
    result: Option<BenchResult>,
    failed: bool,
}

impl Found {
    /// Its result, if it did not fail: a setting that fails is not the best one.
    fn good(&self) -> Option<&BenchResult> {
        self.result.as_ref().filter(|_| !self.failed)
    }
}

impl Ran {
    /// All that was saved.
    fn results(&self) -> Vec<BenchResult> {
        self.found.iter().filter_map(|found| found.result.clone()).collect()
    }

    /// Writes all that was saved into one file. A full disk must not end the runs.
    fn save(&mut self, out: &Path) {
        let text = files::as_list(&self.results());
        self.unsaved = text.and_then(|text| output::write_file(out, &text)).err();
    }

    fn code(&self) -> ExitCode {
        match self.signal {
            Some(signal) => ExitCode::from(128u8.saturating_add(signal as u8)),
            None if self.found.iter().any(|found| found.failed) => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}

/// Runs one after the other, up to the last or to a signal that asks for an end.
fn measure(args: &RunArgs, parts: &[Part]) -> Result<Ran> {
    if let Some(there) = parts.iter().map(Part::out).find(|out| out.exists()) {
        bail!("{} is there already: name another folder by --run-dir", there.display());
    }
    let mut signals = Caught::new()?;
    let mut ran = Ran::default();
    for (number, part) in (1..).zip(parts) {
        let heading = format!("{number} of {}: {}", parts.len(), part.label);
        output::complain(&format!("{HEADING}{heading}{HEADING:#}\n"));
        let status = status(&mut command(args, part)?, &mut signals)?;
        ran.signal = signals.end();
        ran.found.push(found(part, status, ran.signal.is_some()));
        // Standard output gets it once, at the end.
        if let Some(out) = args.output.out.as_deref().filter(|out| *out != Path::new("-")) {
            ran.save(out);
        }
        if ran.signal.is_some() {
            break;
        }
    }
    Ok(ran)
}

/// This program again, for one run.
fn command(args: &RunArgs, part: &Part) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("where this program is")?);
    command.args(std::env::args_os().skip(1)).args(part.words());
    command.envs(part.environment.iter().cloned());
    if args.output.json || args.output.csv {
        command.stdout(Stdio::null());
    }
    Ok(command)
}

/// Runs a command to its end. A signal that is for the whole is for it, who keeps what it has.
fn status(command: &mut Command, signals: &mut Caught) -> Result<ExitStatus> {
    let mut child = command.spawn().context("starting a run")?;
    loop {
        if let Some(status) = child.try_wait().context("waiting for a run")? {
            return Ok(status);
        }
        for signal in signals.pending() {
            let signal = rustix::process::Signal::from_named_raw(signal);
            if let (Some(signal), Ok(child)) = (signal, i32::try_from(child.id())) {
                let _ = rustix::process::Pid::from_raw(child)
                    .map(|child| rustix::process::kill_process(child, signal));
            }
        }
        std::thread::sleep(TICK);
    }
}

/// What came of a run that is over, and a note if it failed.
fn found(part: &Part, status: ExitStatus, stopped: bool) -> Found {
    let mut result = files::load(&part.out()).ok().and_then(|mut all| all.pop());
    let failed = !status.success() || result.is_none();
    if failed {
        let what = if stopped { "stopped" } else { "failed" };
        let left = match &result {
            Some(_) => format!("what was measured before is in {}", part.folder.display()),
            None => "nothing was measured".to_owned(),
        };
        let note = format!("{} {what} ({status}); {left}", part.label);
        output::complain(&format!("{WARNING}note:{WARNING:#} {note}\n"));
        result.iter_mut().for_each(|result| result.notes.push(note.clone()));
    }
    Found { result, failed }
}

/// Shows what there is, in the form that is asked for.
fn conclude(args: &RunArgs, ran: &Ran, table: &str, json: String) -> Result<ExitCode> {
    let results = ran.results();
    let text = match (args.output.json, args.output.csv) {
        (true, _) => json + "\n",
        (_, true) => write::csv(&results),
        _ if table.is_empty() => String::new(),
        _ => format!("\n{table}"),
    };
    output::print(&text)?;
    if args.output.out.as_deref() == Some(Path::new("-")) {
        output::print(&files::as_list(&results)?)?;
    }
    if let Some(path) = args.output.plot.as_ref().filter(|_| !results.is_empty()) {
        plot::draw(path, &results)?;
    }
    if let Some(error) = &ran.unsaved {
        bail!("the results are not saved: {error:#}");
    }
    Ok(ran.code())
}
