//! The output layer with GEMMs on fp8 operands, except for its weight gradient.

use super::fp8::Fp8Tensor;
use super::head::ScaledLoss;
use super::{Params, PassCtx, VocabTable};
use regatta_device::ops::{CrossEntropyArgs, Fp8, LinearArgs, LinearShape};
use regatta_device::tensor::{Tensor, View, ViewMut};

/// The weight of an output layer in fp8, for the forward pass and for the gradient of the input.
pub(super) struct Fp8Head {
    weight: Fp8Tensor,
    columns: Fp8Tensor,
    /// Of all rows of the micro-batch.
    shape: LinearShape,
    /// Outputs that are not padding.
    vocab: usize,
}

impl Fp8Head {
    /// `None` if the head does not use fp8: it needs the whole vocabulary in one matrix.
    pub fn new(ctx: &PassCtx, params: &dyn Params, table: &VocabTable) -> Option<Self> {
        let is_whole = !table.is_tiled() && ctx.tensor.shard.ranks == 1;
        if ctx.device.fp8() != Fp8::All || !is_whole {
            return None;
        }
        let shape = table.gemm_shape(ctx.device, 0, ctx.rows());
        if !ctx.device.supports_fp8(shape) {
            return None;
        }
        let weight = table.gemm_weight(params, 0, shape);
        Some(Self {
            weight: Fp8Tensor::of_rows(ctx, weight, shape.inputs),
            columns: Fp8Tensor::of_columns(ctx, weight, shape.inputs),
            shape,
            vocab: table.tokens(0).len(),
        })
    }

    /// Adds the loss of rows `x`, writes the gradient of their logits to `buffer` and that of `x` to `dx`.
    /// Returns the gradient of the logits.
    pub fn loss_and_input_grad<'b>(
        &self,
        ctx: &PassCtx,
        x: View<'_>,
        targets: View<'_>,
        loss: ScaledLoss<'_>,
        buffer: &'b mut Tensor,
        dx: ViewMut<'_>,
    ) -> View<'b> {
        let shape = LinearShape { rows: targets.len(), ..self.shape };
        let LinearShape { rows, inputs, outputs } = shape;
        let (mut logits, _) = buffer.view_mut().split_at(rows * outputs);
        let x = Fp8Tensor::of_rows(ctx, x, inputs);
        let (device, weight) = (ctx.device, self.weight.rows());
        let (x, y, bias) = (x.rows(), logits.reborrow(), None);
        device.linear_fp8(LinearArgs { shape, x, weight, bias, y });
        let mut dlogits = Fp8Tensor::new(ctx, rows, outputs);
        let (vocab, loss, grad_scale) = (self.vocab, loss.sum, Some(loss.grad_scale));
        let args = CrossEntropyArgs { targets, vocab, logits, grad_scale, loss };
        device.cross_entropy_fp8(args, dlogits.rows_mut());
        let shape = LinearShape { rows, inputs: outputs, outputs: inputs };
        let (x, weight) = (dlogits.rows(), self.columns.rows());
        device.linear_fp8(LinearArgs { shape, x, weight, bias, y: dx });
        buffer.view().slice(0..rows * outputs)
    }
}
