//! Shards: slices of tensors, and their positions in the full tensor. No I/O.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Which tensor of the training state: a parameter or one of its moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateTensor {
    /// The parameter.
    Parameter,
    /// First moment (AdamW) or momentum (SGD).
    Moment1,
    /// Second moment (AdamW).
    Moment2,
}

impl StateTensor {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Parameter, Self::Moment1, Self::Moment2];
}

impl fmt::Display for StateTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A slice of a tensor. Tensors are treated as matrices: the first dimension is the rows, the others are
/// flattened to columns; a vector is one column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorSlice {
    /// The full tensor.
    Whole,
    /// A contiguous range in row-major order, as with ZeRO.
    Flat(Range<usize>),
    /// Some rows and columns, as with tensor parallelism.
    Rectangle {
        /// Rows.
        rows: Range<usize>,
        /// Columns.
        columns: Range<usize>,
    },
}

/// Rows and columns of a tensor as a matrix; None if its size in bytes overflows.
pub fn matrix(shape: &[usize]) -> Option<(usize, usize)> {
    let rows = shape.first().copied().unwrap_or(1);
    let columns = shape.iter().skip(1).try_fold(1usize, |all, n| all.checked_mul(*n))?;
    // In bytes.
    rows.checked_mul(columns)?.checked_mul(size_of::<f32>())?;
    Some((rows, columns))
}

impl TensorSlice {
    /// Checks it against a shape. Errors are predicates about the tensor.
    pub fn check(&self, shape: &[usize]) -> Result<(), String> {
        let (rows, columns) =
            matrix(shape).ok_or_else(|| format!("has the invalid shape {shape:?}"))?;
        let inside = |range: &Range<usize>, end| range.start <= range.end && range.end <= end;
        let fits = match self {
            Self::Whole => true,
            Self::Flat(range) => inside(range, rows * columns),
            Self::Rectangle { rows: r, columns: c } => inside(r, rows) && inside(c, columns),
        };
        let outside = || format!("has a slice {self} outside of its shape {shape:?}");
        fits.then_some(()).ok_or_else(outside)
    }

    /// Number of elements; the slice must be valid.
    pub fn len(&self, shape: &[usize]) -> usize {
        match self {
            Self::Whole => shape.iter().product(),
            Self::Flat(range) => range.len(),
            Self::Rectangle { rows, columns } => rows.len() * columns.len(),
        }
    }

    /// Shape of the slice itself.
    pub fn own_shape(&self, shape: &[usize]) -> Vec<usize> {
        match self {
            Self::Whole => shape.to_vec(),
            Self::Flat(range) => vec![range.len()],
            Self::Rectangle { rows, columns } => vec![rows.len(), columns.len()],
        }
    }

    /// Its contiguous ranges in the full tensor, in order.
    pub fn contiguous_ranges(&self, shape: &[usize]) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, width) = matrix(shape).unwrap_or((0, 0));
        let (lines, first, stride, len) = match self {
            Self::Whole => (0..1, 0, 0, rows * width),
            Self::Flat(range) => (0..1, range.start, 0, range.len()),
            // Full rows are contiguous.
            Self::Rectangle { rows, columns } if columns.len() == width => {
                (0..1, rows.start * width, 0, rows.len() * width)
            }
            Self::Rectangle { rows, columns } => {
                (rows.clone(), columns.start, width, columns.len())
            }
        };
        lines
            .map(move |line| first + line * stride..first + line * stride + len)
            .filter(|range| !range.is_empty())
    }

    /// Position in this slice of an element of the tensor, and how many elements follow contiguously in both.
    pub fn locate(&self, shape: &[usize], at: usize) -> Option<Range<usize>> {
        let (rows, width) = matrix(shape)?;
        let (all, base) = match self {
            Self::Whole => (0..rows * width, 0),
            Self::Flat(range) => (range.clone(), 0),
            Self::Rectangle { rows, columns } => {
                let line = at.checked_div(width)?;
                let begin = line * width;
                let inside = begin + columns.start..begin + columns.end;
                let before = line.checked_sub(rows.start)? * columns.len();
                (if line < rows.end { inside } else { 0..0 }, before)
            }
        };
        let found = all.contains(&at);
        found.then(|| base + at - all.start..base + all.end - all.start)
    }
}

