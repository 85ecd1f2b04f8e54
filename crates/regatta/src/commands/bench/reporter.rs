//! What becomes of what a run tells: a table on the screen, a file that is written now and then, a verdict.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail};
use regatta_measure::run::Event;
use regatta_measure::write::{self, Layout};
use regatta_measure::{ceiling, pairs};
use regatta_model::bench::{BenchDevice, BenchSummary, Ceiling, Pairs};
use regatta_model::{BenchResult, BenchRow, BenchTable, document, units};

use super::asked::{Asked, Job};
use super::bar::Bar;
use super::keep::Keep;
use super::pieces::Joining;
use super::plot;
use super::verdict::Verdict;
use crate::cli::{ERROR, FAINT, WARNING};
use crate::output;

/// What was told so far, and where it goes.
pub struct Report {
    result: BenchResult,
    form: Form,
    layout: Layout,
    keep: Keep,
    /// What rank 0 has told in part.
    joining: Joining,
    /// Why the result misses something that rank 0 told.
    unread: Option<String>,
    plot: Option<PathBuf>,
    verdict: Option<Verdict>,
    /// Where the table of algorithms goes.
    tuning: Option<PathBuf>,
    /// Why it is not there.
    untuned: Option<anyhow::Error>,
    /// By what part a rank may be slower than others.
    slower_than: f64,
    /// Whether nothing stands out.
    good: bool,
    bar: Bar,
}

