//! One line on the terminal that says how far it is.

use std::io::IsTerminal;

use regatta_measure::run::Progress;

use crate::output;

/// Characters of the bar itself.
const WIDTH: usize = 24;

/// The line, if standard error is a terminal.
pub struct Bar {
    shown: bool,
    terminal: bool,
}

impl Bar {
    /// No line yet.
    pub fn new() -> Self {
        Self { shown: false, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows how far it is.
    pub fn show(&mut self, progress: &Progress) {
        if self.terminal {
            output::complain(&format!("\r\x1b[2K{}", line(progress)));
            self.shown = true;
        }
    }

    /// Takes the line away, before something else is written.
    pub fn hide(&mut self) {
        if self.shown {
            output::complain("\r\x1b[2K");
            self.shown = false;
        }
    }
}

fn line(progress: &Progress) -> String {
    let Progress { doing, done, of, left_s } = progress;
    let full = done * WIDTH / (*of).max(1);
    let bar: String = (0..WIDTH).map(|at| if at < full { '█' } else { '░' }).collect();
    format!("{bar} {done} of {of}  {doing}  {}", left(*left_s))
}

/// The time left, in words.
fn left(seconds: f64) -> String {
    match seconds.ceil() as u64 {
        0 => String::new(),
        s @ ..60 => format!("{s} s left"),
        s @ ..3600 => format!("{} min {} s left", s / 60, s % 60),
        s => format!("{} h {} min left", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_how_far_it_is() {
        let doing = "all-reduce of 8 bytes".to_owned();
        let text = line(&Progress { doing, done: 1, of: 2, left_s: 61.2 });
        assert_eq!(text, "████████████░░░░░░░░░░░░ 1 of 2  all-reduce of 8 bytes  1 min 2 s left");
        assert_eq!([left(0.0), left(59.0), left(7300.0)], ["", "59 s left", "2 h 1 min left"]);
    }
}
