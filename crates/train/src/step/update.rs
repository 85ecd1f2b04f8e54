//! The end of a step: gradients are clipped, and parameters follow them, each rank's share.

use std::ops::Range;

use regatta_comm::{Collectives, ReduceOp};

use super::{Engine, Plan, Rule};
use crate::state::{State, StepError};
use regatta_device::device::Device;
use regatta_device::memory::{View, ViewMut};
use regatta_device::optimizer::{AdamW, Sgd};
use regatta_predict::shape::Parameter;

impl Engine {
    /// Clips, and changes the parameters. Returns the norm of the gradients.
    pub(super) fn update(&mut self, plan: &Plan) -> Result<f64, StepError> {
        let norm = self.gradient_norm()?;
        let rule = plan.rule.scaled(clipped(norm, plan.clip));
        let mut blocks = self.state.held().peekable();
        while let Some(block) = blocks.next() {
            let State { weights, moments, .. } = &mut self.state;
            weights.open(block)?;
            moments.bring(block)?;
            // While this one is worked on, the disk reads the next.
            if let Some(next) = blocks.peek() {
                weights.ask_own(*next);
                moments.ask(*next);
            }
            self.update_block(rule, block);
            self.state.moments.free(block, true)?;
            self.state.weights.updated(block)?;
        }
        Ok(norm)
    }

    /// The parameters of this rank's share of a block follow their gradients.
    fn update_block(&mut self, rule: Rule, block: usize) {
        let State { weights, gradients, moments, shares, .. } = &mut self.state;
        let (gradients, share) = (gradients.own(block), &shares[block]);
        let (mut first, mut second) = moments.view_mut(block).split_at(share.len());
        let mut params = weights.own_mut(block);
        for parameter in &self.net.model.blocks[block].parameters {
            let here = || within(parameter, share);
            let (gradients, params) = (gradients.part(here()), params.part(here()));
            let moments = [first.part(here()), second.part(here())];
            rule.apply(&*self.net.device, parameter.decays(), gradients, moments, params);
        }
    }

    /// The norm of all gradients of the model, whoever has them.
    fn gradient_norm(&self) -> Result<f64, StepError> {
        let (mesh, seat) = (&self.groups.mesh, &self.groups.seat);
        let mut squares = 0.0;
        for block in self.state.held().filter(|block| self.stage.has(self.net.model.users[*block]))
        {
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
