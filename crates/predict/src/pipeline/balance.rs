//! Where the model is cut: contiguous parts of blocks, as equal in cost as they can be.

use std::ops::Range;

use crate::shape::{Family, Shape};

/// Why blocks cannot be shared among parts.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BalanceError {
    /// More parts than blocks.
    #[error(
        "a model of {blocks} blocks (embedding, layers, head) cannot be cut into {parts} parts: at \
         least 1, at most {blocks}"
    )]
    Parts {
        /// How many blocks.
        blocks: usize,
        /// How many parts.
        parts: usize,
    },
    /// A cost that is none.
    #[error("block {block} costs {cost}: a cost is a number from 0 on")]
    NoCost {
        /// The block.
        block: usize,
        /// What it is said to cost.
        cost: f64,
    },
}

/// Cuts blocks into parts, none of them empty, so that the most expensive part is as cheap as can be,
/// and then so that the parts are as equal as can be: by the sum of their squares.
pub fn balance(costs: &[f64], parts: usize) -> Result<Vec<Range<usize>>, BalanceError> {
    let blocks = costs.len();
    if parts == 0 || parts > blocks {
        return Err(BalanceError::Parts { blocks, parts });
    }
    if let Some(block) = costs.iter().position(|cost| !cost.is_finite() || *cost < 0.0) {
        return Err(BalanceError::NoCost { block, cost: costs[block] });
    }
    let mut sums = vec![0.0];
    for cost in costs {
        sums.push(sums[sums.len() - 1] + cost);
    }
    let cost = |part: &Range<usize>| sums[part.end] - sums[part.start];
    let greatest = best(blocks, parts, |part, rest| cost(&part).max(rest));
    let most = greatest.cost;
    // The same sums in the same way, so that what was the most is not more now.
    let smoothest = best(blocks, parts, |part, rest| match cost(&part) {
        cost if cost > most => f64::INFINITY,
        cost => cost * cost + rest,
    });
    Ok(smoothest.cuts)
}

struct Best {
    cost: f64,
    cuts: Vec<Range<usize>>,
}

/// The cheapest way to cut the blocks, where `add` says what a part and what is before it come to.
/// Of equal ways it is the one whose last parts are the longest.
fn best(blocks: usize, parts: usize, add: impl Fn(Range<usize>, f64) -> f64) -> Best {
    // What the first blocks cost in so many parts; one row a number of parts.
    let mut costs: Vec<f64> =
        (0..=blocks).map(|end| if end == 0 { 0.0 } else { f64::INFINITY }).collect();
    let mut starts: Vec<Vec<usize>> = Vec::new();
    for part in 1..=parts {
        let mut row = vec![f64::INFINITY; blocks + 1];
        let mut from = vec![part - 1; blocks + 1];
        for end in part..=blocks {
            let ways = (part - 1..end).map(|start| (add(start..end, costs[start]), start));
            for (cost, start) in ways {
                if cost < row[end] {
                    (row[end], from[end]) = (cost, start);
                }
            }
        }
        costs = row;
        starts.push(from);
    }
    let mut cuts = Vec::with_capacity(parts);
    let mut end = blocks;
    for from in starts.iter().rev() {
        cuts.push(from[end]..end);
        end = from[end];
    }
    cuts.reverse();
    Best { cost: costs[blocks], cuts }
}

