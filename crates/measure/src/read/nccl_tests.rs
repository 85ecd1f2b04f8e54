//! Output of nccl-tests and rccl-tests, in all versions, also as tables on slides.

pub(crate) mod columns;
mod comments;

use regatta_model::bench::{BenchProgram, BenchShape};
use regatta_model::{BenchResult, BenchTable, Operation};

use super::LineError;
use super::context::{self, TableContext};
use super::lines::LogLine;
use crate::buffer_mode::BufferMode;
use crate::bus_bandwidth;
use crate::cases::table_of;
use columns::{ColumnLayout, ParsedRow};

/// Parser of one run.
#[derive(Debug)]
pub(super) struct NcclTestsParser {
    result: BenchResult,
    /// Texts that may name the operation, the most reliable first: the run, the command, the title,
    /// the file name.
    hints: Vec<String>,
    /// Mode of the first time column.
    first: BufferMode,
    columns: Option<ColumnLayout>,
    /// A row interrupted by other output or by the end of the file.
    partial_row: Option<(usize, String)>,
    /// A blank line after rows: what follows may not belong to the run.
    after_blank: bool,
    rows: usize,
    has_preamble: bool,
}

pub(super) fn starts_run(line: &LogLine<'_>) -> bool {
    let words: Vec<&str> = line.words().collect();
    let header = line.comment().and_then(|c| ColumnLayout::from_header(c, BufferMode::OutOfPlace));
    let standard = ColumnLayout::standard();
    is_preamble(line)
        || header.is_some()
        || (words.len() == standard.len() && standard.starts_row(&words))
}

/// Whether the line belongs to the start of a run.
fn is_preamble(line: &LogLine<'_>) -> bool {
    let text = line.text.trim_start().trim_start_matches('#').trim_start();
    text.starts_with("nccl-tests version ")
        || text.starts_with("regatta version ")
        || text.starts_with("Collective test starting: ")
        || (text.starts_with("nThread ") && text.contains(" minBytes "))
}

impl NcclTestsParser {
    /// A run with the context before it.
    pub fn new(name: &str, line: &LogLine<'_>, context: &TableContext) -> Self {
        let command = context.command_line();
        // In a log, the text before a table is not a title.
        let title = context.title().filter(|_| line.text.contains('\t'));
        let label = title.clone().unwrap_or_else(|| context::stem(name).to_owned());
        let hints = [command.clone(), title.clone(), Some(context::stem(name).to_owned())];
        let mut shape = command.as_deref().map(context::shape_of_command).unwrap_or_default();
        if let Some(titled) = title.as_deref().map(context::shape_of_title) {
            shape.ranks = shape.ranks.or(titled.ranks);
            shape.nodes = shape.nodes.or(titled.nodes);
        }
        let all = [Some(name), command.as_deref(), title.as_deref()];
        let rccl = all.into_iter().flatten().any(|text| text.to_lowercase().contains("rccl"));
        let result = BenchResult {
            program: if rccl { BenchProgram::RcclTests } else { BenchProgram::NcclTests },
            label,
            settings: command.as_deref().map(context::settings).unwrap_or_default(),
            command,
            shape,
            ..BenchResult::default()
        };
        Self {
            result,
            hints: hints.into_iter().flatten().collect(),
            first: BufferMode::OutOfPlace,
            columns: None,
            partial_row: None,
            after_blank: false,
            rows: 0,
            has_preamble: false,
        }
    }

    /// Adds a line; `false` if it does not belong to this run.
    pub fn push_line(&mut self, line: &LogLine<'_>) -> Result<bool, LineError> {
        if line.is_blank() {
            self.after_blank = self.rows > 0;
            return Ok(!self.after_blank);
        }
        let words: Vec<&str> = line.words().collect();
        if self.partial_row.is_some() && ColumnLayout::continues_row(&words) {
            return self.continue_row(line).map(|()| true);
        }
        self.flush_row()?;
        if is_preamble(line) {
            return Ok(self.rows == 0 && self.preamble(line));
        }
        match line.comment() {
            Some(comment) => Ok(self.comment(comment)),
            None if self.version(line.text) => Ok(true),
            // Slides and web pages lose the comment sign.
            None if is_header_rest(line.text) || self.device(line.text) => Ok(true),
            None => self.start_row(line, &words),
        }
    }

