//! `regatta data`: makes token files of texts, and shows what is in them.

mod args;
mod show;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use regatta_launch::signals::Caught;
use regatta_measure::run::Progress as Line;
use regatta_model::document;
use regatta_train::data::prepare::{self, About, Plan, Progress};
use regatta_train::data::{DataError, Places, source};

use super::bench::bar::Bar;
use crate::cli::{GOOD, HEADING, WARNING};
use crate::output;
pub use args::{DataArgs, EXAMPLES};
use args::{DataCommand, PrepareArgs};

/// Nothing is said of what takes less.
const QUIET: Duration = Duration::from_secs(1);
/// How often the line is drawn anew.
const TICK: Duration = Duration::from_millis(100);

/// Runs it.
pub fn run(args: &DataArgs) -> Result<ExitCode> {
    match &args.command {
        DataCommand::Prepare(args) => make(args),
        DataCommand::Show(args) => show::run(args),
    }
}

fn make(args: &PrepareArgs) -> Result<ExitCode> {
    let places = Places::of(|name| std::env::var_os(name));
    let inputs: Result<Vec<_>, _> =
        args.inputs.iter().map(|input| source::file(input, &places)).collect();
    let plan = Plan {
        inputs: inputs?,
        tokenizer: args.tokenizer.clone(),
        validation: args.validation,
        folder: args.output.clone(),
        replace: args.force,
    };
    // A signal waits for the next piece of text, so that what is half made can be removed.
    let mut caught = Caught::new()?;
    let mut watch = Watch::new();
    let made = prepare::prepare(&plan, &mut |progress| {
        watch.show(progress, Instant::now());
        caught.end().map_or(Ok(()), |_| Err(DataError::Interrupted))
    });
    watch.bar.hide();
    if let (Err(DataError::Interrupted), Some(signal)) = (&made, caught.end()) {
        output::complain(&format!("{WARNING}interrupted{WARNING:#}: nothing was made\n"));
        return Ok(ExitCode::from(128 + signal as u8));
    }
    let about = made?;
    match args.json {
        true => output::print(&document::to_json(&about)?)?,
        false => output::print(&summary(&about, &args.output))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn summary(about: &About, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "{GOOD}prepared{GOOD:#} {folder}\n{}\n\nTrain on it: {HEADING}regatta train \
         data.source={folder}{HEADING:#}\n",
        show::facts(about)
    )
}

/// The line that says how far it is.
struct Watch {
    bar: Bar,
    began: Instant,
    shown: Instant,
}

impl Watch {
    fn new() -> Self {
        let now = Instant::now();
        Self { bar: Bar::new(), began: now, shown: now }
    }

    fn show(&mut self, progress: Progress, now: Instant) {
        let (gone, since) = (now - self.began, now - self.shown);
        if gone >= QUIET && since >= TICK {
            self.bar.show(&line(progress, gone));
            self.shown = now;
        }
    }
}

/// How far it is, in MiB, and how long the rest takes at this pace.
fn line(Progress { doing, done, of }: Progress, gone: Duration) -> Line {
    let pace = gone.as_secs_f64() / done.max(1) as f64;
    let mib = |bytes: u64| (bytes >> 20) as usize;
    let left_s = pace * of.saturating_sub(done) as f64;
    Line { doing: format!("MiB, {doing}"), done: mib(done), of: mib(of), left_s }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_knows_how_long_it_takes() {
        let progress = Progress { doing: "writing tokens", done: 10 << 20, of: 40 << 20 };
        let line = line(progress, Duration::from_secs(2));
        assert_eq!((line.done, line.of, line.doing.as_str()), (10, 40, "MiB, writing tokens"));
        assert!((line.left_s - 6.0).abs() < 1e-9);
    }
}
