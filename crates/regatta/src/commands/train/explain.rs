//! `regatta train --explain`: what a split would cost, without training.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Result;
use regatta_model::CpuSet;
use regatta_predict::explain::{Explanation, Kind, Rank};
use regatta_predict::pipeline::{Timeline, draw};
use regatta_train::config::Resolved;
use regatta_train::config::{explain, ranks_asked};

use super::args::TrainArgs;
use super::figures;
use crate::cli::{FAINT, HEADING};
use crate::{output, table};

/// Ranks that are listed one by one; of more, their groups are.
const LISTED: usize = 16;

/// Lines of a table, at most.
const LINES: usize = 64;

/// Prints what each rank would hold and send.
pub fn run(resolved: &Resolved, args: &TrainArgs) -> Result<ExitCode> {
    let ranks = args.ranks.ranks.map_or_else(|| ranks_asked(&resolved.config), |n| n as usize);
    let all = explain(resolved, ranks, args.ranks.ranks_per_node.map(|n| n as usize))?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&all)? + "\n",
        false => text(&all, crate::commands::map::terminal_width()),
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
        text.push_str(&drawn(timeline, width));
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

/// What stages do when; of very many the first and the last.
fn drawn(timeline: &Timeline, width: usize) -> String {
    let text = draw::text(timeline, width);
    let stages = timeline.ranks.len();
    if stages <= LINES {
        return text;
    }
    let lines: Vec<&str> = text.lines().collect();
    let (first, last) = (&lines[..LINES / 2], &lines[stages - LINES / 2..]);
    let between = format!("and {} stages between", stages - LINES);
    let shown = first.iter().copied().chain([between.as_str()]).chain(last.iter().copied());
    shown.collect::<Vec<_>>().join("\n") + "\n"
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
    if split.tiles > 1 {
        let _ = write!(axes, ", matrices, table and head in {} tiles", split.tiles);
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
    if all.ranks.len() > LISTED {
        let mut lines = groups(all);
        lines.push(String::new());
        lines.extend(stages(all));
        return lines;
    }
    let row = |rank: &Rank| {
        let host = rank.host.clone().unwrap_or_default();
        let seat = [rank.rank, rank.dp, rank.cp, rank.tp, rank.pp].map(|n| n.to_string());
        let [number, dp, cp, tp, pp] = seat;
        vec![number, host, dp, cp, tp, pp, blocks(&all.kinds[rank.kind].blocks)]
    };
    let rows: Vec<_> = all.ranks.iter().map(row).collect();
    without_empty(&["rank", "host", "dp", "cp", "tp", "pp", "blocks"], &rows)
}

/// The groups of rank 0, from which one sees those of all others: they lie as far apart.
fn groups(all: &Explanation) -> Vec<String> {
    let first = |rank: &&Rank| [rank.tp, rank.cp, rank.dp, rank.pp];
    let axes = [("tensor", "matrices"), ("context", "sequences"), ("data", "the batch")];
    let axes = axes.into_iter().chain([("pipeline", "layers")]).enumerate();
    let row = |(axis, (name, what)): (usize, (&str, &str))| {
        let others = |rank: &&Rank| {
            first(rank).iter().enumerate().all(|(other, seat)| other == axis || *seat == 0)
        };
        let ranks: Vec<usize> = all.ranks.iter().filter(others).map(|rank| rank.rank).collect();
        let several = ranks.len() > 1;
        several
            .then(|| vec![name.to_owned(), what.to_owned(), ranks.len().to_string(), few(&ranks)])
    };
    let mut rows: Vec<Vec<String>> = axes.filter_map(row).collect();
    if let Some(host) = &all.ranks[0].host {
        let same = all.ranks.iter().filter(|rank| rank.host.as_ref() == Some(host));
        let ranks: Vec<usize> = same.map(|rank| rank.rank).collect();
        rows.push(vec!["host".to_owned(), host.clone(), ranks.len().to_string(), few(&ranks)]);
    }
    table::table(&["group", "shares", "ranks", "that of rank 0"], &rows)
}

/// Which blocks stages have, and who they are.
fn stages(all: &Explanation) -> Vec<String> {
    let each = all.ranks.len() / all.split.pp;
    let row = |ranks: &[Rank]| {
        let first = &ranks[0];
        let numbers = ranges(ranks.iter().map(|rank| rank.rank).collect());
        vec![first.pp.to_string(), numbers, blocks(&all.kinds[first.kind].blocks)]
    };
    let rows: Vec<_> = all.ranks.chunks(each.max(1)).map(row).collect();
    shortened(&["stage", "ranks", "blocks"], &rows)
}

fn holds(all: &Explanation) -> Vec<String> {
    let row = |kind: &Kind| {
        let each = kind.held.iter().map(|held| held.expected);
        let total = each.clone().sum();
        each.chain([total]).map(bytes).collect()
    };
    let names = all.kinds[0].held.iter().map(|held| held.what.as_str());
    let header: Vec<&str> = ["ranks"].into_iter().chain(names).chain(["total"]).collect();
    shortened(&header, &alike(all, row))
}

fn sends(all: &Explanation) -> Vec<String> {
    let mut axes: Vec<&str> = Vec::new();
    for sent in all.kinds.iter().flat_map(|kind| &kind.sent) {
        if !axes.contains(&sent.axis.as_str()) {
            axes.push(&sent.axis);
        }
    }
    let row = |kind: &Kind| {
        let on = |name: &&str| kind.sent.iter().find(|sent| sent.axis == *name);
        let each = axes.iter().map(|name| on(name).map_or(0, |sent| sent.expected));
        let total = kind.sent.iter().map(|sent| sent.expected).sum();
        each.chain([total]).map(bytes).collect()
    };
    let rows = alike(all, row);
    let mut header = vec!["ranks"];
    header.extend(&axes);
    header.push("total");
    shortened(&header, &rows)
}

/// A table that is not too long to be read.
fn shortened(header: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let shown = rows.len().min(LINES);
    let mut lines = table::table(header, &rows[..shown]);
    if rows.len() > shown {
        lines.push(format!("and {} more lines: --json has all", rows.len() - shown));
    }
    lines
}

/// Nothing, if nothing is on disk.
fn moves(all: &Explanation) -> Vec<String> {
    if all.kinds.iter().all(|kind| kind.moved.is_empty()) {
        return Vec::new();
    }
    let row = |kind: &Kind| {
        let way = |what: &str| kind.moved.iter().find(|moved| moved.what == what);
        let each = ["read", "written"].map(|what| way(what).map_or(0, |moved| moved.expected));
        each.map(bytes).into()
    };
    shortened(&["ranks", "read", "written"], &alike(all, row))
}

/// Rows of figures, one for all ranks that have the same.
fn alike(all: &Explanation, row: impl Fn(&Kind) -> Vec<String>) -> Vec<Vec<String>> {
    let mut rows: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    let place = |kind: &Kind| {
        let own = row(kind);
        rows.iter().position(|(_, row)| *row == own).unwrap_or_else(|| {
            rows.push((Vec::new(), own));
            rows.len() - 1
        })
    };
    let places: Vec<usize> = all.kinds.iter().map(place).collect();
    all.ranks.iter().for_each(|rank| rows[places[rank.kind]].0.push(rank.rank));
    // Kinds are in the order of tensor seats, people's order is that of ranks.
    rows.sort_by_key(|(ranks, _)| ranks.first().copied());
    let named = |(ranks, mut row): (Vec<usize>, Vec<String>)| {
        row.insert(0, named(all, &ranks));
        row
    };
    rows.into_iter().map(named).collect()
}

/// Some ranks by their numbers, if these are few, or by what they have in common, such as
/// `stage 0-3, tp 1`.
fn named(all: &Explanation, ranks: &[usize]) -> String {
    let split = &all.split;
    let sizes = [("stage", split.pp), ("dp", split.dp), ("cp", split.cp), ("tp", split.tp)];
    let seat = |rank: usize, axis: usize| {
        let Rank { pp, dp, cp, tp, .. } = all.ranks[rank];
        [pp, dp, cp, tp][axis]
    };
    let numbers = ranges(ranks.to_vec());
    if numbers.matches(',').count() < SHOWN {
        return numbers;
    }
    let (mut words, mut product) = (Vec::new(), 1);
    for (axis, (name, size)) in sizes.into_iter().enumerate() {
        let taken: BTreeSet<usize> = ranks.iter().map(|rank| seat(*rank, axis)).collect();
        product *= taken.len();
        if taken.len() < size {
            words.push(format!("{name} {}", few(&taken.into_iter().collect::<Vec<_>>())));
        }
    }
    if product == ranks.len() { words.join(", ") } else { few(ranks) }
}

/// Ranges of numbers that are written out.
const SHOWN: usize = 3;

/// `0,16,32,…` if there are many.
fn few(numbers: &[usize]) -> String {
    let all = ranges(numbers.to_vec());
    match all.match_indices(',').nth(SHOWN - 1) {
        Some((end, _)) => format!("{},…", &all[..end]),
        None => all,
    }
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
        assert!(text.contains("\n0-99   "), "{text}");
        assert!(text.contains("~ counted with 65 characters"), "{text}");
        assert!(shown("tp=2 batch=4", 4, Some(1)).contains("note: ranks 0-1 share matrices"));
    }

    #[test]
    fn thousands_of_ranks_are_told_by_their_groups() {
        let model = "layers=16 heads=8 width=64 context=64 batch_per_rank=32 vocabulary=65";
        let text = shown(&format!("{model} tp=8 pp=16 zero=1"), 8192, Some(8));
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        let lines = text.lines().count();
        assert!(lines < 100 && widest <= 120, "{lines} lines, {widest} wide:\n{text}");
        for part in [
            "\ntensor    matrices       8  0-7\n",
            "\ndata      the batch     64  0,8,16,…\n",
            "\npipeline  layers        16  0,512,1024,…\n",
            "\nhost      node 0         8  0-7\n",
            "\n   15  7680-8191  ",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        // One rank of a tensor group has a kind of tokens more.
        assert!(text.contains("stage 0, tp 7"), "{text}");
    }

    #[test]
    fn blocks_are_named_shortly() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = names(&["embed", "layer.0", "layer.1", "layer.4", "head"]);
        assert_eq!(blocks(&all), "embed, layers 0-1,4, head");
        assert_eq!(blocks(&names(&["layer.3"])), "layer 3");
    }
}
