//! Parameters, block by block: brought together when they are needed.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::pool::travelling;
use super::shared::Shared;
use super::whole::Whole;
use super::{Split, StepError, initial};
use crate::model::Model;
use crate::offload::{Shelf, Store, StoreError};
use crate::parallel::Zero;
use regatta_device::device::Device;
use regatta_device::memory::{Format, Tensor, View, ViewMut};
use regatta_predict::moved::Moved;
use regatta_predict::shape::Block;

/// The parameters of the blocks that this rank has.
pub struct Weights {
    home: Home,
    shares: Vec<Range<usize>>,
    waited: Duration,
}

enum Home {
    Whole(Whole),
    Shared(Box<Shared>),
}

impl Home {
    fn shared(shelf: Shelf, model: &Model, split: &Split, format: Format) -> Self {
        let (rooms, ways) = (rooms(model, split), ways(model));
        Self::Shared(Box::new(Shared::new(shelf, &rooms, ways, split.clone(), format)))
    }
}

/// The number of each block's way: tiles have their matrix's, and all else is one.
fn ways(model: &Model) -> Vec<usize> {
    let mut numbers = HashMap::new();
    let number = |block: &Block| {
        // As in `layer.3.qkv.0`; a layer itself is `layer.3`.
        let (matrix, _) = block.name.rsplit_once('.').unwrap_or_default();
        let matrix = if matrix.contains('.') { matrix } else { "" };
        let next = numbers.len();
        *numbers.entry(matrix.to_owned()).or_insert(next)
    };
    model.blocks.iter().map(number).collect()
}

