//! Parameters inside their block, by the part that they play.

use std::ops::Range;

use super::Run;
use regatta_device::device::{Norm, NormGrads, NormSaved};
use regatta_device::memory::{View, ViewMut};
use regatta_predict::shape::{Block, Family, Shape};

/// A weight and perhaps a bias.
#[derive(Debug, Clone)]
pub struct Pair {
    weight: Range<usize>,
    bias: Option<Range<usize>>,
}

impl Pair {
    pub fn find(block: &Block, name: &str) -> Self {
        let weight = block.find(&format!("{name}.weight")).unwrap_or(0..0);
        Self { weight, bias: block.find(&format!("{name}.bias")) }
    }

    pub fn of<'a>(&self, params: View<'a>) -> (View<'a>, Option<View<'a>>) {
        let bias = self.bias.clone().map(|bias| params.part(bias));
        (params.part(self.weight.clone()), bias)
    }

    /// Both at once: the bias lies behind the weight.
    pub fn of_mut<'a>(&self, grads: &'a mut ViewMut<'_>) -> (ViewMut<'a>, Option<ViewMut<'a>>) {
        let Some(bias) = &self.bias else { return (grads.part(self.weight.clone()), None) };
        if self.weight.is_empty() {
            // The matrix is elsewhere, in tiles.
            let (none, bias) = grads.part(bias.clone()).split_at(0);
            return (none, Some(bias));
        }
        let (weight, behind) = grads.part(self.weight.start..bias.end).split_at(self.weight.len());
        let gap = bias.start - self.weight.end;
        (weight, Some(behind.split_at(gap).1))
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
