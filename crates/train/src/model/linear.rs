//! Column- and row-parallel linear layers, whole or tile by tile.

use std::ops::Range;

use super::fp8::Fp8Tensor;
use super::param_access::{Params, ParamsAndGrads, unshard_tile};
use super::weight_bias::{WeightBias, bias};
use super::{MaybeOwned, PassCtx};
use crate::buffer_pool::PooledTensor;
use crate::state::Result;
use regatta_device::ops::{
    Fp8, LinearArgs, LinearBackwardInputArgs, LinearBackwardWeightArgs, LinearShape,
};
use regatta_device::tensor::Tensor;
use regatta_predict::shape::{Matrices, Module, Tile};

/// A linear layer, column- or row-parallel over the tensor-parallel group.
#[derive(Debug, Clone)]
pub struct Linear {
    storage: Storage,
    inputs: usize,
    outputs: usize,
    parallelism: Parallelism,
    adds_bias: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parallelism {
    /// The outputs are sharded.
    Column,
    /// The inputs are sharded, and the outputs are summed.
    Row,
}

#[derive(Debug, Clone)]
enum Storage {
    /// Weight and bias are in the layer's block.
    InBlock(WeightBias),
    /// Rows of the weight have blocks of their own; the bias is in the layer's.
    Tiled { tiles: Vec<Tile>, bias: Option<Range<usize>> },
}

/// Where the gradient of a bias is computed.
#[derive(Debug, Clone, Copy)]
pub enum BiasGrad<'a> {
    /// Together with that of the weight.
    WithWeight,
    /// The backward pass of the activation computed it already.
    Done,
    /// These are the column sums of the output gradient.
    ColumnSums(&'a Tensor),
}

impl<'a> BiasGrad<'a> {
    /// From the column sums of the output gradient, if they are known.
    pub fn of(sums: &'a Option<PooledTensor>) -> Self {
        sums.as_ref().map_or(Self::WithWeight, |sums| Self::ColumnSums(sums))
    }
}

/// The output of a linear layer with GELU.
#[derive(Debug)]
pub struct GeluOutput {
    /// What the backward pass needs.
    pub saved: PooledTensor,
    pub y: PooledTensor,
    /// `y` in fp8.
    pub y_fp8: Option<Fp8Tensor>,
}

/// A weight gradient whose computation is deferred: nothing downstream depends on it.
#[derive(Debug)]
pub struct DeferredWeightGrad {
    linear: Linear,
    x: PooledTensor,
    dy: PooledTensor,
    has_bias_grad: bool,
}

impl DeferredWeightGrad {
    /// Accumulates the gradient.
    pub fn compute(self, ctx: &PassCtx, params: &mut dyn ParamsAndGrads) -> Result<()> {
        let bias_grad = if self.has_bias_grad { BiasGrad::Done } else { BiasGrad::WithWeight };
        self.linear.accumulate_weight_grad(ctx, params, &self.x, &self.dy, bias_grad)
    }
}

impl Linear {
    /// A linear layer whose outputs are sharded: Megatron's `ColumnParallelLinear`.
    pub fn column_parallel(of: &Matrices<'_>, module: Module) -> Self {
        Self::new(of, module, Parallelism::Column, true)
    }

    /// A linear layer whose inputs are sharded: Megatron's `RowParallelLinear`.
    pub fn row_parallel(of: &Matrices<'_>, module: Module) -> Self {
        // The outputs are summed, so that one rank only adds the bias.
        Self::new(of, module, Parallelism::Row, of.block.shard.rank == 0)
    }

    fn new(of: &Matrices<'_>, module: Module, parallelism: Parallelism, adds_bias: bool) -> Self {
        let (tiles, [outputs, inputs]) = of.weight(module);
        let storage = match tiles.is_empty() {
            true => Storage::InBlock(WeightBias::new(of.block, module)),
            false => Storage::Tiled { tiles, bias: bias(of.block, module) },
        };
        Self { storage, inputs, outputs, parallelism, adds_bias }
    }

