//! The smoke test as text. No I/O.

use regatta_model::units::bytes;
use regatta_train::job::smoke::{Figures, Name, Part, Reduced, Verdict};
use regatta_train::metrics::StepSeconds;

use super::report::{SmokeFailure, SmokeReport};
use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
use crate::commands::train::format::{
    format_count, format_loss, format_params, format_si_unit, format_time, format_token_rate,
};
use crate::draw::text::{plural, sanitize};

/// Column of the details.
const DETAILS_COLUMN: usize = 43;

/// The table header.
pub fn header() -> String {
    let (part, status, rank, slowest) = ("part", "status", "rank 0", "slowest");
    format!("{HEADING}{part:<12}{status:<8}{rank:>9}  {slowest:<12}details{HEADING:#}\n")
}

/// The row of a part, with further lines for notes and errors.
pub fn part(part: &Part) -> String {
    let (style, status) = match part.verdict {
        Verdict::Ok => (GOOD, "ok"),
        Verdict::Note => (WARNING, "note"),
        Verdict::Failed => (ERROR, "failed"),
    };
    let slowest = part.slowest.as_ref().filter(|slowest| slowest.rank != 0);
    let slowest =
        slowest.map_or_else(String::new, |s| format!("{} r{}", format_time(s.seconds), s.rank));
    let mut lines = match &part.findings.figures {
        // Their texts describe success.
        Figures::Digest(_) | Figures::Kept { .. } if part.verdict == Verdict::Failed => Vec::new(),
        figures => details(figures),
    };
    let notes = part.findings.notes.iter().map(|note| sanitize(note));
    lines.extend(notes.map(|note| format!("{WARNING}note:{WARNING:#} {note}")));
    let errors = part.findings.wrong.iter().map(|error| sanitize(error));
    lines.extend(errors.map(|error| format!("{ERROR}error:{ERROR:#} {error}")));
    let mut text = format!(
        "{:<12}{style}{status:<8}{style:#}{:>9}  {slowest:<12}",
        part.part.text(),
        format_time(part.seconds)
    );
    text.push_str(&lines.join(&format!("\n{:DETAILS_COLUMN$}", "")));
    format!("{}\n", text.trim_end())
}

/// The result, with a hint after a failure.
pub fn result(report: &SmokeReport) -> String {
    let Some(SmokeFailure { part, error, hint }) = &report.failure else {
        let world = ranks_on_hosts(report.ranks, report.hosts);
        return format!("{GOOD}passed:{GOOD:#} {world} in {}\n", format_time(report.seconds));
    };
    let part = if *part == Name::Start { String::new() } else { format!("{}: ", part.text()) };
    let hint = hint.map(|text| format!("{FAINT}hint: {text}{FAINT:#}\n")).unwrap_or_default();
    format!("{ERROR}failed:{ERROR:#} {part}{}\n{hint}", sanitize(error))
}

fn ranks_on_hosts(ranks: u32, hosts: u32) -> String {
    format!("{} on {}", plural(ranks as usize, "rank"), plural(hosts as usize, "host"))
}

/// The details of a part.
fn details(figures: &Figures) -> Vec<String> {
    match figures {
        Figures::None => Vec::new(),
        Figures::World { ranks, hosts } => vec![ranks_on_hosts(*ranks, *hosts)],
        // A rank that differs from the first has a note.
        Figures::Places(places) => {
            places.first().map(|p| sanitize(&p.kernels)).into_iter().collect()
        }
        Figures::Data { source, tokens } => {
            vec![format!("{}, {} tokens", sanitize(source), format_count(*tokens as f64))]
        }
        Figures::Reduced(all) => vec![all.iter().map(all_reduce).collect::<Vec<_>>().join(", ")],
        Figures::State { parameters, bytes: of } => {
            let parameters = format_params(*parameters as f64);
            vec![format!("{parameters} parameters, {} with optimizer state", bytes(*of))]
        }
        Figures::Trained {
            model,
            steps,
            first_loss,
            last_loss,
            tokens_per_second,
            step_seconds,
        } => {
            let steps = plural(usize::try_from(*steps).unwrap_or(usize::MAX), "step");
            let (first, last) = (format_loss(*first_loss), format_loss(*last_loss));
            let rate = format_token_rate(*tokens_per_second);
            let summary = format!("{steps} of {}, loss {first} to {last}, {rate}", sanitize(model));
            vec![summary, phases(step_seconds)]
        }
        Figures::Digest(digest) => {
            let digest: String = sanitize(digest).chars().take(12).collect();
            vec![format!("bitwise identical on all ranks, SHA-256 {digest}")]
        }
        Figures::Kept { bytes: of, .. } => vec![format!("{} written and read back", bytes(*of))],
    }
}

fn all_reduce(result: &Reduced) -> String {
    let time = format!("{} in {}", bytes(result.bytes), format_time(result.seconds));
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
    let phases: Vec<String> = times.parts().into_iter().filter_map(phase).collect();
    format!("{}/step: {}", format_time(times.step), phases.join(", "))
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use regatta_train::job::smoke::{Findings, Slowest, Told};

    use super::super::report::ReportingProcess;
    use super::*;

    fn plain(text: &str) -> String {
        strip_str(text).to_string()
    }

    fn part_with(name: Name, findings: Findings) -> Part {
        let slowest = Some(Slowest { rank: 3, host: "b".to_owned(), seconds: 0.25 });
        Part { part: name, verdict: findings.verdict(), seconds: 0.2, slowest, findings }
    }

    #[test]
    fn a_part_has_status_times_and_details() {
        let reduced = |bytes| Reduced { bytes, seconds: 0.001, bus_bandwidth: 2.5e9 };
        let figures = Figures::Reduced(vec![reduced(8), reduced(4 << 20)]);
        let line = plain(&part(&part_with(Name::AllReduce, Findings::of(figures))));
        assert_eq!(
            line,
            "all-reduce  ok         200 ms  250 ms r3   8 B in 1.00 ms, 4 MiB in 1.00 ms (2.50 GB/s)\n"
        );
        assert_eq!(line.find("8 B"), Some(DETAILS_COLUMN));
        assert_eq!(plain(&header()).find("details"), Some(DETAILS_COLUMN));
    }

    #[test]
    fn errors_and_notes_are_listed_below_a_failed_part() {
        let figures = Figures::Digest("ab".to_owned());
        let error = Some("rank 1 on b\u{1b}[2J differs".to_owned());
        let notes = vec!["a note".to_owned()];
        let text = plain(&part(&part_with(Name::Same, Findings { figures, notes, wrong: error })));
        assert!(text.starts_with("same        failed "), "{text}");
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
        let world = Findings::of(Figures::World { ranks: 4, hosts: 2 });
        report.on_event(Told::Part(Box::new(part_with(Name::Join, world))), 1.0);
        report.on_event(Told::Done, 12.34);
        assert_eq!(plain(&result(&report)), "passed: 4 ranks on 2 hosts in 12.3 s\n");
        let mut report = SmokeReport::new(ReportingProcess::Rank);
        let why = "rank 2 on c exited".to_owned();
        report.on_event(Told::Broken { part: Name::Steps, why }, 1.0);
        let text = plain(&result(&report));
        assert!(text.starts_with("failed: steps: rank 2 on c exited\nhint: "), "{text}");
    }
}
