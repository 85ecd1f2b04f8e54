//! Parameters of which every rank has all, though it may update a share only.

use regatta_comm::Pending;

use super::pool::travelling;
use super::{Split, StepError};
use crate::parallel::zero;
use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor, View, ViewMut};

/// Whole blocks.
pub struct Whole {
    blocks: Vec<Option<Block>>,
    split: Split,
    format: Format,
    bytes: usize,
}

enum Block {
    Here(Tensor),
    /// Others' shares are on their way.
    Coming(Pending),
    /// They did not come.
    Lost,
}

impl Whole {
    /// None of the blocks yet.
    pub fn new(split: Split, format: Format) -> Self {
        Self { blocks: Vec::new(), split, format, bytes: 0 }
    }

    /// The next block, with room for equal shares.
    pub fn push(&mut self, device: &dyn Device, room: usize, numbers: Option<Tensor>) {
        let block = numbers.map(|numbers| {
            self.bytes += room * self.format.size();
            if numbers.len() == room && self.split.parameters.is_none() {
                return Block::Here(numbers);
            }
            let mut all = travelling(&self.split.parameters, room, self.format);
            device.copy(numbers.view(), all.view_mut().part(0..numbers.len()));
            Block::Here(all)
        });
        self.blocks.push(block);
    }

    /// Waits for others' shares.
    pub fn bring(&mut self, block: usize) -> Result<(), StepError> {
        let Some(block) = &mut self.blocks[block] else { return Ok(()) };
        *block = match std::mem::replace(block, Block::Lost) {
            Block::Coming(pending) => Block::Here(zero::ended(pending, self.format)?),
            other => other,
        };
        Ok(())
    }

    /// All of a block that was brought; nothing if this rank has none.
    pub fn view(&self, block: usize) -> View<'_> {
        match &self.blocks[block] {
            Some(Block::Here(tensor)) => tensor.view(),
            None => View::of::<f32>(&[]),
            _ => unreachable!("it is looked at while it is here"),
        }
    }

    /// The same, to be changed.
    pub fn view_mut(&mut self, block: usize) -> ViewMut<'_> {
        match &mut self.blocks[block] {
            Some(Block::Here(tensor)) => tensor.view_mut(),
            None => ViewMut::of::<f32>(&mut []),
            _ => unreachable!("it is changed while it is here"),
        }
    }

    /// The blocks, if all are here.
    pub fn all<'a>(&'a self) -> Option<Vec<View<'a>>> {
        let one = |block: &'a Option<Block>| match block {
            Some(Block::Here(tensor)) => Some(tensor.view()),
            _ => None,
        };
        self.blocks.iter().map(one).collect()
    }

    /// This rank's share was changed: all begin to tell the others theirs.
    pub fn updated(&mut self, block: usize) {
        let Some(comm) = &self.split.parameters else { return };
        let Some(block) = &mut self.blocks[block] else { return };
        *block = match std::mem::replace(block, Block::Lost) {
            Block::Here(tensor) => Block::Coming(zero::gather(&**comm, tensor)),
            other => other,
        };
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
