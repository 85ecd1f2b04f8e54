//! Random cases for any number of ranks.

use proptest::prelude::*;
use regatta_comm::{CallKind, DType, ReduceOp};

use super::case::{Case, Sizes, hash64};

/// A case for any number of ranks.
#[derive(Debug, Clone)]
pub struct CaseTemplate {
    pub kind: CallKind,
    pub dtype: DType,
    pub op: ReduceOp,
    pub root: u32,
    pub shape: Shape,
    pub in_place: bool,
    pub seed: u64,
}

/// Distribution of elements over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// This many per rank.
    Even(usize),
    /// At most this many per rank, or per pair for an all-to-all; some counts are 0.
    Uneven(usize),
}

impl CaseTemplate {
    pub fn case(&self, ranks: usize) -> Case {
        let parts = !self.kind.has_uniform_count() && self.kind != CallKind::Barrier;
        let sizes = match self.shape {
            Shape::Even(count) => Sizes::Equal(count),
            Shape::Uneven(count) if !parts => Sizes::Equal(count),
            Shape::Uneven(most) if self.kind == CallKind::AllToAll => {
                Sizes::PerPair((0..ranks).map(|from| self.send_counts(from, ranks, most)).collect())
            }
            Shape::Uneven(most) => {
                Sizes::PerRank((0..ranks).map(|rank| self.random_count(rank, 0, most)).collect())
            }
        };
        let Self { kind, dtype, op, root, in_place, seed, .. } = *self;
        Case { kind, dtype, op, root: root % ranks as u32, sizes, in_place, seed }
    }

    /// A rank's send counts; symmetric for in-place calls.
    fn send_counts(&self, from: usize, ranks: usize, most: usize) -> Vec<usize> {
        let pair = |to: usize| match self.in_place {
            true => self.random_count(from.min(to), from.max(to), most),
            false => self.random_count(from, to, most),
        };
        (0..ranks).map(pair).collect()
    }

    fn random_count(&self, one: usize, other: usize, most: usize) -> usize {
        let random = hash64(self.seed ^ hash64((one * 64 + other) as u64 + 1));
        if random.is_multiple_of(4) { 0 } else { (random >> 8) as usize % (most + 1) }
    }
}

/// Zero, one, few, odd counts, and counts that exceed a cache line, a slot or a packet.
fn counts() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0usize),
        1 => Just(1),
        3 => 2usize..20,
        3 => (10usize..200).prop_map(|half| 2 * half + 1),
        1 => 1000usize..20_000,
    ]
}

pub fn template() -> impl Strategy<Value = CaseTemplate> {
    let shape = (counts(), any::<bool>())
        .prop_map(|(count, even)| if even { Shape::Even(count) } else { Shape::Uneven(count) });
    let what = (0..CallKind::ALL.len(), 0..DType::ALL.len(), 0..ReduceOp::ALL.len());
    let all = (what, 0u32..17, shape, any::<bool>(), any::<u64>());
    all.prop_map(|((kind, dtype, op), root, shape, in_place, seed)| {
        let (kind, dtype, op) = (CallKind::ALL[kind], DType::ALL[dtype], ReduceOp::ALL[op]);
        CaseTemplate { kind, dtype, op, root, shape, in_place, seed }
    })
}

/// All combinations with a few element counts, each with a hash by which a sample is drawn.
pub fn all_combinations(ranks: u32) -> Vec<(u64, CaseTemplate)> {
    let mut all = Vec::new();
    for kind in CallKind::ALL {
        let ops = if kind.reduces() { &ReduceOp::ALL[..] } else { &ReduceOp::ALL[..1] };
        let roots = if kind.has_root() { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
        let uneven = !kind.has_uniform_count() && kind != CallKind::Barrier;
        for (dtype, op) in DType::ALL.into_iter().flat_map(|d| ops.iter().map(move |o| (d, *o))) {
            for (root, count) in roots.iter().flat_map(|r| [0, 1, 7, 100, 1003].map(|c| (*r, c))) {
                for in_place in [false, true] {
                    let shapes = [Shape::Even(count), Shape::Uneven(count)];
                    for shape in shapes.into_iter().take(1 + usize::from(uneven)) {
                        let seed = hash64(all.len() as u64 * 32 + u64::from(ranks));
                        let case = CaseTemplate { kind, dtype, op, root, shape, in_place, seed };
                        all.push((seed, case));
                    }
                }
            }
        }
    }
    all
}
