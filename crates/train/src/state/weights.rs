//! Parameters, block by block: brought together when they are needed.

use regatta_comm::CommError;

use super::initial;
use crate::device::Device;
use crate::memory::{Tensor, View, ViewMut};
use crate::model::Model;

/// The parameters of the blocks that this rank has.
#[derive(Debug)]
pub struct Weights {
    blocks: Vec<Option<Tensor>>,
}

impl Weights {
    /// As they are before training.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        is_held: impl Fn(usize) -> bool,
        seed: u64,
    ) -> Self {
        let layers = model.shape.layers;
        let one =
            |(number, block)| is_held(number).then(|| initial(block, number, layers, device, seed));
        Self { blocks: model.blocks.iter().enumerate().map(one).collect() }
    }

    /// A block will be needed soon, and may begin to come.
    pub fn ask(&mut self, _block: usize) {}

    /// The whole block is here, until it is freed.
    pub fn bring(&mut self, _block: usize) -> Result<(), CommError> {
        Ok(())
    }

    /// A block that was brought.
    pub fn view(&self, block: usize) -> View<'_> {
        self.own(block)
    }

    /// A block that was brought is not needed for now.
    pub fn free(&mut self, _block: usize) {}

    /// All blocks, if this rank has them whole.
    pub fn whole(&self) -> Option<Vec<View<'_>>> {
        self.blocks.iter().map(|block| Some(block.as_ref()?.view())).collect()
    }

    /// This rank's share of a block was changed, and others may need it.
    pub fn updated(&mut self, _block: usize) -> Result<(), CommError> {
        Ok(())
    }

    /// This rank's share of a block; nothing if it has none.
    pub fn own(&self, block: usize) -> View<'_> {
        self.blocks[block].as_ref().map_or(View::of::<f32>(&[]), Tensor::view)
    }

    /// The same, to be changed.
    pub fn own_mut(&mut self, block: usize) -> ViewMut<'_> {
        self.blocks[block].as_mut().map_or(ViewMut::of::<f32>(&mut []), Tensor::view_mut)
    }
}
