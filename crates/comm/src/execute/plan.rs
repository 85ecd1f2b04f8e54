//! Which program a communicator's calls are done by: the one that its table chooses. All ranks have
//! the same table, and come to the same choice.

use std::collections::HashMap;
use std::sync::Arc;

use crate::schedule::choose::Table;
use crate::schedule::{Algorithm, Program, program};
use crate::{Call, CommError, Counts, Kind};

/// Programs are kept, but not of all roots that a large job may have.
const KEPT: usize = 64;

/// The programs of one rank of a communicator.
#[derive(Debug)]
pub struct Planner {
    table: Arc<Table>,
    rank: u32,
    /// The node of each rank, by numbers from 0 on.
    nodes: Vec<u32>,
    kept: HashMap<(Kind, Algorithm, u32), Arc<Program>>,
}

impl Planner {
    /// For the rank in this place; `nodes` says by any number where each rank is.
    pub fn new(table: Arc<Table>, rank: u32, nodes: &[u64]) -> Self {
        let mut seen: HashMap<u64, u32> = HashMap::new();
        let number = |node: &u64| {
            let next = seen.len() as u32;
            *seen.entry(*node).or_insert(next)
        };
        let nodes = nodes.iter().map(number).collect();
        Self { table, rank, nodes, kept: HashMap::new() }
    }

    /// The table that chooses.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Another one. All ranks must be given the same, between the same calls.
    pub fn set_table(&mut self, table: Arc<Table>) {
        self.table = table;
    }

    /// The node of each rank.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The program for a call.
    pub fn plan(&mut self, call: &Call<'_>) -> Result<Arc<Program>, CommError> {
        let ranks = self.nodes.len() as u32;
        let nodes = self.nodes.iter().max().map_or(1, |last| last + 1);
        let chosen = self.table.choose(call.kind, bytes(call, ranks), ranks, nodes);
        self.by(call, chosen)
    }

    /// The program for a call by this algorithm.
    pub fn by(&mut self, call: &Call<'_>, algorithm: Algorithm) -> Result<Arc<Program>, CommError> {
        let root = if call.kind.has_root() { call.root } else { 0 };
        let key = (call.kind, algorithm, root);
        if let Some(known) = self.kept.get(&key) {
            return Ok(known.clone());
        }
        let ranks = self.nodes.len() as u32;
        let written = program(call.kind, algorithm, ranks, self.rank, root, &self.nodes);
        let written = Arc::new(written.ok_or_else(|| CommError::Shape {
            call: call.kind.name(),
            what: format!("{algorithm} does not do it"),
        })?);
        if self.kept.len() >= KEPT {
            self.kept.clear();
        }
        self.kept.insert(key, written.clone());
        Ok(written)
    }
}

/// What the table goes by: the bytes of the largest buffer. Where every rank has numbers of its own,
/// they must not matter, or ranks would choose differently.
fn bytes(call: &Call<'_>, ranks: u32) -> u64 {
    let whole = matches!(call.kind, Kind::AllReduce | Kind::Reduce | Kind::Broadcast);
    let elements = match &call.counts {
        Counts::Exchange { .. } => return u64::MAX,
        counts if whole => counts.of(0),
        counts => counts.total(ranks as usize),
    };
    (elements as u64).saturating_mul(call.dtype.size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ReduceOp};

    fn call(counts: Counts<'static>, kind: Kind) -> Call<'static> {
        let (dtype, op) = (DType::F32, ReduceOp::Sum);
        Call { kind, dtype, op, root: 1, tag: 0, counts, input: None, output: &mut [] }
    }

    #[test]
    fn what_ranks_do_not_share_decides_nothing() {
        let exchange = |send: Vec<usize>| {
            let receive = vec![1; send.len()].into();
            bytes(&call(Counts::Exchange { send: send.into(), receive }, Kind::AllToAll), 2)
        };
        assert_eq!(exchange(vec![0, 0]), exchange(vec![7, 70_000]));
        assert_eq!(bytes(&call(Counts::Equal(3), Kind::AllReduce), 5), 12);
        assert_eq!(bytes(&call(Counts::Equal(3), Kind::Gather), 5), 60);
    }

    #[test]
    fn nodes_are_counted_as_they_come() {
        let planner = Planner::new(Arc::new(Table::usual()), 0, &[70, 3, 70, 9]);
        assert_eq!(planner.nodes(), [0, 1, 0, 2]);
    }

    #[test]
    fn what_an_algorithm_does_not_do_is_said() {
        let mut planner = Planner::new(Arc::new(Table::usual()), 0, &[1, 2]);
        let wrong = planner.by(&call(Counts::Equal(3), Kind::Scatter), Algorithm::Ring);
        assert!(wrong.unwrap_err().to_string().contains("ring does not do it"));
    }
}
