//! `--tune FILE --backend nccl`: measures every algorithm and protocol of NCCL, and writes the table of
//! the tuner plug-in.

mod case_runner;
mod rounds;

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use regatta_draw::table;
use regatta_launch::signal_catcher;
use regatta_measure::collectives::nccl_names;
use regatta_measure::request::BenchRequest;
use regatta_model::run_folder;
use regatta_model::{BenchResult, Operation, units};
use regatta_nccl_tuning::candidate::{self, candidates};
use regatta_nccl_tuning::fit::{self, SizeFit};
use regatta_nccl_tuning::{Communicator, Function, Table};

use self::case_runner::CaseRunner;
use self::rounds::MeasuredRounds;
use super::case::lock;
use super::parent::BenchLaunch;
use crate::args::bench::CollectiveArgs;
use crate::output;

/// Rounds unless `--tune-rounds` is given.
const DEFAULT_ROUNDS: u32 = 5;

/// Measures and writes the table.
pub fn run(
    operations: &[Operation],
    args: &CollectiveArgs,
    request: &BenchRequest,
    folder: &Path,
) -> Result<ExitCode> {
    let file = args.mode.tune.as_deref().context("--tune")?;
    let functions = functions(operations)?;
    check(args)?;
    // Before hours of measuring; the file is read again at the end.
    existing(file)?;
    if folder.join("0").exists() {
        bail!("{} already has results: choose another folder with --run-dir", folder.display());
    }
    let _lock = lock(folder);
    let operations = functions.iter().map(|one| one.name().to_owned().into()).collect();
    let rounds = args.mode.tune_rounds.unwrap_or(DEFAULT_ROUNDS);
    let launch = BenchLaunch::new(&args.ranks)?;
    let mut runner = CaseRunner { request, launch, folder, operations };
    let candidates = candidates(&functions, &args.mode.tune_channels);
    let Some(measured) = rounds::measure(&mut runner, candidates, rounds)? else {
        let signal = signal_catcher::terminated_by().unwrap_or(libc::SIGINT);
        output::note("interrupted: no table is written");
        return Ok(ExitCode::from(128u8.saturating_add(signal as u8)));
    };
    let communicator = communicator(&measured.first)?;
    let fits = fit::fit(&measured.timings);
    let description = description(&measured, rounds);
    // Another job may have written rows of other communicators meanwhile.
    let mut table = existing(file)?;
    table.replace(communicator, &functions, fit::rows(&fits, communicator), &description);
    output::write_file(file, &table.to_string()).context("--tune")?;
    output::print(&summary(&fits))?;
    let shown = file.display();
    output::eprint(&format!(
        "tuning table: {shown}; use it with `regatta launch --tuner {shown}`\n"
    ));
    Ok(ExitCode::SUCCESS)
}

/// The collectives that NCCL's tuner is asked for.
fn functions(operations: &[Operation]) -> Result<Vec<Function>> {
    let known = |operation: &Operation| Function::from_name(&operation.to_string());
    let functions: Vec<Function> = operations.iter().filter_map(known).collect();
    if functions.is_empty() {
        bail!(
            "--tune with NCCL: choose all-reduce, all-gather, reduce-scatter, broadcast, reduce or all; \
             NCCL has one algorithm for the others"
        );
    }
    Ok(functions)
}

/// Refuses what would measure something else.
fn check(args: &CollectiveArgs) -> Result<()> {
    let channels = candidate::CHANNEL_VARIABLES;
    let channels = channels.into_iter().filter(|_| !args.mode.tune_channels.is_empty());
    let mut variables = candidate::VARIABLES.into_iter().chain(channels);
    if let Some(name) = variables.find(|name| std::env::var_os(name).is_some()) {
        bail!("--tune with NCCL sets {name} itself: unset it");
    }
    let types = nccl_names::dtypes(&args.sizes.datatype).map_err(anyhow::Error::msg)?.len();
    let ops = nccl_names::ops(&args.sizes.op).map_err(anyhow::Error::msg)?.len();
    if types > 1 || ops > 1 {
        bail!("--tune with NCCL: choose one type (-d) and one reduction (-o)");
    }
    Ok(())
}

