//! One stage of a collective, on an engine of some of the ranks.

use crate::engine::Engine;
use crate::{Call, CallKind, Counts, DType, ReduceOp, Result};

/// Runs stages.
pub trait StageEngine: Engine {
    /// Runs one stage of a collective in place.
    fn run_in_place(
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

impl<E: Engine> StageEngine for E {}
