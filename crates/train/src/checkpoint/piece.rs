//! Pieces of tensors: what a rank has of a tensor, and where its numbers lie in the whole. No I/O.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// What numbers of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// What is trained.
    Parameter,
    /// The mean of gradients, or momentum.
    Moment1,
    /// The mean of squared gradients.
    Moment2,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Parameter, Self::Moment1, Self::Moment2];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Parameter => "parameter",
            Self::Moment1 => "moment1",
            Self::Moment2 => "moment2",
        })
    }
}

/// Which numbers of a tensor. A tensor counts as a matrix: its first dimension is the rows, all
/// others together the columns; a vector is one column.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// All of them.
    Whole,
    /// Those from a place to another, in the order of memory: what sharded optimizers have.
    Flat(Range<usize>),
    /// Some columns of some rows: what tensor parallel ranks have.
    Rectangle {
        /// Which rows.
        rows: Range<usize>,
        /// Which columns.
        columns: Range<usize>,
    },
}

/// Rows and columns of a tensor as a matrix, or nothing if it is beyond what can be counted.
pub fn matrix(shape: &[usize]) -> Option<(usize, usize)> {
    let rows = shape.first().copied().unwrap_or(1);
    let columns = shape.iter().skip(1).try_fold(1usize, |all, n| all.checked_mul(*n))?;
    // The bytes must be countable too.
    rows.checked_mul(columns)?.checked_mul(size_of::<f32>())?;
    Some((rows, columns))
}

/// Numbers in a row of memory: where they begin in the tensor, and how many they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first one's place in the whole tensor.
    pub start: usize,
    /// How many.
    pub len: usize,
}

impl Part {
    /// What is wrong with it for a tensor of this shape, as the end of a sentence.
    pub fn check(&self, shape: &[usize]) -> Result<(), String> {
        let (rows, columns) =
            matrix(shape).ok_or_else(|| format!("has the impossible shape {shape:?}"))?;
        let inside = |range: &Range<usize>, end| range.start <= range.end && range.end <= end;
        let fits = match self {
            Self::Whole => true,
            Self::Flat(range) => inside(range, rows * columns),
            Self::Rectangle { rows: some, columns: few } => {
                inside(some, rows) && inside(few, columns)
            }
        };
        if fits { Ok(()) } else { Err(format!("has a part {self} outside of its shape {shape:?}")) }
    }

    /// How many numbers it has; the part is checked.
    pub fn len(&self, shape: &[usize]) -> usize {
        match self {
            Self::Whole => shape.iter().product(),
            Self::Flat(range) => range.len(),
            Self::Rectangle { rows, columns } => rows.len() * columns.len(),
        }
    }

    /// Rows and columns, or the number, of its own numbers.
    pub fn own_shape(&self, shape: &[usize]) -> Vec<usize> {
        match self {
            Self::Whole => shape.to_vec(),
            Self::Flat(range) => vec![range.len()],
            Self::Rectangle { rows, columns } => vec![rows.len(), columns.len()],
        }
    }

    /// Its numbers as runs of the whole tensor's, in the part's own order.
    pub fn runs(&self, shape: &[usize]) -> impl Iterator<Item = Run> + use<> {
        let (rows, width) = matrix(shape).unwrap_or((0, 0));
        let (lines, first, stride, len) = match self {
            Self::Whole => (0..1, 0, 0, rows * width),
            Self::Flat(range) => (0..1, range.start, 0, range.len()),
            // Whole rows lie one behind the other.
            Self::Rectangle { rows, columns } if columns.len() == width => {
                (0..1, rows.start * width, 0, rows.len() * width)
            }
            Self::Rectangle { rows, columns } => {
                (rows.clone(), columns.start, width, columns.len())
            }
        };
        lines.map(move |line| Run { start: first + line * stride, len }).filter(|run| run.len > 0)
    }

    /// Where in this part the tensor's number at a place is, and how many follow it in both.
    pub fn locate(&self, shape: &[usize], place: usize) -> Option<Run> {
        let (rows, width) = matrix(shape)?;
        let (all, base) = match self {
            Self::Whole => (0..rows * width, 0),
            Self::Flat(range) => (range.clone(), 0),
            Self::Rectangle { rows, columns } => {
                let line = place.checked_div(width)?;
                let begin = line * width;
                let inside = begin + columns.start..begin + columns.end;
                let before = line.checked_sub(rows.start)? * columns.len();
                (if line < rows.end { inside } else { 0..0 }, before)
            }
        };
        let found = all.contains(&place);
        found.then(|| Run { start: base + place - all.start, len: all.end - place })
    }
}