/// The width of a drawing in text.
const COLUMNS: usize = 100;

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
    pub fn new(asked: &Asked<'_>, out: Option<PathBuf>) -> Result<Self> {
        let args = asked.output;
        let form = match (args.json, args.csv) {
            (true, _) => Form::Json,
            (_, true) => Form::Csv,
            _ => Form::Table,
        };
        Ok(Self {
            result: BenchResult::default(),
            form,
            layout: if args.spread { Layout::Iterations } else { Layout::Means },
            keep: Keep::new(out),
            joining: Joining::default(),
            unread: None,
            plot: args.plot.clone(),
            verdict: Verdict::new(args)?,
            tuning: match &asked.job {
                Job::Tune(file, _) => Some(file.clone()),
                _ => None,
            },
            untuned: None,
            slower_than: match &asked.job {
                Job::Ceiling(_, fraction) => *fraction,
                _ => 0.0,
            },
            good: true,
            bar: Bar::new(),
        })
    }

    /// Takes a piece of the text of another process that says what happened.
    pub fn hear_text(&mut self, piece: &str) {
        let event = match self.joining.push(piece) {
            Ok(None) => return,
            Ok(Some(text)) => serde_json::from_str(&text).map_err(|error| error.to_string()),
            Err(torn) => Err(torn.to_string()),
        };
        match event {
            Ok(event) => self.hear(event),
            // The first says most: others may follow from it.
            Err(error) => drop(self.unread.get_or_insert(error)),
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
            Event::Pairs(pairs) => self.pairs(*pairs),
            Event::Ceilings(ceilings) => self.ceilings(ceilings),
            Event::Tuned(table) => self.tuned(&table),
            Event::Progress(progress) => self.bar.show(&progress),
            Event::Note(note) => {
                self.bar.hide();
                output::complain(&format!("{WARNING}note:{WARNING:#} {note}\n"));
                self.result.notes.push(note);
            }
            Event::End => {
                self.result.complete = true;
                self.foot();
                if !self.result.tables.is_empty() {
                    self.result.summary = Some(summary(&self.result));
                }
                self.save();
                self.keep();
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

    /// Every pair was measured.
    fn pairs(&mut self, pairs: Pairs) {
        let mut text = pairs::text::draw(&pairs, COLUMNS);
        pairs.findings.iter().for_each(|finding| text.push_str(&format!("{finding}\n")));
        if pairs.findings.is_empty() {
            text.push_str("no link and no node stands out\n");
        }
        self.good = pairs.findings.is_empty();
        self.result.pairs = Some(pairs);
        self.show(&text);
    }

    /// What each rank can do was measured.
    fn ceilings(&mut self, ceilings: Vec<Ceiling>) {
        let of = |device: &BenchDevice| (device.rank, device.host.clone());
        let ranks: Vec<(u32, String)> = self.result.devices.iter().map(of).collect();
        let verdict = ceiling::judge::judge(&ranks, &ceilings, self.slower_than);
        let mut lines = ceiling::text::table(&ceilings, &verdict);
        lines.extend(ceiling::text::findings(&verdict));
        lines.extend(ceiling::text::notes(&ceilings));
        self.result.ceilings = ceilings;
        self.show(&(lines.join("\n") + "\n"));
    }

    /// A table of algorithms was made.
    fn tuned(&mut self, table: &str) {
        let Some(file) = &self.tuning else { return };
        self.bar.hide();
        match output::write_file(file, table) {
            Ok(()) => output::complain(&format!(
                "algorithms: {0}; ranks use it with REGATTA_TUNING={0}\n",
                file.display()
            )),
            Err(error) => self.untuned = Some(error),
        }
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

    /// There is more to keep.
    fn save(&mut self) {
        if self.tuning.is_none() {
            self.keep.more(&self.result, Instant::now());
        }
    }

    /// Keeps all there is, of a run that ends before its time, too.
    pub fn keep(&mut self) {
        self.bar.hide();
        self.keep.all(&self.result);
    }

    /// Prints and draws what there is, and says whether it is good enough.
    pub fn finish(&mut self) -> Result<ExitCode> {
        self.keep();
        let ended = self.ended()?;
        match self.unread.take() {
            Some(why) => bail!("the result misses what rank 0 said: it cannot be read: {why}"),
            None => Ok(ended),
        }
    }

    fn ended(&mut self) -> Result<ExitCode> {
        if self.tuning.is_some() {
            return self.untuned.take().map_or(Ok(ExitCode::SUCCESS), Err);
        }
        let rows = self.result.tables.iter().map(|table| table.rows.len()).sum();
        if rows == 0 && self.result.ceilings.is_empty() && self.result.pairs.is_none() {
            return Ok(ExitCode::FAILURE);
        }
        match self.form {
            Form::Table => {}
            Form::Json if self.keep.is_printed() => {}
            Form::Json => output::print(&document::to_json(&self.result)?)?,
            Form::Csv => output::print(&write::csv(std::slice::from_ref(&self.result)))?,
        }
        match (&self.plot, &self.result.pairs) {
            (Some(plot), Some(found)) => plot::draw_pairs(plot, found)?,
            (Some(plot), None) => plot::draw(plot, std::slice::from_ref(&self.result))?,
            _ => {}
        }
        if let Some(error) = self.keep.error() {
            bail!("the result is not saved: {error:#}");
        }
        self.say_where(rows);
        let wrong = wrong(&self.result);
        if wrong > 0 {
            let wrong = units::count(usize::try_from(wrong).unwrap_or(usize::MAX), "element");
            output::complain(&format!("{ERROR}{wrong} wrong{ERROR:#}: see the column #wrong\n"));
            return Ok(ExitCode::FAILURE);
        }
        match &self.verdict {
            Some(verdict) => verdict.judge(&self.result),
            None if self.good => Ok(ExitCode::SUCCESS),
            None => Ok(ExitCode::FAILURE),
        }
    }

    fn say_where(&self, rows: usize) {
        let Some(out) = self.keep.file() else { return };
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
    // Of no bytes there is no bandwidth.
    let rows = result.tables.iter().flat_map(|table| &table.rows).filter(|row| row.size_bytes > 0);
    let all = rows.flat_map(|row| [&row.out_of_place, &row.in_place]).flatten();
    let bandwidths: Vec<f64> = all.filter_map(|measured| measured.busbw).collect();
    let mean = bandwidths.iter().sum::<f64>() / bandwidths.len().max(1) as f64;
    BenchSummary {
        out_of_bounds: Some(wrong(result)),
        average_busbw: (!bandwidths.is_empty()).then_some(mean),
        average_good: None,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{asked, pieces::pieces};
    use super::*;
    use crate::cli::{Cli, Command};

    /// How a run ends of which rank 0 told this, with a row.
    fn ended(told: &[String]) -> Result<ExitCode> {
        let words = ["regatta", "bench", "all-reduce", "--csv"];
        let Command::Bench(args) = Cli::try_parse_from(words)?.command else { bail!("no bench") };
        let asked = asked::asked(&args.what)?.unwrap();
        let mut report = Report::new(&asked, None)?;
        report.hear(Event::Table(BenchTable::default()));
        report.hear(Event::Row(Box::default()));
        told.iter().for_each(|piece| report.hear_text(piece));
        report.finish()
    }

    #[test]
    fn a_run_of_which_something_cannot_be_read_fails() {
        let event = serde_json::to_string(&Event::Note("x".repeat(70_000))).unwrap();
        let all = pieces(&event);
        assert!(all.len() > 1 && ended(&all).is_ok());
        for told in [&all[1..], &pieces("{")[..], &pieces("{\"other\": 1}"), &["x".to_owned()]] {
            let error = ended(told).unwrap_err().to_string();
            assert!(error.contains("rank 0 said") && error.contains("cannot be read"), "{error}");
        }
    }
}
