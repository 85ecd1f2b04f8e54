//! Parameters and gradients of a layer in a pass, from the block store.

use crate::model::{DeferredWeightGrad, Params, ParamsAndGrads};
use crate::state::{BlockStore, GradSync, Result};
use regatta_device::tensor::{View, ViewMut};

/// The parameters and gradients of an unsharded layer.
pub(super) struct LayerParams<'a> {
    pub store: &'a mut BlockStore,
    /// The layer's own block.
    pub block: usize,
    /// How gradients of tiles are reduced.
    pub tile_sync: GradSync,
    /// The queue for weight gradients, if the schedule defers them.
    pub deferred: Option<&'a mut Vec<DeferredWeightGrad>>,
}

impl<'a> LayerParams<'a> {
    /// For a forward pass.
    pub fn forward(store: &'a mut BlockStore, block: usize) -> Self {
        Self::backward(store, block, GradSync::Deferred)
    }

    /// For a backward pass that computes weight gradients at once.
    pub fn backward(store: &'a mut BlockStore, block: usize, tile_sync: GradSync) -> Self {
        Self { store, block, tile_sync, deferred: None }
    }
}

impl Params for LayerParams<'_> {
    fn block(&self) -> View<'_> {
        self.store.params(self.block)
    }

    fn prefetch(&mut self, tile: usize) {
        self.store.prefetch(tile);
    }

    fn unshard(&mut self, tile: usize) -> Result<()> {
        self.store.unshard(tile)
    }

    fn tile(&self, tile: usize) -> View<'_> {
        self.store.params(tile)
    }

    fn reshard(&mut self, tile: usize) {
        self.store.reshard(tile);
    }
}

impl ParamsAndGrads for LayerParams<'_> {
    fn params_and_grads(&mut self) -> (View<'_>, ViewMut<'_>) {
        self.store.params_and_grads(self.block)
    }

    fn grads(&mut self) -> ViewMut<'_> {
        self.store.grads.full(self.block)
    }

    fn grads_of(&mut self, block: usize) -> ViewMut<'_> {
        self.store.grads.full(block)
    }

    fn block_and_tile_grads(&mut self, tile: usize) -> [ViewMut<'_>; 2] {
        self.store.grads.full_pair(self.block, tile)
    }

    fn reduce_grads(&mut self, tile: usize) -> Result<()> {
        self.store.reduce_grads(tile, self.tile_sync)
    }

    fn deferred(&mut self) -> Option<&mut Vec<DeferredWeightGrad>> {
        self.deferred.as_deref_mut()
    }
}
