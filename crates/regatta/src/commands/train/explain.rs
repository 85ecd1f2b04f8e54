//! `regatta train --explain`: estimates memory, traffic and pipeline schedule without training.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use regatta_model::CpuSet;
use regatta_model::units::format_si_unit;
use regatta_predict::axis::Axis;
use regatta_predict::explain::{ExplainedRank, Explanation, RankClass};
use regatta_predict::pipeline::{Timeline, draw};
use regatta_train::config::Resolved;
use regatta_train::config::{explain, implied_ranks};

use super::args::TrainArgs;
use super::format::format_params;
use super::listing::ASSUMED_VOCABULARY;
use crate::cli::{FAINT, HEADING};
use crate::{output, table};

/// Up to this many ranks, each one is listed; above, only their groups.
const MAX_LISTED_RANKS: usize = 16;

/// Upper bound on rows of a table.
const MAX_ROWS: usize = 64;

/// Upper bound on index ranges in a cell.
const MAX_RANGES: usize = 3;

/// Prints the estimates.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let ranks = args.ranks.ranks.map_or_else(|| implied_ranks(&resolved.config), |n| n as usize);
    let all = explain(resolved, ranks, args.ranks.ranks_per_node.map(|n| n as usize))?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&all)? + "\n",
        false => text(&all, crate::commands::map::terminal_width()),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The estimates as text.
fn text(all: &Explanation, width: usize) -> String {
    let mut text = summary(all);
    for (title, lines) in [
        ("device mesh", mesh(all)),
        ("expected memory per rank", memory(all)),
        ("expected bytes sent per rank and step", traffic(all)),
        ("expected disk I/O per rank and step", disk_io(all)),
    ] {
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{HEADING}{title}{HEADING:#}");
        lines.iter().for_each(|line| text.push_str(&(line.trim_end().to_owned() + "\n")));
    }
    if let Some(timeline) = &all.timeline {
        let bubble = 100.0 * timeline.bubble();
        let _ = writeln!(text, "\n{HEADING}pipeline schedule, bubble {bubble:.0}%{HEADING:#}");
        text.push_str(&schedule(timeline, width));
    }
    all.notes.iter().for_each(|note| {
        let _ = writeln!(text, "\nnote: {note}");
    });
    if !all.vocab_known {
        let _ = writeln!(text, "\n{FAINT}{ASSUMED_VOCABULARY}{FAINT:#}");
    }
    text
}

/// The pipeline schedule; of many stages, the first and the last.
fn schedule(timeline: &Timeline, width: usize) -> String {
    let text = draw::text(timeline, width);
    let stages = timeline.ranks.len();
    if stages <= MAX_ROWS {
        return text;
    }
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) = (&lines[..MAX_ROWS / 2], &lines[stages - MAX_ROWS / 2..]);
    let omitted = format!("... {} stages omitted ...", stages - MAX_ROWS);
    let shown = first.iter().copied().chain([omitted.as_str()]).chain(last.iter().copied());
    shown.collect::<Vec<_>>().join("\n") + "\n"
}

fn summary(all: &Explanation) -> String {
    let (split, step) = (&all.mesh, &all.step);
    let tilde = if all.vocab_known { "" } else { "~" };
    let parameters = format_params(all.parameters as f64);
    let mut axes = format!("dp {} x cp {} x tp {} x pp {}", split.dp, split.cp, split.tp, split.pp);
    if split.sequence_parallel {
        axes.push_str(", sequence parallel");
    }
    if split.zero > 0 && split.shard > 1 {
        let _ = write!(axes, ", ZeRO-{} over {} ranks", split.zero, split.shard);
    }
    if split.tiles > 1 {
        let _ = write!(axes, ", {} weight tiles", split.tiles);
    }
    format!(
        "{HEADING}model{HEADING:#}  {}, {tilde}{parameters} parameters\n\
         {HEADING}ranks{HEADING:#}  {}: {axes}\n\
         {HEADING}step{HEADING:#}   {} sequences of {} tokens, {} per replica, micro-batch {}\n",
        all.model,
        all.ranks.len(),
        step.batch,
        step.seq_len,
        step.batch_per_replica,
        step.micro_batch
    )
}

