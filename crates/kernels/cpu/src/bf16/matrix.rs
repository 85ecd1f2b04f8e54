//! Matrices of f32 or bf16 elements as GEMM operands and outputs.

use crate::slice::{Slice, SliceMut};

/// A strided matrix: element `(r, c)` has the index `r * row_stride + c * column_stride`.
#[derive(Debug, Clone, Copy)]
pub struct MatrixSlice<'a> {
    /// Elements, from the first of the matrix on.
    pub elements: Slice<'a>,
    /// Stride between rows.
    pub row_stride: usize,
    /// Stride between columns.
    pub column_stride: usize,
}

impl<'a> MatrixSlice<'a> {
    /// A row-major matrix.
    pub fn row_major(elements: Slice<'a>, row_len: usize) -> Self {
        Self { elements, row_stride: row_len, column_stride: 1 }
    }

    /// The transposed matrix.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// # Panics
    /// If an element of such a matrix would be out of bounds.
    pub(super) fn assert_in_bounds(&self, rows: usize, columns: usize) {
        let strides = [self.row_stride, self.column_stride];
        assert_in_bounds(self.elements.len(), [rows, columns], strides);
    }
}

/// A mutable matrix with a column stride of 1.
#[derive(Debug)]
pub struct MatrixSliceMut<'a> {
    /// Elements, from the first of the matrix on.
    pub elements: SliceMut<'a>,
    /// Stride between rows.
    pub row_stride: usize,
}

impl<'a> MatrixSliceMut<'a> {
    /// A row-major matrix.
    pub fn row_major(elements: SliceMut<'a>, row_len: usize) -> Self {
        Self { elements, row_stride: row_len }
    }

    /// # Panics
    /// If an element of such a matrix would be out of bounds, or rows would overlap.
    pub(super) fn assert_in_bounds(&self, rows: usize, columns: usize) {
        assert_in_bounds(self.elements.len(), [rows, columns], [self.row_stride, 1]);
        assert!(
            rows <= 1 || columns <= self.row_stride,
            "rows of {columns} elements overlap with a stride of {}",
            self.row_stride
        );
    }
}

fn assert_in_bounds(len: usize, shape: [usize; 2], strides: [usize; 2]) {
    if shape.contains(&0) {
        return;
    }
    let span = |i: usize| (shape[i] - 1).checked_mul(strides[i]);
    let last = span(0).zip(span(1)).and_then(|(a, b)| a.checked_add(b));
    assert!(
        last.is_some_and(|last| last < len),
        "{len} elements are too few for a {} by {} matrix with strides {strides:?}",
        shape[0],
        shape[1]
    );
}
