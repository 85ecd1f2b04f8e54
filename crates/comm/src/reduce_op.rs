//! Reduction operations.

use serde::{Deserialize, Serialize};

use crate::enum_names::enum_names;

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// The sum; integers wrap on overflow.
    Sum,
    /// The product; integers wrap on overflow.
    Product,
    /// The minimum. NaN propagates.
    Min,
    /// The maximum. NaN propagates.
    Max,
    /// The sum divided by the number of ranks; integers round towards zero.
    Average,
}

enum_names!(ReduceOp, "All reductions.",
    Sum "sum", Product "product", Min "min", Max "max", Average "average");
