//! Plain text tables without borders.

/// Formats rows under a header: columns two spaces apart, numeric columns right-aligned.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let mut lines = vec![String::new(); rows.len() + 1];
    for (column, name) in header.iter().enumerate() {
        let cells = || rows.iter().map(|row| row[column].as_str());
        let numeric = !rows.is_empty() && cells().all(|c| c.chars().all(|c| c.is_ascii_digit()));
        let width = cells().chain([*name]).map(|c| c.chars().count()).max().unwrap_or(0);
        for (line, cell) in lines.iter_mut().zip([*name].into_iter().chain(cells())) {
            line.push_str(&match numeric {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            });
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
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
