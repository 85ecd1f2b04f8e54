//! What goes into a product and comes out of it: borrowed numbers and the strides between them.

use half::bf16;

/// Numbers to read.
#[derive(Debug, Clone, Copy)]
pub enum Numbers<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Brain floats.
    Bf16(&'a [bf16]),
}

impl Numbers<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Numbers to write.
#[derive(Debug)]
pub enum NumbersMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Brain floats.
    Bf16(&'a mut [bf16]),
}

/// An operand. Its number in row `r` and column `c` is number `r * row_stride + c * column_stride`.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// The numbers, from the first of the matrix on.
    pub numbers: Numbers<'a>,
    /// From a row to the next.
    pub row_stride: usize,
    /// From a column to the next.
    pub column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Rows of `width` numbers, one after the other.
    pub fn rows(numbers: Numbers<'a>, width: usize) -> Self {
        Self { numbers, row_stride: width, column_stride: 1 }
    }

    /// Rows for columns; the numbers stay where they are.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// # Panics
    /// If its last number is not there.
    pub(super) fn assert_holds(&self, rows: usize, columns: usize) {
        assert_holds(self.numbers.len(), [rows, columns], [self.row_stride, self.column_stride]);
    }
}

/// A result. Its columns lie next to each other.
#[derive(Debug)]
pub struct Output<'a> {
    /// The numbers, from the first of the matrix on.
    pub numbers: NumbersMut<'a>,
    /// From a row to the next.
    pub row_stride: usize,
}

impl<'a> Output<'a> {
    /// Rows of `width` numbers, one after the other.
    pub fn rows(numbers: NumbersMut<'a>, width: usize) -> Self {
        Self { numbers, row_stride: width }
    }

    /// # Panics
    /// If its last number is not there.
    pub(super) fn assert_holds(&self, rows: usize, columns: usize) {
        let len = match &self.numbers {
            NumbersMut::F32(numbers) => numbers.len(),
            NumbersMut::Bf16(numbers) => numbers.len(),
        };
        assert_holds(len, [rows, columns], [self.row_stride, 1]);
        assert!(
            rows <= 1 || columns <= self.row_stride,
            "rows of {columns} numbers overlap: their stride is {}",
            self.row_stride
        );
    }
}

fn assert_holds(len: usize, sizes: [usize; 2], strides: [usize; 2]) {
    if sizes.contains(&0) {
        return;
    }
    let span = |i: usize| (sizes[i] - 1).checked_mul(strides[i]);
    let last = span(0).zip(span(1)).and_then(|(a, b)| a.checked_add(b));
    assert!(
        last.is_some_and(|last| last < len),
        "{len} numbers do not hold a matrix of {} by {} with strides {strides:?}",
        sizes[0],
        sizes[1]
    );
}
