//! `regatta train --explain`: estimates memory, traffic and pipeline schedule without training.

use std::fmt::Write;

use anyhow::Result;
use regatta_draw::table;
use regatta_model::CpuSet;
use regatta_model::rank_bytes::PeakBytes;
use regatta_model::units::{format_memory, format_params, format_si_unit, pluralize};
use regatta_predict::axis::Axis;
use regatta_predict::explain::{ExplainedRank, Explanation, RankClass};
use regatta_predict::pipeline::{Timeline, draw};
use regatta_train::config::{CHAR_VOCAB_SIZE, Config, DeviceKind, Resolved, explain};
use regatta_train::training::gpu_micro_batch;

use super::listing::ASSUMED_VOCABULARY;
use super::{parent, preflight};
use crate::args::train::TrainArgs;
use crate::cli::{FAINT, HEADING};
use crate::commands::compute_device;
use crate::output;

/// Up to this many ranks, each one is listed; above, only their groups.
const MAX_LISTED_RANKS: usize = 16;

/// Upper bound on rows of a table.
const MAX_ROWS: usize = 64;

/// Upper bound on index ranges in a cell.
const MAX_RANGES: usize = 3;

/// Prints the estimates.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<()> {
    let ranks = parent::planned_ranks(&resolved.config, args)?;
    let mut resolved = resolved.clone();
    // The device and the precision of a run on this machine.
    compute_device::resolve_here(&mut resolved.config);
    if resolved.config.model.vocab_size == 0 {
        match preflight::measure_data(&resolved.config) {
            Ok((vocab_size, _)) => resolved.config.model.vocab_size = vocab_size,
            Err(error) => output::note(&format!("the vocabulary is not known: {error:#}")),
        }
    }
    let note = choose_micro_batch(&mut resolved.config, ranks, args)?;
    note.iter().for_each(|note| output::note(note));
    let all = explain(&resolved, ranks, args.ranks.counts.ranks_per_node.map(|n| n as usize))?;
    let to_text = || text(&all, crate::commands::map::terminal_width());
    output::print_report(args.json, || output::json_lines(&all), to_text)
}

/// Chooses the micro-batch size for the GPUs of this machine, as if they were idle.
fn choose_micro_batch(
    config: &mut Config,
    ranks: usize,
    args: &TrainArgs,
) -> Result<Option<String>> {
    let vocab_size = match config.model.vocab_size {
        0 => CHAR_VOCAB_SIZE,
        known => known,
    };
    let memory = match config.train.device {
        Some(DeviceKind::Gpu) => parent::gpu_memory(config, args)?,
        Some(DeviceKind::Cpu) | None => None,
    };
    Ok(gpu_micro_batch::resolve_planned(config, ranks, vocab_size, memory)?)
}