impl fmt::Display for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("[..]"),
            Self::Flat(range) => write!(f, "[{}..{}]", range.start, range.end),
            Self::Rectangle { rows, columns } => {
                let (r, c) = (rows, columns);
                write!(f, "[{}..{}, {}..{}]", r.start, r.end, c.start, c.end)
            }
        }
    }
}

/// A shard of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    /// Tensor and slice.
    pub meta: ShardMeta,
    /// The elements, row-major.
    pub elements: Vec<f32>,
}

/// A shard without its elements.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardMeta {
    /// Name of the tensor, such as `layer.3.qkv.weight`.
    pub name: String,
    /// Parameter or moment.
    pub kind: StateTensor,
    /// Full shape of the tensor.
    pub shape: Vec<usize>,
    /// The slice of the tensor.
    pub slice: TensorSlice,
}

impl Shard {
    /// A full tensor.
    pub fn full_tensor(name: &str, kind: StateTensor, shape: &[usize], elements: Vec<f32>) -> Self {
        let (name, shape, slice) = (name.to_owned(), shape.to_vec(), TensorSlice::Whole);
        Self { meta: ShardMeta { name, kind, shape, slice }, elements }
    }
}

/// Name of a shard in its file: kind, name, and the slice unless full.
pub fn key(kind: StateTensor, name: &str, slice: &TensorSlice) -> String {
    match slice {
        TensorSlice::Whole => format!("{kind}/{name}"),
        slice => format!("{kind}/{name}{slice}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slice(rows: usize, columns: usize) -> impl Strategy<Value = TensorSlice> {
        let range = |n: usize| (0..=n, 0..=n).prop_map(|(a, b)| a.min(b)..a.max(b));
        prop_oneof![
            Just(TensorSlice::Whole),
            range(rows * columns).prop_map(TensorSlice::Flat),
            (range(rows), range(columns))
                .prop_map(|(rows, columns)| TensorSlice::Rectangle { rows, columns }),
        ]
    }

    proptest! {
        #[test]
        fn runs_and_locate_agree(
            (shape, slice) in (1usize..6, 1usize..6)
                .prop_flat_map(|(r, c)| (Just(vec![r, c]), slice(r, c)))
        ) {
            prop_assert_eq!(slice.check(&shape), Ok(()));
            let mut own = 0;
            let mut inside = std::collections::HashSet::new();
            for run in slice.contiguous_ranges(&shape) {
                for position in run {
                    let found = slice.locate(&shape, position).map(|found| found.start);
                    prop_assert_eq!(found, Some(own));
                    inside.insert(position);
                    own += 1;
                }
            }
            prop_assert_eq!(own, slice.len(&shape));
            prop_assert_eq!(own, slice.own_shape(&shape).iter().product::<usize>());
            for position in 0..shape.iter().product() {
                prop_assert_eq!(slice.locate(&shape, position).is_some(), inside.contains(&position));
            }
        }
    }

    #[test]
    fn slices_outside_of_the_shape_are_refused() {
        let shape = [3, 4];
        assert_eq!(TensorSlice::Flat(0..12).check(&shape), Ok(()));
        let outside = [
            TensorSlice::Flat(5..13),
            TensorSlice::Flat(Range { start: 4, end: 3 }),
            TensorSlice::Rectangle { rows: 0..4, columns: 0..4 },
            TensorSlice::Rectangle { rows: 0..3, columns: 2..5 },
        ];
        for slice in outside {
            assert!(slice.check(&shape).is_err(), "{slice}");
        }
        assert!(TensorSlice::Whole.check(&[usize::MAX, 2]).is_err());
        let overflow = TensorSlice::Whole.check(&[usize::MAX / 2]);
        assert!(overflow.is_err(), "its size in bytes overflows");
    }

    #[test]
    fn vectors_are_one_column_and_keys_contain_the_slice() {
        assert_eq!(matrix(&[7]), Some((7, 1)));
        assert_eq!(matrix(&[]), Some((1, 1)));
        assert_eq!(matrix(&[2, 3, 4]), Some((2, 12)));
        let slice = TensorSlice::Rectangle { rows: 0..2, columns: 4..8 };
        assert_eq!(key(StateTensor::Moment1, "a.b", &slice), "moment1/a.b[0..2, 4..8]");
        assert_eq!(key(StateTensor::Parameter, "a.b", &TensorSlice::Whole), "parameter/a.b");
    }
}
