//! The smoke test as text. No I/O.

use regatta_model::units::format_time;

use super::checks::ranks_on_hosts;
use super::report::{Check, CheckResult, SmokeFailure, SmokeReport};
use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
use crate::commands::doctor::style;
use regatta_draw::text::sanitize;

/// Column of the details.
const DETAILS_COLUMN: usize = 44;

/// The table header.
pub fn header() -> String {
    let (check, status, rank, slowest) = ("check", "status", "rank 0", "slowest");
    format!("{HEADING}{check:<13}{status:<8}{rank:>9}  {slowest:<12}details{HEADING:#}\n")
}

/// The row of a check, with further lines for notes and errors.
pub fn row(result: &CheckResult) -> String {
    let style = style(result.status);
    let slowest = result.slowest.as_ref().filter(|slowest| slowest.rank != 0);
    let slowest = slowest.map(|s| format!("{} r{}", format_time(s.seconds), s.rank));
    let slowest = slowest.unwrap_or_default();
    let mut lines: Vec<String> = result.summary.lines().map(sanitize).collect();
    let notes = result.notes.iter().map(|note| sanitize(note));
    lines.extend(notes.map(|note| format!("{WARNING}note:{WARNING:#} {note}")));
    let errors = result.error.iter().map(|error| sanitize(error));
    lines.extend(errors.map(|error| format!("{ERROR}error:{ERROR:#} {error}")));
    let mut text = format!(
        "{:<13}{style}{:<8}{style:#}{:>9}  {slowest:<12}",
        result.check,
        result.status,
        format_time(result.seconds)
    );
    text.push_str(&lines.join(&format!("\n{:DETAILS_COLUMN$}", "")));
    format!("{}\n", text.trim_end())
}

/// The result, with a hint after a failure.
pub fn result(report: &SmokeReport) -> String {
    let Some(SmokeFailure { check, error, hint }) = &report.failure else {
        let world = ranks_on_hosts(report.ranks, report.hosts);
        return format!("{GOOD}passed:{GOOD:#} {world} in {}\n", format_time(report.seconds));
    };
    let check = if *check == Check::Start { String::new() } else { format!("{check}: ") };
    let hint =
        hint.as_ref().map(|text| format!("{FAINT}hint: {text}{FAINT:#}\n")).unwrap_or_default();
    format!("{ERROR}failed:{ERROR:#} {check}{}\n{hint}", sanitize(error))
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use regatta_doctor::Verdict;
    use serde_json::Value;

    use super::super::report::{SlowestRank, SmokeEvent};
    use super::*;

    fn plain(text: &str) -> String {
        strip_str(text).to_string()
    }

    fn finished(check: Check, status: Verdict, result: CheckResult) -> CheckResult {
        let slowest = Some(SlowestRank { rank: 3, host: "b".to_owned(), seconds: 0.25 });
        CheckResult { check, status, seconds: 0.2, slowest, ..result }
    }

    #[test]
    fn a_check_has_status_times_and_details() {
        let passed = CheckResult::passed(Value::Null, "8 B in 1.00 ms\nmore".to_owned());
        let line = plain(&row(&finished(Check::AllReduce, Verdict::Pass, passed)));
        let more = format!("{:DETAILS_COLUMN$}more", "");
        assert_eq!(
            line,
            format!("all-reduce   pass       200 ms  250 ms r3   8 B in 1.00 ms\n{more}\n")
        );
        assert_eq!(line.find("8 B"), Some(DETAILS_COLUMN));
        assert_eq!(plain(&header()).find("details"), Some(DETAILS_COLUMN));
    }

    #[test]
    fn errors_and_notes_are_listed_below_a_failed_check() {
        let error = Some("rank 1 on b\u{1b}[2J differs".to_owned());
        let notes = vec!["a note".to_owned()];
        let failed = CheckResult::verified(Value::Null, "bitwise identical".to_owned(), error);
        let failed = CheckResult { notes, ..failed };
        let text = plain(&row(&finished(Check::Consistency, Verdict::Fail, failed)));
        assert!(text.starts_with("consistency  fail "), "{text}");
        assert!(text.ends_with(" error: rank 1 on b?[2J differs\n"), "{text}");
        assert!(text.contains("note: a note\n") && !text.contains("bitwise"), "{text}");
    }

    #[test]
    fn the_result_is_passed_or_failed_with_a_hint() {
        let mut report = SmokeReport::default();
        report.on_event(SmokeEvent::World { ranks: 4, hosts: 2 }, 1.0);
        report.on_event(SmokeEvent::End(None), 12.34);
        assert_eq!(plain(&result(&report)), "passed: 4 ranks on 2 hosts in 12.3 s\n");
        let reason = "rank 2 on c exited".to_owned();
        let failure = SmokeFailure::new(Check::Steps, reason);
        report.on_event(SmokeEvent::End(Some(failure)), 13.0);
        let text = plain(&result(&report));
        assert!(text.starts_with("failed: steps: rank 2 on c exited\nhint: "), "{text}");
    }
}