/// The mesh coordinates of each rank, or of many ranks the groups and stages.
fn mesh(all: &Explanation) -> Vec<String> {
    if all.ranks.len() > MAX_LISTED_RANKS {
        let mut lines = groups(all);
        lines.push(String::new());
        lines.extend(stages(all));
        return lines;
    }
    let row = |rank: &ExplainedRank| {
        let host = rank.host.clone().unwrap_or_default();
        let coordinates = [rank.rank, rank.dp, rank.cp, rank.tp, rank.pp].map(|n| n.to_string());
        let [index, dp, cp, tp, pp] = coordinates;
        vec![index, host, dp, cp, tp, pp, blocks(&all.rank_classes[rank.class].blocks)]
    };
    let rows: Vec<_> = all.ranks.iter().map(row).collect();
    table_without_empty_columns(&["rank", "host", "dp", "cp", "tp", "pp", "blocks"], &rows)
}

/// The process groups of rank 0. Those of other ranks have the same strides.
fn groups(all: &Explanation) -> Vec<String> {
    let axes = [("tensor", "weights"), ("context", "sequence"), ("data", "batch")];
    let axes = axes.into_iter().chain([("pipeline", "layers")]).enumerate();
    let row = |(axis, (name, splits)): (usize, (&str, &str))| {
        let in_group = |rank: &&ExplainedRank| {
            let coordinates = [rank.tp, rank.cp, rank.dp, rank.pp];
            coordinates.iter().enumerate().all(|(other, index)| other == axis || *index == 0)
        };
        let ranks: Vec<usize> = all.ranks.iter().filter(in_group).map(|rank| rank.rank).collect();
        (ranks.len() > 1).then(|| {
            let size = ranks.len().to_string();
            vec![name.to_owned(), splits.to_owned(), size, short_ranges(&ranks)]
        })
    };
    let mut rows: Vec<Vec<String>> = axes.filter_map(row).collect();
    if let Some(host) = &all.ranks[0].host {
        let local = all.ranks.iter().filter(|rank| rank.host.as_ref() == Some(host));
        let ranks: Vec<usize> = local.map(|rank| rank.rank).collect();
        let size = ranks.len().to_string();
        rows.push(vec![host.clone(), "-".to_owned(), size, short_ranges(&ranks)]);
    }
    table::table(&["group", "splits", "size", "ranks in rank 0's group"], &rows)
}

/// Ranks and blocks of each pipeline stage.
fn stages(all: &Explanation) -> Vec<String> {
    let stage_size = all.ranks.len() / all.mesh.pp;
    let row = |ranks: &[ExplainedRank]| {
        let first = &ranks[0];
        let indices = ranges(ranks.iter().map(|rank| rank.rank).collect());
        vec![first.pp.to_string(), indices, blocks(&all.rank_classes[first.class].blocks)]
    };
    let rows: Vec<_> = all.ranks.chunks(stage_size.max(1)).map(row).collect();
    truncated_table(&["stage", "ranks", "blocks"], &rows)
}

fn memory(all: &Explanation) -> Vec<String> {
    let row = |kind: &RankClass| {
        let each = kind.memory.iter().map(|memory| memory.expected);
        let total = each.clone().sum();
        each.chain([total]).map(bytes).collect()
    };
    let names = all.rank_classes[0].memory.iter().map(|memory| memory.what.as_str());
    let header: Vec<&str> = ["ranks"].into_iter().chain(names).chain(["total"]).collect();
    truncated_table(&header, &grouped_rows(all, row))
}