impl fmt::Display for Part {
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

/// What a rank has of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The tensor's name, such as `layer.3.qkv.weight`.
    pub name: String,
    /// What the numbers are.
    pub kind: Kind,
    /// The whole tensor's shape.
    pub shape: Vec<usize>,
    /// Which part of it this is.
    pub part: Part,
    /// The part's numbers, row by row.
    pub numbers: Vec<f32>,
}

/// A piece whose numbers come later.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// The tensor's name.
    pub name: String,
    /// What the numbers are.
    pub kind: Kind,
    /// The whole tensor's shape.
    pub shape: Vec<usize>,
    /// Which part of it this is.
    pub part: Part,
}

impl Outline {
    /// With its numbers.
    pub fn with(self, numbers: Vec<f32>) -> Piece {
        let Self { name, kind, shape, part } = self;
        Piece { name, kind, shape, part, numbers }
    }
}

impl Piece {
    /// All but the numbers.
    pub fn outline(&self) -> Outline {
        let Self { name, kind, shape, part, .. } = self;
        let (name, shape, part) = (name.clone(), shape.clone(), part.clone());
        Outline { name, kind: *kind, shape, part }
    }

    /// A whole tensor.
    pub fn whole(name: &str, kind: Kind, shape: &[usize], numbers: Vec<f32>) -> Self {
        Self { name: name.to_owned(), kind, shape: shape.to_vec(), part: Part::Whole, numbers }
    }
}

/// What a piece is called in its file: the kind, the name, and the part if it is not all.
pub fn key(kind: Kind, name: &str, part: &Part) -> String {
    match part {
        Part::Whole => format!("{kind}/{name}"),
        part => format!("{kind}/{name}{part}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(rows: usize, columns: usize) -> impl Strategy<Value = Part> {
        let range = |n: usize| (0..=n, 0..=n).prop_map(|(a, b)| a.min(b)..a.max(b));
        prop_oneof![
            Just(Part::Whole),
            range(rows * columns).prop_map(Part::Flat),
            (range(rows), range(columns))
                .prop_map(|(rows, columns)| Part::Rectangle { rows, columns }),
        ]
    }

    proptest! {
        #[test]
        fn runs_and_locate_agree(
            (shape, part) in (1usize..6, 1usize..6)
                .prop_flat_map(|(r, c)| (Just(vec![r, c]), part(r, c)))
        ) {
            prop_assert_eq!(part.check(&shape), Ok(()));
            let mut own = 0;
            let mut inside = std::collections::HashSet::new();
            for run in part.runs(&shape) {
                for place in run.start..run.start + run.len {
                    let found = part.locate(&shape, place).map(|found| found.start);
                    prop_assert_eq!(found, Some(own));
                    inside.insert(place);
                    own += 1;
                }
            }
            prop_assert_eq!(own, part.len(&shape));
            prop_assert_eq!(own, part.own_shape(&shape).iter().product::<usize>());
            for place in 0..shape.iter().product() {
                prop_assert_eq!(part.locate(&shape, place).is_some(), inside.contains(&place));
            }
        }
    }

    #[test]
    fn parts_outside_are_refused() {
        let shape = [3, 4];
        assert_eq!(Part::Flat(0..12).check(&shape), Ok(()));
        let outside = [
            Part::Flat(5..13),
            Part::Flat(Range { start: 4, end: 3 }),
            Part::Rectangle { rows: 0..4, columns: 0..4 },
            Part::Rectangle { rows: 0..3, columns: 2..5 },
        ];
        for part in outside {
            assert!(part.check(&shape).is_err(), "{part}");
        }
        assert!(Part::Whole.check(&[usize::MAX, 2]).is_err());
        assert!(Part::Whole.check(&[usize::MAX / 2]).is_err(), "its bytes cannot be counted");
    }

    #[test]
    fn vectors_are_one_column_and_names_say_the_part() {
        assert_eq!(matrix(&[7]), Some((7, 1)));
        assert_eq!(matrix(&[]), Some((1, 1)));
        assert_eq!(matrix(&[2, 3, 4]), Some((2, 12)));
        let part = Part::Rectangle { rows: 0..2, columns: 4..8 };
        assert_eq!(key(Kind::Moment1, "a.b", &part), "moment1/a.b[0..2, 4..8]");
        assert_eq!(key(Kind::Parameter, "a.b", &Part::Whole), "parameter/a.b");
    }
}
