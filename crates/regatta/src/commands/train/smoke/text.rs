//! A check of all ranks as lines of text. No I/O.

use regatta_model::units::bytes;
use regatta_train::job::smoke::{Figures, Name, Part, Place, Reduced, Verdict};
use regatta_train::metrics::StepSeconds;

use super::report::Report;
use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
use crate::commands::train::figures::{loss, short, si, with_unit};
use crate::draw::text::{plural, sanitize};

/// What stands before what is told of a part.
const INDENT: usize = 43;

/// The line above all parts.
pub fn header() -> String {
    let (part, rank, slowest) = ("part", "rank 0", "slowest");
    format!("{HEADING}{part:<12}{:<8}{rank:>9}  {slowest:<12}what{HEADING:#}\n", "")
}

/// A part: a line, and more where there is more to say.
pub fn part(part: &Part) -> String {
    let (style, verdict) = match part.verdict {
        Verdict::Ok => (GOOD, "ok"),
        Verdict::Note => (WARNING, "note"),
        Verdict::Failed => (ERROR, "failed"),
    };
    let slowest = part.slowest.as_ref().filter(|slowest| slowest.rank != 0);
    let slowest = slowest.map_or_else(String::new, |s| format!("{} r{}", short(s.seconds), s.rank));
    let mut lines = match &part.findings.figures {
        // Their words would say that it went well.
        Figures::Digest(_) | Figures::Kept { .. } if part.verdict == Verdict::Failed => Vec::new(),
        figures => found(figures),
    };
    let notes = part.findings.notes.iter().map(|note| sanitize(note));
    lines.extend(notes.map(|note| format!("{WARNING}note:{WARNING:#} {note}")));
    let wrong = part.findings.wrong.iter().map(|wrong| sanitize(wrong));
    lines.extend(wrong.map(|wrong| format!("{ERROR}wrong:{ERROR:#} {wrong}")));
    let mut text = format!(
        "{:<12}{style}{verdict:<8}{style:#}{:>9}  {slowest:<12}",
        part.part.text(),
        short(part.seconds)
    );
    text.push_str(&lines.join(&format!("\n{:INDENT$}", "")));
    format!("{}\n", text.trim_end())
}

/// What it comes to.
pub fn end(report: &Report) -> String {
    let ranks = plural(report.ranks as usize, "rank");
    let hosts = plural(report.hosts as usize, "host");
    let seconds = short(report.seconds);
    match &report.failure {
        None => format!("{GOOD}works:{GOOD:#} {ranks} on {hosts}, {seconds}\n"),
        Some(failure) => {
            let (part, what) = (failure.part.text(), sanitize(&failure.what));
            let place =
                if failure.part == Name::Start { String::new() } else { format!("{part}: ") };
            let hint = failure.look_at.map(|text| format!("{FAINT}look at {text}{FAINT:#}\n"));
            let hint = hint.unwrap_or_default();
            format!("{ERROR}does not work:{ERROR:#} {place}{what}\n{hint}")
        }
    }
}

/// A part in words.
fn found(figures: &Figures) -> Vec<String> {
    match figures {
        Figures::None => Vec::new(),
        Figures::World { ranks, hosts } => {
            vec![format!(
                "{} on {}",
                plural(*ranks as usize, "rank"),
                plural(*hosts as usize, "host")
            )]
        }
        Figures::Places(places) => vec![have(places)],
        Figures::Data { source, tokens } => {
            vec![format!("{}, {} tokens", sanitize(source), si(*tokens as f64))]
        }
        Figures::Reduced(all) => vec![all.iter().map(reduced).collect::<Vec<_>>().join(", ")],
        Figures::State { parameters, bytes: of } => {
            vec![format!(
                "{} parameters, {} with their moments",
                si(*parameters as f64),
                bytes(*of)
            )]
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
            let losses = format!("loss {} to {}", loss(*first_loss), loss(*last_loss));
            let speed = si(*tokens_per_second);
            let first = format!("{steps} of {}, {losses}, {speed} tokens/s", sanitize(model));
            vec![first, split(step_seconds)]
        }
        Figures::Digest(digest) => {
            let digest: String = sanitize(digest).chars().take(12).collect();
            vec![format!("bit for bit the same on all ranks, sha256 {digest}")]
        }
        Figures::Kept { bytes: of, .. } => vec![format!("{} written and read back", bytes(*of))],
    }
}

