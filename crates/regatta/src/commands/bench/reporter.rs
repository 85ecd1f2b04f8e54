//! Consumes the events of a run: prints the table, saves the result, checks the baseline.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use regatta_comm::schedule::algorithm_table::AlgorithmTable;
use regatta_launch::channel::ChannelError;
use regatta_launch::status::FrameRecord;
use regatta_measure::collectives::BenchEvent;
use regatta_measure::write::{self, TableLayout};
use regatta_measure::{pairs, roofline};
use regatta_model::bench::{BenchDevice, BenchSummary, PairMatrices, RankRoofline};
use regatta_model::run_folder::RunEvent;
use regatta_model::{BenchResult, BenchRow, BenchTable, document, units};

use super::baseline::BaselineGate;
use super::options::BenchOptions;
use super::plot;
use super::result_file::ResultFile;
use crate::args::bench::TableArgs;
use crate::cli::{ERROR, FAINT};
use crate::commands::progress_bar::ProgressBar;
use crate::commands::rank_events::EventReporter;
use crate::commands::reporter_output::ReporterOutput;
use crate::output;

/// The result so far, and its outputs.
pub struct Reporter {
    result: BenchResult,
    format: OutputFormat,
    layout: TableLayout,
    file: ResultFile,
    /// The first event that could not be read.
    event_error: Option<String>,
    plot: Option<PathBuf>,
    baseline: Option<BaselineGate>,
    /// File of the tuning table.
    tuning: Option<PathBuf>,
    /// Error of writing it.
    tuning_error: Option<anyhow::Error>,
    /// Tolerance of slow ranks.
    outlier_tolerance: f64,
    /// Whether no fault was found.
    healthy: bool,
    bar: ProgressBar,
    printer: ReporterOutput,
}

/// Width of text heat maps.
const COLUMNS: usize = 100;

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// Printed row by row.
    Table,
    /// Printed at the end.
    Json,
    Csv,
    /// Saved, and not printed.
    Silent,
}

impl EventReporter for Reporter {
    type Event = BenchEvent;

    fn on_event(&mut self, event: BenchEvent) {
        match event {
            BenchEvent::Started(result) => self.result = *result,
            BenchEvent::TableStarted(table) => self.start_table(table),
            BenchEvent::Row(row) => self.add_row(*row),
            BenchEvent::Pairs(pairs) => self.set_pairs(*pairs),
            BenchEvent::Rooflines(rooflines) => self.set_rooflines(rooflines),
            BenchEvent::TuningTable(table) => self.write_tuning_table(&table),
            BenchEvent::Progress(at) => self.bar.show(&at.task, at.done, at.total, at.eta_s),
            BenchEvent::Note(note) => {
                self.bar.hide();
                self.printer.note(&note);
                self.result.notes.push(note);
            }
            BenchEvent::Finished => {
                self.result.complete = true;
                self.print_footer();
                if !self.result.tables.is_empty() {
                    self.result.summary = Some(summary(&self.result));
                }
                self.update_file();
                self.flush();
            }
        }
    }

    fn record(&mut self, event: &BenchEvent, record: &mut FrameRecord) {
        record.event = match event {
            BenchEvent::TableStarted(table) => Some(RunEvent::BenchTable { table: table.clone() }),
            BenchEvent::Row(row) => Some(RunEvent::BenchRow { row: row.clone() }),
            _ => None,
        };
    }

    fn on_event_error(&mut self, error: ChannelError) {
        // Later errors may be consequences of the first.
        self.event_error.get_or_insert(error.to_string());
    }

    fn on_signal(&mut self, _: i32) {
        self.bar.hide();
    }

    fn hide_progress(&mut self) {
        self.bar.hide();
    }

    fn on_exit(&mut self) {
        self.bar.hide();
    }
}