impl Weights {
    /// As they are before training. With a store, they are on disk.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        split: &Split,
        is_held: impl Fn(usize) -> bool,
        seed: u64,
        store: Option<impl FnOnce(u64) -> Result<Store, StoreError>>,
    ) -> Result<Self, StepError> {
        let (blocks, format) = (&model.blocks, device.real_format());
        let shares: Vec<_> = blocks.iter().map(|block| split.share(block)).collect();
        let first = |number: usize| {
            let made = || initial(&blocks[number], model.shape.layers, device, seed);
            is_held(number).then(made)
        };
        let numbers = || 0..blocks.len();
        let home = if let Some(make) = store {
            let lengths: Vec<_> =
                numbers().map(|block| is_held(block).then(|| shares[block].len())).collect();
            let mut shelf = Shelf::on_disk(make, &lengths, format, split.shard.clone())?;
            for number in numbers() {
                if let Some(all) = first(number) {
                    shelf.bring(number)?;
                    cut(device, &all, &shares[number], shelf.view_mut(number));
                    shelf.free(number, true)?;
                }
            }
            Home::shared(shelf, model, split, format)
        } else if split.zero == Zero::Parameters {
            let own = |number: usize| {
                let all = first(number)?;
                let mut own = travelling(&split.shard, shares[number].len(), format);
                cut(device, &all, &shares[number], own.view_mut());
                Some(own)
            };
            let shelf = Shelf::in_memory(numbers().map(own).collect());
            Home::shared(shelf, model, split, format)
        } else {
            let mut whole = Whole::new(split.clone(), format);
            for (number, room) in rooms(model, split).into_iter().enumerate() {
                whole.push(device, room, first(number));
            }
            Home::Whole(whole)
        };
        Ok(Self { home, shares, waited: Duration::ZERO })
    }

    /// A block will be needed soon, and may begin to come.
    pub fn ask(&mut self, block: usize) {
        if let Home::Shared(home) = &mut self.home {
            let began = Instant::now();
            home.ask(block);
            // It may have had to wait for the disk.
            self.waited += began.elapsed();
        }
    }

    /// The whole block is here, until it is freed.
    pub fn bring(&mut self, block: usize) -> Result<(), StepError> {
        let began = Instant::now();
        let brought = match &mut self.home {
            Home::Whole(home) => home.bring(block),
            Home::Shared(home) => home.bring(block),
        };
        self.waited += began.elapsed();
        brought
    }

    /// A block that was brought.
    pub fn view(&self, block: usize) -> View<'_> {
        match &self.home {
            Home::Whole(home) => home.view(block),
            Home::Shared(home) => home.view(block),
        }
    }

    /// A block that was brought is not needed for now.
    pub fn free(&mut self, block: usize) {
        if let Home::Shared(home) = &mut self.home {
            home.free(block);
        }
    }

    /// All blocks, if this rank has them whole and they are all here.
    pub fn whole(&self) -> Option<Vec<View<'_>>> {
        match &self.home {
            Home::Whole(home) => home.all(),
            Home::Shared(_) => None,
        }
    }

    /// Waits for others' shares of a block that this rank has whole.
    pub fn settle(&mut self, block: usize) -> Result<(), StepError> {
        match &mut self.home {
            Home::Whole(home) => home.bring(block),
            Home::Shared(_) => Ok(()),
        }
    }

    /// This rank's share of a block is here, until it is closed.
    pub fn open(&mut self, block: usize) -> Result<(), StepError> {
        match &mut self.home {
            Home::Whole(home) => home.bring(block),
            Home::Shared(home) => home.open(block),
        }
    }

    /// The share will be opened soon.
    pub fn ask_own(&mut self, block: usize) {
        if let Home::Shared(home) = &mut self.home {
            home.shelf.ask(block);
        }
    }

    /// This rank's share of a block is not needed for now. Others do not learn that it was changed.
    pub fn close(&mut self, block: usize, changed: bool) -> Result<(), StepError> {
        match &mut self.home {
            Home::Whole(_) => Ok(()),
            Home::Shared(home) => Ok(home.shelf.free(block, changed)?),
        }
    }

    /// All ranks have changed their shares of a block, and tell each other, if they have it whole.
    pub fn updated(&mut self, block: usize) -> Result<(), StepError> {
        if let Home::Whole(home) = &mut self.home {
            home.updated(block);
        }
        self.close(block, true)
    }

    /// This rank's share of a block that is open; nothing if it has none.
    pub fn own(&self, block: usize) -> View<'_> {
        match &self.home {
            Home::Whole(home) => {
                let all = home.view(block);
                if all.is_empty() { all } else { all.part(self.shares[block].clone()) }
            }
            Home::Shared(home) => home.shelf.view(block),
        }
    }

    /// The same, to be changed.
    pub fn own_mut(&mut self, block: usize) -> ViewMut<'_> {
        let share = self.shares[block].clone();
        match &mut self.home {
            Home::Whole(home) => {
                let all = home.view_mut(block);
                if all.is_empty() { all } else { all.split_at(share.end).0.split_at(share.start).1 }
            }
            Home::Shared(home) => home.shelf.view_mut(block),
        }
    }

    /// Copies numbers of this rank's share of a block, wherever they are, from a place in it on.
    pub fn fetch(
        &mut self,
        device: &dyn Device,
        block: usize,
        start: usize,
        to: &mut [f32],
    ) -> Result<(), StepError> {
        if let Home::Shared(home) = &mut self.home {
            home.rest(block)?;
            return Ok(home.shelf.fetch(device, block, start, to)?);
        }
        self.open(block)?;
        device.fetch(self.own(block).part(start..start + to.len()), to);
        Ok(())
    }

    /// Changes some of them.
    pub fn put(
        &mut self,
        device: &dyn Device,
        block: usize,
        start: usize,
        from: &[f32],
    ) -> Result<(), StepError> {
        if let Home::Shared(home) = &mut self.home {
            home.rest(block)?;
            return Ok(home.shelf.put(device, block, start, from)?);
        }
        self.open(block)?;
        device.put(from, self.own_mut(block).part(start..start + from.len()));
        Ok(())
    }

    /// How long was waited for blocks since this was asked.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Bytes that are always in memory, and those for what comes and goes.
    pub fn bytes(&self) -> [usize; 2] {
        match &self.home {
            Home::Whole(home) => [home.bytes(), 0],
            Home::Shared(home) => home.bytes(),
        }
    }

    /// What was read from disk and written there so far.
    pub fn moved(&self) -> Moved {
        match &self.home {
            Home::Whole(_) => Moved::default(),
            Home::Shared(home) => home.shelf.moved(),
        }
    }
}

fn rooms(model: &Model, split: &Split) -> Vec<usize> {
    model.blocks.iter().map(|block| split.room(block)).collect()
}

/// Copies a share out of a block, as much of it as there is.
fn cut(device: &dyn Device, all: &Tensor, share: &Range<usize>, mut own: ViewMut<'_>) {
    let end = share.end.min(all.len());
    let start = share.start.min(end);
    device.copy(all.view().part(start..end), own.part(0..end - start));
}
