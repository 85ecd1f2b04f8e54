//! Algorithm selection by a table: measured on the machine, or by default what [`super::simulate`]
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
        let fits = |row: &&AlgorithmRow| row.matches(kind, bytes, ranks, spread);
        match self.rows.iter().find(fits) {
            Some(row) => row.algorithm,
            None => fallback(kind),
        }
    }
}

/// The default table, used unless one was measured.
impl Default for AlgorithmTable {
    fn default() -> Self {
        let groups = [uniform_count_collectives(), all_rank_collectives(), rooted_collectives()];
        Self { rows: groups.into_iter().flatten().collect() }
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

fn uniform_count_collectives() -> Vec<AlgorithmRow> {
    use Algorithm::{
        BinomialTree, Dissemination, DoubleBinaryTree, MultiLeader, RecursiveDoubling, Ring,
        TwoLevel,
    };
    use RankDistribution::Mixed;
    let all_reduce = |algorithm| row(CallKind::AllReduce, algorithm);
    let reduce = |algorithm| row(CallKind::Reduce, algorithm);
    let broadcast = |algorithm| row(CallKind::Broadcast, algorithm);
    vec![
        all_reduce(TwoLevel).bytes(32 * KIB).spread(Mixed),
        all_reduce(MultiLeader).spread(Mixed),
        // With two ranks every round is one message; a ring copies least.
        all_reduce(RecursiveDoubling).bytes(16 * KIB).ranks(2),
        all_reduce(Ring).ranks(2),
        all_reduce(RecursiveDoubling).bytes(8 * KIB),
        // Both send the same bytes. A ring has more rounds, but works on one block at a time.
        all_reduce(Dissemination).bytes(MIB),
        all_reduce(Ring).ranks(8),
        all_reduce(Dissemination).bytes(64 * MIB),
        all_reduce(Ring).ranks(64),
        all_reduce(Dissemination),
        reduce(TwoLevel).bytes(64 * KIB).spread(Mixed),
        reduce(BinomialTree).ranks(2),
        reduce(BinomialTree).bytes(64 * KIB),
        reduce(DoubleBinaryTree),
        broadcast(TwoLevel).bytes(64 * KIB).spread(Mixed),
        broadcast(BinomialTree).ranks(2),
        broadcast(BinomialTree).bytes(64 * KIB),
        broadcast(DoubleBinaryTree),
    ]
}

fn all_rank_collectives() -> Vec<AlgorithmRow> {
    use Algorithm::{Direct, Dissemination, Pairwise, Ring, TwoLevel};
    use RankDistribution::{Mixed, OnePerNode};
    let all_gather = |algorithm| row(CallKind::AllGather, algorithm);
    let reduce_scatter = |algorithm| row(CallKind::ReduceScatter, algorithm);
    vec![
        all_gather(Direct).bytes(16 * KIB).ranks(16),
        all_gather(Dissemination).bytes(256 * KIB),
        all_gather(Ring).spread(Mixed),
        all_gather(Dissemination),
        reduce_scatter(Ring).ranks(2),
        reduce_scatter(Dissemination).bytes(256 * KIB),
        reduce_scatter(Ring).spread(Mixed),
        reduce_scatter(Ring).ranks(8),
        reduce_scatter(Dissemination).bytes(64 * MIB),
        reduce_scatter(Ring).ranks(64),
        reduce_scatter(Dissemination),
        row(CallKind::AllToAll, Direct).bytes(256 * KIB).ranks(64),
        row(CallKind::AllToAll, Direct).bytes(MIB).ranks(64).spread(OnePerNode),
        row(CallKind::AllToAll, Pairwise),
        row(CallKind::Barrier, TwoLevel).spread(Mixed),
        row(CallKind::Barrier, Dissemination),
    ]
}

fn rooted_collectives() -> Vec<AlgorithmRow> {
    use Algorithm::{BinomialTree, Direct};
    let pair = |kind| {
        [
            row(kind, Direct).ranks(32),
            row(kind, BinomialTree).bytes(256 * KIB),
            // A tree would forward most bytes several times.
            row(kind, Direct),
        ]
    };
    [pair(CallKind::Gather), pair(CallKind::Scatter)].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use regatta_model::document::{from_json, to_json};

    use super::*;
    use crate::schedule::algorithm::programs;
    use crate::schedule::simulate::{MachineModel, block_sizes, simulate};

    fn seconds(kind: CallKind, by: Algorithm, bytes: usize, nodes: &[u32]) -> Option<f64> {
        let ranks = nodes.len() as u32;
        let programs = programs(kind, by, ranks, 0, nodes)?;
        let sizes = block_sizes(programs[0].blocks, ranks, bytes);
        Some(simulate(&programs, &sizes, &MachineModel::typical(nodes.to_vec())).unwrap().seconds)
    }

    #[test]
    fn default_selection_is_within_half_of_the_simulated_best() {
        let table = AlgorithmTable::default();
        let mut far: Vec<String> = Vec::new();
        for (ranks, ranks_per_node) in [(2, 2), (2, 1), (5, 5), (8, 1), (16, 4), (24, 1), (32, 8)] {
            let nodes: Vec<u32> = (0..ranks).map(|rank| rank / ranks_per_node).collect();
            for kind in CallKind::ALL {
                for bytes in [8, 4 << 10, 64 << 10, 1 << 20, 64 << 20] {
                    let by =
                        table.select(kind, bytes as u64, ranks, ranks.div_ceil(ranks_per_node));
                    let chosen = seconds(kind, by, bytes, &nodes).unwrap();
                    let all = Algorithm::ALL.into_iter();
                    let times = all.filter_map(|by| Some((seconds(kind, by, bytes, &nodes)?, by)));
                    let best = times.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
                    let (name, factor) = (kind.name(), chosen / best.0);
                    let case =
                        format!("{name} of {bytes} B, {ranks} ranks, {ranks_per_node} a node");
                    if factor > 1.5 {
                        far.push(format!("{case}: {by} takes {factor:.2} times {}", best.1));
                    }
                }
            }
        }
        assert!(far.is_empty(), "{far:#?}");
    }

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
