//! `regatta data`: tokenizes text for training and inspects tokenized datasets.

mod args;
mod show;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use regatta_launch::signals::SignalCatcher;
use regatta_measure::collectives::BenchProgress as BarProgress;
use regatta_model::document;
use regatta_train::data::prepare::{self, PrepareOptions, Progress};
use regatta_train::data::{DataDirs, DataError, source};

use super::bench::progress_bar::ProgressBar;
use crate::cli::{GOOD, HEADING, WARNING};
use crate::output;
pub use args::{DataArgs, EXAMPLES};
use args::{DataCommand, PrepareArgs};

/// Delay before the progress bar appears.
const BAR_DELAY: Duration = Duration::from_secs(1);
/// Interval between redraws of the progress bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: &DataArgs) -> Result<ExitCode> {
    match &args.command {
        DataCommand::Prepare(args) => prepare(args),
        DataCommand::Show(args) => show::run(args).map(|()| ExitCode::SUCCESS),
    }
}

fn prepare(args: &PrepareArgs) -> Result<ExitCode> {
    let dirs = DataDirs::of(|name| std::env::var_os(name));
    let inputs = args.inputs.iter().map(|input| source::file(input, &dirs));
    let options = PrepareOptions {
        inputs: inputs.collect::<Result<_, _>>()?,
        tokenizer: args.tokenizer.clone(),
        validation: args.validation,
        folder: args.output.clone(),
        replace: args.force,
    };
    // Signals are handled between chunks of text, so that partial output is removed.
    let mut signals = SignalCatcher::new()?;
    let mut bar = ProgressBar::new();
    let start = Instant::now();
    let mut drawn = start;
    let prepared = prepare::prepare(&options, &mut |progress| {
        let elapsed = start.elapsed();
        if elapsed >= BAR_DELAY && drawn.elapsed() >= BAR_INTERVAL {
            bar.show(&bar_progress(progress, elapsed));
            drawn = Instant::now();
        }
        signals.termination().map_or(Ok(()), |_| Err(DataError::Interrupted))
    });
    bar.hide();
    if let (Err(DataError::Interrupted), Some(signal)) = (&prepared, signals.termination()) {
        output::eprint(&format!("{WARNING}interrupted{WARNING:#}: nothing was written\n"));
        return Ok(ExitCode::from(128 + signal as u8));
    }
    let (about, folder) = (prepared?, args.output.display());
    output::print(&match args.json {
        true => document::to_json(&about)?,
        false => format!(
            "{GOOD}prepared{GOOD:#} {folder}\n{}\n\nTrain on it with: {HEADING}regatta train \
             data.source={folder}{HEADING:#}\n",
            show::dataset_lines(&about)
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Progress in MiB, and the estimated time left at the current rate.
fn bar_progress(Progress { doing, done, of }: Progress, elapsed: Duration) -> BarProgress {
    let seconds_per_byte = elapsed.as_secs_f64() / done.max(1) as f64;
    let mib = |bytes: u64| (bytes >> 20) as usize;
    let eta_s = seconds_per_byte * of.saturating_sub(done) as f64;
    BarProgress { task: format!("MiB, {doing}"), done: mib(done), total: mib(of), eta_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_the_rate() {
        let progress = Progress { doing: "writing tokens", done: 10 << 20, of: 40 << 20 };
        let line = bar_progress(progress, Duration::from_secs(2));
        assert_eq!((line.done, line.total, line.task.as_str()), (10, 40, "MiB, writing tokens"));
        assert!((line.eta_s - 6.0).abs() < 1e-9);
    }
}
