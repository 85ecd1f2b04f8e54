//! Matrix products: all of them go through [`Cpu::product`].

use crate::Cpu;
use crate::Precision;
use crate::lanes::WIDTH;
use crate::numbers::Apart;
use crate::packed::{self, Start};
use crate::pool::cut;
use crate::tile::Matrix;
use regatta_device::memory::{Format, View, ViewMut};

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

impl Sizes {
    /// Multiplications.
    pub fn work(self) -> usize {
        self.m.saturating_mul(self.n).saturating_mul(self.k)
    }
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
        let parts = self.pool.parts(sizes.work(), LEAST);
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
                let c = c.address(rows.start * n + columns.start);
                let a = (a_part.as_ptr(), a.row_stride, a.column_stride);
                let b = (b_part.as_ptr(), b.row_stride, b.column_stride);
                by_columns([columns.len(), rows.len(), k], [b, a], c, n, add);
            }
        });
    }
}

/// A product of `gemm`, which writes column by column: our rows are its columns, and the right
/// matrix is its left one. Matrices have an address, and how far it is to the next row and column.
///
/// # Safety
/// The matrices must be there, as large as the sizes say.
unsafe fn by_columns(
    [m, n, k]: [usize; 3],
    [left, right]: [(*const f32, usize, usize); 2],
    to: *mut f32,
    stride: usize,
    add: bool,
) {
    let multiply = gemm_f32::gemm::f32::get_gemm_fn();
    let alone = gemm_common::Parallelism::None;
    let (stride, [left_row, left_column]) = (stride as isize, [left.1 as isize, left.2 as isize]);
    let [right_row, right_column] = [right.1 as isize, right.2 as isize];
    // SAFETY: the caller's promise.
    unsafe {
        multiply(
            m,
            n,
            k,
            to,
            stride,
            1,
            add,
            left.0,
            left_row,
            left_column,
            right.0,
            right_row,
            right_column,
            1.0,
            1.0,
            false,
            false,
            false,
            alone,
        );
    }
}
