//! The residual stream and its gradient.

use std::sync::Arc;

use super::PassCtx;
use super::fp8::Fp8Tensor;
use crate::buffer_pool::PooledTensor;
use regatta_device::tensor::Tensor;

/// The residual stream between two sublayers. The output of the last one may not be added yet: the
/// next norm adds it in the same kernel.
#[derive(Debug)]
pub struct Residual {
    pub(super) x: Arc<PooledTensor>,
    /// What remains to be added.
    pub(super) delta: Option<PooledTensor>,
}

impl Residual {
    /// A stream with everything added.
    pub fn new(x: PooledTensor) -> Self {
        Self { x: Arc::new(x), delta: None }
    }

    /// The stream as one tensor.
    pub fn into_tensor(self, ctx: &PassCtx) -> PooledTensor {
        let Self { x, delta } = self;
        if let Some(delta) = delta {
            let mut sum = ctx.residual(x.len());
            ctx.device.add(x.view(), delta.view(), sum.view_mut());
            return sum;
        }
        Arc::try_unwrap(x).unwrap_or_else(|shared| {
            let mut copy = ctx.like(&shared, shared.len());
            ctx.device.copy(shared.view(), copy.view_mut());
            copy
        })
    }
}

/// The gradient of the residual stream, and its copy in the dtype of GEMM operands if that is another one.
#[derive(Debug)]
pub struct StreamGrad {
    pub(super) dx: PooledTensor,
    /// Up to date, if there is one.
    pub(super) operand: Option<PooledTensor>,
    /// Column sums of the gradient: the gradient of the bias of the sublayer before. `None` if the
    /// backward pass of its linear layer sums them.
    pub(super) column_sums: Option<PooledTensor>,
    /// The copy in fp8, if there is one.
    pub(super) fp8: Option<Fp8Tensor>,
}

impl StreamGrad {
    /// The gradient, in the device's dtype of it.
    pub fn new(dx: PooledTensor) -> Self {
        Self { dx, operand: None, column_sums: None, fp8: None }
    }

    /// The gradient, in the device's dtype of it.
    pub fn into_tensor(self) -> PooledTensor {
        self.dx
    }

    /// A buffer for the copy, if the device's GEMMs need one.
    pub(super) fn take_operand(&mut self, ctx: &PassCtx) -> Option<PooledTensor> {
        let dtype = ctx.device.gemm_dtype().filter(|dtype| *dtype != self.dx.dtype())?;
        let buffer = || ctx.pool.get(self.dx.len(), dtype);
        Some(self.operand.take().unwrap_or_else(buffer))
    }

    /// The gradient as an operand of a GEMM.
    pub(super) fn gemm_operand(&mut self, ctx: &PassCtx) -> &Tensor {
        if self.operand.is_none()
            && let Some(mut copy) = self.take_operand(ctx)
        {
            ctx.device.copy(self.dx.view(), copy.view_mut());
            self.operand = Some(copy);
        }
        self.operand.as_ref().unwrap_or(&self.dx)
    }
}
