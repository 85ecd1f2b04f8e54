//! A model on a device.

use std::time::Duration;

use super::{Micro, StepError};
use crate::model::{Given, Model, Run, Scratch};
use crate::parallel::context::Ring;
use crate::parallel::tensor::Group;
use regatta_device::device::Device;
use regatta_device::memory::View;

/// A model on a device.
pub struct Net {
    /// What it is.
    pub model: Model,
    /// Where it is.
    pub device: Box<dyn Device>,
    /// The ranks that share its matrices.
    pub tensor: Group,
    /// The ranks that share its sequences.
    pub context: Ring,
    scratch: Scratch,
}

impl Net {
    /// A whole model.
    pub fn new(model: Model, device: Box<dyn Device>) -> Self {
        Self::within(Group::alone(), model, device)
    }

    /// A rank's part of a model that a group shares.
    pub fn within(tensor: Group, model: Model, device: Box<dyn Device>) -> Self {
        Self { model, device, tensor, context: Ring::alone(), scratch: Scratch::new() }
    }

    /// With ranks that share its sequences.
    pub fn in_ring(self, context: Ring) -> Self {
        Self { context, ..self }
    }

    /// Bytes of memory that passes have used at once.
    pub fn passing_bytes(&self) -> usize {
        self.scratch.most_bytes()
    }

    /// Gives memory back that passes have used: what follows needs other sizes.
    pub fn trim(&self) {
        self.scratch.trim();
    }

    /// How long passes waited for other ranks since this was last asked.
    pub(super) fn waited(&self) -> Duration {
        self.tensor.waits.take() + self.context.waits.take()
    }

    /// What a pass works with, in which this rank has so many tokens of each sequence.
    pub fn run(&self, batch: usize, sequence: usize) -> Run<'_> {
        let Self { device, scratch, tensor, context, .. } = self;
        let device = &**device;
        Run { device, scratch, tensor, context, batch, sequence, dropout: None, recompute: false }
    }

    /// The sum of the losses of sequences, with these parameters of all blocks.
    pub fn loss(&self, all: &[View<'_>], micro: &Micro<'_>) -> Result<f64, StepError> {
        // What layers would save for a backward pass is dropped by each at once.
        let run = Run { recompute: true, ..self.run(micro.batch, micro.sequence()) };
        let given = |block| Given { all, block };
        let mut x = self.model.embedding.forward(&run, &mut given(0), micro.inputs)?;
        for (number, layer) in self.model.layers.iter().enumerate() {
            x = layer.forward(&run, &mut given(number + 1), x)?.0;
        }
        self.model.head.loss(&run, &mut given(self.model.last()), &x, micro.targets)
    }
}
