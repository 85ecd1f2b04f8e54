//! What training changes: parameters, their gradients, and what the optimizer remembers.
//!
//! A rank has some blocks of the model, and of each a share. [`Weights`] brings the parameters of a
//! block together when a pass needs them, [`Gradients`] takes those that a pass leaves to where they
//! are used, and the update works on shares alone.

mod gradients;
mod initial;
mod weights;

pub use gradients::Gradients;
pub use initial::initial;
pub use weights::Weights;

use std::ops::Range;

use crate::checkpoint::Kind;
use crate::device::Device;
use crate::memory::{Tensor, View, ViewMut};
use crate::model::Model;
use crate::parallel::Groups;

/// The state of a training, as much of it as this rank has.
pub struct State {
    /// Parameters.
    pub weights: Weights,
    /// Their gradients.
    pub gradients: Gradients,
    /// Two moments of gradients for each parameter of this rank's shares: the mean, or momentum, and
    /// the mean of squares.
    pub moments: Vec<Option<[Tensor; 2]>>,
    /// This rank's share of the numbers of each block: what it updates.
    pub shares: Vec<Range<usize>>,
    /// How many ranks share a block.
    pub sharing: usize,
}

impl State {
    /// Parameters as they are before training, of the blocks that this rank has.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        groups: &Groups,
        is_held: impl Fn(usize) -> bool,
        seed: u64,
    ) -> Self {
        let weights = Weights::new(model, device, &is_held, seed);
        let moments = |block: usize| {
            let room = weights.own(block).len();
            is_held(block).then(|| [(); 2].map(|()| device.real(room)))
        };
        Self {
            moments: (0..model.blocks.len()).map(moments).collect(),
            gradients: Gradients::new(model, device, groups, &is_held),
            weights,
            shares: model.blocks.iter().map(|block| 0..block.room()).collect(),
            sharing: 1,
        }
    }

    /// This rank's share of a block's numbers; nothing if it has none.
    pub fn own(&self, block: usize, kind: Kind) -> View<'_> {
        let moments = self.moments[block].as_ref();
        let moment = |which: usize| moments.map_or(View::of::<f32>(&[]), |all| all[which].view());
        match kind {
            Kind::Parameter => self.weights.own(block),
            Kind::Moment1 => moment(0),
            Kind::Moment2 => moment(1),
        }
    }

    /// The same, to be changed.
    pub fn own_mut(&mut self, block: usize, kind: Kind) -> ViewMut<'_> {
        let which = match kind {
            Kind::Parameter => return self.weights.own_mut(block),
            Kind::Moment1 => 0,
            Kind::Moment2 => 1,
        };
        let moments = self.moments[block].as_mut();
        moments.map_or(ViewMut::of::<f32>(&mut []), |all| all[which].view_mut())
    }

    /// The blocks that this rank has.
    pub fn held(&self) -> impl Iterator<Item = usize> + use<> {
        let held = |(block, moments): (usize, &Option<_>)| moments.as_ref().map(|_| block);
        self.moments.iter().enumerate().filter_map(held).collect::<Vec<_>>().into_iter()
    }
}
