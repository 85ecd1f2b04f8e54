//! Maps ranges of a rank's slice of a parameter to slices of the full parameter. No I/O.

use std::ops::Range;

use crate::checkpoint::TensorSlice;
use regatta_predict::shape::{ParamSpec, ShardSlice};

/// The slices of the full parameter that make up a range of this rank's slice, in order.
pub fn slices(parameter: &ParamSpec, range: Range<usize>) -> Vec<TensorSlice> {
    let full_len: usize = parameter.full_shape.iter().product();
    let width = parameter.full_shape.get(1).copied().unwrap_or(1);
    let mut slices = Vec::new();
    let mut start = 0;
    for patch in &parameter.slices {
        let end = start + patch.len();
        let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
        if from < to {
            add(&mut slices, patch, width, from - start..to - start);
        }
        start = end;
    }
    match slices[..] {
        [TensorSlice::Flat(Range { start: 0, end })] if end == full_len => vec![TensorSlice::Whole],
        _ => slices,
    }
}

/// Adds a range of a patch: contiguous if the patch has all columns, otherwise a partial first row, full
/// rows, and a partial last row.
fn add(slices: &mut Vec<TensorSlice>, patch: &ShardSlice, width: usize, range: Range<usize>) {
    let columns = patch.columns.len();
    if columns == width {
        let first = patch.rows.start * width;
        return add_flat(slices, first + range.start..first + range.end);
    }
    let mut at = range.start;
    while at < range.end {
        let (row, column) = (at / columns, at % columns);
        let left = range.end - at;
        let (rows, range) = match column {
            0 if left >= columns => (left / columns, columns),
            _ => (1, left.min(columns - column)),
        };
        let (row, column) = (patch.rows.start + row, patch.columns.start + column);
        slices.push(TensorSlice::Rectangle {
            rows: row..row + rows,
            columns: column..column + range,
        });
        at += rows * range;
    }
}

/// Adds a contiguous range, merged with the previous one if adjacent (query, key and value of an unsharded rank).
fn add_flat(slices: &mut Vec<TensorSlice>, range: Range<usize>) {
    match slices.last_mut() {
        Some(TensorSlice::Flat(last)) if last.end == range.start => last.end = range.end,
        _ => slices.push(TensorSlice::Flat(range)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use regatta_predict::shape::{Family, Shard};
    use regatta_predict::testing::shape;

    /// The parameters of a tensor-parallel rank.
    fn parameters(llama: bool, share: Shard) -> Vec<ParamSpec> {
        let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
        (shape.num_layers, shape.num_kv_heads) = (1, share.ranks);
        shape.num_heads = share.ranks * if llama { 2 } else { 1 };
        (shape.hidden_size, shape.intermediate_size) = (shape.num_heads * 2, share.ranks * 3);
        shape.sharded_blocks(share).into_iter().flat_map(|block| block.parameters).collect()
    }

    /// The positions in the full parameter of all elements of a rank, in order.
    fn positions(parameter: &ParamSpec) -> Vec<usize> {
        let width = parameter.full_shape.get(1).copied().unwrap_or(1);
        let of = |patch: &ShardSlice| {
            let columns = patch.columns.clone();
            let row = move |row: usize| columns.clone().map(move |column| row * width + column);
            patch.rows.clone().flat_map(row).collect::<Vec<_>>()
        };
        parameter.slices.iter().flat_map(of).collect()
    }

    proptest! {
        #[test]
        fn slices_cover_the_range_in_order(
            llama: bool, ranks in 1usize..5, rank in 0usize..4, ends in (0.0..1.0, 0.0..1.0),
        ) {
            for parameter in parameters(llama, Shard { rank: rank % ranks, ranks }) {
                let end = |slice: f64| (slice * (parameter.len() + 1) as f64) as usize;
                let range = end(ends.0).min(end(ends.1))..end(ends.0).max(end(ends.1));
                let slices = slices(&parameter, range.clone());
                prop_assert!(slices.len() <= 3 * parameter.slices.len());
                let found: Vec<usize> = slices
                    .iter()
                    .flat_map(|slice| slice.contiguous_ranges(&parameter.full_shape).flatten())
                    .collect();
                prop_assert_eq!(&found, &positions(&parameter)[range], "{}", parameter.name);
            }
        }
    }

    #[test]
    fn full_parameters_become_a_single_slice() {
        let find = |share: Shard, name: &str| {
            parameters(false, share).into_iter().find(|p| p.name.ends_with(name)).unwrap()
        };
        // Two heads of size two: query, key and value are twelve rows of four.
        let all = find(Shard::UNSHARDED, "qkv.weight");
        assert_eq!(slices(&all, 0..all.len()), [TensorSlice::Whole]);
        assert_eq!(slices(&all, 3..7), [TensorSlice::Flat(3..7)]);
        let half = Shard { rank: 1, ranks: 2 };
        let rows = find(half, "qkv.weight");
        let flat = [TensorSlice::Flat(8..16), TensorSlice::Flat(24..32), TensorSlice::Flat(40..48)];
        assert_eq!(slices(&rows, 0..24), flat);
        let columns = find(half, "proj.weight");
        let rectangle = |rows, columns| TensorSlice::Rectangle { rows, columns };
        assert_eq!(slices(&columns, 0..8), [rectangle(0..4, 2..4)]);
        let three = [rectangle(0..1, 3..4), rectangle(1..3, 2..4), rectangle(3..4, 2..3)];
        assert_eq!(slices(&columns, 1..7), three);
    }
}
