//! Rows and outliers as text.

use std::collections::BTreeMap;

use regatta_model::{CpuSet, RankRoofline, RooflineKind};

use super::outliers::{MetricKey, Outliers};
use crate::text_table;

/// All rows with their ratio to the median; outliers are marked.
pub fn table(ceilings: &[RankRoofline], outliers: &Outliers) -> Vec<String> {
    let header = ["rank", "host", "what", "on", "rate", "best", "unit", "of median", ""];
    let row = |ceiling: &RankRoofline| {
        let RankRoofline { rank, host, row } = ceiling;
        let group = outliers.group(row);
        let ratio = group.map(|group| format!("{:.1} %", row.median / group.median * 100.0));
        let slow = group.is_some_and(|group| row.median < group.threshold);
        vec![
            rank.to_string(),
            host.clone(),
            row.label(),
            row.device.clone(),
            format_rate(row.median),
            format_rate(row.best),
            row.unit.name().to_owned(),
            ratio.unwrap_or_default(),
            if slow { "<- slow" } else { "" }.to_owned(),
        ]
    };
    align(&header, ceilings.iter().map(row), &[1, 2, 3, 6, 8])
}

/// One line per metric: slowest, median and fastest rank.
pub fn summary(outliers: &Outliers) -> Vec<String> {
    let header = ["what", "on", "ranks", "slowest", "median", "fastest", "unit", "slow"];
    let slow = |key: &MetricKey| outliers.slow.iter().filter(|slow| slow.key == *key).count();
    let rows = outliers.groups.iter().map(|group| {
        vec![
            group.key.kind.label(&group.key.what),
            group.key.device.clone(),
            group.ranks.to_string(),
            format_rate(group.min),
            format_rate(group.median),
            format_rate(group.max),
            group.key.unit.name().to_owned(),
            slow(&group.key).to_string(),
        ]
    });
    align(&header, rows, &[0, 1, 6])
}

/// One sentence per outlier, the slowest first.
pub fn findings(outliers: &Outliers) -> Vec<String> {
    let slow = outliers.slow.iter().map(ToString::to_string);
    slow.chain(outliers.missing.iter().map(ToString::to_string)).collect()
}

/// Notes of all rows, deduplicated per benchmark, with their ranks if not all have them.
pub fn notes(ceilings: &[RankRoofline]) -> Vec<String> {
    let mut ranks: BTreeMap<RooflineKind, CpuSet> = BTreeMap::new();
    let mut by_note: Vec<(RooflineKind, &str, CpuSet)> = Vec::new();
    for RankRoofline { rank, row, .. } in ceilings {
        let rank = *rank as usize;
        ranks.entry(row.kind).or_default().insert(rank);
        for note in &row.notes {
            let same = |(kind, text, _): &&mut (_, &str, _)| *kind == row.kind && *text == note;
            match by_note.iter_mut().find(same) {
                Some((_, _, ranks)) => ranks.insert(rank),
                None => by_note.push((row.kind, note, [rank].into_iter().collect())),
            }
        }
    }
    let line = |(kind, note, some): (RooflineKind, &str, CpuSet)| {
        let noun = if some.len() == 1 { "rank" } else { "ranks" };
        match ranks.get(&kind) == Some(&some) {
            true => format!("{}: {note}", kind.name()),
            false => format!("{}, {noun} {some}: {note}", kind.name()),
        }
    };
    by_note.into_iter().map(line).collect()
}

/// Three significant digits, or all digits before the point.
fn format_rate(rate: f64) -> String {
    let decimals = match rate {
        r if r >= 100.0 => 0,
        r if r >= 10.0 => 1,
        r if r >= 1.0 => 2,
        _ => 4,
    };
    format!("{rate:.decimals$}")
}

/// Lines of an aligned table; `left` columns are left-aligned.
fn align(header: &[&str], rows: impl Iterator<Item = Vec<String>>, left: &[usize]) -> Vec<String> {
    let header = header.iter().map(|&name| name.to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    text_table::align(&rows, left).lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::outliers::{DEFAULT_TOLERANCE, find};
    use super::*;
    use regatta_model::{RateUnit, RooflineRow};

    fn ceilings() -> Vec<RankRoofline> {
        let rates = [(0, 1234.5), (1, 1230.0), (12, 600.0)];
        let row = |median, note: &str| RooflineRow {
            case: "f32 2048, 2 threads".to_owned(),
            device: "cpu".to_owned(),
            unit: RateUnit::Gflops,
            median,
            best: 1240.0,
            notes: vec!["once".to_owned(), note.to_owned()],
            ..RooflineRow::default()
        };
        let host = |rank| format!("nid{rank:03}");
        let note = |rank| if rank == 1 { "fast" } else { "no GPU" };
        rates
            .map(|(rank, rate)| RankRoofline { rank, host: host(rank), row: row(rate, note(rank)) })
            .to_vec()
    }

    fn outliers() -> Outliers {
        let names: Vec<(u32, String)> =
            ceilings().into_iter().map(|ceiling| (ceiling.rank, ceiling.host)).collect();
        find(&names, &ceilings(), DEFAULT_TOLERANCE)
    }

    #[test]
    fn slow_ranks_are_marked() {
        let lines = table(&ceilings(), &outliers());
        let expected = [
            "rank  host    what                      on   rate  best  unit     of median",
            "   0  nid000  gemm f32 2048, 2 threads  cpu  1234  1240  GFLOP/s    100.4 %",
            "   1  nid001  gemm f32 2048, 2 threads  cpu  1230  1240  GFLOP/s    100.0 %",
            "  12  nid012  gemm f32 2048, 2 threads  cpu   600  1240  GFLOP/s     48.8 %  <- slow",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_summary_has_one_line_per_metric() {
        let lines = summary(&outliers());
        assert_eq!(lines.len(), 2);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(words[5..], ["cpu", "3", "600", "1230", "1234", "GFLOP/s", "1"]);
        assert_eq!(findings(&outliers()).len(), 1);
        assert!(findings(&outliers())[0].starts_with("rank 12 on nid012"));
    }

    #[test]
    fn equal_notes_are_merged() {
        let expected = ["gemm: once", "gemm, ranks 0,12: no GPU", "gemm, rank 1: fast"];
        assert_eq!(notes(&ceilings()), expected);
    }

    #[test]
    fn rates_have_three_significant_digits() {
        let found = [12345.6, 123.4, 12.34, 1.234, 0.01234].map(format_rate);
        assert_eq!(found, ["12346", "123", "12.3", "1.23", "0.0123"]);
    }
}
