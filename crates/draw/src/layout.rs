//! The sections of a screen, one below the other.

use crate::line::StyledLine;

/// A part of a screen over its whole width.
pub struct Section<'a> {
    /// Which sections are left out first in a low terminal: those of high numbers.
    pub order: usize,
    /// What it shows.
    pub content: Content<'a>,
}

/// Content of a section.
pub enum Content<'a> {
    /// Lines that are shown together or not at all; in the first section of the order, as many as fit.
    Lines(Vec<StyledLine>),
    /// At least so many rows, and all rows that are left.
    Fill(usize, &'a dyn Fn(usize) -> Vec<StyledLine>),
}

impl Content<'_> {
    /// Rows out of those that are free.
    fn rows(&self, free: usize, is_first: bool) -> usize {
        let wanted = match self {
            Self::Lines(lines) if is_first => lines.len().min(free),
            Self::Lines(lines) => lines.len(),
            Self::Fill(least, _) => *least,
        };
        if wanted <= free { wanted } else { 0 }
    }
}

/// Stacks sections in `height` rows.
pub fn stack(sections: Vec<Section<'_>>, height: usize) -> Vec<StyledLine> {
    let mut by_order: Vec<usize> = (0..sections.len()).collect();
    by_order.sort_by_key(|at| sections[*at].order);
    let (mut free, mut rows) = (height, vec![0; sections.len()]);
    for (n, at) in by_order.into_iter().enumerate() {
        rows[at] = sections[at].content.rows(free, n == 0);
        free -= rows[at];
    }
    let mut lines = Vec::new();
    for (section, rows) in sections.into_iter().zip(rows) {
        match section.content {
            Content::Lines(content) => lines.extend(content.into_iter().take(rows)),
            Content::Fill(_, draw) if rows > 0 => {
                lines.extend(draw(rows + std::mem::take(&mut free)))
            }
            Content::Fill(..) => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::PLAIN;

    #[test]
    fn sections_of_low_order_are_kept_and_the_rest_is_filled() {
        let line = |text: &str| StyledLine::new(text, PLAIN);
        let plot = |rows: usize| vec![line(&format!("plot of {rows}"))];
        let shown = |height| -> Vec<String> {
            let sections = vec![
                Section { order: 3, content: Content::Lines(vec![line("title")]) },
                Section { order: 0, content: Content::Lines(vec![line("a"), line("b")]) },
                Section { order: 1, content: Content::Fill(2, &plot) },
                Section { order: 2, content: Content::Lines(vec![line("foot"), line("note")]) },
            ];
            stack(sections, height).iter().map(|line| line.render(false)).collect()
        };
        assert_eq!(shown(1), ["a"]);
        assert_eq!(shown(3), ["title", "a", "b"]);
        assert_eq!(shown(5), ["title", "a", "b", "plot of 2"]);
        assert_eq!(shown(6), ["a", "b", "plot of 2", "foot", "note"]);
        assert_eq!(shown(9), ["title", "a", "b", "plot of 4", "foot", "note"]);
    }
}
