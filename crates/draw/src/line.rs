//! Styled text lines of known width.

use anstyle::{Ansi256Color, AnsiColor, Style};

use crate::palette::{RANKS, rank_index};
use crate::text::truncate;

/// The default style.
pub const PLAIN: Style = Style::new();
/// Dimmed.
pub const DIM: Style = Style::new().dimmed();
/// Bold.
pub const BOLD: Style = Style::new().bold();

/// Errors.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Success.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();

/// Black on the colour of a local rank.
pub fn rank_style(rank: u32) -> Style {
    // Colour 16 is always black; themes redefine colour 0.
    Ansi256Color(16).on(Ansi256Color(RANKS[rank_index(rank)].ansi))
}

/// A line of spans; every character is one column wide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StyledLine {
    spans: Vec<(String, Style)>,
}

impl StyledLine {
    /// A line of one span.
    pub fn new(text: impl Into<String>, style: Style) -> Self {
        Self { spans: vec![(text.into(), style)] }
    }

    /// Appends text.
    pub fn push(&mut self, text: impl Into<String>, style: Style) {
        self.spans.push((text.into(), style));
    }

    /// The parts of the line with their styles.
    pub fn spans(&self) -> &[(String, Style)] {
        &self.spans
    }

    /// Appends another line.
    pub fn append(&mut self, other: StyledLine) {
        self.spans.extend(other.spans);
    }

    /// Pads with spaces to `width`.
    pub fn pad(&mut self, width: usize) {
        let missing = width.saturating_sub(self.width());
        self.push(" ".repeat(missing), PLAIN);
    }

    /// Width in columns.
    pub fn width(&self) -> usize {
        self.spans.iter().map(|(text, _)| text.chars().count()).sum()
    }

    /// Truncates to `width`; the last character is then `mark`.
    pub fn truncate(&mut self, width: usize, mark: char) {
        let mut left = width;
        for (text, _) in &mut self.spans {
            *text = truncate(text, left, mark);
            left -= text.chars().count();
        }
    }

    /// The text, with escape codes if `color`, without trailing white space.
    pub fn render(&self, color: bool) -> String {
        let mut out = String::new();
        for (text, style) in &self.spans {
            match color && !style.is_plain() && !text.is_empty() {
                true => out.push_str(&format!("{style}{text}{style:#}")),
                false => out.push_str(text),
            }
        }
        out.trim_end().to_owned()
    }
}

/// Puts entries side by side, `gap` columns apart, into lines of at most `width`; a wider entry gets its own
/// line.
pub fn flow(
    entries: impl IntoIterator<Item = StyledLine>,
    gap: usize,
    width: usize,
) -> Vec<StyledLine> {
    let mut lines: Vec<StyledLine> = Vec::new();
    for entry in entries {
        match lines.last_mut() {
            Some(line) if line.width() + gap + entry.width() <= width => {
                line.push(" ".repeat(gap), PLAIN);
                line.append(entry);
            }
            _ => lines.push(entry),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_do_not_count_as_width() {
        let mut line = StyledLine::new(" 3", rank_style(3));
        line.pad(5);
        assert_eq!(line.width(), 5);
        assert_eq!(line.render(false), " 3");
        assert!(line.render(true).contains("\u{1b}[48;5;211m"));
        line.push("abcdef", DIM);
        line.truncate(8, '~');
        assert_eq!(line.render(false), " 3   ab~");
    }
}
