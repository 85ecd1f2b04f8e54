//! What a case is made of, whatever number of ranks there is: what chance draws.

use proptest::prelude::*;
use regatta_comm::{DType, Kind, ReduceOp};

use super::case::{Case, Sizes, mix};

/// A case for any number of ranks.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub kind: Kind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: u32,
    pub shape: Shape,
    pub in_place: bool,
    pub seed: u64,
}

/// How elements are dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// So many for each.
    Even(usize),
    /// At most so many for each, or for each pair, where the collective can; some get none.
    Uneven(usize),
}

impl Recipe {
    pub fn case(&self, ranks: usize) -> Case {
        let parts = !self.kind.is_whole() && self.kind != Kind::Barrier;
        let sizes = match self.shape {
            Shape::Even(count) | Shape::Uneven(count) if !parts => Sizes::Equal(count),
            Shape::Even(count) => Sizes::Equal(count),
            Shape::Uneven(most) if self.kind == Kind::AllToAll => {
                Sizes::Exchange((0..ranks).map(|from| self.row(from, ranks, most)).collect())
            }
            Shape::Uneven(most) => {
                Sizes::Each((0..ranks).map(|rank| self.drawn(rank, 0, most)).collect())
            }
        };
        let (kind, dtype, op, in_place, seed) =
            (self.kind, self.dtype, self.op, self.in_place, self.seed);
        Case { kind, dtype, op, root: self.root % ranks as u32, sizes, in_place, seed }
    }

    /// What a rank sends to each; in place, as much as comes from there.
    fn row(&self, from: usize, ranks: usize, most: usize) -> Vec<usize> {
        let pair = |to: usize| match self.in_place {
            true => self.drawn(from.min(to), from.max(to), most),
            false => self.drawn(from, to, most),
        };
        (0..ranks).map(pair).collect()
    }

    fn drawn(&self, one: usize, other: usize, most: usize) -> usize {
        let drawn = mix(self.seed ^ mix((one * 64 + other) as u64 + 1));
        if drawn.is_multiple_of(4) { 0 } else { (drawn >> 8) as usize % (most + 1) }
    }
}

/// None, one, few, odd numbers, and more than fit into a line, a slot or a packet.
fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        1 => Just(1),
        3 => 2usize..20,
        3 => (10usize..200).prop_map(|half| 2 * half + 1),
        1 => 1000usize..20_000,
    ]
}

/// Any recipe.
pub fn recipe() -> impl Strategy<Value = Recipe> {
    let shape = (counts(), any::<bool>())
        .prop_map(|(count, even)| if even { Shape::Even(count) } else { Shape::Uneven(count) });
    let what = (0..Kind::ALL.len(), 0..DType::ALL.len(), 0..ReduceOp::ALL.len());
    (what, 0u32..17, shape, any::<bool>(), any::<u64>()).prop_map(
        |((kind, dtype, op), root, shape, in_place, seed)| Recipe {
            kind: Kind::ALL[kind],
            dtype: DType::ALL[dtype],
            op: ReduceOp::ALL[op],
            root,
            shape,
            in_place,
            seed,
        },
    )
}

/// All there are, with numbers of elements out of a few, for so many ranks; each with a number by
/// which some can be chosen.
pub fn product(ranks: u32) -> Vec<(u64, Recipe)> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let ops = if kind.reduces() { &ReduceOp::ALL[..] } else { &ReduceOp::ALL[..1] };
        let roots = if kind.has_root() { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
        let uneven = !kind.is_whole() && kind != Kind::Barrier;
        for (dtype, op) in DType::ALL.into_iter().flat_map(|d| ops.iter().map(move |o| (d, *o))) {
            for (root, count) in roots.iter().flat_map(|r| [0, 1, 7, 100, 1003].map(|c| (*r, c))) {
                for in_place in [false, true] {
                    for shape in [Shape::Even(count), Shape::Uneven(count)] {
                        if shape == Shape::Uneven(count) && !uneven {
                            continue;
                        }
                        let seed = mix(all.len() as u64 * 32 + u64::from(ranks));
                        all.push((seed, Recipe { kind, dtype, op, root, shape, in_place, seed }));
                    }
                }
            }
        }
    }
    all
}