/// The estimates as text.
fn text(all: &Explanation, width: usize) -> String {
    let mut text = summary(all);
    for (title, lines) in [
        ("device mesh", mesh(all)),
        ("expected memory per rank", memory(all, |class| &class.memory)),
        ("expected host memory per rank", memory(all, |class| &class.host_memory)),
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
        let idle = 100.0 * timeline.idle_overall();
        let title = format!("pipeline schedule, stages idle {idle:.0}% of the step (bubble)");
        let _ = writeln!(text, "\n{HEADING}{title}{HEADING:#}");
        text.push_str(&schedule(timeline, width));
    }
    all.notes.iter().for_each(|note| text.push_str(&format!("\nnote: {note}\n")));
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
    let mut lines: Vec<&str> = text.lines().collect();
    let omitted = format!("... {} stages omitted ...", stages - MAX_ROWS);
    lines.splice(MAX_ROWS / 2..stages - MAX_ROWS / 2, [omitted.as_str()]);
    lines.join("\n") + "\n"
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
         {HEADING}step{HEADING:#}   {} of {} tokens, {} per replica, micro-batch {}{}\n",
        all.model,
        all.ranks.len(),
        pluralize(step.batch, "sequence"),
        step.seq_len,
        step.batch_per_replica,
        step.micro_batch,
        if step.micro_batch_auto { " (auto)" } else { "" }
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
    let has_hosts = all.ranks.iter().any(|rank| rank.host.is_some());
    let row = |rank: &ExplainedRank| {
        let coordinates = [rank.dp, rank.cp, rank.tp, rank.pp].map(|n| n.to_string());
        let host = has_hosts.then(|| rank.host.clone().unwrap_or_default());
        let names = [rank.rank.to_string()].into_iter().chain(host);
        names.chain(coordinates).chain([blocks(&all.rank_classes[rank.class].blocks)]).collect()
    };
    let rows: Vec<_> = all.ranks.iter().map(row).collect();
    let header = ["rank", "host", "dp", "cp", "tp", "pp", "blocks"].into_iter();
    let header: Vec<_> = header.filter(|name| has_hosts || *name != "host").collect();
    table::table(&header, &rows)
}

/// The process groups of rank 0. Those of other ranks have the same strides.
fn groups(all: &Explanation) -> Vec<String> {
    let row = |name: &str, splits: &str, in_group: &dyn Fn(&ExplainedRank) -> bool| {
        let group = all.ranks.iter().filter(|rank| in_group(rank));
        let ranks: Vec<usize> = group.map(|rank| rank.rank).collect();
        let size = ranks.len().to_string();
        vec![name.to_owned(), splits.to_owned(), size, short_ranges(&ranks)]
    };
    let mut rows = vec![
        row("tensor", "weights", &|r| r.cp + r.dp + r.pp == 0),
        row("context", "sequence", &|r| r.tp + r.dp + r.pp == 0),
        row("data", "batch", &|r| r.tp + r.cp + r.pp == 0),
        row("pipeline", "layers", &|r| r.tp + r.cp + r.dp == 0),
    ];
    rows.retain(|row| row[2] != "1");
    if let Some(host) = &all.ranks[0].host {
        rows.push(row(host, "-", &|rank| rank.host.as_ref() == Some(host)));
    }
    table::table(&["group", "splits", "size", "ranks in rank 0's group"], &rows)
}

/// Ranks and blocks of each pipeline stage.
fn stages(all: &Explanation) -> Vec<String> {
    let stage_size = all.ranks.len() / all.mesh.pp;
    let row = |ranks: &[ExplainedRank]| {
        let first = &ranks[0];
        let indices: CpuSet = ranks.iter().map(|rank| rank.rank).collect();
        let blocks = blocks(&all.rank_classes[first.class].blocks);
        vec![first.pp.to_string(), indices.to_string(), blocks]
    };
    let rows: Vec<_> = all.ranks.chunks(stage_size.max(1)).map(row).collect();
    truncated_table(&["stage", "ranks", "blocks"], &rows)
}

/// Empty if the ranks need no memory of this kind.
fn memory(all: &Explanation, of_class: fn(&RankClass) -> &[PeakBytes]) -> Vec<String> {
    let row = |class: &RankClass| of_class(class).iter().map(|memory| memory.expected).collect();
    let names: Vec<&str> =
        of_class(&all.rank_classes[0]).iter().map(|memory| memory.what.as_str()).collect();
    match names.is_empty() {
        true => Vec::new(),
        false => byte_table(all, &names, row, format_memory),
    }
}

fn traffic(all: &Explanation) -> Vec<String> {
    let sent = || all.rank_classes.iter().flat_map(|class| &class.sent);
    let is_used = |name: &&str| sent().any(|sent| sent.axis == *name);
    let axes: Vec<&str> = Axis::ALL.iter().map(|axis| axis.name()).filter(is_used).collect();
    let row = |class: &RankClass| {
        let on = |name: &&str| class.sent.iter().find(|sent| sent.axis == *name);
        axes.iter().map(|name| on(name).map_or(0, |sent| sent.expected)).collect()
    };
    byte_table(all, &axes, row, |bytes| format_si_unit(bytes as f64, "B"))
}

/// A table of the bytes of each group of ranks, with their total.
fn byte_table(
    all: &Explanation,
    names: &[&str],
    row: impl Fn(&RankClass) -> Vec<u64>,
    format: impl Fn(u64) -> String,
) -> Vec<String> {
    let cell = |bytes: u64| if bytes == 0 { "-".to_owned() } else { format(bytes) };
    let with_total = |class: &RankClass| {
        let each = row(class);
        let total = each.iter().sum();
        each.into_iter().chain([total]).map(cell).collect()
    };
    let header: Vec<&str> = [&["ranks"], names, &["total"]].concat();
    truncated_table(&header, &grouped_rows(all, with_total))
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
    if all.rank_classes.iter().all(|class| class.disk_io.is_empty()) {
        return Vec::new();
    }
    let row = |class: &RankClass| {
        let find = |what: &str| class.disk_io.iter().find(|io| io.what == what);
        ["read", "written"].map(|what| bytes(find(what).map_or(0, |io| io.expected))).into()
    };
    truncated_table(&["ranks", "read", "written"], &grouped_rows(all, row))
}

/// One row per group of ranks with the same values.
fn grouped_rows(all: &Explanation, row: impl Fn(&RankClass) -> Vec<String>) -> Vec<Vec<String>> {
    let mut rows: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    let values: Vec<Vec<String>> = all.rank_classes.iter().map(row).collect();
    for ExplainedRank { rank, class, .. } in &all.ranks {
        match rows.iter_mut().find(|(_, row)| *row == values[*class]) {
            Some((ranks, _)) => ranks.push(*rank),
            None => rows.push((vec![*rank], values[*class].clone())),
        }
    }
    let labelled = rows.into_iter().map(|(ranks, row)| [vec![label(all, &ranks)], row].concat());
    labelled.collect()
}

/// A set of ranks as index ranges, if these are few, or by common mesh coordinates, as in
/// `stage 0-3, tp 1`.
fn label(all: &Explanation, ranks: &[usize]) -> String {
    let split = &all.mesh;
    let sizes = [("stage", split.pp), ("dp", split.dp), ("cp", split.cp), ("tp", split.tp)];
    let indices = ranges(ranks);
    if indices.matches(',').count() < MAX_RANGES {
        return indices;
    }
    let (mut words, mut product) = (Vec::new(), 1);
    for (axis, (name, size)) in sizes.into_iter().enumerate() {
        let coordinates = ranks.iter().map(|rank| &all.ranks[*rank]);
        let values: CpuSet = coordinates.map(|r| [r.pp, r.dp, r.cp, r.tp][axis]).collect();
        product *= values.len();
        if values.len() < size {
            words.push(format!("{name} {}", shorten(values.to_string())));
        }
    }
    if product == ranks.len() { words.join(", ") } else { short_ranges(ranks) }
}

/// [`ranges`], truncated: `0,16,32,…`.
fn short_ranges(indices: &[usize]) -> String {
    shorten(ranges(indices))
}

fn shorten(ranges: String) -> String {
    match ranges.match_indices(',').nth(MAX_RANGES - 1) {
        Some((end, _)) => format!("{},…", &ranges[..end]),
        None => ranges,
    }
}

/// `0-2,5`.
fn ranges(indices: &[usize]) -> String {
    indices.iter().copied().collect::<CpuSet>().to_string()
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
                words.push(format!("{noun} {}", ranges(&layers)));
            }
            Some(_) => {}
        }
    }
    words.join(", ")
}

