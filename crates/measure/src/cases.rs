//! What several runs have in common: the same operation of the same size in each.

use regatta_model::{BenchResult, BenchTable, Measurement, Operation};
use serde::Serialize;

/// One thing that runs measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Case {
    /// What was done.
    pub operation: Operation,
    /// Of what type.
    pub dtype: Option<String>,
    /// How elements were reduced.
    pub redop: Option<String>,
    /// The root.
    pub root: Option<i64>,
    /// The size.
    pub size_bytes: u64,
}

impl Case {
    fn is_of(&self, table: &BenchTable) -> bool {
        self.operation == table.operation
            && self.dtype == table.dtype
            && self.redop == table.redop
            && self.root == table.root
    }

    /// What it is beside the operation and the size: `float sum`.
    pub fn kind(&self) -> String {
        let named = |name: &&str| !name.is_empty() && *name != "none";
        let words = [self.dtype.as_deref(), self.redop.as_deref()];
        let words: Vec<&str> = words.into_iter().flatten().filter(named).collect();
        let root = self.root.filter(|root| *root >= 0).map(|root| format!("root {root}"));
        words.into_iter().map(str::to_owned).chain(root).collect::<Vec<_>>().join(" ")
    }
}

/// All that any of the runs measured, each once, in the order of its first appearance.
pub(crate) fn cases<'a>(runs: impl Iterator<Item = &'a BenchResult>) -> Vec<Case> {
    let mut found: Vec<Case> = Vec::new();
    for table in runs.flat_map(|run| &run.tables) {
        for row in &table.rows {
            let case = Case {
                operation: table.operation.clone(),
                dtype: table.dtype.clone(),
                redop: table.redop.clone(),
                root: table.root,
                size_bytes: row.size_bytes,
            };
            if !found.contains(&case) {
                found.push(case);
            }
        }
    }
    found
}

/// What a run measured of a case, if it has a time and no wrong element: out of place, or else in
/// place.
pub(crate) fn measured<'a>(run: &'a BenchResult, case: &Case) -> Option<(f64, &'a Measurement)> {
    let tables = run.tables.iter().filter(|table| case.is_of(table));
    let mut rows = tables.flat_map(|table| &table.rows);
    let row = rows.find(|row| row.size_bytes == case.size_bytes)?;
    let timed = |it: &'a Measurement| {
        let time = it.time_us.filter(|time| time.is_finite() && *time > 0.0)?;
        (it.wrong.unwrap_or(0) == 0).then_some((time, it))
    };
    let both = [&row.out_of_place, &row.in_place];
    both.into_iter().flatten().find_map(timed)
}

/// Lines of cells, in columns: those of `left` to the left, figures to the right.
pub(crate) fn aligned(lines: &[Vec<String>], left: &[usize]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let length = |line: &Vec<String>, at: usize| line.get(at).map_or(0, |c| c.chars().count());
    let width = |at| lines.iter().map(|line| length(line, at)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let cell = |(at, cell): (usize, &String)| match left.contains(&at) {
            true => format!("{cell:<0$}", widths[at]),
            false => format!("{cell:>0$}", widths[at]),
        };
        let cells: Vec<String> = line.iter().enumerate().map(cell).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A figure with two digits behind the point, or a dash.
pub(crate) fn figure(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use regatta_model::BenchRow;

    /// A run of all-reduces: size, time in microseconds, bus bandwidth.
    pub(crate) fn run(rows: &[(u64, f64, f64)]) -> BenchResult {
        let row = |(size_bytes, time, busbw): &(u64, f64, f64)| {
            let measured = Measurement {
                time_us: Some(*time),
                busbw: Some(*busbw),
                wrong: Some(0),
                ..Measurement::default()
            };
            BenchRow {
                size_bytes: *size_bytes,
                out_of_place: Some(measured),
                ..BenchRow::default()
            }
        };
        let table = BenchTable {
            operation: Operation::AllReduce,
            dtype: Some("float".to_owned()),
            redop: Some("sum".to_owned()),
            root: Some(-1),
            rows: rows.iter().map(row).collect(),
        };
        BenchResult { tables: vec![table], ..BenchResult::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_results_and_missing_times_do_not_count() {
        let mut run = testing::run(&[(8, 2.0, 1.0)]);
        let case = cases([&run].into_iter()).remove(0);
        assert_eq!((case.kind().as_str(), measured(&run, &case).unwrap().0), ("float sum", 2.0));
        let row = &mut run.tables[0].rows[0];
        row.in_place = row.out_of_place.clone();
        row.out_of_place.as_mut().unwrap().wrong = Some(1);
        row.in_place.as_mut().unwrap().time_us = Some(3.0);
        assert_eq!(measured(&run, &case).unwrap().0, 3.0);
        run.tables[0].rows[0].in_place = None;
        assert!(measured(&run, &case).is_none());
    }
}
