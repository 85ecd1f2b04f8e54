//! Cases that several runs have in common: the same operation at the same size.

use regatta_model::{BenchResult, BenchTable, Measurement, Operation};
use serde::Serialize;

use crate::buffer_mode::BufferMode;

/// A measured case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BenchCase {
    /// The operation.
    pub operation: Operation,
    /// Data type.
    pub dtype: Option<String>,
    /// Reduction operator.
    pub redop: Option<String>,
    /// Root rank.
    pub root: Option<i64>,
    /// Message size.
    pub size_bytes: u64,
}

/// Whether two tables have the same operation, type, reduction and root.
pub(crate) fn same_key(a: &BenchTable, b: &BenchTable) -> bool {
    a.operation == b.operation && a.dtype == b.dtype && a.redop == b.redop && a.root == b.root
}

/// The last table if it has this key, else a new one.
pub(crate) fn table_of(tables: &mut Vec<BenchTable>, key: BenchTable) -> &mut BenchTable {
    if !tables.last().is_some_and(|last| same_key(last, &key)) {
        tables.push(key);
    }
    let last = tables.len() - 1;
    &mut tables[last]
}

impl BenchCase {
    fn matches(&self, table: &BenchTable) -> bool {
        self.operation == table.operation
            && self.dtype == table.dtype
            && self.redop == table.redop
            && self.root == table.root
    }

    /// Type, reduction and root: `float sum`.
    pub fn variant(&self) -> String {
        let named = |name: &&String| !name.is_empty() && *name != "none";
        let words = [&self.dtype, &self.redop].into_iter().flatten().filter(named).cloned();
        let root = self.root.filter(|root| *root >= 0).map(|root| format!("root {root}"));
        words.chain(root).collect::<Vec<_>>().join(" ")
    }
}

/// Every case of any run, once, in order of first appearance.
pub(crate) fn cases<'a>(runs: impl Iterator<Item = &'a BenchResult>) -> Vec<BenchCase> {
    let mut found: Vec<BenchCase> = Vec::new();
    for table in runs.flat_map(|run| &run.tables) {
        for row in &table.rows {
            let case = BenchCase {
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

/// Time and measurement of a case if it has a time and no wrong elements: out of place if
/// available, else in place.
pub(crate) fn measurement<'a>(
    run: &'a BenchResult,
    case: &BenchCase,
) -> Option<(f64, &'a Measurement)> {
    let tables = run.tables.iter().filter(|table| case.matches(table));
    let mut rows = tables.flat_map(|table| &table.rows);
    let row = rows.find(|row| row.size_bytes == case.size_bytes)?;
    BufferMode::ALL.into_iter().filter_map(|place| place.measurement(row)).find_map(|measured| {
        let time = measured.time_us.filter(|time| time.is_finite() && *time > 0.0)?;
        (measured.wrong.unwrap_or(0) == 0).then_some((time, measured))
    })
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use regatta_model::BenchRow;

    /// A run of all-reduces: (size, time in µs, bus bandwidth).
    pub(crate) fn run(rows: &[(u64, f64, f64)]) -> BenchResult {
        let row = |&(size_bytes, time, busbw): &(u64, f64, f64)| {
            let (time_us, busbw, wrong) = (Some(time), Some(busbw), Some(0));
            let measured = Measurement { time_us, busbw, wrong, ..Measurement::default() };
            BenchRow { size_bytes, out_of_place: Some(measured), ..BenchRow::default() }
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
    fn measurements_with_wrong_elements_or_without_a_time_are_skipped() {
        let mut run = testing::run(&[(8, 2.0, 1.0)]);
        let case = cases([&run].into_iter()).remove(0);
        let time = |run: &BenchResult| measurement(run, &case).map(|(time, _)| time);
        assert_eq!((case.variant().as_str(), time(&run)), ("float sum", Some(2.0)));
        let row = &mut run.tables[0].rows[0];
        row.in_place = row.out_of_place.clone();
        row.out_of_place.as_mut().unwrap().wrong = Some(1);
        row.in_place.as_mut().unwrap().time_us = Some(3.0);
        assert_eq!(time(&run), Some(3.0));
        run.tables[0].rows[0].in_place = None;
        assert_eq!(time(&run), None);
    }
}
