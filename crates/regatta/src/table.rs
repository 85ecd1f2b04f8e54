//! Tables on the terminal.

use anstyle::Style;
use regatta_draw::table;
use regatta_draw::text::{sanitize, truncate};

use crate::cli::FAINT;

/// A table with a faint header; the columns `left` are aligned to the left.
pub fn with_faint_header(header: &[&str], rows: &[Vec<String>], left: &[usize]) -> String {
    let table = table::align(header, rows, left);
    let (first, rest) = table.split_once('\n').unwrap_or((&table, ""));
    format!("{FAINT}{first}{FAINT:#}\n{rest}")
}

/// A table with the state of each row in its colour.
pub fn with_states(
    header: &[&str],
    rows: &[Vec<String>],
    left: &[usize],
    states: impl Iterator<Item = (&'static str, Style)>,
) -> String {
    let table = with_faint_header(header, rows, left);
    let (header, lines) = table.split_once('\n').unwrap_or((&table, ""));
    let colored = states.zip(lines.lines()).map(|((name, style), line)| {
        line.replacen(&format!("  {name}"), &format!("  {style}{name}{style:#}"), 1) + "\n"
    });
    format!("{header}\n{}", colored.collect::<String>())
}

/// A cell with text of other programs, of at most this width.
pub fn cell(text: &str, width: usize) -> String {
    match text {
        "" => "-".to_owned(),
        text => truncate(&sanitize(text), width, '~'),
    }
}
