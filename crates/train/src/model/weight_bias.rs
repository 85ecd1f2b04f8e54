//! The weight and the bias of a module inside their block.

use std::ops::Range;

use regatta_device::tensor::{View, ViewMut};
use regatta_predict::shape::{Module, ParamBlock, ParamKind, ParamSpec};

/// A weight and an optional bias.
#[derive(Debug, Clone)]
pub struct WeightBias {
    weight: Range<usize>,
    bias: Option<Range<usize>>,
}

impl WeightBias {
    /// The parameters of a module.
    ///
    /// # Panics
    /// If the block has no such weight.
    pub fn new(block: &ParamBlock, module: Module) -> Self {
        let weight = block.param(module, ParamKind::Weight).map(ParamSpec::range);
        assert!(weight.is_some(), "block {} has no weight {}", block.name, module.name());
        Self { weight: weight.unwrap_or_default(), bias: bias(block, module) }
    }

    /// Views of both.
    pub fn of<'a>(&self, params: View<'a>) -> (View<'a>, Option<View<'a>>) {
        let bias = self.bias.clone().map(|bias| params.slice(bias));
        (params.slice(self.weight.clone()), bias)
    }

    /// Mutable views of both: the bias lies behind the weight.
    pub fn of_mut<'a>(&self, grads: &'a mut ViewMut<'_>) -> (ViewMut<'a>, Option<ViewMut<'a>>) {
        let Some(bias) = &self.bias else { return (grads.slice(self.weight.clone()), None) };
        let (weight, rest) = grads.slice(self.weight.start..bias.end).split_at(self.weight.len());
        let padding = bias.start - self.weight.end;
        (weight, Some(rest.split_at(padding).1))
    }
}

/// The bias of a module, if it has one.
pub fn bias(block: &ParamBlock, module: Module) -> Option<Range<usize>> {
    block.param(module, ParamKind::Bias).map(ParamSpec::range)
}