impl Reporter {
    /// An empty result. Fails on options that would only be used at the end.
    pub fn new(
        options: &BenchOptions<'_>,
        out: Option<PathBuf>,
        printer: ReporterOutput,
    ) -> Result<Self> {
        let args = options.output;
        let format = match (args.json, args.csv) {
            (true, _) => OutputFormat::Json,
            (_, true) => OutputFormat::Csv,
            _ => OutputFormat::Table,
        };
        let layout = table_layout(options.table);
        Ok(Self {
            plot: options.plot().cloned(),
            baseline: options.table.map_or(Ok(None), BaselineGate::new)?,
            tuning: options.tuning_file.cloned(),
            outlier_tolerance: options.outlier_tolerance,
            ..Self::of_case(format, layout, out, printer)
        })
    }

    /// An empty result that is only printed and saved.
    pub fn of_case(
        format: OutputFormat,
        layout: TableLayout,
        out: Option<PathBuf>,
        printer: ReporterOutput,
    ) -> Self {
        Self {
            result: BenchResult::default(),
            format,
            layout,
            file: ResultFile::new(out),
            event_error: None,
            plot: None,
            baseline: None,
            tuning: None,
            tuning_error: None,
            outlier_tolerance: 0.0,
            healthy: true,
            bar: ProgressBar::new(printer.streams().map(|streams| streams.stderr)),
            printer,
        }
    }

    /// Starts a table.
    fn start_table(&mut self, table: BenchTable) {
        let previous = self.result.tables.last().map(|table| &table.operation);
        if previous != Some(&table.operation) {
            self.print_footer();
            let preamble = write::preamble(&self.result, &table.operation);
            self.print_table(&(preamble + &write::header(self.layout)));
        }
        self.result.tables.push(table);
    }

    fn add_row(&mut self, row: BenchRow) {
        let Some(table) = self.result.tables.last_mut() else { return };
        let text = write::row(self.layout, table, &row);
        table.rows.push(row);
        self.print_table(&text);
        self.update_file();
    }

    fn set_pairs(&mut self, pairs: PairMatrices) {
        self.healthy = pairs.findings.is_empty();
        let findings = match self.healthy {
            true => "no slow links or nodes found\n".to_owned(),
            false => pairs.findings.join("\n") + "\n",
        };
        self.print_table(&(pairs::text::draw(&pairs, COLUMNS) + &findings));
        self.result.pairs = Some(pairs);
    }

    fn set_rooflines(&mut self, rooflines: Vec<RankRoofline>) {
        let of = |device: &BenchDevice| (device.rank, device.host.clone());
        let ranks: Vec<(u32, String)> = self.result.devices.iter().map(of).collect();
        let outliers = roofline::outliers::find(&ranks, &rooflines, self.outlier_tolerance);
        self.print_table(&roofline::text::report(&rooflines, &outliers));
        self.result.roofline = rooflines;
    }

    fn write_tuning_table(&mut self, table: &AlgorithmTable) {
        let Some(file) = &self.tuning else { return };
        self.bar.hide();
        let text = document::to_json(table).map_err(anyhow::Error::from);
        let written = text.and_then(|text| output::write_file(file, &text)).context("--tune");
        self.tuning_error = written.err();
        if self.tuning_error.is_none() {
            let file = file.display();
            let text = format!("tuning table: {file}; use it with REGATTA_TUNING={file}\n");
            self.printer.eprint(&text);
        }
    }

    /// Prints the summary of the last operation.
    fn print_footer(&mut self) {
        let Some(table) = self.result.tables.last() else { return };
        let text = write::footer(&self.result, &table.operation.clone());
        self.print_table(&text);
    }

    fn print_table(&mut self, text: &str) {
        if self.format == OutputFormat::Table {
            self.bar.hide();
            self.printer.print(text);
        }
    }

    /// Updates the result file.
    fn update_file(&mut self) {
        if self.tuning.is_none() {
            self.file.update(&self.result, Instant::now());
        }
    }

    /// Writes the result file, also of an incomplete run.
    pub fn flush(&mut self) {
        self.bar.hide();
        self.file.flush(&self.result);
    }

