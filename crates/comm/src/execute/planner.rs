//! Selects and caches the programs of a communicator's calls. All ranks have the same table and
//! therefore make the same selection.

use std::collections::HashMap;
use std::sync::Arc;

use crate::schedule::algorithm_table::AlgorithmTable;
use crate::schedule::{Algorithm, Program, program};
use crate::{Call, CallKind, CommError, Counts, Result};

/// Bound on cached programs: a large job may use many roots.
const MAX_CACHED: usize = 64;

/// The programs of one rank of a communicator.
#[derive(Debug)]
pub struct Planner {
    /// The algorithm table. All ranks must replace it between the same calls.
    pub table: Arc<AlgorithmTable>,
    rank: u32,
    /// The node index of each rank, numbered from 0.
    pub nodes: Vec<u32>,
    /// Few enough that a search is faster than hashing.
    cache: Vec<((CallKind, Algorithm, u32), Arc<Program>)>,
}

impl Planner {
    /// A planner for `rank`; `nodes` has an arbitrary node id per rank.
    pub fn new(table: Arc<AlgorithmTable>, rank: u32, nodes: &[u64]) -> Self {
        let mut seen: HashMap<u64, u32> = HashMap::new();
        let index = |node: &u64| {
            let next = seen.len() as u32;
            *seen.entry(*node).or_insert(next)
        };
        let nodes = nodes.iter().map(index).collect();
        Self { table, rank, nodes, cache: Vec::new() }
    }

    /// The program for a call, by the algorithm that the table selects.
    pub fn plan(&mut self, call: &Call) -> Result<Arc<Program>> {
        let ranks = self.nodes.len() as u32;
        let nodes = self.nodes.iter().max().map_or(1, |last| last + 1);
        let algorithm = self.table.select(call.kind, table_bytes(call, ranks), ranks, nodes);
        self.plan_with(call, algorithm)
    }

    /// The program for a call by a given algorithm.
    pub fn plan_with(&mut self, call: &Call, algorithm: Algorithm) -> Result<Arc<Program>> {
        let root = if call.kind.has_root() { call.root } else { 0 };
        let key = (call.kind, algorithm, root);
        if let Some((_, cached)) = self.cache.iter().find(|(cached, _)| *cached == key) {
            return Ok(cached.clone());
        }
        let ranks = self.nodes.len() as u32;
        let built = program(call.kind, algorithm, ranks, self.rank, root, &self.nodes);
        let built = Arc::new(built.ok_or_else(|| {
            let what = format!("algorithm {algorithm} does not support it");
            CommError::invalid_call(call.kind.name(), what)
        })?);
        if self.cache.len() >= MAX_CACHED {
            self.cache.clear();
        }
        self.cache.push((key, built.clone()));
        Ok(built)
    }
}

/// The size that the table selects by: the bytes of the largest buffer. Per-pair counts differ
/// between ranks and must not influence the selection.
fn table_bytes(call: &Call, ranks: u32) -> u64 {
    let elements = match &call.counts {
        Counts::PerPair { .. } => return u64::MAX,
        counts if call.kind.has_uniform_count() => counts.of(0),
        counts => counts.total(ranks as usize),
    };
    (elements as u64).saturating_mul(call.dtype.size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    fn call(counts: Counts<'static>, kind: CallKind) -> Call<'static> {
        Call { root: 1, ..Call::new(kind, DType::F32, counts, &mut []) }
    }

    #[test]
    fn per_pair_counts_do_not_influence_the_selection() {
        let exchange = |send: Vec<usize>| {
            let counts = Counts::PerPair { receive: vec![1; send.len()].into(), send: send.into() };
            table_bytes(&call(counts, CallKind::AllToAll), 2)
        };
        assert_eq!(exchange(vec![0, 0]), exchange(vec![7, 70_000]));
        assert_eq!(table_bytes(&call(Counts::Equal(3), CallKind::AllReduce), 5), 12);
        assert_eq!(table_bytes(&call(Counts::Equal(3), CallKind::Gather), 5), 60);
    }

    #[test]
    fn nodes_are_numbered_by_first_occurrence() {
        let planner = Planner::new(Arc::new(AlgorithmTable::default()), 0, &[70, 3, 70, 9]);
        assert_eq!(planner.nodes, [0, 1, 0, 2]);
    }

    #[test]
    fn unsupported_algorithm_is_an_error() {
        let mut planner = Planner::new(Arc::new(AlgorithmTable::default()), 0, &[1, 2]);
        let result = planner.plan_with(&call(Counts::Equal(3), CallKind::Scatter), Algorithm::Ring);
        assert!(result.unwrap_err().to_string().contains("algorithm ring does not support it"));
    }
}
