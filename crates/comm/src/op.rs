//! How elements of several ranks become one.

/// A reduction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum; of integers, without regard to overflow.
    Sum,
    /// The product, likewise.
    Product,
    /// The least. If one is not a number, so is the result.
    Min,
    /// The greatest, likewise.
    Max,
    /// The sum, divided by the number of ranks; of integers, rounded towards zero.
    Average,
}

impl ReduceOp {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Product, Self::Min, Self::Max, Self::Average];

    /// Its name.
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