    /// Prints and plots the result. Returns whether there is one, without faults or regressions.
    pub fn finish(&mut self) -> Result<bool> {
        self.printer.on_launch_ended();
        self.flush();
        let is_good = self.print_result()?;
        self.printer.finish()?;
        match self.event_error.take() {
            Some(why) => bail!("the result is incomplete: {why}"),
            None => Ok(is_good),
        }
    }

    fn print_result(&mut self) -> Result<bool> {
        if self.tuning.is_some() {
            return self.tuning_error.take().map_or(Ok(true), Err);
        }
        let rows = self.result.tables.iter().map(|table| table.rows.len()).sum();
        if rows == 0 && self.result.roofline.is_empty() && self.result.pairs.is_none() {
            return Ok(false);
        }
        match self.format {
            OutputFormat::Table | OutputFormat::Silent => {}
            OutputFormat::Json if self.file.is_stdout() => {}
            OutputFormat::Json => self.printer.print(&document::to_json(&self.result)?),
            OutputFormat::Csv => {
                self.printer.print(&write::csv(std::slice::from_ref(&self.result)));
            }
        }
        match (&self.plot, &self.result.pairs) {
            (Some(plot), Some(pairs)) => plot::draw_pairs(plot, pairs)?,
            (Some(plot), None) => plot::draw(plot, std::slice::from_ref(&self.result), None)?,
            _ => {}
        }
        if let Some(error) = self.file.error.take() {
            return Err(error.context("the result is not saved"));
        }
        self.print_location(rows);
        let (wrong, _) = write::totals(self.result.tables.iter());
        if wrong > 0 {
            let wrong = units::pluralize(usize::try_from(wrong).unwrap_or(usize::MAX), "element");
            output::eprint(&format!("{ERROR}{wrong} wrong{ERROR:#}: see column #wrong\n"));
            return Ok(false);
        }
        Ok(self.baseline.as_ref().map_or(self.healthy, |baseline| baseline.check(&self.result)))
    }

    fn print_location(&self, rows: usize) {
        let Some(out) = self.file.file() else { return };
        let what = match self.result.complete {
            true => "result".to_owned(),
            false => format!("interrupted; {} saved", units::pluralize(rows, "size")),
        };
        output::eprint(&format!("{FAINT}{what}: {}{FAINT:#}\n", out.display()));
    }
}

/// The columns of the table.
pub fn table_layout(args: Option<&TableArgs>) -> TableLayout {
    match args {
        Some(TableArgs { spread: true, .. }) => TableLayout::Iterations,
        _ => TableLayout::Means,
    }
}

/// Summary over all operations.
fn summary(result: &BenchResult) -> BenchSummary {
    let (wrong, average_busbw) = write::totals(result.tables.iter());
    BenchSummary { out_of_bounds: Some(wrong), average_busbw, average_ok: None }
}

#[cfg(test)]
mod tests {
    use regatta_launch::channel;
    use regatta_launch::status::JobObserver as _;

    use super::super::options;
    use super::*;
    use crate::cli::tests::parse_bench;
    use crate::commands::rank_events::RankEvents;

    /// Finishes a run with one row after this frame from rank 0.
    fn finish(frame: &[u8]) -> Result<bool> {
        let command = parse_bench(["all-reduce", "--csv"])?;
        let options = options::parse(&command)?.unwrap();
        let mut reporter = Reporter::new(&options, None, ReporterOutput::default())?;
        reporter.on_event(BenchEvent::TableStarted(BenchTable::default()));
        reporter.on_event(BenchEvent::Row(Box::default()));
        RankEvents(&mut reporter).on_frame(0, frame, &mut FrameRecord::default());
        reporter.finish()
    }

    #[test]
    fn an_unreadable_event_fails_the_run() {
        let event = channel::encode(&BenchEvent::Note("x".repeat(70_000))).unwrap();
        assert!(finish(&event).is_ok());
        let unknown = br#"{"other": 1}"#.to_vec();
        for frame in [&event[1..], &unknown, &[], b"x"] {
            let error = finish(frame).unwrap_err().to_string();
            assert!(error.contains("rank 0") && error.contains("incomplete"), "{error}");
        }
    }
}
