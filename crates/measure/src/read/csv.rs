//! Our own CSV.
//!
//! Columns are identified by name, in any order; missing columns are absent.

use std::collections::BTreeMap;

use regatta_model::bench::{BenchProgram, TimeStats};
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, Operation};

use super::ReadError;
use super::context::stem;
use crate::buffer_mode::BufferMode;
use crate::cases::same_key;

/// Whether a line is the header of such a file.
pub(super) fn is_header(line: &str) -> bool {
    cells(line).iter().any(|name| name == "size_bytes") && line.contains(',')
}

/// Parses the file: one result per label.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<BenchResult>, ReadError> {
    let mut records = records(text).into_iter();
    let Some((_, header)) = records.next() else { return Ok(Vec::new()) };
    let mut results: Vec<BenchResult> = Vec::new();
    for (line, cells) in records {
        let record = CsvRecord::new(name, line, &header, &cells)?;
        record.append_to(&mut results)?;
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
    fn new(
        file: &'a str,
        line: usize,
        header: &'a [String],
        cells: &'a [String],
    ) -> Result<Self, ReadError> {
        if cells.len() != header.len() {
            let expected = format!("{} values", header.len());
            let found = cells.join(",");
            return Err(ReadError::Line { file: file.to_owned(), line, expected, found });
        }
        let named = header.iter().map(String::as_str).zip(cells.iter().map(String::as_str));
        Ok(Self { file, line, cells: named.filter(|(_, cell)| !cell.is_empty()).collect() })
    }

    fn text(&self, column: &str) -> Option<String> {
        self.cells.get(column).map(|cell| (*cell).to_owned())
    }

    fn parse<T: std::str::FromStr>(&self, column: &str) -> Result<Option<T>, ReadError> {
        let Some(cell) = self.cells.get(column) else { return Ok(None) };
        cell.parse().map(Some).map_err(|_| self.mismatch(format!("a number for {column}"), cell))
    }

    fn metric(&self, column: &str) -> Result<Option<f64>, ReadError> {
        let Some(cell) = self.cells.get(column) else { return Ok(None) };
        let expected = || self.mismatch(format!("a number for {column}"), cell);
        super::columns::parse_metric(cell).map_err(|()| expected())
    }

    fn mismatch(&self, expected: String, found: &str) -> ReadError {
        let (file, line) = (self.file.to_owned(), self.line);
        ReadError::Line { file, line, expected, found: found.to_owned() }
    }

    fn place(&self) -> Result<BufferMode, ReadError> {
        let Some(cell) = self.cells.get("place") else { return Ok(BufferMode::OutOfPlace) };
        let found = BufferMode::BOTH.into_iter().find(|place| place.name() == *cell);
        found.ok_or_else(|| self.mismatch("out-of-place or in-place".to_owned(), cell))
    }

    fn measurement(&self) -> Result<Measurement, ReadError> {
        let spread = TimeStats {
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
            call_stats: (spread != TimeStats::default()).then_some(spread),
            ..Measurement::default()
        })
    }

    fn append_to(&self, results: &mut Vec<BenchResult>) -> Result<(), ReadError> {
        let size_bytes = self.parse("size_bytes")?;
        let size_bytes = size_bytes.ok_or_else(|| self.mismatch("a size_bytes".to_owned(), ""))?;
        let (count, place) = (self.parse("count")?, self.place()?);
        let measured = self.measurement()?;
        let table = table_of(&mut self.result_of(results)?.tables, self)?;
        let row = match table.rows.last_mut() {
            // The in-place record of a size directly follows its out-of-place record.
            Some(row) if row.size_bytes == size_bytes && self.continues(row, count, place) => row,
            _ => {
                table.rows.push(BenchRow { size_bytes, count, ..BenchRow::default() });
                match table.rows.last_mut() {
                    Some(row) => row,
                    None => return Ok(()),
                }
            }
        };
        *place.measurement_mut(row) = measured;
        Ok(())
    }

    fn continues(&self, row: &BenchRow, count: Option<u64>, place: BufferMode) -> bool {
        place == BufferMode::InPlace && row.in_place.is_none() && row.count == count
    }

    /// The result of this record's label.
    fn result_of<'r>(
        &self,
        results: &'r mut Vec<BenchResult>,
    ) -> Result<&'r mut BenchResult, ReadError> {
        let label = self.text("label").unwrap_or_else(|| stem(self.file).to_owned());
        let known = results.iter().position(|result| result.label == label);
        let at = known.unwrap_or(results.len());
        if known.is_none() {
            let mut result = BenchResult { label, complete: true, ..BenchResult::default() };
            let programs = [
                BenchProgram::Regatta,
                BenchProgram::NcclTests,
                BenchProgram::RcclTests,
                BenchProgram::Osu,
            ];
            let program = self.cells.get("program");
            let program = programs.into_iter().find(|p| Some(&p.name()) == program);
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

/// The table of a record: the last one, if the key matches.
fn table_of<'t>(
    tables: &'t mut Vec<BenchTable>,
    record: &CsvRecord<'_>,
) -> Result<&'t mut BenchTable, ReadError> {
    let expected = BenchTable {
        operation: record.text("operation").map(Operation::from).unwrap_or_default(),
        dtype: record.text("type"),
        redop: record.text("redop"),
        root: record.parse("root")?,
        rows: Vec::new(),
    };
    if !tables.last().is_some_and(|table| same_key(table, &expected)) {
        tables.push(expected);
    }
    let last = tables.len() - 1;
    Ok(&mut tables[last])
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
