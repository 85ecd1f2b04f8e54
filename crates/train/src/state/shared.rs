//! Parameters of which every rank has a share, or that are on disk: a block is whole only while a
//! pass needs it.

use regatta_comm::Pending;

use super::pool::Pool;
use super::{Split, StepError};
use crate::offload::Shelf;
use crate::parallel::zero;
use regatta_device::memory::{Format, Tensor, View};

/// Shares, and the blocks that are whole for now.
pub struct Shared {
    /// This rank's shares.
    pub shelf: Shelf,
    blocks: Vec<Block>,
    split: Split,
    format: Format,
    pool: Pool,
    /// Which block was asked for last.
    asked: usize,
    /// For each block, with which others it is needed in turn, one way or the other: layers, and tiles
    /// of one matrix.
    ways: Vec<usize>,
}

struct Block {
    room: usize,
    /// How many have brought it and not freed it.
    users: usize,
    whole: Place,
}

enum Place {
    Nowhere,
    Coming(Pending),
    Here(Tensor),
    /// It could not even begin to come.
    Failed(StepError),
}

impl Shared {
    /// Blocks with so much room each, of which the shares are on a shelf; those of one way follow each
    /// other.
    pub fn new(
        shelf: Shelf,
        rooms: &[usize],
        ways: Vec<usize>,
        split: Split,
        format: Format,
    ) -> Self {
        let block = |room: &usize| Block { room: *room, users: 0, whole: Place::Nowhere };
        let (blocks, pool) = (rooms.iter().map(block).collect(), Pool::new(split.shard.clone()));
        Self { shelf, blocks, split, format, pool, asked: 0, ways }
    }

    /// A block begins to come, if this rank has it. What goes wrong is heard by whoever brings it.
    pub fn ask(&mut self, block: usize) {
        if let Place::Nowhere = self.blocks[block].whole
            && self.shelf.has(block)
            && let Err(error) = self.begin(block)
        {
            self.blocks[block].whole = Place::Failed(error);
        }
    }

    /// Ranks that share it begin to gather it, and the disk to read the one that will be asked for
    /// next: it was asked for this one then, too, so that all ranks go on at the same place. Where the
    /// way does not go on to a neighbour nobody knows which it will be, and what is read in vain would
    /// stay in memory until it is needed.
    fn begin(&mut self, block: usize) -> Result<(), StepError> {
        let Some(comm) = self.split.shard.clone() else {
            self.shelf.ask(block);
            return Ok(());
        };
        self.shelf.bring(block)?;
        let all = self.pool.take(self.blocks[block].room, self.format);
        let own = self.shelf.take(block);
        self.blocks[block].whole = Place::Coming(zero::gather_into(&*comm, own, all));
        if block.abs_diff(self.asked) == 1
            && let Some(next) = (2 * block).checked_sub(self.asked)
            && self.ways.get(next) == Some(&self.ways[block])
        {
            self.shelf.ask(next);
        }
        self.asked = block;
        Ok(())
    }

    /// A block is whole until it is freed as often as it was brought, if this rank has it.
    pub fn bring(&mut self, block: usize) -> Result<(), StepError> {
        if !self.shelf.has(block) {
            return Ok(());
        }
        self.ask(block);
        self.blocks[block].users += 1;
        let whole = match std::mem::replace(&mut self.blocks[block].whole, Place::Nowhere) {
            Place::Failed(error) => return Err(error),
            Place::Here(tensor) => tensor,
            Place::Coming(pending) => self.came(block, pending)?,
            Place::Nowhere => {
                self.shelf.bring(block)?;
                self.shelf.take(block)
            }
        };
        self.blocks[block].whole = Place::Here(whole);
        Ok(())
    }

    /// Waits for others' shares.
    fn came(&mut self, block: usize, pending: Pending) -> Result<Tensor, StepError> {
        let call = pending.wait()?;
        if let Some(own) = call.input {
            self.shelf.give(block, Tensor::from_buffer(own, self.format));
        }
        Ok(Tensor::from_buffer(call.output, self.format))
    }

    /// A block that was brought.
    pub fn view(&self, block: usize) -> View<'_> {
        match &self.blocks[block].whole {
            Place::Here(tensor) => tensor.view(),
            _ => unreachable!("it is looked at while it is here"),
        }
    }

    /// One who brought a block does not need it for now.
    pub fn free(&mut self, block: usize) {
        let Block { users, whole, .. } = &mut self.blocks[block];
        *users = users.saturating_sub(1);
        if *users > 0 {
            return;
        }
        if let Place::Here(tensor) = std::mem::replace(whole, Place::Nowhere) {
            match self.split.shard {
                Some(_) => self.pool.give(tensor),
                None => self.shelf.give(block, tensor),
            }
        }
    }

    /// This rank's share is here, to be looked at or changed, and nothing else is made of it.
    pub fn open(&mut self, block: usize) -> Result<(), StepError> {
        self.rest(block)?;
        Ok(self.shelf.bring(block)?)
    }

    /// A block that is on its way goes back, so that nobody has what is made of this rank's share.
    pub fn rest(&mut self, block: usize) -> Result<(), StepError> {
        if let Place::Coming(_) | Place::Failed(_) = self.blocks[block].whole {
            self.bring(block)?;
            self.free(block);
        }
        Ok(())
    }

    /// Bytes that are always in memory, and those for what comes and goes.
    pub fn bytes(&self) -> [usize; 2] {
        let [kept, passing] = self.shelf.bytes();
        [kept, passing + self.pool.bytes()]
    }
}
