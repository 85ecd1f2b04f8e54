//! Tensor-parallel sharding of parameters: which elements of a full parameter a rank has. No I/O.

use std::ops::Range;

use super::ModelShape;

/// One rank's position in a group that shards something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Rank in the group.
    pub rank: usize,
    /// Size of the group.
    pub ranks: usize,
}

impl Shard {
    /// A group of one.
    pub const UNSHARDED: Self = Self { rank: 0, ranks: 1 };

    /// This rank's range of `count` items; ranges differ in length by at most one.
    pub fn range(self, count: usize) -> Range<usize> {
        count * self.rank / self.ranks..count * (self.rank + 1) / self.ranks
    }
}

/// A rectangle of a parameter; a vector has one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSlice {
    /// Rows.
    pub rows: Range<usize>,
    /// Columns.
    pub columns: Range<usize>,
}

impl ShardSlice {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a parameter is sharded over the tensor-parallel group.
#[derive(Debug, Clone, Copy)]
pub enum Sharding<'a> {
    /// Every rank has all of it.
    Replicated,
    /// By rows, within each of several consecutive groups of rows: queries, keys and values are three.
    Rows(&'a [usize]),
    /// By columns.
    Columns,
}

impl Sharding<'_> {
    /// The slices that a rank has of a parameter with these rows and columns.
    pub fn slices(self, shard: Shard, (rows, columns): (usize, usize)) -> Vec<ShardSlice> {
        match self {
            Self::Replicated => vec![ShardSlice { rows: 0..rows, columns: 0..columns }],
            Self::Columns => vec![ShardSlice { rows: 0..rows, columns: shard.range(columns) }],
            Self::Rows(groups) => {
                let ends = groups.iter().scan(0, |end, group| {
                    *end += group;
                    Some(*end)
                });
                let slice = |(group, end): (&usize, usize)| {
                    let (local, start) = (shard.range(*group), end - group);
                    let rows = start + local.start..start + local.end;
                    ShardSlice { rows, columns: 0..columns }
                };
                groups.iter().zip(ends).map(slice).collect()
            }
        }
    }
}

impl ModelShape {
    /// Checks that the model divides among `ranks` tensor-parallel ranks. The error names the
    /// configuration keys.
    pub fn check_tensor_parallel(&self, ranks: usize) -> Result<(), String> {
        let attention = [("num_heads", self.num_heads), ("num_kv_heads", self.num_kv_heads)];
        let attention = if self.has_attention() { &attention[..] } else { &[] };
        let mlp = [("intermediate_size", self.intermediate_size)];
        let mut sizes = attention.iter().chain(&mlp);
        if let Some((name, size)) = sizes.find(|(_, size)| size % ranks != 0) {
            return Err(format!("model.{name} {size} is not divisible by parallel.tp {ranks}"));
        }
        let vocab = self.vocab_size;
        if vocab < ranks {
            return Err(format!("parallel.tp {ranks} is larger than the vocabulary size {vocab}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{Family, ParamBlock};
    use crate::testing::shape;
    use proptest::prelude::*;

    /// For each element of each full parameter, the number of ranks that have it.
    fn owners(shape: &ModelShape, ranks: usize) -> Vec<(String, Vec<usize>)> {
        let of = |block: ParamBlock| block.parameters;
        let full = shape.blocks().into_iter().flat_map(of);
        let mut owners: Vec<_> = full.map(|p| (p.name.clone(), vec![0; p.len()])).collect();
        for rank in 0..ranks {
            let blocks = shape.sharded_blocks(Shard { rank, ranks });
            for (parameter, (name, owners)) in blocks.into_iter().flat_map(of).zip(&mut owners) {
                assert_eq!(parameter.name, *name);
                let own: usize = parameter.slices.iter().map(ShardSlice::len).sum();
                assert_eq!(own, parameter.len());
                let columns = parameter.full_shape.get(1).copied().unwrap_or(1);
                for slice in &parameter.slices {
                    for row in slice.rows.clone() {
                        for column in slice.columns.clone() {
                            owners[row * columns + column] += 1;
                        }
                    }
                }
            }
        }
        owners
    }

    proptest! {
        #[test]
        fn matrices_are_sharded_and_everything_else_is_replicated(
            llama: bool, ranks in 1usize..5, each in 1usize..3, vocab_size in 5usize..20,
        ) {
            let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
            shape.vocab_size = vocab_size;
            shape.num_kv_heads = ranks * each;
            shape.num_heads = shape.num_kv_heads * if llama { 2 } else { 1 };
            shape.hidden_size = shape.num_heads * 4;
            shape.intermediate_size = ranks * 3;
            shape.tie_embeddings = !llama;
            shape.bias = !llama;
            prop_assert_eq!(shape.check_tensor_parallel(ranks), Ok(()));
            for (name, owners) in owners(&shape, ranks) {
                let replicated = name.contains("norm") || name.contains("positions")
                    || name.ends_with("proj.bias") || name.ends_with("down.bias");
                let expected = if replicated { ranks } else { 1 };
                prop_assert!(owners.iter().all(|n| *n == expected), "{} {:?}", name, owners);
            }
        }
    }

    #[test]
    fn indivisible_kv_heads_are_refused() {
        let mut shape = shape(Family::Llama);
        (shape.num_heads, shape.num_kv_heads, shape.intermediate_size) = (12, 6, 24);
        let wrong = shape.check_tensor_parallel(4).unwrap_err();
        assert_eq!(wrong, "model.num_kv_heads 6 is not divisible by parallel.tp 4");
    }
}