    fn preamble(&mut self, line: &LogLine<'_>) -> bool {
        let text = line.text.trim_start().trim_start_matches('#').trim();
        self.has_preamble = true;
        if let Some(found) = comments::parameters(text) {
            self.result.parameters = Some(found);
        } else if let Some(program) = text.strip_prefix("Collective test starting: ") {
            self.hints.insert(0, program.to_owned());
            self.result.command.get_or_insert_with(|| program.to_owned());
        } else if let Some(rest) = text.strip_prefix("nccl-tests version ") {
            self.versions(rest);
        } else if let Some(version) = text.strip_prefix("regatta version ") {
            self.result.program = BenchProgram::Regatta;
            self.result.versions.insert("regatta".to_owned(), version.to_owned());
        } else {
            self.result.notes.push(line.text.to_owned());
        }
        true
    }

    /// `2.19.6 nccl-headers=22809 nccl-library=22809`.
    fn versions(&mut self, text: &str) {
        let mut words = text.split_whitespace();
        let own = words.next().map(|version| ("nccl-tests", version));
        for (name, version) in own.into_iter().chain(words.filter_map(|w| w.split_once('='))) {
            self.result.versions.insert(name.to_owned(), version.to_owned());
        }
    }

    /// Version lines printed by the libraries.
    fn version(&mut self, text: &str) -> bool {
        let text = text.trim();
        let known = [
            ("NCCL version ", "nccl"),
            ("RCCL version ", "rccl"),
            ("rccl-tests: Version ", "rccl-tests"),
        ];
        let version = |(prefix, name)| Some((name, text.strip_prefix(prefix)?));
        let Some((name, version)) = known.into_iter().find_map(version) else { return false };
        if name.starts_with("rccl") {
            self.result.program = BenchProgram::RcclTests;
        }
        self.result.versions.insert(name.to_owned(), version.trim().to_owned());
        true
    }

    fn device(&mut self, text: &str) -> bool {
        let found = comments::device(text);
        let is_one = found.is_some();
        self.result.devices.extend(found);
        is_one
    }

    fn comment(&mut self, text: &str) -> bool {
        if let Some(columns) = ColumnLayout::from_header(text, self.first) {
            let is_first = self.rows == 0;
            if is_first {
                self.columns = Some(columns);
            }
            return is_first;
        }
        if comments::summarize(text, &mut self.result.summary) || self.device(text) {
            return true;
        }
        let (comment, text) = (text, text.trim());
        if let Some(transport) = text.strip_prefix("Transport: ") {
            self.result.transport = Some(transport.to_owned());
            return true;
        }
        if text.contains("in-place") && self.columns.is_none() {
            let both = text.contains("out-of-place");
            self.first = if both { BufferMode::OutOfPlace } else { BufferMode::InPlace };
            return true;
        }
        let is_frame = text.is_empty()
            || text == "Using devices"
            || text.starts_with("Collective test concluded: ")
            || is_header_rest(text);
        if is_frame {
            return true;
        }
        // A heading or foreign comment after the table.
        if self.after_blank || text.starts_with(['#', '!']) {
            return false;
        }
        self.result.notes.push(format!("#{comment}"));
        true
    }

    fn start_row(&mut self, line: &LogLine<'_>, words: &[&str]) -> Result<bool, LineError> {
        let columns = self.columns.clone().unwrap_or_else(ColumnLayout::standard);
        if !columns.is_row(words) {
            return Ok(false);
        }
        self.columns = Some(columns);
        self.after_blank = false;
        self.partial_row = Some((line.number, line.text.to_owned()));
        self.finish_row().map(|()| true)
    }

    fn continue_row(&mut self, line: &LogLine<'_>) -> Result<(), LineError> {
        if let Some((_, text)) = &mut self.partial_row {
            *text += &format!(" {}", line.text.trim());
        }
        self.finish_row()
    }

