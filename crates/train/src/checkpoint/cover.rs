//! How a part of a tensor is put together from the pieces that cover it. No I/O.

use super::piece::Part;

/// Numbers to copy: so many from a place in a piece to a place in what is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copying {
    /// Which piece.
    pub piece: usize,
    /// Where in the piece.
    pub from: usize,
    /// Where in what is wanted.
    pub to: usize,
    /// How many numbers.
    pub len: usize,
}

/// The copies that make up the wanted part, or the place of the first number that no piece has.
pub(super) fn cover(want: &Part, shape: &[usize], have: &[&Part]) -> Result<Vec<Copying>, usize> {
    let mut copies: Vec<Copying> = Vec::new();
    let (mut to, mut last) = (0, 0);
    for run in want.runs(shape) {
        let (mut place, end) = (run.start, run.start + run.len);
        while place < end {
            // Neighbours are mostly in the piece that had the last one, or in the next.
            let order = (last..have.len()).chain(0..last);
            let mut found = order.map(|piece| (piece, have[piece].locate(shape, place)));
            let (piece, at) = found.find_map(|(piece, at)| Some((piece, at?))).ok_or(place)?;
            let len = at.len.min(end - place);
            copies.push(Copying { piece, from: at.start, to, len });
            (place, to, last) = (place + len, to + len, piece);
        }
    }
    Ok(copies)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Numbers of a part of a tensor whose numbers are their places.
    fn numbers(part: &Part, shape: &[usize]) -> Vec<usize> {
        part.runs(shape).flat_map(|run| run.start..run.start + run.len).collect()
    }

    fn split(shape: [usize; 2], ways: usize, how: u8) -> Vec<Part> {
        let [rows, columns] = shape;
        let share = |n: usize, i: usize| n * i / ways..n * (i + 1) / ways;
        (0..ways)
            .map(|i| match how {
                0 => Part::Flat(share(rows * columns, i)),
                1 => Part::Rectangle { rows: share(rows, i), columns: 0..columns },
                _ => Part::Rectangle { rows: 0..rows, columns: share(columns, i) },
            })
            .collect()
    }

    proptest! {
        #[test]
        fn what_was_split_in_any_way_is_put_together_in_any_other(
            rows in 1usize..9, columns in 1usize..9,
            ways in 1usize..5, how in 0u8..3, other_ways in 1usize..5, other in 0u8..3,
        ) {
            let shape = [rows, columns];
            let parts = split(shape, ways, how);
            let stored: Vec<_> = parts.iter().map(|part| numbers(part, &shape)).collect();
            let have: Vec<&Part> = parts.iter().collect();
            for want in split(shape, other_ways, other) {
                let mut out = vec![usize::MAX; want.len(&shape)];
                for copy in cover(&want, &shape, &have).expect("all is covered") {
                    let from = &stored[copy.piece][copy.from..copy.from + copy.len];
                    out[copy.to..copy.to + copy.len].copy_from_slice(from);
                }
                prop_assert_eq!(out, numbers(&want, &shape));
            }
        }
    }

    #[test]
    fn a_gap_is_named_by_its_first_number() {
        let parts = [Part::Flat(0..5), Part::Flat(6..12)];
        let have: Vec<&Part> = parts.iter().collect();
        assert_eq!(cover(&Part::Whole, &[3, 4], &have), Err(5));
        let corner = Part::Rectangle { rows: 1..3, columns: 2..4 };
        assert_eq!(cover(&corner, &[3, 4], &have).map(|copies| copies.len()), Ok(2));
    }
}
