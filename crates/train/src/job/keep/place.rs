//! Where a rank's numbers of a parameter lie in the whole parameter. No I/O.

use std::ops::Range;

use crate::checkpoint::Part;
use regatta_predict::shape::{Parameter, Patch};

/// The parts of the whole parameter that a range of this rank's numbers of it are, in their order.
pub fn parts(parameter: &Parameter, range: Range<usize>) -> Vec<Part> {
    let whole: usize = parameter.whole.iter().product();
    let width = parameter.whole.get(1).copied().unwrap_or(1);
    let mut parts = Vec::new();
    let mut start = 0;
    for patch in &parameter.patches {
        let end = start + patch.len();
        let (from, to) = (range.start.clamp(start, end), range.end.clamp(start, end));
        if from < to {
            add(&mut parts, patch, width, from - start..to - start);
        }
        start = end;
    }
    match parts[..] {
        [Part::Flat(Range { start: 0, end })] if end == whole => vec![Part::Whole],
        _ => parts,
    }
}

/// Adds a range of a patch's numbers: one behind the other where the patch has all columns, else
/// what there is of a first row, whole rows, and what there is of a last one.
fn add(parts: &mut Vec<Part>, patch: &Patch, width: usize, range: Range<usize>) {
    let columns = patch.columns.len();
    if columns == width {
        let first = patch.rows.start * width;
        return add_flat(parts, first + range.start..first + range.end);
    }
    let mut place = range.start;
    while place < range.end {
        let (row, column) = (place / columns, place % columns);
        let left = range.end - place;
        let (rows, some) = match column {
            0 if left >= columns => (left / columns, columns),
            _ => (1, left.min(columns - column)),
        };
        let (row, column) = (patch.rows.start + row, patch.columns.start + column);
        parts.push(Part::Rectangle { rows: row..row + rows, columns: column..column + some });
        place += rows * some;
    }
}

/// Adds numbers that may follow those before: the queries, keys and values of a rank that has all.
fn add_flat(parts: &mut Vec<Part>, range: Range<usize>) {
    match parts.last_mut() {
        Some(Part::Flat(last)) if last.end == range.start => last.end = range.end,
        _ => parts.push(Part::Flat(range)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use regatta_predict::shape::{Family, Share};
    use regatta_predict::testing::shape;

    /// The parameters that one of so many tensor ranks has.
    fn parameters(llama: bool, share: Share) -> Vec<Parameter> {
        let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
        (shape.layers, shape.kv_heads) = (1, share.ranks);
        shape.heads = share.ranks * if llama { 2 } else { 1 };
        (shape.width, shape.feed_forward) = (shape.heads * 2, share.ranks * 3);
        shape.blocks_of(share).into_iter().flat_map(|block| block.parameters).collect()
    }

    /// The places in the whole of all of a rank's numbers, in their order.
    fn places(parameter: &Parameter) -> Vec<usize> {
        let width = parameter.whole.get(1).copied().unwrap_or(1);
        let of = |patch: &Patch| {
            let columns = patch.columns.clone();
            let row = move |row: usize| columns.clone().map(move |column| row * width + column);
            patch.rows.clone().flat_map(row).collect::<Vec<_>>()
        };
        parameter.patches.iter().flat_map(of).collect()
    }

    proptest! {
        #[test]
        fn parts_are_the_numbers_in_their_order(
            llama: bool, ranks in 1usize..5, rank in 0usize..4, ends in (0.0..1.0, 0.0..1.0),
        ) {
            for parameter in parameters(llama, Share { rank: rank % ranks, ranks }) {
                let end = |part: f64| (part * (parameter.len() + 1) as f64) as usize;
                let range = end(ends.0).min(end(ends.1))..end(ends.0).max(end(ends.1));
                let parts = parts(&parameter, range.clone());
                prop_assert!(parts.len() <= 3 * parameter.patches.len());
                let found: Vec<usize> = parts
                    .iter()
                    .flat_map(|part| part.runs(&parameter.whole))
                    .flat_map(|run| run.start..run.start + run.len)
                    .collect();
                prop_assert_eq!(&found, &places(&parameter)[range], "{}", parameter.name);
            }
        }
    }

    #[test]
    fn what_is_whole_is_called_so() {
        let find = |share: Share, name: &str| {
            parameters(false, share).into_iter().find(|p| p.name.ends_with(name)).unwrap()
        };
        // Two heads of two numbers: queries, keys and values are twelve rows of four.
        let all = find(Share::ALL, "qkv.weight");
        assert_eq!(parts(&all, 0..all.len()), [Part::Whole]);
        assert_eq!(parts(&all, 3..7), [Part::Flat(3..7)]);
        let half = Share { rank: 1, ranks: 2 };
        let rows = find(half, "qkv.weight");
        let flat = [Part::Flat(8..16), Part::Flat(24..32), Part::Flat(40..48)];
        assert_eq!(parts(&rows, 0..24), flat);
        let columns = find(half, "proj.weight");
        let rectangle = |rows, columns| Part::Rectangle { rows, columns };
        assert_eq!(parts(&columns, 0..8), [rectangle(0..4, 2..4)]);
        let three = [rectangle(0..1, 3..4), rectangle(1..3, 2..4), rectangle(3..4, 2..3)];
        assert_eq!(parts(&columns, 1..7), three);
    }
}
