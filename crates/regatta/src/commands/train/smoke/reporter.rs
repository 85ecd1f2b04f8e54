//! Prints a smoke test: each check when it finishes, or the complete report as JSON.

use std::time::Instant;

use anyhow::Result;
use regatta_train::job::smoke::SmokeEvent;

use super::report::{ReportingProcess, SmokeReport};
use super::text;
use crate::output;

/// Consumes the events of a smoke test.
pub struct SmokeReporter {
    report: SmokeReport,
    start: Instant,
    json: bool,
    /// Number of checks already printed.
    printed: usize,
}

impl SmokeReporter {
    /// A reporter that has printed nothing yet.
    pub fn new(process: ReportingProcess, json: bool) -> Self {
        Self { report: SmokeReport::new(process), start: Instant::now(), json, printed: 0 }
    }

    /// Handles an event of rank 0.
    pub fn on_event(&mut self, event: SmokeEvent) -> Result<()> {
        self.report.on_event(event, self.start.elapsed().as_secs_f64());
        self.print()
    }

    /// Completes the report after all ranks have exited.
    pub fn on_ranks_exited(&mut self) -> Result<()> {
        if self.report.is_complete() {
            return Ok(());
        }
        self.report.on_ranks_exited(self.start.elapsed().as_secs_f64());
        self.print()
    }

    fn print(&mut self) -> Result<()> {
        if self.json {
            return match self.report.is_complete() {
                true => {
                    output::print(&format!("{}\n", serde_json::to_string_pretty(&self.report)?))
                }
                false => Ok(()),
            };
        }
        let new = &self.report.checks[self.printed..];
        let mut lines = String::new();
        if self.printed == 0 && !new.is_empty() {
            lines.push_str(&text::header());
        }
        new.iter().for_each(|result| lines.push_str(&text::row(result)));
        self.printed = self.report.checks.len();
        if self.report.is_complete() {
            lines.push_str(&text::result(&self.report));
        }
        output::print(&lines)
    }
}