/// The table that a file has already: rows of other communicators are kept.
fn existing(file: &Path) -> Result<Table> {
    if !file.is_file() {
        return Ok(Table::default());
    }
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("--tune {}: cannot read the file", file.display()))?;
    if text.trim().is_empty() {
        return Ok(Table::default());
    }
    let problem = || format!("--tune {}: the file exists; choose another name", file.display());
    text.parse().with_context(problem)
}

/// The communicator that was measured.
fn communicator(result: &BenchResult) -> Result<Communicator> {
    let ranks = result.shape.ranks.context("the result has no number of ranks")?;
    let nodes = result.shape.nccl_nodes.context("the result has no number of nodes")?;
    Ok(Communicator { ranks, nodes })
}

/// What was measured, in a line.
fn description(measured: &MeasuredRounds, rounds: u32) -> String {
    let result = &measured.first;
    let machine = result.machine.as_ref().map_or("unknown machine", |machine| &machine.name);
    let gpu = result.devices.first().map_or("unknown GPU", |device| &device.name);
    let library = result.backend.as_deref().unwrap_or("nccl");
    let version = result.versions.get(library).map_or("unknown", String::as_str);
    let date = run_folder::utc_date(SystemTime::now());
    format!("{machine}, {gpu}, {library} {version}, {rounds} rounds, {date}")
}

/// The fit of every size.
fn summary(fits: &[SizeFit]) -> String {
    let mut text = String::new();
    for group in fits.chunk_by(|a, b| a.function == b.function) {
        let row = |fit: &SizeFit| {
            let time = |time: Option<f64>| table::format_value(time);
            let shown = fit.chosen.or(fit.fastest);
            let ratio = shown.map(|one| format!("{:.2}x", fit.default_us / one.time_us));
            let best = match (fit.chosen, fit.fastest) {
                (Some(chosen), _) => chosen.choice.to_string(),
                (None, Some(fastest)) => {
                    let is_faster = fastest.time_us < fit.default_us;
                    let what = if is_faster { "within noise" } else { "is slower" };
                    format!("NCCL's default ({} {what})", fastest.choice)
                }
                (None, None) => "NCCL's default".to_owned(),
            };
            vec![
                units::format_bytes(fit.bytes),
                time(Some(fit.default_us)),
                time(shown.map(|one| one.time_us)),
                ratio.unwrap_or_else(|| "-".to_owned()),
                best,
            ]
        };
        let rows: Vec<Vec<String>> = group.iter().map(row).collect();
        let header = ["size", "default (us)", "fastest (us)", "speedup", "choice"];
        let separator = if text.is_empty() { "" } else { "\n" };
        let head = group.first().map_or("", |fit| fit.function.name());
        text += &format!("{separator}{head}\n{}", table::align(&header, &rows, &[0, 4]));
    }
    text
}

#[cfg(test)]
mod tests {
    use regatta_nccl_tuning::fit::Timing;
    use regatta_nccl_tuning::{Algorithm, Choice, Protocol};

    use super::*;

    #[test]
    fn collectives_without_a_choice_are_refused() {
        let all = [Operation::AllToAll, Operation::Reduce, Operation::AllReduce];
        assert_eq!(functions(&all).unwrap(), [Function::Reduce, Function::AllReduce]);
        assert!(functions(&[Operation::SendRecv]).unwrap_err().to_string().contains("all-reduce"));
    }

    #[test]
    fn the_summary_shows_what_is_chosen() {
        let choice = Choice { algorithm: Algorithm::Tree, protocol: Protocol::Ll, channels: 0 };
        let mut timings = Vec::new();
        for (bytes, chosen_us) in [(8, 4.0), (1024, 9.9), (2048, 12.5)] {
            for (choice, time_us) in [(None, 10.0), (Some(choice), chosen_us)] {
                let function = Function::AllReduce;
                let timing = |round| Timing { function, bytes, choice, round, time_us };
                timings.extend((0..3).map(timing));
            }
        }
        let expected = "all-reduce
size   default (us)  fastest (us)  speedup  choice
8 B           10.00          4.00    2.50x  tree ll
1 KiB         10.00          9.90    1.01x  NCCL's default (tree ll within noise)
2 KiB         10.00         12.50    0.80x  NCCL's default (tree ll is slower)
";
        assert_eq!(summary(&fit::fit(&timings)), expected);
    }
}
