//! Assembles a slice of a tensor from the shards that cover it. No I/O.

use super::shard::TensorSlice;

/// A contiguous copy from a shard to the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CopySpan {
    /// Index of the shard.
    pub shard: usize,
    /// Offset in the shard.
    pub from: usize,
    /// Offset in the destination.
    pub to: usize,
    /// Number of elements.
    pub len: usize,
}

/// The copies that assemble `want`, or the position of the first element that no shard has.
pub(super) fn cover(
    want: &TensorSlice,
    shape: &[usize],
    have: &[&TensorSlice],
) -> Result<Vec<CopySpan>, usize> {
    let mut copies: Vec<CopySpan> = Vec::new();
    let (mut to, mut last) = (0, 0);
    for run in want.contiguous_ranges(shape) {
        let (mut position, end) = (run.start, run.end);
        while position < end {
            // The next element is usually in the same shard or the following one.
            let order = (last..have.len()).chain(0..last);
            let mut found = order.map(|shard| (shard, have[shard].locate(shape, position)));
            let (shard, at) = found.find_map(|(shard, at)| Some((shard, at?))).ok_or(position)?;
            let len = at.len().min(end - position);
            copies.push(CopySpan { shard, from: at.start, to, len });
            (position, to, last) = (position + len, to + len, shard);
        }
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The elements of a slice of a tensor whose elements are their positions.
    fn elements(slice: &TensorSlice, shape: &[usize]) -> Vec<usize> {
        slice.contiguous_ranges(shape).flatten().collect()
    }

    fn split(shape: [usize; 2], ways: usize, how: u8) -> Vec<TensorSlice> {
        let [rows, columns] = shape;
        let share = |n: usize, i: usize| n * i / ways..n * (i + 1) / ways;
        (0..ways)
            .map(|i| match how {
                0 => TensorSlice::Flat(share(rows * columns, i)),
                1 => TensorSlice::Rectangle { rows: share(rows, i), columns: 0..columns },
                _ => TensorSlice::Rectangle { rows: 0..rows, columns: share(columns, i) },
            })
            .collect()
    }

    proptest! {
        #[test]
        fn any_sharding_assembles_to_any_other(
            rows in 1usize..9, columns in 1usize..9,
            ways in 1usize..5, how in 0u8..3, other_ways in 1usize..5, other in 0u8..3,
        ) {
            let shape = [rows, columns];
            let slices = split(shape, ways, how);
            let stored: Vec<_> = slices.iter().map(|slice| elements(slice, &shape)).collect();
            let have: Vec<&TensorSlice> = slices.iter().collect();
            for want in split(shape, other_ways, other) {
                let mut out = vec![usize::MAX; want.len(&shape)];
                for copy in cover(&want, &shape, &have).expect("covered") {
                    let from = &stored[copy.shard][copy.from..copy.from + copy.len];
                    out[copy.to..copy.to + copy.len].copy_from_slice(from);
                }
                prop_assert_eq!(out, elements(&want, &shape));
            }
        }
    }

    #[test]
    fn a_gap_is_reported_by_its_first_element() {
        let slices = [TensorSlice::Flat(0..5), TensorSlice::Flat(6..12)];
        let have: Vec<&TensorSlice> = slices.iter().collect();
        assert_eq!(cover(&TensorSlice::Whole, &[3, 4], &have), Err(5));
        let corner = TensorSlice::Rectangle { rows: 1..3, columns: 2..4 };
        assert_eq!(cover(&corner, &[3, 4], &have).map(|copies| copies.len()), Ok(2));
    }
}
