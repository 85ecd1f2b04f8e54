//! Small f32 GEMMs of operands that are in the cache: no packing, any strides.

use crate::gemm::GemmShape;
use crate::isa::kernel;
use crate::lanes::{Lanes, WIDTH};

/// Rows of the micro-kernel.
pub const ROWS: usize = 6;

/// Pointer to a strided matrix.
#[derive(Debug, Clone, Copy)]
pub struct MatrixPtr {
    /// First element.
    pub ptr: *const f32,
    /// Stride between rows.
    pub row_stride: usize,
    /// Stride between columns.
    pub column_stride: usize,
}

// SAFETY: a bare address; code that dereferences it promises validity.
unsafe impl Send for MatrixPtr {}
// SAFETY: as above.
unsafe impl Sync for MatrixPtr {}

/// Pointer to a mutable matrix with a column stride of 1.
#[derive(Debug, Clone, Copy)]
pub struct MatrixPtrMut {
    /// First element.
    pub ptr: *mut f32,
    /// Stride between rows.
    pub row_stride: usize,
}

impl MatrixPtr {
    /// The transposed matrix.
    pub fn transposed(self) -> Self {
        Self { row_stride: self.column_stride, column_stride: self.row_stride, ..self }
    }

    /// The matrix from a row on.
    #[inline(always)]
    pub fn at_row(self, row: usize) -> Self {
        Self { ptr: self.ptr.wrapping_add(row * self.row_stride), ..self }
    }

    /// The matrix from a column on.
    #[inline(always)]
    pub fn at_column(self, column: usize) -> Self {
        Self { ptr: self.ptr.wrapping_add(column * self.column_stride), ..self }
    }
}

impl MatrixPtrMut {
    /// The matrix from a row on.
    #[inline(always)]
    pub fn at_row(self, row: usize) -> Self {
        Self { ptr: self.ptr.wrapping_add(row * self.row_stride), ..self }
    }

    /// As a pointer to a constant matrix.
    #[inline(always)]
    pub fn as_const(self) -> MatrixPtr {
        MatrixPtr { ptr: self.ptr, row_stride: self.row_stride, column_stride: 1 }
    }
}

kernel! {
    /// `c = a b`, or `c += a b`. `b` must have a column stride of 1.
    ///
    /// # Safety
    /// The matrices must have the given shape, with columns rounded up to a multiple of [`WIDTH`], and `c`
    /// must not be accessed otherwise.
    pub unsafe fn gemm_small<V>(
        shape: GemmShape, a: MatrixPtr, b: MatrixPtr, c: MatrixPtrMut, accumulate: bool,
    ) {
        debug_assert_eq!(b.column_stride, 1);
        // SAFETY: the caller's promise.
        unsafe { gemm_inline::<V, 0>(shape, a, b, c, accumulate.then_some(c.as_const())) }
    }
}

/// `c = init + a b`, for inlining into another kernel. Prefetches `b` `AHEAD` rows ahead, if not 0.
///
/// # Safety
/// As [`gemm_small`]; `init` must have the shape of `c`.
#[inline(always)]
pub unsafe fn gemm_inline<V: Lanes, const AHEAD: usize>(
    shape: GemmShape,
    a: MatrixPtr,
    b: MatrixPtr,
    c: MatrixPtrMut,
    init: Option<MatrixPtr>,
) {
    let mut at = 0;
    while at < shape.n {
        let vectors_left = (shape.n - at).div_ceil(WIDTH);
        let init = init.map(|init| init.at_column(at));
        let (b, c) = (b.at_column(at), MatrixPtrMut { ptr: c.ptr.wrapping_add(at), ..c });
        // 6 rows by 4 vectors of accumulators fit into 32 registers, 6 by 1 into 16.
        let vectors = if V::HAS_32_REGISTERS { vectors_left.min(4) } else { 1 };
        // SAFETY: the caller's promise.
        unsafe {
            match vectors {
                1 => gemm_rows::<V, 1, AHEAD>(shape, a, b, c, init),
                2 => gemm_rows::<V, 2, AHEAD>(shape, a, b, c, init),
                3 => gemm_rows::<V, 3, AHEAD>(shape, a, b, c, init),
                _ => gemm_rows::<V, 4, AHEAD>(shape, a, b, c, init),
            }
        }
        at += vectors * WIDTH;
    }
}

