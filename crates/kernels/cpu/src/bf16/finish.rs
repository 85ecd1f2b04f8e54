//! The end of a tile: its sums go into the result.

use half::bf16;

use super::convert::{rounded, widened};
use super::operand::NumbersMut;

/// Columns of the widest tile.
pub const COLUMNS: usize = 32;
/// Rows of the tallest tile.
pub const ROWS: usize = 32;

/// What becomes of the result.
#[derive(Debug, Clone, Copy)]
pub enum Ending<'a> {
    /// It is the product.
    Set,
    /// It is the product plus a number for each column.
    Bias(&'a [f32]),
    /// The product is added to what is there.
    Add,
}

/// The sums of a tile, row after row.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sums(pub [[f32; COLUMNS]; ROWS]);

impl Default for Sums {
    fn default() -> Self {
        Self([[0.0; COLUMNS]; ROWS])
    }
}

/// Where a tile's sums go.
pub struct Goal<'a> {
    /// The result, from the tile's first number on.
    pub numbers: NumbersMut<'a>,
    /// From a row to the next.
    pub stride: usize,
    /// How many columns the result has here.
    pub columns: usize,
    /// What becomes of it; a bias begins at the tile's first column.
    pub ending: Ending<'a>,
}

impl Goal<'_> {
    /// The result's own memory and stride, if the sums of so many rows and columns are all that
    /// goes there.
    #[inline(always)]
    pub fn straight(&mut self, rows: usize, columns: usize) -> Option<(*mut f32, usize)> {
        match (&mut self.numbers, self.ending) {
            (NumbersMut::F32(c), Ending::Set) if self.columns == columns => {
                let last = (rows - 1) * self.stride + columns;
                Some((c[..last].as_mut_ptr(), self.stride))
            }
            _ => None,
        }
    }
}

/// How a kernel rounds whole rows to brain floats.
pub trait Rounding {
    /// # Safety
    /// The processor must have its instructions.
    unsafe fn row(wide: &[f32; COLUMNS], to: &mut [bf16; COLUMNS]);
}

/// Without any instructions in particular.
pub struct Plainly;

impl Rounding for Plainly {
    #[inline(always)]
    unsafe fn row(wide: &[f32; COLUMNS], to: &mut [bf16; COLUMNS]) {
        for (to, wide) in to.iter_mut().zip(wide) {
            *to = bf16::write(*wide);
        }
    }
}

/// A number of the result.
trait Number: Copy {
    fn read(self) -> f32;
    fn write(wide: f32) -> Self;
    /// # Safety
    /// The processor must have the instructions.
    unsafe fn write_row<R: Rounding>(wide: &[f32; COLUMNS], to: &mut [Self; COLUMNS]);
}

impl Number for f32 {
    #[inline(always)]
    fn read(self) -> f32 {
        self
    }
    #[inline(always)]
    fn write(wide: f32) -> Self {
        wide
    }
    #[inline(always)]
    unsafe fn write_row<R: Rounding>(wide: &[f32; COLUMNS], to: &mut [Self; COLUMNS]) {
        *to = *wide;
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn read(self) -> f32 {
        widened(self.to_bits())
    }
    #[inline(always)]
    fn write(wide: f32) -> Self {
        Self::from_bits(rounded(wide))
    }
    #[inline(always)]
    unsafe fn write_row<R: Rounding>(wide: &[f32; COLUMNS], to: &mut [Self; COLUMNS]) {
        // SAFETY: as the caller says.
        unsafe { R::row(wide, to) };
    }
}

/// Writes the first `rows` of the sums. Part of each kernel, so that it is compiled for its
/// instructions.
///
/// # Safety
/// The processor must have the instructions that rounding takes.
#[inline(always)]
pub unsafe fn finish<R: Rounding>(sums: &Sums, rows: usize, goal: Goal<'_>) {
    let Goal { numbers, stride, columns, ending } = goal;
    // SAFETY: as the caller says.
    unsafe {
        match numbers {
            NumbersMut::F32(c) => finish_rows::<R, _>(sums, rows, c, stride, columns, ending),
            NumbersMut::Bf16(c) => finish_rows::<R, _>(sums, rows, c, stride, columns, ending),
        }
    }
}

#[inline(always)]
unsafe fn finish_rows<R: Rounding, T: Number>(
    sums: &Sums,
    rows: usize,
    c: &mut [T],
    stride: usize,
    columns: usize,
    ending: Ending<'_>,
) {
    for (row, sums) in sums.0[..rows].iter().enumerate() {
        let to = &mut c[row * stride..][..columns];
        // SAFETY: as the caller says.
        unsafe {
            match ending {
                Ending::Set => each::<R, _>(to, sums, sums, |_, sum, _| sum),
                Ending::Bias(bias) => {
                    each::<R, _>(to, sums, &bias[..columns], |_, sum, bias| sum + bias);
                }
                Ending::Add => each::<R, _>(to, sums, sums, |old, sum, _| old + sum),
            }
        }
    }
}

/// The most common width is known to the compiler.
#[inline(always)]
unsafe fn each<R: Rounding, T: Number>(
    to: &mut [T],
    sums: &[f32],
    third: &[f32],
    f: impl Fn(f32, f32, f32) -> f32,
) {
    if let (Ok(to), Some(sums), Some(third)) = (
        <&mut [T; COLUMNS]>::try_from(&mut *to),
        sums.first_chunk::<COLUMNS>(),
        third.first_chunk::<COLUMNS>(),
    ) {
        let mut wide = [0.0; COLUMNS];
        for i in 0..COLUMNS {
            wide[i] = f(to[i].read(), sums[i], third[i]);
        }
        // SAFETY: as the caller says.
        unsafe { T::write_row::<R>(&wide, to) };
    } else {
        for ((to, sum), third) in to.iter_mut().zip(sums).zip(third) {
            *to = T::write(f(to.read(), *sum, *third));
        }
    }
}
