//! Algorithm selection by a table: measured on the machine, or by default what the simulation in the tests
//! finds best on a typical machine.

use regatta_model::Document;
use serde::{Deserialize, Serialize};

use super::Algorithm;
use crate::CallKind;

/// Distribution of ranks over nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankDistribution {
    /// All ranks on one node.
    OneNode,
    /// One rank per node.
    OnePerNode,
    /// Several ranks on some of several nodes.
    Mixed,
}

impl RankDistribution {
    /// The distribution of `ranks` ranks over `nodes` nodes.
    pub fn of(ranks: u32, nodes: u32) -> Self {
        match nodes {
            0 | 1 => Self::OneNode,
            _ if nodes >= ranks => Self::OnePerNode,
            _ => Self::Mixed,
        }
    }
}

/// A rule: the algorithm to use if all conditions hold. Absent conditions always hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlgorithmRow {
    /// The collective.
    pub collective: CallKind,
    /// Maximum size of a rank's largest buffer; for per-rank blocks, of all blocks together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub up_to_bytes: Option<u64>,
    /// Maximum number of ranks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub up_to_ranks: Option<u32>,
    /// Required distribution of ranks.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub spread: Option<RankDistribution>,
    /// The algorithm.
    pub algorithm: Algorithm,
}

impl AlgorithmRow {
    fn matches(&self, kind: CallKind, bytes: u64, ranks: u32, spread: RankDistribution) -> bool {
        self.collective == kind
            && self.up_to_bytes.is_none_or(|most| bytes <= most)
            && self.up_to_ranks.is_none_or(|most| ranks <= most)
            && self.spread.is_none_or(|wanted| wanted == spread)
    }

    fn bytes(self, max: u64) -> Self {
        Self { up_to_bytes: Some(max), ..self }
    }

    fn ranks(self, max: u32) -> Self {
        Self { up_to_ranks: Some(max), ..self }
    }

    fn spread(self, spread: RankDistribution) -> Self {
        Self { spread: Some(spread), ..self }
    }
}

/// Selects algorithms: the first matching row applies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlgorithmTable {
    /// The rows, in order of precedence.
    pub rows: Vec<AlgorithmRow>,
}

impl Document for AlgorithmTable {
    const KIND: &'static str = "algorithms";
    const VERSION: u32 = 1;

