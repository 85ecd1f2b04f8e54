//! Tables copied from slides and web pages: tab-separated, or aligned in a code fence.
//!
//! A table with sizes and one column per run becomes those runs; any other table is kept cell by
//! cell.

use regatta_model::bench::RawTable;
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement};

use super::context::{self, TableContext};
use super::lines::LogLine;
use super::parse_metric;

/// What such a table does not state.
const ASSUMPTION: &str = "assumed to be in-place bus bandwidths in GB/s: the table does not say";

/// Lines that may be a table.
#[derive(Debug)]
pub(super) struct TabularBlock<'a> {
    by_tabs: bool,
    lines: Vec<LogLine<'a>>,
}

/// Whether a table may start with this line.
pub(super) fn starts_table(line: &LogLine<'_>) -> bool {
    let by_tabs = line.text.contains('\t');
    let min = if by_tabs { 2 } else { 3 };
    (by_tabs || line.in_code_fence) && full_cells(line.text, by_tabs) >= min
}

fn full_cells(line: &str, by_tabs: bool) -> usize {
    cells(line, by_tabs).into_iter().filter(|cell| !cell.is_empty()).count()
}

impl<'a> TabularBlock<'a> {
    /// A table that starts with this line.
    pub fn new(line: &LogLine<'a>) -> Self {
        Self { by_tabs: line.text.contains('\t'), lines: vec![*line] }
    }

    /// Adds a line; `false` if it does not belong to this table.
    pub fn push_line(&mut self, line: &LogLine<'a>) -> bool {
        let fits = if self.by_tabs {
            line.text.contains('\t')
        } else {
            line.in_code_fence && full_cells(line.text, false) >= 2
        };
        if fits {
            self.lines.push(*line);
        }
        fits
    }

    /// The results. A single line is not a table and goes to the context.
    pub fn finish(self, name: &str, context: &mut TableContext) -> Vec<BenchResult> {
        if self.lines.len() < 2 {
            self.lines.iter().for_each(|line| context.push(line));
            return Vec::new();
        }
        let title = context.title().unwrap_or_else(|| context::stem(name).to_owned());
        context.clear();
        if let Some(runs) = self.column_per_run(&title) {
            return runs;
        }
        let owned = |cells: Vec<&str>| cells.into_iter().map(str::to_owned).collect();
        let rows = self.lines.iter().map(|line| owned(cells(line.text, self.by_tabs))).collect();
        let raw_tables = vec![RawTable { title: title.clone(), rows }];
        vec![BenchResult { label: title, raw_tables, complete: true, ..BenchResult::default() }]
    }

    /// One run per column, if the table has bus bandwidths by size.
    fn column_per_run(&self, title: &str) -> Option<Vec<BenchResult>> {
        let (header, rows) = self.lines.split_first().filter(|_| self.by_tabs)?;
        let names = cells(header.text, true);
        if !names.first()?.to_lowercase().contains("size") || names.len() < 2 {
            return None;
        }
        let mut read: Vec<(u64, Vec<f64>, &str)> = Vec::new();
        for line in rows {
            let cells = cells(line.text, true);
            let (size, values) = cells.split_first().filter(|_| cells.len() == names.len())?;
            let values = values.iter().map(|cell| parse_metric(cell).ok().flatten());
            read.push((size.parse().ok()?, values.collect::<Option<_>>()?, line.text));
        }
        let operation = context::operation_in(title).unwrap_or_default();
        let shape = context::shape_of_title(title);
        let run = |(index, label): (usize, &&str)| {
            let row = |(size, values, line): &(u64, Vec<f64>, &str)| BenchRow {
                size_bytes: *size,
                in_place: Some(Measurement { busbw: Some(values[index]), ..<_>::default() }),
                line: Some((*line).to_owned()),
                ..BenchRow::default()
            };
            let (operation, rows) = (operation.clone(), read.iter().map(row).collect());
            BenchResult {
                label: (*label).to_owned(),
                shape: shape.clone(),
                tables: vec![BenchTable { operation, rows, ..BenchTable::default() }],
                complete: true,
                notes: vec![title.to_owned(), ASSUMPTION.to_owned()],
                ..BenchResult::default()
            }
        };
        Some(names[1..].iter().enumerate().map(run).collect())
    }
}

fn cells(line: &str, by_tabs: bool) -> Vec<&str> {
    if by_tabs {
        return line.split('\t').map(str::trim).collect();
    }
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}