/// What the blocks of a model cost in training: embedding, layers, head, in operations a token in a
/// sequence of this length, as [`Shape::training_flops_per_token`] counts them. The embedding has no
/// products, only sums: its positions are added, and gradients are added to its rows.
pub fn costs_of(shape: &Shape, sequence: usize) -> Vec<f64> {
    let with = |layers| Shape { layers, ..shape.clone() }.training_flops_per_token(sequence);
    let head = with(0);
    let layer = with(1) - head;
    let sums = if shape.family == Family::Gpt2 { 3 } else { 1 };
    let mut costs = vec![(sums * shape.width) as f64];
    costs.extend(std::iter::repeat_n(layer, shape.layers));
    costs.push(head);
    costs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn total(costs: &[f64], part: &Range<usize>) -> f64 {
        costs[part.clone()].iter().sum()
    }

    /// Greatest sum, then sum of squares.
    fn grade(costs: &[f64], cuts: &[Range<usize>]) -> (f64, f64) {
        let sums: Vec<f64> = cuts.iter().map(|part| total(costs, part)).collect();
        (sums.iter().copied().fold(0.0, f64::max), sums.iter().map(|sum| sum * sum).sum())
    }

    /// Every way to cut `from..end` into so many parts.
    fn all_cuts(from: usize, end: usize, parts: usize) -> Vec<Vec<Range<usize>>> {
        if parts == 1 {
            return vec![std::iter::once(from..end).collect()];
        }
        let mut all = Vec::new();
        for cut in from + 1..=end + 1 - parts {
            for rest in all_cuts(cut, end, parts - 1) {
                all.push(std::iter::once(from..cut).chain(rest).collect());
            }
        }
        all
    }

    proptest! {
        #[test]
        fn no_other_cut_is_better(
            costs in prop::collection::vec(0u32..20, 1..10), parts in 1usize..6,
        ) {
            // Whole numbers, so that sums are exact.
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            prop_assume!(parts <= costs.len());
            let cuts = balance(&costs, parts).unwrap();
            prop_assert_eq!(cuts.len(), parts);
            prop_assert!(cuts.iter().all(|part| !part.is_empty()));
            prop_assert_eq!((cuts[0].start, cuts[parts - 1].end), (0, costs.len()));
            prop_assert!(cuts.windows(2).all(|two| two[0].end == two[1].start));
            let grades = all_cuts(0, costs.len(), parts).into_iter().map(|cuts| grade(&costs, &cuts));
            let least = grades.reduce(|a, b| if b < a { b } else { a }).unwrap();
            prop_assert_eq!(grade(&costs, &cuts), least);
        }

        #[test]
        fn any_costs_are_shared(costs in prop::collection::vec(0f64..1e18, 1..30), parts in 1usize..30) {
            prop_assume!(parts <= costs.len());
            let cuts = balance(&costs, parts).unwrap();
            prop_assert!(cuts.iter().all(|part| !part.is_empty()));
            prop_assert_eq!((cuts[0].start, cuts[parts - 1].end), (0, costs.len()));
        }
    }

    #[test]
    fn what_cannot_be_shared_is_refused() {
        assert_eq!(balance(&[1.0, 2.0], 3), Err(BalanceError::Parts { blocks: 2, parts: 3 }));
        assert_eq!(balance(&[1.0], 0), Err(BalanceError::Parts { blocks: 1, parts: 0 }));
        assert!(matches!(balance(&[1.0, f64::NAN], 1), Err(BalanceError::NoCost { block: 1, .. })));
        assert!(matches!(balance(&[-1.0], 1), Err(BalanceError::NoCost { block: 0, .. })));
    }

    fn gpt2() -> Shape {
        Shape {
            family: Family::Gpt2,
            vocabulary: 50_257,
            context: 1024,
            width: 768,
            layers: 12,
            heads: 12,
            kv_heads: 12,
            feed_forward: 3072,
            tied: true,
            bias: true,
            norm_epsilon: 1e-5,
            rope_base: 0.0,
        }
    }

    #[test]
    fn the_costs_of_a_model_are_its_operations() {
        let shape = gpt2();
        let costs = costs_of(&shape, 1024);
        assert_eq!(costs.len(), shape.blocks().len());
        let products: f64 = costs[1..].iter().sum();
        assert_eq!(products, shape.training_flops_per_token(1024));
        assert_eq!(costs[0], 3.0 * 768.0);
        let llama = Shape { family: Family::Llama, ..shape };
        assert_eq!(costs_of(&llama, 1024)[0], 768.0);
    }

    #[test]
    fn the_head_counts_as_layers() {
        // Of GPT-2 it is worth five layers: the last stage has fewer of them.
        let cuts = balance(&costs_of(&gpt2(), 1024), 2).unwrap();
        assert_eq!(cuts, [0..9, 9..14]);
        let cuts = balance(&costs_of(&gpt2(), 1024), 4).unwrap();
        assert_eq!(cuts, [0..5, 5..9, 9..13, 13..14]);
    }
}
