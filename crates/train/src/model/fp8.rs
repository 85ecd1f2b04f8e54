//! Operands of GEMMs in fp8.

use super::PassCtx;
use crate::buffer_pool::PooledTensor;
use regatta_device::ops::{FP8_DTYPE, FP8_SCALE_DTYPE, Fp8Rows, Fp8RowsMut};
use regatta_device::tensor::View;

/// Rows in fp8. They live until the GEMMs that read them are queued.
#[derive(Debug)]
pub struct Fp8Tensor {
    values: PooledTensor,
    scales: PooledTensor,
}

impl Fp8Tensor {
    /// Buffers for rows. Their contents are arbitrary.
    pub fn new(ctx: &PassCtx, rows: usize, columns: usize) -> Self {
        Self {
            values: ctx.pool.get(rows * columns, FP8_DTYPE),
            scales: ctx.pool.get(rows, FP8_SCALE_DTYPE),
        }
    }

    /// The rows of a matrix.
    pub fn of_rows(ctx: &PassCtx, x: View<'_>, columns: usize) -> Self {
        let mut rows = Self::new(ctx, x.len() / columns, columns);
        ctx.device.quantize_rows(x, rows.rows_mut(), None);
        rows
    }

    /// The columns of a matrix, as rows.
    pub fn of_columns(ctx: &PassCtx, x: View<'_>, columns: usize) -> Self {
        let mut rows = Self::new(ctx, columns, x.len() / columns);
        ctx.device.quantize_columns(x, rows.rows_mut());
        rows
    }

    pub fn rows(&self) -> Fp8Rows<'_> {
        Fp8Rows { values: self.values.view(), scales: self.scales.view() }
    }

    pub fn rows_mut(&mut self) -> Fp8RowsMut<'_> {
        Fp8RowsMut { values: self.values.view_mut(), scales: self.scales.view_mut() }
    }
}
