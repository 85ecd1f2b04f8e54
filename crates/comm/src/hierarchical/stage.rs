//! One stage of a collective, on an engine of some of the ranks.

use crate::{Call, CallKind, Counts, DType, ReduceOp};

/// A stage that runs in place.
pub fn stage<'a>(
    kind: CallKind,
    (dtype, op): (DType, ReduceOp),
    root: u32,
    counts: Counts<'a>,
    data: &'a mut [u8],
) -> Call<'a> {
    Call { op, root, ..Call::new(kind, dtype, counts, data) }
}
