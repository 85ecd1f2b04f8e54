//! What a launch tells people, and what it leaves in the run folder.

use std::collections::BTreeMap;

use anyhow::Result;
use regatta_launch::folder::RunFolder;
use regatta_launch::roster::{Change, Verdict};
use regatta_model::result::RunResult;
use regatta_model::{CpuSet, document};

use super::ranks::Planned;
use crate::cli::{ERROR, FAINT, HEADING, WARNING};
use crate::output;
use crate::shell::quote;

/// What the stages after this one read.
pub fn record(folder: &RunFolder, planned: &Planned) -> Result<()> {
    let plan = &planned.plan;
    folder.write("machine.json", &document::to_json(&plan.machines[0])?)?;
    for (i, machine) in plan.machines.iter().enumerate().skip(1) {
        folder.write(&format!("machine-{i}.json"), &document::to_json(machine)?)?;
    }
    folder.write("placement.json", &document::to_json(&plan.placement)?)?;
    let environment = planned.environment();
    folder.write("environment.json", &serde_json::to_string_pretty(&environment)?)?;
    Ok(())
}

/// What would be started, rank by rank.
pub fn described(planned: &Planned) -> String {
    let mut text = String::new();
    for rank in &planned.ranks {
        let Some((_, node, placed)) = planned.plan.placement.find(rank.spec.rank) else { continue };
        let words = rank.spec.command.iter().map(|w| quote(&w.to_string_lossy()));
        let words: Vec<String> = words.collect();
        text.push_str(&format!("{HEADING}rank {} on {}{HEADING:#}\n", rank.spec.rank, node.host));
        text.push_str(&format!("  runs     {}\n", words.join(" ")));
        let line = |name: &str, what: &str, why: &str| {
            format!("  {name:<8} {what}  {FAINT}{why}{FAINT:#}\n")
        };
        text.push_str(&line("cpus", &placed.cpus.to_string(), &placed.reasons.cpus));
        text.push_str(&line("memory", &format!("{:?}", placed.memory), &placed.reasons.memory));
        for env in &rank.lines {
            let value = env.value.as_deref().map_or("(unset)".to_owned(), quote);
            text.push_str(&line("sets", &format!("{}={value}", env.variable), &env.why));
        }
    }
    text
}

/// How it ended, for people: the first failure with its last lines, and what the others did. Where
/// a good end is kept need not be said if somebody else `named` it.
pub fn conclude(result: &RunResult, folder: &RunFolder, named: bool) {
    let notes = result.notes.iter().map(|n| format!("{WARNING}note:{WARNING:#} {n}\n"));
    let mut text: String = notes.collect();
    if result.code == 0 {
        if !named {
            text.push_str(&format!("{FAINT}run folder: {}{FAINT:#}\n", folder.path().display()));
        }
        output::complain(&text);
        return;
    }
    text.push_str(&format!("{ERROR}{}{ERROR:#}\n", result.reason));
    if let Some(failure) = &result.failure {
        failure.last_lines.iter().for_each(|line| text.push_str(&format!("  | {line}\n")));
        text.push_str(&states(&failure.others));
    } else {
        text.push_str(&result.hang.as_ref().map_or_else(String::new, states));
    }
    text.push_str(&format!("  logs: {}\n", folder.path().join("log").display()));
    output::complain(&text);
}

/// What ranks were doing, those that did the same in one line.
fn states(ranks: &BTreeMap<u32, String>) -> String {
    let mut doing: BTreeMap<&str, CpuSet> = BTreeMap::new();
    for (rank, what) in ranks {
        doing.entry(what).or_default().insert(*rank as usize);
    }
    doing.iter().map(|(what, ranks)| format!("  rank {ranks} was {what}\n")).collect()
}

/// Which nodes the job goes on with, if that changes.
pub fn verdict(verdict: &Verdict, hosts: &[String]) {
    let name = |node: &usize| hosts.get(*node).map_or("?", String::as_str);
    let text = match verdict {
        Verdict::Same => return,
        Verdict::GiveUp(why) => format!("{ERROR}not started anew: {why}{ERROR:#}\n"),
        Verdict::Changed(changes) => changes
            .iter()
            .map(|change| match change {
                Change::Replaced { bad, by } => {
                    format!("{} is bad: {} takes its place\n", name(bad), name(by))
                }
                Change::Dropped { bad } => format!("{} is bad: going on without\n", name(bad)),
            })
            .collect(),
    };
    output::complain(&text);
}
