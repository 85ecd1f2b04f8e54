//! Aligned text tables without borders.

/// Formats rows under a header: columns two spaces apart; those in `left` are left-aligned, the
/// others right-aligned.
pub fn align<H: AsRef<str>>(header: &[H], rows: &[Vec<String>], left: &[usize]) -> String {
    let header = header.iter().map(|name| name.as_ref().to_owned()).collect();
    let lines = || std::iter::once(&header).chain(rows);
    let length = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    let width = |at| lines().map(|row| length(row, at)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let pad = |(at, (cell, &width)): (usize, (&String, &usize))| {
            if left.contains(&at) { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(pad).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    lines().map(line).collect()
}

/// Lines of a table whose columns of digits are right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let is_number = |row: &Vec<String>, at: usize| row[at].chars().all(|c| c.is_ascii_digit());
    let is_text = |at: &usize| rows.is_empty() || !rows.iter().all(|row| is_number(row, *at));
    let left: Vec<usize> = (0..header.len()).filter(is_text).collect();
    align(header, rows, &left).lines().map(str::to_owned).collect()
}

/// Two decimals, or a dash.
pub fn format_value(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_of_digits_are_right_aligned() {
        let rows = [vec!["0".into(), "49-55".into()], vec!["10".into(), "1-7".into()]];
        assert_eq!(table(&["rank", "cpus"], &rows), ["rank  cpus", "   0  49-55", "  10  1-7"]);
    }
}
