//! Messages of `regatta launch`, and the files it writes to the run folder.

use std::collections::BTreeMap;
use std::time::Duration;

use anstream::adapter::strip_str;
use anyhow::Result;
use regatta_launch::node_pool::{NodeChange, PoolUpdate};
use regatta_launch::run_folder::RunFolder;
use regatta_model::result::{RunResult, StalledOperation};
use regatta_model::run_folder::{self, machine_name};
use regatta_model::units::pluralize;
use regatta_model::{CpuSet, MemoryPolicy, document, hostlist};

use super::rank_specs::AttemptSpec;
use crate::cli::{ERROR, FAINT, HEADING, WARNING};
use crate::output::{self, Stream};
use crate::shell::{quote, quote_words};

/// Causes of a hang that are printed.
const MAX_CAUSES: usize = 8;

/// Writes machine, placement and environment to the run folder.
pub fn write_plan(folder: &RunFolder, launch: &AttemptSpec) -> Result<()> {
    let plan = &launch.job;
    for (i, machine) in plan.machines.iter().enumerate() {
        folder.write(&machine_name(i), &document::to_json(machine)?)?;
    }
    folder.write(run_folder::PLACEMENT, &document::to_json(&plan.placement)?)?;
    let environment = serde_json::to_string_pretty(&launch.environment())?;
    Ok(folder.write(run_folder::ENVIRONMENT, &environment)?)
}

/// Command, binding and environment of each rank, for `--dry-run`.
pub fn describe(plan: &AttemptSpec) -> String {
    let mut text = String::new();
    for rank in &plan.ranks {
        let Some((_, node, placed)) = plan.job.placement.find_rank(rank.spec.rank) else {
            continue;
        };
        text.push_str(&format!("{HEADING}rank {} on {}{HEADING:#}\n", rank.spec.rank, node.host));
        text.push_str(&format!("  command  {}\n", quote_words(&rank.spec.command)));
        let line = |name: &str, what: &str, why: &str| {
            format!("  {name:<8} {what}  {FAINT}{why}{FAINT:#}\n")
        };
        text.push_str(&line("cpus", &placed.cpus.to_string(), &placed.reasons.cpus));
        text.push_str(&line("memory", &memory_policy(&placed.memory), &placed.reasons.memory));
        for env in &rank.variables {
            let value = env.value.as_deref().map_or("(unset)".to_owned(), quote);
            text.push_str(&line("env", &format!("{}={value}", env.variable), &env.why));
        }
    }
    text
}

fn memory_policy(policy: &MemoryPolicy) -> String {
    let list = |nodes: &[u32]| nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    match policy {
        MemoryPolicy::Prefer(nodes) => format!("prefer NUMA {}", list(nodes)),
        MemoryPolicy::Bind(nodes) => format!("bind to NUMA {}", list(nodes)),
        MemoryPolicy::Default => "default".to_owned(),
    }
}

/// Prints what is being launched.
pub fn print_start(plan: &AttemptSpec, folder: &RunFolder) {
    let nodes = &plan.job.placement.nodes;
    let hosts: Vec<&str> = nodes.iter().map(|node| node.host.as_str()).collect();
    let ranks = pluralize(plan.ranks.len(), "rank");
    let (hosts, folder) = (hostlist::compress(&hosts), folder.path().display());
    output::eprint(&format!(
        "{FAINT}launching {ranks} on {hosts}; run folder: {folder}{FAINT:#}\n"
    ));
}

/// What a termination signal does to the ranks.
pub fn signal_notice(signal: i32, killing: bool, ranks: usize, grace: Duration) -> String {
    let name = match signal {
        libc::SIGINT => "SIGINT",
        libc::SIGHUP => "SIGHUP",
        libc::SIGQUIT => "SIGQUIT",
        _ => "SIGTERM",
    };
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

/// Whether a line is the error that ends regatta's own rank.
pub fn is_error(line: &str) -> bool {
    strip_str(line).to_string().starts_with("error: ")
}

/// Prints how the job ended: the first failure with its last lines, and the states of the other
/// ranks. After success, prints the run folder unless the caller does. `withheld` are errors of
/// regatta's own ranks: the failure report has that of the first, which the others are a consequence of
/// or repeat.
pub fn print_result(
    result: &RunResult,
    folder: &RunFolder,
    caller_prints_run_dir: bool,
    withheld: &str,
) {
    let notes = result.notes.iter().map(|n| format!("{WARNING}note:{WARNING:#} {n}\n"));
    let mut text: String = notes.collect();
    let folder = folder.path();
    let mut last_lines = result.failure.as_ref().map_or(&[][..], |failure| &failure.last_lines);
    match last_lines.iter().rposition(|line| is_error(line)) {
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
        text.push_str(&format!("  {operations} did not complete: see result.json\n"));
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

/// Prints when the job is restarted.
pub fn print_restart(restart: u32, max: u32, delay: Duration) {
    let delay = match delay.as_secs() {
        0 => String::new(),
        seconds => format!(" in {seconds} s"),
    };
    output::eprint(&format!("restarting all ranks{delay}: restart {restart} of {max}\n"));
}

/// Prints which lost nodes a restart waits for.
pub fn print_fence(nodes: &[usize], hosts: &[String], remaining: Duration) {
    let names: Vec<&str> = nodes.iter().filter_map(|&n| hosts.get(n).map(String::as_str)).collect();
    let (names, seconds) = (hostlist::compress(&names), remaining.as_secs() + 1);
    output::eprint(&format!(
        "{FAINT}waiting up to {seconds} s until the agent of {names} has killed its ranks{FAINT:#}\n"
    ));
}

/// Prints which nodes are replaced or dropped, or why the job is not restarted.
pub fn print_restart_decision(decision: &PoolUpdate, hosts: &[String]) {
    let name = |node: &usize| hosts.get(*node).map_or("?", String::as_str);
    let change_line = |change: &NodeChange| match change {
        NodeChange::Replaced { failed, spare } => {
            format!("{} failed: replaced by spare {}\n", name(failed), name(spare))
        }
        NodeChange::Dropped { failed } => {
            format!("{} failed: continuing without it\n", name(failed))
        }
    };
    match decision {
        PoolUpdate::Unchanged => {}
        PoolUpdate::GiveUp(why) => {
            output::eprint(&format!("{ERROR}not restarting: {why}{ERROR:#}\n"));
        }
        PoolUpdate::Changed(changes) => {
            output::eprint(&changes.iter().map(change_line).collect::<String>());
        }
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
