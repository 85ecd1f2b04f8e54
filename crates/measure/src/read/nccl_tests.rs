//! The output of nccl-tests and rccl-tests, of all their versions, also as tables on slides.

use regatta_model::bench::{BenchShape, Program};
use regatta_model::{BenchResult, BenchTable, Operation};

use super::columns::{Columns, Misfit, Row};
use super::context::{self, Context};
use super::lines::Line;
use super::{ReadError, comments};
use crate::formula;
use crate::place::Place;

/// One run, as far as it was read.
#[derive(Debug)]
pub(super) struct Run {
    result: BenchResult,
    /// What the run, the command, the title and the file's name say is measured, the surest first.
    hints: Vec<String>,
    /// Whether only the place of one buffer is shown.
    first: Place,
    columns: Option<Columns>,
    /// A row that something else broke into, or the end of the file.
    part: Option<(usize, String)>,
    /// A blank line came after rows: what follows may be of something else.
    idle: bool,
    rows: usize,
    has_preamble: bool,
}

/// Whether a run begins with this line.
pub(super) fn begins(line: &Line<'_>) -> bool {
    let words: Vec<&str> = line.words().collect();
    let head = line.comment().and_then(|c| Columns::of_head(c, Place::OutOfPlace));
    let usual = Columns::usual();
    is_preamble(line) || head.is_some() || (words.len() == usual.len() && usual.begins_row(&words))
}

/// Whether it is one of the lines that a run begins with.
fn is_preamble(line: &Line<'_>) -> bool {
    let text = line.text.trim_start().trim_start_matches('#').trim_start();
    text.starts_with("nccl-tests version ")
        || text.starts_with("regatta version ")
        || text.starts_with("Collective test starting: ")
        || (text.starts_with("nThread ") && text.contains(" minBytes "))
}

