//! Rows and outliers as text.

use std::collections::BTreeMap;

use regatta_draw::table;
use regatta_model::{CpuSet, RankRoofline, RooflineKind};

use super::outliers::{Outliers, format_rate};

/// The rows, the outliers and the notes, a line each.
pub fn report(rooflines: &[RankRoofline], outliers: &Outliers) -> String {
    let lines = [table(rooflines, outliers), findings(outliers), notes(rooflines)].concat();
    lines.join("\n") + "\n"
}

/// All rows with their ratio to the median; outliers are marked.
pub fn table(rooflines: &[RankRoofline], outliers: &Outliers) -> Vec<String> {
    let header = ["rank", "host", "case", "device", "rate", "best", "unit", "of median", ""];
    let row = |RankRoofline { rank, host, row }: &RankRoofline| {
        let group = outliers.group(row);
        let ratio = group.map(|group| format!("{:.1} %", row.median / group.median * 100.0));
        let slow = group.is_some_and(|group| row.median < group.threshold);
        let mark = if slow { "<- slow" } else { "" }.to_owned();
        let ([rate, best], unit) = ([row.median, row.best].map(format_rate), row.unit);
        let mut cells = vec![rank.to_string(), host.clone(), row.label(), row.device.clone()];
        cells.extend([rate, best, unit.to_string(), ratio.unwrap_or_default(), mark]);
        cells
    };
    let rows: Vec<_> = rooflines.iter().map(row).collect();
    table::align(&header, &rows, &[1, 2, 3, 6, 8]).lines().map(str::to_owned).collect()
}

/// One sentence per outlier, the slowest first.
pub fn findings(outliers: &Outliers) -> Vec<String> {
    let slow = outliers.slow.iter().map(ToString::to_string);
    slow.chain(outliers.missing.iter().map(ToString::to_string)).collect()
}

/// Notes of all rows, deduplicated per benchmark, with their ranks if not all have them.
pub fn notes(rooflines: &[RankRoofline]) -> Vec<String> {
    let mut ranks: BTreeMap<RooflineKind, CpuSet> = BTreeMap::new();
    let mut by_note: Vec<(RooflineKind, &str, CpuSet)> = Vec::new();
    for RankRoofline { rank, row, .. } in rooflines {
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
        if ranks.get(&kind) == Some(&some) {
            return format!("note: {kind}: {note}");
        }
        let noun = if some.len() == 1 { "rank" } else { "ranks" };
        format!("note: {kind}, {noun} {some}: {note}")
    };
    by_note.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::outliers::find;
    use super::*;
    use regatta_model::{RateUnit, RooflineRow};

    fn rooflines() -> Vec<RankRoofline> {
        let row = |median, note: &str| RooflineRow {
            case: "f32 2048, 2 threads".to_owned(),
            device: "cpu".to_owned(),
            unit: RateUnit::Gflops,
            median,
            best: 1240.0,
            notes: vec!["once".to_owned(), note.to_owned()],
            ..RooflineRow::default()
        };
        let rates = [(0, 1234.5, "no GPU"), (1, 1230.0, "fast"), (12, 600.0, "no GPU")];
        let entry = |(rank, rate, note)| RankRoofline {
            rank,
            host: format!("nid{rank:03}"),
            row: row(rate, note),
        };
        rates.map(entry).to_vec()
    }

    fn outliers() -> Outliers {
        let hosts = rooflines().into_iter().map(|entry| (entry.rank, entry.host));
        find(&hosts.collect::<Vec<_>>(), &rooflines(), 0.1)
    }

    #[test]
    fn slow_ranks_are_marked() {
        let lines = table(&rooflines(), &outliers());
        let expected = [
            "rank  host    case                      device  rate  best  unit     of median",
            "   0  nid000  gemm f32 2048, 2 threads  cpu     1234  1240  GFLOP/s    100.4 %",
            "   1  nid001  gemm f32 2048, 2 threads  cpu     1230  1240  GFLOP/s    100.0 %",
            "  12  nid012  gemm f32 2048, 2 threads  cpu      600  1240  GFLOP/s     48.8 %  <- slow",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn findings_have_the_rates_of_the_table() {
        let found = findings(&outliers());
        assert!(found[0].contains("nid012: gemm f32 2048, 2 threads: 600 GFLOP/s, "), "{found:?}");
    }

    #[test]
    fn equal_notes_are_merged() {
        let expected =
            ["note: gemm: once", "note: gemm, ranks 0,12: no GPU", "note: gemm, rank 1: fast"];
        assert_eq!(notes(&rooflines()), expected);
    }

    #[test]
    fn rates_have_three_significant_digits() {
        let found = [12345.6, 123.4, 12.34, 1.234, 0.01234].map(format_rate);
        assert_eq!(found, ["12346", "123", "12.3", "1.23", "0.0123"]);
    }
}
