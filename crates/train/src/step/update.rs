//! The end of a step: gradients are clipped, and parameters follow them, each rank's share.

use std::ops::Range;

use regatta_comm::{Collectives, CommError, ReduceOp};

use super::{Engine, Plan, Rule};
use crate::device::Device;
use crate::memory::{View, ViewMut};
use crate::optimizer::{AdamW, Sgd};
use crate::shape::Parameter;

impl Engine {
    /// Clips, and changes the parameters. Returns the norm of the gradients.
    pub(super) fn update(&mut self, plan: &Plan) -> Result<f64, CommError> {
        let norm = self.gradient_norm()?;
        let rule = plan.rule.scaled(clipped(norm, plan.clip));
        let device = &*self.net.device;
        let state = &mut self.state;
        for block in state.held() {
            let share = state.shares[block].clone();
            let Some([first, second]) = &mut state.moments[block] else { continue };
            let gradients = state.gradients.own(block);
            for parameter in &self.net.model.blocks[block].parameters {
                let here = || within(parameter, &share);
                let gradients = gradients.part(here());
                let [mut first, mut second] = [first.view_mut(), second.view_mut()];
                let moments = [first.part(here()), second.part(here())];
                let mut params = state.weights.own_mut(block);
                rule.apply(device, parameter.decays(), gradients, moments, params.part(here()));
            }
            state.weights.updated(block)?;
        }
        Ok(norm)
    }

    /// The norm of all gradients of the model, whoever has them.
    fn gradient_norm(&self) -> Result<f64, CommError> {
        let (mesh, seat) = (&self.groups.mesh, &self.groups.seat);
        let mut squares = 0.0;
        for block in self.state.held().filter(|block| self.stage.has(*block)) {
            let gradients = self.state.gradients.own(block);
            for parameter in &self.net.model.blocks[block].parameters {
                // What all ranks of a tensor group have counts once.
                if seat.tp == 0 || parameter.len() < parameter.whole.iter().product() {
                    let here = within(parameter, &self.state.shares[block]);
                    squares += self.net.device.square_sum(gradients.part(here));
                }
            }
        }
        let repeated = mesh.data_ranks() / self.state.sharing;
        let mut sum = [squares / repeated as f64];
        if let Some(world) = self.groups.world.as_ref().filter(|_| repeated < mesh.ranks()) {
            world.all_reduce(&mut sum, ReduceOp::Sum)?;
            return Ok(sum[0].sqrt());
        }
        Ok(squares.sqrt())
    }
}

/// Where in a share of its block a parameter lies, as much of it as is there.
fn within(parameter: &Parameter, share: &Range<usize>) -> Range<usize> {
    let clamp = |place: usize| place.clamp(share.start, share.end) - share.start;
    let range = parameter.range();
    clamp(range.start)..clamp(range.end)
}

impl Rule {
    fn scaled(self, by: f64) -> Self {
        match self {
            Self::AdamW(how) => Self::AdamW(AdamW { scale: by, ..how }),
            Self::Sgd(how) => Self::Sgd(Sgd { scale: by, ..how }),
        }
    }

    fn apply(
        self,
        device: &dyn Device,
        decays: bool,
        gradients: View<'_>,
        moments: [ViewMut<'_>; 2],
        parameters: ViewMut<'_>,
    ) {
        let kept = |decay: f64| if decays { decay } else { 0.0 };
        match self {
            Self::AdamW(how) => {
                let how = AdamW { decay: kept(how.decay), ..how };
                device.adamw(&how, gradients, moments, parameters);
            }
            Self::Sgd(how) => {
                let how = Sgd { decay: kept(how.decay), ..how };
                let [momentum, _] = moments;
                device.sgd(&how, gradients, momentum, parameters);
            }
        }
    }
}

/// What gradients of this norm are multiplied by.
fn clipped(norm: f64, most: f64) -> f64 {
    if most > 0.0 { (most / (norm + 1e-6)).min(1.0) } else { 1.0 }
}
