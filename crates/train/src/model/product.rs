//! A matrix product of a layer, at once or tile by tile.

use super::bank::{Bank, Params, bring_tile};
use super::parts::Pair;
use super::{Held, Lent, Matrices, Run};
use crate::state::StepError;
use regatta_device::device::Linear;
use regatta_device::memory::Tensor;
use regatta_predict::shape::Tile;

/// A matrix product.
#[derive(Debug, Clone)]
pub struct Product {
    at: Pair,
    /// Rows of the matrix that have blocks of their own; none if it is in the layer's.
    tiles: Vec<Tile>,
    inputs: usize,
    outputs: usize,
    /// Whether the bias is added here, not by another rank to whose product this one's is added.
    adds_bias: bool,
}

/// Gradients of a matrix that nobody waits for: they can be computed when there is nothing else to
/// do.
#[derive(Debug)]
pub struct Later {
    product: Product,
    x: Lent,
    dy: Lent,
}

impl Later {
    /// Computes them.
    pub fn finish(self, run: &Run<'_>, bank: &mut dyn Bank) -> Result<(), StepError> {
        self.product.back_weight_now(run, &self.x, &self.dy, bank)
    }
}

impl Product {
    /// A product from the stream: ranks share its outputs.
    pub fn expanding(of: &Matrices<'_>, name: &str) -> Self {
        let (tiles, [outputs, inputs]) = of.find(&format!("{name}.weight"));
        Self { at: Pair::find(of.block, name), tiles, inputs, outputs, adds_bias: true }
    }

    /// A product back to the stream: ranks share its inputs, and what they get is summed.
    pub fn contracting(of: &Matrices<'_>, name: &str) -> Self {
        Self { adds_bias: of.block.share.rank == 0, ..Self::expanding(of, name) }
    }

    fn sizes(&self, run: &Run<'_>) -> Linear {
        Linear { rows: run.rows(), inputs: self.inputs, outputs: self.outputs }
    }

    /// `y = x weightᵀ + bias`.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        x: &Tensor,
        y: &mut Tensor,
    ) -> Result<(), StepError> {
        let of = self.sizes(run);
        if self.tiles.is_empty() {
            let (weight, bias) = self.at.of(params.own());
            let bias = bias.filter(|_| self.adds_bias);
            run.device.linear(of, x.view(), weight, bias, y.view_mut());
            return Ok(());
        }
        self.each(params, |params, Tile { block, rows }| {
            let (_, bias) = self.at.of(params.own());
            let bias = bias.filter(|_| self.adds_bias).map(|bias| bias.part(rows.clone()));
            let mut part = run.like(y, of.rows * rows.len());
            let tile = Linear { outputs: rows.len(), ..of };
            let weight = params.tile(*block).part(0..rows.len() * of.inputs);
            run.device.linear(tile, x.view(), weight, bias, part.view_mut());
            run.device.put_columns(part.view(), y.view_mut(), of.outputs, rows.clone());
        })
    }

    /// `dx = dy weight`.
    pub fn back_input(
        &self,
        run: &Run<'_>,
        params: &mut dyn Params,
        dy: &Tensor,
        dx: &mut Tensor,
    ) -> Result<(), StepError> {
        let of = self.sizes(run);
        if self.tiles.is_empty() {
            let (weight, _) = self.at.of(params.own());
            run.device.linear_back_input(of, dy.view(), weight, dx.view_mut(), false);
            return Ok(());
        }
        self.each(params, |params, Tile { block, rows }| {
            let part = columns(run, of, dy, rows);
            let (tile, add) = (Linear { outputs: rows.len(), ..of }, rows.start > 0);
            let weight = params.tile(*block).part(0..rows.len() * of.inputs);
            run.device.linear_back_input(tile, part.view(), weight, dx.view_mut(), add);
        })
    }

    /// The gradients of weight and bias, now or later.
    pub fn back_weight(
        &self,
        run: &Run<'_>,
        x: Lent,
        dy: Held<'_>,
        bank: &mut dyn Bank,
    ) -> Result<(), StepError> {
        if let Some(later) = bank.later() {
            later.push(Later { product: self.clone(), x, dy: dy.owned(run) });
            return Ok(());
        }
        self.back_weight_now(run, &x, &dy, bank)
    }

    fn back_weight_now(
        &self,
        run: &Run<'_>,
        x: &Tensor,
        dy: &Tensor,
        bank: &mut dyn Bank,
    ) -> Result<(), StepError> {
        let of = self.sizes(run);
        if self.tiles.is_empty() {
            let mut grads = bank.grads();
            let (weight, bias) = self.at.of_mut(&mut grads);
            run.device.linear_back_weight(of, x.view(), dy.view(), weight, bias);
        }
        for Tile { block, rows } in &self.tiles {
            let part = columns(run, of, dy, rows);
            let [mut own, mut weight] = bank.tile_grads(*block);
            let weight = weight.part(0..rows.len() * of.inputs);
            let (_, mut bias) = self.at.of_mut(&mut own);
            let bias = bias.as_mut().map(|bias| bias.part(rows.clone()));
            let tile = Linear { outputs: rows.len(), ..of };
            run.device.linear_back_weight(tile, x.view(), part.view(), weight, bias);
            bank.complete(*block)?;
        }
        Ok(())
    }

    /// Brings one tile after the other; the next one begins to come while one is at work.
    fn each(
        &self,
        params: &mut dyn Params,
        mut work: impl FnMut(&dyn Params, &Tile),
    ) -> Result<(), StepError> {
        for (number, tile) in self.tiles.iter().enumerate() {
            bring_tile(params, &self.tiles, number)?;
            work(params, tile);
            params.free(tile.block);
        }
        Ok(())
    }
}

/// The columns of a gradient that belong to some rows of a matrix.
fn columns(run: &Run<'_>, of: Linear, dy: &Tensor, rows: &std::ops::Range<usize>) -> Lent {
    let mut part = run.like(dy, of.rows * rows.len());
    run.device.take_columns(dy.view(), of.outputs, rows.clone(), part.view_mut());
    part
}
