//! Gradients, block by block: added up on this rank, then over all that have the same parameters.

use std::ops::Range;
use std::time::{Duration, Instant};

use regatta_comm::CommError;

use super::Split;
use super::passing::Passing;
use crate::model::Model;
use crate::parallel::zero::Scatter;
use crate::parallel::{Alone, DataParallel, Exchange, Zero};
use regatta_device::device::Device;
use regatta_device::memory::{Tensor, View, ViewMut};

/// The gradients of the blocks that this rank has.
pub struct Gradients {
    home: Home,
}

enum Home {
    Whole(Whole),
    Passing(Passing),
}

/// Gradients of whole blocks, until the end of a step.
struct Whole {
    /// `None`: not this rank's, or on their way between ranks.
    blocks: Vec<Option<Tensor>>,
    shares: Vec<Range<usize>>,
    exchange: Box<dyn Exchange>,
    bytes: usize,
    waited: Duration,
}

impl Gradients {
    /// All zero.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        split: &Split,
        is_held: impl Fn(usize) -> bool,
    ) -> Self {
        let home = match &split.shard {
            Some(shard) if split.zero >= Zero::Gradients => {
                let one = |(number, block)| {
                    is_held(number).then(|| (split.room(block), split.share(block)))
                };
                let blocks = model.blocks.iter().enumerate().map(one).collect();
                let format = device.real_format();
                Home::Passing(Passing::new(shard.clone(), split.clone(), format, blocks))
            }
            _ => Home::Whole(Whole::new(model, device, split, is_held)),
        };
        Self { home }
    }

    /// Nothing was added yet.
    pub fn clear(&mut self, device: &dyn Device) {
        match &mut self.home {
            Home::Whole(home) => {
                home.blocks.iter_mut().flatten().for_each(|tensor| device.clear(tensor.view_mut()));
            }
            Home::Passing(home) => home.clear(device),
        }
    }

    /// Where a pass adds to the gradients of a block.
    pub fn of(&mut self, block: usize) -> ViewMut<'_> {
        match &mut self.home {
            Home::Whole(home) => here(&mut home.blocks[block]),
            Home::Passing(home) => home.of(block),
        }
    }

    /// The same of two blocks, the first before the second.
    pub fn pair(&mut self, first: usize, second: usize) -> [ViewMut<'_>; 2] {
        match &mut self.home {
            Home::Whole(home) => {
                let (before, behind) = home.blocks.split_at_mut(second);
                [here(&mut before[first]), here(&mut behind[0])]
            }
            Home::Passing(home) => home.pair(first, second),
        }
    }

    /// Whether the gradients of a block leave this rank when it is ready.
    pub fn leave(&self, last: bool) -> bool {
        last || matches!(self.home, Home::Passing(_))
    }

    /// A pass has added what it has to a block; after the last pass of a step, nothing follows.
    pub fn ready(
        &mut self,
        device: &dyn Device,
        block: usize,
        last: bool,
    ) -> Result<(), CommError> {
        match &mut self.home {
            Home::Whole(home) => home.ready(device, block, last),
            Home::Passing(home) => home.ready(device, block, last),
        }
    }

    /// Waits until the sums of all ranks are here.
    pub fn finish(&mut self, device: &dyn Device) -> Result<(), CommError> {
        match &mut self.home {
            Home::Whole(home) => home.finish(device),
            Home::Passing(home) => home.finish(device),
        }
    }

    /// The sums of this rank's share of a block.
    pub fn own(&self, block: usize) -> View<'_> {
        match &self.home {
            Home::Whole(home) => {
                let own = home.shares[block].clone();
                let all = home.blocks[block].as_ref();
                all.map_or(View::of::<f32>(&[]), |all| all.view().part(own))
            }
            Home::Passing(home) => home.own(block),
        }
    }

    /// How long was waited for other ranks since this was asked.
    pub fn take_waited(&mut self) -> Duration {
        match &mut self.home {
            Home::Whole(home) => std::mem::take(&mut home.waited),
            Home::Passing(home) => home.take_waited(),
        }
    }

    /// Bytes that are always in memory, and those for what comes and goes.
    pub fn bytes(&self) -> [usize; 2] {
        match &self.home {
            Home::Whole(home) => [home.bytes, home.exchange.bytes()],
            Home::Passing(home) => home.bytes(),
        }
    }
}

impl Whole {
    fn new(
        model: &Model,
        device: &dyn Device,
        split: &Split,
        is_held: impl Fn(usize) -> bool,
    ) -> Self {
        let exchange: Box<dyn Exchange> = match (&split.shard, &split.replica) {
            (Some(shard), replica) => Box::new(Scatter::new(shard.clone(), replica.clone())),
            (None, Some(comm)) => Box::new(DataParallel::new(comm.clone())),
            (None, None) => Box::new(Alone::default()),
        };
        let one =
            |(number, block)| is_held(number).then(|| exchange.memory(device, split.room(block)));
        let blocks: Vec<_> = model.blocks.iter().enumerate().map(one).collect();
        let bytes = |tensor: &Tensor| tensor.len() * tensor.format().size();
        Self {
            bytes: blocks.iter().flatten().map(bytes).sum(),
            shares: model.blocks.iter().map(|block| split.share(block)).collect(),
            blocks,
            exchange,
            waited: Duration::ZERO,
        }
    }

    fn ready(&mut self, device: &dyn Device, block: usize, last: bool) -> Result<(), CommError> {
        let Some(tensor) = self.blocks[block].take_if(|_| last) else { return Ok(()) };
        let began = Instant::now();
        let ready = self.exchange.ready(device, block, tensor);
        self.waited += began.elapsed();
        ready
    }

    fn finish(&mut self, device: &dyn Device) -> Result<(), CommError> {
        let began = Instant::now();
        for (block, tensor) in self.exchange.finish(device)? {
            self.blocks[block] = Some(tensor);
        }
        self.waited += began.elapsed();
        Ok(())
    }
}

fn here(tensor: &mut Option<Tensor>) -> ViewMut<'_> {
    match tensor {
        Some(tensor) => tensor.view_mut(),
        None => unreachable!("gradients are here until their block is complete"),
    }
}
