//! Styled text lines of known width.

use anstyle::{Ansi256Color, Style};

use super::palette::{self, PALETTE};
use super::text::truncate;

/// Style of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanStyle {
    /// The default style.
    Plain,
    /// Dimmed.
    Dim,
    /// Bold.
    Bold,
    /// Black on the colour of a local rank.
    Rank(u32),
}

impl SpanStyle {
    fn ansi(self) -> Style {
        match self {
            SpanStyle::Plain => Style::new(),
            SpanStyle::Dim => Style::new().dimmed(),
            SpanStyle::Bold => Style::new().bold(),
            // Colour 16 is always black; themes redefine colour 0.
            SpanStyle::Rank(rank) => {
                Ansi256Color(16).on(Ansi256Color(PALETTE[palette::index(rank)].ansi))
            }
        }
    }
}

/// A line of spans; every character is one column wide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StyledLine {
    spans: Vec<(String, SpanStyle)>,
}

impl StyledLine {
    /// A line of one span.
    pub fn new(text: impl Into<String>, style: SpanStyle) -> Self {
        Self { spans: vec![(text.into(), style)] }
    }

    /// Appends text.
    pub fn push(&mut self, text: impl Into<String>, style: SpanStyle) {
        self.spans.push((text.into(), style));
    }

    /// Appends another line.
    pub fn append(&mut self, other: StyledLine) {
        self.spans.extend(other.spans);
    }

    /// Pads with spaces to `width`.
    pub fn pad(&mut self, width: usize) {
        let missing = width.saturating_sub(self.width());
        self.push(" ".repeat(missing), SpanStyle::Plain);
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
        for (text, span) in &self.spans {
            let style = span.ansi();
            match color && !style.is_plain() && !text.is_empty() {
                true => out.push_str(&format!("{style}{text}{style:#}")),
                false => out.push_str(text),
            }
        }
        out.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_codes_do_not_count_as_width() {
        let mut line = StyledLine::new(" 3", SpanStyle::Rank(3));
        line.pad(5);
        assert_eq!(line.width(), 5);
        assert_eq!(line.render(false), " 3");
        assert!(line.render(true).contains("\u{1b}[48;5;211m"));
        line.push("abcdef", SpanStyle::Dim);
        line.truncate(8, '~');
        assert_eq!(line.render(false), " 3   ab~");
    }
}
