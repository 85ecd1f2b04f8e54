//! Reduction operations.

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

impl ReduceOp {
    /// All reductions.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Product, Self::Min, Self::Max, Self::Average];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::Average => "average",
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
