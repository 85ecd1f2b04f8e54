//! Matrices of f32 or bf16 elements as GEMM operands and outputs.

use crate::gemm::small_f32::MatrixPtr;
use crate::slice::{ElementPtr, Slice, SliceMut};

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
    pub fn row_major(elements: impl Into<Slice<'a>>, row_len: usize) -> Self {
        Self { elements: elements.into(), row_stride: row_len, column_stride: 1 }
    }

    /// The matrix from a row on.
    pub(crate) fn at_row(self, row: usize) -> Self {
        let elements = self.elements.slice(row * self.row_stride..self.elements.len());
        Self { elements, ..self }
    }

    /// A pointer to it.
    ///
    /// # Panics
    /// If it is not f32.
    pub(crate) fn as_ptr(&self) -> MatrixPtr {
        let Self { elements: Slice::F32(elements), row_stride, column_stride } = *self else {
            panic!("expected f32 elements, got bf16");
        };
        MatrixPtr { ptr: elements.as_ptr(), row_stride, column_stride }
    }

    /// The transposed matrix.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// # Panics
    /// If an element of such a matrix would be out of bounds.
    pub(crate) fn assert_in_bounds(&self, rows: usize, columns: usize) {
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
    pub fn row_major(elements: impl Into<SliceMut<'a>>, row_len: usize) -> Self {
        Self { elements: elements.into(), row_stride: row_len }
    }

    /// A pointer to it.
    pub(super) fn into_ptr(mut self) -> OutputPtr {
        OutputPtr { elements: self.elements.as_mut_ptr(), row_stride: self.row_stride }
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

/// Pointer to an output with a column stride of 1. Tasks with the same rows have different columns, so there
/// is no slice that a task could have for itself.
#[derive(Debug, Clone, Copy)]
pub struct OutputPtr {
    pub elements: ElementPtr,
    pub row_stride: usize,
}

impl OutputPtr {
    /// The output from an element on.
    #[inline(always)]
    pub fn at(self, row: usize, column: usize) -> Self {
        Self { elements: self.elements.wrapping_add(row * self.row_stride + column), ..self }
    }
}

fn assert_in_bounds(len: usize, shape: [usize; 2], strides: [usize; 2]) {
    if shape.contains(&0) {
        return;
    }
    let span = |i: usize| (shape[i] - 1).checked_mul(strides[i]);
    let last = span(0).zip(span(1)).and_then(|(a, b)| a.checked_add(b));
    let [rows, columns] = shape;
    assert!(
        last.is_some_and(|last| last < len),
        "{len} elements are too few for a {rows} by {columns} matrix with strides {strides:?}"
    );
}