    fn size(&self, ctx: &PassCtx) -> LinearShape {
        LinearShape { rows: ctx.rows(), inputs: self.inputs, outputs: self.outputs }
    }

    /// Whether operands are fp8, except for those of weight gradients.
    pub fn uses_fp8(&self, ctx: &PassCtx) -> bool {
        let is_in_block = matches!(self.storage, Storage::InBlock(_));
        let is_wanted = is_in_block && ctx.device.fp8() != Fp8::Off;
        is_wanted && ctx.device.supports_fp8(self.size(ctx))
    }

    /// `y = x weightᵀ + bias`: this rank's outputs of all rows, or the outputs summed over the
    /// tensor-parallel group. `x_fp8` is `x` in fp8, if it is known already.
    pub fn forward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: &Tensor,
        x_fp8: Option<Fp8Tensor>,
    ) -> Result<PooledTensor> {
        let size = self.size(ctx);
        let mut y = ctx.activation(size.rows * size.outputs);
        match &self.storage {
            Storage::InBlock(at) => {
                let (weight, bias) = at.of(params.block());
                let bias = bias.filter(|_| self.adds_bias);
                if self.uses_fp8(ctx) {
                    let rows_of_x = || Fp8Tensor::of_rows(ctx, x.view(), size.inputs);
                    let x = x_fp8.unwrap_or_else(rows_of_x);
                    let weight = Fp8Tensor::of_rows(ctx, weight, size.inputs);
                    let (x, weight, y) = (x.rows(), weight.rows(), y.view_mut());
                    ctx.device.linear_fp8(LinearArgs { shape: size, x, weight, bias, y });
                } else {
                    let (x, y) = (x.view(), y.view_mut());
                    ctx.device.linear(LinearArgs { shape: size, x, weight, bias, y });
                }
            }
            Storage::Tiled { tiles, bias } => for_each_tile(params, tiles, |params, tile| {
                let rows = &tile.rows;
                let bias = bias.as_ref().filter(|_| self.adds_bias);
                let bias = bias.map(|bias| params.block().slice(rows_of(bias, rows)));
                let mut columns = ctx.like(&y, size.rows * rows.len());
                let shape = LinearShape { outputs: rows.len(), ..size };
                let weight = params.tile(tile.block).slice(0..rows.len() * size.inputs);
                let (x, to) = (x.view(), columns.view_mut());
                ctx.device.linear(LinearArgs { shape, x, weight, bias, y: to });
                let (columns, y) = (columns.view(), y.view_mut());
                ctx.device.copy_to_columns(columns, y, size.outputs, rows.clone());
            })?,
        }
        match self.parallelism {
            Parallelism::Column => Ok(y),
            Parallelism::Row => Ok(ctx.tensor.reduce_scatter_rows(ctx, y)?),
        }
    }

    /// `gelu(x weightᵀ + bias)` of a column-parallel layer, and what its backward pass needs. The output is
    /// also in fp8 if this layer uses it, for the next.
    pub fn forward_gelu(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        x: &Tensor,
        x_fp8: Option<Fp8Tensor>,
    ) -> Result<GeluOutput> {
        let size = self.size(ctx);
        let mut y = ctx.activation(size.rows * size.outputs);
        if self.uses_fp8(ctx) {
            let mut saved = self.forward(ctx, params, x, x_fp8)?;
            let mut y_fp8 = Fp8Tensor::new(ctx, size.rows, size.outputs);
            ctx.device.gelu_fp8(saved.view_mut(), y.view_mut(), y_fp8.rows_mut());
            return Ok(GeluOutput { saved, y, y_fp8: Some(y_fp8) });
        }
        let Storage::InBlock(at) = &self.storage else {
            let mut saved = self.forward(ctx, params, x, None)?;
            ctx.device.gelu(saved.view_mut(), y.view_mut());
            return Ok(GeluOutput { saved, y, y_fp8: None });
        };
        let mut saved = ctx.activation(size.rows * size.outputs);
        let (weight, bias) = at.of(params.block());
        let args = LinearArgs { shape: size, x: x.view(), weight, bias, y: y.view_mut() };
        ctx.device.linear_gelu(args, saved.view_mut());
        Ok(GeluOutput { saved, y, y_fp8: None })
    }