impl Run {
    /// A run of a file, with what stands before it.
    pub fn new(name: &str, line: &Line<'_>, context: &Context) -> Self {
        let command = context.command_line();
        // Of a log, what stands before a table is no title.
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
            program: if rccl { Program::RcclTests } else { Program::NcclTests },
            label,
            settings: command.as_deref().map(context::settings).unwrap_or_default(),
            command,
            shape,
            ..BenchResult::default()
        };
        Self {
            result,
            hints: hints.into_iter().flatten().collect(),
            first: Place::OutOfPlace,
            columns: None,
            part: None,
            idle: false,
            rows: 0,
            has_preamble: false,
        }
    }

    /// Takes a line; `false` if it is none of this run.
    pub fn take(&mut self, name: &str, line: &Line<'_>) -> Result<bool, ReadError> {
        if line.is_blank() {
            self.idle = self.rows > 0;
            return Ok(!self.idle);
        }
        let words: Vec<&str> = line.words().collect();
        if self.part.is_some() && Columns::continues_row(&words) {
            return self.continued(name, line).map(|()| true);
        }
        self.flush(name)?;
        if is_preamble(line) {
            return Ok(self.rows == 0 && self.preamble(line));
        }
        match line.comment() {
            Some(comment) => Ok(self.comment(comment)),
            None if self.version(line.text) => Ok(true),
            // Slides and pages lose the sign of a comment.
            None if is_units(line.text) || self.device(line.text) => Ok(true),
            None => self.begin_row(name, line, &words),
        }
    }

    fn preamble(&mut self, line: &Line<'_>) -> bool {
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
            self.result.program = Program::Regatta;
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

    /// Lines that the libraries print by themselves.
    fn version(&mut self, text: &str) -> bool {
        let text = text.trim();
        let known = [("NCCL version ", "nccl"), ("RCCL version ", "rccl")];
        let found = known.iter().find_map(|(head, name)| Some((*name, text.strip_prefix(head)?)));
        let own = text.strip_prefix("rccl-tests: Version ").map(|version| ("rccl-tests", version));
        let Some((name, version)) = found.or(own) else { return false };
        if name.starts_with("rccl") {
            self.result.program = Program::RcclTests;
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
        if let Some(columns) = Columns::of_head(text, self.first) {
            let free = self.rows == 0;
            if free {
                self.columns = Some(columns);
            }
            return free;
        }
        if comments::summarize(text, &mut self.result.summary) {
            return true;
        }
        if self.device(text) {
            return true;
        }
        let (whole, text) = (text, text.trim());
        if text.contains("in-place") && self.columns.is_none() {
            let both = text.contains("out-of-place");
            self.first = if both { Place::OutOfPlace } else { Place::InPlace };
            return true;
        }
        let is_frame = text.is_empty()
            || text == "Using devices"
            || text.starts_with("Collective test concluded: ")
            || is_units(text);
        if is_frame {
            return true;
        }
        // A heading or another program's comment, where our table is over.
        if self.idle || text.starts_with(['#', '!']) {
            return false;
        }
        self.result.notes.push(format!("#{whole}"));
        true
    }

    fn begin_row(
        &mut self,
        name: &str,
        line: &Line<'_>,
        words: &[&str],
    ) -> Result<bool, ReadError> {
        let columns = self.columns.clone().unwrap_or_else(Columns::usual);
        if !columns.is_row(words) {
            return Ok(false);
        }
        self.columns = Some(columns);
        self.idle = false;
        self.part = Some((line.number, line.text.to_owned()));
        self.complete(name)?;
        Ok(true)
    }

    fn continued(&mut self, name: &str, line: &Line<'_>) -> Result<(), ReadError> {
        if let Some((_, text)) = &mut self.part {
            text.push(' ');
            text.push_str(line.text.trim());
        }
        self.complete(name)
    }

    /// Reads the row that was begun, if it is all there.
    fn complete(&mut self, name: &str) -> Result<(), ReadError> {
        let (Some(columns), Some((number, text))) = (&self.columns, &self.part) else {
            return Ok(());
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let alone = columns.is_in_place_alone(text, &words);
        if words.len() > columns.len() {
            let expected = format!("a row of {} columns", columns.len());
            return Err(misfit(name, *number, Misfit { expected, found: text.trim().to_owned() }));
        }
        let row = columns.row(&words, alone).map_err(|found| misfit(name, *number, found))?;
        if words.len() == columns.len() || alone {
            let text = text.clone();
            self.part = None;
            self.keep(row, text);
        }
        Ok(())
    }

    /// A row that is not whole is kept with what it has of figures; without any it is a note.
    fn flush(&mut self, name: &str) -> Result<(), ReadError> {
        let (Some(columns), Some((number, text))) = (&self.columns, self.part.take()) else {
            return Ok(());
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let row = columns.row(&words, false).map_err(|found| misfit(name, number, found))?;
        match row.row.out_of_place.is_some() || row.row.in_place.is_some() {
            true => self.keep(row, text),
            false => self.result.notes.push(text),
        }
        Ok(())
    }

    fn keep(&mut self, row: Row, text: String) {
        let Row { dtype, redop, root, mut row } = row;
        row.line = Some(text);
        self.rows += 1;
        let tables = &mut self.result.tables;
        match tables.last_mut() {
            Some(t) if t.dtype == dtype && t.redop == redop && t.root == root => t.rows.push(row),
            _ => {
                let operation = Operation::Unknown;
                tables.push(BenchTable { operation, dtype, redop, root, rows: vec![row] });
            }
        }
    }

    /// All of it; nothing if there was no table.
    pub fn finish(mut self, name: &str) -> Result<Option<BenchResult>, ReadError> {
        self.flush(name)?;
        if self.columns.is_none() && self.result.parameters.is_none() {
            return Ok(None);
        }
        let mean = self.result.summary.as_ref().and_then(|summary| summary.average_busbw);
        // A table without all that stands around one says nothing of how the run ended.
        self.result.complete = mean.is_some() || !self.has_preamble;
        count_devices(&mut self.result);
        name_operations(&mut self.result, &self.hints);
        Ok(Some(self.result))
    }
}

/// What the lines of ranks tell is surer than a command's options.
pub(super) fn count_devices(result: &mut BenchResult) {
    let mut hosts: Vec<String> = Vec::new();
    for device in &result.devices {
        if !hosts.contains(&device.host) {
            hosts.push(device.host.clone());
        }
    }
    let highest = result.devices.iter().map(|device| device.rank).max();
    let Some(ranks) = highest.and_then(|rank| rank.checked_add(1)) else { return };
    let amd = |name: &str| name.contains("AMD") || name.contains("gfx");
    // Of a program that names itself, the device may be a processor.
    let unsure = result.program == Program::NcclTests;
    if unsure && result.devices.iter().any(|device| amd(&device.name)) {
        result.program = Program::RcclTests;
    }
    let nodes = hosts.len() as u32;
    let ranks_per_node = ranks.checked_div(nodes).filter(|each| each * nodes == ranks);
    let (ranks, nodes) = (Some(ranks), Some(nodes));
    result.shape = BenchShape { ranks, nodes, ranks_per_node, hosts };
}

/// Says what the tables are of, by what somebody called it, or else by what the rows show.
pub(super) fn name_operations(result: &mut BenchResult, hints: &[String]) {
    let hinted = hints.iter().find_map(|hint| context::operation_in(hint));
    for table in &mut result.tables {
        table.operation = hinted.clone().unwrap_or_else(|| guess(table));
    }
    let guessed = result.tables.iter().find_map(ranks_of);
    result.shape.ranks = result.shape.ranks.or(guessed);
}

fn misfit(name: &str, line: usize, misfit: Misfit) -> ReadError {
    ReadError::Line { file: name.to_owned(), line, expected: misfit.expected, found: misfit.found }
}

/// The line of units, or what slides make of heads: nothing of it is a value.
fn is_units(text: &str) -> bool {
    let known = ["algbw", "busbw", "busrw", "#wrong", "time", "timestamp"];
    let unit =
        |word: &str| known.contains(&word) || word.starts_with(['(', '%']) || word.ends_with(')');
    text.split_whitespace().all(unit)
}

/// What was measured, by what the rows show: nccl-tests' early versions do not say it.
fn guess(table: &BenchTable) -> Operation {
    let parts = ranks_in(table);
    let reduces = table.redop.as_deref().map(|redop| redop != "none");
    let rooted = table.root.is_some_and(|root| root >= 0);
    match (reduces, rooted, parts) {
        (Some(true), false, Some(1)) => Operation::AllReduce,
        (Some(true), false, Some(_)) => Operation::ReduceScatter,
        (Some(true), true, _) => Operation::Reduce,
        (Some(false), true, Some(1)) => Operation::Broadcast,
        (Some(false), false, Some(1)) => Operation::SendRecv,
        _ => Operation::Unknown,
    }
}

/// How many counts make up the size of a row.
fn ranks_in(table: &BenchTable) -> Option<u32> {
    let element = element_bytes(table.dtype.as_deref()?)?;
    let row = table.rows.iter().rev().find(|row| row.count.is_some_and(|count| count > 0))?;
    let part = row.count?.checked_mul(element)?;
    let whole = row.size_bytes.is_multiple_of(part).then(|| row.size_bytes / part)?;
    u32::try_from(whole).ok()
}

fn ranks_of(table: &BenchTable) -> Option<u32> {
    if formula::is_parted(&table.operation) { ranks_in(table) } else { None }
}

/// Bytes of an element, by nccl-tests' names.
fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "int8" | "uint8" | "char" | "f8e4m3" | "f8e5m2" | "fp8_e4m3" | "fp8_e5m2" => 1,
        "half" | "bfloat16" => 2,
        "int32" | "uint32" | "int" | "float" => 4,
        "int64" | "uint64" | "double" => 8,
        _ => return None,
    })
}
