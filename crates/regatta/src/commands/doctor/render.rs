//! The diagnosis as text.

use std::fmt::Write;

use anstyle::Style;
use regatta_doctor::{CheckResult, Diagnosis, Finding, Verdict};
use regatta_model::hostlist;
use regatta_model::units::pluralize;

use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
use regatta_draw::text::sanitize;

/// Width of the names of checks.
const NAME_WIDTH: usize = 18;
/// Most hosts in one line; the JSON has all.
const MAX_HOSTS: usize = 200;

/// The report. Checks without anything to check are listed in one line, unless `verbose`.
pub fn render(diagnosis: &Diagnosis, verbose: bool) -> String {
    let mut text = String::new();
    let is_shown = |check: &&CheckResult| verbose || check.verdict != Verdict::Skip;
    for check in diagnosis.checks.iter().filter(is_shown) {
        text.push_str(&render_check(check));
    }
    let skipped = diagnosis.checks.iter().filter(|check| check.verdict == Verdict::Skip);
    let skipped: Vec<&str> = skipped.map(|check| check.check.name()).collect();
    if !verbose && !skipped.is_empty() {
        let _ = writeln!(text, "{FAINT}nothing to check: {}{FAINT:#}", skipped.join(", "));
    }
    if verbose {
        for note in &diagnosis.notes {
            let _ = writeln!(text, "{FAINT}note: {}{FAINT:#}", sanitize(note));
        }
    }
    text.push('\n');
    text.push_str(&conclusion(diagnosis));
    text
}

/// The style of a verdict.
pub fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Skip => FAINT,
        Verdict::Pass => GOOD,
        Verdict::Warn => WARNING,
        Verdict::Fail => ERROR,
    }
}

fn render_check(check: &CheckResult) -> String {
    let (style, name) = (style(check.verdict), check.check.name());
    let mut text = format!(
        "{style}{}{style:#}  {name:NAME_WIDTH$}{}\n",
        check.verdict,
        sanitize(&check.summary)
    );
    for finding in &check.findings {
        text.push_str(&render_finding(finding));
    }
    text
}

fn render_finding(finding: &Finding) -> String {
    let style = style(finding.verdict);
    let hosts = match finding.hosts.is_empty() {
        true => String::new(),
        false => format!("{HEADING}{}{HEADING:#}: ", sanitize(&host_list(&finding.hosts))),
    };
    let reason = sanitize(&finding.reason);
    let mut text = format!("      {style}{}{style:#} {hosts}{reason}\n", finding.verdict);
    if !finding.fix.is_empty() {
        let _ = writeln!(text, "           fix: {}", sanitize(&finding.fix));
    }
    text
}

fn host_list(hosts: &[String]) -> String {
    match hosts.len() > MAX_HOSTS {
        false => hostlist::compress(hosts),
        true => {
            let first = hostlist::compress(&hosts[..MAX_HOSTS]);
            format!("{first} and {} more", hosts.len() - MAX_HOSTS)
        }
    }
}

fn conclusion(diagnosis: &Diagnosis) -> String {
    let nodes = pluralize(diagnosis.nodes, "node");
    let bad = &diagnosis.bad_nodes;
    let mut text = match (diagnosis.verdict, bad.is_empty()) {
        (Verdict::Fail, false) => format!(
            "{ERROR}FAIL{ERROR:#}: {} of {nodes}: {}\n",
            bad.len(),
            sanitize(&host_list(bad))
        ),
        (Verdict::Fail, true) => format!("{ERROR}FAIL{ERROR:#}: {nodes}\n"),
        (Verdict::Warn, _) => format!("{WARNING}WARN{WARNING:#}: {nodes} usable, with warnings\n"),
        (Verdict::Pass | Verdict::Skip, _) => format!("{GOOD}PASS{GOOD:#}: {nodes}\n"),
    };
    if let Some(option) = &diagnosis.exclude {
        let _ = writeln!(text, "exclude with {}", sanitize(option));
    }
    text
}

#[cfg(test)]
mod tests {
    use regatta_doctor::Check;

    use super::*;

    fn plain(diagnosis: &Diagnosis, verbose: bool) -> String {
        anstream::adapter::strip_str(&render(diagnosis, verbose)).to_string()
    }

    #[test]
    fn bad_nodes_are_named_with_reason_fix_and_option() {
        let finding = Finding {
            verdict: Verdict::Fail,
            hosts: vec!["n2".to_owned(), "n3".to_owned()],
            reason: "/dev/shm has 1 MiB".to_owned(),
            fix: "remount it".to_owned(),
        };
        let diagnosis = Diagnosis {
            verdict: Verdict::Fail,
            nodes: 3,
            bad_nodes: finding.hosts.clone(),
            exclude: Some("--exclude=n[2-3]".to_owned()),
            checks: vec![
                CheckResult::new(Check::Nodes, "3 nodes reported", Vec::new()),
                CheckResult::skipped(Check::Gpus, "no GPUs"),
                CheckResult::new(Check::SharedMemory, "8 GiB", vec![finding]),
            ],
            notes: vec!["no NVML".to_owned()],
        };
        let expected = "\
pass  nodes             3 nodes reported
fail  shared-memory     8 GiB
      fail n[2-3]: /dev/shm has 1 MiB
           fix: remount it
nothing to check: gpus

FAIL: 2 of 3 nodes: n[2-3]
exclude with --exclude=n[2-3]
";
        assert_eq!(plain(&diagnosis, false), expected);
        let verbose = plain(&diagnosis, true);
        assert!(verbose.contains("skip  gpus              no GPUs\n"), "{verbose}");
        assert!(verbose.contains("note: no NVML\n"), "{verbose}");
    }
}
