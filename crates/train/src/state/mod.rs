//! What training changes: parameters, their gradients, and what the optimizer remembers.
//!
//! A rank has some blocks of the model, and of each a share. [`Weights`] brings the parameters of a
//! block together when a pass needs them, [`Gradients`] takes those that a pass leaves to where they
//! are used, and the update works on shares alone. What a rank has may be on disk: then it is in
//! memory while it is open.

mod error;
mod gradients;
mod initial;
mod passing;
mod pool;
mod shared;
mod sharing;
mod weights;
mod whole;

pub use error::StepError;
pub use gradients::Gradients;
pub use initial::initial;
pub use pool::Pool;
pub use sharing::{Sharing, Split};
pub use weights::Weights;

use std::ops::Range;
use std::time::Duration;

use crate::checkpoint::Kind;
use crate::model::Model;
use crate::offload::{Offload, Shelf, Store, StoreError, Where};
use crate::parallel::Groups;
use regatta_device::device::Device;
use regatta_device::memory::View;
use regatta_predict::moved::Moved;

/// The state of a training, as much of it as this rank has.
pub struct State {
    /// Parameters.
    pub weights: Weights,
    /// Their gradients.
    pub gradients: Gradients,
    /// Two moments of gradients for each parameter of this rank's shares, one behind the other: the
    /// mean, or momentum, and the mean of squares.
    pub moments: Shelf,
    /// This rank's share of the numbers of each block: what it updates.
    pub shares: Vec<Range<usize>>,
    /// How many ranks share a block.
    pub sharing: usize,
}

/// Bytes of a rank's memory that have to do with state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Parameters.
    pub parameters: Held,
    /// Gradients.
    pub gradients: Held,
    /// The optimizer's moments.
    pub moments: Held,
}

/// Bytes of one kind of state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// What is always there.
    pub kept: usize,
    /// For blocks that come and go during a step. It is taken when first needed, and then kept.
    pub passing: usize,
}

impl Held {
    fn new([kept, passing]: [usize; 2]) -> Self {
        Self { kept, passing }
    }

    /// The most at any time.
    pub fn most(&self) -> usize {
        self.kept + self.passing
    }
}

impl State {
    /// Parameters as they are before training, of the blocks that this rank has.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        groups: &Groups,
        how: &Sharing,
        is_held: impl Fn(usize) -> bool,
        seed: u64,
    ) -> Result<Self, StepError> {
        let split = Split::new(how, groups)?;
        let rank = groups.world.as_ref().map_or(0, |world| world.rank());
        let make = |place, kind| on_disk(&how.offload, place, kind, rank);
        let shares: Vec<_> = model.blocks.iter().map(|block| split.share(block)).collect();
        let stored = make(how.offload.parameters, "parameters");
        let weights = Weights::new(model, device, &split, &is_held, seed, stored)?;
        let both = |(block, share): (usize, &Range<usize>)| is_held(block).then(|| 2 * share.len());
        let lengths: Vec<_> = shares.iter().enumerate().map(both).collect();
        let moments = match make(how.offload.optimizer, "moments") {
            Some(make) => Shelf::on_disk(make, &lengths, device.real_format(), None)?,
            None => {
                let memory = |length: Option<usize>| length.map(|length| device.real(length));
                Shelf::in_memory(lengths.into_iter().map(memory).collect())
            }
        };
        let gradients = Gradients::new(model, device, &split, &is_held);
        Ok(Self { weights, gradients, moments, shares, sharing: split.ranks() })
    }

    /// Lends this rank's share of a block's numbers; nothing if it has none.
    pub fn look<T>(
        &mut self,
        block: usize,
        kind: Kind,
        look: impl FnOnce(View<'_>) -> T,
    ) -> Result<T, StepError> {
        let half = self.shares[block].len();
        match kind {
            Kind::Parameter => {
                self.weights.open(block)?;
                let seen = look(self.weights.own(block));
                self.weights.close(block, false)?;
                Ok(seen)
            }
            Kind::Moment1 | Kind::Moment2 => {
                self.moments.bring(block)?;
                let both = self.moments.view(block);
                let seen = look(if both.is_empty() { both } else { both.part(which(kind, half)) });
                self.moments.free(block, false)?;
                Ok(seen)
            }
        }
    }

    /// Copies numbers of this rank's share of a block, wherever they are, from a place in it on.
    pub fn fetch(
        &mut self,
        device: &dyn Device,
        (block, kind): (usize, Kind),
        start: usize,
        to: &mut [f32],
    ) -> Result<(), StepError> {
        let half = self.shares[block].len();
        match kind {
            Kind::Parameter => self.weights.fetch(device, block, start, to),
            _ => Ok(self.moments.fetch(device, block, which(kind, half).start + start, to)?),
        }
    }

    /// Changes some of them. Others learn of changed parameters by [`Weights::updated`].
    pub fn put(
        &mut self,
        device: &dyn Device,
        (block, kind): (usize, Kind),
        start: usize,
        from: &[f32],
    ) -> Result<(), StepError> {
        let half = self.shares[block].len();
        match kind {
            Kind::Parameter => self.weights.put(device, block, start, from),
            _ => Ok(self.moments.put(device, block, which(kind, half).start + start, from)?),
        }
    }

    /// Waits for parameters that are on their way from other ranks.
    pub fn settle(&mut self) -> Result<(), StepError> {
        self.held().try_for_each(|block| self.weights.settle(block))
    }

    /// The blocks that this rank has.
    pub fn held(&self) -> impl Iterator<Item = usize> + use<> {
        let held = (0..self.shares.len()).filter(|block| self.moments.has(*block));
        held.collect::<Vec<_>>().into_iter()
    }

    /// How long passes were held up for parameters and gradients since this was asked.
    pub fn take_waited(&mut self) -> Duration {
        self.weights.take_waited() + self.gradients.take_waited()
    }

    /// What all this takes of this rank's memory.
    pub fn bytes(&self) -> Bytes {
        Bytes {
            parameters: Held::new(self.weights.bytes()),
            gradients: Held::new(self.gradients.bytes()),
            moments: Held::new(self.moments.bytes()),
        }
    }

    /// What was read from disk and written there so far.
    pub fn moved(&self) -> Moved {
        self.weights.moved() + self.moments.moved()
    }
}

/// Where in two moments one is.
fn which(kind: Kind, half: usize) -> Range<usize> {
    if kind == Kind::Moment1 { 0..half } else { half..2 * half }
}

/// How the file of a kind of state is made, if it is on disk.
fn on_disk(
    offload: &Offload,
    place: Where,
    kind: &str,
    rank: u32,
) -> Option<impl FnOnce(u64) -> Result<Store, StoreError>> {
    let (folder, name) = (offload.folder.clone(), format!("{kind}-{rank}"));
    (place == Where::Disk).then_some(move |bytes| Store::new(&folder, &name, bytes))
}
