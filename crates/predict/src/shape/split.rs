//! How ranks of a tensor group share a model's matrices: which numbers of a whole parameter one of
//! them has. No I/O.

use std::ops::Range;

use super::Shape;

/// One of several ranks that share something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Which of them.
    pub rank: usize,
    /// How many they are.
    pub ranks: usize,
}

impl Share {
    /// There are no others.
    pub const ALL: Self = Self { rank: 0, ranks: 1 };

    /// This rank's of so many things, as many as the others' or one more.
    pub fn of(self, count: usize) -> Range<usize> {
        count * self.rank / self.ranks..count * (self.rank + 1) / self.ranks
    }
}

/// Some columns of some rows of a parameter; a vector has one column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// Which rows.
    pub rows: Range<usize>,
    /// Which columns.
    pub columns: Range<usize>,
}

impl Patch {
    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a parameter is shared.
#[derive(Debug, Clone, Copy)]
pub enum Cut<'a> {
    /// Every rank has all of it.
    None,
    /// Rows, of groups of so many that lie one after the other: queries, keys and values are three.
    Rows(&'a [usize]),
    /// Columns.
    Columns,
}

impl Cut<'_> {
    /// What a rank has of a parameter with these rows and columns.
    pub fn patches(self, share: Share, (rows, columns): (usize, usize)) -> Vec<Patch> {
        match self {
            Self::None => vec![Patch { rows: 0..rows, columns: 0..columns }],
            Self::Columns => vec![Patch { rows: 0..rows, columns: share.of(columns) }],
            Self::Rows(groups) => {
                let ends = groups.iter().scan(0, |end, group| {
                    *end += group;
                    Some(*end)
                });
                let one = |(group, end): (&usize, usize)| {
                    let (own, start) = (share.of(*group), end - group);
                    Patch { rows: start + own.start..start + own.end, columns: 0..columns }
                };
                groups.iter().zip(ends).map(one).collect()
            }
        }
    }
}

impl Shape {
    /// What does not divide among so many tensor-parallel ranks, as a sentence with the keys' names.
    pub fn check_tensor(&self, ranks: usize) -> Result<(), String> {
        let attention = [("heads", self.heads), ("kv_heads", self.kv_heads)];
        let attention = if self.attends() { &attention[..] } else { &[] };
        let inner = [("feed_forward", self.feed_forward)];
        if let Some((name, size)) =
            attention.iter().chain(&inner).find(|(_, size)| size % ranks != 0)
        {
            return Err(format!("model.{name} {size} does not divide among parallel.tp {ranks}"));
        }
        if self.vocabulary < ranks {
            return Err(format!("parallel.tp {ranks} is more than the kinds of tokens"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Family;
    use crate::testing::shape;
    use proptest::prelude::*;

    /// The numbers of each whole parameter, marked by how many ranks have them.
    fn marks(shape: &Shape, ranks: usize) -> Vec<(String, Vec<usize>)> {
        let whole = shape.blocks();
        let of = |block: &crate::shape::Block| block.parameters.clone();
        let mut marks: Vec<_> =
            whole.iter().flat_map(of).map(|p| (p.name.clone(), vec![0; p.len()])).collect();
        for rank in 0..ranks {
            let blocks = shape.blocks_of(Share { rank, ranks });
            for (parameter, (name, marks)) in blocks.iter().flat_map(of).zip(&mut marks) {
                assert_eq!(parameter.name, *name);
                let own: usize = parameter.patches.iter().map(Patch::len).sum();
                assert_eq!(own, parameter.len());
                let columns = parameter.whole.get(1).copied().unwrap_or(1);
                for patch in &parameter.patches {
                    for row in patch.rows.clone() {
                        for column in patch.columns.clone() {
                            marks[row * columns + column] += 1;
                        }
                    }
                }
            }
        }
        marks
    }

    proptest! {
        #[test]
        fn matrices_are_shared_and_the_rest_is_everybodys(
            llama: bool, ranks in 1usize..5, each in 1usize..3, vocabulary in 5usize..20,
        ) {
            let mut shape = shape(if llama { Family::Llama } else { Family::Gpt2 });
            shape.vocabulary = vocabulary;
            shape.kv_heads = ranks * each;
            shape.heads = shape.kv_heads * if llama { 2 } else { 1 };
            shape.width = shape.heads * 4;
            shape.feed_forward = ranks * 3;
            shape.tied = !llama;
            shape.bias = !llama;
            prop_assert_eq!(shape.check_tensor(ranks), Ok(()));
            for (name, marks) in marks(&shape, ranks) {
                let whole = name.contains("norm") || name.contains("positions")
                    || name.ends_with("proj.bias") || name.ends_with("down.bias");
                let expected = if whole { ranks } else { 1 };
                prop_assert!(marks.iter().all(|n| *n == expected), "{} {:?}", name, marks);
            }
        }
    }

    #[test]
    fn heads_that_do_not_divide_are_refused() {
        let mut shape = shape(Family::Llama);
        (shape.heads, shape.kv_heads, shape.feed_forward) = (12, 6, 24);
        let wrong = shape.check_tensor(4).unwrap_err();
        assert_eq!(wrong, "model.kv_heads 6 does not divide among parallel.tp 4");
    }
}
