//! A terminal that is drawn again and again, as the text to write. The caller measures the terminal and
//! writes each text at once, so that nothing flickers. Only sequences that every terminal since the VT100
//! understands are used.

use crate::line::StyledLine;

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// Size of a terminal of unknown size.
pub const DEFAULT_SIZE: TerminalSize = TerminalSize { width: 80, height: 24 };

/// Minimum seconds between frames.
const MIN_FRAME_INTERVAL: f64 = 0.1;

/// Lines at the end of a terminal that scrolls, with other output above them. Times are in seconds since any
/// start.
///
/// Every frame is painted completely: what the terminal echoes may have moved the lines. The cursor is
/// below the lines, and hidden only while a frame is written, so that it is visible however the process
/// ends.
#[derive(Debug, Default)]
pub struct InlineScreen {
    /// Widths of the lines now on the terminal.
    drawn: Vec<usize>,
    /// Time of the last frame.
    drawn_at: Option<f64>,
    /// When drawing was stopped.
    stopped_at: Option<f64>,
}

impl InlineScreen {
    /// Whether lines are on the terminal.
    pub fn is_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// Whether the last frame is old enough for another one.
    pub fn is_due(&self, now: f64) -> bool {
        self.drawn_at.is_none_or(|drawn_at| now - drawn_at >= MIN_FRAME_INTERVAL)
    }

    /// Whether drawing is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// Draws lines over the previous ones.
    pub fn draw(&mut self, lines: &[StyledLine], width: usize, color: bool, now: f64) -> String {
        let up = match self.drawn_rows(width) {
            0 => String::new(),
            rows => format!("\r\x1b[{rows}A"),
        };
        let shown = lines.iter().map(|line| line.render(color) + "\x1b[K\r\n");
        self.drawn = lines.iter().map(|line| line.render(false).chars().count()).collect();
        self.drawn_at = Some(now);
        format!("\x1b[?25l{up}{}\x1b[J\x1b[?25h", shown.collect::<String>())
    }

    /// Erases the lines. Line by line: terminals save a screen that is erased from its first line in the
    /// scrollback.
    pub fn erase(&mut self, width: usize) -> String {
        if !self.is_drawn() {
            return String::new();
        }
        let rows = "\x1b[1A\x1b[2K".repeat(self.drawn_rows(width));
        self.keep();
        format!("{ERASE_LINE}{rows}")
    }

    /// Leaves the lines as they are: later ones are drawn below.
    pub fn keep(&mut self) {
        self.drawn.clear();
    }

    /// Leaves the lines as they are, with the cursor below them, and is stopped until [`Self::resume`]: the
    /// terminal belongs to the shell (Ctrl-Z), or the job is being killed.
    pub fn stop(&mut self, now: f64) -> &'static str {
        self.stopped_at.get_or_insert(now);
        // The terminal has echoed ^Z or ^C.
        let erase_echo = if self.is_drawn() { "\r\x1b[K" } else { "" };
        self.keep();
        erase_echo
    }

    /// Ends the stop. Returns for how long drawing was stopped.
    pub fn resume(&mut self, now: f64) -> Option<f64> {
        self.stopped_at.take().map(|stopped_at| now - stopped_at)
    }

    /// Rows of the lines on the terminal. Lines wider than the terminal is now have been wrapped by it.
    fn drawn_rows(&self, width: usize) -> usize {
        self.drawn.iter().map(|line| line.div_ceil(width.max(1)).max(1)).sum()
    }
}

/// Erases the line with the cursor, for one that is drawn in place, such as a progress bar.
pub const ERASE_LINE: &str = "\r\x1b[2K";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::PLAIN;

    fn lines(texts: &[&str]) -> Vec<StyledLine> {
        texts.iter().map(|text| StyledLine::new(*text, PLAIN)).collect()
    }

    #[test]
    fn an_inline_screen_is_stopped_below_its_lines() {
        let mut screen = InlineScreen::default();
        assert!(screen.is_due(0.0));
        assert_eq!(screen.stop(0.0), "", "nothing is drawn");
        assert_eq!(screen.resume(1.0), Some(1.0));
        let first = screen.draw(&lines(&["x"]), 10, false, 1.0);
        assert!(!screen.is_due(1.05) && screen.is_due(1.2));
        assert_eq!((screen.stop(2.0), screen.stop(3.0)), ("\r\x1b[K", ""));
        assert!(screen.is_stopped() && !screen.is_drawn());
        assert_eq!((screen.resume(4.0), screen.resume(4.0)), (Some(2.0), None));
        assert_eq!(screen.draw(&lines(&["x"]), 10, false, 4.0), first, "below the shell");
    }

    #[test]
    fn wrapped_lines_are_erased_completely() {
        let mut screen = InlineScreen::default();
        assert_eq!(screen.erase(10), "");
        screen.draw(&lines(&["123456789012", "x", ""]), 20, false, 0.0);
        assert_eq!(screen.erase(10), format!("\r\x1b[2K{}", "\x1b[1A\x1b[2K".repeat(4)));
        let frame = screen.draw(&lines(&["x"]), 10, false, 0.0);
        assert_eq!(frame, "\x1b[?25lx\x1b[K\r\n\x1b[J\x1b[?25h");
    }
}
