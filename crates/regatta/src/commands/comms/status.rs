//! The last collective of each rank, from the status files.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use regatta_draw::table;
use regatta_events::operation::OperationKind;
use regatta_events::status::{CommunicatorStatus, CurrentOperation, Status};
use regatta_model::units::{format_elapsed, pluralize};
use regatta_model::{Document, document};
use regatta_observe::comms::Attempts;
use regatta_observe::read::comms::read_status;
use serde::{Deserialize, Serialize};

use super::render::{cell, known};
use crate::cli::FAINT;
use crate::output;

/// The communicators of all ranks.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StatusReport {
    rows: Vec<StatusRow>,
    /// Files that have no complete status.
    unreadable: Vec<String>,
}

impl Document for StatusReport {
    const KIND: &'static str = "comms-status";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta comms --status --json";
}

/// A communicator of a rank.
#[derive(Debug, Default, Serialize, Deserialize)]
struct StatusRow {
    rank: Option<u32>,
    host: String,
    pid: u32,
    attempt: u32,
    /// Whether the process ended its recording.
    ended: bool,
    /// Seconds since the status was written, which is when it last changed.
    age_s: f64,
    /// Name of the communicator, else its id.
    communicator: String,
    communicator_rank: u32,
    ranks: u32,
    /// Collectives enqueued, started and completed.
    enqueued: u64,
    started: u64,
    completed: u64,
    /// The oldest operation that has not ended.
    current: Option<CurrentRow>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct CurrentRow {
    operation: String,
    index: u64,
    size_bytes: u64,
    peer: Option<u32>,
    started: bool,
    /// Seconds since it was enqueued.
    age_s: f64,
}

/// Prints the status of all ranks of an attempt. Returns whether there was one.
pub fn run(paths: &[PathBuf], attempts: Attempts, json: bool) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let mut report = StatusReport::default();
    for path in paths {
        match read_status(path) {
            Some(status) => report.rows.extend(rows(&status, now)),
            None => report.unreadable.push(path.display().to_string()),
        }
    }
    let last = report.rows.iter().map(|row| row.attempt).max();
    report.rows.retain(|row| attempts.contains(row.attempt, last));
    report.rows.sort_by_key(|row| (row.attempt, row.rank, row.pid));
    output::print_report(json, || Ok(document::to_json(&report)?), || render(&report))?;
    Ok(!report.rows.is_empty())
}

/// A row per communicator; one without a communicator if there is none.
fn rows(status: &Status, now: u64) -> Vec<StatusRow> {
    let seconds = |later: u64, earlier: u64| later.saturating_sub(earlier) as f64 / 1e9;
    let since = |time: u64| seconds(now, time);
    // The host clock of another host cannot be read: its real time at the status is known.
    let age = |host_time: u64| since(status.realtime) + seconds(status.host_time, host_time);
    let process = || StatusRow {
        rank: status.process.rank,
        host: status.process.host.clone(),
        pid: status.process.pid,
        attempt: status.process.restart,
        ended: status.ended,
        age_s: since(status.realtime),
        ..StatusRow::default()
    };
    let row = |one: &CommunicatorStatus| StatusRow {
        communicator: one.communicator.label(),
        communicator_rank: one.communicator.rank,
        ranks: one.communicator.ranks,
        enqueued: one.enqueued,
        started: one.started,
        completed: one.completed,
        current: one
            .current
            .or(one.message)
            .map(|current| current_row(&current, age(current.enqueued))),
        ..process()
    };
    match &status.communicators[..] {
        [] => vec![process()],
        communicators => communicators.iter().map(row).collect(),
    }
}

fn current_row(current: &CurrentOperation, age_s: f64) -> CurrentRow {
    CurrentRow {
        operation: kind_name(current.kind),
        index: current.index,
        size_bytes: current.bytes,
        peer: current.peer,
        started: current.started,
        age_s,
    }
}

/// Names that a program defines are in its event file only.
fn kind_name(kind: OperationKind) -> String {
    kind.known_name().map_or_else(|| format!("#{}", kind.code()), str::to_owned)
}

fn render(report: &StatusReport) -> String {
    let row = |row: &StatusRow| {
        let (current, age) = match (&row.current, row.ended) {
            (Some(current), _) => {
                let state = if current.started { "running" } else { "enqueued" };
                (format!("{} #{} {state}", current.operation, current.index), current.age_s)
            }
            (None, true) => ("ended".to_owned(), row.age_s),
            (None, false) => ("none".to_owned(), row.age_s),
        };
        vec![
            known(row.rank, |rank| rank.to_string()),
            cell(&row.host),
            cell(&row.communicator),
            format!("{}/{}", row.communicator_rank, row.ranks),
            row.enqueued.to_string(),
            row.started.to_string(),
            row.completed.to_string(),
            current,
            format_elapsed(age),
        ]
    };
    let rows: Vec<Vec<String>> = report.rows.iter().map(row).collect();
    let header = [
        "rank",
        "host",
        "communicator",
        "as",
        "enqueued",
        "started",
        "completed",
        "in flight",
        "for",
    ];
    let table = table::with_dim_header(&header, &rows, &[1, 2, 3, 7]);
    let unreadable = match report.unreadable.len() {
        0 => String::new(),
        count => {
            format!("{FAINT}{} without a complete status{FAINT:#}\n", pluralize(count, "file"))
        }
    };
    table + &unreadable
}
