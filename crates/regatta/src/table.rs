//! Plain text tables without borders.

/// Formats rows under a header: columns two spaces apart, numeric columns right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|r| r[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let numeric = |column: usize| {
        !rows.is_empty() && rows.iter().all(|r| r[column].chars().all(|c| c.is_ascii_digit()))
    };
    let numeric: Vec<bool> = (0..header.len()).map(numeric).collect();
    let line = |cells: Vec<&str>| {
        let mut text = String::new();
        for (i, cell) in cells.into_iter().enumerate() {
            let width = widths[i];
            match numeric[i] {
                true => text.push_str(&format!("{cell:>width$}  ")),
                false => text.push_str(&format!("{cell:<width$}  ")),
            }
        }
        text.trim_end().to_owned()
    };
    let mut lines = vec![line(header.to_vec())];
    lines.extend(rows.iter().map(|r| line(r.iter().map(String::as_str).collect())));
    lines
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_aligned() {
        let rows = [vec!["0".into(), "49-55".into()], vec!["10".into(), "1-7".into()]];
        assert_eq!(table(&["rank", "cpus"], &rows), ["rank  cpus", "   0  49-55", "  10  1-7"]);
    }
}
