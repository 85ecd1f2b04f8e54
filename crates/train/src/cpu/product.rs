//! Matrix products: all of them go through [`Cpu::product`].

use super::Cpu;
use super::Precision;
use super::lanes::WIDTH;
use super::numbers::Apart;
use super::packed::{self, Start};
use super::pool::cut;
use super::tile::Matrix;
use crate::memory::{Format, View, ViewMut};

/// A matrix that is read: any rows and columns of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    /// Its numbers.
    pub view: View<'a>,
    /// From a row to the next.
    pub row_stride: usize,
    /// From a column to the next.
    pub column_stride: usize,
}

/// Multiplications that are worth another thread.
pub const LEAST: usize = 64 * 1024;

impl<'a> Operand<'a> {
    /// A matrix that lies row by row.
    pub fn rows(view: View<'a>, width: usize) -> Self {
        Self { view, row_stride: width, column_stride: 1 }
    }

    /// What lies row by row, with rows for columns.
    pub fn columns(view: View<'a>, width: usize) -> Self {
        Self { view, row_stride: 1, column_stride: width }
    }

    /// The same for kernels.
    ///
    /// # Panics
    /// If it is not in single precision.
    fn matrix(&self) -> Matrix {
        let start = self.view.host::<f32>().as_ptr();
        Matrix { start, row: self.row_stride, column: self.column_stride }
    }

    /// How many numbers such a matrix spans.
    fn span(&self, rows: usize, columns: usize) -> usize {
        (rows - 1) * self.row_stride + (columns - 1) * self.column_stride + 1
    }
}

/// Sizes of a product: `m` rows and `n` columns come out, of sums of `k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Rows.
    pub m: usize,
    /// Columns.
    pub n: usize,
    /// Summands.
    pub k: usize,
}

impl Cpu {
    /// `c = start + a b`; `c` lies row by row. Where there are brain floats, or they are asked for,
    /// it is a product of brain floats.
    pub(super) fn product(
        &self,
        sizes: Sizes,
        a: Operand<'_>,
        b: Operand<'_>,
        c: ViewMut<'_>,
        start: Start<'_>,
    ) {
        let Sizes { m, n, k } = sizes;
        assert_eq!(c.len(), m * n, "a product of another size");
        if m * n == 0 {
            return;
        }
        if let Start::Row(row) = start {
            assert_eq!(row.len(), n, "a row of another width");
        }
        if k == 0 {
            match start {
                Start::Zero => self.fill_numbers(0.0, c),
                Start::Add => {}
                Start::Row(row) => self.fill_rows(row, c),
            }
            return;
        }
        assert!(a.span(m, k) <= a.view.len() && b.span(k, n) <= b.view.len(), "a matrix too small");
        let formats = [a.view.format(), b.view.format(), c.format()];
        if self.precision == Precision::Bf16 || formats.contains(&Format::Bf16) {
            self.multiply_halves(sizes, a, b, c, start);
        } else {
            self.multiply(sizes, a, b, c.host(), start);
        }
    }

    /// In single precision, by whatever is faster.
    fn multiply(
        &self,
        sizes: Sizes,
        a: Operand<'_>,
        b: Operand<'_>,
        c: &mut [f32],
        start: Start<'_>,
    ) {
        if packed::pays(self.level, sizes) {
            // SAFETY: it was seen that both matrices are as large as said.
            return unsafe { self.multiply_packed(sizes, a.matrix(), b.matrix(), c, start) };
        }
        if let Start::Row(row) = start {
            self.fill_rows(row, ViewMut::of(c));
        }
        self.multiply_cut(sizes, a, b, c, !matches!(start, Start::Zero));
    }

    /// The longer side of the result is cut between the threads.
    fn multiply_cut(&self, sizes: Sizes, a: Operand<'_>, b: Operand<'_>, c: &mut [f32], add: bool) {
        let Sizes { m, n, k } = sizes;
        let (a_numbers, b_numbers) = (a.view.host::<f32>(), b.view.host::<f32>());
        let c = Apart::new(c);
        let parts = self.pool.parts(m.saturating_mul(n).saturating_mul(k), LEAST);
        self.pool.run(parts, |part| {
            let (rows, columns) = if m >= n {
                (cut(m, parts, part, WIDTH), 0..n)
            } else {
                (0..m, cut(n, parts, part, WIDTH))
            };
            if rows.is_empty() || columns.is_empty() {
                return;
            }
            let a_part = &a_numbers[rows.start * a.row_stride..];
            let b_part = &b_numbers[columns.start * b.column_stride..];
            // SAFETY: it was seen that both matrices are as large as said. The parts of the result
            // are within it and disjoint.
            unsafe {
                gemm::gemm(
                    rows.len(),
                    columns.len(),
                    k,
                    c.address(rows.start * n + columns.start),
                    1,
                    n as isize,
                    add,
                    a_part.as_ptr(),
                    a.column_stride as isize,
                    a.row_stride as isize,
                    b_part.as_ptr(),
                    b.column_stride as isize,
                    b.row_stride as isize,
                    1.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        });
    }
}
