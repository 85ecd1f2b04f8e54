//! Boxes on a terminal.

use crate::line::{BOLD, DIM, PLAIN, StyledLine};
use crate::text::to_ascii;

/// Width of both borders of a box with their padding.
pub const SIDES: usize = 4;

/// Capabilities of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalOptions {
    /// Columns.
    pub width: usize,
    /// Whether to use colours.
    pub color: bool,
    /// Whether to use box-drawing characters instead of ASCII.
    pub unicode: bool,
}

impl TerminalOptions {
    /// The characters that the terminal can show.
    pub fn glyphs(self) -> &'static Glyphs {
        if self.unicode { &UNICODE } else { &ASCII }
    }
}

/// The characters of a drawing.
#[derive(Debug)]
pub struct Glyphs {
    /// Corners in reading order.
    corners: [char; 4],
    /// Ends of a horizontal rule.
    tees: [char; 2],
    across: char,
    down: char,
    /// Something that is not in use.
    pub idle: &'static str,
    /// The end of a truncated text.
    pub cut: char,
}

/// Box-drawing characters.
pub const UNICODE: Glyphs = Glyphs {
    corners: ['┌', '┐', '└', '┘'],
    tees: ['├', '┤'],
    across: '─',
    down: '│',
    idle: "··",
    cut: '…',
};

/// Characters of every terminal.
pub const ASCII: Glyphs =
    Glyphs { corners: ['+'; 4], tees: ['+'; 2], across: '-', down: '|', idle: "..", cut: '~' };

impl Glyphs {
    /// Renders a box of `inner` columns with a left and a right title, and a rule between its parts.
    pub fn boxed(
        &self,
        left: &str,
        right: &str,
        parts: [Vec<StyledLine>; 2],
        inner: usize,
    ) -> Vec<StyledLine> {
        let rule = |[left, right]: [char; 2]| {
            StyledLine::new(format!("{left}{}{right}", self.dashes(inner + 2)), DIM)
        };
        let split = parts.iter().all(|part| !part.is_empty());
        let [top, bottom] = parts;
        let mut lines = vec![self.head(left, right, inner)];
        lines.extend(top.into_iter().map(|line| self.bordered(line, inner)));
        lines.extend(split.then(|| rule(self.tees)));
        lines.extend(bottom.into_iter().map(|line| self.bordered(line, inner)));
        lines.push(rule([self.corners[2], self.corners[3]]));
        lines
    }

    /// The upper border with the titles. The right one is left out if it does not fit.
    fn head(&self, left: &str, right: &str, inner: usize) -> StyledLine {
        let mut title = StyledLine::new(format!(" {} ", to_ascii(left)), BOLD);
        title.truncate(inner + 2, self.cut);
        let right = if right.is_empty() { String::new() } else { format!(" {right} ") };
        let right = if title.width() + right.len() <= inner { right } else { String::new() };
        let between = (inner + 2).saturating_sub(title.width() + right.len() + 1);
        let mut head = StyledLine::new(self.corners[0], DIM);
        head.append(title);
        head.push(self.dashes(between), DIM);
        head.push(right, PLAIN);
        head.push(self.dashes((inner + 3).saturating_sub(head.width())), DIM);
        head.push(self.corners[1], DIM);
        head
    }

    fn dashes(&self, count: usize) -> String {
        self.across.to_string().repeat(count)
    }

    fn bordered(&self, mut content: StyledLine, inner: usize) -> StyledLine {
        content.truncate(inner, self.cut);
        content.pad(inner);
        let mut line = StyledLine::new(format!("{}", self.down), DIM);
        line.push(" ", PLAIN);
        line.append(content);
        line.push(" ", PLAIN);
        line.push(self.down, DIM);
        line
    }
}

/// Appends the lines of a box on the right.
pub fn append_right(lines: &mut Vec<StyledLine>, right: Vec<StyledLine>) {
    if lines.is_empty() {
        *lines = right;
        return;
    }
    for (line, right) in lines.iter_mut().zip(right) {
        line.push(" ", PLAIN);
        line.append(right);
    }
}
