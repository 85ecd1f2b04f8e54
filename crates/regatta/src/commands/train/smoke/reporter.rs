//! Prints a smoke test: each check when it finishes, or the complete report as JSON.

use std::time::Instant;

use anyhow::Result;
use regatta_launch::channel::ChannelError;

use super::report::{SmokeEvent, SmokeReport};
use super::text;
use crate::commands::rank_events::EventReporter;
use crate::commands::reporter_output::ReporterOutput;

impl EventReporter for SmokeReporter {
    type Event = SmokeEvent;

    fn on_event(&mut self, event: SmokeEvent) {
        self.report.on_event(event, self.start.elapsed().as_secs_f64());
        self.print();
    }

    fn on_event_error(&mut self, error: ChannelError) {
        self.printer.note(&format!("cannot decode a check result of rank 0: {error}"));
    }

    /// A check may fail on ranks that all complete it.
    fn failure(&self) -> Option<String> {
        let failure = self.report.failure.as_ref()?;
        Some(format!("smoke test failed: {}: {}", failure.check, failure.error))
    }
}

/// Consumes the events of a smoke test.
pub struct SmokeReporter {
    report: SmokeReport,
    start: Instant,
    json: bool,
    /// Number of checks already printed.
    printed: usize,
    printer: ReporterOutput,
}

impl SmokeReporter {
    /// In a rank that has no launcher.
    pub fn of_rank(json: bool) -> Self {
        let (report, printer) = (SmokeReport::default(), ReporterOutput::default());
        Self { report, start: Instant::now(), json, printed: 0, printer }
    }

    /// In the launcher, which knows how long the start of the ranks took.
    pub fn of_launcher(json: bool) -> Self {
        let report = SmokeReport { is_launcher: true, ..SmokeReport::default() };
        Self { report, printer: ReporterOutput::queued(), ..Self::of_rank(json) }
    }

    /// Completes the report after the end. Fails if it could not be printed.
    pub fn finish(&mut self) -> Result<()> {
        self.printer.on_launch_ended();
        if !self.report.complete {
            self.report.on_ranks_exited(self.start.elapsed().as_secs_f64());
            self.print();
        }
        self.printer.finish()
    }

    fn print(&mut self) {
        let is_complete = self.report.complete;
        if self.json {
            if let (true, Ok(json)) = (is_complete, serde_json::to_string_pretty(&self.report)) {
                self.printer.print(&(json + "\n"));
            }
            return;
        }
        let new = &self.report.checks[self.printed..];
        let header = (self.printed == 0 && !new.is_empty()).then(text::header);
        let result = is_complete.then(|| text::result(&self.report));
        let lines = header.into_iter().chain(new.iter().map(text::row)).chain(result);
        let lines: String = lines.collect();
        self.printed = self.report.checks.len();
        self.printer.print(&lines);
    }
}

#[cfg(test)]
mod tests {
    use regatta_launch::channel;
    use regatta_launch::status::{FrameRecord, JobObserver as _};
    use serde_json::json;

    use super::super::checks::RankInfo;
    use super::super::report::{Check, CheckResult};
    use super::*;
    use crate::commands::rank_events::RankEvents;

    /// The event with the ranks of the job is a few MB.
    #[test]
    fn events_of_16384_ranks_arrive() {
        let rank = |rank| RankInfo {
            rank,
            host: format!("frontier{rank:05}"),
            kernels: "AVX-512 bf16, AMX bf16".repeat(4),
            ..RankInfo::default()
        };
        let ranks: Vec<RankInfo> = (0..16_384).map(rank).collect();
        let check = CheckResult::passed(json!({"ranks": ranks}), String::new());
        let check = CheckResult { check: Check::Ranks, ..check };
        let mut reporter = SmokeReporter::of_launcher(true);
        let event = SmokeEvent::Check(Box::new(check.clone()));
        RankEvents(&mut reporter).on_frame(
            0,
            &channel::encode(&event).unwrap(),
            &mut FrameRecord::default(),
        );
        assert_eq!(reporter.report.checks.last(), Some(&check));
    }
}
