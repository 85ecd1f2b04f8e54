//! A progress bar on the terminal.

use regatta_draw::bar;
use regatta_measure::collectives::BenchProgress;
use regatta_model::units::format_duration;

use crate::commands::launcher::QueuedOutput;
use crate::output::{self, Stream};

/// Width of the bar in characters.
const WIDTH: usize = 24;

/// A progress bar, erased when it is dropped; invisible unless standard error is a terminal.
pub struct ProgressBar {
    shown: bool,
    terminal: bool,
    /// Standard error, if the launcher writes it.
    queued: Option<QueuedOutput>,
}

impl ProgressBar {
    /// A hidden bar, written through a queue if one is given.
    pub fn new(queued: Option<QueuedOutput>) -> Self {
        Self { shown: false, terminal: Stream::Stderr.is_terminal(), queued }
    }

    /// Draws the bar.
    pub fn show(&mut self, progress: &BenchProgress) {
        if self.terminal {
            self.write(&format!("\r\x1b[2K{}", line(progress)));
            self.shown = true;
        }
    }

    /// Erases the bar before other output.
    pub fn hide(&mut self) {
        if self.shown {
            self.write("\r\x1b[2K");
            self.shown = false;
        }
    }

    fn write(&self, text: &str) {
        match &self.queued {
            Some(stderr) => stderr.print(text),
            None => output::eprint(text),
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.hide();
    }
}

fn line(progress: &BenchProgress) -> String {
    let BenchProgress { task, done, total, eta_s } = progress;
    let eta = match eta_s.ceil() {
        0.0 => String::new(),
        seconds => format!("ETA {}", format_duration(seconds)),
    };
    format!("{} {done}/{total}  {task}  {eta}", bar::progress(*done, *total, WIDTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_progress_task_and_eta() {
        let task = "all-reduce of 8 bytes".to_owned();
        let text = line(&BenchProgress { task, done: 1, total: 2, eta_s: 61.2 });
        assert_eq!(text, "████████████░░░░░░░░░░░░ 1/2  all-reduce of 8 bytes  ETA 1 min 2 s");
        for (seconds, end) in [(0.0, " x  "), (59.0, " ETA 59 s"), (7300.0, " ETA 2 h 1 min")] {
            let text =
                line(&BenchProgress { task: "x".to_owned(), done: 2, total: 2, eta_s: seconds });
            assert!(text.ends_with(end), "{text}");
        }
    }
}