#[inline(always)]
unsafe fn gemm_rows<V: Lanes, const C: usize, const AHEAD: usize>(
    shape: GemmShape,
    a: MatrixPtr,
    b: MatrixPtr,
    c: MatrixPtrMut,
    init: Option<MatrixPtr>,
) {
    let (rows, depth) = (shape.m, shape.k);
    let init_at = |row: usize| init.map(|init| init.at_row(row));
    let mut row = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while row + ROWS <= rows {
            micro_kernel::<V, ROWS, C, AHEAD>(depth, a.at_row(row), b, c.at_row(row), init_at(row));
            row += ROWS;
        }
        while row + 2 <= rows {
            micro_kernel::<V, 2, C, AHEAD>(depth, a.at_row(row), b, c.at_row(row), init_at(row));
            row += 2;
        }
        if row < rows {
            micro_kernel::<V, 1, C, AHEAD>(depth, a.at_row(row), b, c.at_row(row), init_at(row));
        }
    }
}

/// `R` rows by `C` vectors, with all accumulators in registers.
#[inline(always)]
unsafe fn micro_kernel<V: Lanes, const R: usize, const C: usize, const AHEAD: usize>(
    depth: usize,
    a: MatrixPtr,
    b: MatrixPtr,
    c: MatrixPtrMut,
    init: Option<MatrixPtr>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[V::splat(0.0); C]; R];
        if let Some(init) = init {
            for (row, acc) in acc.iter_mut().enumerate() {
                for (at, sum) in acc.iter_mut().enumerate() {
                    *sum = V::load(init.ptr.add(row * init.row_stride + at * WIDTH));
                }
            }
        }
        for row in 0..R {
            for at in 0..C {
                V::prefetch(c.ptr.wrapping_add(row * c.row_stride + at * WIDTH));
            }
        }
        let (mut a_ptr, mut b_ptr) = (a.ptr, b.ptr);
        for _ in 0..depth {
            let mut b_row = [V::splat(0.0); C];
            for (at, b_lanes) in b_row.iter_mut().enumerate() {
                *b_lanes = V::load(b_ptr.add(at * WIDTH));
                if AHEAD > 0 {
                    V::prefetch(b_ptr.wrapping_add(AHEAD * b.row_stride + at * WIDTH));
                }
            }
            for (row, acc) in acc.iter_mut().enumerate() {
                let a_lanes = V::splat(*a_ptr.add(row * a.row_stride));
                for (sum, b_lanes) in acc.iter_mut().zip(b_row) {
                    *sum = a_lanes.mul_add(b_lanes, *sum);
                }
            }
            a_ptr = a_ptr.wrapping_add(a.column_stride);
            b_ptr = b_ptr.wrapping_add(b.row_stride);
        }
        for (row, acc) in acc.into_iter().enumerate() {
            for (at, sum) in acc.into_iter().enumerate() {
                sum.store(c.ptr.add(row * c.row_stride + at * WIDTH));
            }
        }
    }
}

kernel! {
    /// Transposes `from`, padding its rows with zeros to a multiple of [`WIDTH`].
    ///
    /// # Safety
    /// `from` must have `rows` rows, `to` as many columns, and `to` must have `columns` rows, where columns of
    /// both and rows of `to` are rounded up to a multiple of [`WIDTH`]. `to` must not be accessed otherwise.
    pub unsafe fn transpose<V>(rows: usize, columns: usize, from: MatrixPtr, to: MatrixPtrMut) {
        for row in (0..rows).step_by(WIDTH) {
            for column in (0..columns).step_by(WIDTH) {
                let mut square = [V::splat(0.0); WIDTH];
                for (at, lanes) in square.iter_mut().enumerate() {
                    if row + at < rows {
                        // SAFETY: the row exists; the caller promises padded columns.
                        *lanes = unsafe { V::load(from.at_row(row + at).ptr.add(column)) };
                    }
                }
                for (at, lanes) in V::transpose(square).into_iter().enumerate() {
                    // SAFETY: the caller promises padded rows and columns.
                    unsafe { lanes.store(to.at_row(column + at).ptr.add(row)) };
                }
            }
        }
    }
}