    fn inconsistency(&self) -> Option<String> {
        let wrong = self.rows.iter().position(|row| !row.algorithm.does(row.collective))?;
        let AlgorithmRow { collective, algorithm, .. } = &self.rows[wrong];
        Some(format!("row {wrong}: {algorithm} does not implement {}", collective.name()))
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An unconditional row.
fn row(collective: CallKind, algorithm: Algorithm) -> AlgorithmRow {
    AlgorithmRow { collective, up_to_bytes: None, up_to_ranks: None, spread: None, algorithm }
}

impl AlgorithmTable {
    /// The algorithm for a collective; a safe fallback if no row matches.
    pub fn select(&self, kind: CallKind, bytes: u64, ranks: u32, nodes: u32) -> Algorithm {
        let spread = RankDistribution::of(ranks, nodes);
        let mut rows = self.rows.iter();
        let row = rows.find(|row| row.matches(kind, bytes, ranks, spread));
        row.map_or(fallback(kind), |row| row.algorithm)
    }
}

/// The default table, used unless one was measured.
impl Default for AlgorithmTable {
    fn default() -> Self {
        use Algorithm::*;
        use CallKind::*;
        use RankDistribution::{Mixed, OnePerNode};
        let rows = vec![
            row(AllReduce, TwoLevel).bytes(32 * KIB).spread(Mixed),
            row(AllReduce, MultiLeader).spread(Mixed),
            // With two ranks every round is one message; a ring copies least.
            row(AllReduce, RecursiveDoubling).bytes(16 * KIB).ranks(2),
            row(AllReduce, Ring).ranks(2),
            row(AllReduce, RecursiveDoubling).bytes(8 * KIB),
            // Both send the same bytes. A ring has more rounds, but works on one block at a time.
            row(AllReduce, Dissemination).bytes(MIB),
            row(AllReduce, Ring).ranks(8),
            row(AllReduce, Dissemination).bytes(64 * MIB),
            row(AllReduce, Ring).ranks(64),
            row(AllReduce, Dissemination),
            row(Reduce, TwoLevel).bytes(64 * KIB).spread(Mixed),
            row(Reduce, BinomialTree).ranks(2),
            row(Reduce, BinomialTree).bytes(64 * KIB),
            row(Reduce, DoubleBinaryTree),
            row(Broadcast, TwoLevel).bytes(64 * KIB).spread(Mixed),
            row(Broadcast, BinomialTree).ranks(2),
            row(Broadcast, BinomialTree).bytes(64 * KIB),
            row(Broadcast, DoubleBinaryTree),
            row(AllGather, Direct).bytes(16 * KIB).ranks(16),
            row(AllGather, Dissemination).bytes(256 * KIB),
            row(AllGather, Ring).spread(Mixed),
            row(AllGather, Dissemination),
            row(ReduceScatter, Ring).ranks(2),
            row(ReduceScatter, Dissemination).bytes(256 * KIB),
            row(ReduceScatter, Ring).spread(Mixed),
            row(ReduceScatter, Ring).ranks(8),
            row(ReduceScatter, Dissemination).bytes(64 * MIB),
            row(ReduceScatter, Ring).ranks(64),
            row(ReduceScatter, Dissemination),
            row(AllToAll, Direct).bytes(256 * KIB).ranks(64),
            row(AllToAll, Direct).bytes(MIB).ranks(64).spread(OnePerNode),
            row(AllToAll, Pairwise),
            row(Barrier, TwoLevel).spread(Mixed),
            row(Barrier, Dissemination),
            // A tree would forward most bytes of a large buffer several times.
            row(Gather, Direct).ranks(32),
            row(Gather, BinomialTree).bytes(256 * KIB),
            row(Gather, Direct),
            row(Scatter, Direct).ranks(32),
            row(Scatter, BinomialTree).bytes(256 * KIB),
            row(Scatter, Direct),
        ];
        Self { rows }
    }
}

/// An algorithm that is never far from the best.
fn fallback(kind: CallKind) -> Algorithm {
    match kind {
        CallKind::AllReduce | CallKind::AllGather | CallKind::ReduceScatter | CallKind::Barrier => {
            Algorithm::Dissemination
        }
        CallKind::AllToAll => Algorithm::Pairwise,
        _ => Algorithm::BinomialTree,
    }
}

#[cfg(test)]
mod tests {
    use regatta_model::document::{from_json, to_json};

    use super::*;

    #[test]
    fn every_call_has_an_algorithm() {
        let empty = AlgorithmTable { rows: Vec::new() };
        for kind in CallKind::ALL {
            for (ranks, nodes) in [(1, 1), (3, 1), (1000, 125), (1000, 1000)] {
                for bytes in [0, 1 << 16, u64::MAX] {
                    assert!(empty.select(kind, bytes, ranks, nodes).does(kind));
                    assert!(AlgorithmTable::default().select(kind, bytes, ranks, nodes).does(kind));
                }
            }
        }
    }

    #[test]
    fn table_round_trips_through_json() {
        let text = to_json(&AlgorithmTable::default()).unwrap();
        assert!(text.contains("\"regatta-algorithms/1\"") && text.contains("\"multi-leader\""));
        assert_eq!(from_json::<AlgorithmTable>(&text).unwrap(), AlgorithmTable::default());
        let rows = |row: &str| format!(r#"{{"format": "regatta-algorithms/1", "rows": [{row}]}}"#);
        let wrong = [
            (r#"{"collective": "gather", "algorithm": "ring"}"#, "ring does not implement gather"),
            (
                r#"{"collective": "shuffle", "algorithm": "ring"}"#,
                "unknown variant `shuffle`, expected one of `all-reduce`",
            ),
        ];
        for (row, why) in wrong {
            let error = from_json::<AlgorithmTable>(&rows(row)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
