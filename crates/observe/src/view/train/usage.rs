//! Memory, traffic and disk I/O of ranks, expected and measured. No I/O.

use regatta_draw::line::DIM;
use regatta_draw::table;
use regatta_model::rank_bytes::PINNED;
use regatta_model::train_event::{RankBytes, Summary};
use regatta_model::units::{format_memory, format_ranks, format_si_unit};

/// Upper bound on printed groups of ranks.
const MAX_GROUPS: usize = 8;

/// Ranks whose tables have the same rows.
type RankGroup = (Vec<u32>, Vec<Vec<String>>);

/// Tables of expected and measured usage, one per group of ranks with the same table. Empty if
/// ranks neither communicate nor offload state.
pub fn tables(summary: &Summary) -> String {
    let first = RankBytes {
        rank: 0,
        memory: summary.memory.clone(),
        sent: summary.sent.clone(),
        disk_io: summary.disk_io.clone(),
    };
    let ranks: &[_] = if summary.ranks.is_empty() { &[first] } else { &summary.ranks };
    let has_pinned = |rank: &RankBytes| rank.memory.iter().any(|memory| memory.what == PINNED);
    let is_used =
        |rank: &RankBytes| !rank.sent.is_empty() || !rank.disk_io.is_empty() || has_pinned(rank);
    if !ranks.iter().any(is_used) {
        return String::new();
    }
    let groups = group_by_table(ranks);
    let mut lines: Vec<String> = groups.iter().take(MAX_GROUPS).flat_map(group_table).collect();
    if let Some(more) = groups.len().checked_sub(MAX_GROUPS).filter(|more| *more > 0) {
        lines.push(format!("... and {more} more groups of ranks; --json prints all"));
    }
    format!("{DIM}{}{DIM:#}\n", lines.join("\n"))
}

/// Measured bytes differ slightly between ranks, but hardly any as they are printed.
fn group_by_table(ranks: &[RankBytes]) -> Vec<RankGroup> {
    let mut groups: Vec<RankGroup> = Vec::new();
    for rank in ranks {
        let rows = table_rows(rank);
        match groups.iter_mut().find(|(_, other)| *other == rows) {
            Some((ranks, _)) => ranks.push(rank.rank as u32),
            None => groups.push((vec![rank.rank as u32], rows)),
        }
    }
    groups
}

fn group_table((ranks, rows): &RankGroup) -> Vec<String> {
    table::table(&[&format_ranks(ranks), "expected", "measured"], rows)
}

fn table_rows(usage: &RankBytes) -> Vec<Vec<String>> {
    let row = |format: fn(u64) -> String, label, expected: u64, measured: Option<u64>| {
        vec![label, format(expected), measured.map_or("-".to_owned(), format)]
    };
    let traffic = |bytes: u64| format_si_unit(bytes as f64, "B");
    let RankBytes { memory, sent, disk_io, .. } = usage;
    let memory = memory
        .iter()
        .map(|m| row(format_memory, format!("memory: {}", m.what), m.expected, m.measured));
    let sent = sent
        .iter()
        .map(|s| row(traffic, format!("sent per step: {}", s.axis), s.expected, s.measured));
    let disk = disk_io
        .iter()
        .map(|d| row(traffic, format!("disk per step: {}", d.what), d.expected, d.measured));
    memory.chain(sent).chain(disk).collect()
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;
    use regatta_model::rank_bytes::{PeakBytes, SentBytes};

    use super::*;

    fn rank(rank: usize, bytes: u64) -> RankBytes {
        let measured = Some(bytes);
        let memory = PeakBytes { what: "gradients".to_owned(), expected: bytes, measured };
        let sent = SentBytes { axis: "data".to_owned(), expected: bytes, measured };
        RankBytes { rank, memory: vec![memory], sent: vec![sent], disk_io: Vec::new() }
    }

    fn text(ranks: Vec<RankBytes>) -> String {
        let text = tables(&Summary { ranks, ..Default::default() });
        strip_str(&text).to_string()
    }

    #[test]
    fn ranks_with_the_same_printed_usage_share_a_table() {
        let text = text(vec![rank(0, 100_000), rank(1, 100_001), rank(2, 2000), rank(3, 100_000)]);
        let titles: Vec<&str> = text.lines().filter(|line| line.contains("expected")).collect();
        assert!(titles[0].starts_with("ranks 0-1,3  "), "{text}");
        assert!(titles[1].starts_with("rank 2  ") && titles.len() == 2, "{text}");
        assert!(text.contains("memory: gradients"), "{text}");
        assert!(text.contains("sent per step: data"), "{text}");
    }

    #[test]
    fn many_groups_are_truncated_and_no_traffic_prints_nothing() {
        let all = text((0..20).map(|number| rank(number, number as u64)).collect());
        assert!(all.ends_with("... and 12 more groups of ranks; --json prints all\n"), "{all}");
        assert_eq!(text(Vec::new()), "");
    }
}
