//! A terminal that is drawn again and again, as the text to write. The caller measures the terminal and
//! writes each text at once, so that nothing flickers. Only sequences that every terminal since the VT100
//! understands are used, except for the second screen of [`FullScreen`].

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

/// Lines at the end of a terminal that scrolls, with other output above them.
///
/// Every frame is painted completely: what the terminal echoes may have moved the lines. The cursor is
/// below the lines, and hidden only while a frame is written, so that it is visible however the process
/// ends.
#[derive(Debug, Default)]
pub struct InlineScreen {
    /// Widths of the lines now on the terminal.
    drawn: Vec<usize>,
}

impl InlineScreen {
    /// Whether lines are on the terminal.
    pub fn is_drawn(&self) -> bool {
        !self.drawn.is_empty()
    }

    /// Draws lines over the previous ones.
    pub fn draw(&mut self, lines: &[StyledLine], width: usize, color: bool) -> String {
        let up = match self.drawn_rows(width) {
            0 => String::new(),
            rows => format!("\r\x1b[{rows}A"),
        };
        let shown = lines.iter().map(|line| line.render(color) + "\x1b[K\r\n");
        self.drawn = lines.iter().map(|line| line.render(false).chars().count()).collect();
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
        format!("\r\x1b[2K{rows}")
    }

    /// Leaves the lines as they are: later ones are drawn below.
    pub fn keep(&mut self) {
        self.drawn.clear();
    }

    /// Rows of the lines on the terminal. Lines wider than the terminal is now have been wrapped by it.
    fn drawn_rows(&self, width: usize) -> usize {
        self.drawn.iter().map(|line| line.div_ceil(width.max(1)).max(1)).sum()
    }
}

/// The whole terminal: its second screen, so that the first one is as before at the end.
#[derive(Debug, Default)]
pub struct FullScreen {
    size: Option<TerminalSize>,
    rows: Vec<String>,
}

impl FullScreen {
    /// Enters the second screen and hides the cursor.
    pub const ENTER: &str = "\x1b[?1049h\x1b[?25l";
    /// Restores the terminal, whatever is drawn: to be written at the end, and by handlers of signals.
    pub const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

    /// Draws lines from the first row on: only rows that differ from the last frame, all of them after
    /// the size changed. Empty if nothing changed.
    pub fn draw(&mut self, lines: &[StyledLine], size: TerminalSize, color: bool) -> String {
        let mut text = String::new();
        if self.size.replace(size) != Some(size) {
            self.rows.clear();
            text.push_str("\x1b[2J");
        }
        self.rows.resize(size.height, String::new());
        for (row, shown) in self.rows.iter_mut().enumerate() {
            let mut line = lines.get(row).cloned().unwrap_or_default();
            // The last column stays empty, because terminals differ in whether a full line wraps.
            line.truncate(size.width.saturating_sub(1), '…');
            let line = line.render(color);
            if line != *shown {
                text.push_str(&format!("\x1b[{};1H{line}\x1b[K", row + 1));
                *shown = line;
            }
        }
        text
    }

    /// Has the next frame paint every row: after a stop (Ctrl-Z) the terminal shows something else.
    pub fn invalidate(&mut self) {
        self.size = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::PLAIN;

    fn lines(texts: &[&str]) -> Vec<StyledLine> {
        texts.iter().map(|text| StyledLine::new(*text, PLAIN)).collect()
    }

    #[test]
    fn only_rows_that_differ_are_painted_until_the_size_changes() {
        let mut screen = FullScreen::default();
        let size = TerminalSize { width: 6, height: 3 };
        let first = screen.draw(&lines(&["a", "b"]), size, false);
        assert_eq!(first, "\x1b[2J\x1b[1;1Ha\x1b[K\x1b[2;1Hb\x1b[K");
        assert_eq!(screen.draw(&lines(&["a", "b"]), size, false), "");
        let third = screen.draw(&lines(&["a", "", "abcdefgh", "below"]), size, false);
        assert_eq!(third, "\x1b[2;1H\x1b[K\x1b[3;1Habcd…\x1b[K");
        let resized = TerminalSize { width: 20, height: 2 };
        let all = screen.draw(&lines(&["a", "b"]), resized, false);
        assert_eq!(all, first);
        screen.invalidate();
        assert_eq!(screen.draw(&lines(&["a", "b"]), resized, false), first);
    }

    #[test]
    fn wrapped_lines_are_erased_completely() {
        let mut screen = InlineScreen::default();
        assert_eq!(screen.erase(10), "");
        screen.draw(&lines(&["123456789012", "x", ""]), 20, false);
        assert_eq!(screen.erase(10), format!("\r\x1b[2K{}", "\x1b[1A\x1b[2K".repeat(4)));
        assert_eq!(screen.draw(&lines(&["x"]), 10, false), "\x1b[?25lx\x1b[K\r\n\x1b[J\x1b[?25h");
    }
}