fn traffic(all: &Explanation) -> Vec<String> {
    let sent = || all.rank_classes.iter().flat_map(|kind| &kind.sent);
    let is_used = |name: &&str| sent().any(|sent| sent.axis == *name);
    let axes: Vec<&str> = Axis::ALL.iter().map(|axis| axis.name()).filter(is_used).collect();
    let row = |kind: &RankClass| {
        let on = |name: &&str| kind.sent.iter().find(|sent| sent.axis == *name);
        let each = axes.iter().map(|name| on(name).map_or(0, |sent| sent.expected));
        let total = kind.sent.iter().map(|sent| sent.expected).sum();
        each.chain([total]).map(bytes).collect()
    };
    let header: Vec<&str> = ["ranks"].into_iter().chain(axes.clone()).chain(["total"]).collect();
    truncated_table(&header, &grouped_rows(all, row))
}

/// A table of at most [`MAX_ROWS`] rows.
fn truncated_table(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let shown = rows.len().min(MAX_ROWS);
    let mut lines = table::table(header, &rows[..shown]);
    if rows.len() > shown {
        lines.push(format!("... and {} more rows; --json prints all", rows.len() - shown));
    }
    lines
}

/// Empty without offloading to disk.
fn disk_io(all: &Explanation) -> Vec<String> {
    if all.rank_classes.iter().all(|kind| kind.disk_io.is_empty()) {
        return Vec::new();
    }
    let row = |kind: &RankClass| {
        let find = |what: &str| kind.disk_io.iter().find(|moved| moved.what == what);
        let each = ["read", "written"].map(|what| find(what).map_or(0, |moved| moved.expected));
        each.map(bytes).into()
    };
    truncated_table(&["ranks", "read", "written"], &grouped_rows(all, row))
}

/// One row per group of ranks with the same values.
fn grouped_rows(all: &Explanation, row: impl Fn(&RankClass) -> Vec<String>) -> Vec<Vec<String>> {
    let mut rows: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    let row_index = |kind: &RankClass| {
        let values = row(kind);
        rows.iter().position(|(_, row)| *row == values).unwrap_or_else(|| {
            rows.push((Vec::new(), values));
            rows.len() - 1
        })
    };
    let row_of_kind: Vec<usize> = all.rank_classes.iter().map(row_index).collect();
    all.ranks.iter().for_each(|rank| rows[row_of_kind[rank.class]].0.push(rank.rank));
    // Kinds are ordered by tensor-parallel index, rows by rank.
    rows.sort_by_key(|(ranks, _)| ranks.first().copied());
    let labelled = |(ranks, mut row): (Vec<usize>, Vec<String>)| {
        row.insert(0, label(all, &ranks));
        row
    };
    rows.into_iter().map(labelled).collect()
}

/// A set of ranks as index ranges, if these are few, or by common mesh coordinates, as in
/// `stage 0-3, tp 1`.
fn label(all: &Explanation, ranks: &[usize]) -> String {
    let split = &all.mesh;
    let sizes = [("stage", split.pp), ("dp", split.dp), ("cp", split.cp), ("tp", split.tp)];
    let coordinate = |rank: usize, axis: usize| {
        let ExplainedRank { pp, dp, cp, tp, .. } = all.ranks[rank];
        [pp, dp, cp, tp][axis]
    };
    let indices = ranges(ranks.to_vec());
    if indices.matches(',').count() < MAX_RANGES {
        return indices;
    }
    let (mut words, mut product) = (Vec::new(), 1);
    for (axis, (name, size)) in sizes.into_iter().enumerate() {
        let values: BTreeSet<usize> = ranks.iter().map(|rank| coordinate(*rank, axis)).collect();
        product *= values.len();
        if values.len() < size {
            let values: Vec<usize> = values.into_iter().collect();
            words.push(format!("{name} {}", short_ranges(&values)));
        }
    }
    if product == ranks.len() { words.join(", ") } else { short_ranges(ranks) }
}

/// [`ranges`], truncated: `0,16,32,…`.
fn short_ranges(indices: &[usize]) -> String {
    let all = ranges(indices.to_vec());
    match all.match_indices(',').nth(MAX_RANGES - 1) {
        Some((end, _)) => format!("{},…", &all[..end]),
        None => all,
    }
}

