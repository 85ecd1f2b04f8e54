//! Messages of `regatta launch`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use regatta_launch::attempt::AttemptSpec;
use regatta_launch::node_pool::{NodeChange, PoolUpdate};
use regatta_launch::status::JobStatus;
use regatta_model::result::{RunResult, StalledOperation};
use regatta_model::units::pluralize;
use regatta_model::{CpuSet, hostlist, run_folder};
use signal_hook::low_level::signal_name;

use crate::cli::{ERROR, FAINT, WARNING};
use crate::output::{self, Stream};

/// Causes of a hang that are printed.
const MAX_CAUSES: usize = 8;

/// The text of a status that has no other effect; empty for all others.
pub fn status_text(status: &JobStatus<'_>) -> String {
    match status {
        JobStatus::Note(text) => format!("{WARNING}note:{WARNING:#} {text}\n"),
        JobStatus::WaitingForAgents { missing, nodes } => {
            let (count, all) = (missing.len(), pluralize(*nodes, "node"));
            let names = hostlist::compress(missing);
            format!("{FAINT}waiting for agents on {count} of {all}: {names}{FAINT:#}\n")
        }
        JobStatus::AgentsKilled { hosts } => format!(
            "{WARNING}note:{WARNING:#} the command that started the agents on {} did not exit with the job \
             and was killed; check for leftover `regatta agent` processes there\n",
            hostlist::compress(hosts)
        ),
        JobStatus::NodesChanged { update, hosts } => nodes_changed(update, hosts),
        JobStatus::Restarting { restart, max, delay } => restarting(*restart, *max, *delay),
        JobStatus::Fencing { hosts, remaining } => format!(
            "{FAINT}waiting up to {} s until the agent of {} has killed its ranks{FAINT:#}\n",
            remaining.as_secs() + 1,
            hostlist::compress(hosts)
        ),
        _ => String::new(),
    }
}

/// What is being launched.
pub fn started(attempt: &AttemptSpec, folder: &Path) -> String {
    let nodes = &attempt.job.placement.nodes;
    let hosts: Vec<&str> = nodes.iter().map(|node| node.host.as_str()).collect();
    let ranks = pluralize(attempt.ranks.len(), "rank");
    let (hosts, folder) = (hostlist::compress(&hosts), folder.display());
    format!("{FAINT}launching {ranks} on {hosts}; run folder: {folder}{FAINT:#}\n")
}

/// What a termination signal does to the ranks.
pub fn signal_notice(signal: i32, killing: bool, ranks: usize, grace: Duration) -> String {
    let name = signal_name(signal).unwrap_or("signal");
    let (ranks, grace) = (pluralize(ranks, "rank"), grace.as_secs());
    let again = if signal == libc::SIGINT { "Ctrl-C again" } else { "a second signal" };
    let effect = match killing {
        true => format!("killing {ranks}"),
        false => format!(
            "forwarded to {ranks}, waiting up to {grace} s for them to exit; {again} kills them"
        ),
    };
    format!("{WARNING}{name}:{WARNING:#} {effect}\n")
}

/// Prints how the job ended: the first failure with its last lines, and the states of the other
/// ranks. After success, prints the run folder unless the caller does. `withheld` are errors of
/// regatta's own ranks: the failure report has that of the first, which the others are a consequence of
/// or repeat.
pub fn print_result(
    result: &RunResult,
    folder: &Path,
    caller_prints_run_dir: bool,
    withheld: &str,
) {
    let notes = result.notes.iter().map(|n| format!("{WARNING}note:{WARNING:#} {n}\n"));
    let mut text: String = notes.collect();
    let mut last_lines = result.failure.as_ref().map_or(&[][..], |failure| &failure.last_lines);
    match last_lines.iter().rposition(|line| output::is_error(line)) {
        // The lines before have been shown.
        Some(error) if !withheld.is_empty() => last_lines = &last_lines[error..],
        _ => text.insert_str(0, withheld),
    }
    if result.is_stopped_early() && !caller_prints_run_dir {
        text.push_str(&format!("{WARNING}{}{WARNING:#}\n", result.reason));
        text.push_str(&format!("{FAINT}run folder: {}{FAINT:#}\n", folder.display()));
    } else if result.exit_code != 0 && !result.is_stopped_early() {
        text.push_str(&stalled(&result.collectives));
        text.push_str(&format!("{ERROR}{}{ERROR:#}\n", result.reason));
        if let Some(failure) = &result.failure {
            for line in last_lines {
                text.push_str(&format!("  | {}\n", Stream::Stderr.sanitized(line)));
            }
            text.push_str(&states(&failure.other_ranks));
        } else {
            text.push_str(&result.hang.as_ref().map_or_else(String::new, states));
        }
        let mut logs = folder.join(run_folder::LOG);
        logs.extend(run_folder::attempt_folder(result.restarts));
        text.push_str(&format!("  logs: {}\n", logs.display()));
    } else if !caller_prints_run_dir {
        text.push_str(&format!("{FAINT}run folder: {}{FAINT:#}\n", folder.display()));
    }
    output::eprint(&text);
}

