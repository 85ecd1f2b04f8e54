//! Splits the model into contiguous chunks of blocks of about equal cost.

use std::ops::Range;

use crate::shape::{Family, ModelShape};

/// Blocks that cannot be split.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum BalanceError {
    /// More chunks than blocks.
    #[error(
        "a model of {blocks} blocks (embedding, layers, head) cannot be split into {chunks} pipeline \
         chunks: use 1 to {blocks} (parallel.pp x parallel.virtual_stages)"
    )]
    Chunks { blocks: usize, chunks: usize },
    /// A negative or non-finite cost.
    #[error("cost {cost} of block {block} is not a finite number >= 0")]
    InvalidCost { block: usize, cost: f64 },
}

/// Splits blocks into non-empty chunks: minimises the most expensive chunk, then the sum of squared costs.
pub fn balance(costs: &[f64], chunks: usize) -> Result<Vec<Range<usize>>, BalanceError> {
    let blocks = costs.len();
    if chunks == 0 || chunks > blocks {
        return Err(BalanceError::Chunks { blocks, chunks });
    }
    if let Some(block) = costs.iter().position(|cost| !cost.is_finite() || *cost < 0.0) {
        return Err(BalanceError::InvalidCost { block, cost: costs[block] });
    }
    let mut sums = vec![0.0];
    for cost in costs {
        sums.push(sums[sums.len() - 1] + cost);
    }
    let cost = |chunk: &Range<usize>| sums[chunk.end] - sums[chunk.start];
    let (max, _) = best(blocks, chunks, |chunk, rest| cost(&chunk).max(rest));
    // Same additions in the same order, so that the maximum compares equal.
    let (_, smoothest) = best(blocks, chunks, |chunk, rest| match cost(&chunk) {
        cost if cost > max => f64::INFINITY,
        cost => cost * cost + rest,
    });
    Ok(smoothest)
}

/// Dynamic programme for the cheapest split and its cost, where `add` combines the cost of a chunk with that of the
/// chunks before it. Of equally cheap splits, the one with the longest last chunks.
fn best(
    blocks: usize,
    chunks: usize,
    add: impl Fn(Range<usize>, f64) -> f64,
) -> (f64, Vec<Range<usize>>) {
    // Cost of the first `end` blocks in `chunk` chunks.
    let mut costs = vec![f64::INFINITY; blocks + 1];
    costs[0] = 0.0;
    let mut starts: Vec<Vec<usize>> = Vec::new();
    for chunk in 1..=chunks {
        let mut row = vec![f64::INFINITY; blocks + 1];
        let mut from = vec![chunk - 1; blocks + 1];
        for end in chunk..=blocks {
            for (start, rest) in costs.iter().enumerate().take(end).skip(chunk - 1) {
                let cost = add(start..end, *rest);
                if cost < row[end] {
                    (row[end], from[end]) = (cost, start);
                }
            }
        }
        costs = row;
        starts.push(from);
    }
    let mut split = Vec::with_capacity(chunks);
    let mut end = blocks;
    for from in starts.iter().rev() {
        split.push(from[end]..end);
        end = from[end];
    }
    split.reverse();
    (costs[blocks], split)
}