/// `0-2,5`.
fn ranges(indices: Vec<usize>) -> String {
    indices.into_iter().collect::<CpuSet>().to_string()
}

/// `embed, layers 0-5`.
fn blocks(names: &[String]) -> String {
    let index = |name: &String| name.strip_prefix("layer.").and_then(|n| n.parse::<usize>().ok());
    let layers: Vec<usize> = names.iter().filter_map(index).collect();
    let mut words: Vec<String> = Vec::new();
    for name in names {
        match index(name) {
            None => words.push(name.clone()),
            Some(first) if layers.first() == Some(&first) => {
                let noun = if layers.len() > 1 { "layers" } else { "layer" };
                words.push(format!("{noun} {}", ranges(layers.clone())));
            }
            Some(_) => {}
        }
    }
    words.join(", ")
}

fn bytes(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format_si_unit(bytes as f64, "B") }
}

/// A table without its empty columns.
fn table_without_empty_columns(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
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

    fn explain_text(words: &str, ranks: usize, per_host: Option<usize>) -> String {
        let words: Vec<&str> = words.split_whitespace().collect();
        let all = explain(&resolve(None, &words).unwrap(), ranks, per_host).unwrap();
        anstream::adapter::strip_str(&text(&all, 80)).to_string()
    }

    #[test]
    fn few_ranks_are_listed_with_coordinates_memory_and_traffic() {
        let model = "num_layers=4 num_heads=4 hidden_size=64 seq_len=64 batch=16 vocab_size=65";
        let text = explain_text(&format!("{model} tp=2 pp=2 zero=1"), 8, Some(4));
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert_eq!(
            line("ranks"),
            "ranks  8: dp 2 x cp 1 x tp 2 x pp 2, sequence parallel, ZeRO-1 over 2 ranks"
        );
        assert!(
            text.contains("\nstep   16 sequences of 64 tokens, 8 per replica, micro-batch 2\n"),
            "{text}"
        );
        assert!(text.contains("\n   7  node 1   1   0   1   1  "), "{text}");
        assert!(
            text.contains("\nranks  parameters  gradients  optimizer  activations  workspace"),
            "{text}"
        );
        assert!(text.contains("\nranks  tensor "), "{text}");
        assert!(text.contains("\nstage 0 F"), "{text}");
        assert!(!text.contains("note:") && !text.contains('~'), "{text}");
    }

    #[test]
    fn ranks_with_the_same_values_share_a_row() {
        let text = explain_text("batch_per_replica=4", 100, None);
        assert!(text.contains("\n0-99   "), "{text}");
        assert!(text.contains("~ assumes a vocabulary of 65 characters"), "{text}");
        assert!(
            explain_text("tp=2 batch=4", 4, Some(1))
                .contains("note: tensor-parallel ranks 0-1 span hosts ")
        );
    }

    #[test]
    fn thousands_of_ranks_are_listed_by_group() {
        let model = "num_layers=16 num_heads=8 hidden_size=64 seq_len=64 batch_per_replica=32 vocab_size=65";
        let text = explain_text(&format!("{model} tp=8 pp=16 zero=1"), 8192, Some(8));
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        let lines = text.lines().count();
        assert!(lines < 100 && widest <= 120, "{lines} lines, {widest} wide:\n{text}");
        for part in [
            "\ntensor    weights     8  0-7\n",
            "\ndata      batch      64  0,8,16,…\n",
            "\npipeline  layers     16  0,512,1024,…\n",
            "\nnode 0    -           8  0-7\n",
            "\n   15  7680-8191  ",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        // The vocabulary of 65 does not divide evenly: the last tensor-parallel rank has one more row.
        assert!(text.contains("stage 0, tp 7"), "{text}");
    }

    #[test]
    fn consecutive_layers_are_abbreviated() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = names(&["embed", "layer.0", "layer.1", "layer.4", "head"]);
        assert_eq!(blocks(&all), "embed, layers 0-1,4, head");
        assert_eq!(blocks(&names(&["layer.3"])), "layer 3");
    }
}
