//! The report as text.

use std::collections::BTreeSet;
use std::fmt::Write;

use regatta_draw::table::{self, format_value};
use regatta_draw::text::{sanitize, truncate};
use regatta_model::units::{format_bytes, format_elapsed, format_time, pluralize};
use regatta_observe::comms::CommsReport;
use regatta_observe::comms::report::{CommunicatorRow, InFlight, RankRow, SizeRow, Summary};

use crate::cli::{FAINT, HEADING, WARNING};

/// Most communicators and operations without an end in the tables.
const MAX_ROWS: usize = 16;
/// Width of a cell with a name or ranks.
const MAX_CELL: usize = 32;

/// The whole report with at most this many ranks.
pub fn render(report: &CommsReport, max_ranks: usize) -> String {
    let mut text = summary(&report.summary);
    text += &histogram(&report.histogram);
    text += &communicators(&report.communicators);
    text += &ranks(report, max_ranks);
    text += &in_flight(&report.in_flight);
    text += &warnings(report);
    text
}

fn summary(summary: &Summary) -> String {
    let share =
        summary.busy_share.map(|share| format!("; ranks communicate {} of it", percent(share)));
    let wall = match summary.wall_s {
        seconds if seconds < 1.0 => format_time(seconds),
        seconds => format_elapsed(seconds),
    };
    format!(
        "{HEADING}{} on {}, {}{HEADING:#}: {}, {}{}\n",
        pluralize(summary.processes, "rank"),
        pluralize(summary.hosts, "host"),
        wall,
        pluralize(summary.calls as usize, "call"),
        format_bytes(summary.bytes),
        share.unwrap_or_default(),
    )
}

fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        value if value < 9.95 => format!("{value:.1} %"),
        value => format!("{value:.0} %"),
    }
}

/// A section with a heading and a table; `more` rows are left out.
fn section(
    heading: &str,
    header: &[&str],
    rows: &[Vec<String>],
    left: &[usize],
    more: usize,
) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let table = table::with_dim_header(header, rows, left);
    let more = match more {
        0 => String::new(),
        more => format!("{FAINT}... and {more} more{FAINT:#}\n"),
    };
    format!("\n{HEADING}{heading}{HEADING:#}\n{table}{more}")
}

pub(super) fn cell(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        text => truncate(&sanitize(text), MAX_CELL, '~'),
    }
}

pub(super) fn known<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), format)
}

fn micros(value: Option<f64>) -> String {
    known(value, |value| format_time(value / 1e6))
}

