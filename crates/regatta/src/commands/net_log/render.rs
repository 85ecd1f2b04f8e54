//! The report as text: verdict, requirement, transports by rank group, plug-in, findings with fixes.

use std::collections::HashSet;
use std::fmt::Write;

use anstyle::Style;
use regatta_model::units::pluralize;
use regatta_observe::net_log::NetReport;
use regatta_observe::net_log::report::{Finding, Level, RankGroup, RankReport, describe_ranks};

use crate::cli::{ERROR, FAINT, GOOD, HEADING, WARNING};
use regatta_draw::table;
use regatta_draw::text::{sanitize, truncate};

/// Most groups in the table.
const MAX_GROUPS: usize = 20;
/// Width of a cell with names of hosts or ranks.
const MAX_CELL: usize = 36;
/// Most plug-ins or NICs in the list.
const MAX_VALUES: usize = 6;

/// Whether there is a requirement that is not fulfilled.
pub fn failed_requirement(report: &NetReport) -> bool {
    report.requirement.as_ref().is_some_and(|requirement| !requirement.satisfied)
}

/// The whole report.
pub fn render(report: &NetReport) -> String {
    let mut text = verdict_line(report);
    text.push_str(&requirement(report));
    text.push_str(&groups(report));
    text.push_str(&facts(report));
    text.push_str(&findings(report));
    text.push_str(&footer(report));
    text
}

/// Words for a verdict and for a finding, and their style.
fn words(level: Level) -> (&'static str, &'static str, Style) {
    match level {
        Level::Ok => ("GOOD", "note", GOOD),
        Level::Note => ("note", "note", FAINT),
        Level::Unknown => ("NOT PROVEN", "unknown", WARNING),
        Level::Warning => ("WARNING", "warning", WARNING),
        Level::Failure => ("WRONG NETWORK", "failure", ERROR),
    }
}

/// The verdict in one line.
pub fn verdict_line(report: &NetReport) -> String {
    let (word, _, style) = words(report.level);
    format!("{style}{word}{style:#}: {}\n", sanitize(&report.verdict))
}

fn requirement(report: &NetReport) -> String {
    let Some(result) = &report.requirement else { return String::new() };
    let name = sanitize(&result.network);
    if result.satisfied {
        return format!("{GOOD}required{GOOD:#} {name}: all ranks\n");
    }
    let reason = sanitize(result.reason.as_deref().unwrap_or("not fulfilled"));
    let mut text = format!("{ERROR}required{ERROR:#} {name}: {reason}\n");
    if let Some(fix) = &result.fix {
        let _ = writeln!(text, "  fix: {}", sanitize(fix));
    }
    text
}

fn groups(report: &NetReport) -> String {
    if report.groups.is_empty() {
        return String::new();
    }
    let names = |names: &[String]| match names.is_empty() {
        true => "-".to_owned(),
        false => sanitize(&names.join(", ")),
    };
    let cell = |text: &str| truncate(&sanitize(text), MAX_CELL, '~');
    let row = |group: &RankGroup| {
        vec![
            cell(&group.ranks),
            group.count.to_string(),
            cell(&group.hosts),
            names(&group.networks),
            group.gdr.name().to_owned(),
            names(&group.local),
        ]
    };
    let rows: Vec<Vec<String>> = report.groups.iter().take(MAX_GROUPS).map(row).collect();
    let header = ["ranks", "count", "hosts", "between nodes", "GPUDirect RDMA", "inside the node"];
    let table = table::with_dim_header(&header, &rows, &[0, 2, 3, 4, 5]);
    let more = match report.groups.len().saturating_sub(MAX_GROUPS) {
        0 => String::new(),
        more => format!("... and {}\n", pluralize(more, "group")),
    };
    format!("\n{table}{more}")
}

/// Library, plug-in and NICs.
fn facts(report: &NetReport) -> String {
    let mut text = String::from("\n");
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{HEADING}{name:<10}{HEADING:#}{}", sanitize(value));
    };
    if !report.libraries.is_empty() {
        line("library", &report.libraries.join("; "));
    }
    for value in by_value(report, plugin) {
        line("plug-in", &value);
    }
    for value in by_value(report, nics) {
        line("NICs", &value);
    }
    for value in by_value(report, |rank| rank.bootstrap.clone()) {
        line("bootstrap", &value);
    }
    if text.len() == 1 { String::new() } else { text }
}

fn plugin(rank: &RankReport) -> Option<String> {
    let plugin = &rank.plugin;
    match (plugin.describe(), &plugin.failure, &plugin.not_found) {
        (Some(loaded), ..) => Some(loaded),
        (None, Some(why), _) => Some(format!("none: {why}")),
        (None, None, Some(library)) => Some(format!("none: not found: {library}")),
        (None, None, None) => None,
    }
}

/// The NICs that the channels of a rank use, else those that the network has found.
fn nics(rank: &RankReport) -> Option<String> {
    let used: Vec<&str> = rank.net_transports().filter_map(|t| t.nic.as_deref()).collect();
    let listed = rank.ib_devices.values().chain(rank.sockets.values()).map(String::as_str);
    let mut names: Vec<&str> = if used.is_empty() { listed.collect() } else { used };
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The values of all ranks, the most frequent first; with their ranks if there are several.
fn by_value(report: &NetReport, value: impl Fn(&RankReport) -> Option<String>) -> Vec<String> {
    let mut values: Vec<(String, Vec<&RankReport>)> = report.by_value(value).into_iter().collect();
    values.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let several = values.len() > 1;
    let line = |(value, ranks): (String, Vec<&RankReport>)| match several {
        true => format!("{value}  [{}]", describe_ranks(&ranks, usize::MAX)),
        false => value,
    };
    values.into_iter().take(MAX_VALUES).map(line).collect()
}

fn findings(report: &NetReport) -> String {
    if report.findings.is_empty() {
        return String::new();
    }
    // A fix that several findings share is printed once.
    let mut printed: HashSet<&str> = HashSet::new();
    let mut text = String::from("\n");
    for Finding { level, message, fix, .. } in &report.findings {
        let (_, name, style) = words(*level);
        let _ = writeln!(text, "{style}{name}{style:#}: {}", sanitize(message));
        if let Some(fix) = fix.as_ref().filter(|fix| printed.insert(fix)) {
            let _ = writeln!(text, "  fix: {}", sanitize(fix));
        }
    }
    text
}

fn footer(report: &NetReport) -> String {
    let counts = &report.counts;
    let mut parts = vec![format!("{} lines", counts.lines), format!("{} of NCCL", counts.records)];
    if counts.truncated_records > 0 {
        parts.push(format!("{} cut off", counts.truncated_records));
    }
    if counts.unattributed_records > 0 {
        parts.push(format!("{} of unknown processes", counts.unattributed_records));
    }
    let sources = pluralize(report.sources.len(), "log");
    format!("\n{FAINT}{sources}, {}{FAINT:#}\n", parts.join(", "))
}
