//! Gradients of which every rank keeps a share: those of a whole block live for one pass only.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use regatta_comm::{Comm, CommError, Pending};

use super::Split;
use super::pool::{Pool, travelling};
use crate::parallel::zero;
use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor, View, ViewMut};

/// Shares, and the blocks that a pass is at.
pub struct Passing {
    shard: Arc<dyn Comm>,
    split: Split,
    format: Format,
    blocks: Vec<Option<Block>>,
    /// Cleared memory.
    pool: Pool,
    /// Blocks that become shares, in the order of their beginnings.
    scattering: VecDeque<(usize, bool, Pending)>,
    /// Shares whose sums go on to the ranks with the same share.
    summing: Vec<(usize, Pending)>,
    waited: Duration,
}

struct Block {
    room: usize,
    own: Range<usize>,
    whole: Option<Tensor>,
    /// `None` while it is on its way between ranks.
    share: Option<Tensor>,
}

impl Passing {
    /// All zero; each block that this rank has with its room, and this rank's range of it.
    pub fn new(
        shard: Arc<dyn Comm>,
        split: Split,
        format: Format,
        blocks: Vec<Option<(usize, Range<usize>)>>,
    ) -> Self {
        let (company, pool) = (split.replica.clone(), Pool::new(Some(shard.clone())));
        let block = |(room, own): (usize, Range<usize>)| {
            let share = Some(travelling(&company, own.len(), format));
            Block { room, own, whole: None, share }
        };
        let blocks = blocks.into_iter().map(|about| about.map(block)).collect();
        let (scattering, summing) = (VecDeque::new(), Vec::new());
        Self { shard, split, format, blocks, pool, scattering, summing, waited: Duration::ZERO }
    }

    /// Nothing was added yet.
    pub fn clear(&mut self, device: &dyn Device) {
        let shares = self.blocks.iter_mut().flatten().filter_map(|block| block.share.as_mut());
        shares.for_each(|share| device.clear(share.view_mut()));
    }

    /// Where a pass adds to the gradients of a block.
    pub fn of(&mut self, block: usize) -> ViewMut<'_> {
        self.begin(block);
        of(&mut self.blocks[block])
    }

    /// The same of two blocks, the first before the second.
    pub fn pair(&mut self, first: usize, second: usize) -> [ViewMut<'_>; 2] {
        self.begin(first);
        self.begin(second);
        let (before, behind) = self.blocks.split_at_mut(second);
        [of(&mut before[first]), of(&mut behind[0])]
    }

    fn begin(&mut self, block: usize) {
        if let Some(Block { room, whole, .. }) = &mut self.blocks[block]
            && whole.is_none()
        {
            *whole = Some(self.pool.take(*room, self.format));
        }
    }

    /// A pass has added what it has to a block, which goes on its way.
    pub fn ready(
        &mut self,
        device: &dyn Device,
        block: usize,
        last: bool,
    ) -> Result<(), CommError> {
        let whole = self.blocks[block].as_mut().and_then(|block| block.whole.take());
        if let Some(whole) = whole {
            self.scattering.push_back((block, last, zero::scatter(&*self.shard, whole)));
        }
        // The one before had all of this block's pass for its way, and its memory is needed.
        self.advance(device, 1)
    }

    /// Adds up the shares of all but so many blocks that were begun last.
    fn advance(&mut self, device: &dyn Device, left: usize) -> Result<(), CommError> {
        while self.scattering.len() > left
            && let Some((number, last, pending)) = self.scattering.pop_front()
        {
            let mut whole = zero::waited(pending, self.format, &mut self.waited)?;
            let Some(Block { own, share, .. }) = &mut self.blocks[number] else { continue };
            if let Some(share) = share {
                device.add(whole.view().part(own.clone()), share.view_mut());
            }
            device.clear(whole.view_mut());
            self.pool.give(whole);
            if let Some(comm) = &self.split.replica
                && let Some(share) = share.take_if(|_| last)
            {
                self.summing.push((number, zero::sum(&**comm, share)));
            }
        }
        Ok(())
    }

    /// Waits until the sums of all ranks are here.
    pub fn finish(&mut self, device: &dyn Device) -> Result<(), CommError> {
        self.advance(device, 0)?;
        for (number, pending) in std::mem::take(&mut self.summing) {
            if let Some(block) = &mut self.blocks[number] {
                block.share = Some(zero::waited(pending, self.format, &mut self.waited)?);
            }
        }
        Ok(())
    }

    /// The sums of this rank's share of a block.
    pub fn own(&self, block: usize) -> View<'_> {
        let share = self.blocks[block].as_ref().and_then(|block| block.share.as_ref());
        share.map_or(View::of::<f32>(&[]), Tensor::view)
    }

    /// How long was waited for other ranks since this was asked.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Bytes that are always in memory, and those for what comes and goes.
    pub fn bytes(&self) -> [usize; 2] {
        let shares = self.blocks.iter().flatten().map(|block| block.own.len());
        [shares.sum::<usize>() * self.format.size(), self.pool.bytes()]
    }
}

fn of(block: &mut Option<Block>) -> ViewMut<'_> {
    match block.as_mut().and_then(|block| block.whole.as_mut()) {
        Some(tensor) => tensor.view_mut(),
        None => unreachable!("a pass only goes through blocks that this rank has"),
    }
}
