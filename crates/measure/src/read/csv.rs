//! Our own CSV.
//!
//! Columns are identified by name, in any order; missing columns are absent.

use std::collections::BTreeMap;

use regatta_model::bench::TimeStats;
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, Operation};

use super::context::stem;
use super::{LineError, ReadError, Result};
use crate::buffer_mode::BufferMode;
use crate::cases::table_of;

/// Whether a line is the header of such a file.
pub(super) fn is_header(line: &str) -> bool {
    cells(line).iter().any(|name| name == "size_bytes") && line.contains(',')
}

/// Parses the file: one result per label.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<BenchResult>> {
    let mut records = records(text).into_iter();
    let Some((_, header)) = records.next() else { return Ok(Vec::new()) };
    let mut results: Vec<BenchResult> = Vec::new();
    for (line, cells) in records {
        CsvRecord::new(name, line, &header, &cells)?.append_to(&mut results)?;
    }
    Ok(results)
}

/// One record by column name.
struct CsvRecord<'a> {
    file: &'a str,
    line: usize,
    cells: BTreeMap<&'a str, &'a str>,
}

impl<'a> CsvRecord<'a> {
    fn new(file: &'a str, line: usize, header: &'a [String], cells: &'a [String]) -> Result<Self> {
        let named = header.iter().map(String::as_str).zip(cells.iter().map(String::as_str));
        let named = named.filter(|(_, cell)| !cell.is_empty()).collect();
        let record = Self { file, line, cells: named };
        if cells.len() != header.len() {
            return Err(record.mismatch(format!("{} values", header.len()), &cells.join(",")));
        }
        Ok(record)
    }

    fn text(&self, column: &str) -> Option<String> {
        self.cells.get(column).map(|cell| (*cell).to_owned())
    }

    fn parse<T: std::str::FromStr>(&self, column: &str) -> Result<Option<T>> {
        let Some(cell) = self.cells.get(column) else { return Ok(None) };
        cell.parse().map(Some).map_err(|_| self.mismatch(format!("a number for {column}"), cell))
    }

    fn metric(&self, column: &str) -> Result<Option<f64>> {
        let Some(cell) = self.cells.get(column) else { return Ok(None) };
        let value = super::parse_metric(cell);
        value.map_err(|()| self.mismatch(format!("a number for {column}"), cell))
    }

    fn mismatch(&self, expected: String, found: &str) -> ReadError {
        LineError { line: self.line, expected, found: found.to_owned() }.in_file(self.file)
    }

    fn place(&self) -> Result<BufferMode> {
        let Some(cell) = self.cells.get("place") else { return Ok(BufferMode::OutOfPlace) };
        let found = BufferMode::ALL.into_iter().find(|place| place.name() == *cell);
        found.ok_or_else(|| self.mismatch("out-of-place or in-place".to_owned(), cell))
    }

    fn measurement(&self) -> Result<Measurement> {
        let stats = TimeStats {
            min_us: self.metric("min_us")?,
            p50_us: self.metric("p50_us")?,
            p90_us: self.metric("p90_us")?,
            p95_us: self.metric("p95_us")?,
            p99_us: self.metric("p99_us")?,
            max_us: self.metric("max_us")?,
            cv_percent: self.metric("cv_percent")?,
        };
        Ok(Measurement {
            time_us: self.metric("time_us")?,
            algbw: self.metric("algbw_gb_s")?,
            busbw: self.metric("busbw_gb_s")?,
            wrong: self.parse("wrong")?,
            error: self.metric("error")?,
            iterations: self.parse("iterations")?,
            call_stats: (stats != TimeStats::default()).then_some(stats),
            ..Measurement::default()
        })
    }

    fn append_to(&self, results: &mut Vec<BenchResult>) -> Result<()> {
        let size_bytes = self.parse("size_bytes")?;
        let size_bytes = size_bytes.ok_or_else(|| self.mismatch("a size_bytes".to_owned(), ""))?;
        let (count, place) = (self.parse("count")?, self.place()?);
        let measured = self.measurement()?;
        let key = self.table_key()?;
        let rows = &mut table_of(&mut self.result_of(results)?.tables, key).rows;
        // The in-place record of a size directly follows its out-of-place record.
        let follows = |row: &BenchRow| (row.size_bytes, row.count) == (size_bytes, count);
        let continues =
            |row: &BenchRow| place == BufferMode::InPlace && row.in_place.is_none() && follows(row);
        let mut row = match rows.pop_if(|row| continues(row)) {
            Some(row) => row,
            None => BenchRow { size_bytes, count, ..BenchRow::default() },
        };
        *place.measurement_mut(&mut row) = measured;
        rows.push(row);
        Ok(())
    }

    /// The table of this record, without rows.
    fn table_key(&self) -> Result<BenchTable> {
        Ok(BenchTable {
            operation: self.text("operation").map(Operation::from).unwrap_or_default(),
            dtype: self.text("type"),
            redop: self.text("redop"),
            root: self.parse("root")?,
            rows: Vec::new(),
        })
    }

    /// The result of this record's label.
    fn result_of<'r>(&self, results: &'r mut Vec<BenchResult>) -> Result<&'r mut BenchResult> {
        let label = self.text("label").unwrap_or_else(|| stem(self.file).to_owned());
        let known = results.iter().position(|result| result.label == label);
        let at = known.unwrap_or(results.len());
        if known.is_none() {
            let mut result = BenchResult { label, complete: true, ..BenchResult::default() };
            let program = self.text("program").map(serde_json::Value::String);
            let program = program.and_then(|name| serde_json::from_value(name).ok());
            result.program = program.unwrap_or_default();
            result.backend = self.text("backend");
            // 0 means unknown.
            result.shape.ranks = self.parse("ranks")?.filter(|ranks| *ranks > 0);
            result.shape.nodes = self.parse("nodes")?.filter(|nodes| *nodes > 0);
            results.push(result);
        }
        Ok(&mut results[at])
    }
}

/// The records with their line numbers. Quoted cells may contain commas and line ends.
fn records(text: &str) -> Vec<(usize, Vec<String>)> {
    let (mut all, mut cells, mut cell) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut begin, mut quoted) = (1, 1, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => cell.extend(chars.next()),
            '"' => quoted = !quoted,
            _ if quoted => cell.push(c),
            ',' => cells.push(std::mem::take(&mut cell)),
            '\r' => {}
            '\n' => {
                cells.push(std::mem::take(&mut cell));
                all.push((std::mem::replace(&mut begin, line), std::mem::take(&mut cells)));
            }
            c => cell.push(c),
        }
    }
    if !cell.is_empty() || !cells.is_empty() {
        cells.push(cell);
        all.push((begin, cells));
    }
    all.retain(|(_, cells)| cells.len() > 1 || !cells[0].is_empty());
    all
}

fn cells(line: &str) -> Vec<String> {
    records(line).pop().map(|(_, cells)| cells).unwrap_or_default()
}