/// Which ranks the others waited for, before the consequence that ended the job.
fn stalled(operations: &[StalledOperation]) -> String {
    let (consequences, causes): (Vec<_>, Vec<_>) =
        operations.iter().partition(|operation| operation.is_consequence);
    let lines = causes.iter().take(MAX_CAUSES).map(|operation| {
        let message = Stream::Stderr.sanitized(&operation.message);
        format!("{ERROR}{message}{ERROR:#}\n")
    });
    let mut text: String = lines.collect();
    let others = consequences.len() + causes.len().saturating_sub(MAX_CAUSES);
    if others > 0 {
        let operations = pluralize(others, "further operation");
        text.push_str(&format!("  {operations} did not complete: see {}\n", run_folder::RESULT));
    }
    text
}

/// The states of ranks, one line per state.
fn states(ranks: &BTreeMap<u32, String>) -> String {
    let mut by_state: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for (rank, state) in ranks {
        by_state.entry(state).or_default().insert(*rank as usize);
    }
    let line = |(state, ranks): (&&str, &CpuSet)| {
        let (noun, was) = if ranks.len() == 1 { ("rank", "was") } else { ("ranks", "were") };
        format!("  {noun} {ranks} {} {state}\n", if *state == "exited" { "had" } else { was })
    };
    by_state.iter().map(line).collect()
}

/// When the job is restarted.
fn restarting(restart: u32, max: u32, delay: Duration) -> String {
    let delay = match delay.as_secs() {
        0 => String::new(),
        seconds => format!(" in {seconds} s"),
    };
    format!("restarting all ranks{delay}: restart {restart} of {max}\n")
}

/// Which nodes are replaced or dropped, or why the job is not restarted.
pub fn nodes_changed(update: &PoolUpdate, hosts: &[String]) -> String {
    let name = |node: &usize| hosts.get(*node).map_or("?", String::as_str);
    let change_line = |change: &NodeChange| match change {
        NodeChange::Replaced { failed, spare } => {
            format!("{} failed: replaced by spare {}\n", name(failed), name(spare))
        }
        NodeChange::Dropped { failed } => {
            format!("{} failed: continuing without it\n", name(failed))
        }
    };
    match update {
        PoolUpdate::Unchanged => String::new(),
        PoolUpdate::GiveUp(why) => format!("{ERROR}not restarting: {why}{ERROR:#}\n"),
        PoolUpdate::Changed(changes) => changes.iter().map(change_line).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_of_a_signal_says_what_happens_next() {
        let notice = |signal, killing| {
            let text = signal_notice(signal, killing, 4, Duration::from_secs(30));
            anstream::adapter::strip_str(&text).to_string()
        };
        let first = "SIGINT: forwarded to 4 ranks, waiting up to 30 s for them to exit; Ctrl-C again \
                     kills them\n";
        assert_eq!(notice(libc::SIGINT, false), first);
        assert_eq!(notice(libc::SIGINT, true), "SIGINT: killing 4 ranks\n");
        assert!(notice(libc::SIGHUP, false).contains("; a second signal kills them"));
    }
}
