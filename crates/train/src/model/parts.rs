//! Parameters inside their block, by the part that they play.

use std::ops::Range;

use super::{Held, Lent, Run};
use crate::device::{Linear, Norm, NormGrads, NormSaved};
use crate::memory::{Tensor, View, ViewMut};
use crate::shape::{Block, Family, Shape};

/// A weight and perhaps a bias.
#[derive(Debug, Clone)]
struct Pair {
    weight: Range<usize>,
    bias: Option<Range<usize>>,
}

impl Pair {
    fn find(block: &Block, name: &str) -> Self {
        let weight = block.find(&format!("{name}.weight")).unwrap_or(0..0);
        Self { weight, bias: block.find(&format!("{name}.bias")) }
    }

    fn of<'a>(&self, params: View<'a>) -> (View<'a>, Option<View<'a>>) {
        let bias = self.bias.clone().map(|bias| params.part(bias));
        (params.part(self.weight.clone()), bias)
    }

    /// Both at once: the bias lies behind the weight.
    fn of_mut<'a>(&self, grads: &'a mut ViewMut<'_>) -> (ViewMut<'a>, Option<ViewMut<'a>>) {
        let Some(bias) = &self.bias else { return (grads.part(self.weight.clone()), None) };
        let (weight, behind) = grads.part(self.weight.start..bias.end).split_at(self.weight.len());
        let gap = bias.start - self.weight.end;
        (weight, Some(behind.split_at(gap).1))
    }
}

/// Where a backward pass adds to the gradients of a block.
#[derive(Debug)]
pub struct Grads<'a> {
    /// Those of all its parameters.
    pub here: ViewMut<'a>,
    /// If those of matrices can wait: what is left to be done.
    pub later: Option<&'a mut Vec<Later>>,
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
    pub fn finish(self, run: &Run<'_>, grads: &mut ViewMut<'_>) {
        self.product.back_weight_now(run, &self.x, &self.dy, grads);
    }
}

/// A matrix product.
#[derive(Debug, Clone)]
pub struct Product {
    at: Pair,
    inputs: usize,
    outputs: usize,
    /// Whether the bias is added here, not by another rank to whose product this one's is added.
    adds_bias: bool,
}

impl Product {
    /// A product from the stream: ranks share its outputs.
    pub fn expanding(block: &Block, name: &str) -> Self {
        let of = format!("{}.{name}.weight", block.name);
        let weight = block.parameters.iter().find(|p| p.name == of);
        let shape = weight.map_or(&[0, 0][..], |p| &p.shape);
        let (outputs, inputs) = (shape[0], shape[1]);
        Self { at: Pair::find(block, name), inputs, outputs, adds_bias: true }
    }

    /// A product back to the stream: ranks share its inputs, and what they get is summed.
    pub fn contracting(block: &Block, name: &str) -> Self {
        Self { adds_bias: block.share.rank == 0, ..Self::expanding(block, name) }
    }

    fn sizes(&self, run: &Run<'_>) -> Linear {
        Linear { rows: run.rows(), inputs: self.inputs, outputs: self.outputs }
    }

    pub fn forward(&self, run: &Run<'_>, params: View<'_>, x: &Tensor, y: &mut Tensor) {
        let (weight, bias) = self.at.of(params);
        let bias = bias.filter(|_| self.adds_bias);
        run.device.linear(self.sizes(run), x.view(), weight, bias, y.view_mut());
    }

    pub fn back_input(&self, run: &Run<'_>, params: View<'_>, dy: &Tensor, dx: &mut Tensor) {
        let (weight, _) = self.at.of(params);
        run.device.linear_back_input(self.sizes(run), dy.view(), weight, dx.view_mut(), false);
    }

    /// The gradients of weight and bias, now or later.
    pub fn back_weight(&self, run: &Run<'_>, x: Lent, dy: Held<'_>, grads: &mut Grads<'_>) {
        match &mut grads.later {
            None => self.back_weight_now(run, &x, &dy, &mut grads.here),
            Some(later) => later.push(Later { product: self.clone(), x, dy: dy.owned(run) }),
        }
    }

    fn back_weight_now(&self, run: &Run<'_>, x: &Tensor, dy: &Tensor, grads: &mut ViewMut<'_>) {
        let (weight, bias) = self.at.of_mut(grads);
        run.device.linear_back_weight(self.sizes(run), x.view(), dy.view(), weight, bias);
    }
}

/// A norm.
#[derive(Debug, Clone)]
pub struct Scaling {
    at: Pair,
    how: Norm,
}

impl Scaling {
    pub fn new(shape: &Shape, block: &Block, name: &str) -> Self {
        let epsilon = shape.norm_epsilon;
        let how = match shape.family {
            Family::Llama => Norm::Rms { epsilon },
            Family::Gpt2 | Family::Mlp => Norm::Layer { epsilon },
        };
        Self { at: Pair::find(block, name), how }
    }

    /// Also of some rows only, for the head has many columns.
    pub fn forward(
        &self,
        run: &Run<'_>,
        params: View<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        statistics: ViewMut<'_>,
    ) {
        let (weight, bias) = self.at.of(params);
        run.device.norm(self.how, x, weight, bias, y, statistics);
    }

    /// Adds to `dx`.
    pub fn backward(
        &self,
        run: &Run<'_>,
        params: View<'_>,
        [x, statistics, dy]: [View<'_>; 3],
        dx: ViewMut<'_>,
        grads: &mut ViewMut<'_>,
    ) {
        let (weight, _) = self.at.of(params);
        let (dweight, dbias) = self.at.of_mut(grads);
        let saved = NormSaved { x, weight, statistics };
        run.device.norm_back(self.how, saved, dy, dx, NormGrads { weight: dweight, bias: dbias });
    }
}
