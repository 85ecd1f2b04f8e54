//! An engine for a subset of the ranks.

use std::sync::Arc;

use crate::control::wait_graph::WaitEdges;
use crate::engine::Engine;
use crate::shm::ShmEngine;
use crate::{Call, CallKind, Counts, DType, ReduceOp, Result};

/// An engine and the global ranks of its members.
pub struct Subgroup<E> {
    pub engine: E,
    pub members: Vec<u32>,
}

impl<E: Engine> Subgroup<E> {
    /// Runs a call; errors name global ranks.
    pub fn run(&mut self, call: Call<'_>) -> Result {
        self.engine.run(call).map_err(|error| error.translate_ranks(&self.members))
    }

    /// Runs one stage of a collective in place.
    pub fn run_in_place(
        &mut self,
        kind: CallKind,
        (dtype, op): (DType, ReduceOp),
        root: u32,
        counts: Counts<'_>,
        data: &mut [u8],
    ) -> Result {
        self.run(Call { op, root, ..Call::new(kind, dtype, counts, data) })
    }
}

impl Subgroup<ShmEngine> {
    /// The engine's wait edges in global ranks.
    pub fn waits(&self) -> WaitEdges {
        let (own, members) = (self.engine.waits(), self.members.clone());
        let translate = move |(rank, waited)| Some((*members.get(rank as usize)?, waited));
        Arc::new(move || own().into_iter().filter_map(&translate).collect())
    }
}