/// Training FLOPs per token of embedding, layers and head, as counted by
/// [`ModelShape::training_flops_per_token`]. The embedding has additions only.
pub fn block_costs(shape: &ModelShape, seq_len: usize) -> Vec<f64> {
    let [head, with_layer] = [0, 1].map(|num_layers| {
        ModelShape { num_layers, ..shape.clone() }.training_flops_per_token(seq_len)
    });
    let additions = if shape.family == Family::Gpt2 { 3 } else { 1 };
    let mut costs = vec![(additions * shape.hidden_size) as f64];
    costs.extend(std::iter::repeat_n(with_layer - head, shape.num_layers));
    costs.push(head);
    costs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn total(costs: &[f64], chunk: &Range<usize>) -> f64 {
        costs[chunk.clone()].iter().sum()
    }

    /// Maximum chunk cost, then sum of squares.
    fn objective(costs: &[f64], split: &[Range<usize>]) -> (f64, f64) {
        let sums: Vec<f64> = split.iter().map(|chunk| total(costs, chunk)).collect();
        (sums.iter().copied().fold(0.0, f64::max), sums.iter().map(|sum| sum * sum).sum())
    }

    /// Every split of `from..end` into `chunks` chunks.
    fn all_splits(from: usize, end: usize, chunks: usize) -> Vec<Vec<Range<usize>>> {
        if chunks == 1 {
            return vec![std::iter::once(from..end).collect()];
        }
        let splits = |middle: usize| {
            let rests = all_splits(middle, end, chunks - 1).into_iter();
            rests.map(move |rest| std::iter::once(from..middle).chain(rest).collect())
        };
        (from + 1..=end + 1 - chunks).flat_map(splits).collect()
    }

    proptest! {
        #[test]
        fn no_other_split_is_cheaper(
            costs in prop::collection::vec(0u32..20, 1..10), chunks in 1usize..6,
        ) {
            // Integers, so that sums are exact.
            let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
            prop_assume!(chunks <= costs.len());
            let split = balance(&costs, chunks).unwrap();
            prop_assert_eq!(split.len(), chunks);
            prop_assert!(split.iter().all(|chunk| !chunk.is_empty()));
            prop_assert_eq!((split[0].start, split[chunks - 1].end), (0, costs.len()));
            prop_assert!(split.windows(2).all(|two| two[0].end == two[1].start));
            let objectives = all_splits(0, costs.len(), chunks).into_iter().map(|split| objective(&costs, &split));
            let min = objectives.reduce(|a, b| if b < a { b } else { a }).unwrap();
            prop_assert_eq!(objective(&costs, &split), min);
        }

        #[test]
        fn chunks_cover_all_blocks(costs in prop::collection::vec(0f64..1e18, 1..30), chunks in 1usize..30) {
            prop_assume!(chunks <= costs.len());
            let split = balance(&costs, chunks).unwrap();
            prop_assert!(split.iter().all(|chunk| !chunk.is_empty()));
            prop_assert_eq!((split[0].start, split[chunks - 1].end), (0, costs.len()));
        }
    }

    #[test]
    fn invalid_chunk_counts_and_costs_are_refused() {
        assert_eq!(balance(&[1.0, 2.0], 3), Err(BalanceError::Chunks { blocks: 2, chunks: 3 }));
        assert_eq!(balance(&[1.0], 0), Err(BalanceError::Chunks { blocks: 1, chunks: 0 }));
        let nan = balance(&[1.0, f64::NAN], 1);
        assert!(matches!(nan, Err(BalanceError::InvalidCost { block: 1, .. })));
        assert!(matches!(balance(&[-1.0], 1), Err(BalanceError::InvalidCost { block: 0, .. })));
    }

    fn gpt2() -> ModelShape {
        ModelShape {
            vocab_size: 50_257,
            hidden_size: 768,
            num_layers: 12,
            num_heads: 12,
            num_kv_heads: 12,
            intermediate_size: 3072,
            ..crate::testing::shape(Family::Gpt2)
        }
    }

    #[test]
    fn block_costs_sum_to_training_flops() {
        let shape = gpt2();
        let costs = block_costs(&shape, 1024);
        assert_eq!(costs.len(), shape.blocks().len());
        let gemms: f64 = costs[1..].iter().sum();
        assert_eq!(gemms, shape.training_flops_per_token(1024));
        assert_eq!(costs[0], 3.0 * 768.0);
        let llama = ModelShape { family: Family::Llama, ..shape };
        assert_eq!(block_costs(&llama, 1024)[0], 768.0);
    }

    #[test]
    fn head_cost_moves_layers_to_earlier_stages() {
        // The GPT-2 head costs as much as five layers.
        let split = |stages| balance(&block_costs(&gpt2(), 1024), stages).unwrap();
        assert_eq!(split(2), [0..9, 9..14]);
        assert_eq!(split(4), [0..5, 5..9, 9..13, 13..14]);
    }
}
