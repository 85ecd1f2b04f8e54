//! Aligned text tables.

/// Formats rows as columns, two spaces apart; those in `left` are left-aligned, the others
/// right-aligned.
pub(crate) fn align(rows: &[Vec<String>], left: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let length = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |c| c.chars().count());
    let width = |at| rows.iter().map(|row| length(row, at)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(at, cell): (usize, &String)| match left.contains(&at) {
            true => format!("{cell:<0$}", widths[at]),
            false => format!("{cell:>0$}", widths[at]),
        };
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Two decimals, or a dash.
pub(crate) fn format_value(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}
