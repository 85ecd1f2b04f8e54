//! A transformer layer: attention, then MLP, each added to the residual stream.

use std::sync::Arc;

use super::attention::{Attention, AttentionActivations};
use super::mlp::{Mlp, MlpActivations};
use super::{Params, ParamsAndGrads, PassCtx, Residual, StreamGrad};
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
    x: Arc<PooledTensor>,
    /// `None` with activation recomputation.
    activations: Option<LayerActivations>,
}

#[derive(Debug)]
struct LayerActivations {
    /// `None` in a model without attention.
    attention: Option<AttentionActivations>,
    mlp: MlpActivations,
}

impl LayerSaved {
    /// Queries, keys and values, if they were saved.
    pub(super) fn qkv(&self) -> Option<&Tensor> {
        Some(&self.activations.as_ref()?.attention.as_ref()?.qkv)
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
        input: Residual,
    ) -> Result<(Residual, LayerSaved)> {
        let (x, activations, out) = self.activations(ctx, params, input)?;
        let activations = (!ctx.recompute).then_some(activations);
        Ok((out, LayerSaved { x, activations }))
    }

    /// The input with everything added, the activations, and the output.
    fn activations(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        input: Residual,
    ) -> Result<(Arc<PooledTensor>, LayerActivations, Residual)> {
        let Some(attention) = &self.attention else {
            let (mlp, out) = self.mlp.forward(ctx, params, input)?;
            return Ok((mlp.mid.clone(), LayerActivations { attention: None, mlp }, out));
        };
        let (saved, mid) = attention.forward(ctx, &mut *params, input)?;
        let x = mid.x.clone();
        let (mlp, out) = self.mlp.forward(ctx, params, mid)?;
        Ok((x, LayerActivations { attention: Some(saved), mlp }, out))
    }

    /// Turns `grad` from the gradient of the residual stream after the layer into that before it.
    pub fn backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        saved: LayerSaved,
        grad: &mut StreamGrad,
    ) -> Result<()> {
        let LayerSaved { x, activations } = saved;
        let LayerActivations { attention, mlp } = match activations {
            Some(activations) => activations,
            None => {
                let input = Residual { x: x.clone(), delta: None };
                self.activations(ctx, params, input)?.1
            }
        };
        self.mlp.backward(ctx, params, mlp, grad)?;
        if let (Some(attention), Some(saved)) = (&self.attention, attention) {
            attention.backward(ctx, params, &x, saved, grad)?;
        }
        Ok(())
    }
}
