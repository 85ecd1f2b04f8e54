//! Random cases for any number of ranks.

use proptest::prelude::*;
use proptest::sample::select;
use regatta_comm::{CallKind, DType, ReduceOp};
use regatta_testbed::reference::hash64;

use super::case::{Case, Sizes};

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

/// A random case, for [`Case::for_ranks`].
pub fn any_case() -> impl Strategy<Value = Case> {
    let sizes = prop_oneof![counts().prop_map(Sizes::Equal), counts().prop_map(Sizes::Uneven)];
    let (kinds, dtypes) = (select(&CallKind::ALL[..]), select(&DType::ALL[..]));
    let what = (kinds, dtypes, select(&ReduceOp::ALL[..]));
    let all = (what, 0u32..17, sizes, any::<bool>(), any::<u64>());
    all.prop_map(|((kind, dtype, op), root, sizes, in_place, seed)| Case {
        kind,
        dtype,
        op,
        root,
        sizes,
        in_place,
        seed,
    })
}

/// A sample of all combinations: this fraction of them.
pub fn sample(ranks: u32, fraction: f64) -> Vec<Case> {
    let drawn = |case: &Case| (case.seed as f64 / u64::MAX as f64) < fraction;
    let some = all_combinations(ranks).into_iter().filter(drawn);
    some.map(|case| case.for_ranks(ranks as usize)).collect()
}

/// All combinations with a few element counts, each with a seed by which a sample is drawn.
pub fn all_combinations(ranks: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for kind in CallKind::ALL {
        let ops = if kind.reduces() { &ReduceOp::ALL[..] } else { &ReduceOp::ALL[..1] };
        let roots = if kind.has_root() { vec![0, ranks / 2, ranks - 1] } else { vec![0] };
        let uneven = !kind.has_uniform_count() && kind != CallKind::Barrier;
        for (dtype, op) in DType::ALL.into_iter().flat_map(|d| ops.iter().map(move |o| (d, *o))) {
            for (root, count) in roots.iter().flat_map(|r| [0, 1, 7, 100, 1003].map(|c| (*r, c))) {
                for in_place in [false, true] {
                    let shapes = [Sizes::Equal(count), Sizes::Uneven(count)];
                    for sizes in shapes.into_iter().take(1 + usize::from(uneven)) {
                        let seed = hash64(all.len() as u64 * 32 + u64::from(ranks));
                        all.push(Case { kind, dtype, op, root, sizes, in_place, seed });
                    }
                }
            }
        }
    }
    all
}
