//! The smoke test as text. No I/O.

use regatta_model::units::{
    format_bytes, format_count, format_loss, format_params, format_si_unit, format_time,
    format_token_rate, pluralize,
};
use regatta_train::metrics::StepSeconds;
use regatta_train::training::smoke::{AllReduceTiming, Check, CheckResult, CheckStatus, Details};

use super::report::{SmokeFailure, SmokeReport};
use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
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
    let (style, status) = match result.status {
        CheckStatus::Ok => (GOOD, "ok"),
        CheckStatus::Note => (WARNING, "note"),
        CheckStatus::Failed => (ERROR, "failed"),
    };
    let slowest = result.slowest.as_ref().filter(|slowest| slowest.rank != 0);
    let slowest = slowest.map(|s| format!("{} r{}", format_time(s.seconds), s.rank));
    let slowest = slowest.unwrap_or_default();
    let mut lines = match &result.findings.details {
        // Their texts describe success.
        Details::Digest(_) | Details::Checkpoint { .. } if result.status == CheckStatus::Failed => {
            Vec::new()
        }
        all => details(all),
    };
    let notes = result.findings.notes.iter().map(|note| sanitize(note));
    lines.extend(notes.map(|note| format!("{WARNING}note:{WARNING:#} {note}")));
    let errors = result.findings.error.iter().map(|error| sanitize(error));
    lines.extend(errors.map(|error| format!("{ERROR}error:{ERROR:#} {error}")));
    let mut text = format!(
        "{:<13}{style}{status:<8}{style:#}{:>9}  {slowest:<12}",
        result.check.name(),
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
    let check = if *check == Check::Start { String::new() } else { format!("{}: ", check.name()) };
    let hint = hint.map(|text| format!("{FAINT}hint: {text}{FAINT:#}\n")).unwrap_or_default();
    format!("{ERROR}failed:{ERROR:#} {check}{}\n{hint}", sanitize(error))
}

fn ranks_on_hosts(ranks: u32, hosts: u32) -> String {
    format!("{} on {}", pluralize(ranks as usize, "rank"), pluralize(hosts as usize, "host"))
}

/// The details of a check.
fn details(details: &Details) -> Vec<String> {
    match details {
        Details::None => Vec::new(),
        Details::World { ranks, hosts } => vec![ranks_on_hosts(*ranks, *hosts)],
        // A rank that differs from the first has a note.
        Details::Ranks(ranks) => {
            ranks.first().map(|rank| sanitize(&rank.kernels)).into_iter().collect()
        }
        Details::Data { source, tokens } => {
            vec![format!("{}, {} tokens", sanitize(source), format_count(*tokens as f64))]
        }
        Details::AllReduce(all) => vec![all.iter().map(all_reduce).collect::<Vec<_>>().join(", ")],
        Details::State { parameters, bytes } => {
            let parameters = format_params(*parameters as f64);
            vec![format!("{parameters} parameters, {} with optimizer state", format_bytes(*bytes))]
        }
        Details::Steps { model, steps, first_loss, last_loss, tokens_per_second, step_seconds } => {
            let steps = pluralize(usize::try_from(*steps).unwrap_or(usize::MAX), "step");
            let (first, last) = (format_loss(*first_loss), format_loss(*last_loss));
            let rate = format_token_rate(*tokens_per_second);
            let summary = format!("{steps} of {}, loss {first} to {last}, {rate}", sanitize(model));
            vec![summary, phases(step_seconds)]
        }
        Details::Digest(digest) => {
            let digest: String = sanitize(digest).chars().take(12).collect();
            vec![format!("bitwise identical on all ranks, SHA-256 {digest}")]
        }
        Details::Checkpoint { bytes, .. } => {
            vec![format!("{} written and read back", format_bytes(*bytes))]
        }
    }
}

fn all_reduce(result: &AllReduceTiming) -> String {
    let time = format!("{} in {}", format_bytes(result.bytes), format_time(result.seconds));
    // Small messages measure latency, and a single rank has no bus bandwidth.
    match result.bytes >= 64 << 10 && result.bus_bandwidth > 0.0 {
        true => format!("{time} ({})", format_si_unit(result.bus_bandwidth, "B/s")),
        false => time,
    }
}

/// The step time and its phases.
fn phases(times: &StepSeconds) -> String {
    let step = times.step.max(f64::MIN_POSITIVE);
    let phase = |(name, seconds): (&str, f64)| {
        let percent = (seconds / step * 100.0).round();
        (percent >= 1.0).then(|| format!("{name} {percent}%"))
    };
    let phases: Vec<String> = times.phases().into_iter().filter_map(phase).collect();
    format!("{}/step: {}", format_time(times.step), phases.join(", "))
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use regatta_train::training::smoke::{Findings, SlowestRank, SmokeEvent};

    use super::super::report::ReportingProcess;
    use super::*;

    fn plain(text: &str) -> String {
        strip_str(text).to_string()
    }

    fn finished(check: Check, findings: Findings) -> CheckResult {
        let slowest = Some(SlowestRank { rank: 3, host: "b".to_owned(), seconds: 0.25 });
        CheckResult { check, status: findings.status(), seconds: 0.2, slowest, findings }
    }

    #[test]
    fn a_check_has_status_times_and_details() {
        let timing = |bytes| AllReduceTiming { bytes, seconds: 0.001, bus_bandwidth: 2.5e9 };
        let details = Details::AllReduce(vec![timing(8), timing(4 << 20)]);
        let line = plain(&row(&finished(Check::AllReduce, Findings::of(details))));
        assert_eq!(
            line,
            "all-reduce   ok         200 ms  250 ms r3   8 B in 1.00 ms, 4 MiB in 1.00 ms (2.50 GB/s)\n"
        );
        assert_eq!(line.find("8 B"), Some(DETAILS_COLUMN));
        assert_eq!(plain(&header()).find("details"), Some(DETAILS_COLUMN));
    }

    #[test]
    fn errors_and_notes_are_listed_below_a_failed_check() {
        let details = Details::Digest("ab".to_owned());
        let error = Some("rank 1 on b\u{1b}[2J differs".to_owned());
        let notes = vec!["a note".to_owned()];
        let text = plain(&row(&finished(Check::Consistency, Findings { details, notes, error })));
        assert!(text.starts_with("consistency  failed "), "{text}");
        assert!(text.ends_with(" error: rank 1 on b?[2J differs\n"), "{text}");
        assert!(text.contains("note: a note\n") && !text.contains("bitwise"), "{text}");
    }

    #[test]
    fn phases_of_a_step_are_in_percent() {
        let seconds =
            StepSeconds { step: 0.01, forward: 0.004, backward: 0.006, ..Default::default() };
        assert_eq!(phases(&seconds), "10.0 ms/step: forward 40%, backward 60%");
    }

    #[test]
    fn the_result_is_passed_or_failed_with_a_hint() {
        let mut report = SmokeReport::new(ReportingProcess::Rank);
        let world = Findings::of(Details::World { ranks: 4, hosts: 2 });
        report.on_event(SmokeEvent::Check(Box::new(finished(Check::Join, world))), 1.0);
        report.on_event(SmokeEvent::Done, 12.34);
        assert_eq!(plain(&result(&report)), "passed: 4 ranks on 2 hosts in 12.3 s\n");
        let reason = "rank 2 on c exited".to_owned();
        report.on_event(SmokeEvent::Aborted { check: Check::Steps, reason }, 13.0);
        let text = plain(&result(&report));
        assert!(text.starts_with("failed: steps: rank 2 on c exited\nhint: "), "{text}");
    }
}
