//! Lines of coloured text of a known width.

use anstyle::{Ansi256Color, Style};

use super::palette::{self, PALETTE};
use super::text::cut;

/// What a piece of text is coloured as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// As the terminal writes.
    Plain,
    /// Stands back.
    Dim,
    /// Stands out.
    Bold,
    /// A tile in the colour of a local rank.
    Rank(u32),
}

impl Ink {
    fn style(self) -> Style {
        match self {
            Ink::Plain => Style::new(),
            Ink::Dim => Style::new().dimmed(),
            Ink::Bold => Style::new().bold(),
            // Entry 16 is black everywhere; themes change entry 0.
            Ink::Rank(rank) => Style::new()
                .fg_color(Some(Ansi256Color(16).into()))
                .bg_color(Some(Ansi256Color(PALETTE[palette::index(rank)].ansi).into())),
        }
    }
}

/// One line; every character in it is one column wide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    spans: Vec<(String, Ink)>,
}

impl Line {
    /// Adds text at the end.
    pub fn push(&mut self, text: impl Into<String>, ink: Ink) {
        self.spans.push((text.into(), ink));
    }

    /// Adds another line at the end.
    pub fn append(&mut self, other: Line) {
        self.spans.extend(other.spans);
    }

    /// Adds spaces until the line is `width` wide.
    pub fn pad(&mut self, width: usize) {
        let missing = width.saturating_sub(self.width());
        self.push(" ".repeat(missing), Ink::Plain);
    }

    /// How many columns it takes.
    pub fn width(&self) -> usize {
        self.spans.iter().map(|(text, _)| text.chars().count()).sum()
    }

    /// Cuts it to `width`, the last character then being `mark`.
    pub fn limit(&mut self, width: usize, mark: char) {
        let mut left = width;
        for (text, _) in &mut self.spans {
            *text = cut(text, left, mark);
            left -= text.chars().count();
        }
    }

    /// Its text, with escape codes if `color`, without white space at the end.
    pub fn render(&self, color: bool) -> String {
        let mut out = String::new();
        for (text, ink) in &self.spans {
            let style = ink.style();
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
    fn colour_does_not_count_as_width() {
        let mut line = Line::default();
        line.push(" 3", Ink::Rank(3));
        line.pad(5);
        assert_eq!(line.width(), 5);
        assert_eq!(line.render(false), " 3");
        assert!(line.render(true).contains("\u{1b}[48;5;211m"));
        line.push("abcdef", Ink::Dim);
        line.limit(8, '~');
        assert_eq!(line.render(false), " 3   ab~");
    }
}