    /// Turns `dy` from the gradient after GELU into that before it, with the gradient of the bias if it
    /// is in the layer's block, and in fp8 if this layer uses it.
    pub fn gelu_backward(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        saved: &Tensor,
        dy: &mut Tensor,
    ) -> (BiasGrad<'static>, Option<Fp8Tensor>) {
        let mut grads = params.grads();
        let dbias = match &self.storage {
            Storage::InBlock(at) => at.of_mut(&mut grads).1,
            Storage::Tiled { .. } => None,
        };
        let bias_grad = if dbias.is_some() { BiasGrad::Done } else { BiasGrad::WithWeight };
        if !self.uses_fp8(ctx) {
            ctx.device.gelu_backward(saved.view(), dy.view_mut(), dbias);
            return (bias_grad, None);
        }
        let mut fp8 = Fp8Tensor::new(ctx, ctx.rows(), self.outputs);
        ctx.device.gelu_backward_fp8(saved.view(), dy.view_mut(), dbias, fp8.rows_mut());
        (bias_grad, Some(fp8))
    }

    /// The output's gradient in fp8 if this layer uses it, with the gradient of the bias.
    pub fn quantize_output_grad(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        dy: &Tensor,
    ) -> (BiasGrad<'static>, Option<Fp8Tensor>) {
        let Storage::InBlock(at) = &self.storage else { return (BiasGrad::WithWeight, None) };
        if !self.uses_fp8(ctx) {
            return (BiasGrad::WithWeight, None);
        }
        let mut grads = params.grads();
        let (_, dbias) = at.of_mut(&mut grads);
        let mut fp8 = Fp8Tensor::new(ctx, ctx.rows(), self.outputs);
        ctx.device.quantize_rows(dy.view(), fp8.rows_mut(), dbias);
        (BiasGrad::Done, Some(fp8))
    }

    /// `dx = dy weight`: this rank's part of a sum over the tensor-parallel group if the outputs are
    /// sharded, which the caller reduces after `backward_weight`, when `dy` is freed; else its inputs.
    /// `dy_fp8` is `dy` in fp8, if it is known already.
    pub fn backward_input(
        &self,
        ctx: &PassCtx,
        params: &mut dyn Params,
        dy: &Tensor,
        dy_fp8: Option<Fp8Tensor>,
    ) -> Result<PooledTensor> {
        let size = self.size(ctx);
        let mut dx = ctx.activation(size.rows * size.inputs);
        match &self.storage {
            Storage::InBlock(at) if self.uses_fp8(ctx) => {
                let (weight, _) = at.of(params.block());
                let rows_of_dy = || Fp8Tensor::of_rows(ctx, dy.view(), size.outputs);
                let dy = dy_fp8.unwrap_or_else(rows_of_dy);
                let columns = Fp8Tensor::of_columns(ctx, weight, size.inputs);
                let shape = LinearShape { inputs: size.outputs, outputs: size.inputs, ..size };
                let (x, weight, y) = (dy.rows(), columns.rows(), dx.view_mut());
                ctx.device.linear_fp8(LinearArgs { shape, x, weight, bias: None, y });
            }
            Storage::InBlock(at) => {
                let (weight, _) = at.of(params.block());
                ctx.device.linear_backward_input(LinearBackwardInputArgs {
                    shape: size,
                    dy: dy.view(),
                    weight,
                    dx: dx.view_mut(),
                    accumulate: false,
                });
            }
            Storage::Tiled { tiles, .. } => for_each_tile(params, tiles, |params, tile| {
                let rows = &tile.rows;
                let columns = columns_of(ctx, size, dy, rows);
                ctx.device.linear_backward_input(LinearBackwardInputArgs {
                    shape: LinearShape { outputs: rows.len(), ..size },
                    dy: columns.view(),
                    weight: params.tile(tile.block).slice(0..rows.len() * size.inputs),
                    dx: dx.view_mut(),
                    accumulate: rows.start > 0,
                });
            })?,
        }
        Ok(dx)
    }

