//! `regatta data`: tokenizes text for training and inspects tokenized datasets.

mod show;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use regatta_launch::job_host::JobHost;
use regatta_launch::signal_catcher::SignalCatcher;
use regatta_model::document;
use regatta_train::data::prepare::{
    self, PrepareOptions, PreparedMeta, Progress, ProgressUnit, TokenizerSource,
};
use regatta_train::data::{DataDirs, DataError, MIN_BPE_VOCAB, source};

use super::progress_bar::ProgressBar;
use crate::args::data::{DataArgs, DataCommand, PrepareArgs};
use crate::cli::{GOOD, HEADING, WARNING};
use crate::output;

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
        tokenizer: match args.bpe {
            Some(vocab_size) => TokenizerSource::TrainBpe { vocab_size: vocab_size as usize },
            None => TokenizerSource::file_or_characters(args.tokenizer.clone()),
        },
        validation: args.validation,
        folder: args.output.clone(),
        replace: args.force,
    };
    // Signals are handled between chunks of text, so that partial output is removed.
    let mut signals = SignalCatcher::new()?;
    let mut bar = ProgressBar::new(None);
    let start = Instant::now();
    let mut drawn = start;
    let (mut phase, mut phase_start) = ("", start);
    let prepared = prepare::prepare(&options, &mut |progress| {
        if phase != progress.doing {
            (phase, phase_start) = (progress.doing, Instant::now());
        }
        if start.elapsed() >= BAR_DELAY && drawn.elapsed() >= BAR_INTERVAL {
            let (task, done, total, eta_s) = bar_progress(progress, phase_start.elapsed());
            bar.show(&task, done, total, eta_s);
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
    small_vocab_note(&about, args.bpe).iter().for_each(|note| output::note(note));
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

/// A note if the text has too few repeated pairs for the vocabulary.
fn small_vocab_note(about: &PreparedMeta, wanted: Option<u32>) -> Option<String> {
    let (wanted, found) = (wanted? as usize, about.vocabulary);
    (found < wanted).then(|| {
        format!(
            "the vocabulary has {found} tokens instead of {wanted}: after {} merges no pair of tokens \
             occurs twice in the text; use more text or a smaller --bpe",
            found - MIN_BPE_VOCAB
        )
    })
}

/// Progress in MiB or merges, and the estimated time left of this phase, which began `elapsed` ago.
fn bar_progress(progress: Progress, elapsed: Duration) -> (String, usize, usize, f64) {
    let Progress { doing, done, of, unit } = progress;
    let seconds_per_unit = elapsed.as_secs_f64() / done.max(1) as f64;
    let eta_s = seconds_per_unit * of.saturating_sub(done) as f64;
    let (scale, name) = match unit {
        ProgressUnit::Bytes => (1 << 20, "MiB"),
        ProgressUnit::Merges => (1, "merges"),
    };
    let [done, total] = [done, of].map(|count| (count / scale) as usize);
    (format!("{name}, {doing}"), done, total, eta_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_follows_from_the_rate() {
        for (unit, factor, task) in [
            (ProgressUnit::Bytes, 1 << 20, "MiB, writing tokens"),
            (ProgressUnit::Merges, 1, "merges, writing tokens"),
        ] {
            let [done, of] = [10, 40].map(|count| count * factor);
            let progress = Progress { doing: "writing tokens", done, of, unit };
            let (shown, done, total, eta_s) = bar_progress(progress, Duration::from_secs(2));
            assert_eq!((done, total, shown.as_str()), (10, 40, task));
            assert!((eta_s - 6.0).abs() < 1e-9);
        }
    }
}
