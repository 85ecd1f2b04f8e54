//! Parameters and gradients of a layer, of the embedding or of the head in a pass, from the state.

use crate::model::{Bank, Later, Params};
use crate::state::{State, StepError, Weights};
use regatta_device::device::Device;
use regatta_device::memory::{View, ViewMut};

/// Parameters of a layer that is only passed forward.
pub(super) struct Reading<'a> {
    pub weights: &'a mut Weights,
    /// The layer's block, which was brought.
    pub block: usize,
}

impl Params for Reading<'_> {
    fn own(&self) -> View<'_> {
        self.weights.view(self.block)
    }

    fn ask(&mut self, tile: usize) {
        self.weights.ask(tile);
    }

    fn bring(&mut self, tile: usize) -> Result<(), StepError> {
        self.weights.bring(tile)
    }

    fn tile(&self, tile: usize) -> View<'_> {
        self.weights.view(tile)
    }

    fn free(&mut self, tile: usize) {
        self.weights.free(tile);
    }
}

/// A layer on the way back.
pub(super) struct Working<'a> {
    pub state: &'a mut State,
    pub device: &'a dyn Device,
    /// The layer's block, which was brought.
    pub block: usize,
    pub later: Option<&'a mut Vec<Later>>,
    /// Whether gradients of tiles leave when a pass has added to them, and if so, whether nobody will
    /// add to them in this step.
    pub leaving: Option<bool>,
}

impl Params for Working<'_> {
    fn own(&self) -> View<'_> {
        self.state.weights.view(self.block)
    }

    fn ask(&mut self, tile: usize) {
        self.state.weights.ask(tile);
    }

    fn bring(&mut self, tile: usize) -> Result<(), StepError> {
        self.state.weights.bring(tile)
    }

    fn tile(&self, tile: usize) -> View<'_> {
        self.state.weights.view(tile)
    }

    fn free(&mut self, tile: usize) {
        self.state.weights.free(tile);
    }
}

impl Bank for Working<'_> {
    fn both(&mut self) -> (View<'_>, ViewMut<'_>) {
        let State { weights, gradients, .. } = &mut *self.state;
        (weights.view(self.block), gradients.of(self.block))
    }

    fn grads(&mut self) -> ViewMut<'_> {
        self.state.gradients.of(self.block)
    }

    fn grads_of(&mut self, block: usize) -> ViewMut<'_> {
        self.state.gradients.of(block)
    }

    fn tile_grads(&mut self, tile: usize) -> [ViewMut<'_>; 2] {
        self.state.gradients.pair(self.block, tile)
    }

    fn complete(&mut self, tile: usize) -> Result<(), StepError> {
        let Some(last) = self.leaving else { return Ok(()) };
        Ok(self.state.gradients.ready(self.device, tile, last)?)
    }

    fn later(&mut self) -> Option<&mut Vec<Later>> {
        self.later.as_deref_mut()
    }
}