/// A size exactly: in the largest unit that divides it.
fn exact_bytes(bytes: u64) -> String {
    let is_multiple = |shift: u32| bytes > 0 && bytes.is_multiple_of(1 << shift);
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| is_multiple(*shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

fn size(row: &SizeRow) -> String {
    match row.size_bucket && row.size_bytes > 0 {
        true => format!("{}+", exact_bytes(row.size_bytes)),
        false => exact_bytes(row.size_bytes),
    }
}

/// The most frequent data type, algorithm and protocol, and the number of others.
fn variant(row: &SizeRow) -> String {
    let Some(first) = row.variants.first() else { return String::new() };
    let how: Vec<&str> = [&first.algorithm, &first.protocol]
        .into_iter()
        .map(String::as_str)
        .filter(|name| !name.is_empty())
        .collect();
    let others = match row.variants.len() {
        0 | 1 => String::new(),
        count => format!(" +{}", count - 1),
    };
    sanitize(&format!("{} {}{others}", first.dtype, how.join("/")))
}

fn histogram(rows: &[SizeRow]) -> String {
    let row = |row: &SizeRow| {
        let transfer = row.transfer.as_ref();
        vec![
            cell(&row.operation),
            known(row.ranks, |ranks| ranks.to_string()),
            size(row),
            row.calls.to_string(),
            known(row.collectives, |count| count.to_string()),
            format_bytes(row.bytes),
            format_time(row.time_s),
            known(row.time_share, percent),
            micros(row.mean_us),
            micros(row.median_us),
            micros(row.p99_us),
            format_value(row.algbw_gb_s),
            format_value(row.busbw_gb_s),
            format_value(transfer.and_then(|transfer| transfer.busbw_gb_s)),
            variant(row),
        ]
    };
    let header = [
        "operation",
        "ranks",
        "size",
        "calls",
        "collectives",
        "bytes",
        "time",
        "share",
        "mean",
        "median",
        "p99",
        "algbw",
        "busbw",
        "transfer",
        "type",
    ];
    let cells: Vec<Vec<String>> = rows.iter().map(row).collect();
    let mut text = section("message sizes (bandwidths in GB/s)", &header, &cells, &[0, 14], 0);
    let combined: BTreeSet<&str> =
        rows.iter().filter(|row| row.size_bucket).map(|row| row.operation.as_str()).collect();
    for operation in combined {
        let _ = writeln!(
            text,
            "{FAINT}{}: more than 64 sizes; N+ has all from N to below twice N{FAINT:#}",
            sanitize(operation)
        );
    }
    text
}

fn communicators(all: &[CommunicatorRow]) -> String {
    let row = |row: &CommunicatorRow| {
        let count = |count: u32| if count == 0 { "-".to_owned() } else { count.to_string() };
        vec![
            cell(&row.name),
            cell(&row.id),
            count(row.ranks),
            count(row.nodes),
            cell(&row.job_ranks),
            row.calls.to_string(),
            format_bytes(row.bytes),
            format_time(row.time_s),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().take(MAX_ROWS).map(row).collect();
    let header = ["communicator", "id", "ranks", "nodes", "job ranks", "calls", "bytes", "time"];
    section("communicators", &header, &rows, &[0, 1, 4], all.len().saturating_sub(MAX_ROWS))
}

fn ranks(report: &CommsReport, max: usize) -> String {
    let several = report.reported_attempts.len() > 1;
    let row = |row: &RankRow| {
        let last = match row.matched {
            0 => "-".to_owned(),
            matched => percent(row.last as f64 / matched as f64),
        };
        let rank = known(row.rank, |rank| rank.to_string());
        vec![
            if several { format!("{rank} (attempt {})", row.attempt) } else { rank },
            cell(&row.host),
            row.calls.to_string(),
            format_bytes(row.bytes),
            format_time(row.time_s),
            known(row.busy_share, percent),
            last,
            micros(row.mean_delay_us),
            micros(row.mean_wait_us),
        ]
    };
    let rows: Vec<Vec<String>> = report.ranks.iter().take(max).map(row).collect();
    let header = ["rank", "host", "calls", "bytes", "time", "busy", "last", "delay", "wait"];
    let heading = match report.summary {
        Summary { matched_collectives: 0, .. } => "ranks".to_owned(),
        Summary { matched_collectives, matched_stride, .. } => {
            let every = match matched_stride {
                1 => String::new(),
                stride => format!(", every {stride}th"),
            };
            format!("ranks that arrive last ({matched_collectives} collectives compared{every})")
        }
    };
    let more = report.ranks.len().saturating_sub(rows.len());
    section(&heading, &header, &rows, &[1], more)
}

fn in_flight(all: &[InFlight]) -> String {
    let row = |row: &InFlight| {
        vec![
            known(row.rank, |rank| rank.to_string()),
            cell(&row.host),
            cell(&row.communicator),
            cell(&row.operation),
            row.index.to_string(),
            exact_bytes(row.size_bytes),
            format_elapsed(row.age_s),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().take(MAX_ROWS).map(row).collect();
    let header = ["rank", "host", "communicator", "operation", "index", "size", "age"];
    section("without an end", &header, &rows, &[1, 2, 3], all.len().saturating_sub(MAX_ROWS))
}

fn warnings(report: &CommsReport) -> String {
    let mut text = String::new();
    if report.summary.calls == 0 {
        let _ = writeln!(text, "\n{WARNING}note:{WARNING:#} the event files have no operations");
    } else if !report.warnings.is_empty() {
        text.push('\n');
    }
    for warning in &report.warnings {
        let (message, hint) = (sanitize(&warning.message), sanitize(&warning.hint));
        let _ = writeln!(text, "{WARNING}note:{WARNING:#} {message}\n      {FAINT}{hint}{FAINT:#}");
    }
    text
}