/// What ranks have; where one has something else, a note says so.
fn have(places: &[Place]) -> String {
    places.first().map(|place| sanitize(&place.kernels)).unwrap_or_default()
}

fn reduced(one: &Reduced) -> String {
    let time = format!("{} in {}", bytes(one.bytes), short(one.seconds));
    // Of few bytes the time counts, and one rank has no links.
    match one.bytes >= 64 << 10 && one.bus_bandwidth > 0.0 {
        true => format!("{time} ({})", with_unit(one.bus_bandwidth, "B/s")),
        false => time,
    }
}

/// Where the time of a step went.
fn split(seconds: &StepSeconds) -> String {
    let whole = seconds.step.max(f64::MIN_POSITIVE);
    let share = |(name, part): (&str, f64)| {
        let percent = (part / whole * 100.0).round();
        (percent >= 1.0).then(|| format!("{name} {percent} %"))
    };
    let parts: Vec<String> = seconds.parts().into_iter().filter_map(share).collect();
    format!("a step takes {}: {}", short(seconds.step), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use regatta_train::job::smoke::{Findings, Slowest, Told};

    use super::*;

    fn plain(text: &str) -> String {
        strip_str(text).to_string()
    }

    fn of(name: Name, findings: Findings) -> Part {
        let slowest = Some(Slowest { rank: 3, host: "b".to_owned(), seconds: 0.25 });
        Part { part: name, verdict: findings.verdict(), seconds: 0.2, slowest, findings }
    }

    #[test]
    fn a_part_has_its_times_its_verdict_and_what_was_found() {
        let reduced = |bytes| Reduced { bytes, seconds: 0.001, bus_bandwidth: 2.5e9 };
        let figures = Figures::Reduced(vec![reduced(8), reduced(4 << 20)]);
        let line = plain(&part(&of(Name::AllReduce, Findings::of(figures))));
        assert_eq!(
            line,
            "all-reduce  ok         200 ms  250 ms r3   8 B in 1.00 ms, 4 MiB in 1.00 ms (2.50 GB/s)\n"
        );
        assert_eq!(line.find("8 B"), Some(INDENT));
        assert_eq!(plain(&header()).find("what"), Some(INDENT));
    }

    #[test]
    fn what_is_wrong_stands_below() {
        let figures = Figures::Digest("ab".to_owned());
        let wrong = Some("rank 1 on b\u{1b}[2J differs".to_owned());
        let notes = vec!["a note".to_owned()];
        let text = plain(&part(&of(Name::Same, Findings { figures, notes, wrong })));
        assert!(text.starts_with("same        failed "), "{text}");
        assert!(text.ends_with(" wrong: rank 1 on b?[2J differs\n"), "{text}");
        assert!(text.contains("note: a note\n") && !text.contains("bit for bit"), "{text}");
    }

    #[test]
    fn shares_of_a_step_are_in_percent() {
        let seconds =
            StepSeconds { step: 0.01, forward: 0.004, backward: 0.006, ..Default::default() };
        assert_eq!(split(&seconds), "a step takes 10.0 ms: forward 40 %, backward 60 %");
    }

    #[test]
    fn the_last_line_says_what_it_comes_to() {
        let mut report = Report::new(false);
        let world = Findings::of(Figures::World { ranks: 4, hosts: 2 });
        report.hear(Told::Part(Box::new(of(Name::Join, world))), 1.0);
        report.hear(Told::Done, 12.34);
        assert_eq!(plain(&end(&report)), "works: 4 ranks on 2 hosts, 12.3 s\n");
        let mut report = Report::new(false);
        let why = "rank 2 on c is gone".to_owned();
        report.hear(Told::Broken { part: Name::Steps, why }, 1.0);
        let text = plain(&end(&report));
        assert!(text.starts_with("does not work: steps: rank 2 on c is gone\nlook at "), "{text}");
    }
}
