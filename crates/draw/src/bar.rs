//! Bars on a terminal: progress, and parts of a whole.

use anstyle::Style;

use crate::line::StyledLine;

/// Eighths of a character, from low to high.
pub const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Width of the bar of a line, in characters.
const PROGRESS_WIDTH: usize = 24;

/// A progress bar with what is done of a task, and the time left.
pub fn progress_line(task: &str, done: usize, total: usize, time_left: &str) -> String {
    format!("{} {done}/{total}  {task}  {time_left}", progress(done, total, PROGRESS_WIDTH))
}

/// A progress bar.
pub fn progress(done: usize, total: usize, width: usize) -> String {
    let filled = (done.min(total) * width).checked_div(total).unwrap_or(0);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

/// The parts of a whole side by side: pattern, style and value. Patterns should differ, for terminals
/// without colours.
pub fn stacked(parts: &[(char, Style, f64)], width: usize) -> StyledLine {
    let sum: f64 = parts.iter().map(|(.., value)| value).sum();
    let (mut line, mut total, mut drawn) = (StyledLine::default(), 0.0, 0);
    for (pattern, style, value) in parts {
        total += value;
        // Rounds the ends of the parts, not their lengths, so that these add up to the bar.
        let end = (total / sum * width as f64).round() as usize;
        line.push(pattern.to_string().repeat(end.saturating_sub(drawn)), *style);
        drawn = end.max(drawn);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::PLAIN;

    #[test]
    fn bars_have_the_whole_width() {
        assert_eq!(progress(1, 2, 5), "██░░░");
        assert_eq!([progress(7, 3, 2), progress(0, 0, 2)], ["██", "░░"]);
        let parts = [('a', PLAIN, 1.0), ('b', PLAIN, 1.0), ('c', PLAIN, 1.0)];
        assert_eq!(stacked(&parts, 10).render(false), "aaabbbbccc");
    }
}
