//! A transformer layer: attention, then MLP, each added to the residual stream.

use super::attention::{Attention, AttentionActivations};
use super::mlp::{Mlp, MlpActivations};
use super::{Params, ParamsAndGrads, PassCtx};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::tensor::Tensor;
use regatta_predict::shape::{Matrices, ModelShape};

/// A transformer layer.
#[derive(Debug, Clone)]
pub struct Layer {
    pub(super) attention: Option<Attention>,
    pub(super) mlp: Mlp,
}

/// What the backward pass of a layer needs from the forward pass.
#[derive(Debug)]
pub struct LayerSaved {
    x: PooledTensor,
    /// `None` with activation recomputation.
    activations: Option<LayerActivations>,
}

#[derive(Debug)]
struct LayerActivations {
    /// With the residual stream after attention; `None` in a model without attention.
    attention: Option<(AttentionActivations, PooledTensor)>,
    mlp: MlpActivations,
}

impl LayerSaved {
    /// Queries, keys and values, if they were saved.
    pub(super) fn qkv(&self) -> Option<&Tensor> {
        let (attention, _) = self.activations.as_ref()?.attention.as_ref()?;
        Some(&attention.qkv)
    }
}

impl Layer {
    pub(super) fn new(shape: &ModelShape, block: usize, of: &Matrices<'_>) -> Self {
        let attention = shape.has_attention().then(|| Attention::new(shape, block, of));
        Self { attention, mlp: Mlp::new(shape, block, of) }
    }

    /// The residual stream after the layer, and what the backward pass needs.
    pub fn forward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: PooledTensor,
    ) -> Result<(PooledTensor, LayerSaved)> {
        let (activations, out) = self.activations(ctx, params, &x)?;
        let activations = (!ctx.recompute).then_some(activations);
        Ok((out, LayerSaved { x, activations }))
    }

    fn activations(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: &Tensor,
    ) -> Result<(LayerActivations, PooledTensor)> {
        let attention = match &self.attention {
            Some(attention) => Some(attention.forward(ctx, &mut *params, x)?),
            None => None,
        };
        let mid = attention.as_ref().map_or(x, |(_, mid)| mid);
        let (mlp, out) = self.mlp.forward(ctx, params, mid)?;
        Ok((LayerActivations { attention, mlp }, out))
    }

    /// Turns `dx` from the gradient of the residual stream after the layer into that before it.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        saved: LayerSaved,
        dx: &mut Tensor,
    ) -> Result<()> {
        let LayerSaved { x, activations } = saved;
        let activations = match activations {
            Some(activations) => activations,
            None => self.activations(ctx, params, &x)?.0,
        };
        let LayerActivations { attention, mlp } = activations;
        let mid: &Tensor = attention.as_ref().map_or(&x, |(_, mid)| mid);
        self.mlp.backward(ctx, params, mid, mlp, dx)?;
        if let (Some(attention), Some((saved, mid))) = (&self.attention, attention) {
            drop(mid);
            attention.backward(ctx, params, &x, saved, dx)?;
        }
        Ok(())
    }
}