    /// Parses the started row if it is complete.
    fn finish_row(&mut self) -> Result<(), LineError> {
        let (Some(columns), Some((number, text))) = (&self.columns, &self.partial_row) else {
            return Ok(());
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let in_place_only = columns.is_in_place_only(text, &words);
        if words.len() > columns.len() {
            let expected = format!("a row of {} columns", columns.len());
            return Err(LineError::new(*number, &expected, text.trim()));
        }
        let row = columns.row(&words, in_place_only, *number)?;
        if words.len() == columns.len() || in_place_only {
            let text = text.clone();
            self.partial_row = None;
            self.push_row(row, text);
        }
        Ok(())
    }

    /// An incomplete row is kept with its values; without any it becomes a note.
    fn flush_row(&mut self) -> Result<(), LineError> {
        let (Some(columns), Some((number, text))) = (&self.columns, self.partial_row.take()) else {
            return Ok(());
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let row = columns.row(&words, false, number)?;
        if row.row.out_of_place.is_some() || row.row.in_place.is_some() {
            self.push_row(row, text);
        } else {
            self.result.notes.push(text);
        }
        Ok(())
    }

    fn push_row(&mut self, ParsedRow { key, mut row }: ParsedRow, text: String) {
        row.line = Some(text);
        self.rows += 1;
        table_of(&mut self.result.tables, key).rows.push(row);
    }

    /// The result; `None` without a table.
    pub fn finish(mut self) -> Result<Option<BenchResult>, LineError> {
        self.flush_row()?;
        if self.columns.is_none() && self.result.parameters.is_none() {
            return Ok(None);
        }
        let mean = self.result.summary.as_ref().and_then(|summary| summary.average_busbw);
        // A bare table does not tell whether the run completed.
        self.result.complete = mean.is_some() || !self.has_preamble;
        set_shape_from_devices(&mut self.result);
        set_operations(&mut self.result, &self.hints);
        Ok(Some(self.result))
    }
}

/// The lines of ranks are more reliable than the command's options.
pub(super) fn set_shape_from_devices(result: &mut BenchResult) {
    let mut hosts: Vec<String> = Vec::new();
    for device in &result.devices {
        if !hosts.contains(&device.host) {
            hosts.push(device.host.clone());
        }
    }
    let highest = result.devices.iter().map(|device| device.rank).max();
    let Some(ranks) = highest.and_then(|rank| rank.checked_add(1)) else { return };
    let amd = |name: &str| name.contains("AMD") || name.contains("gfx");
    // Programs that identify themselves may list CPUs as devices.
    let unsure = result.program == BenchProgram::NcclTests;
    if unsure && result.devices.iter().any(|device| amd(&device.name)) {
        result.program = BenchProgram::RcclTests;
    }
    let nodes = hosts.len() as u32;
    let ranks_per_node = ranks.checked_div(nodes).filter(|each| each * nodes == ranks);
    let (ranks, nodes) = (Some(ranks), Some(nodes));
    result.shape = BenchShape { ranks, nodes, ranks_per_node, hosts, ..BenchShape::default() };
}

/// Sets the operation from the hints, or else from the rows.
pub(super) fn set_operations(result: &mut BenchResult, hints: &[String]) {
    let hinted = hints.iter().find_map(|hint| context::operation_in(hint));
    for table in &mut result.tables {
        table.operation = hinted.clone().unwrap_or_else(|| guess_operation(table));
    }
    let guessed = result.tables.iter().find_map(ranks_from_counts);
    result.shape.ranks = result.shape.ranks.or(guessed);
}

/// The units line, or fragments of a header: no values.
fn is_header_rest(text: &str) -> bool {
    let known = ["algbw", "busbw", "busrw", "#wrong", "time", "timestamp"];
    let is_unit = |word: &str| word.starts_with(['(', '%']) || word.ends_with(')');
    text.split_whitespace().all(|word| known.contains(&word) || is_unit(word))
}

/// Infers the operation from the rows; early nccl-tests versions do not print it.
fn guess_operation(table: &BenchTable) -> Operation {
    let chunks = chunks_per_size(table);
    let reduces = table.redop.as_deref().map(|redop| redop != "none");
    let rooted = table.root.is_some_and(|root| root >= 0);
    match (reduces, rooted, chunks) {
        (Some(true), false, Some(1)) => Operation::AllReduce,
        (Some(true), false, Some(_)) => Operation::ReduceScatter,
        (Some(true), true, _) => Operation::Reduce,
        (Some(false), true, Some(1)) => Operation::Broadcast,
        (Some(false), false, Some(1)) => Operation::SendRecv,
        _ => Operation::Unknown,
    }
}

fn chunks_per_size(table: &BenchTable) -> Option<u32> {
    let element = element_bytes(table.dtype.as_deref()?)?;
    let row = table.rows.iter().rev().find(|row| row.count.is_some_and(|count| count > 0))?;
    let chunk = row.count?.checked_mul(element)?;
    let chunks = row.size_bytes.is_multiple_of(chunk).then(|| row.size_bytes / chunk)?;
    u32::try_from(chunks).ok()
}

fn ranks_from_counts(table: &BenchTable) -> Option<u32> {
    if bus_bandwidth::is_chunked(&table.operation) { chunks_per_size(table) } else { None }
}

/// Element size by nccl-tests' type name.
fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "int8" | "uint8" | "char" | "f8e4m3" | "f8e5m2" | "fp8_e4m3" | "fp8_e5m2" => 1,
        "half" | "bfloat16" => 2,
        "int32" | "uint32" | "int" | "float" => 4,
        "int64" | "uint64" | "double" => 8,
        _ => return None,
    })
}
