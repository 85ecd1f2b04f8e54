//! What becomes of what a run tells: a table on the screen, a file, a verdict.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use regatta_measure::run::Event;
use regatta_model::{BenchResult, document};

use super::args::OutputArgs;
use super::bar::Bar;
use crate::cli::{FAINT, WARNING};
use crate::output;

/// What was told so far, and where it goes.
pub struct Report {
    result: BenchResult,
    /// Whether rows are shown as they come.
    shows: bool,
    out: Option<PathBuf>,
    bar: Bar,
}

impl Report {
    /// Nothing was told yet.
    pub fn new(args: &OutputArgs, out: Option<PathBuf>) -> Result<Self> {
        let shows = !args.json && !args.csv;
        Ok(Self { result: BenchResult::default(), shows, out, bar: Bar::new() })
    }

    /// Takes what happened, as text of another process.
    pub fn hear_text(&mut self, text: &str) {
        if let Ok(event) = serde_json::from_str(text) {
            self.hear(event);
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
            Event::Table(table) => self.result.tables.push(table),
            Event::Row(row) => {
                if let Some(table) = self.result.tables.last_mut() {
                    table.rows.push(*row);
                }
                self.save();
            }
            Event::Progress(progress) => self.bar.show(&progress),
            Event::Note(note) => {
                self.bar.hide();
                output::complain(&format!("{WARNING}note:{WARNING:#} {note}\n"));
                self.result.notes.push(note);
            }
            Event::End => self.result.complete = true,
        }
    }

    fn save(&mut self) {}

    /// Ends it.
    pub fn finish(&mut self) -> Result<ExitCode> {
        self.bar.hide();
        Ok(ExitCode::SUCCESS)
    }
}
