//! What becomes of what a run tells: a table on the screen, a file after every size, a verdict.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_measure::run::Event;
use regatta_measure::write::{self, Layout};
use regatta_model::bench::BenchSummary;
use regatta_model::{BenchResult, BenchRow, BenchTable, document, units};

use super::args::OutputArgs;
use super::bar::Bar;
use super::verdict::Verdict;
use crate::cli::{ERROR, FAINT, WARNING};
use crate::output;

/// What was told so far, and where it goes.
pub struct Report {
    result: BenchResult,
    form: Form,
    layout: Layout,
    out: Option<PathBuf>,
    /// Why the file misses what was measured since.
    unsaved: Option<anyhow::Error>,
    plot: Option<PathBuf>,
    verdict: Option<Verdict>,
    bar: Bar,
}

/// How the result is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Row by row.
    Table,
    /// When it is over.
    Json,
    Csv,
}

impl Report {
    /// Nothing was told yet. What could not be used at the end is refused now.
    pub fn new(args: &OutputArgs, out: Option<PathBuf>) -> Result<Self> {
        let form = match (args.json, args.csv) {
            (true, _) => Form::Json,
            (_, true) => Form::Csv,
            _ => Form::Table,
        };
        if let Some(plot) = &args.plot {
            super::plot::check(plot)?;
        }
        Ok(Self {
            result: BenchResult::default(),
            form,
            layout: if args.spread { Layout::Iterations } else { Layout::Means },
            out,
            unsaved: None,
            plot: args.plot.clone(),
            verdict: Verdict::new(args)?,
            bar: Bar::new(),
        })
    }

    /// Takes what happened, as text of another process.
    pub fn hear_text(&mut self, text: &str) {
        match serde_json::from_str(text) {
            Ok(event) => self.hear(event),
            Err(error) => output::complain(&format!("rank 0 said what cannot be read: {error}\n")),
        }
    }

    /// Something else is about to be written.
    pub fn make_way(&mut self) {
        self.bar.hide();
    }

    /// Takes what happened.
    pub fn hear(&mut self, event: Event) {
        match event {
            Event::Begin(result) => self.result = *result,
            Event::Table(table) => self.begin(table),
            Event::Row(row) => self.add(*row),
            Event::Progress(progress) => self.bar.show(&progress),
            Event::Note(note) => {
                self.bar.hide();
                output::complain(&format!("{WARNING}note:{WARNING:#} {note}\n"));
                self.result.notes.push(note);
            }
            Event::End => {
                self.result.complete = true;
                self.foot();
                self.result.summary = Some(summary(&self.result));
                self.save();
            }
        }
    }

    /// The next rows are of this table.
    fn begin(&mut self, table: BenchTable) {
        let before = self.result.tables.last().map(|table| &table.operation);
        if before != Some(&table.operation) {
            self.foot();
            let text = write::preamble(&self.result, &table.operation) + &write::head(self.layout);
            self.show(&text);
        }
        self.result.tables.push(table);
    }

    fn add(&mut self, row: BenchRow) {
        let Some(table) = self.result.tables.last_mut() else { return };
        let text = write::row(self.layout, table, &row);
        table.rows.push(row);
        self.show(&text);
        self.save();
    }

    /// The closing lines of the operation before.
    fn foot(&mut self) {
        let Some(table) = self.result.tables.last() else { return };
        let text = write::footer(&self.result, &table.operation.clone());
        self.show(&text);
    }

    fn show(&mut self, text: &str) {
        if self.form == Form::Table {
            self.bar.hide();
            // The file has it, if nobody reads on.
            let _ = output::print(text);
        }
    }

    /// Writes all that was measured. A full disk must not end the run.
    fn save(&mut self) {
        let Some(out) = &self.out else { return };
        let text = document::to_json(&self.result).map_err(anyhow::Error::from);
        self.unsaved = text.and_then(|text| output::write_file(out, &text)).err();
    }

    /// Prints and draws what there is, and says whether it is good enough.
    pub fn finish(&mut self) -> Result<ExitCode> {
        self.bar.hide();
        let rows = self.result.tables.iter().map(|table| table.rows.len()).sum();
        if rows == 0 {
            return Ok(ExitCode::FAILURE);
        }
        match self.form {
            Form::Table => {}
            Form::Json => output::print(&document::to_json(&self.result)?)?,
            Form::Csv => output::print(&write::csv(std::slice::from_ref(&self.result)))?,
        }
        if let Some(plot) = &self.plot {
            super::plot::draw(plot, std::slice::from_ref(&self.result))?;
        }
        self.say_where(rows);
        if let Some(error) = self.unsaved.take() {
            bail!("the result is not saved: {error:#}");
        }
        let wrong = wrong(&self.result);
        if wrong > 0 {
            let wrong = units::count(usize::try_from(wrong).unwrap_or(usize::MAX), "element");
            output::complain(&format!("{ERROR}{wrong} wrong{ERROR:#}: see the column #wrong\n"));
            return Ok(ExitCode::FAILURE);
        }
        match &self.verdict {
            Some(verdict) => verdict.judge(&self.result),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn say_where(&self, rows: usize) {
        let Some(out) = self.out.as_deref().filter(|out| *out != Path::new("-")) else { return };
        let what = match self.result.complete {
            true => "result".to_owned(),
            false => format!("stopped early; {} kept", units::count(rows, "size")),
        };
        output::complain(&format!("{FAINT}{what}: {}{FAINT:#}\n", out.display()));
    }
}

/// Wrong elements of all sizes.
fn wrong(result: &BenchResult) -> u64 {
    let rows = result.tables.iter().flat_map(|table| &table.rows);
    rows.flat_map(|row| [&row.out_of_place, &row.in_place])
        .flatten()
        .filter_map(|measured| measured.wrong)
        .sum()
}

/// The closing figures of all operations.
fn summary(result: &BenchResult) -> BenchSummary {
    let rows = result.tables.iter().flat_map(|table| &table.rows);
    let all = rows.flat_map(|row| [&row.out_of_place, &row.in_place]).flatten();
    let bandwidths: Vec<f64> = all.filter_map(|measured| measured.busbw).collect();
    let mean = bandwidths.iter().sum::<f64>() / bandwidths.len().max(1) as f64;
    BenchSummary {
        out_of_bounds: Some(wrong(result)),
        average_busbw: (!bandwidths.is_empty()).then_some(mean),
        average_good: None,
    }
}