fn bytes(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format_si_unit(bytes as f64, "B") }
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
        let axes = "dp 2 x cp 1 x tp 2 x pp 2, sequence parallel, ZeRO-1 over 2 ranks";
        assert_eq!(line("ranks"), format!("ranks  8: {axes}"));
        for part in [
            "\nstep   16 sequences of 64 tokens, 8 per replica, micro-batch 2\n",
            "\n   7  node 1   1   0   1   1  ",
            "\nranks  parameters  gradients  optimizer  activations  workspace",
            "\nranks  tensor ",
            "\nstage 0 F",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("note:") && !text.contains('~'), "{text}");
    }

    #[test]
    fn a_chosen_micro_batch_is_marked() {
        let words = ["train.device=gpu", "family=gpt2", "batch=24"];
        let mut resolved = resolve(None, &words).unwrap();
        gpu_micro_batch::resolve_planned(&mut resolved.config, 2, 65, Some(80 << 30)).unwrap();
        let text = text(&explain(&resolved, 2, None).unwrap(), 80);
        assert!(text.contains("12 per replica, micro-batch 12 (auto)\n"), "{text}");
    }

    #[test]
    fn ranks_with_the_same_values_share_a_row() {
        let text = explain_text("batch_per_replica=4", 100, None);
        assert!(text.contains("\n0-99   "), "{text}");
        assert!(text.contains("~ assumes a vocabulary of 65 characters"), "{text}");
        let text = explain_text("tp=2 batch=4", 4, Some(1));
        assert!(text.contains("note: tensor-parallel ranks 0-1 span hosts "), "{text}");
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
        let all = ["embed", "layer.0", "layer.1", "layer.4", "head"].map(str::to_owned);
        assert_eq!(blocks(&all), "embed, layers 0-1,4, head");
        assert_eq!(blocks(&["layer.3".to_owned()]), "layer 3");
    }
}
