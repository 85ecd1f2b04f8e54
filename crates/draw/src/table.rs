//! Aligned text tables without borders.

use crate::line::DIM;

/// Formats rows under a header: columns two spaces apart; those in `left` are left-aligned, the
/// others right-aligned. Cells may have styles.
pub fn align<H: AsRef<str>>(header: &[H], rows: &[Vec<String>], left: &[usize]) -> String {
    let header = header.iter().map(|name| name.as_ref().to_owned()).collect();
    let lines = || std::iter::once(&header).chain(rows);
    let length = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| width(cell));
    let width_of = |at| lines().map(|row| length(row, at)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width_of).collect();
    let line = |row: &Vec<String>| {
        let pad = |(at, (cell, total)): (usize, (&String, &usize))| {
            let spaces = " ".repeat(total - width(cell));
            if left.contains(&at) { format!("{cell}{spaces}") } else { format!("{spaces}{cell}") }
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(pad).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    lines().map(line).collect()
}

/// Columns of a cell, whose styles have none: their codes end with `m`.
fn width(cell: &str) -> usize {
    let codes = cell.split('\x1b').skip(1).filter_map(|part| part.find('m'));
    cell.chars().count() - codes.map(|end| end + 2).sum::<usize>()
}

/// [`align`] with a dimmed header.
pub fn with_dim_header<H: AsRef<str>>(
    header: &[H],
    rows: &[Vec<String>],
    left: &[usize],
) -> String {
    let table = align(header, rows, left);
    let (first, rest) = table.split_once('\n').unwrap_or((&table, ""));
    format!("{DIM}{first}{DIM:#}\n{rest}")
}

/// Lines of a table whose columns of digits are right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let is_number = |row: &Vec<String>, at: usize| row[at].chars().all(|c| c.is_ascii_digit());
    let is_text = |at: &usize| rows.is_empty() || !rows.iter().all(|row| is_number(row, *at));
    let left: Vec<usize> = (0..header.len()).filter(is_text).collect();
    align(header, rows, &left).lines().map(str::to_owned).collect()
}

/// Two decimals, but at least two significant digits; a dash without a value.
pub fn format_value(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match value.abs() {
        // Tiny, but not zero.
        size if size > 0.0 && size < 1e-4 => format!("{value:.1e}"),
        size if size > 0.0 && size < 0.1 => {
            let decimals = 1 - size.log10().floor() as i32;
            format!("{value:.*}", decimals.unsigned_abs() as usize)
        }
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{align, format_value, table, with_dim_header};
    use crate::line::GOOD;

    #[test]
    fn styles_have_no_width() {
        let rows = [vec![format!("{GOOD}é{GOOD:#}"), "1".into()], vec!["bb".into(), "2".into()]];
        let good = format!("{GOOD}é{GOOD:#}   1");
        assert_eq!(align(&["a", "n"], &rows, &[0]), format!("a   n\n{good}\nbb  2\n"));
        assert!(with_dim_header(&["a", "n"], &rows, &[0]).ends_with(&format!("\n{good}\nbb  2\n")));
    }

    #[test]
    fn columns_of_digits_are_right_aligned() {
        let rows = [vec!["0".into(), "49-55".into()], vec!["10".into(), "1-7".into()]];
        assert_eq!(table(&["rank", "cpus"], &rows), ["rank  cpus", "   0  49-55", "  10  1-7"]);
    }

    #[test]
    fn small_values_keep_two_significant_digits() {
        let values = [12.345, 0.1, 0.0999, 0.0023, 0.000_123, 2e-7, 0.0, -0.05, f64::INFINITY];
        let expected =
            ["12.35", "0.10", "0.100", "0.0023", "0.00012", "2.0e-7", "0.00", "-0.050", "inf"];
        assert_eq!(values.map(|value| format_value(Some(value))), expected);
        assert_eq!(format_value(None), "-");
    }
}
