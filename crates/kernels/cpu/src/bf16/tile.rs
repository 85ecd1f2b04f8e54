//! The heart: one tile of the result, its sums in registers, one step for two numbers of `k`.

use super::finish::{COLUMNS, Goal, Plainly, Rounding, Sums, finish};
use super::lines::{Line, WORDS};

/// What a tile is made from.
pub struct Tile {
    /// Rows of the result.
    pub rows: usize,
    /// Panels of sixteen columns.
    pub panels: usize,
    /// Where the left operand is.
    pub left: Left,
    /// The right operand's first line: sixteen columns, for one pair of `k`; the next pairs follow.
    pub right: *const Line,
    /// Lines from there to the next panel.
    pub right_stride: usize,
    /// Pairs of `k`.
    pub pairs: usize,
}

/// Rows of a left operand, packed or where they were.
#[derive(Clone, Copy)]
pub struct Left {
    /// The first line of the first row: sixteen pairs of `k`.
    pub start: *const Line,
    /// Bytes from there to the next row. Kernels that read rows in place take any; others want all
    /// lines of a row, then the next row.
    pub row: usize,
    /// Bytes from there to the next sixteen pairs.
    pub step: usize,
}

impl Left {
    /// The same from a row on.
    pub fn at_row(self, row: usize) -> Self {
        Self { start: self.start.wrapping_byte_add(row * self.row), ..self }
    }
}

/// Computes a tile and writes it.
///
/// # Safety
/// The processor must have the kernel's instructions, the tile must not be larger than the
/// kernel's, and both operands must be there, packed, with whole groups of sixteen pairs.
pub type Run = unsafe fn(&Tile, &mut Sums, Goal<'_>);

/// Sixteen columns in the vectors of a processor.
///
/// # Safety
/// All of them need the processor to have the instructions.
pub trait Lanes {
    /// Rows of the tallest tile whose sums are all in registers.
    const ROWS: usize;
    /// Panels of the widest.
    const PANELS: usize;
    /// Lines that a row has for sixteen pairs: two if they are widened beforehand.
    const LEFT_LINES: usize;
    /// How results become brain floats.
    type Rounding: Rounding;
    /// Sixteen sums.
    type Sum: Copy;
    /// A pair of the left operand, for all columns.
    type Left: Copy;
    /// A pair of the right operand of each column.
    type Right: Copy;

    /// Zeros.
    unsafe fn zero() -> Self::Sum;
    /// The pair whose first word is here.
    unsafe fn left(word: *const u32) -> Self::Left;
    /// The pairs of a line.
    unsafe fn right(line: *const Line) -> Self::Right;
    /// Adds the products of pairs.
    unsafe fn add(sum: Self::Sum, left: Self::Left, right: Self::Right) -> Self::Sum;
    /// Writes sixteen sums.
    unsafe fn store(sum: Self::Sum, to: *mut f32);
}

/// Where sums go, and how far it is from a row of them to the next.
type To = (*mut f32, usize);

/// The sums of a tile of `R` rows and `V` panels.
#[inline(always)]
unsafe fn multiply<L: Lanes, const R: usize, const V: usize>(tile: &Tile, (to, row): To) {
    // SAFETY: the caller vouches for the instructions, for operands of as many lines as there are
    // pairs, and for the room that the sums need.
    unsafe {
        let mut acc = [[L::zero(); V]; R];
        let (mut left, mut right) = (tile.left.start, tile.right);
        let mut pairs = tile.pairs;
        while pairs > 0 {
            let now = pairs.min(WORDS);
            for word in 0..now {
                let mut columns = [L::right(right); V];
                for (v, columns) in columns.iter_mut().enumerate().skip(1) {
                    *columns = L::right(right.add(v * tile.right_stride));
                }
                for (r, acc) in acc.iter_mut().enumerate() {
                    let row = L::left(left.add(r * L::LEFT_LINES).cast::<u32>().add(word));
                    for v in 0..V {
                        acc[v] = L::add(acc[v], row, columns[v]);
                    }
                }
                right = right.add(1);
            }
            left = left.wrapping_byte_add(tile.left.step);
            pairs -= now;
        }
        for (r, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                L::store(*acc, to.add(r * row + v * WORDS));
            }
        }
    }
}

/// Any tile that is not too large: each height is compiled for itself.
#[inline(always)]
unsafe fn multiply_rows<L: Lanes, const V: usize>(tile: &Tile, to: To) {
    macro_rules! heights {
        ($($rows:literal)*) => {
            match tile.rows {
                // SAFETY: as the caller says.
                $($rows if $rows <= L::ROWS => unsafe { multiply::<L, $rows, V>(tile, to) },)*
                rows => unreachable!("no kernel has tiles of {rows} rows"),
            }
        };
    }
    heights!(1 2 3 4 5 6 7 8 9 10 11 12 13 14);
}

/// A [`Run`] by vectors.
///
/// # Safety
/// As there.
#[inline(always)]
pub unsafe fn run<L: Lanes>(tile: &Tile, sums: &mut Sums, mut goal: Goal<'_>) {
    let straight = goal.straight(tile.rows, tile.panels * WORDS);
    let to = straight.unwrap_or((sums.0.as_flattened_mut().as_mut_ptr(), COLUMNS));
    // SAFETY: as the caller says.
    unsafe {
        if tile.panels == 2 && L::PANELS == 2 {
            multiply_rows::<L, 2>(tile, to);
        } else {
            multiply_rows::<L, 1>(tile, to);
        }
    }
    if straight.is_none() {
        // SAFETY: as the caller says.
        unsafe { finish::<L::Rounding>(sums, tile.rows, goal) };
    }
}

/// Plain loops, for any processor.
pub struct Portable;

impl Lanes for Portable {
    const ROWS: usize = 2;
    const PANELS: usize = 1;
    const LEFT_LINES: usize = 2;
    type Rounding = Plainly;
    type Sum = [f32; WORDS];
    type Left = [f32; 2];
    type Right = [u32; WORDS];

    #[inline(always)]
    unsafe fn zero() -> Self::Sum {
        [0.0; WORDS]
    }

    #[inline(always)]
    unsafe fn left(word: *const u32) -> Self::Left {
        // SAFETY: the second word is a line behind the first.
        unsafe { [f32::from_bits(*word), f32::from_bits(*word.add(WORDS))] }
    }

    #[inline(always)]
    unsafe fn right(line: *const Line) -> Self::Right {
        // SAFETY: the line is there.
        unsafe { (*line).0 }
    }

    #[inline(always)]
    unsafe fn add(mut sum: Self::Sum, left: Self::Left, right: Self::Right) -> Self::Sum {
        for (sum, pair) in sum.iter_mut().zip(right) {
            *sum += left[0] * f32::from_bits(pair << 16);
            *sum += left[1] * f32::from_bits(pair & 0xffff_0000);
        }
        sum
    }

    #[inline(always)]
    unsafe fn store(sum: Self::Sum, to: *mut f32) {
        // SAFETY: there is room for sixteen.
        unsafe { to.cast::<[f32; WORDS]>().write_unaligned(sum) }
    }
}
