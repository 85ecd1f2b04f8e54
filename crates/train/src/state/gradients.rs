//! Gradients, block by block: added up on this rank, then over all that have the same parameters.

use regatta_comm::CommError;

use crate::device::Device;
use crate::memory::{Tensor, View, ViewMut};
use crate::model::Model;
use crate::parallel::{Alone, DataParallel, Exchange, Groups};

/// The gradients of the blocks that this rank has.
pub struct Gradients {
    /// `None`: not this rank's, or on their way between ranks.
    blocks: Vec<Option<Tensor>>,
    exchange: Box<dyn Exchange>,
}

impl Gradients {
    /// All zero.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        groups: &Groups,
        is_held: impl Fn(usize) -> bool,
    ) -> Self {
        let exchange: Box<dyn Exchange> = match &groups.data {
            None => Box::new(Alone::default()),
            Some(comm) => Box::new(DataParallel::new(comm.clone())),
        };
        let one = |(number, block): (usize, &crate::shape::Block)| {
            is_held(number).then(|| exchange.memory(device, block.room()))
        };
        Self { blocks: model.blocks.iter().enumerate().map(one).collect(), exchange }
    }

    /// Nothing was added yet.
    pub fn clear(&mut self, device: &dyn Device) {
        self.blocks.iter_mut().flatten().for_each(|tensor| device.clear(tensor.view_mut()));
    }

    /// Where a pass adds to the gradients of a block.
    pub fn of(&mut self, block: usize) -> ViewMut<'_> {
        match &mut self.blocks[block] {
            Some(tensor) => tensor.view_mut(),
            None => unreachable!("gradients are here until their block is complete"),
        }
    }

    /// The same of two blocks, the first before the second.
    pub fn pair(&mut self, first: usize, second: usize) -> [ViewMut<'_>; 2] {
        let (before, behind) = self.blocks.split_at_mut(second);
        match (&mut before[first], &mut behind[0]) {
            (Some(one), Some(other)) => [one.view_mut(), other.view_mut()],
            _ => unreachable!("gradients are here until their block is complete"),
        }
    }

    /// A pass has added what it has to a block; after the last pass of a step, nothing follows.
    pub fn ready(&mut self, block: usize, last: bool) {
        if let Some(tensor) = self.blocks[block].take_if(|_| last) {
            self.exchange.ready(block, tensor);
        }
    }

    /// Waits until the sums of all ranks are here.
    pub fn finish(&mut self) -> Result<(), CommError> {
        for (block, tensor) in self.exchange.finish()? {
            self.blocks[block] = Some(tensor);
        }
        Ok(())
    }

    /// The sums of this rank's share of a block.
    pub fn own(&self, block: usize) -> View<'_> {
        self.blocks[block].as_ref().map_or(View::of::<f32>(&[]), Tensor::view)
    }
}
