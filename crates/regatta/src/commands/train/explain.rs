//! `regatta train --explain`: what a split would cost, without training.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use regatta_model::CpuSet;
use regatta_train::config::Resolved;
use regatta_train::explain::{Explanation, Rank, explain, ranks_asked};
use regatta_train::offload::Moved;
use regatta_train::parallel::pipeline::draw;

use super::args::TrainArgs;
use super::figures;
use crate::cli::{FAINT, HEADING};
use crate::{output, table};

/// Ranks that are listed one by one.
const LISTED: usize = 64;

/// Prints what each rank would hold and send.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let ranks = args.ranks.ranks.map_or_else(|| ranks_asked(&resolved.config), |n| n as usize);
    let all = explain(resolved, ranks, args.ranks.ranks_per_node.map(|n| n as usize))?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&all)? + "\n",
        false => text(&all, crate::commands::map::width()),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The explanation for people.
fn text(all: &Explanation, width: usize) -> String {
    let mut text = summary(all);
    for (title, lines) in [
        ("who sits where", seats(all)),
        ("what a rank holds, expected", holds(all)),
        ("what a rank sends in a step, expected", sends(all)),
        ("what a rank reads from disk and writes there in a step, expected", moves(all)),
    ] {
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{HEADING}{title}{HEADING:#}");
        lines.iter().for_each(|line| text.push_str(&(line.trim_end().to_owned() + "\n")));
    }
    if let Some(timeline) = &all.timeline {
        let bubble = 100.0 * timeline.bubble();
        let title = format!("what stages do when; waiting makes a step {bubble:.0} % longer");
        let _ = writeln!(text, "\n{HEADING}{title}{HEADING:#}");
        text.push_str(&draw::text(timeline, width));
    }
    all.notes.iter().for_each(|note| {
        let _ = writeln!(text, "\nnote: {note}");
    });
    if !all.is_certain {
        let note = "counted with 65 characters: the vocabulary comes from the data";
        let _ = writeln!(text, "\n{FAINT}~ {note}{FAINT:#}");
    }
    text
}

fn summary(all: &Explanation) -> String {
    let (split, step) = (&all.split, &all.step);
    let about = if all.is_certain { "" } else { "~" };
    let parameters = figures::parameters(all.parameters as f64);
    let mut axes = format!("dp {} x cp {} x tp {} x pp {}", split.dp, split.cp, split.tp, split.pp);
    if split.sequence {
        axes.push_str(", tokens shared in the tensor group");
    }
    if split.zero > 0 {
        let _ = write!(axes, ", zero {} among {}", split.zero, split.shard);
    }
    format!(
        "{HEADING}model{HEADING:#}  {}, {about}{parameters} parameters\n\
         {HEADING}ranks{HEADING:#}  {}: {axes}\n\
         {HEADING}step{HEADING:#}   {} sequences of {} tokens; {} for each copy of the model, {} at \
         a time\n",
        all.model,
        all.ranks.len(),
        step.batch,
        step.context,
        step.share,
        step.micro_batch
    )
}

fn seats(all: &Explanation) -> Vec<String> {
    let row = |rank: &Rank| {
        let host = rank.host.clone().unwrap_or_default();
        let seat = [rank.rank, rank.dp, rank.cp, rank.tp, rank.pp].map(|n| n.to_string());
        let [number, dp, cp, tp, pp] = seat;
        vec![number, host, dp, cp, tp, pp, blocks(&rank.blocks)]
    };
    let rows: Vec<_> = all.ranks.iter().take(LISTED).map(row).collect();
    let header = ["rank", "host", "dp", "cp", "tp", "pp", "blocks"];
    let mut lines = without_empty(&header, &rows);
    if let Some(more) = all.ranks.len().checked_sub(LISTED).filter(|more| *more > 0) {
        lines.push(format!("and {more} more: --json has all"));
    }
    lines
}

fn holds(all: &Explanation) -> Vec<String> {
    let row = |rank: &Rank| {
        let holds = &rank.holds;
        let parts = [holds.parameters, holds.gradients, holds.optimizer, holds.activations];
        parts.into_iter().chain([holds.working, holds.total]).map(bytes).collect()
    };
    let header =
        ["ranks", "parameters", "gradients", "optimizer", "activations", "working", "total"];
    table::table(&header, &alike(all, row))
}

fn sends(all: &Explanation) -> Vec<String> {
    let mut axes: Vec<&str> = Vec::new();
    for (axis, _) in all.ranks.iter().flat_map(|rank| &rank.sends) {
        if !axes.contains(axis) {
            axes.push(axis);
        }
    }
    let row = |rank: &Rank| {
        let on = |name: &&str| rank.sends.iter().find(|(axis, _)| axis == name);
        let each = axes.iter().map(|name| on(name).map_or(0, |(_, bytes)| *bytes));
        let total = rank.sends.iter().map(|(_, bytes)| bytes).sum();
        each.chain([total]).map(bytes).collect()
    };
    let rows = alike(all, row);
    let mut header = vec!["ranks"];
    header.extend(&axes);
    header.push("total");
    table::table(&header, &rows)
}

/// Nothing, if nothing is on disk.
fn moves(all: &Explanation) -> Vec<String> {
    if all.ranks.iter().all(|rank| rank.moves == Moved::default()) {
        return Vec::new();
    }
    let row = |rank: &Rank| [rank.moves.read, rank.moves.written].map(bytes).into();
    table::table(&["ranks", "read", "written"], &alike(all, row))
}

/// Rows of figures, one for all ranks that have the same.
fn alike(all: &Explanation, row: impl Fn(&Rank) -> Vec<String>) -> Vec<Vec<String>> {
    let mut rows: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    for rank in &all.ranks {
        let own = row(rank);
        match rows.iter_mut().find(|(_, row)| *row == own) {
            Some((ranks, _)) => ranks.push(rank.rank),
            None => rows.push((vec![rank.rank], own)),
        }
    }
    let named = |(ranks, mut row): (Vec<usize>, Vec<String>)| {
        row.insert(0, ranges(ranks));
        row
    };
    rows.into_iter().map(named).collect()
}

/// `0-2,5`.
fn ranges(numbers: Vec<usize>) -> String {
    numbers.into_iter().collect::<CpuSet>().to_string()
}

/// `embed, layers 0-5`.
fn blocks(names: &[String]) -> String {
    let number = |name: &String| name.strip_prefix("layer.").and_then(|n| n.parse::<usize>().ok());
    let layers: Vec<usize> = names.iter().filter_map(number).collect();
    let mut words: Vec<String> = Vec::new();
    for name in names {
        match number(name) {
            None => words.push(name.clone()),
            Some(first) if layers.first() == Some(&first) => {
                let several = if layers.len() > 1 { "layers" } else { "layer" };
                words.push(format!("{several} {}", ranges(layers.clone())));
            }
            Some(_) => {}
        }
    }
    words.join(", ")
}

fn bytes(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { figures::with_unit(bytes as f64, "B") }
}

/// A table without the columns in which nothing is.
fn without_empty(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let is_used = |column: &usize| rows.iter().any(|row| !row[*column].is_empty());
    let used: Vec<usize> = (0..header.len()).filter(is_used).collect();
    let header: Vec<&str> = used.iter().map(|column| header[*column]).collect();
    let pick = |row: &Vec<String>| used.iter().map(|column| row[*column].clone()).collect();
    table::table(&header, &rows.iter().map(pick).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use regatta_train::config::resolve;

    use super::*;

    fn shown(words: &str, ranks: usize, per_host: Option<usize>) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        let all = explain(&resolve(None, &words).unwrap(), ranks, per_host).unwrap();
        anstream::adapter::strip_str(&text(&all, 80)).to_string()
    }

    #[test]
    fn every_rank_is_shown_with_its_seat_and_figures() {
        let model = "layers=4 heads=4 width=64 context=64 batch=16 vocabulary=65";
        let text = shown(&format!("{model} tp=2 pp=2 zero=1"), 8, Some(4));
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert_eq!(
            line("ranks"),
            "ranks  8: dp 2 x cp 1 x tp 2 x pp 2, tokens shared in the tensor group, zero 1 among 2"
        );
        assert!(
            text.contains(
                "\nstep   16 sequences of 64 tokens; 8 for each copy of the model, 2 at a time\n"
            ),
            "{text}"
        );
        assert!(text.contains("\n   7  node 1   1   0   1   1  "), "{text}");
        assert!(
            text.contains("\nranks  parameters  gradients  optimizer  activations  working"),
            "{text}"
        );
        assert!(text.contains("\nranks  tensor "), "{text}");
        assert!(text.contains("\nstage 0 F"), "{text}");
        assert!(!text.contains("note:") && !text.contains('~'), "{text}");
    }

    #[test]
    fn ranks_that_are_alike_have_one_row() {
        let text = shown("batch_per_rank=4", 100, None);
        assert!(text.contains("\nand 36 more: --json has all\n"), "{text}");
        assert!(text.contains("\n0-99  "), "{text}");
        assert!(text.contains("~ counted with 65 characters"), "{text}");
        assert!(shown("tp=2 batch=4", 4, Some(1)).contains("note: ranks 0-1 share matrices"));
    }

    #[test]
    fn blocks_are_named_shortly() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = names(&["embed", "layer.0", "layer.1", "layer.4", "head"]);
        assert_eq!(blocks(&all), "embed, layers 0-1,4, head");
        assert_eq!(blocks(&names(&["layer.3"])), "layer 3");
    }
}