    /// Accumulates the gradients of weight and bias, now or deferred.
    pub fn backward_weight(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        x: PooledTensor,
        dy: MaybeOwned<'_>,
        bias_grad: BiasGrad<'_>,
    ) -> Result<()> {
        let bias_grad = self.add_column_sums(ctx, params, bias_grad);
        if let Some(deferred) = params.deferred() {
            let (linear, dy) = (self.clone(), dy.into_owned(ctx));
            let has_bias_grad = matches!(bias_grad, BiasGrad::Done);
            deferred.push(DeferredWeightGrad { linear, x, dy, has_bias_grad });
            return Ok(());
        }
        self.accumulate_weight_grad(ctx, params, &x, &dy, bias_grad)
    }

    /// Adds column sums that are the gradient of a bias in the layer's block.
    fn add_column_sums<'a>(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        bias_grad: BiasGrad<'a>,
    ) -> BiasGrad<'a> {
        let BiasGrad::ColumnSums(sums) = bias_grad else { return bias_grad };
        let Storage::InBlock(at) = &self.storage else { return BiasGrad::WithWeight };
        let mut grads = params.grads();
        if let (_, Some(dbias)) = at.of_mut(&mut grads) {
            ctx.device.add_assign(sums.view(), dbias);
        }
        BiasGrad::Done
    }

    fn accumulate_weight_grad(
        &self,
        ctx: &PassCtx,
        params: &mut dyn ParamsAndGrads,
        x: &Tensor,
        dy: &Tensor,
        bias_grad: BiasGrad<'_>,
    ) -> Result<()> {
        let size = self.size(ctx);
        match &self.storage {
            Storage::InBlock(at) => {
                let mut grads = params.grads();
                let (dweight, dbias) = at.of_mut(&mut grads);
                let dbias = dbias.filter(|_| matches!(bias_grad, BiasGrad::WithWeight));
                let (shape, x, dy) = (size, x.view(), dy.view());
                let args = LinearBackwardWeightArgs { shape, x, dy, dweight, dbias };
                ctx.device.linear_backward_weight(args);
            }
            Storage::Tiled { tiles, bias } => {
                for Tile { block, rows } in tiles {
                    let columns = columns_of(ctx, size, dy, rows);
                    let [mut own, mut dweight] = params.block_and_tile_grads(*block);
                    let dweight = dweight.slice(0..rows.len() * size.inputs);
                    let dbias = bias.as_ref().map(|bias| own.slice(rows_of(bias, rows)));
                    let shape = LinearShape { outputs: rows.len(), ..size };
                    let (x, dy) = (x.view(), columns.view());
                    let args = LinearBackwardWeightArgs { shape, x, dy, dweight, dbias };
                    ctx.device.linear_backward_weight(args);
                    params.reduce_grads(*block)?;
                }
            }
        }
        Ok(())
    }
}

/// Unshards one tile after the other and prefetches the next while one is in use.
fn for_each_tile(
    params: &mut dyn Params,
    tiles: &[Tile],
    mut work: impl FnMut(&dyn Params, &Tile),
) -> Result<()> {
    for (index, tile) in tiles.iter().enumerate() {
        unshard_tile(params, tiles, index)?;
        work(params, tile);
        params.reshard(tile.block);
    }
    Ok(())
}

/// The elements of a bias for some rows of the weight.
fn rows_of(bias: &Range<usize>, rows: &Range<usize>) -> Range<usize> {
    bias.start + rows.start..bias.start + rows.end
}

/// The columns of an output gradient for some rows of the weight.
fn columns_of(ctx: &PassCtx, size: LinearShape, dy: &Tensor, rows: &Range<usize>) -> PooledTensor {
    let mut columns = ctx.like(dy, size.rows * rows.len());
    ctx.device.copy_from_columns(dy.view(), size.outputs, rows.clone(), columns.view_mut());
    columns
}
