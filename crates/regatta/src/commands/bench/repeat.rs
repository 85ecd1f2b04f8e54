//! Runs that are made of several: one for each setting, or for each number of nodes. Each is this
//! program again, whose result is in a file of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use regatta_launch::folder::run_id;
use regatta_launch::signals::Caught;
use regatta_measure::sweep::Sweep;
use regatta_measure::{scan, sweep};
use regatta_model::BenchResult;

use super::args::RunArgs;
use super::{files, plot};
use crate::cli::HEADING;
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
    let sweep = Sweep::parse(&args.more.sweep)?;
    let settings = sweep.settings();
    let mut results = Vec::new();
    for (number, setting) in settings.iter().enumerate() {
        // What the site sets would win over what is tried.
        let without =
            setting.variables.iter().flat_map(|(name, _)| ["--without".into(), name.clone()]);
        let one = One {
            folder: folder.join(number.to_string()),
            label: setting.to_string(),
            environment: setting.variables.clone(),
            launch: without.collect(),
            options: Vec::new(),
        };
        results.push(one.run(args, number, settings.len())?);
    }
    let best = sweep::best(&results);
    let table = sweep::table(&best, &settings);
    conclude(args, &results, &table, serde_json::to_string_pretty(&best)?)
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
    let mut results = Vec::new();
    for (number, count) in counts.iter().enumerate() {
        let one = One {
            folder: folder.join(format!("{count}-nodes")),
            label: regatta_model::units::count(*count as usize, "node"),
            environment: Vec::new(),
            launch: Vec::new(),
            options: vec!["--nodes".into(), count.to_string().into()],
        };
        results.push(one.run(args, number, counts.len())?);
    }
    let runs: Vec<(u32, BenchResult)> = counts.into_iter().zip(results.clone()).collect();
    let scaling = scan::scaling(&runs);
    conclude(args, &results, &scan::table(&scaling), serde_json::to_string_pretty(&scaling)?)
}

fn conclude(
    args: &RunArgs,
    results: &[BenchResult],
    table: &str,
    json: String,
) -> Result<ExitCode> {
    if let Some(path) = &args.output.plot {
        plot::draw(path, results)?;
    }
    let text = if args.output.json { json + "\n" } else { format!("\n{table}") };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// One of several runs.
struct One {
    folder: PathBuf,
    label: String,
    environment: Vec<(String, String)>,
    /// Options for `regatta launch`.
    launch: Vec<String>,
    /// Options of its own.
    options: Vec<OsString>,
}

impl One {
    fn run(&self, args: &RunArgs, number: usize, of: usize) -> Result<BenchResult> {
        output::complain(&format!("{HEADING}{} of {of}: {}{HEADING:#}\n", number + 1, self.label));
        let out = self.folder.join("bench.json");
        let mut command = Command::new(std::env::current_exe().context("where this program is")?);
        command.args(kept(std::env::args_os().skip(1))).args(&self.options);
        command.arg("--run-dir").arg(&self.folder).arg("--output_file").arg(&out);
        command.args(["--label", &self.label]);
        let launch = self.launch.iter().map(String::as_str).chain(args.ranks.launch.as_deref());
        let launch: Vec<&str> = launch.collect();
        if !launch.is_empty() {
            command.args(["--launch", &launch.join(" ")]);
        }
        command.envs(self.environment.iter().cloned());
        if args.output.json {
            command.stdout(std::process::Stdio::null());
        }
        let status = status(&mut command)?;
        if !status.success() {
            bail!(
                "{} failed ({status}); what was measured before is in {}",
                self.label,
                self.folder.display()
            );
        }
        let mut results = files::load(&out)?;
        results.pop().with_context(|| format!("{} has no result", out.display()))
    }
}

/// Runs a command to its end. A signal that is for the whole is for it, who keeps what it has.
fn status(command: &mut Command) -> Result<ExitStatus> {
    let mut signals = Caught::new()?;
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

/// Options that mean something else, or nothing, for one run of several: those with values, and those
/// without.
const WITH_VALUE: [&str; 8] =
    ["--run-dir", "--output_file", "--out", "-J", "--label", "--launch", "--plot", "--nodes"];
const ALONE: [&str; 2] = ["--scan", "--json"];

/// The words of the command line that each run has.
fn kept(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        if name == "--sweep" {
            // Its values are settings, up to the next option.
            while words.next_if(|next| !next.to_string_lossy().starts_with('-')).is_some() {}
        } else if WITH_VALUE.contains(&name) {
            if !text.contains('=') {
                words.next();
            }
        } else if !ALONE.contains(&name) {
            kept.push(word);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_the_options_that_are_for_it() {
        let line = "bench all-reduce -b 8 --sweep A=1,2 B=3 -e 1K --out x.json --label=y --scan \
                    --nodes 4 -f 2 --json --plot p.html -c 0";
        let words = kept(line.split_whitespace().map(OsString::from));
        assert_eq!(words, "bench all-reduce -b 8 -e 1K -f 2 -c 0".split(' ').collect::<Vec<_>>());
    }
}
