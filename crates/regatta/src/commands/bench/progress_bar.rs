//! A progress bar on the terminal.

use regatta_measure::collectives::BenchProgress;

use crate::commands::launch::QueuedOutput;
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
    let full = done * WIDTH / (*total).max(1);
    let bar: String = (0..WIDTH).map(|at| if at < full { '█' } else { '░' }).collect();
    format!("{bar} {done}/{total}  {task}  {}", eta(*eta_s))
}

fn eta(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        0 => String::new(),
        s @ ..60 => format!("ETA {s} s"),
        s @ ..3600 => format!("ETA {} min {} s", s / 60, s % 60),
        s => format!("ETA {} h {} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_progress_task_and_eta() {
        let task = "all-reduce of 8 bytes".to_owned();
        let text = line(&BenchProgress { task, done: 1, total: 2, eta_s: 61.2 });
        assert_eq!(text, "████████████░░░░░░░░░░░░ 1/2  all-reduce of 8 bytes  ETA 1 min 2 s");
        assert_eq!([eta(0.0), eta(59.0), eta(7300.0)], ["", "ETA 59 s", "ETA 2 h 1 min"]);
    }
}
