//! A progress bar on the terminal.

use regatta_draw::bar::progress_line;
use regatta_draw::screen::ERASE_LINE;
use regatta_model::units::format_duration;

use crate::commands::launcher::QueuedOutput;
use crate::output::{self, Stream};

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

    /// Draws the bar of a task, with the estimated seconds left, 0 if they are not known.
    pub fn show(&mut self, task: &str, done: usize, total: usize, eta_s: f64) {
        if self.terminal {
            self.write(&format!("{ERASE_LINE}{}", line(task, done, total, eta_s)));
            self.shown = true;
        }
    }

    /// Erases the bar before other output.
    pub fn hide(&mut self) {
        if std::mem::take(&mut self.shown) {
            self.write(ERASE_LINE);
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

fn line(task: &str, done: usize, total: usize, eta_s: f64) -> String {
    let eta = match eta_s.ceil() {
        0.0 => String::new(),
        seconds => format!("ETA {}", format_duration(seconds)),
    };
    progress_line(task, done, total, &eta)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_progress_task_and_eta() {
        let text = line("all-reduce of 8 bytes", 1, 2, 61.2);
        assert_eq!(text, "████████████░░░░░░░░░░░░ 1/2  all-reduce of 8 bytes  ETA 1 min 2 s");
        for (seconds, end) in [(0.0, " x  "), (59.0, " ETA 59 s"), (7300.0, " ETA 2 h 1 min")] {
            let text = line("x", 2, 2, seconds);
            assert!(text.ends_with(end), "{text}");
        }
    }
}
