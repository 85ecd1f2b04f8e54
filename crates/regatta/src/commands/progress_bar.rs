//! A progress bar on the terminal.

use regatta_draw::bar::progress_line;
use regatta_draw::screen::StatusLine;
use regatta_measure::collectives::BenchProgress;
use regatta_model::units::format_duration;

use crate::commands::launch::QueuedOutput;
use crate::output::{self, Stream};

/// A progress bar, erased when it is dropped; invisible unless standard error is a terminal.
pub struct ProgressBar {
    line: StatusLine,
    terminal: bool,
    /// Standard error, if the launcher writes it.
    queued: Option<QueuedOutput>,
}

impl ProgressBar {
    /// A hidden bar, written through a queue if one is given.
    pub fn new(queued: Option<QueuedOutput>) -> Self {
        Self { line: StatusLine::default(), terminal: Stream::Stderr.is_terminal(), queued }
    }

    /// Draws the bar.
    pub fn show(&mut self, progress: &BenchProgress) {
        if self.terminal {
            let text = self.line.draw(&line(progress));
            self.write(&text);
        }
    }

    /// Erases the bar before other output.
    pub fn hide(&mut self) {
        let erase = self.line.erase();
        self.write(erase);
    }

    fn write(&self, text: &str) {
        match &self.queued {
            _ if text.is_empty() => {}
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
    progress_line(task, *done, *total, &eta)
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
